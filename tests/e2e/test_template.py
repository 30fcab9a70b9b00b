"""Named templates: set up once, then every sandbox starts from there."""
import concurrent.futures
import os
import shutil
import tempfile
import time

import pytest
from client import ApiError
from conftest import Hearth, wait_until
from test_clone import IDENTITY

SERVER = ("import socket,time,os\n"
          "s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
          "s.bind(('127.0.0.1', 8000)); s.listen(8)\n"
          "n=0\n"
          "while True:\n"
          "    c=s.accept()[0]; n+=1; c.sendall(b'%d' % n); c.close()\n")
ASK = "python3 -c \"import socket; print(socket.create_connection(('127.0.0.1', 8000)).recv(9).decode())\""


@pytest.fixture(scope="module")
def built(hearth, workdir):
    """A template with files, a running server and a warm-up, by the command line."""
    app = workdir / "app"
    (app / "sub").mkdir(parents=True)
    (app / "server.py").write_text(SERVER)
    (app / "sub/data").write_bytes(os.urandom(300_000))
    (app / "link").symlink_to("server.py")
    (app / "sub/data").chmod(0o640)
    args = ["template", "build", "served", "--image", "base", "--copy", f"{app}:/srv/app",
            "--run", "echo once >> /srv/steps; uname -n > /srv/builder",
            "--run", "setsid python3 /srv/app/link </dev/null >/dev/null 2>&1 &",
            "--ready", ASK, "--warm", "echo warm >> /srv/warmed"]
    done = hearth.cli(*args, text=True, check=True)
    yield app, args, done.stdout.strip()
    hearth.cli("template", "rm", "served", check=True)


def test_sandboxes_start_where_the_set_up_ended(hearth, built):
    app, _, template = built
    box = hearth.create(None, template="served")
    try:
        assert box.info["template"] == template and box.info["image"] == "base"
        out = box.exec("sh", "-c", "cat /srv/steps; readlink /srv/app/link; stat -c %a /srv/app/sub/data;"
                                   " wc -l < /srv/warmed")["stdout"].split()
        assert out == ["once", "server.py", "640", "1"]
        assert box.read("/srv/app/sub/data") == (app / "sub/data").read_bytes()
        first = int(box.exec("sh", "-c", ASK)["stdout"])  # the server lives, its memory with it
        assert int(box.exec("sh", "-c", ASK)["stdout"]) == first + 1
    finally:
        box.remove()


def test_same_steps_are_there_at_once_and_changed_ones_are_not(hearth, built):
    app, args, template = built
    start = time.monotonic()
    assert hearth.cli(*args, text=True, check=True).stdout.strip() == template
    assert time.monotonic() - start < 3
    data = (app / "sub/data").read_bytes()
    (app / "sub/data").write_bytes(bytes([data[0] ^ 1]) + data[1:])
    try:
        other = hearth.cli("template", "build", "other", *args[3:], text=True, check=True).stdout.strip()
        assert other != template
        hearth.cli("template", "rm", "other", check=True)
    finally:
        (app / "sub/data").write_bytes(data)
    with pytest.raises(ApiError) as gone:
        hearth.client.get(f"/v1/templates/{other}")
    assert gone.value.code == "template_not_found"


def test_clones_of_a_set_up_share_nothing(hearth, built):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        boxes = list(pool.map(lambda _: hearth.create(None, template="served"), range(6)))
        try:
            results = list(pool.map(lambda b: (b.exec("sh", "-c", IDENTITY), time.time()), boxes))
            rows = [r["stdout"].split() for r, _ in results]
            for column in range(6):
                assert len({row[column] for row in rows}) == len(boxes), column
            for row, (_, now), box in zip(rows, results, boxes):
                assert row[2] == box.id and abs(float(row[6]) - now) < 2.0
        finally:
            list(pool.map(lambda b: b.remove(), boxes))


def test_inspect_and_list(hearth, built):
    _, _, template = built
    for key in (template, "served"):
        info = hearth.client.get(f"/v1/templates/{key}")
        assert info["id"] == template and info["names"] == ["served"]
        assert [list(step) for step in info["recipe"]["steps"]] == [["copy"], ["run"], ["run"]]
    assert "served" in hearth.cli("template", "ls", text=True, check=True).stdout
    assert '"warm"' in hearth.cli("template", "inspect", "served", text=True, check=True).stdout


def test_failures_say_which_step(hearth, workdir):
    failed = hearth.cli("template", "build", "bad", "--run", "true", "--run", "echo some words; exit 7", text=True)
    assert failed.returncode == 1
    for words in ("step 2 of 2", "exit status 7", "some words"):
        assert words in failed.stderr, failed.stderr
    failed = hearth.cli("template", "build", "bad", "--ready", "false", "--ready-timeout", "1s", text=True)
    assert failed.returncode == 1 and "ready 'false'" in failed.stderr
    failed = hearth.cli("template", "build", "bad", "--copy", f"{workdir}/nothing:/x", text=True)
    assert failed.returncode != 0 and "nothing" in failed.stderr
    assert hearth.cli("template", "build", "bad", "--copy", "nowhere", text=True).returncode == 2
    assert hearth.cli("run", "--template", "bad", "--", "true").returncode != 0
    for body, code in (({"name": "x", "what": 1}, 400), ({"name": "X y"}, 400), ({}, 400),
                       ({"name": "x", "steps": [{"run": "a", "copy": {}}]}, 400)):
        with pytest.raises(ApiError) as refused:
            hearth.client.post("/v1/templates", body)
        assert refused.value.status == code, body


def test_daemon_that_dies_in_a_build_leaves_nothing(own):
    build = own.popen("template", "build", "slow", "--run", "sleep 600")
    wait_until(lambda: "step 1 of 1" in own.log() or list((own.state / "templates").glob("*.tmp-*")), "the build")
    wait_until(lambda: list((own.state / "templates").glob("*.tmp-*/memory")), "its memory", 120)
    own.kill()
    assert build.wait(60) != 0
    own.start()
    wait_until(lambda: not list((own.state / "templates").glob("*")), "the rubbish is gone")
    assert own.client.get("/v1/templates")["templates"] == []


def test_pool_of_a_template_runs_its_warm_up(workdir, cache):
    directory = tempfile.mkdtemp(prefix="t-", dir=workdir)
    h = Hearth(directory, cache, pool=1).start()
    try:
        h.cli("template", "build", "w", "--run", "setsid sleep 100000 >/dev/null 2>&1 </dev/null &",
              "--warm", "echo warm >> /srv-warmed", check=True)
        h.create(None, template="w").remove()
        wait_until(lambda: [p for p in h.client.get("/v1/pools")["pools"] if p["ready"] == 1], "a pooled one", 60)
        box = h.create(None, template="w", name="called")
        assert box.info["timings"]["claimed"] is True
        out = box.exec("sh", "-c", "hostname; wc -l < /srv-warmed; pgrep -c sleep")["stdout"].split()
        assert out == ["called", "2", "1"]  # once in the build, once in the pool
        box.remove()
    finally:
        left = [item for item in h.clean() if not item.startswith("file ")]
        left += list((h.state / "sandboxes").glob("*"))
        shutil.rmtree(directory, ignore_errors=True)
    assert not left, left
