"""SWE-ReX's own client, unmodified, against a sandbox. Its packages come from PyPI, like test_e2b's."""
import subprocess
import sys

from test_e2b import HERE, door, fetched, report  # noqa: F401 (door is a fixture)


def test_remote_runtime(door):  # noqa: F811
    packages = fetched("swe-rex-py", [sys.executable, "-m", "pip", "install", "--quiet",
                                      "--disable-pip-version-check", "swe-rex", "aiohttp", "--target"],
                       "swerex/__init__.py")
    box = door.create("base")
    try:
        done = subprocess.run([sys.executable, str(HERE / "swerex_client.py"),
                               f"{door.sdk_env['E2B_API_URL']}/rex/{box.id}", door.sdk_env["E2B_API_KEY"]],
                              capture_output=True, text=True, timeout=900,
                              env={**door.sdk_env, "PYTHONPATH": str(packages)})
    finally:
        box.remove()
    report(done)
