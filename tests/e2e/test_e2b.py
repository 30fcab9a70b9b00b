"""The real E2B SDKs, unmodified, against a running daemon with real guests.

They come from their registries (npm, PyPI), which a machine may not reach: then the tests say so and are
skipped. What was fetched once stays in the cache.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import pytest

from conftest import BIN, CACHE, Hearth, wait_until

HERE = pathlib.Path(__file__).parent / "sdk"
JS_VERSIONS = ["2.51.0", "2.45.0"]


@pytest.fixture(scope="module")
def door(workdir, cache):
    """A daemon that listens on a port of its own, and a key for it."""
    directory = tempfile.mkdtemp(prefix="e-", dir=workdir)
    h = Hearth(directory, cache)
    h.env["HEARTH_LISTEN"] = "127.0.0.1:0"
    h.start()
    url = (h.state / "hearthd.url").read_text().strip()
    key = json.loads(h.cli("key", "create", "--json", check=True).stdout)
    h.sdk_env = {**os.environ, "E2B_API_URL": url, "E2B_SANDBOX_URL": url,
                 "E2B_API_KEY": key.get("key") or key["secret"]}
    yield h
    left = h.clean()
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, left


def fetched(name, command, marker):
    """A directory of the cache with what `command` puts there; skips when it cannot."""
    target = CACHE / "sdk" / name
    if not (target / marker).exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = pathlib.Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        done = subprocess.run([*command, str(fresh)], capture_output=True, text=True, timeout=300)
        if done.returncode != 0 or not (fresh / marker).exists():
            shutil.rmtree(fresh, ignore_errors=True)
            pytest.skip(f"{name} cannot be fetched here: {(done.stderr or done.stdout)[-200:]!r}")
        try:
            fresh.rename(target)
        except OSError:  # somebody was faster
            shutil.rmtree(fresh, ignore_errors=True)
    return target


def javascript(version):
    return fetched(f"e2b-js-{version}",
                   ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts",
                    f"e2b@{version}", "--prefix"], "node_modules/e2b/package.json")


def python():
    return fetched("e2b-py", [sys.executable, "-m", "pip", "install", "--quiet",
                              "--disable-pip-version-check", "e2b", "--target"], "e2b/__init__.py")


def report(done, at_least=20):
    lines = done.stdout.splitlines()
    bad = [line for line in lines if line.startswith("FAIL")]
    good = [line for line in lines if line.startswith("ok ")]
    assert done.returncode == 0 and not bad, "\n".join([*bad, done.stderr[-4000:]])
    assert len(good) >= at_least, done.stdout
    print(f"{len(good)} cases")


def run_javascript(door, version, script, *args):
    """From a directory with the SDK beside it: that is where imports are looked for."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("no node and npm on this machine")
    modules = javascript(version)
    with tempfile.TemporaryDirectory(prefix="hejs-") as directory:
        for name in (script, "cases.mjs"):
            shutil.copy(HERE / name, directory)
        (pathlib.Path(directory) / "node_modules").symlink_to(modules / "node_modules")
        return subprocess.run(["node", script, "e2b", *args], capture_output=True, text=True,
                              timeout=900, env=door.sdk_env, cwd=directory)


@pytest.mark.parametrize("version", JS_VERSIONS)
def test_javascript_sdk(door, version):
    report(run_javascript(door, version, "e2b.mjs"))


def test_javascript_templates(door):
    report(run_javascript(door, JS_VERSIONS[0], "e2b_template.mjs", "base"), 10)
    no_images_left(door)


def test_python_templates(door):
    env = {**door.sdk_env, "PYTHONPATH": str(python())}
    with tempfile.TemporaryDirectory(prefix="hepy-") as directory:
        done = subprocess.run([sys.executable, str(HERE / "e2b_template.py"), "base"], env=env,
                              capture_output=True, text=True, timeout=900, cwd=directory)
    report(done, 3)
    no_images_left(door)


def test_what_was_built_is_its_tenants_own(door):
    url = door.sdk_env["E2B_API_URL"]
    other = json.loads(door.cli("key", "create", "--tenant", "two", "--json", check=True).stdout)

    def ask(method, path, body=None, key=door.sdk_env["E2B_API_KEY"]):
        request = urllib.request.Request(url + path, method=method, headers={"X-API-Key": key},
                                         data=json.dumps(body).encode() if body else None)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def foreign(method, path, body=None):
        return ask(method, path, body, other.get("key") or other["secret"])

    status, made = ask("POST", "/v3/templates", {"name": "own", "tags": ["default", "v1"]})
    assert status == 202, made
    build = f"/templates/own/builds/{made['buildID']}"
    assert ask("POST", "/v2" + build, {"fromTemplate": "base", "steps": []})[0] == 202
    assert ask("POST", "/v2" + build, {"fromTemplate": "base", "steps": []})[0] == 409, "once"
    wait_until(lambda: ask("GET", build + "/status")[1]["status"] == "ready", "built", timeout=120)
    image = "e2b." + made["buildID"]
    assert image in [i["name"] for i in ask("GET", "/v1/images")[1]["images"]]
    template = ask("GET", "/v1/templates/e2b.own.v1")[1]["id"]
    assert [t["templateID"] for t in ask("GET", "/templates")[1]] == ["own"]
    assert ask("PATCH", "/templates/own", {"public": True})[0] == 400

    assert "base" in [i["name"] for i in foreign("GET", "/v1/images")[1]["images"]]
    assert image not in [i["name"] for i in foreign("GET", "/v1/images")[1]["images"]]
    assert foreign("GET", "/v1/images/" + image)[0] == 404
    for body in ({"image": image}, {"image": f"docker.io/library/{image}:latest"}, {"template": template},
                 {"template": "e2b.own.v1"}, {"template": "e2b.never.v1"}):
        assert foreign("POST", "/v1/sandboxes", body)[0] == 404, body
    for name in ("own", image):  # own:v1 would be an image of a registry
        assert foreign("POST", "/sandboxes", {"templateID": name})[0] == 404, name
    assert foreign("GET", "/templates")[0] == 403
    assert foreign("DELETE", "/templates/own")[0] == 404
    assert ask("DELETE", "/templates/own")[0] == 204
    assert ask("GET", "/templates")[1] == []
    no_images_left(door)


def no_images_left(door):
    """Of templates that were deleted or replaced, or whose build failed."""
    wait_until(lambda: not [image["name"] for image in door.client.get("/v1/images")["images"]
                            if image["name"].startswith("e2b.")], "images of builds go", timeout=30)


@pytest.mark.parametrize("codec", ["json", "binary"])
def test_python_sdk(door, codec):
    env = {**door.sdk_env, "PYTHONPATH": str(python())}
    done = subprocess.run([sys.executable, str(HERE / "e2b_sdk.py"), codec], capture_output=True,
                          text=True, timeout=900, env=env)
    report(done)
