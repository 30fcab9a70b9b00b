"""Fixtures: a private cache and state, one daemon for the whole run, one sandbox per shell.

Everything lives below one temporary directory. At the end the daemon is stopped and the fixture checks
that nothing stayed behind: no process, no mount, no file.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import images  # noqa: E402
from client import EMULATED, PATIENCE, Client, Sandbox  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("HEARTH_BIN", ROOT / "build/bin"))
CACHE = pathlib.Path(os.environ.get("HEARTH_TEST_CACHE", "/var/cache/hearth"))
BACKEND = os.environ.get("HEARTH_TEST_BACKEND", "qemu")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also the long tests")


def pytest_configure(config):
    config.addinivalue_line("markers", "full: long, only with --full")
    # A shell that starts this in the background ignores it, and so would all programs under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    for item in items:
        if "full" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="long; ./check --full runs it"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """What failed is told with the ends of its daemons' logs, and those of guests that crashed."""
    report = (yield).get_result()
    if report.failed:
        for h in (value for value in getattr(item, "funcargs", {}).values() if isinstance(value, Hearth)):
            report.sections.append((f"log of the daemon on {h.state}", h.log()))
            report.sections += [(f"log of sandbox {one}", text) for one, text in h.crashes()]


def jailed_in(state):
    """Pids of Firecrackers of a state directory; apart, as many idle ones as the daemon may keep.

    One that is being started is two processes for a moment, the jailer and its child."""
    used, idle, recorded = [], {}, set()
    for path in pathlib.Path(state).glob("fc/vms/[a-z0-9]*"):
        try:
            recorded.add(json.loads(path.read_text())["pid"])
        except (OSError, ValueError):
            continue  # just removed
    slots = {path.name for path in pathlib.Path(state).glob("fc/*/*") if path.parent.name != "vms"}
    for entry in os.listdir("/proc"):
        try:
            words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        slot = words[words.index("--id") + 1] if "--id" in words[:-1] else None
        if slot in slots:
            (used if int(entry) in recorded else idle.setdefault(slot, [])).append(int(entry))
    kept = int(os.environ.get("HEARTH_FC_POOL", 2))
    idle = list(idle.values())
    return used + sum(idle[kept:], []), sum(idle[:kept], [])


def processes_naming(text):
    """Pids of processes whose command line names the text, or who are jailed below it."""
    found, kept = jailed_in(text)
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (os.getpid(), *kept):  # kept: perhaps its jailer
            continue
        try:
            command = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in command:
            found.append(int(entry))
    return found


def wait_until(condition, what, timeout=30):
    """Polls a fact that nothing announces; fails with `what` after the deadline."""
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout * PATIENCE} s: {what}")
        time.sleep(0.02)


class Hearth:
    """One state directory with its daemon, and the command line set up for it."""

    def __init__(self, directory, cache, programs=BIN, pool=0):
        self.dir = pathlib.Path(directory)
        self.state = self.dir / "s"
        self.state.mkdir()
        self.bin = pathlib.Path(programs)
        self.socket = self.state / "hearthd.sock"
        self.env = {**os.environ, "HEARTH_STATE": str(self.state), "HEARTH_CACHE": str(cache),
                    "HEARTH_LISTEN": "127.0.0.1:0"}
        for name in ("HEARTH_SOCKET", "HEARTH_NO_AUTOSTART"):
            self.env.pop(name, None)
        self.env["HEARTH_POOL"] = str(pool)  # warm sandboxes only where a test is about them
        if EMULATED:
            self.env.setdefault("HEARTH_BOOT_TIMEOUT", "120")
        if BACKEND == "qemu":  # also for commands that name no backend
            self.env["HEARTH_FIRECRACKER"] = "/nonexistent"
        self.client = Client(str(self.socket))
        self.daemon = None

    def cli(self, *args, input=None, timeout=300, text=False, env=None, check=False, **kw):
        done = subprocess.run([str(self.bin / "hearth"), *map(str, args)], input=input,
                              stdin=None if input is not None else subprocess.DEVNULL,
                              capture_output=True, timeout=timeout, text=text,
                              env={**self.env, **(env or {})}, **kw)
        if check:
            assert done.returncode == 0, (args, done.returncode, done.stdout, done.stderr)
        return done

    def popen(self, *args, **kw):
        return subprocess.Popen([str(self.bin / "hearth"), *map(str, args)], env=self.env, **kw)

    def start(self):
        """The daemon as a child of ours, so that its death can be watched."""
        read, write = os.pipe()
        with open(self.dir / "daemon.log", "ab") as log:
            self.daemon = subprocess.Popen(
                [str(self.bin / "hearthd"), "--ready-fd", str(write)], env=self.env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[write])
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            line = ready.readline()
        assert line == b"ready\n", (line, self.log())
        return self

    def kill(self):
        self.daemon.kill()
        self.daemon.wait()

    def restart(self, fault=None):
        """Another daemon after one that died, or dies now; see base/fault.h."""
        if self.daemon.poll() is None:
            self.kill()
        if fault:
            self.env["HEARTH_FAULT"] = fault
        self.start()
        self.env.pop("HEARTH_FAULT", None)

    def stop(self):
        if self.daemon and self.daemon.poll() is None:
            self.daemon.terminate()
            self.daemon.wait(30 * PATIENCE)

    def log(self):
        try:
            return (self.dir / "daemon.log").read_text(errors="replace")[-8000:]
        except OSError:
            return ""

    def crashes(self):
        """Sandboxes that have failed, with the ends of their guests' logs."""
        try:
            boxes = self.client.get("/v1/sandboxes", timeout=10)["sandboxes"]
            return [(one["id"], self.client.get(f"/v1/sandboxes/{one['id']}/logs", timeout=10, raw=True)[-8000:]
                     .decode(errors="replace")) for one in boxes if one["state"] == "failed"]
        except Exception as error:  # the daemon may be what failed
            return [("?", repr(error))]

    def create(self, image="base", **spec):
        if BACKEND:
            spec.setdefault("backend", BACKEND)
        return Sandbox(self.client, self.client.post("/v1/sandboxes", {"image": image, **spec}))

    def clean(self):
        """Removes all sandboxes, stops the daemon, and says what was left behind."""
        left = []
        try:
            if self.daemon is None or self.daemon.poll() is not None:
                self.start()
            for sandbox in self.client.get("/v1/sandboxes")["sandboxes"]:
                self.client.delete(f"/v1/sandboxes/{sandbox['id']}", raw=True)
            files = list((self.state / "sandboxes").glob("*"))
            left += [f"file {path}" for path in files]
        finally:
            self.stop()
        deadline = time.monotonic() + 5
        while processes_naming(str(self.state)) and time.monotonic() < deadline:
            time.sleep(0.02)
        left += [f"process {pid}" for pid in processes_naming(str(self.state))]
        left += [f"jail or record {path}" for path in self.state.glob("fc/*/*")]
        cgroups = pathlib.Path("/sys/fs/cgroup/hearth").glob("*/cgroup.procs")
        left += [f"empty cgroup {path.parent}" for path in cgroups if not path.read_text()]
        mounts = pathlib.Path("/proc/self/mounts").read_text()
        left += [f"mount {line}" for line in mounts.splitlines() if str(self.dir) in line]
        return left


def private_cache(directory, shared=("base",)):
    """A cache of its own that shares kernels and these images with the machine's."""
    cache = pathlib.Path(directory) / "c"
    (cache / "images/names").mkdir(parents=True)
    (cache / "images/blobs").mkdir(parents=True)
    (cache / "kernels").symlink_to(CACHE / "kernels")
    for image in shared:
        name = CACHE / f"images/names/{image}.json"
        if not name.exists():
            pytest.exit(f"no image '{image}' in the cache; run ./check", returncode=1)
        shutil.copy(name, cache / "images/names")
        blob = f"{json.loads(name.read_text())['sha256']}.erofs"
        (cache / "images/blobs" / blob).symlink_to(CACHE / "images/blobs" / blob)
    return cache


@pytest.fixture
def tmp_path():
    """In place of pytest's own, which leaves its directories behind."""
    directory = tempfile.mkdtemp(prefix="ht-", dir="/tmp")
    yield pathlib.Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def workdir():
    directory = tempfile.mkdtemp(prefix="he-", dir="/tmp")
    yield pathlib.Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cache(workdir):
    return private_cache(workdir, ("base", "code"))


@pytest.fixture(scope="session")
def hearth(workdir, cache):
    h = Hearth(workdir, cache).start()
    for shell in ("dash", "ash"):
        tree = images.busybox_tree(workdir / f"tree-{shell}", shell)
        h.cli("image", "import", "--name", shell, tree, check=True)
    single = BIN.parent / "tests/single"
    h.cli("image", "import", "--name", "single", images.single_tree(workdir / "tree-single", single),
          check=True)
    yield h
    left = h.clean()
    assert not left, left


@pytest.fixture
def own(workdir, cache):
    """A daemon of the test's own, for tests that kill it."""
    directory = tempfile.mkdtemp(prefix="o-", dir=workdir)
    h = Hearth(directory, cache).start()
    yield h
    left = h.clean()
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, left


def daemon_with_pool(workdir, cache):
    """The body of a fixture: a daemon of its own with pools as users have them."""
    directory = tempfile.mkdtemp(prefix="p-", dir=workdir)
    h = Hearth(directory, cache, pool=1).start()
    yield h
    left = [item for item in h.clean() if not item.startswith("file ")]  # pooled ones, until the stop
    left += list((h.state / "sandboxes").glob("*"))
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, left


SHELLS = {"bash": "base", "dash": "dash", "ash": "ash"}
_sandboxes = {}


def shared_sandbox(hearth, image):
    box = _sandboxes.get(image)
    if box is None or box.state() != "running":
        box = _sandboxes[image] = hearth.create(image)
    return box


@pytest.fixture(params=list(SHELLS))
def shell_box(request, hearth):
    """A sandbox with each of the three shells in turn."""
    box = shared_sandbox(hearth, SHELLS[request.param])
    box.shell = request.param
    return box


@pytest.fixture
def box(hearth):
    return shared_sandbox(hearth, "base")


@pytest.fixture
def fresh(hearth):
    """A sandbox for this test alone."""
    box = hearth.create("base")
    yield box
    box.remove()
