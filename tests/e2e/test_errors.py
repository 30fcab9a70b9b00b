"""Bad input to create and import: a clear error, and no half-made sandbox."""
import os
import shutil
import subprocess
import tarfile
import tempfile

import pytest

from client import ApiError
from conftest import CACHE, Hearth, private_cache, shared_sandbox, wait_until

BAD = {
    "unknown_image": ({"image": "no-such-image"}, "image_not_found", "no-such-image"),
    "unknown_backend": ({"backend": "xen"}, "backend_unavailable", "xen"),
    "unknown_template": ({"template": "none"}, "template_not_found", "none"),
    "zero_cpus": ({"cpus": 0}, "invalid_argument", "cpus"),
    "too_many_cpus": ({"cpus": 1000}, "invalid_argument", "cpus"),
    "little_memory": ({"memory_mib": 1}, "invalid_argument", "memory_mib"),
    "text_for_memory": ({"memory_mib": "lots"}, "invalid_argument", "memory_mib"),
    "small_disk": ({"disk_mib": 1}, "invalid_argument", "disk_mib"),
    "negative_timeout": ({"timeout_sec": -5}, "invalid_argument", "timeout_sec"),
    "bad_name": ({"name": "../up"}, "invalid_argument", "../up"),
    "unknown_key": ({"flavour": "x"}, "invalid_argument", "flavour"),
    "env_not_object": ({"env": ["A=b"]}, "invalid_argument", "env"),
    "nul_in_env": ({"env": {"A": "b\0c"}}, "invalid_argument", "A"),
}


@pytest.mark.parametrize("name", BAD)
def test_create_refuses(hearth, name):
    body, code, word = BAD[name]
    before = {s["id"] for s in hearth.client.get("/v1/sandboxes")["sandboxes"]}
    with pytest.raises(ApiError) as caught:
        hearth.client.post("/v1/sandboxes", body)
    assert caught.value.code == code, caught.value
    assert word in caught.value.message, caught.value
    assert {s["id"] for s in hearth.client.get("/v1/sandboxes")["sandboxes"]} == before


def test_name_is_unique_and_usable(hearth):
    box = hearth.create("base", name="named-one")
    try:
        assert hearth.client.get("/v1/sandboxes/named-one")["id"] == box.id
        with pytest.raises(ApiError) as caught:
            hearth.create("base", name="named-one")
        assert caught.value.code == "already_exists"
    finally:
        box.remove()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"cpus":1,"cpus":2}', b"{" * 5000])
def test_malformed_bodies(hearth, body):
    with pytest.raises(ApiError) as caught:
        hearth.client.request("POST", "/v1/sandboxes", body)
    assert caught.value.status == 400 and caught.value.code == "invalid_argument"


def test_body_over_the_limit(hearth):
    with pytest.raises((ApiError, OSError)) as caught:
        hearth.client.request("POST", "/v1/sandboxes", b"x" * (3 << 20))
    if isinstance(caught.value, ApiError):
        assert caught.value.status == 413


def test_unknown_routes_and_methods(hearth):
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/nope", 404), ("PATCH", "/v1/sandboxes", 405),
                                 ("GET", "/v1/sandboxes/../../etc/passwd", 404), ("GET", "/v1/sandboxes/%2e%2e", 404)):
        with pytest.raises(ApiError) as caught:
            hearth.client.request(method, path)
        assert caught.value.status == status, (method, path, caught.value)


def test_missing_kernel_says_how_to_get_one(workdir):
    directory = tempfile.mkdtemp(prefix="k-", dir=workdir)
    cache = private_cache(directory)
    (cache / "kernels").unlink()
    h = Hearth(directory, cache).start()
    try:
        with pytest.raises(ApiError) as caught:
            h.create("base")
        assert caught.value.code == "kernel_not_found" and "hearth kernel fetch" in caught.value.message
        assert h.client.get("/v1/sandboxes")["sandboxes"] == []
    finally:
        left = h.clean()
        shutil.rmtree(directory, ignore_errors=True)
        assert not left, left


def test_import_from_tar(hearth, workdir, tmp_path):
    for mode, name in (("w", "plain.tar"), ("w:gz", "zipped.tar.gz"), ("w:xz", "x.tar.xz")):
        path = tmp_path / name
        with tarfile.open(path, mode) as tar:
            tar.add(workdir / "tree-ash", arcname=".")
        done = hearth.cli("image", "import", "--name", "from-tar", path)
        assert done.returncode == 0, done.stderr
        box = hearth.create("from-tar")
        try:
            assert box.exec("sh", "-c", "echo tar; id -u app")["stdout"] == "tar\n500\n"
        finally:
            box.remove()
        hearth.cli("image", "rm", "from-tar", check=True)


def test_hostile_tar_writes_nothing_outside(hearth, tmp_path):
    for index, member in enumerate(("../../escape", "/absolute-escape", "link/escape")):
        path = tmp_path / f"evil{index}.tar"
        with tarfile.open(path, "w") as tar:
            if member.startswith("link"):
                link = tarfile.TarInfo("link")
                link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
                tar.addfile(link)
            info = tarfile.TarInfo(member)
            info.size = 4
            import io
            tar.addfile(info, io.BytesIO(b"evil"))
        hearth.cli("image", "import", "--name", f"evil{index}", path)
        assert not os.path.exists("/absolute-escape") and not (tmp_path / "escape").exists()
        assert not (tmp_path.parent / "escape").exists()
        hearth.cli("image", "rm", f"evil{index}")


@pytest.mark.parametrize("content", [b"", b"not a tar at all" * 1000])
def test_import_of_rubbish(hearth, tmp_path, content):
    path = tmp_path / "rubbish"
    path.write_bytes(content)
    done = hearth.cli("image", "import", "--name", "rubbish", path)
    assert done.returncode == 1 and str(path).encode() in done.stderr
    assert b"rubbish" not in hearth.cli("image", "ls").stdout


def test_same_tree_gives_the_same_image(hearth, workdir):
    first = hearth.client.get("/v1/images/dash")["sha256"]
    hearth.cli("image", "import", "--name", "dash-again", workdir / "tree-dash", check=True)
    assert hearth.client.get("/v1/images/dash-again")["sha256"] == first
    shared_sandbox(hearth, "dash")  # needs the content, not both names
    hearth.cli("image", "rm", "dash-again", check=True)
    refused = hearth.cli("image", "rm", "dash")
    assert refused.returncode == 1 and b"a sandbox stands on it" in refused.stderr
    assert hearth.client.get("/v1/images/dash")["sha256"] == first


def test_host_disk_full(workdir, cache):
    """State on a file system that is too small: a typed error, and it works again with room."""
    directory = tempfile.mkdtemp(prefix="f-", dir=workdir)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", directory], check=True)
    try:
        h = Hearth(directory, cache).start()
        try:
            with pytest.raises(ApiError) as caught:
                h.create("base")
            assert caught.value.code == "no_space", caught.value
            assert h.client.get("/v1/sandboxes")["sandboxes"] == []
            assert not any((h.state / "sandboxes").iterdir())
        finally:
            left = [x for x in h.clean() if not x.startswith("mount ")]
            assert not left, left
    finally:
        subprocess.run(["umount", directory], check=True)
        os.rmdir(directory)
