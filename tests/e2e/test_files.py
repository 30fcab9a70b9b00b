"""File operations, copies, watch and dial."""
import hashlib
import json
import os
import socket

import pytest

from client import ApiError, UnixConnection


def test_write_read_stat(box):
    data = os.urandom(100_000)
    box.write("/tmp/f1", data, mode="0640")
    assert box.read("/tmp/f1") == data
    info = box.stat("/tmp/f1")
    assert (info["type"], info["size"], info["mode"]) == ("file", 100_000, "0640")


def test_large_file_both_ways(box):
    data = os.urandom(1 << 20) * 32
    box.write("/tmp/large", data)
    assert hashlib.sha256(box.read("/tmp/large")).digest() == hashlib.sha256(data).digest()
    assert box.exec("sha256sum", "/tmp/large")["stdout"].split()[0] == hashlib.sha256(data).hexdigest()


def test_empty_file(box):
    box.write("/tmp/empty", b"")
    assert box.read("/tmp/empty") == b"" and box.stat("/tmp/empty")["size"] == 0


def test_read_range(box):
    box.write("/tmp/range", b"0123456789")
    assert box.read("/tmp/range", offset=3, length=4) == b"3456"


def test_append_and_exclusive(box):
    box.write("/tmp/ap", b"a")
    box.write("/tmp/ap", b"b", append="true")
    assert box.read("/tmp/ap") == b"ab"
    with pytest.raises(ApiError) as caught:
        box.write("/tmp/ap", b"c", exclusive="true")
    assert caught.value.code == "already_exists"


def test_parents(box):
    with pytest.raises(ApiError) as caught:
        box.write("/tmp/no/such/dir/f", b"x")
    assert caught.value.code == "path_not_found" and "/tmp/no/such/dir" in caught.value.message
    box.write("/tmp/made/deep/dir/f", b"x", parents="true")
    assert box.read("/tmp/made/deep/dir/f") == b"x"


def test_list_mkdir_move_remove(box):
    box.client.post(f"{box.url}/files/mkdir", {"path": "/tmp/d1/d2", "parents": True}, raw=True)
    box.write("/tmp/d1/a", b"1")
    box.client.post(f"{box.url}/files/symlink", {"target": "a", "path": "/tmp/d1/l"}, raw=True)
    names = {e["path"]: e["type"] for e in box.list("/tmp/d1")}
    assert names == {"d2": "directory", "a": "file", "l": "symlink"}
    box.client.post(f"{box.url}/files/move", {"from": "/tmp/d1/a", "to": "/tmp/d1/d2/b"}, raw=True)
    deep = {e["path"] for e in box.list("/tmp/d1", depth=2)}
    assert deep == {"d2", "d2/b", "l"}
    with pytest.raises(ApiError):
        box.client.delete(f"{box.url}/files", query={"path": "/tmp/d1"}, raw=True)
    box.client.delete(f"{box.url}/files", query={"path": "/tmp/d1", "recursive": "true"}, raw=True)
    with pytest.raises(ApiError) as caught:
        box.stat("/tmp/d1")
    assert caught.value.code == "path_not_found"


def test_directory_with_many_entries(box):
    box.exec("sh", "-c", "mkdir -p /tmp/many; cd /tmp/many; seq 1 3000 | xargs touch")
    assert len(box.list("/tmp/many")) == 3000


def test_strange_names(box):
    for name in ("sp ace", "quo'te", "new\nline", "ünï", "-dash", "*"):
        box.write(f"/tmp/strange-{name}", name.encode())
        assert box.read(f"/tmp/strange-{name}") == name.encode()


def test_rights_of_the_user_are_used(box):
    box.write("/tmp/rootonly", b"secret", mode="0600")
    with pytest.raises(ApiError) as caught:
        box.read("/tmp/rootonly", user="user")
    assert caught.value.code == "permission_denied"
    box.write("/home/user/mine", b"x", user="user")
    assert box.stat("/home/user/mine")["uid"] == 1000


@pytest.mark.parametrize("path,code", [("/tmp", "path_is_directory"), ("/no/such", "path_not_found"),
                                       ("/etc/passwd/x", "path_not_directory"), ("", "invalid_argument"),
                                       ("relative", "invalid_argument")])
def test_bad_reads(box, path, code):
    with pytest.raises(ApiError) as caught:
        box.read(path)
    assert caught.value.code == code, caught.value


def test_attributes(box):
    box.write("/tmp/attr", b"x")
    box.client.post(f"{box.url}/files/attr", {"path": "/tmp/attr", "mode": "0751", "uid": 1000, "gid": 33,
                                              "mtime_nsec": 1_500_000_000_123_456_789}, raw=True)
    info = box.stat("/tmp/attr")
    assert (info["mode"], info["uid"], info["gid"]) == ("0751", 1000, 33)
    assert box.exec("stat", "-c", "%Y", "/tmp/attr")["stdout"] == "1500000000\n"


def test_watch(box):
    box.exec("mkdir", "-p", "/tmp/watched")
    connection = UnixConnection(box.client.path, 30)
    connection.request("GET", f"{box.url}/files/watch?path=/tmp/watched&recursive=true")
    answer = connection.getresponse()
    assert json.loads(answer.readline())["kind"] == "armed"
    box.exec("sh", "-c", "echo x > /tmp/watched/new; mkdir /tmp/watched/sub")
    seen = set()
    while not {("create", "new"), ("create", "sub")} <= seen:
        event = json.loads(answer.readline())
        seen.add((event["kind"], event["path"].rsplit("/", 1)[-1]))
    box.exec("rm", "/tmp/watched/new")
    while ("remove", "new") not in seen:
        event = json.loads(answer.readline())
        seen.add((event["kind"], event["path"].rsplit("/", 1)[-1]))
    connection.close()


def test_dial_reaches_a_service_on_guest_loopback(box):
    server = ("import socket\ns=socket.socket(); s.bind(('127.0.0.1',8099)); s.listen(); print('up',flush=True)\n"
              "c,_=s.accept(); d=b''\nwhile True:\n  x=c.recv(65536)\n  if not x: break\n  d+=x\n"
              "c.sendall(d[::-1]); c.close()")
    stream = box.stream("python3", "-c", server)
    from client import STDOUT
    assert stream.wait_for(STDOUT) == b"up\n"
    dialled = box.client.upgrade(f"{box.url}/dial", {"port": 8099})
    data = os.urandom(200_000)
    dialled.sock.sendall(data)
    dialled.sock.shutdown(socket.SHUT_WR)
    got = dialled.data
    while True:
        chunk = dialled.sock.recv(65536)
        if not chunk:
            break
        got += chunk
    assert got == data[::-1]
    assert stream.finish()[2]["exit_code"] == 0


def test_dial_to_a_closed_port(box):
    with pytest.raises(ApiError) as caught:
        box.client.upgrade(f"{box.url}/dial", {"port": 9})
    assert caught.value.code == "unavailable", caught.value


def test_cli_cp_files_and_trees(hearth, box, tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub/deep").mkdir(parents=True)
    (tree / "a").write_bytes(os.urandom(70_000))
    (tree / "sub/run").write_text("#!/bin/sh\necho ran\n")
    (tree / "sub/run").chmod(0o755)
    (tree / "sub/deep/link").symlink_to("../run")
    hearth.cli("cp", tree, f"{box.id}:/tmp/copied", check=True)
    assert box.exec("/tmp/copied/sub/deep/link")["stdout"] == "ran\n"
    hearth.cli("cp", f"{box.id}:/tmp/copied", tmp_path / "back", check=True)
    assert (tmp_path / "back/a").read_bytes() == (tree / "a").read_bytes()
    assert os.readlink(tmp_path / "back/sub/deep/link") == "../run"
    assert (tmp_path / "back/sub/run").stat().st_mode & 0o777 == 0o755
    done = hearth.cli("cp", "-", f"{box.id}:/tmp/std", input=b"from stdin")
    assert done.returncode == 0 and box.read("/tmp/std") == b"from stdin"
    assert hearth.cli("cp", f"{box.id}:/tmp/std", "-").stdout == b"from stdin"
    missing = hearth.cli("cp", f"{box.id}:/tmp/nothing-here", tmp_path / "x")
    assert missing.returncode == 1 and b"/tmp/nothing-here" in missing.stderr
