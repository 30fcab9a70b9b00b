"""Warm pools: a sandbox that is ready before somebody asks for it, and nobody's until then."""
import concurrent.futures
import http.client
import os
import signal
import time

import pytest
from client import ApiError
from conftest import daemon_with_pool, processes_naming, wait_until
from test_clone import IDENTITY


@pytest.fixture
def pooled(workdir, cache):
    yield from daemon_with_pool(workdir, cache)


def pool_of(h):
    pools = h.client.get("/v1/pools")["pools"]
    return pools[0] if pools else {"ready": -1}


def wait_ready(h, count=1):
    return wait_until(lambda: pool_of(h)["ready"] >= count and pool_of(h), f"{count} ready in the pool", 60)


def test_claim_is_a_machine_of_its_own(pooled):
    pooled.create("base").remove()
    wait_ready(pooled)
    assert pooled.client.get("/v1/sandboxes")["sandboxes"] == []
    seen = []
    for name in (None, "mine", None):
        before = wait_ready(pooled)
        box = pooled.create("base", **({"name": name} if name else {}))
        assert box.info["timings"]["claimed"] is True
        result = box.exec("sh", "-c", IDENTITY)
        row, now = result["stdout"].split(), time.time()
        assert row[2] == (name or box.id)  # the host name, in the first command of all
        assert abs(float(row[6]) - now) < 2.0
        seen.append(row)
        assert pool_of(pooled)["claims"] == before["claims"] + 1
        assert [s["id"] for s in pooled.client.get("/v1/sandboxes")["sandboxes"]] == [box.id]
        assert pooled.client.get("/v1/sandboxes/" + (name or box.id))["id"] == box.id
        box.remove()
    for column in range(6):
        assert len({row[column] for row in seen}) == len(seen), (column, seen)


def test_host_name_in_the_first_session_command(pooled):
    pooled.create("base").remove()
    wait_ready(pooled)
    box = pooled.create("base", name="worker-7")
    assert box.info["timings"]["claimed"] is True
    assert box.run("hostname; cat /proc/sys/kernel/hostname")["stdout"].split() == ["worker-7"] * 2
    box.remove()


def test_pooled_ones_cannot_be_reached(pooled):
    pooled.create("base").remove()
    wait_ready(pooled)
    ids = [path.name for path in (pooled.state / "sandboxes").glob("*")]
    assert len(ids) == 1
    for call in ("get", "delete"):
        with pytest.raises(ApiError) as refused:
            getattr(pooled.client, call)(f"/v1/sandboxes/{ids[0]}")
        assert refused.value.status == 404, call
    assert pooled.cli("exec", ids[0], "true").returncode != 0
    assert pooled.cli("ls", "-q", text=True).stdout == ""


def test_burst_grows_the_pool(pooled):
    pooled.create("base").remove()
    wait_ready(pooled)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(lambda _: pooled.create("base"), range(4)))
        assert len({b.exec("cat", "/etc/machine-id")["stdout"] for b in boxes}) == 4
        list(pool.map(lambda b: b.remove(), boxes))
    state = pool_of(pooled)
    assert state["claims"] + state["misses"] == 4 and state["claims"] >= 1
    assert state["target"] == 1 + state["misses"]
    wait_ready(pooled, state["target"])


def test_guest_that_dies_in_the_pool_is_replaced(pooled):
    pooled.create("base").remove()
    wait_ready(pooled)
    pids = [pid for pid in processes_naming(str(pooled.state)) if pid != pooled.daemon.pid]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: pool_of(pooled)["replaced"] == 1, "the dead one is replaced")
    wait_ready(pooled)
    box = pooled.create("base")
    assert box.info["timings"]["claimed"] is True and box.exec("true")["exit_code"] == 0
    box.remove()


def test_daemon_that_is_killed_finds_its_pool_again(pooled):
    box = pooled.create("base")
    wait_ready(pooled)

    def machines():
        return set(processes_naming(str(pooled.state))) - {pooled.daemon.pid}
    before = machines()
    pooled.kill()
    pooled.start()
    wait_ready(pooled)
    wait_until(lambda: machines() == before, f"{before} and no others")  # idle processes come and go
    claimed = pooled.create("base")
    assert claimed.info["timings"]["claimed"] is True and claimed.info["pid"] in before
    assert claimed.exec("hostname")["stdout"].strip() == claimed.id
    claimed.remove()
    box.remove()


def claim(h, name):
    """The sandbox, or None when the daemon died before it had answered."""
    try:
        return h.create("base", name=name)
    except (OSError, http.client.HTTPException):
        h.daemon.wait(30)
        return None


def test_kill_between_claim_and_answer_hands_nothing_out_twice(pooled):
    """Before the claim is noted, after it and before the answer, and after the answer but before its row
    is written: it is its owner's or nobody's, and never a second claimant's."""
    pooled.create("base").remove()
    owners = {}
    for number, fault in enumerate(("claim-note:kill", "claim-noted:kill", None) * 2):
        wait_ready(pooled)
        if fault:
            pooled.kill()
            pooled.env["HEARTH_FAULT"] = fault
            pooled.start()
            del pooled.env["HEARTH_FAULT"]
            wait_ready(pooled)
        box = claim(pooled, f"owner-{number}")
        assert (box is None) == (fault is not None), box and box.info
        if box:
            assert box.info["timings"]["claimed"] is True
            pooled.kill()
        pooled.start()
        listed = {s["name"]: s for s in pooled.client.get("/v1/sandboxes")["sandboxes"]}
        assert (f"owner-{number}" in listed) == (fault != "claim-note:kill")
        for name, info in listed.items():
            assert owners.setdefault(name, info["id"]) == info["id"]
            result = pooled.client.post(f"/v1/sandboxes/{info['id']}/exec", {"argv": ["hostname"]})
            assert result["stdout"].strip() == name
        assert set(listed) == set(owners)
        # What is claimed now is none of those.
        if pool_of(pooled)["ready"] < 0:
            pooled.create("base").remove()
        wait_ready(pooled)
        other = pooled.create("base")
        assert other.info["timings"]["claimed"] is True and other.id not in owners.values()
        other.remove()
    assert len(set(owners.values())) == len(owners) == 4
    for ident in owners.values():
        pooled.client.delete(f"/v1/sandboxes/{ident}")


def test_kill_at_any_time_of_a_refill_leaks_nothing(pooled):
    pooled.create("base").remove()
    for delay in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.45):
        wait_ready(pooled)
        pooled.create("base").remove()  # the refill begins now
        deadline = time.monotonic() + delay
        wait_until(lambda: time.monotonic() >= deadline, "the moment of the kill")
        pooled.kill()
        pooled.start()
        assert pooled.client.get("/v1/sandboxes")["sandboxes"] == []
        if pool_of(pooled)["ready"] < 0:  # it had none when the daemon died: as after any start
            pooled.create("base").remove()
    wait_ready(pooled)
    pool = pool_of(pooled)
    assert len(list((pooled.state / "sandboxes").glob("*"))) == pool["ready"] + pool["filling"]


def test_stop_ends_what_nobody_claimed(pooled):
    box = pooled.create("base")
    wait_ready(pooled)
    pooled.cli("daemon", "stop", check=True)
    pooled.daemon.wait(30)
    assert processes_naming(str(pooled.state)) == [box.info["pid"]]
    pooled.start()
    assert box.exec("true")["exit_code"] == 0
    box.remove()


def test_pool_verbs(pooled):
    box = pooled.create("base")
    template = box.info["template"]
    box.remove()
    wait_ready(pooled)
    assert template in pooled.cli("pool", "ls", text=True, check=True).stdout
    pooled.cli("pool", "set", template, "2", check=True)
    assert wait_ready(pooled, 2)["configured"] is True
    pooled.cli("pool", "set", template, "0", check=True)
    wait_until(lambda: not list((pooled.state / "sandboxes").glob("*")), "the pool is empty")
    assert pooled.create("base").info["timings"]["claimed"] is False
    for args, code in ((("nowhere", "1"), "template_not_found"), ((template, "33"), None)):
        failed = pooled.cli("pool", "set", *args, text=True)
        assert failed.returncode != 0 and failed.stderr, (args, code)
