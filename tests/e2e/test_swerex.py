"""SWE-ReX's own client, unmodified, against a sandbox. Its packages come from PyPI, like test_e2b's."""
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

from test_e2b import HERE, door, fetched, report  # noqa: F401 (door is a fixture)


def packages():
    return fetched("swe-rex-py", [sys.executable, "-m", "pip", "install", "--quiet",
                                      "--disable-pip-version-check", "swe-rex", "aiohttp", "--target"],
                   "swerex/__init__.py")


def test_remote_runtime(door):  # noqa: F811
    box = door.create("base")
    try:
        done = subprocess.run([sys.executable, str(HERE / "swerex_client.py"),
                               f"{door.sdk_env['E2B_API_URL']}/rex/{box.id}", door.sdk_env["E2B_API_KEY"]],
                              capture_output=True, text=True, timeout=900,
                              env={**door.sdk_env, "PYTHONPATH": str(packages())})
    finally:
        box.remove()
    report(done)


def test_root_of_a_port(door):  # noqa: F811
    """`hearth rex`: the same client, all of its cases, against host and port as SWE-agent has them."""
    box = door.create("base", name="rooted")
    rex = door.popen("rex", "rooted", "--json", stdout=subprocess.PIPE, text=True)
    try:
        told = json.loads("".join(iter(rex.stdout.readline, "}\n")) + "}")
        assert told["sandbox"] == box.id and told["url"] == "http://127.0.0.1"
        url = f"{told['url']}:{told['port']}"

        def status(path, **headers):
            try:
                return urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=30).status
            except urllib.error.HTTPError as error:
                return error.code
        assert status("/is_alive", **{"X-API-Key": told["token"]}) == 200
        assert status("/is_alive") == 403 and status("/is_alive", **{"X-API-Key": "wrong"}) == 401
        # Nothing but this sandbox's runtime, whatever is asked.
        for path in ("/v1/sandboxes", "/../../v1/sandboxes", "/%2e%2e/%2e%2e/v1/sandboxes", "//v1/sandboxes"):
            assert status(path, **{"X-API-Key": told["token"], "Hearth-Tenant": "*"}) == 404, path
        done = subprocess.run([sys.executable, str(HERE / "swerex_client.py"), url, told["token"]],
                              capture_output=True, text=True, timeout=900,
                              env={**door.sdk_env, "PYTHONPATH": str(packages())})
        report(done)
        # It has no part in the daemon's life.
        door.kill()
        assert status("/is_alive", **{"X-API-Key": told["token"]}) == 503
        door.start()
        assert status("/is_alive", **{"X-API-Key": told["token"]}) == 200
        rex.send_signal(signal.SIGTERM)
        assert rex.wait(10) == 0
    finally:
        rex.kill()
        rex.wait()
        box.remove()
