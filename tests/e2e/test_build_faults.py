"""Every step of a Dockerfile build and of a pull: no space, a bad disk, kill -9.

The steps come from a trace of the programs themselves (HEARTH_FAULT, see base/fault.h). Afterwards no name, sandbox
or work directory is left of what failed, all that is in the cache is whole, and the next try succeeds.
"""
import json
import os
import pathlib
import struct
import subprocess

import pytest

import images
import oci
from conftest import BIN, Hearth, private_cache, processes_naming, wait_until
from oci import Layer, Layout

TOOL = BIN.parent / "libexec/hearth/rootfs-tool"
TAG = "faulty:1"
DOCKERFILE = """FROM small AS one
COPY a /a
RUN cat /a > /b; echo first >> /b
RUN echo second >> /b
FROM small
COPY --from=one /b /copied
RUN cat /copied > /c
WORKDIR /made
"""


def small_layer():
    layer = Layer().dir("bin").dir("etc").dir("tmp", mode=0o1777)
    layer.add("bin/busybox", pathlib.Path(images.BUSYBOX).read_bytes(), mode=0o755)
    for name in ("sh", "cat"):
        layer.symlink(f"bin/{name}", "busybox")
    return layer


def import_small(h):
    layout = Layout(h.dir / "layout")
    layout.image("v1", [small_layer()], config={"Env": ["PATH=/bin"]})
    h.cli("image", "import", "--name", "small", layout.dir, check=True)


@pytest.fixture
def builder(tmp_path):
    """A daemon with a cache of its own, so that nobody else's work is found there."""
    h = Hearth(tmp_path, private_cache(tmp_path))
    h.cache = tmp_path / "c"
    h.start()
    yield h
    left = h.clean()
    assert not left, left


def build(h, context, content):
    (context / "a").write_text(content)
    return h.cli("image", "build", "-t", TAG, context, text=True, timeout=300)


def check_layers(cache):
    """A layer that has an index has all of its pack."""
    for index in (cache / "images/layers").glob("*.index"):
        magic, _, size, pack_size = struct.unpack("<QQQQ", index.read_bytes()[:32])
        assert magic.to_bytes(8, "little") == b"hrthlay2" and size == index.stat().st_size, index
        assert index.with_suffix(".pack").stat().st_size == pack_size, index


def check_names(cache):
    """What a name is made of is there, and every EROFS file can be read, with all that it needs."""
    for record in (cache / "images/names").glob("*.json"):
        for layer in json.loads(record.read_text()).get("layers", []):
            assert (cache / f"images/layers/{layer[7:]}.index").exists(), (record, layer)
    for blob in (cache / "images/blobs").glob("*.erofs"):
        if not blob.is_symlink():
            oci.fsck(blob)


def check_nothing_half(h):
    assert TAG not in [image["name"] for image in h.client.get("/v1/images")["images"]]
    wait_until(lambda: not h.client.get("/v1/sandboxes")["sandboxes"], "no sandbox of the build to be left")
    wait_until(lambda: not list((h.state / "sandboxes").glob("*")), "no directory of the build to be left")
    wait_until(lambda: not [pid for pid in processes_naming(str(h.state)) if pid != h.daemon.pid],
               "no process of the build to be left")
    check_layers(h.cache)
    check_names(h.cache)


def check_result(h, tmp_path, content):
    done = subprocess.run([str(TOOL), "ready", TAG], env=h.env, capture_output=True, text=True, check=True)
    with oci.Mounted(done.stdout.split()[1], tmp_path / "mnt") as root:
        assert (root / "c").read_text() == (root / "copied").read_text() == f"{content}first\nsecond\n"
        assert not (root / "b").exists() and (root / "made").is_dir()
    check_layers(h.cache)
    check_names(h.cache)
    wait_until(lambda: not list((h.cache / "images/tmp").glob("*")), "no work directory to be left")
    h.cli("image", "rm", TAG, check=True)


@pytest.mark.parametrize("kind", ["kill", pytest.param("enospc", marks=pytest.mark.full),
                                  pytest.param("eio", marks=pytest.mark.full)])
def test_every_step_of_a_build_broken(kind, builder, tmp_path):
    h, context = builder, tmp_path / "context"
    import_small(h)
    context.mkdir()
    (context / "Dockerfile").write_text(DOCKERFILE)
    h.restart(f"trace:{tmp_path}/trace")
    done = build(h, context, "traced\n")
    assert done.returncode == 0, done.stderr
    h.restart()
    check_result(h, tmp_path, "traced\n")
    steps = list(dict.fromkeys((tmp_path / "trace").read_text().split()))
    assert len(steps) > 10 and {"build-run", "build-data", "layer-half", "name-write"} <= set(steps), steps
    for step in steps:
        content = f"{step} {kind}\n"  # another content: nothing is found in the cache
        try:
            h.restart(f"{step}:{kind}")
            done = build(h, context, content)
            if kind == "kill":
                h.daemon.wait(30)
                h.restart()
            if done.returncode != 0:
                assert kind == "kill" or {"enospc": "No space", "eio": "Input/output"}[kind] in done.stderr, done.stderr
                if step not in ("name-written", "build-end"):  # those come when it has its name
                    check_nothing_half(h)
            done = build(h, context, content)
            assert done.returncode == 0, done.stderr
            check_result(h, tmp_path, content)
        except BaseException:
            print(f"after {kind} at {step}")
            raise
    print(f"{kind} at {len(steps)} steps")


@pytest.mark.parametrize("line", ["COPY a /a", "RUN /bin/busybox dd if=/dev/urandom of=/a bs=1024 count=20480"])
def test_full_disk_ends_a_build(line, builder, tmp_path):
    """For real: what comes to 20 MiB in a cache that holds 16."""
    h, context, where = builder, tmp_path / "context", tmp_path / "c/images"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM small\n{line}\n")
    (context / "a").write_bytes(os.urandom(20 << 20))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(where)], check=True)
    try:
        import_small(h)
        done = h.cli("image", "build", "-t", TAG, context, text=True)
        assert done.returncode != 0 and "No space left" in done.stderr, done.stderr
        check_nothing_half(h)
        wait_until(lambda: not list((where / "tmp").glob("*")), "no work directory to be left")
        subprocess.run(["mount", "-o", "remount,size=128m", str(where)], check=True)
        done = h.cli("image", "build", "-t", TAG, context, text=True)
        assert done.returncode == 0, done.stderr
        done = subprocess.run([str(TOOL), "ready", TAG], env=h.env, capture_output=True, text=True, check=True)
        with oci.Mounted(done.stdout.split()[1], tmp_path / "mnt") as root:
            assert (root / "a").stat().st_size == 20 << 20
    finally:
        h.stop()
        subprocess.run(["umount", str(where)], check=True)


@pytest.mark.skipif(not oci.have_tools(), reason="docker-registry, skopeo or umoci is not installed")
def test_every_step_of_a_pull_broken(tmp_path):
    """To the file that can be booted from; by the tool, because it takes no sandbox."""
    registry = oci.Registry(tmp_path / "registry")
    try:
        layout = Layout(tmp_path / "layout")
        layout.image("v1", [Layer().add(f"f{i}", os.urandom(400_000)) for i in range(2)])
        name = registry.push(layout, "v1", "faulty:v1")
        env = {**os.environ, "HEARTH_STATE": str(tmp_path), "HEARTH_INSECURE_REGISTRIES": registry.host}

        def run(verb, cache, fault=None):
            return subprocess.run([str(TOOL), verb, name], capture_output=True, text=True,
                                  env={**env, "HEARTH_CACHE": str(cache), **({"HEARTH_FAULT": fault} if fault else {})})

        steps = []
        for verb in ("pull", "ready"):
            assert run(verb, tmp_path / "traced", f"trace:{tmp_path}/{verb}").returncode == 0
            steps += [(verb, step) for step in dict.fromkeys((tmp_path / verb).read_text().split())]
        assert {("pull", "layer-half"), ("pull", "name-write"), ("ready", "image-written")} <= set(steps), steps
        for verb, step, kind in [(*step, kind) for step in steps for kind in ("kill", "enospc", "eio")]:
            cache = tmp_path / f"{verb}-{step}-{kind}"
            if verb == "ready":
                assert run("pull", cache).returncode == 0
            done = run(verb, cache, f"{step}:{kind}")
            if not (step in ("name-written", "image-stored") and kind != "kill"):
                assert done.returncode != 0, (verb, step, kind)
            check_layers(cache)
            check_names(cache)
            assert run("pull", cache).returncode == 0
            done = run("ready", cache)
            assert done.returncode == 0, (verb, step, kind, done.stderr)
            oci.fsck(done.stdout.split()[1])
            assert not list((cache / "images/tmp").glob("*"))
        print(f"{len(steps)} steps, {3 * len(steps)} cases")
    finally:
        registry.stop()
