"""Guests that break the protocol, and guests that break down."""
import os
import shutil
import tempfile
import time

import pytest

from client import ApiError
from conftest import BIN, Hearth, wait_until

# Takes PID 1's console out of its hands (root in the guest can) and writes to it.
STEAL = r"""
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
pidfd = libc.syscall(434, 1, 0)
port = None
def is_console(fd):
    end = socket.socket(fileno=fd)
    try:
        return end.family == socket.AF_VSOCK and bool(end.getpeername())
    except OSError:
        return False
    finally:
        end.detach()
for fd in os.listdir('/proc/1/fd'):
    target = os.readlink('/proc/1/fd/' + fd)
    if '/dev/vport' in target:
        port = libc.syscall(438, pidfd, int(fd), 0)
    elif target.startswith('socket:'):
        taken = libc.syscall(438, pidfd, int(fd), 0)
        if is_console(taken):
            port = taken
assert port is not None and port >= 0, ctypes.get_errno()
os.set_blocking(port, True)
def header(kind, stream, channel, offset, size):
    return (size.to_bytes(4, 'little') + bytes([kind, stream]) + b'\x48\x7e' +
            channel.to_bytes(4, 'little') + offset.to_bytes(8, 'little'))
"""
ATTACKS = {
    "garbage": "os.write(port, os.urandom(65536))",
    "half_frame_then_garbage": "os.write(port, header(2, 1, 1, 0, 60000) + b'x' * 10); os.write(port, os.urandom(200000))",
    "forged_channel": "os.write(port, header(2, 1, 0xdeadbeef, 0, 4) + b'evil')",
    "forged_control": "os.write(port, header(1, 0, 12345, 0, 3) + b'\\xff\\xff\\xff')",
    "huge_length": "os.write(port, header(2, 1, 1, 0, 0xffffffff))",
    "wrong_offset": "[os.write(port, header(2, 1, c, 1 << 60, 4) + b'evil') for c in range(1, 2000)]",
    "unknown_kind": "os.write(port, header(9, 0, 1, 0, 0))",
    "empty_control_flood": "[os.write(port, header(1, 0, 1, 0, 0)) for _ in range(100000)]",
    "sync_marks": "os.write(port, b'\\x7fHEARTH-SYNC\\x00\\xff\\r\\n' * 1000)",
}


def rss_kib(pid):
    return next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))


@pytest.mark.parametrize("name", ATTACKS)
def test_forged_bytes_fail_that_sandbox_alone(hearth, box, name):
    victim = hearth.create("base")
    before = rss_kib(hearth.daemon.pid)
    try:
        try:
            victim.exec("python3", "-c", STEAL + ATTACKS[name] + "\ntime.sleep(3)", http_timeout=60)
        except ApiError as error:
            assert error.code in ("guest_protocol_error", "sandbox_failed", "guest_gone"), error
        wait_until(lambda: victim.state() == "failed", "the sandbox to fail")
        info = hearth.client.get(victim.url)
        assert info["error"]["code"] == "guest_protocol_error", info["error"]
        assert info["error"]["message"]
        with pytest.raises(ApiError) as caught:
            victim.exec("true")
        assert caught.value.code in ("sandbox_failed", "guest_protocol_error")
        assert box.exec("echo", "unharmed")["stdout"] == "unharmed\n"
        assert rss_kib(hearth.daemon.pid) - before < 16 << 10
    finally:
        victim.remove()


def with_init(workdir, cache, name):
    directory = tempfile.mkdtemp(prefix="i-", dir=workdir)
    programs = os.path.join(directory, "bin")
    os.mkdir(programs)
    for program in ("hearth", "hearthd"):
        shutil.copy2(BIN / program, programs)
    shutil.copy2(BIN.parent / f"tests/init-{name}", os.path.join(programs, "hearth-init"))
    h = Hearth(directory, cache, programs)
    h.env["HEARTH_BOOT_TIMEOUT"] = "12"
    return h


@pytest.mark.parametrize("name,codes,word", [
    ("silent", ["guest_unresponsive"], "answer"),
    ("garbage", ["guest_unresponsive", "guest_protocol_error"], ""),
    ("syncs", ["guest_unresponsive", "guest_protocol_error"], ""),
    ("panic", ["guest_panic"], "panic"),
    ("fatal", ["guest_gone", "guest_panic"], "test says so"),
])
def test_guest_that_never_becomes_one(workdir, cache, name, codes, word):
    h = with_init(workdir, cache, name).start()
    try:
        before = rss_kib(h.daemon.pid)
        started = time.monotonic()
        with pytest.raises(ApiError) as caught:
            h.create("base")
        assert caught.value.code in codes, caught.value
        assert word in caught.value.message.lower(), caught.value
        assert time.monotonic() - started < 60
        assert h.client.get("/v1/sandboxes")["sandboxes"] == []
        assert h.client.get("/v1/templates")["templates"] == []
        assert rss_kib(h.daemon.pid) - before < 24 << 10
    finally:
        left = h.clean()
        shutil.rmtree(h.dir, ignore_errors=True)
        assert not left, left


CRASH_INIT = r"""
import re
for line in open('/proc/1/maps'):
    m = re.match(r'([0-9a-f]+)-([0-9a-f]+) r-xp', line)
    if m:
        start, end = (int(x, 16) for x in m.groups())
        with open('/proc/1/mem', 'r+b', buffering=0) as mem:
            mem.seek(start)
            mem.write(b'\0' * (end - start))
        break
"""


def test_guest_kernel_panic_is_said(hearth, box):
    victim = hearth.create("base")
    try:
        with pytest.raises(ApiError):
            victim.exec("python3", "-c", CRASH_INIT + "\nimport time; time.sleep(30)", http_timeout=60)
        wait_until(lambda: victim.state() == "failed", "the sandbox to fail")
        error = hearth.client.get(victim.url)["error"]
        assert error["code"] == "guest_panic" and "panic" in error["message"].lower(), error
        assert box.exec("echo", "ok")["stdout"] == "ok\n"
    finally:
        victim.remove()


def test_guest_that_prints_endlessly_does_not_fill_the_disk(hearth):
    victim = hearth.create("base")
    try:
        victim.exec("sh", "-c", "timeout 5 sh -c 'while :; do head -c 100000 /dev/zero | tr \"\\0\" x > /dev/kmsg; done' 2>/dev/null; true")
        size = sum(f.stat().st_blocks * 512 for f in (hearth.state / "sandboxes" / victim.id).rglob("*log*"))
        assert size < 4 << 20
        assert victim.exec("echo", "ok")["stdout"] == "ok\n"
    finally:
        victim.remove()


def test_power_off_from_inside_stops_it(hearth):
    victim = hearth.create("base")
    try:
        with pytest.raises(ApiError):
            victim.exec("python3", "-c", "import ctypes,time; ctypes.CDLL(None).reboot(0x4321fedc); time.sleep(20)",
                        http_timeout=60)
        wait_until(lambda: victim.state() in ("stopped", "failed"), "the sandbox to be stopped")
    finally:
        victim.remove()
