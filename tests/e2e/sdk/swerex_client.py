"""Drives a sandbox through SWE-ReX's own client. Usage: swerex_client.py URL-OF-RUNTIME KEY"""
import asyncio
import os
import pathlib
import sys
import tempfile
import time
import traceback

from swerex.exceptions import (BashIncorrectSyntaxError, CommandTimeoutError, NonZeroExitCodeError,
                               SessionDoesNotExistError, SessionExistsError)
from swerex.runtime.abstract import (BashAction, BashInterruptAction, CloseBashSessionRequest, Command,
                                     CreateBashSessionRequest, ReadFileRequest, UploadRequest,
                                     WriteFileRequest)
from swerex.runtime.config import RemoteRuntimeConfig
from swerex.runtime.remote import RemoteRuntime

URL, KEY = sys.argv[1], sys.argv[2]
cases = []


def runtime(token=KEY):
    return RemoteRuntime.from_config(RemoteRuntimeConfig(auth_token=token, host=URL, port=None, timeout=10))


rex = runtime()


def case(fn):
    cases.append(fn)
    return fn


async def run(command, **kw):
    kw.setdefault("timeout", 60)
    return await rex.run_in_session(BashAction(command=command, **kw))


async def out(command, **kw):
    return (await run(command, **kw)).output


async def raises(kind, awaitable):
    try:
        await awaitable
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


@case
async def is_alive():
    assert (await rex.is_alive()).is_alive
    assert not (await runtime("e2b_" + "0" * 40).is_alive()).is_alive


@case
async def create_session():
    r = await rex.create_session(CreateBashSessionRequest())
    assert r.session_type == "bash"
    await raises(SessionExistsError, rex.create_session(CreateBashSessionRequest()))


@case
async def output_is_exact():
    for command, wanted in (("echo hello", "hello\n"), ("echo ''", "\n"), ("printf 'x'", "x"), ("echo ' a'", " a\n"),
                            ("true", ""), ("", ""), ("# nothing", ""), ("echo ü€😀", "ü€😀\n"),
                            ("echo err >&2", "err\n"), ("printf 'a\\tb\\n'", "a\tb\n")):
        got = await out(command)
        assert got == wanted, (command, got)


@case
async def colours_are_stripped():
    assert await out(r"printf '\033[31mred\033[0m\n'") == "red\n"


@case
async def invalid_utf8():
    assert await out(r"printf 'a\xffb\n'") == "a\\xffb\n"


@case
async def state_is_kept():
    await run("cd /tmp; export X=1; f() { echo f-$X; }; shopt -s extglob")
    assert await out("pwd; f") == "/tmp\nf-1\n"
    await run("cd /")


@case
async def multi_line():
    assert await out("for i in 1 2 3; do\n  echo $i\ndone\necho end") == "1\n2\n3\nend\n"
    assert await out("echo a\n\necho b # c\n") == "a\nb\n"


@case
async def here_document():
    assert await out("cat <<'EOF'\n$x `y`\n  z\nEOF\n") == "$x `y`\n  z\n"
    assert await out("cat <<EOF > /tmp/h\nline $((1+1))\nEOF\ncat /tmp/h") == "line 2\n"


@case
async def long_command():
    text = "x" * 200000
    assert await out(f"v='{text}'; echo ${{#v}}") == "200000\n"


@case
async def much_output():
    got = await out("seq 1 200000")
    assert got == "".join(f"{i}\n" for i in range(1, 200001)), len(got)


@case
async def check_modes():
    e = await raises(NonZeroExitCodeError, run("echo no; false", error_msg="oh"))
    assert "oh" in str(e) and "exit code 1" in str(e) and "no" in str(e), str(e)
    r = await run("(exit 42)", check="silent")
    assert r.exit_code == 42
    r = await run("false", check="ignore")
    assert r.exit_code is None
    assert (await run("true")).exit_code == 0


@case
async def syntax_error():
    e = await raises(BashIncorrectSyntaxError, run("echo ("))
    assert "syntax error" in e.extra_info["bash_stderr"], e.extra_info
    assert await out("echo fine") == "fine\n"


@case
async def background_returns_at_once():
    started = time.monotonic()
    await run("(sleep 30) &")
    assert time.monotonic() - started < 20
    await run("kill %1; wait", check="ignore")


@case
async def timeout_then_interrupt():
    e = await raises(CommandTimeoutError, run("echo before; sleep 600", timeout=2))
    assert "timeout after 2" in str(e), str(e)
    r = await rex.run_in_session(BashInterruptAction(timeout=2))
    assert r.exit_code == 0 and "before" in r.output, r
    assert await out("echo again") == "again\n"


@case
async def interrupt_of_what_ignores_it():
    await raises(CommandTimeoutError, run("trap '' INT; sleep 600", timeout=2))
    r = await rex.run_in_session(BashInterruptAction(timeout=0.5, n_retry=1))
    assert r.exit_code == 0, r
    await run("trap - INT", check="ignore")
    assert (await out("echo again")).endswith("again\n")


@case
async def interactive_python():
    r = await run("python3 -q", is_interactive_command=True, expect=[">>> "])
    assert r.expect_string == ">>> ", r
    r = await run("print(6*7)", is_interactive_command=True, expect=[">>> "])
    assert "42" in r.output, r
    r = await run("quit()", is_interactive_quit=True)
    assert r.exit_code == 0
    assert await out("echo shell") == "shell\n"


@case
async def interactive_at_once():
    """The prompt after a command may come when the next action is under way, and is not its end."""
    for _ in range(12):
        await run("true")
        r = await run("printf 'go%s\\n' on; read x", is_interactive_command=True, expect=["goon"])
        assert r.expect_string == "goon", r
        assert (await run("", is_interactive_quit=True)).exit_code == 0


@case
async def expect_in_a_command():
    r = await run("echo one; echo MARK; sleep 1; echo late", expect=["MARK"])
    assert r.expect_string == "MARK" and r.output == "one\n", r
    await asyncio.sleep(0)
    assert "late" in await out("wait; echo done")


@case
async def two_sessions():
    await rex.create_session(CreateBashSessionRequest(session="b"))
    await run("Y=b", session="b")
    assert await out("echo [$Y]") == "[]\n" and await out("echo [$Y]", session="b") == "[b]\n"
    await rex.close_session(CloseBashSessionRequest(session="b"))
    await raises(SessionDoesNotExistError, run("true", session="b"))
    await raises(SessionDoesNotExistError, rex.close_session(CloseBashSessionRequest(session="b")))


@case
async def startup_source():
    await rex.write_file(WriteFileRequest(path="/tmp/rc", content="S=sourced; echo from-rc\n"))
    r = await rex.create_session(CreateBashSessionRequest(session="s", startup_source=["/tmp/rc"], startup_timeout=20))
    assert "from-rc" in r.output, r
    assert await out("echo $S", session="s") == "sourced\n"
    await rex.close_session(CloseBashSessionRequest(session="s"))


@case
async def execute():
    r = await rex.execute(Command(command=["sh", "-c", "echo o; echo e >&2; exit 3"]))
    assert (r.stdout, r.stderr, r.exit_code) == ("o\n", "e\n", 3), r
    r = await rex.execute(Command(command="echo $HOME | tr a-z A-Z", shell=True))
    assert r.stdout.strip().isupper()
    r = await rex.execute(Command(command="echo o; echo e >&2", shell=True, merge_output_streams=True))
    assert r.stdout == "o\ne\n" and r.stderr == "", r
    r = await rex.execute(Command(command=["env"], env={"ONLY": "this"}))
    assert "ONLY=this" in r.stdout
    r = await rex.execute(Command(command=["pwd"], cwd="/usr"))
    assert r.stdout == "/usr\n"
    await raises(NonZeroExitCodeError, rex.execute(Command(command=["false"], check=True)))
    await raises(CommandTimeoutError, rex.execute(Command(command=["sleep", "60"], timeout=1)))
    await raises(FileNotFoundError, rex.execute(Command(command=["/no/such"])))


@case
async def files():
    await rex.write_file(WriteFileRequest(path="/tmp/d/e/f.txt", content="grün\n"))
    assert (await rex.read_file(ReadFileRequest(path="/tmp/d/e/f.txt"))).content == "grün\n"
    await raises(FileNotFoundError, rex.read_file(ReadFileRequest(path="/no/such")))
    await run(r"printf 'a\xffb' > /tmp/bad")
    await raises(ValueError, rex.read_file(ReadFileRequest(path="/tmp/bad")))
    r = await rex.read_file(ReadFileRequest(path="/tmp/bad", errors="backslashreplace"))
    assert r.content == "a\\xffb", r


@case
async def upload_file_and_directory():
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "sub/deep").mkdir(parents=True)
        (root / "a.bin").write_bytes(os.urandom(300000))
        (root / "sub/deep/b.txt").write_text("b")
        (root / "empty").mkdir()
        await rex.upload(UploadRequest(source_path=str(root / "a.bin"), target_path="/tmp/up/one.bin"))
        await rex.upload(UploadRequest(source_path=str(root), target_path="/tmp/up/dir"))
        size = await out("stat -c %s /tmp/up/one.bin; cmp /tmp/up/one.bin /tmp/up/dir/a.bin; cat /tmp/up/dir/sub/deep/b.txt")
        assert size == "300000\nb", size


@case
async def close():
    await rex.close()
    await raises(SessionDoesNotExistError, run("true"))


async def main():
    failed = 0
    for fn in cases:
        started = time.monotonic()
        try:
            await fn()
            print(f"ok {fn.__name__} {int(1000 * (time.monotonic() - started))} ms", flush=True)
        except BaseException:  # noqa: B036
            failed += 1
            print(f"FAIL {fn.__name__}: " + traceback.format_exc().replace("\n", " | "), flush=True)
    return 1 if failed else 0


sys.exit(asyncio.run(main()))
