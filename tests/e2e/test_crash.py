"""kill -9 of the daemon at bad moments, and what must hold afterwards."""
import json
import random
import subprocess
import threading
import time

import pytest

from client import Client
from conftest import processes_naming, wait_until


def test_session_command_survives_the_daemon(own):
    box = own.create("base")
    child = own.popen("session", "run", box.id, "--", "echo begin; sleep 3; echo done; (exit 5)",
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"begin\n"
    own.kill()
    out, err = child.communicate(timeout=60)  # which starts a new daemon by itself
    assert out == b"done\n", (out, err)
    assert child.returncode == 5
    own.cli("daemon", "stop", check=True)
    own.start()
    listed = json.loads(own.cli("ls", "--json").stdout)["sandboxes"]
    assert [(s["id"], s["state"]) for s in listed] == [(box.id, "running")]
    assert box.run("echo again")["stdout"] == "again\n"


def test_session_state_survives_the_daemon(own):
    box = own.create("base")
    box.run("cd /tmp; v=kept; f() { echo $v; }; sleep 500 & job=$!")
    for _ in range(3):
        own.kill()
        own.start()
        result = box.run("f; pwd; kill -0 $job && echo alive")
        assert result["stdout"] == "kept\n/tmp\nalive\n"


def test_output_made_while_the_daemon_is_dead_is_not_lost(own):
    box = own.create("base")
    stream = box.run_stream("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.3; done; (exit 4)")
    started = json.loads(stream.wait_for(6))
    own.kill()
    time.sleep(1.5)  # what is tested: output with nobody there
    own.start()
    again = box.client.upgrade(f"{box.url}/sessions/default/attach", {"command": started["command"]})
    out, err, result = again.finish()
    assert out == b"".join(f"{i}\n".encode() for i in range(1, 10)) and result["exit_code"] == 4


def test_exec_process_survives_the_daemon(own):
    box = own.create("base")
    started = box.client.post(f"{box.url}/exec", {"argv": ["sh", "-c", "sleep 2; echo end; exit 3"], "detach": True})
    own.kill()
    own.start()
    stream = box.client.upgrade(f"{box.url}/processes/{started['process_id']}/attach", {})
    out, err, result = stream.finish()
    assert out == b"end\n" and result["exit_code"] == 3


def test_daemon_killed_during_creation_leaves_nothing(own):
    own.create("base").remove()  # the template is there
    for delay in (0.0, 0.02, 0.05, 0.08, 0.12, 0.2):
        errors = []

        def create():
            try:
                own.create("base")
            except Exception as error:  # the daemon dies under it
                errors.append(error)
        thread = threading.Thread(target=create)
        thread.start()
        time.sleep(delay)  # the moment is what varies
        own.kill()
        thread.join()
        own.start()
        boxes = own.client.get("/v1/sandboxes")["sandboxes"]
        for info in boxes:
            assert info["state"] == "running", info
            own.client.delete(f"/v1/sandboxes/{info['id']}", raw=True)
        wait_until(lambda: not [p for p in processes_naming(str(own.state)) if p != own.daemon.pid],
                   "no process to be left")
        assert list((own.state / "sandboxes").iterdir()) == []


def test_vmm_killed_is_noticed_and_said(own):
    import os
    box = own.create("base")
    other = own.create("base")
    os.kill(own.client.get(box.url)["pid"], 9)
    wait_until(lambda: box.state() in ("failed", "stopped"), "the sandbox to be failed")
    info = own.client.get(box.url)
    assert info["state"] == "failed" and info["error"]["code"] == "guest_gone"
    assert other.exec("echo", "ok")["stdout"] == "ok\n"


def test_vmm_killed_while_the_daemon_is_dead(own):
    import os
    box = own.create("base")
    other = own.create("base")
    pid = own.client.get(box.url)["pid"]
    own.kill()
    os.kill(pid, 9)
    own.start()
    states = {s["id"]: s["state"] for s in own.client.get("/v1/sandboxes")["sandboxes"]}
    assert states[box.id] == "failed" and states[other.id] == "running"
    assert other.exec("echo", "ok")["stdout"] == "ok\n"


@pytest.mark.full
def test_hundred_kills_at_random_moments(own):
    """Each round: a busy client, a kill at a random moment, a restart; nothing lost, nothing leaked."""
    rng = random.Random(7)
    box = own.create("base")
    box.run("n=0")
    for round_number in range(100):
        stop = threading.Event()

        def busy():
            while not stop.is_set():
                try:
                    own.create("base").remove()
                except Exception:
                    stop.wait(0.01)
        thread = threading.Thread(target=busy)
        thread.start()
        time.sleep(rng.random() * 0.4)
        own.kill()
        own.start()
        stop.set()
        thread.join()
        assert box.run("n=$((n+1)); echo $n")["stdout"] == f"{round_number + 1}\n"
        for info in own.client.get("/v1/sandboxes")["sandboxes"]:
            if info["id"] != box.id:
                own.client.delete(f"/v1/sandboxes/{info['id']}", raw=True)
        pid = own.client.get(box.url)["pid"]
        wait_until(lambda: set(processes_naming(str(own.state))) <= {own.daemon.pid, pid},
                   "no stray process")
