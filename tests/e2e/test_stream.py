"""Large output, stalled readers, and how little the daemon keeps of either."""
import hashlib
import os
import subprocess

import pytest

from client import STDOUT

SCRIPT = ("import sys,hashlib\nn=int(sys.argv[1]); h=hashlib.sha256(); b=bytes(range(256))*256\n"
          "w=sys.stdout.buffer\nwhile n>0:\n c=b[:n]; w.write(c); h.update(c); n-=len(c)\n"
          "w.flush(); sys.stderr.write(h.hexdigest())")


def rss_kib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1])


def receive(hearth, box, size):
    child = hearth.popen("exec", box.id, "--", "python3", "-c", SCRIPT, str(size), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    digest, total = hashlib.sha256(), 0
    while chunk := child.stdout.read(1 << 20):
        digest.update(chunk)
        total += len(chunk)
    err = child.stderr.read().decode()
    assert child.wait(60) == 0
    return total, digest.hexdigest(), err


def test_64_mib_of_output_is_exact(hearth, box):
    total, here, there = receive(hearth, box, 64 << 20)
    assert total == 64 << 20 and here == there


@pytest.mark.full
def test_1_gib_of_output_is_exact_and_the_daemon_stays_small(hearth, box):
    before = rss_kib(hearth.daemon.pid)
    total, here, there = receive(hearth, box, 1 << 30)
    grown = rss_kib(hearth.daemon.pid) - before
    print(f"1 GiB, daemon grew by {grown} KiB")
    assert total == 1 << 30 and here == there
    assert grown < 32 << 10


def test_a_stalled_reader_stalls_only_itself(hearth, box):
    before = rss_kib(hearth.daemon.pid)
    stalled = [box.stream("sh", "-c", "yes") for _ in range(8)]
    for stream in stalled:
        stream.wait_for(STDOUT)
    for i in range(20):
        assert box.exec("echo", str(i))["stdout"] == f"{i}\n"
    total, here, there = receive(hearth, box, 8 << 20)
    assert here == there
    assert rss_kib(hearth.daemon.pid) - before < 32 << 10
    for stream in stalled:
        stream.close()


def test_stalled_session_reader_stalls_only_its_session(box):
    box.session("stall")
    stream = box.run_stream("yes", session="stall")
    stream.wait_for(STDOUT)
    assert box.run("echo ok")["stdout"] == "ok\n"
    stream.close()
    box.client.delete(f"{box.url}/sessions/stall", raw=True)
