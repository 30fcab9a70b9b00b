"""Forks: memory, processes, sessions and disk as they were, an identity of its own for each child."""
import hashlib
import json
import os
import threading
import time

import pytest

from client import PATIENCE, STDOUT, ApiError, Sandbox, UnixConnection
from conftest import processes_naming, wait_until
from witness import COUNTER, stored, used_ones_go


def children(hearth, answer):
    return [Sandbox(hearth.client, info) for info in answer["sandboxes"]]


def vmms(hearth):
    return [pid for pid in processes_naming(str(hearth.state)) if pid != hearth.daemon.pid]


IDENTITY = "cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname; head -c 16 /dev/urandom | od -An -tx1"


def test_children_are_copies_with_identities_of_their_own(own):
    box = own.create("base", name="parent")
    data = os.urandom(4 << 20)
    box.write("/root/disk", data)
    box.write("/dev/shm/memory", data)
    box.run("cd /tmp; v=kept; f() { echo $v; }; sleep 1000 & job=$!")
    box.run(COUNTER)
    before = box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname")["stdout"]
    forked = children(own, own.client.post(f"{box.url}/fork", {"count": 4, "name": "kid"}))
    assert sorted(kid.info["name"] for kid in forked) == ["kid-1", "kid-2", "kid-3", "kid-4"]
    seen, digest = set(), hashlib.sha256(data).hexdigest()
    for kid in [*forked, box]:
        assert kid.run("f; pwd; kill -0 $job && echo alive")["stdout"] == "kept\n/tmp\nalive\n"
        sums = kid.exec("sha256sum", "/root/disk", "/dev/shm/memory")["stdout"].split()[::2]
        assert sums == [digest, digest]
        counted = kid.exec("sh", "-c", "awk 'NR != $1 { print \"bad\"; exit } END { print NR }' /root/count")["stdout"]
        assert int(counted) > 0
        words = tuple(kid.run(IDENTITY)["stdout"].split("\n"))
        assert not seen & set(words[:-1]), words
        seen |= set(words[:-1])
        asked = time.time()
        assert asked - 1 < float(kid.exec("date", "+%s.%N")["stdout"]) < time.time() + 1
    assert box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname")["stdout"] == before
    # Each goes its own way, and none is seen by the others.
    for number, kid in enumerate(forked):
        kid.run(f"v=child{number}; echo {number} > /root/mine")
    assert [kid.run("f; cat /root/mine")["stdout"] for kid in forked] == [f"child{i}\n{i}\n" for i in range(4)]
    assert box.run("f; ls /root/mine 2>/dev/null; true")["stdout"] == "kept\n"
    used_ones_go(own)
    for kid in [box, *forked]:
        kid.remove()
    wait_until(lambda: stored(own) == [], "the fork's snapshot to go")


def test_streams_of_the_parent_go_on(own):
    """An open stream does not notice a fork; its child has the command too."""
    box = own.create("base")
    stream = box.run_stream("for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.2; done; (exit 4)")
    wait_until(lambda: stream.recv()[0] == 1, "output to begin")
    kid, = children(own, own.client.post(f"{box.url}/fork"))
    out, _, result = stream.finish()
    assert result["exit_code"] == 4 and out.endswith(b"9\n10\n")
    expected = b"".join(f"{i}\n".encode() for i in range(1, 11))
    out, _, result = own.client.upgrade(f"{kid.url}/sessions/default/attach", {}).finish()
    assert out == expected and result["exit_code"] == 4
    box.remove()
    kid.remove()


ECHO = """import socket
s = socket.socket(); s.bind(('127.0.0.1', 8099)); s.listen(); print('up', flush=True)
c, _ = s.accept()
while data := c.recv(65536):
    c.sendall(data)
"""


def read_exactly(sock, size):
    data = b""
    while len(data) < size:
        chunk = sock.recv(min(65536, size - len(data)))
        assert chunk, f"ended after {len(data)} of {size} bytes"
        data += chunk
    return data


def test_transfers_and_connections_of_the_parent_go_on(own):
    """An upload, a download, a watch and a connection to a port, all in their midst while it is forked, twice."""
    box = own.create("base")
    data = os.urandom(6 << 20)
    box.write("/tmp/down", data)
    server = box.stream("python3", "-c", ECHO)
    assert server.wait_for(STDOUT) == b"up\n"
    echo = own.client.upgrade(f"{box.url}/dial", {"port": 8099}).sock
    up, down, watch = (UnixConnection(own.client.path, 60 * PATIENCE) for _ in range(3))
    up.putrequest("PUT", f"{box.url}/files?path=/tmp/up")
    up.putheader("Content-Length", str(len(data)))
    up.endheaders()
    down.request("GET", f"{box.url}/files?path=/tmp/down")
    answer, got = down.getresponse(), b""
    watch.request("GET", f"{box.url}/files/watch?path=/tmp")
    events = watch.getresponse()
    assert b"armed" in events.readline()
    third = len(data) // 3
    for turn in range(3):
        up.send(data[turn * third:(turn + 1) * third])
        echo.sendall(data[turn * 1000:(turn + 1) * 1000])
        got += answer.read(third)
        if turn < 2:
            kid, = children(own, own.client.post(f"{box.url}/fork"))
            kid.remove()
    assert got + answer.read() == data
    assert up.getresponse().status < 300 and box.read("/tmp/up") == data
    assert read_exactly(echo, 3000) == data[:3000]
    box.exec("touch", "/tmp/seen")
    while b"seen" not in events.readline():
        continue
    for connection in (up, down, watch, echo):
        connection.close()
    assert server.finish()[2]["exit_code"] == 0
    box.remove()


def test_requests_meanwhile_wait_and_are_answered(own):
    box = own.create("base")
    stop, failed, done = threading.Event(), [], [0]

    def busy():
        while not stop.is_set():
            try:
                assert box.exec("echo", "x")["stdout"] == "x\n"
                assert box.run("echo y")["stdout"] == "y\n"
                done[0] += 1
            except Exception as error:
                failed.append(error)
                return
    thread = threading.Thread(target=busy)
    thread.start()
    for _ in range(4):
        for kid in children(own, own.client.post(f"{box.url}/fork")):
            kid.remove()
    stop.set()
    thread.join()
    assert not failed and done[0] > 0, failed
    box.remove()


def test_one_that_sleeps_is_forked_asleep(own):
    box = own.create("base")
    box.run("v=kept")
    own.client.post(f"{box.url}/hibernate")
    kids = children(own, own.client.post(f"{box.url}/fork", {"count": 2}))
    assert box.state() == "paused"
    assert [kid.run("echo $v")["stdout"] for kid in kids] == ["kept\n"] * 2
    assert box.run("echo $v")["stdout"] == "kept\n"
    for kid in [box, *kids]:
        kid.remove()
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_child_of_a_child_and_sleep_of_a_child(own):
    box = own.create("base")
    box.run("v=1")
    kid, = children(own, own.client.post(f"{box.url}/fork"))
    kid.run("v=$((v+1))")
    box.remove()  # nobody needs the parent
    grandkid, = children(own, own.client.post(f"{kid.url}/fork"))
    own.client.post(f"{kid.url}/hibernate")
    assert grandkid.run("v=$((v+1)); echo $v")["stdout"] == "3\n"
    assert kid.run("echo $v")["stdout"] == "2\n"
    kid.remove()
    grandkid.remove()


def test_all_or_none(own):
    box = own.create("base", name="taken-2")
    with pytest.raises(ApiError) as error:
        own.client.post(f"{box.url}/fork", {"count": 3, "name": "taken"})
    assert error.value.code == "already_exists"
    wait_until(lambda: len(own.client.get("/v1/sandboxes")["sandboxes"]) == 1, "the other children to go")
    for body in ({"count": 0}, {"count": 257}, {"name": "A B"}, {"from": "nothing"}, {"what": 1}):
        with pytest.raises(ApiError) as error:
            own.client.post(f"{box.url}/fork", body)
        assert error.value.status in (400, 404), error.value
    assert box.exec("echo", "ok")["stdout"] == "ok\n"
    box.remove()
    wait_until(lambda: stored(own) == [], "no snapshot to be left")


def test_daemon_killed_during_a_fork_leaves_no_half_child(own):
    box = own.create("base")
    box.run("n=0")
    for number, delay in enumerate((0.0, 0.1, 0.25, 0.45, 0.7), 1):
        def fork():
            try:
                own.client.post(f"{box.url}/fork", {"count": 2})
            except Exception:
                pass  # the daemon dies under it
        thread = threading.Thread(target=fork)
        thread.start()
        time.sleep(delay)  # the moment is what varies
        own.kill()
        thread.join()
        own.start()
        assert box.run("n=$((n+1)); echo $n")["stdout"] == f"{number}\n"
        for info in own.client.get("/v1/sandboxes")["sandboxes"]:
            assert info["state"] == "running", info
            if info["id"] != box.id:
                own.client.delete(f"/v1/sandboxes/{info['id']}", raw=True)
        wait_until(lambda: len(vmms(own)) == 1 and stored(own) == [], "nothing to be left of the fork")
    box.remove()


def test_command_line(own):
    box = own.create("base")
    ids = own.cli("fork", box.id, "-n", "2", "--name", "k", check=True, text=True).stdout.split()
    assert len(ids) == 2
    shown = json.loads(own.cli("fork", box.id, "--json", check=True).stdout)
    assert shown[0]["state"] == "running"
    assert own.cli("fork").returncode == 2
    for name in (*ids, shown[0]["id"]):
        own.cli("rm", name, check=True)
    box.remove()
