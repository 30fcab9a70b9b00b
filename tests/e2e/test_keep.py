"""How snapshots are kept: made small in the background, within a quota, mended or refused."""
import json
import os
import random
import time

import pytest

from client import PATIENCE, ApiError, Sandbox
from conftest import wait_until
from test_checkpoint import checkpoint, flip, rollback
from witness import Witness, snapshots, stored


def again(hearth, **options):
    """Another daemon with these options."""
    hearth.stop()
    for name in ("HEARTH_COMPRESS_AFTER", "HEARTH_CHAIN_MAX", "HEARTH_SNAPSHOT_QUOTA"):
        hearth.env.pop(name, None)
    hearth.env.update({f"HEARTH_{name.upper()}": str(value) for name, value in options.items()})
    hearth.start()


def disk_usage(hearth):
    return sum(path.stat().st_blocks * 512 for path in (hearth.state / "snapshots").glob("*/*"))


def all_small(hearth, count):
    def look():
        listed = snapshots(hearth)
        return len(listed) == count and all(s["compressed"] for s in listed)
    wait_until(look, f"{count} snapshots to be compressed", 120)


def test_what_is_cold_gets_small_and_wakes_the_same(own):
    """Checkpoints and a sleep; afterwards each of them is what it was, to the last byte."""
    witness = Witness(own)
    box = witness.box
    marks = []
    for number in range(3):
        box.run(f"head -c 3000000 /dev/zero | tr '\\0' {number} > /root/step; mark={number}")
        marks.append(checkpoint(box, f"m{number}")["id"])
    own.client.post(f"{box.url}/hibernate")
    before = disk_usage(own)
    again(own, compress_after="1s")
    all_small(own, 4)
    wait_until(lambda: disk_usage(own) < before, "the large ones to go")
    print(f"4 snapshots: {before} bytes, compressed {disk_usage(own)}")
    for snapshot in snapshots(own):
        own.client.post(f"/v1/snapshots/{snapshot['id']}/verify")
    again(own, compress_after="0")
    witness.check()
    for number in (2, 0, 1):
        rollback(box, f"m{number}")
        witness.counted = 0
        witness.check()
        out = box.run("echo $mark; tr -d '0-9' < /root/step | wc -c; head -c 1 /root/step; wc -c < /root/step")["stdout"]
        assert out.split() == [str(number), "0", f"{number}3000000"], out
    kid, = [Sandbox(own.client, info) for info in own.client.post(f"/v1/snapshots/{marks[0]}/fork", {})["sandboxes"]]
    assert kid.run("echo $mark")["stdout"] == "0\n"
    kid.remove()
    box.remove()


def test_daemon_killed_while_it_compresses(own, request):
    """At any moment of the background work: every snapshot whole, nothing half is left."""
    rng = random.Random(7)
    box = own.create("base")
    box.run(f"v=kept; head -c {6000000 // PATIENCE} /dev/urandom | od -x > /root/noise; sum=$(sha256sum < /root/noise)")
    rounds = 20 if request.config.getoption("--full") else 4
    for number in range(rounds):
        again(own, compress_after="0")
        checkpoint(box, f"c{number}")
        own.kill()
        own.env["HEARTH_COMPRESS_AFTER"] = "1ms"
        own.start()
        time.sleep(0.2 + rng.random() * 2)  # the moment is what varies
        own.kill()
        own.env["HEARTH_COMPRESS_AFTER"] = "0"
        own.start()
        assert stored(own) == sorted(s["id"] for s in snapshots(own)) and len(stored(own)) == number + 1
        for snapshot in snapshots(own):
            own.client.post(f"/v1/snapshots/{snapshot['id']}/verify")
    small = sum(s["compressed"] for s in snapshots(own))
    again(own, compress_after="1ms")
    all_small(own, rounds)
    print(f"{rounds} deaths, {small} of {rounds} compressed by then")
    rollback(box, "c0")
    assert box.run('[ "$sum" = "$(sha256sum < /root/noise)" ] && echo $v')["stdout"] == "kept\n"
    box.remove()


def test_end_of_the_daemon_does_not_wait_for_it(own):
    box = own.create("base", memory_mib=512)
    size = 200000000 // PATIENCE
    box.run(f"mount -t tmpfs -o size=90% t /mnt; head -c {size} /dev/urandom > /mnt/noise")
    own.client.post(f"{box.url}/hibernate")
    again(own, compress_after="1ms")
    wait_until(lambda: any(name.startswith(".new-") for name in stored(own)), "work to begin", 30)
    began = time.monotonic()
    own.stop()
    took = time.monotonic() - began
    assert took < 3 * PATIENCE, took
    assert [name for name in stored(own) if name.startswith(".")] == []
    own.env["HEARTH_COMPRESS_AFTER"] = "0"
    own.start()
    assert box.run("wc -c < /mnt/noise")["stdout"] == f"{size}\n"
    box.remove()


def test_quota_evicts_the_oldest_that_nobody_named(own):
    box = own.create("base")
    box.run("v=kept")
    named = checkpoint(box, "named")["id"]
    first, second, third = (checkpoint(box)["id"] for _ in range(3))
    used = sum(s["stored_bytes"] for s in snapshots(own))
    again(own, snapshot_quota=used + 1048576, compress_after=0)
    fourth = checkpoint(box)["id"]
    assert [s["id"] for s in snapshots(own)] == [named, second, third, fourth]
    assert sum(s["stored_bytes"] for s in snapshots(own)) <= used + 1048576
    assert "evicted" in own.log()
    for snapshot in (second, third):
        own.client.delete(f"/v1/snapshots/{snapshot}", raw=True)
    again(own, snapshot_quota=sum(s["stored_bytes"] for s in snapshots(own)) + 4096, compress_after=0)
    for request in (lambda: checkpoint(box, "more"), lambda: own.client.post(f"{box.url}/hibernate")):
        with pytest.raises(ApiError) as error:
            request()
        assert error.value.status == 429 and error.value.code == "quota_exceeded", error.value
        assert "bytes" in error.value.message and "quota of" in error.value.message
        assert box.run("echo $v")["stdout"] == "kept\n" and box.state() == "running"
    assert [s["id"] for s in snapshots(own)] == [named, fourth]  # it follows that one
    assert stored(own) == sorted([named, fourth])
    refused = own.cli("hibernate", box.id)
    assert refused.returncode != 0 and b"quota" in refused.stderr
    box.remove()


def test_repair_says_what_it_found(own):
    """Snapshots of this backend lie over no other: whole, or lost; chains are in unit.core-care."""
    box = own.create("base")
    mark = checkpoint(box, "mark")["id"]
    whole = own.client.post(f"/v1/snapshots/{mark}/repair")
    assert whole["id"] == mark and whole["repaired"] is False, whole
    assert own.cli("snapshot", "repair", mark, check=True).stdout == f"{mark} is whole\n".encode()
    lines = own.client.request("POST", f"/v1/snapshots/{mark}/repair", headers={"Accept": "application/x-ndjson"}, raw=True)
    lines = [json.loads(line) for line in lines.splitlines()]
    assert lines[-1]["snapshot"]["id"] == mark and lines[0]["progress"]["step"] == "repair"
    assert any(line["progress"].get("percent") == 100 for line in lines[:-1]), lines
    for name in ("memory", "disk", "state"):
        mark = checkpoint(box)["id"]
        flip(own.state / "snapshots" / mark / name)
        with pytest.raises(ApiError) as error:
            own.client.post(f"/v1/snapshots/{mark}/repair")
        assert error.value.status == 409 and error.value.code == "snapshot_invalid"
        assert "cannot be repaired" in error.value.message and name in error.value.message
        refused = own.cli("snapshot", "repair", mark, "nosuch")
        assert refused.returncode == 1 and b"cannot be repaired" in refused.stderr and b"nosuch" in refused.stderr
        own.client.delete(f"/v1/snapshots/{mark}", raw=True)
    os.unlink(own.state / "snapshots" / checkpoint(box)["id"] / "memory.map")
    last = snapshots(own)[-1]["id"]
    with pytest.raises(ApiError) as error:
        own.client.post(f"/v1/snapshots/{last}/repair")
    assert "memory.map" in error.value.message
    box.remove()
