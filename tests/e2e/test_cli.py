"""The command line as a person uses it."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from conftest import wait_until


def test_run_keeps_streams_apart_and_passes_the_exit_code(hearth):
    done = hearth.cli("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_run_leaves_no_sandbox(hearth):
    before = json.loads(hearth.cli("ls", "--json").stdout)["sandboxes"]
    hearth.cli("run", "--", "true", check=True)
    hearth.cli("run", "--", "no-such-command")
    after = json.loads(hearth.cli("ls", "--json").stdout)["sandboxes"]
    assert {s["id"] for s in after} == {s["id"] for s in before}


def test_run_passes_stdin(hearth):
    done = hearth.cli("run", "-i", "--", "cat", input=b"x\0y" * 50_000)
    assert done.stdout == b"x\0y" * 50_000 and done.returncode == 0


def test_run_passes_signals(hearth):
    child = hearth.popen("run", "--", "sh", "-c", "trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 0.1; done",
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert out == b"bye\n" and child.returncode == 9


@pytest.mark.parametrize("argv,code,word", [
    (["run", "--", "no-such-command"], 127, "no-such-command"),
    (["run", "--", "/etc/passwd"], 126, "/etc/passwd"),
    (["run", "--image", "nothing", "--", "true"], 1, "nothing"),
    (["run", "--user", "ghost", "--", "true"], 1, "ghost"),
    (["run", "--workdir", "/no/dir", "--", "true"], 1, "/no/dir"),
    (["run", "--memory", "banana", "--", "true"], 2, "banana"),
    (["run", "--cpus", "0", "--", "true"], 2, "cpus"),
    (["run", "--no-such-option"], 2, "--no-such-option"),
    (["run", "--backend", "vmware", "--", "true"], 1, "vmware"),
    (["frobnicate"], 2, "frobnicate"),
    (["exec", "nosuchsandbox", "--", "true"], 1, "nosuchsandbox"),
    (["rm", "nosuchsandbox"], 1, "nosuchsandbox"),
    (["inspect"], 2, "inspect"),
    (["image", "import", "--name", "x", "/no/such/path"], 1, "/no/such/path"),
    (["image", "import", "--name", "Bad/Name", "/tmp"], None, "Bad/Name"),
    (["session", "run", "nosuchsandbox", "--", "true"], 1, "nosuchsandbox"),
])
def test_errors_name_the_thing(hearth, argv, code, word):
    done = hearth.cli(*argv)
    if code is None:
        assert done.returncode in (1, 2)
    else:
        assert done.returncode == code, (done.returncode, done.stderr)
    assert word in done.stderr.decode(), done.stderr
    assert done.stdout == b""


def test_create_exec_inspect_rm(hearth):
    done = hearth.cli("create", "--cpus", "1", "--memory", "128", "--env", "A=b", "--workdir", "/tmp", text=True, check=True)
    assert re.fullmatch(r"[a-z0-9]+\n", done.stdout), done.stdout
    box = done.stdout.strip()
    try:
        out = hearth.cli("exec", box, "--", "sh", "-c", "echo $A; pwd", text=True, check=True)
        assert out.stdout == "b\n/tmp\n"
        info = json.loads(hearth.cli("inspect", box, "--json", text=True, check=True).stdout)
        assert (info["id"], info["state"], info["memory_mib"]) == (box, "running", 128)
        listed = hearth.cli("ls", text=True, check=True).stdout
        assert box in listed and "running" in listed
        assert hearth.cli("logs", box).returncode == 0
    finally:
        hearth.cli("rm", box, check=True)
    assert hearth.cli("inspect", box).returncode == 1


def test_session_run_twice(hearth, box):
    first = hearth.cli("session", "run", box.id, "--session", "cli", "--", "cd /tmp; export X=1; f(){ echo $X; }")
    assert (first.returncode, first.stdout) == (0, b"")
    second = hearth.cli("session", "run", box.id, "--session", "cli", "--", "f; pwd", text=True)
    assert second.stdout == "1\n/tmp\n"
    assert "cli" in hearth.cli("session", "ls", box.id, text=True).stdout
    hearth.cli("session", "close", box.id, "--session", "cli", check=True)


def test_session_run_default_session_and_code(hearth, box):
    done = hearth.cli("session", "run", box.id, "--", "echo o; echo e >&2; (exit 5)")
    assert (done.stdout, done.stderr, done.returncode) == (b"o\n", b"e\n", 5)


def test_timeout_is_124_and_says_so(hearth, box):
    done = hearth.cli("exec", "--timeout", "500ms", box.id, "--", "sleep", "100")
    assert done.returncode == 124 and b"timed out" in done.stderr


def test_json_errors(hearth):
    done = hearth.cli("--json", "inspect", "nosuch")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "sandbox_not_found"


def test_help_for_every_verb(hearth):
    text = hearth.cli("help", text=True, check=True).stdout
    verbs = re.findall(r"^  ([a-z]+)\b", text, re.M)
    for verb in ("run", "create", "ls", "inspect", "exec", "shell", "session", "cp", "logs", "rm", "image",
                 "kernel", "doctor", "version"):
        assert verb in verbs, text
        done = hearth.cli(verb, "--help", text=True)
        assert done.returncode == 0 and verb in done.stdout


def test_completion_is_valid_bash_and_knows_the_verbs(hearth):
    script = hearth.cli("completion", "bash", text=True, check=True).stdout
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for verb in ("session", "doctor", "image"):
        assert verb in script


def test_doctor_and_version(hearth):
    report = json.loads(hearth.cli("doctor", "--json", text=True).stdout)
    names = {check["name"] for check in report["checks"]}
    assert names, report
    assert hearth.cli("version", text=True, check=True).stdout.startswith("hearth ")


def shell_reader(fd):
    seen = b""

    def expect(text, timeout=60):
        nonlocal seen
        deadline = time.monotonic() + timeout
        while text not in seen:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([fd], [], [], left)[0], (text, seen)
            try:
                seen += os.read(fd, 65536)
            except OSError:
                raise AssertionError((text, seen))
        head, _, seen = seen.partition(text)
        return head
    return expect


def test_shell_is_a_real_terminal(hearth, box):
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(hearth.env)
        os.execv(str(hearth.bin / "hearth"), ["hearth", "shell", box.id])
    expect = shell_reader(fd)
    import fcntl, struct, termios
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 133, 0, 0))
    os.write(fd, b"echo a$((1+1))b\n")
    expect(b"a2b")
    os.write(fd, b"stty size; echo MARK\n")
    expect(b"41 133")
    os.write(fd, b"sleep 100\n")
    time.sleep(0.3)
    os.write(fd, b"\x03")
    os.write(fd, b"echo code=$?\n")
    expect(b"code=130")
    os.write(fd, b"exit 6\n")
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 6


def test_daemon_starts_on_demand_once(workdir, cache, tmp_path):
    import shutil
    import tempfile
    from conftest import Hearth, processes_naming
    directory = tempfile.mkdtemp(prefix="a-", dir=workdir)
    h = Hearth(directory, cache)
    children = [h.popen("ls", "--json", stdout=subprocess.PIPE) for _ in range(4)]
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0 and json.loads(out)["sandboxes"] == []
    version = h.client.get("/v1/version")
    h.cli("daemon", "stop", check=True)
    wait_until(lambda: not os.path.exists(f"/proc/{version['pid']}"), "the daemon to end")
    assert not processes_naming(str(h.state))
    shutil.rmtree(directory)


def test_broken_pipe_is_quiet(hearth, box):
    done = subprocess.run(f"{hearth.bin}/hearth exec {box.id} -- seq 1000000 | head -1", shell=True,
                          capture_output=True, env=hearth.env, timeout=60)
    assert done.stdout == b"1\n" and b"rror" not in done.stderr


def test_sandbox_life_time_ends(hearth):
    box = hearth.create("base", timeout_sec=2)
    wait_until(lambda: box.id not in hearth.cli("ls", text=True).stdout or
               "stopped" in hearth.cli("ls", text=True).stdout, "the sandbox to end")
