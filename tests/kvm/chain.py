"""Two boots of the host: `make` puts a sandbox to sleep on a chain of five snapshots, `check` wakes it.

    chain.py make|check DIR

DIR outlives the host; the daemon's state and cache are below it. Steps of tests/e2e are used as they are.
"""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import conftest  # noqa: E402
from client import Sandbox  # noqa: E402
from test_firecracker_snapshots import CHANGE, FILL, hibernate, shell, snapshot  # noqa: E402

DEPTH = 5


def open_hearth(directory):
    state = directory / "h"
    if not state.exists():
        state.mkdir()
        conftest.private_cache(directory)
        return conftest.Hearth(state, directory / "c").start()
    os.rename(state / "s", directory / "s")  # Hearth makes its state directory itself
    hearth = conftest.Hearth(state, directory / "c")
    os.rmdir(state / "s")
    os.rename(directory / "s", state / "s")
    return hearth.start()


def make(directory):
    hearth = open_hearth(directory)
    box = hearth.create("base", memory_mib=256)
    digest = shell(box, FILL.format(mib=64))
    ids = []
    for turn in range(DEPTH):
        asleep = hibernate(box)
        ids.append(asleep["snapshot"])
        print(f"snapshot {turn + 1}: {snapshot(hearth, asleep['snapshot'])}", flush=True)
        if turn < DEPTH - 1:
            (hearth.kill if turn % 2 else hearth.stop)()
            hearth.start()
            assert shell(box, "sha256sum < /dev/shm/data") == digest, turn
            digest = shell(box, CHANGE.format(size=1 << 20, seek=100 * turn))
    assert len(set(ids)) == DEPTH
    (directory / "expected").write_text(json.dumps({"id": box.id, "digest": digest}))
    hearth.stop()
    os.sync()


def check(directory):
    expected = json.loads((directory / "expected").read_text())
    hearth = open_hearth(directory)
    box = Sandbox(hearth.client, hearth.client.get(f"/v1/sandboxes/{expected['id']}"))
    assert box.state() == "paused", box.state()
    digest = shell(box, "sha256sum < /dev/shm/data")
    print(f"64 MiB in memory, after another boot of the host: {digest}", flush=True)
    assert digest == expected["digest"], expected
    box.remove()
    left = hearth.clean()
    assert not left, left


{"make": make, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
