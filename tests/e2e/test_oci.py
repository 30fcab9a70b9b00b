"""Images of registries, layouts and archives: what they unpack to, what they may not do, what may go wrong."""
import gzip
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time

import pytest

import images
import oci
from client import Sandbox
from conftest import BIN, Hearth, private_cache
from oci import Layer, Layout

TOOL = BIN.parent / "libexec/hearth/rootfs-tool"
pytestmark = pytest.mark.skipif(not oci.have_tools(), reason="docker-registry, skopeo or umoci is not installed")


@pytest.fixture(scope="module")
def registry(workdir):
    r = oci.Registry(pathlib.Path(tempfile.mkdtemp(prefix="registry-", dir=workdir)))
    yield r
    r.stop()


class Store:
    """A cache of its own and the tool that fills it without a daemon."""

    def __init__(self, directory, *hosts):
        self.dir = pathlib.Path(directory)
        self.cache = self.dir / "cache"
        self.env = {**os.environ, "HEARTH_CACHE": str(self.cache), "HEARTH_STATE": str(self.dir),
                    "HEARTH_INSECURE_REGISTRIES": ",".join(hosts), "DOCKER_CONFIG": str(self.dir)}

    def run(self, *args, check=True, **kw):
        done = subprocess.run([str(TOOL), *map(str, args)], env=self.env, capture_output=True, text=True, timeout=300,
                              **kw)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def pull(self, name):
        self.run("pull", name)
        return self.ready(name)

    def ready(self, name):
        return self.run("ready", name).stdout.split()[1]

    def fails(self, name, verb="pull", *args):
        done = self.run(verb, name, *args, check=False)
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert not list(self.cache.glob("images/names/*")), "a name is left of what failed"
        assert not list(self.cache.glob("images/tmp/*")), "work is left of what failed"
        return done.stderr.strip()


@pytest.fixture
def store(tmp_path, registry):
    return Store(tmp_path, registry.host)


def busybox_layer(layer=None):
    layer = layer or Layer()
    layer.dir("bin").dir("etc").dir("tmp", mode=0o1777)
    layer.add("bin/busybox", pathlib.Path(images.BUSYBOX).read_bytes(), mode=0o755)
    for name in ("sh", "cat", "ls", "id", "env", "stat", "test"):
        layer.symlink(f"bin/{name}", "busybox")
    layer.add("etc/passwd", "root:x:0:0:root:/:/bin/sh\napp:x:500:501::/:/bin/sh\n")
    layer.add("etc/group", "root:x:0:\napp:x:501:\n")
    return layer


CAPABILITY = b"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00".decode("latin-1")


def zoo_whiteouts():
    base = Layer().dir("d").add("d/old", "1").dir("d/sub").add("d/sub/x", "2").dir("o").add("o/low", "3")
    base.add("gone", "4").dir("tree").dir("tree/a").add("tree/a/b", "5").add("file", "6").dir("dir").add("dir/in", "7")
    top = Layer().add("d/.wh.old", "").add(".wh.gone", "").add(".wh.tree", "").dir("o").add("o/.wh..wh..opq", "")
    top.add("o/high", "8").add("dir", "now a file").dir("file").add("file/in", "now a directory")
    third = Layer().add("d/new", "9").dir("tree").add("tree/again", "10").add("o/.wh.high", "")
    return [base, top, third]


def zoo_links():
    base = Layer().dir("usr").dir("usr/bin").symlink("bin", "usr/bin").add("usr/bin/a", "a", mode=0o4755)
    base.hardlink("usr/bin/b", "usr/bin/a").symlink("abs", "/usr/bin/a").symlink("dangling", "nowhere/at/all")
    base.symlink("long", "x" * 4000)
    top = Layer().add("bin/c", "through the link of a lower layer").hardlink("usr/bin/d", "usr/bin/a")
    top.add("usr/bin/b", "b is its own now")
    return [base, top]


def zoo_names():
    layer = Layer()
    for name in ("ä ö/ü", "new\nline", "tab\there", "-dash", " space ", "日本/語", "a" * 255, "!bang", ".", "..x", "...",
                 ".-", "'\"\\", "d" * 100 + "/" + "e" * 200 + "/" + "f" * 255):
        if name != ".":
            layer.add(name, f"content of {name}")
    return [layer]


def zoo_attributes():
    layer = Layer().add("cap", "x", mode=0o755, xattrs={"security.capability": CAPABILITY, "user.a": "1"})
    layer.dir("own", mode=0o2750, uid=1000, gid=2000).add("own/f", "y", mode=0o6711, uid=70000, gid=80000)
    layer.add("dev-c", type=tarfile.CHRTYPE, device=(1, 3), mode=0o666)
    layer.add("dev-b", type=tarfile.BLKTYPE, device=(259, 300000), mode=0o660, gid=6)
    layer.add("fifo", type=tarfile.FIFOTYPE, mode=0o600).add("old", "z", mtime=1).add("sticky", "", mode=0o1777)
    return [layer]


def zoo_sizes():
    layer = Layer()
    for size in (0, 1, 2047, 2048, 2049, 4032, 4095, 4096, 4097, 8191, 8192, 70000, 300001):
        layer.add(f"s{size}", bytes(i * 7 % 251 for i in range(size)))
    layer.add("zeros", b"\0" * 1_000_000).add("hole", b"x" + b"\0" * 900_000 + b"y")
    for i in range(700):
        layer.add(f"many/a-rather-long-name-to-fill-blocks-{i:04}", str(i))
    return [layer]


def zoo_layers():
    return [Layer().add(f"f{i}", str(i)).add("last", str(i)) for i in range(120)]


ZOO = {"whiteouts": zoo_whiteouts, "links": zoo_links, "names": zoo_names, "attributes": zoo_attributes,
       "sizes": zoo_sizes, "layers": zoo_layers}


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.parametrize("compress", ["gzip", "zstd"])
def test_tree_is_what_the_peer_unpacks(kind, compress, store, registry, tmp_path):
    if compress == "zstd" and kind != "attributes":
        pytest.skip("once is enough")
    layout = Layout(tmp_path / "layout")
    layers = [layer.bytes() for layer in ZOO[kind]()]
    layout.image("v1", layers, compress=compress)
    if compress == "zstd":  # this umoci knows gzip only
        layout.image("plain", layers)
    name = registry.push(layout, "v1", f"zoo/{kind}:{compress}")
    path = store.pull(name)
    oci.fsck(path)
    theirs = oci.umoci_unpack(layout, "plain" if compress == "zstd" else "v1", tmp_path / "bundle")
    with oci.Mounted(path, tmp_path / "mnt") as ours:
        mine, my_links = oci.describe(ours)
        other, other_links = oci.describe(theirs)
        assert sorted(mine) == sorted(other)
        for name, facts in other.items():
            assert mine[name] == facts or implied(name, mine[name], facts, kind), name
        assert my_links == other_links


def implied(name, mine, theirs, kind):
    """Directories that no entry names have the time of unpacking there and none here."""
    return mine[0].startswith("0o4") and mine[:7] == theirs[:7] and mine[7] == 0


def test_same_image_gives_the_same_bytes(registry, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.image("v1", zoo_links() + zoo_attributes())
    name = registry.push(layout, "v1", "same:v1")
    digests = []
    for i in range(2):
        store = Store(tmp_path / str(i), registry.host)
        digests.append(oci.sha256(pathlib.Path(store.pull(name)).read_bytes()))
    assert digests[0] == digests[1]


ATTACKS = {
    "dotdot": (lambda: [Layer().add("../../../escaped", "x")], "leads out of the image"),
    "dotdot inside": (lambda: [Layer().add("a/../../escaped", "x")], "leads out of the image"),
    "hard link out": (lambda: [Layer().hardlink("passwd", "../../../../etc/passwd")], "leads out of the image"),
    "hard link to nothing": (lambda: [Layer().hardlink("passwd", "/etc/passwd")], "is a hard link to what is not there"),
    "through a file": (lambda: [Layer().add("f", "x").add("f/g", "y")], "goes through what is no directory"),
    "link loop": (lambda: [Layer().symlink("a", "b").symlink("b", "a").add("a/x", "y")], "loop of symbolic links"),
    "root replaced": (lambda: [Layer().symlink("./", "/etc")], "would replace the root directory"),
    "not a tar": (lambda: [b"this is no tar archive at all" * 100], ""),
    "deep": (lambda: [Layer().add("d/" * 300 + "x", "y")], "nested too deep"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_layer_is_refused(attack, store, registry, tmp_path):
    make, text = ATTACKS[attack]
    layout = Layout(tmp_path / "layout")
    layout.image("v1", make())
    name = registry.push(layout, "v1", f"attack/{list(ATTACKS).index(attack)}:v1")
    done = store.run("pull", name, check=False)
    if done.returncode == 0:  # what only shows when layers are put together
        done = store.run("ready", name, check=False)
    assert done.returncode == 1 and text in done.stderr, done.stderr
    assert not list(store.cache.glob("images/blobs/*.erofs"))
    assert not (tmp_path / "escaped").exists()


def test_links_to_the_host_stay_in_the_image(store, registry, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    base = Layer().symlink("abs", str(victim)).symlink("up", "../" * 20 + str(victim).lstrip("/")).add("/rooted", "x")
    top = Layer().add("abs/one", "1").add("up/two", "2")
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [base, top])
    path = store.pull(registry.push(layout, "v1", "confined:v1"))
    assert not list(victim.iterdir())
    with oci.Mounted(path, tmp_path / "mnt") as root:
        inside = root / str(victim).lstrip("/")
        assert (inside / "one").read_text() == "1" and (inside / "two").read_text() == "2"
        assert (root / "rooted").read_text() == "x"


def test_bomb_of_entries_is_refused(store, tmp_path):
    """A million entries that compress to nothing."""
    block = tarfile.TarInfo("x")
    entry = block.tobuf()
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [entry * 1_000_001 + b"\0" * 1024])
    error = store.fails("bomb", "import", layout.dir)
    assert "more than a million entries" in error


@pytest.mark.full
def test_bomb_of_bytes_is_refused(store, tmp_path):
    """A few megabytes that become many gigabytes."""
    info = tarfile.TarInfo("zeros")
    info.size = 20 << 30
    part = gzip.compress(bytes(64 << 20), 9)
    layout = Layout(tmp_path / "layout")
    blob = layout.blob(gzip.compress(info.tobuf(tarfile.GNU_FORMAT)) + part * 320, oci.OCI + "layer.v1.tar+gzip")
    document = {"architecture": "amd64", "os": "linux", "config": {},
                "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]}}
    manifest = {"schemaVersion": 2, "mediaType": oci.OCI + "manifest.v1+json", "layers": [blob],
                "config": layout.blob(json.dumps(document).encode(), oci.OCI + "config.v1+json")}
    layout.tag("v1", layout.blob(json.dumps(manifest).encode(), oci.OCI + "manifest.v1+json"))
    error = store.fails("bomb", "import", layout.dir)
    assert "more than a hundred times its size" in error
    used = sum(p.stat().st_blocks * 512 for p in store.cache.rglob("*") if p.is_file())
    assert used < 100 << 20, used


def test_manifests_that_lie(registry, store, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("a", "1")])
    name = registry.push(layout, "v1", "lies:v1")
    proxy = oci.Proxy(registry.host)
    store.env["HEARTH_INSECURE_REGISTRIES"] += "," + proxy.host
    mine = name.replace(registry.host, proxy.host)
    good = json.loads(subprocess.run(["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{name}"],
                                     capture_output=True, check=True).stdout)
    layer = good["layers"][0]
    cases = [
        (b"{", "no JSON"),
        (b"[" * 100000, ""),
        (b" " * 5_000_000, "longer than"),
        (json.dumps({**good, "schemaVersion": 1}).encode(), "schemaVersion"),
        (json.dumps({**good, "layers": [layer] * 600}).encode(), "600 entries"),
        (json.dumps({**good, "layers": [{**layer, "digest": "sha256:../../x"}]}).encode(), "digest"),
        (json.dumps({**good, "layers": [{**layer, "size": -1}]}).encode(), "size"),
        (json.dumps({**good, "layers": []}).encode(), "0 layers"),
        (json.dumps({**good, "manifests": [layer]}).encode(), "both"),
        (json.dumps({**good, "layers": [layer, layer]}).encode(), "2 layers"),
    ]
    try:
        for body, text in cases:
            proxy.spoil = lambda path, headers, number: ("data", body) if "/manifests/" in path else None
            assert text in store.fails(mine), body[:100]
    finally:
        proxy.close()


def test_cyclic_index_ends(registry, store, tmp_path):
    """An index whose entry leads to itself: its digest cannot be right, and the depth has a limit."""
    proxy = oci.Proxy(registry.host)
    store.env["HEARTH_INSECURE_REGISTRIES"] += "," + proxy.host
    index = json.dumps({"schemaVersion": 2, "mediaType": oci.OCI + "index.v1+json", "manifests": [
        {"mediaType": oci.OCI + "index.v1+json", "digest": "sha256:" + "0" * 64, "size": 1,
         "platform": {"os": "linux", "architecture": "amd64"}}]}).encode()
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("a", "1")])
    name = registry.push(layout, "v1", "cyclic:v1").replace(registry.host, proxy.host)
    kind = oci.OCI + "index.v1+json"
    proxy.spoil = lambda path, headers, number: ("data", index, kind) if "/manifests/" in path else None
    try:
        assert "another content" in store.fails(name)
    finally:
        proxy.close()


@pytest.fixture
def spoiled(registry, store, tmp_path):
    """An image with three layers of incompressible bytes behind a proxy."""
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add(f"f{i}", os.urandom(700_000)) for i in range(3)])
    name = registry.push(layout, "v1", f"spoiled/{secrets.token_hex(8)}:v1")
    proxy = oci.Proxy(registry.host)
    proxy.name = name.replace(registry.host, proxy.host)
    store.env["HEARTH_INSECURE_REGISTRIES"] += "," + proxy.host
    yield proxy
    proxy.close()


def test_too_many_requests_waits_as_told(spoiled, store):
    spoiled.spoil = lambda path, headers, number: ("status", 429, {"Retry-After": "1"}) if number == 0 else None
    began = time.monotonic()
    store.pull(spoiled.name)
    assert time.monotonic() - began >= 2  # the manifest, then blobs


def test_server_errors_are_tried_again(spoiled, store):
    spoiled.spoil = lambda path, headers, number: ("status", 503, {}) if number < 2 else None
    store.pull(spoiled.name)


def test_cut_blob_goes_on_where_it_was(spoiled, store):
    spoiled.spoil = lambda path, headers, number: ("cut", 300_000) if oci.is_blob(path) and number < 2 else None
    store.pull(spoiled.name)
    ranges = [headers.get("Range") for path, headers in spoiled.seen if oci.is_blob(path) and headers.get("Range")]
    assert "bytes=300000-" in ranges and "bytes=600000-" in ranges, ranges


def test_server_without_ranges_begins_again(spoiled, store):
    def spoil(path, headers, number):
        if not oci.is_blob(path):
            return None
        return ("cut", 300_000) if number == 0 else ("whole",)
    spoiled.spoil = spoil
    store.pull(spoiled.name)


def test_wrong_content_is_never_used(spoiled, store):
    spoiled.spoil = lambda path, headers, number: ("change",) if oci.is_blob(path) else None
    assert "another content" in store.fails(spoiled.name)
    assert not list(store.cache.glob("images/layers/*.index"))


def test_registry_that_dies_half_way(registry, tmp_path):
    """What had come is kept; the next pull asks only for the rest."""
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add(f"f{i}", os.urandom(700_000)) for i in range(3)])
    own = oci.Registry(tmp_path / "registry")
    proxy = oci.Proxy(own.host)
    store = Store(tmp_path / "store", proxy.host)
    name = own.push(layout, "v1", "dies:v1").replace(own.host, proxy.host)
    try:
        def spoil(path, headers, number):
            return ("cut", 400_000) if oci.is_blob(path) and number == 0 else \
                ("status", 500, {}) if oci.is_blob(path) else None
        proxy.spoil = spoil
        assert "answers 500" in store.fails(name)
        parts = {p.name: p.stat().st_size for p in store.cache.glob("images/download/*.part")}
        assert parts and all(size == 400_000 for size in parts.values()), parts
        proxy.spoil = lambda path, headers, number: None
        proxy.seen.clear()
        store.pull(name)
        resumed = [h.get("Range") for path, h in proxy.seen if oci.is_blob(path)]
        assert resumed.count("bytes=400000-") >= len(parts), resumed
    finally:
        proxy.close()
        own.stop()


def test_mirror_is_asked_first_and_the_registry_when_it_fails(spoiled, store, registry, tmp_path):
    config = tmp_path / "registries.json"
    config.write_text(json.dumps({"mirrors": {registry.host: [spoiled.host]}}))
    store.env["HEARTH_REGISTRIES"] = str(config)
    name = spoiled.name.replace(spoiled.host, registry.host)
    spoiled.spoil = lambda path, headers, number: ("status", 404, {}) if oci.is_blob(path) else None
    store.pull(name)
    assert any("/manifests/" in path for path, _ in spoiled.seen)


def test_plain_http_only_where_allowed(registry, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("a", "1")])
    name = registry.push(layout, "v1", "plain:v1")
    store = Store(tmp_path / "store", "elsewhere.invalid")
    store.fails(name)


def test_missing_tag_and_other_platform(registry, store, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.image("arm", [Layer().add("a", "1")], architecture="arm64")
    name = registry.push(layout, "arm", "arm:v1")
    assert "no such manifest" in store.fails(name.replace(":v1", ":nope"))
    assert "is for linux/arm64" in store.fails(name)


def test_index_chooses_the_platform(registry, store, tmp_path):
    layout = Layout(tmp_path / "layout")
    entries = [layout.image(None, [Layer().add("arch", arch)], architecture=arch) for arch in ("arm64", "amd64")]
    index = {"schemaVersion": 2, "mediaType": oci.OCI + "index.v1+json", "manifests": entries}
    layout.tag("v1", layout.blob(json.dumps(index).encode(), index["mediaType"]))
    name = registry.push(layout, "v1", "multi:v1", "--multi-arch", "all")
    path = store.pull(name)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    with oci.Mounted(path, tmp_path / "mnt") as root:
        assert (root / "arch").read_text() == machine


def test_pull_by_digest(registry, store, tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("a", "1")])
    name = registry.push(layout, "v1", "pinned:v1")
    digest = store.run("pull", name).stdout.split()[1]
    store.run("pull", f"{name.rsplit(':', 1)[0]}@{digest}")
    wrong = f"{name.rsplit(':', 1)[0]}@sha256:{'1' * 64}"
    assert "no such manifest" in store.run("pull", wrong, check=False).stderr


def test_login(tmp_path, own_oci):
    """Wrong password, right one, docker's own file, logout."""
    h, private = own_oci
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("a", "1")])
    name = private.push(layout, "v1", "secret:v1")
    done = h.cli("image", "pull", name, text=True)
    assert done.returncode != 0 and "login" in done.stderr, done.stderr
    done = h.cli("login", "--username", "me", "--password-stdin", private.host, input="wrong\n", text=True)
    assert done.returncode != 0 and "refuses" in done.stderr, done.stderr
    h.cli("login", "--username", "me", "--password-stdin", private.host, input="right\n", text=True, check=True)
    kept = h.state / "credentials.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    h.cli("image", "pull", name, check=True)
    h.cli("logout", private.host, check=True)
    h.cli("image", "rm", name, check=True)
    assert h.cli("image", "pull", name).returncode != 0
    subprocess.run(["skopeo", "login", "--tls-verify=false", "--authfile", str(h.docker / "config.json"), "-u", "me",
                    "-p", "right", private.host], check=True, capture_output=True)
    h.cli("image", "pull", name, check=True)


@pytest.fixture(scope="module")
def own_oci(registry, workdir):
    """A daemon that may speak to the test's registries."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="oi-", dir="/tmp"))  # sockets want short paths
    private = oci.Registry(pathlib.Path(tempfile.mkdtemp(prefix="private-", dir=workdir)), password="right")
    h = Hearth(directory, private_cache(directory))
    h.docker = directory / "docker"
    h.docker.mkdir()
    h.env.update(HEARTH_INSECURE_REGISTRIES=f"{registry.host},{private.host}", DOCKER_CONFIG=str(h.docker))
    h.start()
    yield h, private
    left = h.clean()
    private.stop()
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, left


def test_run_by_reference_with_the_image_s_configuration(own_oci, registry, tmp_path):
    h, _ = own_oci
    layer = busybox_layer().dir("work", uid=500, gid=501).add("work/note", "hello")
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [layer], config={
        "Env": ["PATH=/bin", "FROM_IMAGE=1", "BOTH=image"], "WorkingDir": "/work", "User": "app:app",
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo by default in $(pwd)"]})
    name = registry.push(layout, "v1", "run/configured:v1")
    done = h.cli("run", name, text=True)
    assert (done.returncode, done.stdout) == (0, "by default in /work\n"), done
    done = h.cli("run", "-e", "BOTH=mine", name, "--", "id -u; id -g; echo $FROM_IMAGE $BOTH", text=True)
    assert done.stdout.split() == ["500", "501", "1", "mine"], done
    done = h.cli("run", "--entrypoint", "cat", "--user", "root", "--workdir", "/", name, "--", "work/note", text=True)
    assert done.stdout == "hello", done
    box = h.create(name)
    try:
        assert box.exec("sh", "-c", "echo $FROM_IMAGE")["stdout"] == "1\n"
        assert box.run("echo $BOTH; pwd")["stdout"] == "image\n/work\n"
    finally:
        box.remove()
    shown = json.loads(h.cli("image", "inspect", name, check=True).stdout)
    assert shown["config"]["User"] == "app:app" and shown["layers"] == 1 and shown["ready"]
    done = h.cli("create", "--image", registry.host + "/no/such:image", text=True)
    assert done.returncode != 0 and "no such manifest" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_shells_of_the_zoo(shell, own_oci, registry, tmp_path):
    """Images whose only shell is this one: exec, a session that keeps its state, a program that is not there."""
    h, _ = own_oci
    root = tmp_path / "root"
    for name in ("bin", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    images.copy_program(root, f"/bin/{shell}", f"/bin/{shell}")
    if shell == "dash":
        (root / "bin/sh").symlink_to("dash")
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().tree(root)], config={"Env": ["PATH=/bin"]})
    box = h.create(registry.push(layout, "v1", f"run/{shell}:v1"))
    try:
        assert box.exec(f"/bin/{shell}", "-c", "echo $0 $((6 * 7))")["stdout"] == f"/bin/{shell} 42\n"
        assert box.run("cd /tmp; export X=kept; f() { echo \"$X in $PWD\"; }")["exit_code"] == 0
        assert box.run("f")["stdout"] == "kept in /tmp\n"
        assert box.run("(exit 7)")["exit_code"] == 7
        with pytest.raises(Exception, match="command_not_found"):
            box.exec("/bin/nothing")
    finally:
        box.remove()


def test_single_static_program(own_oci, registry, tmp_path):
    h, _ = own_oci
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add("single", (BIN.parent / "tests/single").read_bytes(), mode=0o755)])
    box = h.create(registry.push(layout, "v1", "run/single:v1"))
    try:
        assert box.exec("/single")["exit_code"] == 0
        with pytest.raises(Exception, match="no_shell"):
            box.run("true")
    finally:
        box.remove()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["layers", "files", "large"])
def test_big_ones_boot(kind, own_oci, registry, tmp_path):
    h, _ = own_oci
    layers = [busybox_layer()]
    check = ""
    if kind == "layers":
        layers += [layer.add(f"big{i:03}", bytes(i * 7 % 251 for i in range(i, 150_001 + i)))
                   for i, layer in enumerate(zoo_layers()) if i > 0]
        check = "cat /last; echo; ls / | /bin/busybox grep -c ^f; cat /big* | /bin/busybox sha256sum"
    elif kind == "files":
        many = Layer()
        for i in range(100_000):
            many.add(f"many/{i // 1000}/{i}", str(i))
        layers.append(many)
        check = "cat /many/99/99999; echo; /bin/busybox find /many -type f | /bin/busybox wc -l"
    else:
        source = tmp_path / "sparse"
        with open(source, "wb") as f:
            f.truncate(2 * 1024 ** 3)
            f.seek(2 * 1024 ** 3 - 4)
            f.write(b"end\n")
        tar = subprocess.run(["tar", "--sparse", "-cC", str(tmp_path), "sparse"], capture_output=True, check=True)
        layers.append(tar.stdout)
        check = "/bin/busybox tail -c 4 /sparse; /bin/busybox stat -c %s /sparse"
    layout = Layout(tmp_path / "layout")
    layout.image("v1", layers, config={"Env": ["PATH=/bin"]})
    name = registry.push(layout, "v1", f"run/{kind}:v1")
    done = h.cli("run", name, "--", "sh", "-c", check, text=True, timeout=600)
    big = b"".join(bytes(i * 7 % 251 for i in range(i, 150_001 + i)) for i in range(1, 120))
    expected = {"layers": f"119\n119\n{oci.sha256(big)}  -\n", "files": "99999\n100000\n", "large": f"end\n{2 * 1024 ** 3}\n"}
    assert done.stdout == expected[kind], done


def sums_in(box, *names):
    return box.exec("/bin/busybox", "sha256sum", *names)["stdout"].split()[::2]


def age(h):
    """What was used just now is not pruned: it was used long ago."""
    for path in (h.dir / "c/images/blobs").iterdir():
        os.utime(path, (1000, 1000), follow_symlinks=False)


def test_images_that_share_layers_run_at_once(own_oci, registry, tmp_path):
    """Each reads its own and the shared files right, and the shared ones are on disk once."""
    h, _ = own_oci
    layout = Layout(tmp_path / "layout")
    base = [os.urandom(3_000_001), os.urandom(5000), b"small"]
    layers = [busybox_layer().bytes(), Layer().dir("b").add("b/0", base[0]).add("b/1", base[1]).add("b/2", base[2]).bytes()]
    boxes, owns = [], []
    try:
        for i in range(2):
            owns.append(os.urandom(300_000 + i))
            layout.image(f"v{i}", [*layers, Layer().add("own", owns[-1]).add("b/1", owns[-1][:7000])])
            boxes.append(h.create(registry.push(layout, f"v{i}", f"run/shares:v{i}")))
        shown = [json.loads(h.cli("image", "inspect", f"{registry.host}/run/shares:v{i}", check=True).stdout)
                 for i in range(2)]
        packs = [oci.packs_of(image["path"]) for image in shown]
        assert [len(some) for some in packs] == [3, 3] and len({*packs[0], *packs[1]}) == 4, packs
        assert all(image["own_bytes"] < 100_000 < 3_000_000 < image["size_bytes"] for image in shown), shown
        for box, own in zip(boxes, owns):
            assert sums_in(box, "/b/0", "/b/1", "/b/2", "/own") == \
                [oci.sha256(data) for data in (base[0], own[:7000], base[2], own)]
            assert box.exec("sh", "-c", "echo more >> /b/0; /bin/busybox tail -c 5 /b/0")["stdout"] == "more\n"
    finally:
        for box in boxes:
            box.remove()


def test_what_runs_keeps_its_layers_when_the_name_goes(own_oci, registry, tmp_path):
    """The name comes to mean another image and everything is pruned: sandbox, snapshot and fork still read."""
    h, _ = own_oci
    layout = Layout(tmp_path / "layout")
    data = [os.urandom(400_000 + i) for i in range(4)]
    layout.image("v1", [busybox_layer(), *(Layer().add(f"f{i}", data[i]) for i in range(4))])
    layout.image("v2", [busybox_layer().add("other", "image")])
    name = registry.push(layout, "v1", "run/moves:v1")
    box = h.create(name)
    kids = []
    try:
        assert sums_in(box, "/f0") == [oci.sha256(data[0])]
        with pytest.raises(Exception, match="image_in_use"):
            h.client.delete(f"/v1/images/{name}")
        registry.push(layout, "v2", "run/moves:v1")
        h.cli("image", "pull", name, check=True)
        age(h)
        h.cli("image", "prune", "--all", check=True)
        assert sums_in(box, "/f1") == [oci.sha256(data[1])]
        h.client.post(f"{box.url}/hibernate")
        age(h)
        h.cli("image", "prune", "--all", check=True)
        assert sums_in(box, "/f2") == [oci.sha256(data[2])]
        answer = h.client.post(f"{box.url}/fork", {"count": 2})
        kids = [Sandbox(h.client, info) for info in answer["sandboxes"]]
        for kid in kids:
            assert sums_in(kid, "/f3", "/f0") == [oci.sha256(data[3]), oci.sha256(data[0])]
    finally:
        for one in [box, *kids]:
            one.remove()


def test_a_layer_that_is_gone_is_told_before_anything_starts(own_oci, registry, tmp_path):
    h, _ = own_oci
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [busybox_layer(), Layer().add("f", os.urandom(400_000))])
    name = registry.push(layout, "v1", "run/gone:v1")
    box = h.create(name)
    path = json.loads(h.cli("image", "inspect", name, check=True).stdout)["path"]
    pack = oci.packs_of(path)[-1]
    try:
        h.client.post(f"{box.url}/hibernate")
        kept = pack.rename(tmp_path / "kept")
        with pytest.raises(Exception, match=f"its layer .*{pack.name}.*No such file"):
            box.exec("/bin/sh", "-c", "true")
        shutil.copy(kept, pack)
        assert box.exec("/bin/sh", "-c", "echo $((1 + 1))")["stdout"] == "2\n"
    finally:
        box.remove()


def test_archives_of_others(own_oci, tmp_path):
    """OCI layout as directory, as tar and on stdin, docker save; and what we export, others read."""
    h, _ = own_oci
    layout = Layout(tmp_path / "layout")
    layers = [busybox_layer().bytes()] + [layer.bytes() for layer in zoo_whiteouts() + zoo_attributes()]
    layout.image("v1", layers, config={"Env": ["PATH=/bin", "A=b"], "Cmd": ["/bin/sh"]})
    subprocess.run(["tar", "-cf", tmp_path / "oci.tar", "-C", layout.dir, "."], check=True)
    subprocess.run(["skopeo", "copy", "--quiet", "--insecure-policy", f"oci:{layout.dir}:v1",
                    f"docker-archive:{tmp_path}/docker.tar:some/name:v1"], check=True, capture_output=True)
    h.cli("image", "import", "--name", "from-dir", layout.dir, check=True)
    h.cli("image", "import", "--name", "from-tar", tmp_path / "oci.tar", check=True)
    h.cli("image", "import", "--name", "from-docker", tmp_path / "docker.tar", check=True)
    h.cli("image", "import", "--name", "from-stdin", "-", input=(tmp_path / "oci.tar").read_bytes(), check=True)
    names = ("from-dir", "from-tar", "from-docker", "from-stdin")
    shown = [json.loads(h.cli("image", "inspect", name, check=True).stdout) for name in names]
    assert len({image["sha256"] for image in shown}) == 1 and shown[0]["layers"] == len(layers)
    assert all(image["config"]["Env"] == ["PATH=/bin", "A=b"] for image in shown)
    h.cli("image", "export", "from-dir", tmp_path / "out.tar", check=True)
    assert h.cli("image", "export", "from-dir", "-", check=True).stdout == (tmp_path / "out.tar").read_bytes()
    subprocess.run(["skopeo", "copy", "--quiet", "--insecure-policy", f"oci-archive:{tmp_path}/out.tar",
                    f"oci:{tmp_path}/again:v1"], check=True, capture_output=True)
    again = type("L", (), {"dir": tmp_path / "again"})
    theirs, their_links = oci.describe(oci.umoci_unpack(again, "v1", tmp_path / "b1"))
    first, first_links = oci.describe(oci.umoci_unpack(layout, "v1", tmp_path / "b2"))
    assert sorted(theirs) == sorted(first) and their_links == first_links
    for name, facts in first.items():
        assert theirs[name] == facts or implied(name, theirs[name], facts, ""), name
    for name in names:
        h.cli("image", "rm", name, check=True)


def test_images_share_their_layers_on_disk(store, registry, tmp_path):
    """Twenty images on one base take at most 1.3 times their distinct bytes, also when all can be booted from."""
    layout = Layout(tmp_path / "layout")
    base = [Layer().add(f"base{i}", os.urandom(2_000_000)).bytes() for i in range(4)]
    distinct = 8_000_000
    for i in range(20):
        own = os.urandom(200_000)
        layout.image(f"v{i}", base + [Layer().add("own", own)])
        distinct += len(own)
        store.run("pull", registry.push(layout, f"v{i}", f"shared:v{i}"))
    def used():
        return sum(p.stat().st_blocks * 512 for p in (store.cache / "images").rglob("*") if p.is_file())
    assert used() <= 1.3 * distinct, (used(), distinct)
    for i in range(20):
        path = store.ready(f"{registry.host}/shared:v{i}")
        assert len(oci.packs_of(path)) == 5
    assert used() <= 1.3 * distinct, (used(), distinct)
    with oci.Mounted(path, tmp_path / "mnt") as root:
        assert len(list(root.iterdir())) == 5
    for i in range(20):
        store.run("remove", f"{registry.host}/shared:v{i}")
    left = [p for p in (store.cache / "images").rglob("*") if p.is_file() and p.stat().st_size]
    assert not left, left


def test_killed_at_any_time_leaves_a_good_cache(registry, tmp_path):
    """kill -9 at many moments of pull and build; the cache stays good and the next try succeeds."""
    layout = Layout(tmp_path / "layout")
    layout.image("v1", [Layer().add(f"f{i}", os.urandom(400_000)) for i in range(4)])
    name = registry.push(layout, "v1", "killed:v1")
    whole = Store(tmp_path / "whole", registry.host)
    expected = oci.sha256(pathlib.Path(whole.pull(name)).read_bytes())
    store = Store(tmp_path / "store", registry.host)
    killed = 0
    for verb in ("pull", "ready"):
        for step in range(25):
            if verb == "ready":
                for blob in store.cache.glob("images/blobs/*"):
                    blob.unlink()
            child = subprocess.Popen([str(TOOL), verb, name], env=store.env, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            try:
                child.wait(0.004 * step)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                child.wait()
                killed += 1
            for record in store.cache.glob("images/names/*.json"):
                json.loads(record.read_text())
            for blob in store.cache.glob("images/blobs/*.erofs"):
                assert oci.sha256(blob.read_bytes()) == expected, "half an image can be seen"
        store.run(verb, name)
    assert killed > 5
    assert oci.sha256(pathlib.Path(store.ready(name)).read_bytes()) == expected
    assert not list(store.cache.glob("images/tmp/*"))


@pytest.mark.parametrize("size", [200, 500, 900, 1400, 2000, 2600])
def test_full_disk_is_said_and_leaves_nothing_half(size, registry, tmp_path):
    """The cache on a file system that is full at different moments."""
    layout = Layout(tmp_path / "layout")
    many = Layer()  # what the image has for itself, beside the packs
    for i in range(500):
        many.add(f"small{i}", os.urandom(1000))
    layout.image("v1", [Layer().add(f"f{i}", os.urandom(400_000)) for i in range(4)] + [many], compress=None)
    name = registry.push(layout, "v1", f"full{size}:v1")
    store = Store(tmp_path / "store", registry.host)
    store.cache.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(store.cache)], check=True)
    try:
        done = store.run("pull", name, check=False)
        if done.returncode == 0:
            done = store.run("ready", name, check=False)
        assert done.returncode == 1 and "No space" in done.stderr or "MiB are left" in done.stderr, done.stderr
        assert not list(store.cache.glob("images/blobs/*.erofs"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(store.cache)], check=True)
        assert "/images/blobs/" in store.pull(name)
    finally:
        subprocess.run(["umount", str(store.cache)], check=True)
