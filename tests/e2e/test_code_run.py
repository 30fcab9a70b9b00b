"""code_run on real guests: four languages, what a program may and may not do, and that nothing stays."""
import base64
import concurrent.futures
import json
import shutil
import signal
import socket
import tempfile
import threading
import time

import pytest
from client import ApiError
from conftest import Hearth, daemon_with_pool, processes_naming, wait_until
from test_port import ask, key_of, url_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def coder(workdir, cache):
    yield from daemon_with_pool(workdir, cache)


def run(h, language, code, headers=None, **more):
    return h.client.post("/v1/code_run", {"language": language, "code": code, **more}, headers=headers)


def boxes(h):
    return h.client.get("/v1/sandboxes")["sandboxes"]


def nothing_left(h):
    wait_until(lambda: not boxes(h), "no sandbox of a code_run is left", 30)


PROGRAMS = {
    "python": {
        "fine": "import sys\nprint('héllo', sys.argv)\nprint('warn', file=sys.stderr)",
        "out": "héllo ['main.py']\n",
        "exit": "import sys; sys.exit(7)",
        "raise": ("def f():\n    raise ValueError('oops')\nf()", ['"/sandbox/main.py", line 3', "ValueError: oops"]),
        "syntax": ("print(1", ["SyntaxError"]),
        "loop": "print('before', flush=False)\nwhile True: pass",
    },
    "javascript": {
        "fine": "const os = require('os'); console.log('héllo', typeof os.cpus); console.error('warn')",
        "out": "héllo function\n",
        "exit": "process.exit(7)",
        "raise": ("function f() {\n  throw new Error('oops');\n}\nf();", ["/sandbox/main.js:2", "Error: oops"]),
        "syntax": ("console.log(1", ["SyntaxError"]),
        "loop": "console.log('before'); for (;;) {}",
    },
    "typescript": {
        "fine": "import * as os from 'os';\nconst n: string = 'héllo';\ninterface A { x: number }\n"
                "console.log(n, typeof os.cpus); console.error('warn')",
        "out": "héllo function\n",
        "exit": "process.exit(7 as number)",
        "raise": ("type T = {\n  a: number;\n};\nfunction f(t: T) {\n  throw new Error('oops');\n}\nf({a: 1});",
                  ["main.ts:5", "Error: oops"]),
        "syntax": ("const x: = 1", ["main.ts:1:9", "ERROR"]),
        "loop": "console.log('before'); for (;;) {}",
    },
    "bash": {
        "fine": "echo héllo $BASH; echo warn >&2",
        "out": "héllo /usr/bin/bash\n",
        "exit": "exit 7",
        "raise": ("set -e\nno-such-command", ["main.sh: line 2: no-such-command: command not found"]),
        "syntax": ("if true; then", ["syntax error"]),
        "loop": "echo before; while :; do :; done",
    },
}


@pytest.mark.parametrize("language", PROGRAMS)
def test_language(coder, language):
    program = PROGRAMS[language]
    result = run(coder, language, program["fine"])
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (0, program["out"], "warn\n"), result
    assert result["timed_out"] is False and result["oom_killed"] is False
    assert result["truncated"] == {"stdout": False, "stderr": False} and "process_id" not in result
    assert run(coder, language, program["exit"])["exit_code"] == 7
    for kind in ("raise", "syntax"):
        code, wanted = program[kind]
        result = run(coder, language, code)
        assert result["exit_code"] != 0 and all(text in result["stderr"] for text in wanted), result


@pytest.mark.parametrize("language", PROGRAMS)
def test_time_out(coder, language):
    limit = 15000 if language.endswith("script") else 5000  # node's start takes seconds under emulation
    result = run(coder, language, PROGRAMS[language]["loop"], timeout_ms=limit)
    assert result["exit_code"] == 124 and result["timed_out"] is True
    assert result["stderr"].endswith("Execution timed out\n"), result
    assert result["stdout"] == "before\n"
    assert limit <= result["duration_ms"] < limit + 5000


STUBBORN = {
    "ignores SIGTERM": "trap '' TERM; while :; do sleep 0.1; done",
    "forks": "for i in 1 2 3 4 5; do (trap '' TERM; setsid sleep 1000) & done; echo forked; wait",
    "forks and forks": "f() { f & f & wait; }; f",
    "stops itself": "kill -STOP $$; echo never",
}


@pytest.mark.parametrize("kind", STUBBORN)
def test_time_out_of_the_stubborn(coder, kind):
    result = run(coder, "bash", STUBBORN[kind], timeout_ms=1500)
    assert result["exit_code"] == 124 and result["stderr"].endswith("Execution timed out\n"), result
    assert 1500 <= result["duration_ms"] < 8000
    nothing_left(coder)


def test_what_is_left_running_ends_with_the_program(coder):
    began = time.monotonic()
    result = run(coder, "bash", "(sleep 1000; echo late) & echo done")
    assert (result["exit_code"], result["stdout"]) == (0, "done\n")
    assert time.monotonic() - began < 20
    nothing_left(coder)


def test_input_files_and_bytes(coder):
    binary = bytes(range(256))
    result = run(coder, "python", "import sys, lib.util\nsys.stdout.buffer.write(lib.util.both(sys.stdin.buffer.read()))",
                 stdin={"base64": base64.b64encode(binary).decode()},
                 files={"lib/__init__.py": "", "lib/util.py": "def both(x): return x + open('data/x.bin', 'rb').read()",
                        "data/x.bin": {"base64": base64.b64encode(binary).decode()}})
    assert base64.b64decode(result["stdout_base64"]) == binary * 2, result
    result = run(coder, "typescript", "import { twice } from './lib';\nconsole.log(await twice(21));",
                 files={"lib.ts": "export async function twice(n: number): Promise<number> { return 2 * n }"})
    assert (result["exit_code"], result["stdout"]) == (0, "42\n"), result
    # More than a window, read late and not at all.
    text = "x" * 700_000
    assert run(coder, "bash", "sleep 0.5; wc -c", stdin=text)["stdout"].strip() == "700000"
    assert run(coder, "bash", "exec <&-; echo none", stdin=text)["stdout"] == "none\n"
    assert run(coder, "bash", "cat; echo end")["stdout"] == "end\n"  # without stdin there is none


WRITES = r"""
import os, errno
found = []
for path, dirs, files in os.walk('/'):
    if path.startswith(('/proc', '/sys')):
        dirs[:] = []
    for name in [path] + [os.path.join(path, d) for d in dirs]:
        try:
            fd = os.open(os.path.join(name, '.probe'), os.O_CREAT | os.O_WRONLY)
            os.close(fd); os.unlink(os.path.join(name, '.probe'))
            found.append(name)
        except OSError as e:
            assert e.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR), (name, e)
print(sorted(set(found)))
for name in ('/etc/passwd', '/usr/bin/python3', '/proc/sys/kernel/hostname', '/proc/1/comm', '/dev/vda', '/dev/vdb'):
    try:
        open(name, 'r+b').close(); print('opened', name)
    except OSError as e:
        pass
for option in (['-o', 'remount,rw', '/'], ['-t', 'tmpfs', 'x', '/mnt']):
    import subprocess
    print(subprocess.run(['mount', *option], capture_output=True).returncode != 0)
"""


def test_root_is_read_only(coder):
    result = run(coder, "python", WRITES, timeout_ms=120000)
    assert result["stdout"] == "['/dev/shm', '/sandbox']\nTrue\nTrue\n", result


def test_sandbox_directory_is_small(coder):
    result = run(coder, "python", f"""
import os
block, n = b'x' * {MIB}, 0
try:
    with open('big', 'wb', buffering=0) as f:
        while True:
            f.write(block); n += 1
except OSError as e:
    print(e.strerror, n)
os.unlink('big')
open('again', 'w').write('ok'); print(open('again').read(), os.getcwd(), os.environ['HOME'])
""")
    assert result["stdout"] == "No space left on device 64\nok /sandbox /sandbox\n", result


def test_no_new_privileges_and_no_rights(coder):
    result = run(coder, "bash", """
grep -E '^(NoNewPrivs|CapEff|CapPrm|Uid|Gid|Groups):' /proc/self/status
unshare -U true 2>/dev/null; echo userns $?
su -c true 2>/dev/null; echo su $?
""")
    lines = dict(line.split(":\t") for line in result["stdout"].splitlines() if ":\t" in line)
    assert lines["NoNewPrivs"] == "1" and int(lines["CapEff"], 16) == 0 and int(lines["CapPrm"], 16) == 0
    assert lines["Uid"].split() == ["1000"] * 4 and lines["Gid"].split() == ["1000"] * 4
    assert lines["Groups"].split() in ([], ["1000"])
    assert "su 0" not in result["stdout"]


def test_fifty_processes(coder):
    result = run(coder, "python", """
import os, errno, signal
children = []
try:
    while True:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except OSError as e:
    print(e.errno == errno.EAGAIN, len(children) + 1)
for pid in children:
    os.kill(pid, signal.SIGKILL)
""")
    assert result["stdout"] == "True 50\n", result


def test_memory_limit(coder):
    assert run(coder, "python", f"x = b'x' * {180 * MIB}; print(len(x) // {MIB})")["stdout"] == "180\n"
    result = run(coder, "python", f"x = [b'x' * {MIB} for _ in range(400)]; print('never')")
    assert result["exit_code"] == 137 and result["oom_killed"] is True and result["stdout"] == "", result
    # Of the whole tree, and files in memory count.
    result = run(coder, "bash", "for i in 1 2 3 4; do python3 -c \"x = b'x' * 90000000; input()\" "
                                "< <(sleep 6) & done; wait; echo survived")
    assert result["oom_killed"] is True, result


def test_no_network(coder):
    result = run(coder, "python", """
import socket, os
print(sorted(set(os.listdir('/sys/class/net')) - {'dummy0'}))  # which leads nowhere
print(open('/proc/net/route').read().count('\\n'))
for address in (('1.1.1.1', 53), ('10.0.2.2', 80), ('169.254.169.254', 80)):
    try:
        socket.create_connection(address, timeout=3); print('connected', address)
    except OSError as e:
        print(e.strerror)
try:
    socket.getaddrinfo('example.com', 80); print('resolved')
except OSError:
    print('no name')
""", timeout_ms=60000)
    assert result["stdout"] == "['lo']\n1\n" + 3 * "Network is unreachable\n" + "no name\n", result


def test_output_that_is_cut_is_said(coder):
    result = run(coder, "python", "import sys\nfor i in range(3000): print('é' * 600)\nprint('end', file=sys.stderr)")
    assert result["truncated"] == {"stdout": True, "stderr": False} and result["exit_code"] == 0
    assert MIB - 3 <= len(result["stdout"].encode()) <= MIB and "�" not in result["stdout"]
    assert result["stderr"] == f"end\n[stdout was cut after {MIB} bytes]\n"
    result = run(coder, "bash", "head -c 2000000 /dev/zero | tr '\\0' e >&2; head -c 2000000 /dev/urandom; sleep 100",
                 timeout_ms=3000)
    assert result["truncated"] == {"stdout": True, "stderr": True} and len(base64.b64decode(result["stdout_base64"])) == MIB
    assert result["stderr"].endswith(f"e\n[stdout was cut after {MIB} bytes]\n[stderr was cut after {MIB} bytes]\n"
                                     "Execution timed out\n"), result["stderr"][-200:]


def test_each_call_has_a_sandbox_of_its_own(coder):
    code = "ls -A; touch mark; cat /etc/machine-id; cat /proc/sys/kernel/random/boot_id"
    seen = [run(coder, "bash", code)["stdout"].split() for _ in range(3)]
    assert all(row[0] == "main.sh" and len(row) == 3 for row in seen), seen
    assert len({row[1] for row in seen}) == len({row[2] for row in seen}) == 3


def test_twenty_at_once(coder):
    languages = list(PROGRAMS)

    def one(i):
        code = {"python": f"print({i})", "bash": f"echo {i}"}.get(languages[i % 4], f"console.log({i})")
        return run(coder, languages[i % 4], code, timeout_ms=300000)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        results = list(pool.map(one, range(20)))
    assert [r["stdout"] for r in results] == [f"{i}\n" for i in range(20)], results
    nothing_left(coder)


def test_a_warm_one_is_quick(coder):
    """The pool's sandbox is taken: the answer does not wait for a machine."""
    def ready():
        pools = [p for p in coder.client.get("/v1/pools")["pools"] if p["image"] == "code"]
        return pools and pools[0]["ready"] > 0 and pools[0]
    run(coder, "bash", "true")
    times = []
    for _ in range(3):
        before = wait_until(ready, "a warm sandbox of image 'code'", 60)
        began = time.monotonic()
        assert run(coder, "bash", "echo hi")["stdout"] == "hi\n"
        times.append(time.monotonic() - began)
        after = [p for p in coder.client.get("/v1/pools")["pools"] if p["image"] == "code"][0]
        assert after["claims"] == before["claims"] + 1 and after["misses"] == before["misses"]
    print(f"warm code_run of bash: {min(times) * 1000:.0f} ms")


# ---- whose it is, and that it happens once ----

def test_keys_roles_and_quotas(coder):
    url = url_of(coder)
    body = {"language": "bash", "code": "sleep 2; echo mine"}
    assert ask(f"{url}/v1/code_run", None, "POST", body)[0] == 401
    viewer = key_of(coder, "--tenant", "one", "--role", "viewer")
    assert ask(f"{url}/v1/code_run", viewer, "POST", body)[0] == 403
    one = key_of(coder, "--tenant", "one", "--quota", "sandboxes=1")
    two = key_of(coder, "--tenant", "two")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(f"{url}/v1/code_run", one, "POST", body)))]
    threads[0].start()
    mine = wait_until(lambda: json.loads(ask(f"{url}/v1/sandboxes", one)[2])["sandboxes"], "it is listed")
    assert mine[0]["transient"] is True and mine[0]["image"] == "code"
    assert json.loads(ask(f"{url}/v1/sandboxes", two)[2])["sandboxes"] == []
    assert ask(f"{url}/v1/sandboxes/{mine[0]['id']}", two)[0] == 404
    assert ask(f"{url}/v1/code_run", one, "POST", body)[0] == 429
    threads[0].join()
    assert json.loads(answers[0][2])["stdout"] == "mine\n"
    # The next one does not meet the last one's removal.
    for _ in range(3):
        status, _, text = ask(f"{url}/v1/code_run", one, "POST", {"language": "bash", "code": "echo x"})
        assert status == 200, text


def test_once(coder):
    code = "head -c 8 /dev/urandom | od -An -tx1; head -c 20000 /dev/zero | tr '\\0' x >&2"
    first = run(coder, "bash", code, headers={"Idempotency-Key": "k1"})
    again = run(coder, "bash", code, headers={"Idempotency-Key": "k1"})
    assert first == again and first["stdout"].strip() and first["truncated"]["stderr"] is True
    assert len(first["stderr"]) < 17000
    with pytest.raises(ApiError) as error:
        run(coder, "bash", "true", headers={"Idempotency-Key": "k1"})
    assert error.value.code == "conflict"
    assert run(coder, "bash", code)["stdout"] != first["stdout"]


def begin(h, body, headers=""):
    """A connection whose request is sent and whose answer nobody has read."""
    data = json.dumps(body).encode()
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(h.socket))
    sock.sendall(b"POST /v1/code_run HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n" + headers.encode() +
                 b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return sock


def test_client_that_goes_leaves_nothing(coder):
    sock = begin(coder, {"language": "bash", "code": "sleep 500", "timeout_ms": 600000})
    wait_until(lambda: [b for b in boxes(coder) if b["state"] == "running"], "it runs")
    sock.close()
    nothing_left(coder)
    # Also while it is being made: more than the pool holds.
    socks = [begin(coder, {"language": "bash", "code": "sleep 500"}) for _ in range(6)]
    wait_until(lambda: len(boxes(coder)) == 6, "all are under way")
    for sock in socks:
        sock.close()
    nothing_left(coder)


def test_client_that_goes_and_will_ask_again(coder):
    body = {"language": "bash", "code": "sleep 1; echo kept"}
    sock = begin(coder, body, "Idempotency-Key: gone\r\n")
    wait_until(lambda: boxes(coder), "it is under way")
    sock.close()
    nothing_left(coder)
    assert run(coder, "bash", body["code"], headers={"Idempotency-Key": "gone"})["stdout"] == "kept\n"


def test_removed_under_it(coder):
    sock = begin(coder, {"language": "bash", "code": "sleep 500"})
    box = wait_until(lambda: [b for b in boxes(coder) if b["state"] == "running"], "it runs")[0]
    coder.client.delete(f"/v1/sandboxes/{box['id']}")
    sock.settimeout(30)
    assert b"HTTP/1.1 4" in sock.recv(4096) or b"HTTP/1.1 5" in sock.recv(4096)
    sock.close()
    nothing_left(coder)


def test_daemon_killed_in_the_middle(own):
    own.client.post("/v1/code_run", {"language": "bash", "code": "true"})
    for how in (signal.SIGKILL, signal.SIGTERM):
        sock = begin(own, {"language": "bash", "code": "sleep 500", "timeout_ms": 600000})
        box = wait_until(lambda: [b for b in boxes(own) if b["state"] == "running"], "it runs")[0]
        own.daemon.send_signal(how)
        own.daemon.wait(60)
        sock.close()
        own.start()
        nothing_left(own)
        wait_until(lambda: not processes_naming(box["id"]), "its machine is gone", 15)


# ---- what is refused ----

@pytest.mark.parametrize("body", [
    {}, {"language": "python"}, {"code": "x"}, {"language": "perl", "code": "x"}, {"language": "python", "code": 1},
    {"language": "python", "code": "x", "timeout_ms": 0}, {"language": "python", "code": "x", "timeout_ms": 600001},
    {"language": "python", "code": "x", "files": []}, {"language": "python", "code": "x", "files": {"../a": ""}},
    {"language": "python", "code": "x", "files": {"/etc/a": ""}}, {"language": "python", "code": "x", "files": {"": ""}},
    {"language": "python", "code": "x", "files": {"main.py": ""}}, {"language": "python", "code": "x", "files": {"a": 1}},
    {"language": "python", "code": "x", "files": {"a/./b": ""}}, {"language": "python", "code": "x", "stdin": 1},
    {"language": "python", "code": "x", "files": {str(i): "" for i in range(65)}}, {"language": "python", "code": "x", "root": 1},
])
def test_bad_requests(coder, body):
    with pytest.raises(ApiError) as error:
        coder.client.post("/v1/code_run", body)
    assert error.value.status == 400 and error.value.code == "invalid_argument", error.value


def test_missing_image_says_how_to_make_it(workdir):
    from conftest import private_cache
    directory = tempfile.mkdtemp(prefix="m-", dir=workdir)
    h = Hearth(directory, private_cache(directory)).start()
    try:
        with pytest.raises(ApiError) as error:
            run(h, "bash", "true")
        assert error.value.status == 404 and error.value.code == "image_not_found"
        assert "hearth image code" in error.value.message
        assert boxes(h) == []
    finally:
        assert not h.clean()
        shutil.rmtree(directory)


def test_command_line(coder, tmp_path):
    def cli(*args, **kw):
        done = coder.cli("code-run", *args, **kw)
        return done.returncode, done.stdout, done.stderr
    assert cli("-l", "bash", "-c", "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")
    script = tmp_path / "x.py"
    script.write_text("import sys; sys.stdout.buffer.write(b'\\xff' + sys.stdin.buffer.read())")
    assert cli("-i", script, input=b"in\xfe") == (0, b"\xffin\xfe", b"")
    assert cli("-l", "javascript", input=b"console.log(1 + 1)") == (0, b"2\n", b"")
    code, out, err = cli("-l", "bash", "--timeout", "1s", "-c", "sleep 60")
    assert (code, out, err) == (124, b"", b"Execution timed out\n")
    done = coder.cli("code-run", "--json", "-l", "bash", "-c", "echo x", text=True)
    assert json.loads(done.stdout)["stdout"] == "x\n"
    assert cli("-c", "x")[0] == 2 or b"--language" in cli("-c", "x")[2]
    assert cli("/no/such.py")[0] == 1


def test_metrics_have_its_histogram(coder):
    text = coder.client.get("/metrics", raw=True).decode()
    assert 'hearth_http_request_duration_seconds_bucket{api="native",method="POST",route="/v1/code_run"' in text, \
        [line for line in text.splitlines() if "code_run" in line][:3]
