"""Builds a template through the unmodified E2B SDK for Python and runs it. Usage: e2b_template.py BASE"""
import pathlib
import sys

import e2b
from e2b import Sandbox, Template, wait_for_file

from cases import case, end

base = sys.argv[1]
pathlib.Path("ctx").mkdir()
pathlib.Path("ctx/one.txt").write_text("one\n")


@case("build, create, run")
def _():
    logs = []
    template = (Template(file_context_path="ctx").from_image(base).copy("one.txt", "/data/one")
                .set_envs({"WHO": "py"}).run_cmd("echo $WHO $(id -un) > made; echo seen")
                .set_start_cmd("echo up > /tmp/up; exec sleep 100000", wait_for_file("/tmp/up")))
    Template.build(template, "py-first", cpu_count=1, memory_mb=256, on_build_logs=logs.append)
    assert any(entry.message == "seen" for entry in logs), logs
    assert Template.exists("py-first") and not Template.exists("py-second")
    sbx = Sandbox.create("py-first", timeout=60)
    try:
        done = sbx.commands.run("cat made /data/one /tmp/up; echo $WHO; pgrep -c -x sleep")
        assert done.stdout == "py user\none\nup\npy\n1\n", done.stdout
    finally:
        sbx.kill()


@case("a command that fails")
def _():
    try:
        Template.build(Template().from_image(base).run_cmd("exit 3"), "py-second")
    except e2b.BuildException as e:
        assert "3" in str(e), e
    else:
        raise AssertionError("no BuildException")


@case("tags, delete")
def _():
    Template.assign_tags("py-first", ["v1"])
    assert sorted(t.tag for t in Template.get_tags("py-first")) == ["default", "v1"]
    Template.remove_tags("py-first", ["default"])
    assert not Template.exists("py-first:default") and Template.exists("py-first:v1")
    assert Sandbox.delete_snapshot("py-first") and not Template.exists("py-first")


end()
