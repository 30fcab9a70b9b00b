"""What a session promises, with bash, dash and busybox ash as the image's shell."""
import itertools
import json
import re

import pytest

from client import ApiError, SIGNAL, STARTED, STDERR, STDIN_EOF, STDOUT

counter = itertools.count()


@pytest.fixture
def sh(shell_box):
    """A fresh session; sh(text) runs a command in it."""
    name = f"t{next(counter)}"
    shell_box.session(name)

    def run(text, **options):
        return shell_box.run(text, session=name, **options)
    run.box = shell_box
    run.name = name
    run.shell = shell_box.shell
    yield run
    shell_box.client.delete(f"{shell_box.url}/sessions/{name}", raw=True)


# name, commands; each command is (text, stdout, exit code); None: not compared
STATE = {
    "cwd_env_functions": [("cd /tmp; export X=1; f(){ echo $X; }", "", 0), ("f; pwd", "1\n/tmp\n", 0)],
    "plain_variable": [("a=5", "", 0), ("echo $a", "5\n", 0)],
    "unset": [("a=5", "", 0), ("unset a; echo \"[$a]\"", "[]\n", 0)],
    "umask": [("umask 077", "", 0), ("umask", "0077\n", 0)],
    "exported_reaches_children": [("export Q=zz", "", 0), ("env | grep '^Q='", "Q=zz\n", 0)],
    "not_exported_stays": [("q=zz", "", 0), ("env | grep '^q=' ; true", "", 0)],
    "status_of_previous": [("false", "", 1), ("echo $?", "1\n", 0)],
    "status_of_exit_code": [("sh -c 'exit 42'", "", 42), ("echo $?", "42\n", 0)],
    "positional_parameters": [("set -- a b c", "", 0), ("echo $# $2", "3 b\n", 0)],
    "trap_survives": [("trap 'echo usr1' USR1", "", 0), ("kill -USR1 $$; :", "usr1\n", 0)],
    "alias_or_function_redefined": [("g(){ echo one; }", "", 0), ("g(){ echo two; }", "", 0), ("g", "two\n", 0)],
    "pid_is_stable": [("echo $$ > /tmp/pid.$$; p=$$", "", 0), ("test \"$p\" = $$ && echo same", "same\n", 0)],
    "background_job_lives_on": [("sleep 300 & b=$!", "", 0), ("kill -0 $b && echo alive; kill $b", "alive\n", 0)],
    "last_background_pid": [("sleep 300 &", "", 0), ("kill $! && echo ok", "ok\n", 0)],
    "open_descriptor": [("exec 7>/tmp/fd7.$$", "", 0), ("echo hi >&7; cat /tmp/fd7.$$", "hi\n", 0)],
    "redirected_stdout": [("exec 5>&1 >/tmp/out.$$", "", 0), ("echo hidden", "", 0), ("exec >&5; cat /tmp/out.$$", "hidden\n", 0)],
    "deleted_cwd": [("mkdir /tmp/gone.$$; cd /tmp/gone.$$; rmdir /tmp/gone.$$", "", 0), ("echo still here", "still here\n", 0), ("cd /; pwd", "/\n", 0)],
    "newline_in_cwd": [("d=$(printf '/tmp/a\\nb.%s' $$); mkdir \"$d\"; cd \"$d\"", "", 0), ("test \"$PWD\" = \"$d\" && echo same", "same\n", 0)],
    "ifs_changed": [("IFS=:", "", 0), ("x=a:b; set -- $x; echo $1", "a\n", 0), ("echo fine", "fine\n", 0)],
    "noglob": [("set -f", "", 0), ("echo /*", "/*\n", 0)],
    "nounset": [("set -u", "", 0), ("echo ok", "ok\n", 0)],
    "cdpath": [("mkdir -p /tmp/cdp/x; CDPATH=/tmp/cdp; export CDPATH", "", 0), ("cd x >/dev/null; pwd", "/tmp/cdp/x\n", 0)],
    "functions_named_like_builtins": [("read(){ echo fake; }; printf(){ echo fake; }; echo(){ command echo mine; }", "", 0), ("echo x", "mine\n", 0), ("echo y", "mine\n", 0)],
}


@pytest.mark.parametrize("name", STATE)
def test_state(sh, name):
    for text, stdout, code in STATE[name]:
        result = sh(text)
        assert result["exit_code"] == code, (text, result)
        if stdout is not None:
            assert result["stdout"] == stdout, (text, result)
        assert not result["shell_exited"], (text, result)


# name: text, stdout, stderr (None: not compared), exit code
SINGLE = {
    "streams_apart": ("echo out; echo err >&2", "out\n", "err\n", 0),
    "multi_line": ("echo a\necho b\n\necho c", "a\nb\nc\n", "", 0),
    "heredoc": ("cat <<EOF\nline $((1+1))\nEOF", "line 2\n", "", 0),
    "heredoc_quoted": ("cat <<'EOF'\n$HOME `x` \"q\" 'r'\nEOF", "$HOME `x` \"q\" 'r'\n", "", 0),
    "heredoc_with_marker_like_text": ("cat <<'X'\n0 0 /tmp\nEXIT\nX", "0 0 /tmp\nEXIT\n", "", 0),
    "single_quotes": ("echo 'it'\"'\"'s'", "it's\n", "", 0),
    "backslashes": (r"printf '%s\n' 'a\b\\c'", "a\\b\\\\c\n", "", 0),
    "leading_dash": ("-x 2>/dev/null; echo $?", "127\n", "", 0),
    "empty": ("", "", "", 0),
    "only_comment": ("# nothing", "", "", 0),
    "only_newlines": ("\n\n\n", "", "", 0),
    "trailing_backslash_newline": ("echo a\\\nb", "ab\n", "", 0),
    "semicolon_and_background": ("echo a; sleep 0 & wait; echo b", "a\nb\n", "", 0),
    "pipeline_status": ("true | false", "", "", 1),
    "subshell_exit": ("(exit 9)", "", "", 9),
    "no_newline_at_end": ("printf abc", "abc", "", 0),
    "command_not_found": ("no-such-command-here", "", None, 127),
    "not_executable": ("/etc/passwd", "", None, 126),
    "natural_124": ("exit_code() { return 124; }; exit_code", "", "", 124),
    "status_255": ("sh -c 'exit 255'", "", "", 255),
    "killed_by_signal": ("sh -c 'kill -KILL $$'", "", None, 137),
    "killed_by_term": ("sh -c 'kill -TERM $$'", "", None, 143),
    "stdin_is_empty": ("cat; echo done", "done\n", "", 0),
    "read_gets_eof": ("read x; echo \"$? [$x]\"", "1 []\n", "", 0),
    "tab_and_bell": ("printf 'a\\tb\\007c'", "a\tb\x07c", "", 0),
    "stdout_closed": ("echo x >&- 2>/dev/null; echo after", "after\n", "", 0),
    "setsid_child": ("setsid sh -c 'echo from setsid'; wait", "from setsid\n", "", 0),
    "glob": ("cd /; echo /et?", "/etc\n", "", 0),
    "arithmetic": ("echo $((6*7))", "42\n", "", 0),
    "control_descriptors_are_closed": ("(echo x >&3) 2>/dev/null || echo no3; (echo x >&4) 2>/dev/null || echo no4", "no3\nno4\n", "", 0),
    "no_control_variables_exported": ("env | grep -i hearth | grep -v HOSTNAME; true", "", "", 0),
    "loop_with_break": ("while :; do break; done; echo out", "out\n", "", 0),
    "case": ("case abc in a*) echo yes;; esac", "yes\n", "", 0),
    "command_substitution": ("echo \"$(echo a; echo b)\"", "a\nb\n", "", 0),
    "long_line_of_output": ("i=0; while [ $i -lt 2000 ]; do printf 0123456789; i=$((i+1)); done; echo", "0123456789" * 2000 + "\n", "", 0),
}


@pytest.mark.parametrize("name", SINGLE)
def test_single(sh, name):
    text, stdout, stderr, code = SINGLE[name]
    result = sh(text)
    assert result["exit_code"] == code, result
    assert result["stdout"] == stdout
    if stderr is not None:
        assert result["stderr"] == stderr
    assert not result["timed_out"] and not result["shell_exited"]
    follow = sh("echo next")
    assert (follow["stdout"], follow["exit_code"]) == ("next\n", 0)


SYNTAX = ["if", "echo 'open", "foo(", "case x in", "done", ")", "echo \"open", "cat <<", "f() {", "&&", "for"]


@pytest.mark.parametrize("text", SYNTAX)
def test_syntax_errors_do_not_end_the_shell(sh, text):
    sh("keep=me")
    result = sh(text)
    if not (text == "cat <<"):
        assert result["exit_code"] != 0, result
    assert not result["shell_exited"], result
    assert sh("echo $keep")["stdout"] == "me\n"


def test_exit_codes_0_to_255(sh):
    got = [sh(f"sh -c 'exit {n}'")["exit_code"] for n in range(256)]
    assert got == list(range(256))


def test_exit_ends_the_shell_and_the_session_goes_on(sh):
    sh("cd /tmp; export KEPT=yes")
    result = sh("echo bye; exit 7")
    assert result["exit_code"] == 7 and result["stdout"] == "bye\n"
    assert result["shell_exited"]
    follow = sh("echo $KEPT; pwd")
    if not result["state_lost"]:
        assert follow["stdout"] == "yes\n/tmp\n"
    assert follow["exit_code"] == 0


def test_set_e_ends_the_shell_with_the_failing_status(sh):
    result = sh("set -e; echo before; sh -c 'exit 3'; echo after")
    assert result["stdout"] == "before\n", result
    assert result["exit_code"] == 3 and result["shell_exited"]
    assert sh("echo again")["stdout"] == "again\n"


def test_set_e_in_a_condition_keeps_its_meaning(sh):
    result = sh("set -e; false || echo caught; if false; then :; fi; echo end")
    assert result["stdout"] == "caught\nend\n" and not result["shell_exited"]
    sh("set +e")


def test_exec_replaces_the_shell(sh):
    result = sh("exec sh -c 'echo replaced; exit 5'")
    assert result["stdout"] == "replaced\n" and result["exit_code"] == 5
    assert result["shell_exited"]
    assert sh("echo back")["stdout"] == "back\n"


def test_killed_shell_is_reported_and_replaced(sh):
    result = sh("kill -KILL $$")
    assert result["shell_exited"] and result["exit_code"] == 137
    assert result["state_lost"]
    assert sh("echo back")["stdout"] == "back\n"


def test_timeout_interrupts_and_keeps_partial_output(sh):
    sh("v=kept")
    result = sh("echo part; sleep 300; echo never", timeout_ms=700)
    assert result["timed_out"] and result["exit_code"] == 124
    assert result["stdout"].startswith("part\n") and "never" not in result["stdout"]
    assert result["duration_ms"] < 20000
    assert sh("echo $v")["stdout"] == "kept\n"


def test_timeout_kills_what_ignores_interrupts(sh):
    sh("v=kept")
    result = sh("sh -c \"trap '' INT TERM; echo deaf; while :; do sleep 1; done\"", timeout_ms=700)
    assert result["timed_out"] and result["exit_code"] == 124
    assert result["stdout"] == "deaf\n"
    assert sh("echo $v")["stdout"] == "kept\n"


def test_timeout_of_a_pure_shell_loop(sh):
    result = sh("echo spin; while :; do :; done", timeout_ms=500)
    assert result["timed_out"] and result["exit_code"] == 124
    assert result["stdout"] == "spin\n"
    assert sh("echo back")["stdout"] == "back\n"


def test_timeout_spares_background_jobs_of_earlier_commands(sh):
    sh("sleep 300 & job=$!")
    result = sh("sleep 200", timeout_ms=500)
    assert result["timed_out"]
    assert sh("kill -0 $job && echo alive; kill $job")["stdout"] == "alive\n"


def test_natural_124_is_not_a_timeout(sh):
    result = sh("sh -c 'exit 124'", timeout_ms=60000)
    assert result["exit_code"] == 124 and not result["timed_out"]


def test_background_child_holding_the_pipes_does_not_delay(sh):
    result = sh("sleep 100 & echo started")
    assert result["stdout"] == "started\n" and result["duration_ms"] < 20000
    sh("kill $!")


def test_double_forked_daemon_does_not_delay(sh):
    result = sh("( ( sleep 100 & ) & ); echo gone")
    assert result["stdout"] == "gone\n" and result["duration_ms"] < 20000


def test_large_command_text(sh):
    payload = "x" * 200_000
    result = sh(f"v='{payload}'; echo ${{#v}}")
    assert result["stdout"] == "200000\n", result["stderr"][:200]


def test_nul_in_text_is_refused_and_loses_nothing(sh):
    sh("v=1")
    with pytest.raises(ApiError) as caught:
        sh("echo a\0b")
    assert caught.value.code == "invalid_argument"
    assert sh("echo $v")["stdout"] == "1\n"


def test_invalid_utf8_and_nul_in_output(sh):
    result = sh(r"printf 'a\377\376b\000c'")
    assert "stdout" not in result
    import base64
    assert base64.b64decode(result["stdout_base64"]) == b"a\xff\xfeb\x00c"


def test_text_with_every_byte_but_nul(sh):
    """UTF-8 of many scripts inside quotes comes back as it went in."""
    text = "".join(chr(c) for c in range(1, 0x250) if chr(c) not in "'\r\n") + "日本語 😀"
    result = sh(f"printf '%s' '{text}'")
    assert result["stdout"] == text


def test_output_arrives_byte_exact_at_every_split(sh):
    """The same bytes, written with a flush after every possible offset."""
    text = "ab\ncdé\t"
    data = text.encode()
    octal = "".join(f"\\{b:03o}" for b in data)
    commands = []
    for i in range(1, len(data)):
        head = "".join(f"\\{b:03o}" for b in data[:i])
        tail = "".join(f"\\{b:03o}" for b in data[i:])
        commands.append(f"printf '{head}'; sleep 0; printf '{tail}'")
    result = sh("; ".join(commands) + f"; printf '{octal}'")
    assert result["stdout"] == text * len(data)


def test_stdin_is_fed(sh):
    stream = sh.box.run_stream("cat | tr a-z A-Z; echo end", session=sh.name, stdin=True)
    frames = stream.write_stdin(b"hello\n" * 1000)
    stream.send(STDIN_EOF)
    out, err, result = stream.finish(frames=frames)
    assert out == b"HELLO\n" * 1000 + b"end\n"
    assert result["exit_code"] == 0


def test_prompt_that_waits_for_input_gets_it(sh):
    stream = sh.box.run_stream("printf 'name? '; read n; echo \"hi $n\"", session=sh.name, stdin=True)
    assert stream.wait_for(STDOUT) == b"name? "
    stream.write_stdin(b"bob\n")
    out, err, result = stream.finish()
    assert out == b"hi bob\n" and result["exit_code"] == 0


def test_stdin_closed_early_is_no_error(sh):
    stream = sh.box.run_stream("head -c 3; echo; echo done", session=sh.name, stdin=True)
    stream.write_stdin(b"abcdefgh")
    stream.send(STDIN_EOF)
    out, err, result = stream.finish()
    assert out == b"abc\ndone\n"


def test_interrupt_keeps_the_state(sh):
    sh("v=kept")
    stream = sh.box.run_stream("echo go; sleep 300", session=sh.name)
    assert stream.wait_for(STDOUT) == b"go\n"
    stream.send(SIGNAL, bytes([2]))
    out, err, result = stream.finish()
    assert result["exit_code"] == 130
    assert sh("echo $v")["stdout"] == "kept\n"


def test_interrupt_ends_the_whole_list(sh):
    sh("v=kept; cd /tmp")
    stream = sh.box.run_stream("echo go; sleep 300; echo never", session=sh.name)
    assert stream.wait_for(STDOUT) == b"go\n"
    stream.send(SIGNAL, bytes([2]))
    out, err, result = stream.finish()
    assert out == b"" and result["exit_code"] == 130, (out, result)
    assert sh("echo $v; pwd")["stdout"] == "kept\n/tmp\n"


def test_two_sessions_do_not_share_state(sh, shell_box):
    other = sh.name + "b"
    shell_box.session(other)
    sh("v=1; cd /tmp")
    result = shell_box.run("echo \"[$v]\"; pwd", session=other)
    assert result["stdout"].splitlines()[0] == "[]"
    assert "/tmp" not in result["stdout"].splitlines()[1:]
    shell_box.client.delete(f"{shell_box.url}/sessions/{other}", raw=True)


def test_session_with_user_cwd_and_env(shell_box):
    name = f"t{next(counter)}"
    shell_box.session(name, user="user", cwd="/tmp", env={"A": "b c"})
    result = shell_box.run("id -u; pwd; echo $A; echo $HOME", session=name)
    assert result["stdout"] == "1000\n/tmp\nb c\n/home/user\n", result
    shell_box.client.delete(f"{shell_box.url}/sessions/{name}", raw=True)


def test_closing_a_session_ends_all_it_started(shell_box):
    name = f"t{next(counter)}"
    shell_box.session(name)
    pid = shell_box.run("sleep 997 & echo $!", session=name)["stdout"].strip()
    shell_box.client.delete(f"{shell_box.url}/sessions/{name}", raw=True)
    assert shell_box.exec("sh", "-c", f"kill -0 {pid} 2>/dev/null && echo alive || echo gone")["stdout"] == "gone\n"
    with pytest.raises(ApiError) as caught:
        shell_box.run("echo", session=name)
    assert caught.value.code == "session_not_found"


def test_cwd_is_reported(sh):
    sh("mkdir -p /tmp/x/y; cd /tmp/x/y")
    assert sh("true")["cwd"] == "/tmp/x/y"


def test_commands_queue_and_run_in_order(sh):
    streams = [sh.box.run_stream(f"echo {i}; sleep 0.1", session=sh.name) for i in range(5)]
    assert [s.finish()[0] for s in streams] == [f"{i}\n".encode() for i in range(5)]


def test_vanished_client_leaves_the_command_running(sh):
    stream = sh.box.run_stream("echo one; sleep 1; echo two; (exit 6)", session=sh.name)
    started = json.loads(stream.wait_for(STARTED))
    assert stream.wait_for(STDOUT) == b"one\n"
    stream.close()
    again = sh.box.client.upgrade(f"{sh.box.url}/sessions/{sh.name}/attach",
                                  {"command": started["command"]})
    out, err, result = again.finish()
    assert out == b"one\ntwo\n" and result["exit_code"] == 6


def test_attach_from_an_offset_repeats_nothing(sh):
    stream = sh.box.run_stream("printf 0123456789; sleep 1; printf abc", session=sh.name)
    started = json.loads(stream.wait_for(STARTED))
    got = b""
    while len(got) < 10:
        got += stream.wait_for(STDOUT)
    stream.close()
    again = sh.box.client.upgrade(
        f"{sh.box.url}/sessions/{sh.name}/attach",
        {"command": started["command"],
         "from": {"stdout": started["stdout"] + 10, "stderr": started["stderr"]}})
    assert again.finish()[0] == b"abc"


def test_result_of_a_finished_command_can_be_had_again(sh):
    sh("echo first; (exit 3)")
    again = sh.box.client.upgrade(f"{sh.box.url}/sessions/{sh.name}/attach", {})
    out, err, result = again.finish()
    assert out == b"first\n" and result["exit_code"] == 3


def test_tty_session(shell_box):
    name = f"t{next(counter)}"
    shell_box.session(name, kind="tty", rows=30, cols=100)
    result = shell_box.run("test -t 0 && test -t 1 && test -t 2 && echo tty; stty size", session=name)
    assert re.sub(r"\r", "", result["stdout"]).split() == ["tty", "30", "100"], result
    shell_box.run("cd /tmp; x=5", session=name)
    assert shell_box.run("echo $x; pwd", session=name)["stdout"].split() == ["5", "/tmp"]
    stream = shell_box.run_stream("printf 'who? '; read w; echo \"it is $w\"", session=name, stdin=True)
    seen = b""
    while b"who? " not in seen:
        seen += stream.wait_for(STDOUT)
    stream.write_stdin(b"me\n")
    out, err, result = stream.finish()
    assert b"it is me" in out and err == b""
    shell_box.client.delete(f"{shell_box.url}/sessions/{name}", raw=True)


def test_xtrace_shows_user_commands_only(sh):
    sh("set -x")
    result = sh("echo traced")
    sh("set +x")
    assert "+ echo traced" in result["stderr"]
    assert "__hearth" not in result["stderr"], result["stderr"]


def test_stderr_of_a_background_job_belongs_to_a_later_command(sh):
    sh("(sleep 0.3; echo late >&2) & ")
    result = sh("wait; echo now")
    assert result["stdout"] == "now\n" and result["stderr"] == "late\n"


def test_child_killed_before_it_runs_its_program(sh):
    """A shell's child that dies between fork and exec must not speak for the shell."""
    for _ in range(25):
        sh("sleep 300 &")
        result = sh("kill $! && echo ok")
        assert result["stdout"] == "ok\n" and not result["shell_exited"]
