"""Sleep and waking: by hand, by idleness, at the end of the life time, across daemons that die."""
import http.client
import json
import os
import random
import threading
import time

import pytest

from client import EMULATED, ApiError
from conftest import BACKEND, processes_naming, wait_until
from witness import COUNTER, Witness, snapshots, stored, used_ones_go


def vmms(hearth):
    return [pid for pid in processes_naming(str(hearth.state)) if pid != hearth.daemon.pid]


def no_process_left(hearth):
    wait_until(lambda: not vmms(hearth), "no process to be left of what sleeps")


def asleep(hearth, box, timeout=60):
    wait_until(lambda: box.state() == "paused", "the sandbox to sleep", timeout)
    no_process_left(hearth)


def cycles(request, few, many=100):
    """HEARTH_TEST_CYCLES: to run a long test in pieces."""
    many = int(os.environ.get("HEARTH_TEST_CYCLES", many))
    return many if request.config.getoption("--full") else few


class Deaths:
    """The daemon dies every third time it is asked for, at once or beside what goes on."""

    def __init__(self, hearth):
        # HEARTH_TEST_SEED: other moments in each piece of a long run
        self.hearth, self.rng, self.count = hearth, random.Random(int(os.environ.get("HEARTH_TEST_SEED", 1))), 0

    def maybe(self, within=0.0):
        if self.rng.random() >= 0.34:
            return
        time.sleep(self.rng.random() * within)  # the moment is what varies
        self.hearth.kill()
        self.hearth.start()
        self.count += 1

    def maybe_during(self, action, within):
        """Does it in a thread of its own; what a client sees of the death is no failure."""
        def act():
            try:
                action()
            except (ApiError, OSError, http.client.HTTPException):
                pass
        thread = threading.Thread(target=act)
        thread.start()
        self.maybe(within)
        thread.join()


def test_sleep_by_hand_loses_nothing(own, request):
    deaths = Deaths(own)
    witness = Witness(own)
    box = witness.box
    count = cycles(request, 5)
    for number in range(count):
        deaths.maybe_during(lambda: own.client.post(f"{box.url}/hibernate"), 1.5)
        answer = own.client.post(f"{box.url}/hibernate")
        assert answer["state"] == "paused" and "pid" not in answer
        no_process_left(own)
        kinds = [s["kind"] for s in snapshots(own)]
        assert set(kinds) == {"hibernated"} and (len(kinds) == 1 or BACKEND == "firecracker"), kinds
        deaths.maybe()
        assert box.state() == "paused"
        if number % 2:
            deaths.maybe_during(lambda: own.client.post(f"{box.url}/resume"), 1)
            assert own.client.post(f"{box.url}/resume")["state"] == "running"
        deaths.maybe()
        witness.check()
        used_ones_go(own)
    print(f"{count} sleeps by hand, {deaths.count} daemons killed")
    box.remove()
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_sleep_by_idleness_loses_nothing(own, request):
    """A process in the background does not keep a sandbox awake; a command of a session does."""
    deaths = Deaths(own)
    witness = Witness(own, idle_sec=1)
    box = witness.box
    count = cycles(request, 4)
    for _ in range(count):
        deaths.maybe(2.5)  # awake, falling asleep, asleep
        asleep(own, box)
        deaths.maybe_during(lambda: box.exec("true"), 1)
        witness.check()
    print(f"{count} sleeps by idleness, {deaths.count} daemons killed")
    assert box.run("sleep 3; echo awake")["stdout"] == "awake\n"
    woken = own.client.get(box.url)["woken"]
    assert box.run("echo $kept")["stdout"] == "yes\n" and own.client.get(box.url)["woken"] == woken
    asleep(own, box)
    box.remove()


def test_sleep_at_the_end_of_its_time_loses_nothing(own, request):
    deaths = Deaths(own)
    life = 30 if EMULATED else 15
    witness = Witness(own, timeout_sec=life, on_timeout="hibernate")
    box = witness.box

    def check():
        """Where the machine is so busy that one life is too short for all of it, in more of them."""
        for look in (witness.check_session, witness.check_counter, witness.check_sums):
            for attempt in range(5):
                try:
                    look()
                    break
                except ApiError as error:
                    if attempt == 4 or error.code not in ("sandbox_not_running", "cancelled"):
                        raise
                    asleep(own, box)
    count = cycles(request, 2)
    for _ in range(count):
        deaths.maybe(life)  # awake, falling asleep, asleep
        asleep(own, box)
        assert "expires" not in own.client.get(box.url)
        deaths.maybe_during(lambda: box.exec("true"), 1)
        check()
        own.client.post(f"{box.url}/resume")
        assert "expires" in own.client.get(box.url)
    print(f"{count} sleeps at the end of its time, {deaths.count} daemons killed")
    box.remove()


def test_what_sleeps_too_long_is_removed(own):
    box = own.create("base", retention_sec=1)
    own.client.post(f"{box.url}/hibernate")
    wait_until(lambda: not own.client.get("/v1/sandboxes")["sandboxes"], "the sandbox to go")
    wait_until(lambda: stored(own) == [], "its snapshot to go")
    other = own.create("base", retention_sec=2)
    own.client.post(f"{other.url}/hibernate")
    own.kill()
    own.start()
    wait_until(lambda: not own.client.get("/v1/sandboxes")["sandboxes"], "the sandbox to go")


def test_every_touch_wakes(own):
    box = own.create("base")
    box.run("cd /tmp; n=0; echo content > /tmp/f")
    listener = own.client.post(f"{box.url}/exec", {"argv": ["sleep", "1000"], "detach": True})
    touches = [
        lambda: box.exec("true")["exit_code"] == 0,
        lambda: box.run("n=$((n+1)); echo $n")["exit_code"] == 0,
        lambda: own.client.get(f"{box.url}/files", query={"path": "/tmp/f"}, raw=True) == b"content\n",
        lambda: own.client.request("PUT", f"{box.url}/files", b"new", query={"path": "/tmp/g"}, raw=True) == b"",
        lambda: own.client.get(f"{box.url}/stats")["processes"] > 0,
        lambda: any(p["process_id"] == listener["process_id"] and p["running"]
                    for p in own.client.get(f"{box.url}/processes")["processes"]),
        lambda: own.cli("exec", box.id, "--", "cat", "/tmp/f").stdout == b"content\n",
    ]
    for number, touch in enumerate(touches):
        own.client.post(f"{box.url}/pause")
        assert box.state() == "paused"
        assert own.client.get(f"{box.url}/sessions")["sessions"][0]["name"] == "default"
        assert box.state() == "paused", "looking does not wake it"
        assert touch(), number
        assert box.state() == "running", number
    many = []
    own.client.post(f"{box.url}/hibernate")
    threads = [threading.Thread(target=lambda: many.append(box.exec("echo", "x")["stdout"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert many == ["x\n"] * 8
    box.remove()


def test_commands_go_on_and_their_output_is_whole(own):
    """A session command sleeps in the middle, an exec too; time asleep is no time of theirs."""
    box = own.create("base")
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.3; done; (exit 4)"
    began = time.monotonic()
    stream = box.run_stream(script, timeout_ms=60000)
    command = json.loads(stream.wait_for(6))["command"]
    process = own.client.post(f"{box.url}/exec", {"argv": ["sh", "-c", f"{script}; exit 5"], "detach": True})
    wait_until(lambda: stream.recv()[0] == 1, "output to begin")
    own.client.post(f"{box.url}/hibernate")
    with pytest.raises(ApiError) as error:
        stream.finish()
    assert error.value.code == "sandbox_not_running", error.value
    time.sleep(5)  # what is tested: this time does not count
    expected = b"".join(f"{i}\n".encode() for i in range(1, 11))
    out, _, result = own.client.upgrade(f"{box.url}/sessions/default/attach", {"command": command}).finish()
    assert out == expected and result["exit_code"] == 4, result
    assert result["duration_ms"] < (time.monotonic() - began - 5) * 1000 + 100, result
    out, _, result = own.client.upgrade(f"{box.url}/processes/{process['process_id']}/attach", {}).finish()
    assert out == expected and result["exit_code"] == 5
    box.remove()


def test_terminal_goes_on(own):
    box = own.create("base")
    own.client.post(f"{box.url}/sessions", {"name": "tty", "kind": "tty", "rows": 30, "cols": 90})
    own.client.post(f"{box.url}/sessions/tty/run", {"text": "stty -echo; t=terminal"})
    own.client.post(f"{box.url}/hibernate")
    result = own.client.post(f"{box.url}/sessions/tty/run", {"text": "echo $t; stty size; tty"})
    assert result["stdout"].split() == ["terminal", "30", "90", "/dev/pts/0"], result
    box.remove()


def test_resume_at_any_point_of_a_pause(own, request):
    """The request is answered and the state is right, whatever the pause had come to."""
    rng = random.Random(4)
    box = own.create("base")
    box.run("n=0; " + COUNTER)
    began = time.monotonic()
    own.client.post(f"{box.url}/hibernate")
    whole = time.monotonic() - began
    seen = {"paused": 0, "cancelled": 0}
    points = cycles(request, 12, 50)
    for number in range(1, points + 1):
        outcome = []

        def pause():
            try:
                outcome.append(own.client.post(f"{box.url}/hibernate")["state"])
            except ApiError as error:
                outcome.append(error.code)
        box.exec("true")
        thread = threading.Thread(target=pause)
        thread.start()
        time.sleep(rng.random() * whole * 1.3)  # the moment is what varies
        assert box.run("n=$((n+1)); echo $n")["stdout"] == f"{number}\n"
        thread.join()
        seen[outcome[0]] += 1
        assert box.state() == "running"
    out = box.exec("sh", "-c", "awk 'NR != $1 { print \"bad\"; exit }' /root/count")["stdout"]
    assert out == "", out
    print(f"resume at {points} points of a pause of {whole:.2f} s: {seen}")
    used_ones_go(own)
    box.remove()
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_sleep_survives_all_daemons(own):
    """Nothing of a sleeping sandbox depends on a process: as after a restart of the host."""
    box = own.create("base", name="sleeper")
    box.run("v=kept")
    own.client.post(f"{box.url}/hibernate")
    own.stop()
    assert not processes_naming(str(own.state))
    assert own.cli("session", "run", "sleeper", "echo $v").stdout == b"kept\n"  # which starts one
    own.cli("daemon", "stop", check=True)
    own.start()
    box.remove()


def test_vmm_killed_while_it_falls_asleep(own):
    """Whatever the moment: asleep with all it was, or failed with the reason."""
    for delay in (0.0, 0.05, 0.1, 0.2):
        box = own.create("base")
        box.run("v=kept")
        pid = own.client.get(box.url)["pid"]

        def kill():
            time.sleep(delay)
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            state = own.client.post(f"{box.url}/hibernate")["state"]
        except ApiError:
            state = None
        thread.join()
        wait_until(lambda: box.state() in ("paused", "failed"), "an end")
        if state == "paused":
            assert box.run("echo $v")["stdout"] == "kept\n"
        else:
            assert own.client.get(box.url)["error"]["code"] in ("guest_gone", "backend_failed", "sandbox_failed")
        box.remove()
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_daemon_killed_at_any_point_of_a_pause_or_resume(own, request):
    rng = random.Random(5)
    box = own.create("base")
    box.run("n=0; " + COUNTER)
    count = 0
    for number in range(cycles(request, 8)):
        def change():
            for verb in ("hibernate", "resume"):
                try:
                    own.client.post(f"{box.url}/{verb}")
                except (ApiError, OSError, http.client.HTTPException):
                    pass  # the daemon dies under it
        thread = threading.Thread(target=change)
        thread.start()
        time.sleep(rng.random() * 1.5)  # the moment is what varies
        own.kill()
        thread.join()
        own.start()
        count += 1
        assert box.run("n=$((n+1)); echo $n")["stdout"] == f"{count}\n", number
        assert len(vmms(own)) == 1
    out = box.exec("sh", "-c", "awk 'NR != $1 { print \"bad\"; exit }' /root/count")["stdout"]
    assert out == "", out
    box.remove()
    no_process_left(own)
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_command_line(own):
    box = own.create("base", name="cmd")
    assert own.cli("hibernate", "cmd", check=True).stdout == b"cmd\n"
    assert b"paused" in own.cli("ls", check=True).stdout
    listed = json.loads(own.cli("snapshot", "ls", "--json", check=True).stdout)["snapshots"]
    assert [s["kind"] for s in listed] == ["hibernated"]
    assert own.cli("snapshot", "verify", listed[0]["id"], check=True).stdout.endswith(b"is whole\n")
    refused = own.cli("snapshot", "rm", listed[0]["id"])
    assert refused.returncode == 1 and b"needs it" in refused.stderr
    woken = json.loads(own.cli("resume", "cmd", "--json", check=True).stdout)
    assert woken["state"] == "running"
    assert own.cli("hibernate", "nobody").returncode == 1
    lines = own.client.request("POST", f"{box.url}/hibernate", headers={"Accept": "application/x-ndjson"}, raw=True)
    lines = [json.loads(line) for line in lines.splitlines()]
    assert lines[-1]["sandbox"]["state"] == "paused"
    assert {"freeze", "save memory"} <= {line["progress"]["step"] for line in lines[:-1]}
    box.remove()
