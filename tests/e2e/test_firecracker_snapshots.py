"""Snapshots of running VMs on Firecracker: its own way of writing them, and its console that starts anew."""
import os
import pathlib
import signal
import time

import pytest

from client import ApiError
from conftest import BACKEND, processes_naming, wait_until

pytestmark = pytest.mark.skipif(BACKEND != "firecracker", reason="about Firecracker's own snapshots")
# No two pages are the same: each round is shifted by the numbers before it.
FILL = "head -c 1048576 /dev/urandom > /tmp/seed; i=0; while [ $i -lt {mib} ]; do cat /tmp/seed; echo $i; " \
       "i=$((i+1)); done > /dev/shm/data; sha256sum < /dev/shm/data"
CHANGE = "head -c {size} /dev/urandom | dd of=/dev/shm/data bs=65536 seek={seek} conv=notrunc 2>/dev/null; " \
         "sha256sum < /dev/shm/data"


def shell(box, text):
    result = box.exec("sh", "-c", text, http_timeout=600)
    assert result["exit_code"] == 0, result
    return result["stdout"].strip()


def hibernate(box):
    return box.client.post(f"{box.url}/hibernate")


def snapshot(hearth, identity):
    return next(s for s in hearth.client.get("/v1/snapshots")["snapshots"] if s["id"] == identity)


def test_a_vm_goes_on_after_each_checkpoint(hearth):
    box = hearth.create("base")
    box.session("s")
    box.run("v=kept; (while :; do echo x; sleep 0.2; done) > /tmp/beats &", session="s")
    digest = shell(box, FILL.format(mib=4))
    for turn in range(3):
        made = box.client.post(f"{box.url}/checkpoints", {"name": f"c{turn}"})
        assert made["kind"] == "checkpoint", made
        assert box.state() == "running"
        assert box.run("echo $v", session="s")["stdout"] == "kept\n"
        assert shell(box, "sha256sum < /dev/shm/data") == digest
        before = int(shell(box, "wc -l < /tmp/beats"))
        wait_until(lambda: int(shell(box, "wc -l < /tmp/beats")) > before, "the background job to go on")
        digest = shell(box, CHANGE.format(size=65536, seek=turn))
    box.client.post(f"{box.url}/rollback", {"checkpoint": "c2"})
    assert shell(box, "sha256sum < /dev/shm/data") != digest
    assert box.run("echo $v", session="s")["stdout"] == "kept\n"
    box.remove()


def test_sleep_and_wake(hearth):
    box = hearth.create("base")
    digest = shell(box, FILL.format(mib=16))
    random = {shell(box, "head -c 16 /dev/urandom | od -An -tx1")}
    pid = hearth.client.get(box.url)["pid"]
    for _ in range(2):
        hibernate(box)
        assert box.state() == "paused"
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "no process to be left")
        before = time.time()
        now = float(shell(box, "date +%s.%N"))  # wakes it
        assert before - 1 < now < time.time() + 1
        assert shell(box, "sha256sum < /dev/shm/data") == digest
        random.add(shell(box, "head -c 16 /dev/urandom | od -An -tx1"))
        pid = hearth.client.get(box.url)["pid"]
    assert len(random) == 3
    box.remove()


def test_a_chain_five_deep_over_restarts_of_the_daemon(own):
    box = own.create("base", memory_mib=256)
    digest = shell(box, FILL.format(mib=64))
    parents = []
    for turn in range(5):
        asleep = hibernate(box)
        parents.append(snapshot(own, asleep["snapshot"]).get("parent"))
        (own.kill if turn % 2 else own.stop)()
        own.start()
        assert shell(box, "sha256sum < /dev/shm/data") == digest, turn
        digest = shell(box, CHANGE.format(size=1 << 20, seek=100 * turn))
    assert parents[0] is None and all(parents[1:]) and len(set(parents)) == 5, parents
    hibernate(box)
    own.kill()
    own.start()
    assert shell(box, "sha256sum < /dev/shm/data") == digest
    box.remove()


def depths(hearth):
    """How many others each snapshot lies over, as far as they are listed."""
    parents = {s["id"]: s.get("parent") for s in hearth.client.get("/v1/snapshots")["snapshots"]}

    def depth(identity):
        return 0 if parents.get(identity) is None else 1 + depth(parents[identity])
    return sorted(map(depth, parents))


def test_a_chain_gets_flat_and_small_in_the_background(own):
    own.stop()
    own.env.update(HEARTH_CHAIN_MAX="0", HEARTH_COMPRESS_AFTER="0")
    own.start()
    box = own.create("base", memory_mib=128)
    digests = [shell(box, FILL.format(mib=8))]
    for turn in range(4):
        box.client.post(f"{box.url}/checkpoints", {"name": f"c{turn}"})
        box.client.post(f"{box.url}/rollback", {"checkpoint": f"c{turn}"})  # the next one lies over it
        digests.append(shell(box, CHANGE.format(size=65536, seek=turn)))
    hibernate(box)
    assert depths(own) == [0, 1, 2, 3, 4]
    own.stop()
    own.env.update(HEARTH_CHAIN_MAX="2", HEARTH_COMPRESS_AFTER="1s")
    own.start()
    wait_until(lambda: depths(own) == [0, 0, 0, 1, 1] and
               all(s["compressed"] for s in own.client.get("/v1/snapshots")["snapshots"]),
               "the chain to be flat and compressed", 300)
    own.kill()
    own.env.update(HEARTH_CHAIN_MAX="0", HEARTH_COMPRESS_AFTER="0")
    own.start()
    for listed in own.client.get("/v1/snapshots")["snapshots"]:
        own.client.post(f"/v1/snapshots/{listed['id']}/verify")
    assert shell(box, "sha256sum < /dev/shm/data") == digests[4]
    for turn in (3, 0, 2, 1):
        box.client.post(f"{box.url}/rollback", {"checkpoint": f"c{turn}"})
        assert shell(box, "sha256sum < /dev/shm/data") == digests[turn], turn
    box.remove()


def pagers(hearth):
    """Pids of hearth-pagers that serve VMs of this daemon."""
    found = []
    for pid in processes_naming(str(hearth.state)):
        try:
            if b"hearth-pager" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                found.append(pid)
        except OSError:
            continue
    return found


def test_memory_by_the_pager(own):
    own.stop()
    own.env["HEARTH_FC_PAGER"] = "1"
    own.start()
    box = own.create("base")
    digest = shell(box, FILL.format(mib=16))
    for _ in range(2):
        hibernate(box)
        wait_until(lambda: not pagers(own), "no pager to be left of a sandbox that sleeps")
        assert shell(box, "sha256sum < /dev/shm/data") == digest
        assert pagers(own)
        digest = shell(box, CHANGE.format(size=65536, seek=3))
    running = pagers(own)  # the one that serves, and its parent that watches it
    server = [pid for pid in running if int(pathlib.Path(f"/proc/{pid}/stat").read_text().split()[3]) in running]
    assert len(server) == 1, running
    os.kill(server[0], signal.SIGKILL)
    wait_until(lambda: box.state() == "failed", "a guest without its memory to be ended")
    with pytest.raises(ApiError) as failed:
        box.exec("true")
    assert failed.value.code in ("sandbox_failed", "guest_gone"), failed.value
    box.remove()


def test_forks_have_what_the_parent_had_and_nothing_of_each_other(hearth):
    box = hearth.create("base")
    digest = shell(box, FILL.format(mib=8))
    made = box.client.post(f"{box.url}/fork", {"count": 3})["sandboxes"]
    boxes = [box] + [type(box)(box.client, info) for info in made]
    facts = set()
    for i, one in enumerate(boxes):
        assert shell(one, "sha256sum < /dev/shm/data") == digest
        facts.add(shell(one, f"ls /tmp/of-*; echo > /tmp/of-{i}; hostname; cat /etc/machine-id; "
                             "head -c 16 /dev/urandom | od -An -tx1 2>&1; true"))
    assert len(facts) == 4 and not any("of-" in fact for fact in facts), facts
    for one in boxes:
        one.remove()


def test_nothing_is_left_of_a_sandbox_that_sleeps_and_is_removed(own):
    box = own.create("base")
    hibernate(box)
    box.remove()
    assert not list((own.state / "fc/vms").iterdir())
    assert not [pid for pid in processes_naming(str(own.state)) if pid != own.daemon.pid]
