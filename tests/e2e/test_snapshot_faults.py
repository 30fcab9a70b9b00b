"""Every step of hibernate, resume, fork, checkpoint and rollback: no space, a bad disk, kill -9.

The steps come from a trace of the daemon itself (HEARTH_FAULT, see base/fault.h): one that is added is
broken here too. Afterwards the sandbox goes on with all it was, every snapshot that is there is whole,
and nothing is left of what failed.
"""
import http.client

from client import ApiError
from conftest import processes_naming, wait_until
from witness import snapshots, stored

OPERATIONS = {
    "hibernate": lambda h, url: h.client.post(f"{url}/hibernate"),
    "resume": lambda h, url: h.client.post(f"{url}/resume"),
    "fork": lambda h, url: h.client.post(f"{url}/fork", {"count": 2}),
    "checkpoint": lambda h, url: h.client.post(f"{url}/checkpoints", {"name": "more"}),
    "rollback": lambda h, url: h.client.post(f"{url}/rollback", {"checkpoint": "mark"}),
}


def attempt(hearth, url, name):
    if name == "resume":
        hearth.client.post(f"{url}/hibernate")
    try:
        OPERATIONS[name](hearth, url)
    except (ApiError, OSError, http.client.HTTPException):
        pass


def check_whole(hearth, box, mark):
    """Uses it, which wakes it if it sleeps."""
    assert box.run("echo $v; cat /root/f")["stdout"] == "kept\nfile\n"
    for info in hearth.client.get("/v1/sandboxes")["sandboxes"]:
        assert info["state"] == "running", info
        if info["id"] != box.id:  # children that were made
            hearth.client.delete(f"/v1/sandboxes/{info['id']}", raw=True)
    for snapshot in snapshots(hearth):
        hearth.client.post(f"/v1/snapshots/{snapshot['id']}/verify")
        if snapshot["id"] != mark and snapshot["kind"] == "checkpoint":
            hearth.client.delete(f"/v1/snapshots/{snapshot['id']}", raw=True)
    try:
        wait_until(lambda: stored(hearth) == [mark], "only the checkpoint to be left in the store", 10)
    except BaseException:
        print("in the store:", mark, stored(hearth), snapshots(hearth))
        raise
    wait_until(lambda: len([p for p in processes_naming(str(hearth.state)) if p != hearth.daemon.pid]) == 1,
               "one VM to be left")
    assert [path.name for path in (hearth.state / "sandboxes").iterdir()] == [box.id]


def test_every_step_broken(own, request):
    full = request.config.getoption("--full")
    box = own.create("base")
    box.run("v=kept; echo file > /root/f")
    mark = own.client.post(f"{box.url}/checkpoints", {"name": "mark"})["id"]
    steps = {}
    for name in OPERATIONS:
        trace = own.dir / f"trace-{name}"
        own.restart(f"trace:{trace}")
        attempt(own, box.url, name)
        own.restart()
        steps[name] = list(dict.fromkeys(trace.read_text().split()))
        check_whole(own, box, mark)
    cases = [(name, step, kind) for name in OPERATIONS for step in steps[name]
             for kind in ("kill", "enospc", "eio")]
    if not full:  # each step killed once, in one operation; errors are enumerated by unit.core-sleep
        seen = set()
        cases = [c for c in cases if c[2] == "kill" and not (c[1] in seen or seen.add(c[1]))]
    for name, step, kind in cases:
        own.restart(f"{step}:{kind}")
        attempt(own, box.url, name)
        if kind == "kill":
            own.daemon.wait(30)
            own.restart()
        try:
            check_whole(own, box, mark)
        except BaseException:
            print(f"after {kind} at {step} of {name}")
            raise
    print(f"{sum(map(len, steps.values()))} steps of {len(OPERATIONS)} operations, {len(cases)} cases")
    own.restart()
    box.remove()
    own.client.delete(f"/v1/snapshots/{mark}", raw=True)
