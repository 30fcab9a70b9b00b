"""hearth bench: the table, the JSON and the pictures are there, and nothing is left behind."""
import json
import os
import shutil
import signal
import tempfile
import xml.etree.ElementTree as xml

import pytest
from conftest import Hearth, wait_until
from witness import stored

GROUPS = ["claim", "create", "exec", "session", "fork", "hibernate", "pause", "store", "restore"]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def daemon(workdir, cache):
    """A daemon of the test's own with pools as users have them."""
    directory = tempfile.mkdtemp(prefix="b-", dir=workdir)
    h = Hearth(directory, cache, pool=1).start()
    yield h
    h.clean()
    shutil.rmtree(directory, ignore_errors=True)


def check_clean(h, size):
    """As it was: no sandbox, no snapshot, the pool as big as before and nobody's setting."""
    assert h.client.get("/v1/sandboxes")["sandboxes"] == []
    assert h.client.get("/v1/snapshots")["snapshots"] == []
    pools = h.client.get("/v1/pools")["pools"]
    assert [(pool["size"], pool["configured"]) for pool in pools] == [size]
    wait_until(lambda: h.client.get("/v1/pools")["pools"][0]["ready"] == size[0], "the pool as it was", 120)
    # What sleeps, forks and checkpoints wrote goes with those who needed it.
    wait_until(lambda: not stored(h), "an empty store", 30)


def check_svg(path, rows):
    root = xml.parse(path).getroot()
    assert root.tag == SVG + "svg"
    texts = [element.text for element in root.iter(SVG + "text")]
    for row in rows:
        assert row["name"] in texts, (path, row, texts)
    assert "how often" in texts and any(text.startswith(rows[0]["unit"] + " (") for text in texts)
    bars = [element for element in root.iter(SVG + "rect") if element.get("class") in ("bar", "more")]
    assert sum(int(bar.find(SVG + "title").text) for bar in bars) == sum(row["count"] for row in rows)


def test_bench_measures_everything_and_leaves_nothing(daemon, tmp_path):
    out = tmp_path / "pictures"
    done = daemon.cli("bench", "--rounds", "2", "--json", "--out", str(out), text=True, timeout=600)
    assert done.returncode == 0, (done.stdout, done.stderr)
    report = json.loads(done.stdout)
    assert [group["name"] for group in report["groups"]] == GROUPS
    assert report["rounds"] == 2 and report["backend"] and report["template"]
    for group in report["groups"]:
        assert "error" not in group, group
        for row in group["rows"]:
            assert row["count"] > 0, row
            assert 0 <= row["min"] <= row["p50"] <= row["p95"] <= row["p99"] <= row["max"], row
        drawn = [row for row in group["rows"] if row["unit"] == group["rows"][0]["unit"]]
        if drawn:
            check_svg(out / f"{group['name']}.svg", drawn)
    rows = {row["name"]: row for group in report["groups"] for row in group["rows"]}
    assert rows["claim from the pool"]["against"] == "empty call"
    assert rows["fork of 8"]["against"] == "one restore of a checkpoint"
    for name in ("claim from the pool", "fork of 8"):  # what they are worth, so few of them do not say
        assert rows[name]["ratio"] > 0 and rows[name]["reach"] > 1
    assert rows["create, then first output of a command"]["min"] > rows["create"]["min"]
    touched = next(row for name, row in rows.items() if name.startswith("memory changed,") and "touched" in name)
    written = next(row for name, row in rows.items() if name.startswith("written,") and "touched" in name)
    assert touched["min"] >= 60 and 0.9 <= written["ratio"] <= 1.1, (touched, written)
    assert report["groups"][-1]["rows"] or "hearth-pager" in report["groups"][-1]["note"]
    check_clean(daemon, (1, False))


def test_bench_table(daemon, tmp_path):
    done = daemon.cli("bench", "exec", "session", "--rounds", "1", "--out", str(tmp_path / "o"), text=True,
                      timeout=300)
    assert done.returncode == 0, (done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["MEASURED", "COUNT", "MIN", "P50", "P95", "P99", "MAX", "UNIT", "RATIO", "REACH"]
    assert len(lines) == 5 and lines[2].startswith("exec 'true', to its result") and "x" in lines[2]
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["exec.svg", "session.svg"]
    check_clean(daemon, (1, False))
    wrong = daemon.cli("bench", "nothing", text=True)
    assert wrong.returncode == 2 and "'nothing' is no measurement" in wrong.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_bench_that_is_broken_off_leaves_nothing(daemon, tmp_path, how):
    daemon.create("base").remove()
    template = daemon.client.get("/v1/templates")["templates"][0]["id"]
    daemon.cli("pool", "set", template, "2", check=True)
    run = daemon.popen("bench", "fork", "claim", "--rounds", "40", "--out", str(tmp_path / "o"))
    wait_until(lambda: len(daemon.client.get("/v1/sandboxes")["sandboxes"]) >= 4, "claims or forks", 120)
    os.kill(run.pid, how)
    run.communicate(timeout=120)
    assert run.returncode == (-how if how == signal.SIGKILL else 128 + how)
    wait_until(lambda: not daemon.client.get("/v1/sandboxes")["sandboxes"], "nothing to be left", 60)
    wait_until(lambda: daemon.client.get("/v1/pools")["pools"][0]["size"] == 2, "the pool's size", 60)
    check_clean(daemon, (2, True))
    assert not (tmp_path / "o").exists()
