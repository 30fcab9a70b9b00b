"""Checkpoints: named states to go back to, in place or in a new sandbox, and the tree they are."""
import json
import os
import threading
import time

import pytest

from client import ApiError, Sandbox
from conftest import wait_until
from witness import Witness, snapshots, stored


def checkpoint(box, name=None):
    return box.client.post(f"{box.url}/checkpoints", {"name": name} if name else {})


def rollback(box, which):
    return box.client.post(f"{box.url}/rollback", {"checkpoint": which})


def flip(path):
    """One bit of a file's data, which may be sparse and as long as a disk."""
    fd = os.open(path, os.O_RDWR)
    place = os.lseek(fd, 0, os.SEEK_DATA) + 40
    byte = os.pread(fd, 1, place)[0]
    os.pwrite(fd, bytes([byte ^ 1]), place)
    os.close(fd)


def test_there_and_back(own):
    witness = Witness(own)
    box = witness.box
    before = witness.count()
    first = checkpoint(box, "first")
    after = witness.count()
    witness.check()
    box.run("kept=no; cd /; exec 7>&-; rm /root/disk /ram/half; pkill -f count; true")
    assert box.run("echo $kept")["stdout"] == "no\n"
    assert rollback(box, "first")["state"] == "running"
    back = witness.count()
    assert before <= back < after + 200, (before, back, after)  # goes on from there, not from now
    witness.counted = 0
    witness.check()
    assert own.client.get(box.url)["checkpoint"] == first["id"]
    rollback(box, first["id"])  # again, and by id
    witness.counted = 0
    witness.check(sums=False)
    box.remove()
    assert [s["id"] for s in snapshots(own)] == [first["id"]]  # stays until somebody removes it
    own.client.delete(f"/v1/snapshots/{first['id']}", raw=True)
    wait_until(lambda: stored(own) == [], "the snapshot to go")


def test_tree_and_branches(own):
    box = own.create("base", name="searcher")
    path = []

    def step(name):
        box.run(f"way=\"$way {name}\"")
        path.append(checkpoint(box, name)["id"])
    for name in ("a", "b", "c"):
        step(name)
    rollback(box, "a")
    assert box.run("echo $way")["stdout"] == "a\n"
    step("d")
    listed = own.client.get(f"{box.url}/checkpoints")
    after = {c["name"]: c.get("after") for c in listed["checkpoints"]}
    a, b, c, d = path
    assert after == {"a": None, "b": a, "c": b, "d": a} and listed["current"] == d
    branch, = [Sandbox(own.client, info) for info in
               own.client.post(f"{box.url}/fork", {"from": "c"})["sandboxes"]]
    assert branch.run("echo $way")["stdout"] == "a b c\n"
    branch.run("way=\"$way x\"")
    x = checkpoint(branch, "x")
    assert x["after"] == c
    names = [s["name"] for s in own.client.get(f"{branch.url}/checkpoints")["checkpoints"]]
    assert names == ["a", "b", "c", "x"]  # its own and those it goes back to
    rollback(branch, "b")
    assert branch.run("echo $way")["stdout"] == "a b\n"
    with pytest.raises(ApiError) as error:
        rollback(branch, "d")  # not on its way
    assert error.value.code == "snapshot_not_found"
    tree = own.cli("checkpoint", "ls", "searcher", "--tree", check=True, text=True).stdout.splitlines()
    depth = {line.split()[2 if "*" in line else 1]: len(line) - len(line.lstrip()) for line in tree[1:]}
    assert depth == {"a": 0, "b": 2, "c": 4, "d": 2}, tree
    box.remove()
    late = own.client.post(f"/v1/snapshots/{d}/fork", {"count": 2})["sandboxes"]  # its sandbox is gone
    assert [Sandbox(own.client, info).run("echo $way")["stdout"] for info in late] == ["a d\n"] * 2
    for info in [*late, {"id": branch.id}]:
        own.client.delete(f"/v1/sandboxes/{info['id']}", raw=True)
    for snapshot in snapshots(own):
        own.client.delete(f"/v1/snapshots/{snapshot['id']}", raw=True)
    wait_until(lambda: stored(own) == [], "the snapshots to go")


def test_back_from_sleep_failure_and_power_off(own):
    box = own.create("base")
    box.run("v=kept")
    mark = checkpoint(box, "mark")["id"]
    box.run("v=lost")
    own.client.post(f"{box.url}/hibernate")
    rollback(box, "mark")
    assert box.run("echo $v")["stdout"] == "kept\n"
    wait_until(lambda: stored(own) == [mark], "the snapshot of the sleep to go")
    os.kill(own.client.get(box.url)["pid"], 9)
    wait_until(lambda: box.state() == "failed", "the sandbox to fail")
    rollback(box, "mark")
    # Long enough for whatever was still to come after the old machine's end.
    assert box.run("sleep 1; echo $v")["stdout"] == "kept\n"
    own.client.post(f"{box.url}/hibernate")  # and sleeps as any other
    assert box.run("echo $v")["stdout"] == "kept\n"
    box.remove()
    own.client.delete(f"/v1/snapshots/{mark}", raw=True)


def test_damaged_checkpoint_is_refused_and_nothing_is_lost(own):
    box = own.create("base")
    box.run("v=now")
    mark = checkpoint(box, "mark")["id"]
    for name in ("state", "memory", "disk", "manifest.json"):
        path = own.state / "snapshots" / mark / name
        flip(path)
        with pytest.raises(ApiError) as error:
            rollback(box, mark)
        assert error.value.code in ("snapshot_invalid", "snapshot_not_found"), (name, error.value)
        with pytest.raises(ApiError):
            own.client.post(f"/v1/snapshots/{mark}/fork")
        assert box.run("echo $v")["stdout"] == "now\n", name
        flip(path)
    assert own.client.post(f"/v1/snapshots/{mark}/verify")["id"] == mark
    rollback(box, mark)
    assert box.run("echo $v")["stdout"] == "now\n"
    box.remove()
    own.client.delete(f"/v1/snapshots/{mark}", raw=True)


def test_daemon_killed_during_a_rollback(own):
    """Afterwards it is at the checkpoint, or where it was."""
    box = own.create("base")
    box.run("v=then")
    checkpoint(box, "mark")
    for delay in (0.0, 0.15, 0.3, 0.6):
        box.run("v=now")

        def back():
            try:
                rollback(box, "mark")
            except Exception:
                pass  # the daemon dies under it
        thread = threading.Thread(target=back)
        thread.start()
        time.sleep(delay)  # the moment is what varies
        own.kill()
        thread.join()
        own.start()
        assert box.run("echo $v")["stdout"] in ("then\n", "now\n")
    box.remove()


def test_command_line(own):
    box = own.create("base")
    first = own.cli("checkpoint", box.id, "--name", "one", check=True, text=True).stdout.strip()
    listed = json.loads(own.cli("checkpoint", "ls", box.id, "--json", check=True).stdout)
    assert [c["id"] for c in listed["checkpoints"]] == [first] and listed["current"] == first
    assert own.cli("rollback", box.id, "one", check=True, text=True).stdout == f"{box.id}\n"
    kids = own.cli("fork", "--from", first, "-n", "2", check=True, text=True).stdout.split()
    assert len(kids) == 2
    assert own.cli("rollback", box.id, "two").returncode == 1
    own.cli("rm", box.id, *kids, check=True)
    assert own.cli("snapshot", "rm", "one", check=True, text=True).stdout == "one\n"
    assert own.cli("snapshot", "ls", "-q", check=True).stdout == b""
