"""What only Firecracker has: its jail, its pool of idle processes, and what doctor says of it."""
import json
import os
import pathlib
import signal

import pytest

from client import ApiError
from conftest import BACKEND, wait_until

pytestmark = pytest.mark.skipif(BACKEND != "firecracker", reason="about Firecracker's own jail and pool")


def status(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.split() for key, value in (line.split(":", 1) for line in lines)}


def jail_of(hearth, box):
    return pathlib.Path(json.loads((hearth.state / "fc/vms" / box.id).read_text())["jail"])


def test_processes_have_nothing_to_escape_with(hearth):
    boxes = [hearth.create("base") for _ in range(2)]
    pids = [hearth.client.get(box.url)["pid"] for box in boxes]
    if os.geteuid() != 0 or not pathlib.Path("/sys/fs/cgroup/hearth").exists():
        pytest.skip("not jailed here: doctor says why")
    uids, networks = set(), {os.readlink("/proc/self/ns/net")}
    for box, pid in zip(boxes, pids):
        facts = status(pid)
        assert len(set(facts["Uid"])) == 1 and int(facts["Uid"][0]) >= 231072, facts["Uid"]
        assert facts["Uid"] == facts["Gid"]
        uids.add(facts["Uid"][0])
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(facts[name][0], 16) == 0, (name, facts[name])
        assert facts["NoNewPrivs"] == ["1"]
        if not os.environ.get("HEARTH_FIRECRACKER_NO_SECCOMP"):
            threads = os.listdir(f"/proc/{pid}/task")
            assert {status(f"{pid}/task/{thread}")["Seccomp"][0] for thread in threads} == {"2"}
        assert facts["NSpid"][-1] == "1"  # alone in its pid namespace
        networks.add(os.readlink(f"/proc/{pid}/ns/net"))
        devices = pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in devices] == ["lo"], devices
        jail = jail_of(hearth, box)
        assert os.stat(f"/proc/{pid}/root").st_ino == (jail / "root").stat().st_ino
        cgroup = pathlib.Path("/sys/fs/cgroup/hearth") / jail.name
        assert str(pid) in (cgroup / "cgroup.procs").read_text().split()
        assert (cgroup / "memory.max").read_text() != "max\n"
        assert (cgroup / "pids.max").read_text() == "64\n"
        assert not (cgroup / "cpu.max").read_text().startswith("max")
    assert len(uids) == 2 and len(networks) == 3
    for box in boxes:
        box.remove()


def test_no_file_is_open_outside_the_jail(hearth):
    box = hearth.create("base")
    pid = hearth.client.get(box.url)["pid"]
    inside = set()
    for directory, _, names in os.walk(f"/proc/{pid}/root/"):
        inside |= {os.stat(os.path.join(directory, name))[1:3] for name in names}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{entry}"
        target = os.readlink(path)
        if target.startswith("/") and target != "/dev/null":  # else socket, pipe, eventfd, …
            assert os.stat(path)[1:3] in inside, target
    box.remove()


def test_idle_processes_are_kept_and_used(hearth):
    def idle():
        used = {pathlib.Path(json.loads(path.read_text())["jail"]) for path in hearth.state.glob("fc/vms/*")}
        jails = {path for path in hearth.state.glob("fc/*/*") if path.parent.name != "vms"}
        return {path.name for path in jails - used}

    wait_until(lambda: len(idle()) == 2, "two idle processes", timeout=120)
    before = idle()
    box = hearth.create("base")
    assert jail_of(hearth, box).name in before
    wait_until(lambda: len(idle()) == 2, "the pool to be filled again", timeout=120)
    box.remove()


def test_a_killed_process_is_told(hearth):
    box = hearth.create("base")
    os.kill(hearth.client.get(box.url)["pid"], signal.SIGKILL)
    with pytest.raises(ApiError) as failed:
        box.exec("sleep", "100")
    assert failed.value.code in ("guest_gone", "sandbox_failed"), failed.value
    box.remove()


def test_doctor_tells_what_is_missing(own, tmp_path):
    def doctor():
        report = json.loads(own.cli("doctor", "--json").stdout)
        return next(c for c in report["checks"] if c["name"] == "firecracker")

    assert doctor()["ok"]
    old = tmp_path / "firecracker"
    old.write_text("#!/bin/sh\necho Firecracker v1.15.0\n")
    old.chmod(0o755)
    for program, words in ((old, "1.15.0; 1.16.1 or newer"), ("/nonexistent", "no firecracker program")):
        own.stop()
        own.env["HEARTH_FIRECRACKER"] = str(program)
        own.start()
        answer = doctor()
        assert not answer["ok"] and words in answer["detail"], answer
