"""Drives Hearth through the unmodified E2B SDK for Python.

With the argument "binary" its Connect clients are given the binary codec of their own library instead of JSON.
"""
import hashlib
import os
import sys
import time

import e2b
import e2b.envd.process.process_pb as pb
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from protobuf import Oneof
from e2b import CommandExitException, Sandbox

from cases import case, end

if sys.argv[1:] == ["binary"]:
    import connectrpc.codec
    import e2b.envd.client_sync
    e2b.envd.client_sync.ENVD_JSON_CODEC = connectrpc.codec.proto_binary_codec()

sbx = Sandbox.create("base", timeout=120, metadata={"owner": "py"}, envs={"FROM_CREATE": "yes"})


def raises(kind, fn):
    try:
        fn()
    except kind as e:
        return e
    raise AssertionError(f"no {kind.__name__}")


def until(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@case("create, is_running")
def _():
    assert sbx.sandbox_id.isalnum() and sbx.is_running()


@case("commands: output and exit code")
def _():
    r = sbx.commands.run("echo out; echo err >&2")
    assert (r.exit_code, r.stdout, r.stderr) == (0, "out\n", "err\n")


@case("commands: non-zero exit raises")
def _():
    e = raises(CommandExitException, lambda: sbx.commands.run("echo x; exit 7"))
    assert (e.exit_code, e.stdout) == (7, "x\n")


@case("commands: user, cwd, envs")
def _():
    assert sbx.commands.run("id -un; pwd").stdout == "user\n/home/user\n"
    assert sbx.commands.run("id -un", user="root").stdout == "root\n"
    assert sbx.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sbx.commands.run("echo $FROM_CREATE $A", envs={"A": "b"}).stdout == "yes b\n"


@case("commands: streaming")
def _():
    seen = []
    sbx.commands.run("echo one; sleep 0.3; echo two", on_stdout=seen.append)
    assert "".join(seen) == "one\ntwo\n" and len(seen) >= 2


@case("commands: time-out")
def _():
    raises(e2b.TimeoutException, lambda: sbx.commands.run("sleep 60", timeout=1))


@case("commands: background, wait, kill")
def _():
    h = sbx.commands.run("sleep 0.2; echo bg", background=True)
    assert h.wait().stdout == "bg\n"
    k = sbx.commands.run("sleep 600", background=True)
    assert k.kill()
    raises(CommandExitException, k.wait)
    assert not sbx.commands.kill(k.pid)


@case("commands: stdin")
def _():
    h = sbx.commands.run("read x; echo got $x", background=True, stdin=True)
    sbx.commands.send_stdin(h.pid, "hello\n")
    assert h.wait().stdout == "got hello\n"


@case("commands: list, connect")
def _():
    h = sbx.commands.run("sleep 0.5; echo later", background=True)
    assert any(p.pid == h.pid for p in sbx.commands.list())
    assert "later\n" in sbx.commands.connect(h.pid).wait().stdout


@case("pty")
def _():
    out = bytearray()
    t = sbx.pty.create(e2b.PtySize(rows=24, cols=80))
    sbx.pty.send_stdin(t.pid, b"stty size; exit\n")
    t.wait(on_pty=out.extend)
    assert b"24 80" in out, bytes(out)


def stream_input(pid, pieces, kind="stdin", start=True):
    """A StreamInput call of the SDK's own client. Pieces: bytes, or None for a keepalive."""
    def messages():
        event = pb.StreamInputRequest.StartEvent(process=pb.ProcessSelector(selector=Oneof("pid", pid)))
        if start:
            yield pb.StreamInputRequest(event=Oneof("start", event))
        for piece in pieces:
            if piece is None:
                yield pb.StreamInputRequest(event=Oneof("keepalive", pb.StreamInputRequest.KeepAlive()))
                continue
            data = pb.StreamInputRequest.DataEvent(input=pb.ProcessInput(input=Oneof(kind, piece)))
            yield pb.StreamInputRequest(event=Oneof("data", data))
    return sbx.commands._rpc.stream_input(messages(), timeout_ms=60000)


def refused(code, fn):
    assert raises(ConnectError, fn).code == code


@case("stream input: in order, byte exact, faster than it is read")
def _():
    data = os.urandom(3 << 20)
    h = sbx.commands.run("sleep 0.5; head -c 3145728 | sha256sum; cat", background=True, stdin=True)
    stream_input(h.pid, [None, *(data[i:i + 200000] for i in range(0, len(data), 200000)), b"tail"])
    sbx.commands.close_stdin(h.pid)
    assert h.wait().stdout == hashlib.sha256(data).hexdigest() + "  -\ntail"


if hasattr(sbx.commands, "stream_input"):  # newer SDKs
    @case("stream input: the SDK's own method")
    def _():
        h = sbx.commands.run("read a b; echo $b $a", background=True, stdin=True)
        sbx.commands.stream_input(h.pid, ["one ", b"two", "\n"])
        assert h.wait().stdout == "two one\n"
        raises(e2b.NotFoundException, lambda: sbx.commands.stream_input(h.pid, ["x"]))


@case("stream input: a terminal")
def _():
    out = bytearray()
    t = sbx.pty.create(e2b.PtySize(rows=24, cols=80))
    stream_input(t.pid, [b"echo $((40", b"+2))\n", None, b"exit\n"], kind="pty")
    t.wait(on_pty=out.extend)
    assert b"\r42\r\n" in out, bytes(out)


@case("stream input: errors")
def _():
    refused(Code.NOT_FOUND, lambda: stream_input(999999, [b"x"]))
    h = sbx.commands.run("sleep 60", background=True, stdin=True)
    refused(Code.INVALID_ARGUMENT, lambda: stream_input(h.pid, [b"x"], start=False))
    refused(Code.INVALID_ARGUMENT, lambda: stream_input(h.pid, [b"x"], kind="pty"))
    # It has no reader left in the middle of the stream.
    def pieces():
        yield b"first"
        h.kill()
        yield b"x" * (1 << 20)
        yield b"x" * (1 << 20)
    refused(Code.NOT_FOUND, lambda: stream_input(h.pid, pieces()))
    n = sbx.commands.run("sleep 60", background=True)
    refused(Code.INTERNAL, lambda: stream_input(n.pid, [b"x"]))
    n.kill()


@case("files: write, read, formats")
def _():
    info = sbx.files.write("a.txt", "hello")
    assert info.path == "/home/user/a.txt"
    assert sbx.files.read("a.txt") == "hello"
    assert bytes(sbx.files.read("a.txt", format="bytes")) == b"hello"
    assert b"".join(sbx.files.read("a.txt", format="stream")) == b"hello"
    sbx.files.write("/tmp/empty", "")
    assert sbx.files.read("/tmp/empty") == ""


@case("files: many at once")
def _():
    made = sbx.files.write_files([{"path": "m/1", "data": "one"}, {"path": "/tmp/m2", "data": b"two"}])
    assert [m.path for m in made] == ["/home/user/m/1", "/tmp/m2"]
    assert sbx.files.read("/tmp/m2") == "two"


@case("files: 16 MiB both ways")
def _():
    data = os.urandom(16 << 20)
    sbx.files.write("/tmp/big", data, request_timeout=300)
    assert sbx.commands.run("sha256sum < /tmp/big").stdout.split()[0] == hashlib.sha256(data).hexdigest()
    assert bytes(sbx.files.read("/tmp/big", format="bytes", request_timeout=300)) == data


@case("files: list, info, exists, make_dir, rename, remove")
def _():
    assert sbx.files.make_dir("x/y") and not sbx.files.make_dir("x/y")
    sbx.files.write("x/f", "1")
    assert [e.name for e in sbx.files.list("x")] == ["f", "y"]
    info = sbx.files.get_info("x/f")
    assert (info.owner, info.size, info.permissions) == ("user", 1, "-rw-r--r--")
    assert sbx.files.rename("x/f", "x/g").path == "/home/user/x/g"
    assert sbx.files.exists("x/g") and not sbx.files.exists("x/f")
    sbx.files.remove("x")
    assert not sbx.files.exists("x")


@case("files: errors")
def _():
    missing = getattr(e2b, "FileNotFoundException", e2b.NotFoundException)
    raises(missing, lambda: sbx.files.read("/no/such"))
    raises(e2b.InvalidArgumentException, lambda: sbx.files.read("/tmp"))
    raises(e2b.InvalidArgumentException, lambda: sbx.files.list("/etc/passwd"))


@case("files: watch by asking")
def _():
    sbx.files.make_dir("w")
    w = sbx.files.watch_dir("w")
    sbx.files.write("w/f", "1")
    seen = []

    def arrived():
        seen.extend(w.get_new_events())
        return any(e.name == "f" for e in seen)
    until(arrived, "the event of the new file")
    w.stop()


@case("info, timeout, metrics, list")
def _():
    info = sbx.get_info()
    assert info.sandbox_id == sbx.sandbox_id and info.metadata == {"owner": "py"}
    sbx.set_timeout(300)
    assert 280 < (sbx.get_info().end_at.timestamp() - time.time()) < 310
    assert sbx.get_metrics()[0].mem_total > 0
    page = Sandbox.list(query=e2b.SandboxQuery(metadata={"owner": "py"})).next_items()
    assert [s.sandbox_id for s in page] == [sbx.sandbox_id]


@case("pause, connect, memory is kept")
def _():
    sbx.files.write("/dev/shm/m", "kept")
    assert sbx.pause() is not False
    assert sbx.get_info().state == e2b.SandboxState.PAUSED
    again = Sandbox.connect(sbx.sandbox_id)
    assert again.files.read("/dev/shm/m") == "kept"


@case("snapshot and a sandbox of it")
def _():
    s = sbx.create_snapshot()
    b = Sandbox.create(s.snapshot_id, timeout=60)
    assert b.files.read("/dev/shm/m") == "kept"
    assert b.kill()
    assert Sandbox.delete_snapshot(s.snapshot_id)


@case("errors: key, not found, killed")
def _():
    raises(e2b.AuthenticationException, lambda: Sandbox.create("base", api_key="e2b_" + "0" * 40))
    raises(e2b.NotFoundException, lambda: Sandbox.connect("inosuchsandbox"))
    assert sbx.kill() and not sbx.kill()
    assert not sbx.is_running()


end()
