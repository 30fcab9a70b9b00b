"""VMMs that die or stand still at any moment of create, exec, snapshot and removal."""
import json
import os
import pathlib
import random
import signal
import threading
import time

import pytest

from client import EMULATED, ApiError
from conftest import BACKEND, wait_until

pytestmark = pytest.mark.skipif(BACKEND != "firecracker", reason="about Firecracker's processes")
# A process that stands still is noticed after two looks, a second apart; then a second to tell.
NOTICE = 3.0
# What an emulated host adds to everything.
SLOW = 12.0 if EMULATED else 0.0
# A start that is struck is told by its deadline: nobody looks at a process that is not there yet.
START = 61.0
STARTING = ("the jailer does not end", "made no API socket in time", "did not answer PUT /serial in time")
TYPED = {"guest_gone", "sandbox_failed", "sandbox_not_running", "backend_failed", "guest_unresponsive", "timeout",
         "cancelled", "unavailable", "conflict"}


def processes(hearth):
    """Pids of all Firecrackers of this daemon, by the names of their jails."""
    slots = {path.name for path in hearth.state.glob("fc/firecracker/*")}
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "--id" in words[:-1] and words[words.index("--id") + 1] in slots:
            found.append(int(entry))
    return found


class Operation(threading.Thread):
    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.error, self.ended, self.result = call, None, None, None
        self.began = time.monotonic()
        self.start()

    def run(self):
        try:
            self.result = self.call()
        except Exception as error:  # judged by the test
            self.error = error
        self.ended = time.monotonic()


def remove(box):
    try:
        box.remove()
    except ApiError as error:
        assert error.code == "sandbox_not_found", error


def made_ready(own, box, asleep):
    """The box, or another one when it is not as it should be: perhaps the last blow is noticed only now."""
    while True:
        if box is None or box.state() != "running":
            if box:
                remove(box)
            box = own.create("base")
        if not asleep:
            return box
        try:
            own.client.post(f"{box.url}/hibernate")
            return box
        except ApiError as error:
            assert error.code in TYPED, error


def sweep(own, rounds, seed):
    rng = random.Random(seed)
    durations = {}
    tally, slowest = {}, 0.0
    control = own.create("base")
    box = own.create("base")
    for turn in range(rounds):
        name = rng.choice(["create", "exec", "checkpoint", "hibernate", "wake", "remove"])
        box = made_ready(own, box, asleep=name == "wake")
        mine = {own.client.get(control.url)["pid"]}
        pid = own.client.get(box.url).get("pid")
        if name == "create":
            mine.add(pid)
        operation = Operation({
            "create": lambda: own.create("base"),
            "exec": lambda: box.exec("sh", "-c", "echo x; sleep 0.3", timeout_ms=20000),
            "checkpoint": lambda: own.client.post(f"{box.url}/checkpoints"),
            "hibernate": lambda: own.client.post(f"{box.url}/hibernate"),
            "wake": lambda: own.client.post(f"{box.url}/resume"),
            "remove": box.remove,
        }[name])
        operation.join(rng.uniform(0, durations.get(name, 0.3)))
        if name in ("create", "wake"):
            victims = [one for one in processes(own) if one not in mine]
            victim = rng.choice(victims) if victims else None
        else:
            victim = pid
        how = rng.choice([signal.SIGKILL, signal.SIGSTOP])
        try:
            os.kill(victim or 0, how if victim else 0)
        except ProcessLookupError:
            victim = None
        struck = time.monotonic()
        operation.join(120)
        assert operation.ended, f"turn {turn}: {name} does not end after {how.name}"
        took = operation.ended - struck
        if operation.error:
            assert isinstance(operation.error, ApiError), (turn, name, how.name, operation.error)
            assert operation.error.code in TYPED, (turn, name, how.name, operation.error)
            within = START if any(text in str(operation.error) for text in STARTING) else NOTICE
            assert took < within + SLOW, (turn, name, how.name, took, operation.error)
            slowest = max(slowest, took)
        else:
            durations[name] = operation.ended - operation.began
        outcome = operation.error.code if operation.error else "done"
        tally.setdefault((name, how.name if victim else "missed"), []).append(outcome)
        if name == "create" and operation.result:
            remove(operation.result)
        if name == "remove" and not operation.error:
            box = None
        assert control.exec("echo", "unharmed")["stdout"] == "unharmed\n", turn
    for (name, how), outcomes in sorted(tally.items()):
        counts = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        print(f"{name} {how}: {counts}")
    print(f"slowest error after the blow: {slowest:.2f} s")
    if box:
        remove(box)
    remove(control)
    used = lambda: {json.loads(path.read_text())["pid"] for path in own.state.glob("fc/vms/[a-z0-9]*")}
    wait_until(lambda: not used() and len(processes(own)) == 2, "the pool to be filled, nothing else left", 60)


def test_some_random_moments(own):
    sweep(own, rounds=8, seed=7)


@pytest.mark.full
def test_a_hundred_random_moments(own):
    sweep(own, rounds=100, seed=random.randrange(1 << 30))
