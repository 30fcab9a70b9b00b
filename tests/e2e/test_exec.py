"""What exec promises, on a real guest."""
import base64
import hashlib
import json
import struct

import pytest

from client import ApiError, ERROR, EXIT, RESIZE, SIGNAL, STARTED, STDERR, STDIN_EOF, STDOUT

# argv of `sh -c`, stdout, stderr (None: not compared), exit code
CASES = {
    "streams_and_code": ("echo out; echo err >&2; exit 7", "out\n", "err\n", 7),
    "success": ("true", "", "", 0),
    "code_1": ("exit 1", "", "", 1),
    "code_126": ("exit 126", "", "", 126),
    "code_127": ("exit 127", "", "", 127),
    "code_124": ("exit 124", "", "", 124),
    "code_128": ("exit 128", "", "", 128),
    "code_255": ("exit 255", "", "", 255),
    "sigterm": ("kill -TERM $$", "", "", 143),
    "sigkill": ("kill -KILL $$", "", "", 137),
    "sigsegv": ("kill -SEGV $$", "", "", 139),
    "sighup": ("kill -HUP $$", "", "", 129),
    "sigpipe_default": ("kill -PIPE $$", "", "", 141),
    "closed_stdin": ("exec <&-; cat 2>/dev/null; echo $?", "1\n", None, 0),
    "closed_stdout": ("exec >&-; echo x 2>/dev/null; exit 3", "", None, 3),
    "closed_all": ("exec <&- >&- 2>&-; exit 4", "", "", 4),
    "stdin_is_null": ("cat; echo eof", "eof\n", "", 0),
    "setsid_child": ("setsid sh -c 'echo s'; echo p", "s\np\n", "", 0),
    "background_holds_pipe": ("sleep 60 & echo now", "now\n", "", 0),
    "double_fork": ("(sleep 60 &) ; echo now", "now\n", "", 0),
    "nul_free_binary": ("printf '\\001\\002\\177'", "\x01\x02\x7f", "", 0),
    "no_newline": ("printf x", "x", "", 0),
    "uid_root": ("id -u", "0\n", "", 0),
    "cwd_root_home": ("pwd", "/root\n", "", 0),
    "path_is_set": ("command -v ls >/dev/null && echo yes", "yes\n", "", 0),
    "home_is_set": ("echo $HOME", "/root\n", "", 0),
    "own_session": ("ps -o sid= -p $$ | grep -qw $$ && echo leader", "leader\n", "", 0),
    "no_extra_descriptors": ("ls /proc/$$/fd | tr '\\n' ' '", None, "", 0),
    "stopped_child_does_not_block": ("sleep 60 & kill -STOP $!; echo ok", "ok\n", "", 0),
    "proc_sys_dev": ("test -e /proc/self && test -d /sys/kernel && test -c /dev/null && test -c /dev/ptmx && echo ok", "ok\n", "", 0),
    "tmp_is_sticky": ("stat -c %a /tmp", "1777\n", "", 0),
    "run_is_tmpfs": ("stat -f -c %T /run", "tmpfs\n", "", 0),
    "loopback_is_up": ("cat /sys/class/net/lo/operstate; cat /sys/class/net/lo/flags", "unknown\n0x9\n", "", 0),
    "dev_fd": ("echo x | cat /dev/fd/0", "x\n", "", 0),
    "dev_shm": ("echo x > /dev/shm/t && cat /dev/shm/t && rm /dev/shm/t", "x\n", "", 0),
    "user_exists": ("getent passwd user | cut -d: -f1,3,6", "user:1000:/home/user\n", "", 0),
    "root_is_writable": ("echo x > /rootfile && cat /rootfile && rm /rootfile", "x\n", "", 0),
    "rlimit_core_sane": ("ulimit -n", None, "", 0),
    "zombies_are_reaped": ("i=0; while [ $i -lt 20 ]; do (sleep 0 &) ; i=$((i+1)); done; sleep 0.5; ps -eo stat= | grep -c '^Z'; true", "0\n", "", 0),
    "python_works": ("python3 -c 'import ssl, json, sqlite3; print(6*7)'", "42\n", "", 0),
    "git_works": ("cd /tmp && rm -rf g && git init -q g && cd g && git -c user.name=a -c user.email=b commit -q --allow-empty -m x && git log --oneline | wc -l", "1\n", None, 0),
    "hostname_is_the_id": ("hostname", None, "", 0),
    "machine_id": ("wc -c < /etc/machine-id", "33\n", "", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_case(box, name):
    text, stdout, stderr, code = CASES[name]
    result = box.exec("sh", "-c", text)
    assert result["exit_code"] == code, result
    if stdout is not None:
        assert result["stdout"] == stdout
    if stderr is not None:
        assert result["stderr"] == stderr
    assert not result["timed_out"]


def test_argv_is_passed_byte_for_byte(box):
    argv = ["", " ", "a b", "'", '"', "\\", "$HOME", "*", "\n", "é", "-n", "--"]
    result = box.exec("python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *argv)
    assert json.loads(result["stdout"]) == argv


def test_environment_is_passed(box):
    result = box.exec("python3", "-c", "import os, json; print(json.dumps(dict(os.environ)))",
                      env={"A": "1", "B": "x=y\nz", "EMPTY": ""})
    env = json.loads(result["stdout"])
    assert (env["A"], env["B"], env["EMPTY"]) == ("1", "x=y\nz", "")
    assert "PATH" in env and env["HOME"] == "/root" and env["USER"] == "root"


def test_64_kib_environment(box):
    value = "v" * 65536
    result = box.exec("sh", "-c", "printf %s \"$BIG\" | wc -c", env={"BIG": value})
    assert result["stdout"].strip() == "65536"


def test_200_kb_command_line(box):
    arguments = ["a" * 1000] * 200
    result = box.exec("sh", "-c", "echo $#", "sh", *arguments)
    assert result["stdout"] == "200\n"


BAD = {
    "command_not_found": ({"argv": ["no-such-command"]}, "command_not_found", "no-such-command"),
    "absolute_not_found": ({"argv": ["/no/such"]}, "command_not_found", "/no/such"),
    "not_executable": ({"argv": ["/etc/passwd"]}, "command_not_executable", "/etc/passwd"),
    "directory": ({"argv": ["/etc"]}, "command_not_executable", "/etc"),
    "cwd_missing": ({"argv": ["true"], "cwd": "/no/such/dir"}, "cwd_not_found", "/no/such/dir"),
    "cwd_is_a_file": ({"argv": ["true"], "cwd": "/etc/passwd"}, "cwd_not_found", "/etc/passwd"),
    "unknown_user": ({"argv": ["true"], "user": "nobody-here"}, "user_not_found", "nobody-here"),
    "long_argument": ({"argv": ["echo", "x" * 300 * 1024]}, "limit_exceeded", "argument"),
    "nul_in_argument": ({"argv": ["echo", "a\0b"]}, "invalid_argument", "argv"),
    "nul_in_environment": ({"argv": ["true"], "env": {"A": "x\0y"}}, "invalid_argument", "A"),
    "equals_in_env_name": ({"argv": ["true"], "env": {"A=B": "x"}}, "invalid_argument", "A=B"),
    "empty_argv": ({"argv": []}, "invalid_argument", "argv"),
    "argv_not_a_list": ({"argv": "ls"}, "invalid_argument", "argv"),
    "unknown_key": ({"argv": ["true"], "colour": 1}, "invalid_argument", "colour"),
    "negative_timeout": ({"argv": ["true"], "timeout_ms": -1}, "invalid_argument", "timeout_ms"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_the_thing(box, name):
    body, code, word = BAD[name]
    with pytest.raises(ApiError) as caught:
        box.client.post(f"{box.url}/exec", body)
    assert caught.value.code == code, caught.value
    assert word in caught.value.message, caught.value
    assert box.exec("echo", "fine")["stdout"] == "fine\n"


@pytest.mark.parametrize("user,expected", [("root", "0 0"), ("user", "1000 1000"), ("1000", "1000 1000"),
                                           ("1234:56", "1234 56"), ("www-data", "33 33"),
                                           ("user:root", "1000 0")])
def test_users(box, user, expected):
    result = box.exec("sh", "-c", "echo $(id -u) $(id -g)", user=user)
    assert result["stdout"].strip() == expected


def test_supplementary_groups(hearth):
    from conftest import shared_sandbox
    box = shared_sandbox(hearth, "ash")
    assert box.exec("id", "-G", user="app")["stdout"].split() == ["501", "600"]


def test_user_cannot_become_root(box):
    assert box.exec("sh", "-c", "cat /etc/shadow; echo x > /etc/x", user="user")["exit_code"] != 0


def test_timeout_kills_the_tree_and_keeps_output(box):
    result = box.exec("sh", "-c", "echo part; trap '' TERM INT; setsid sleep 300 & sleep 300", timeout_ms=600)
    assert result["timed_out"] and result["exit_code"] == 124
    assert result["stdout"] == "part\n"
    left = box.exec("sh", "-c", "ps -eo args= | grep -c '[s]leep 300'; true")
    assert left["stdout"] == "0\n"


def test_natural_124(box):
    result = box.exec("sh", "-c", "exit 124", timeout_ms=60000)
    assert result["exit_code"] == 124 and not result["timed_out"]


def test_out_of_memory_is_said(fresh):
    result = fresh.exec("python3", "-c", "x = bytearray(150 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1",
                        memory_max_bytes=64 << 20)
    assert result["oom_killed"] and result["exit_code"] == 137
    assert fresh.exec("echo", "alive")["stdout"] == "alive\n"


def test_guest_out_of_memory_leaves_the_sandbox_usable(fresh):
    result = fresh.exec("python3", "-c", "x = []\nwhile True: x.append(bytearray(b'x' * (8 << 20)))",
                        http_timeout=240)
    assert result["exit_code"] in (137, 1), result
    assert result["oom_killed"] or "MemoryError" in result["stderr"]
    assert fresh.exec("echo", "alive")["stdout"] == "alive\n"


def test_pids_limit(box):
    result = box.exec("sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 5 & done; wait", pids_max=4)
    assert result["exit_code"] != 0 or "fork" in result["stderr"].lower()


def test_stdin_bytes_arrive(box):
    data = bytes(range(256)) * 2000
    stream = box.stream("sha256sum", stdin=True)
    frames = stream.write_stdin(data)
    stream.send(STDIN_EOF)
    out, err, result = stream.finish(frames=frames)
    assert out.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_echo_interleaved(box):
    stream = box.stream("cat", stdin=True)
    for i in range(50):
        line = f"line {i}\n".encode()
        stream.write_stdin(line)
        got = b""
        while len(got) < len(line):
            got += stream.wait_for(STDOUT)
        assert got == line
    stream.send(STDIN_EOF)
    assert stream.finish()[2]["exit_code"] == 0


def test_command_that_never_reads_stdin_does_not_block_us(box):
    stream = box.stream("sh", "-c", "sleep 0.5; echo done", stdin=True)
    stream.write_stdin(b"x" * 60000)
    assert stream.finish()[0] == b"done\n"


@pytest.mark.parametrize("signo,code", [(1, 129), (2, 130), (3, 131), (9, 137), (10, 138), (15, 143)])
def test_signals_pass(box, signo, code):
    stream = box.stream("sh", "-c", "echo up; exec sleep 300")
    stream.wait_for(STDOUT)
    stream.send(SIGNAL, bytes([signo]))
    assert stream.finish()[2]["exit_code"] == code


def test_trapped_signal(box):
    stream = box.stream("sh", "-c", "trap 'echo got; exit 5' TERM; echo up; while :; do sleep 0.1; done")
    stream.wait_for(STDOUT)
    stream.send(SIGNAL, bytes([15]))
    out, err, result = stream.finish()
    assert out == b"got\n" and result["exit_code"] == 5


def test_tty(box):
    stream = box.stream("sh", "-c", "tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo all",
                        tty=True, rows=33, cols=99, stdin=True)
    out, err, result = stream.finish()
    lines = out.decode().replace("\r", "").split()
    assert lines[0].startswith("/dev/pts/") and lines[1:] == ["33", "99", "all"] and err == b""


def test_tty_resize(box):
    stream = box.stream("sh", "-c", "trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.1; done",
                        tty=True, stdin=True)
    while b"up" not in stream.wait_for(STDOUT):
        pass
    stream.send(RESIZE, struct.pack(">HH", 50, 120))
    assert b"50 120" in stream.finish()[0]


def test_tty_control_c(box):
    stream = box.stream("sh", "-c", "echo up; exec sleep 300", tty=True, stdin=True)
    while b"up" not in stream.wait_for(STDOUT):
        pass
    stream.write_stdin(b"\x03")
    assert stream.finish()[2]["exit_code"] == 130


def test_no_tty_without_asking(box):
    assert box.exec("sh", "-c", "test -t 1 || echo no")["stdout"] == "no\n"


def test_invalid_utf8_comes_as_base64(box):
    result = box.exec("printf", r"a\377\000b")
    assert base64.b64decode(result["stdout_base64"]) == b"a\xff\x00b"


def test_output_split_at_every_byte(box):
    data = ("aé日😀\n" * 3).encode()
    script = ("import os,sys\nd=sys.argv[1].encode()\n"
              "for i in range(1,len(d)):\n os.write(1,d[:i]); os.write(1,d[i:])\n")
    result = box.exec("python3", "-c", script, data.decode())
    assert result["stdout"].encode() == data * (len(data) - 1)


def test_100k_lines(box):
    result = box.exec("sh", "-c", "seq 100000")
    assert result["stdout"] == "".join(f"{i}\n" for i in range(1, 100001))


def test_truncation_is_said(box):
    result = box.exec("sh", "-c", "head -c 9000000 /dev/zero | tr '\\0' x; exit 3")
    assert result["truncated"]["stdout"] and not result["truncated"]["stderr"]
    assert len(result["stdout"]) == 8 << 20 and result["exit_code"] == 3


def test_detached_process_is_listed_attached_and_signalled(box):
    started = box.client.post(f"{box.url}/exec",
                              {"argv": ["sh", "-c", "echo hi; sleep 300"], "detach": True})
    listed = box.client.get(f"{box.url}/processes")["processes"]
    mine = [p for p in listed if p["process_id"] == started["process_id"]]
    assert mine and mine[0]["running"]
    stream = box.client.upgrade(f"{box.url}/processes/{started['process_id']}/attach", {})
    assert stream.wait_for(STDOUT) == b"hi\n"
    box.client.post(f"{box.url}/processes/{started['process_id']}/signal", {"signal": "TERM", "tree": True},
                    raw=True)
    assert stream.finish()[2]["exit_code"] == 143


def test_many_at_once(box):
    streams = [box.stream("sh", "-c", f"sleep 0.2; echo {i}") for i in range(40)]
    assert [s.finish()[0] for s in streams] == [f"{i}\n".encode() for i in range(40)]


def test_disk_full_is_the_commands_error(hearth):
    small = hearth.create("base", disk_mib=64)
    try:
        result = small.exec("sh", "-c", "dd if=/dev/zero of=/big bs=1M count=200")
        assert result["exit_code"] != 0 and "No space left" in result["stderr"]
        assert small.exec("sh", "-c", "rm /big; echo ok")["stdout"] == "ok\n"
    finally:
        small.remove()


def test_image_with_a_single_static_binary(hearth):
    box = hearth.create("single")
    try:
        result = box.exec("/single", "9")
        assert (result["stdout"], result["stderr"], result["exit_code"]) == ("single uid=0 args=1\n", "to stderr\n", 9)
        assert box.exec("/single", user="user")["stdout"] == "single uid=1000 args=0\n"
        with pytest.raises(ApiError) as caught:
            box.run("echo")
        assert caught.value.code == "no_shell"
    finally:
        box.remove()


def test_pid_1_comes_before_programs(box):
    """It is a real-time process and what it starts is not: a guest that is all busy hears its host."""
    policy = "rev /proc/{}/stat | cut -d' ' -f12 | rev"  # from the end: a name may hold blanks
    assert box.exec("sh", "-c", policy.format(1))["stdout"] == "1\n"
    assert box.exec("sh", "-c", policy.format("self"))["stdout"] == "0\n"
    assert box.run(policy.format("$$"))["stdout"] == "0\n"
    for _ in range(5):  # while much comes out it is one among all: no longer than that
        assert box.exec("seq", "50000")["exit_code"] == 0
        assert box.exec("sh", "-c", policy.format(1))["stdout"] == "1\n"


def test_idle_guest_uses_no_cpu(box):
    import time
    pid = box.client.get(box.url)["pid"]

    def ticks():
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    time.sleep(1)
    before = ticks()
    time.sleep(3)  # the thing measured is the passing of time
    assert ticks() - before <= 30, "over 10 % of a core while idle"
