"""Images from Dockerfiles: stages, copies, the cache of steps, hostile contexts, builds that are cut off."""
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile
import urllib.parse

import pytest

import images
import oci
from client import ApiError, UnixConnection
from conftest import wait_until
from oci import Layer, Layout


@pytest.fixture
def context(tmp_path):
    (tmp_path / "ctx").mkdir()
    return tmp_path / "ctx"


@pytest.fixture(scope="session")
def small(hearth, workdir):
    """A small image of layers with a shell, to stand on."""
    layer = Layer()
    for name in ("bin", "etc", "root", "usr", "usr/bin", "old", "old/sub"):
        layer.dir(name)
    layer.dir("tmp", mode=0o1777)
    layer.add("bin/busybox", pathlib.Path(images.BUSYBOX).read_bytes(), mode=0o755)
    for name in ("sh", "cat", "ls", "id", "env", "stat", "test", "mkdir", "rm", "mv", "ln", "echo", "sleep",
                 "chown", "chmod", "touch", "pwd", "cp", "find", "sort", "head", "wc", "adduser", "date", "dd",
                 "true", "false", "printf", "kill"):
        layer.symlink(f"bin/{name}", "busybox")
    layer.add("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:500:501::/:/bin/sh\n")
    layer.add("etc/group", "root:x:0:\napp:x:501:\nextra:x:600:app\n")
    layer.add("old/file", "old\n").add("old/sub/deep", "deep\n").symlink("lib", "usr/bin")
    layout = Layout(workdir / "small-layout")
    layout.image("v1", [layer.bytes()], config={"Env": ["PATH=/bin", "FROM_BASE=1"], "Cmd": ["/bin/sh"]})
    hearth.cli("image", "import", "--name", "small", layout.dir, check=True)
    return layout


def write(context, dockerfile, **files):
    (context / "Dockerfile").write_text(dockerfile)
    for name, content in files.items():
        (context / name).write_text(content)


def build(h, context, *args, tag="built:1", **kw):
    return h.cli("image", "build", "-t", tag, *args, context, text=True, timeout=300, **kw)


def run(h, image, *argv, **kw):
    done = h.cli("run", "--image", image, "--", *argv, text=True, **kw)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def names(h):
    return [image["name"] for image in h.client.get("/v1/images")["images"]]


def sandboxes(h):
    return h.client.get("/v1/sandboxes")["sandboxes"]


def nothing_left(h):
    """No work directory stays; the last go after the answer, in the background."""
    work = pathlib.Path(h.env["HEARTH_CACHE"], "images/tmp")
    wait_until(lambda: not list(work.glob("*")), "the build's files to go")


def test_stages_copies_and_configuration(hearth, small, context):
    (context / "src").mkdir()
    (context / "src/main.txt").write_text("main\n")
    (context / "src/skip.log").write_text("no\n")
    (context / "src/keep.log").write_text("yes\n")
    (context / "run.sh").write_text("#!/bin/sh\necho $GREETING from $(pwd) as $(id -un)\n")
    (context / ".dockerignore").write_text("**/*.log\n!src/keep.log\nDockerfile\n")
    write(context, """ARG BASE=nothing
FROM ${BASE} AS builder
ARG WHAT
WORKDIR /made
COPY src/ ./src/
RUN cat src/main.txt > out && echo $WHAT >> out && ls src > list && chown 500:600 out
FROM builder AS unused
RUN false
FROM small
COPY --from=builder --chown=app:extra /made/out /data/out
COPY --from=builder /made/out /data/kept
COPY --from=0 /made/list /data/
COPY --chmod=755 run.sh /usr/bin/
COPY <<one <<"two" /texts/
$FROM_BASE
one
$FROM_BASE
two
ENV GREETING="hello there"
LABEL who=me
EXPOSE 8080
USER app:extra
WORKDIR /data
VOLUME /data
ENTRYPOINT ["/usr/bin/run.sh"]
""")
    done = build(hearth, context, "--build-arg", "BASE=small", "--build-arg", "WHAT=given")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "built:1\n"
    assert "[4/18] COPY src/ ./src/\n" in done.stderr
    assert "warning: Dockerfile:24: VOLUME" in done.stderr
    assert "RUN false" not in done.stderr
    assert run(hearth, "built:1") == "hello there from /data as app\n"
    script = "cat out list /texts/one /texts/two; stat -c '%u:%g %a %n' out kept list /usr/bin/run.sh /data"
    told = hearth.cli("run", "--image", "built:1", "--entrypoint", "/bin/sh", "--", "-c", script, text=True).stdout
    assert told.splitlines() == [
        "main", "given", "keep.log", "main.txt", "1", "$FROM_BASE",
        "500:600 644 out", "500:600 644 kept", "0:0 644 list", "0:0 755 /usr/bin/run.sh", "500:600 755 /data"], told
    config = json.loads(hearth.cli("image", "inspect", "built:1", text=True).stdout)["config"]
    assert config["Env"] == ["PATH=/bin", "FROM_BASE=1", "GREETING=hello there"]
    assert config["Labels"] == {"who": "me"} and config["ExposedPorts"] == {"8080/tcp": {}}
    assert config["User"] == "app:extra" and "Cmd" not in config
    assert not sandboxes(hearth) or all("build" not in s for s in sandboxes(hearth))
    nothing_left(hearth)
    assert not [name for name in names(hearth) if name.startswith("@")]


def test_steps_are_taken_once(hearth, small, context):
    write(context, "FROM small\nCOPY a /a\nRUN cat /proc/sys/kernel/random/uuid > /stamp\nRUN cat /a >> /stamp\n", a="one")
    first = build(hearth, context, tag="cached:1")
    assert first.returncode == 0 and "CACHED" not in first.stderr, first.stderr
    stamp = run(hearth, "cached:1", "cat", "/stamp")
    os.utime(context / "a", (1, 1))  # another time is no other content
    log = hearth.dir / "daemon.log"
    before = log.stat().st_size
    again = build(hearth, context, tag="cached:2")
    assert again.stderr.count("CACHED") == 3, again.stderr
    assert "Creating a sandbox" not in log.read_text()[before:]
    assert run(hearth, "cached:2", "cat", "/stamp") == stamp
    # What comes before the change is kept, what comes after is not.
    (context / "Dockerfile").write_text("FROM small\nCOPY a /a\nRUN cat /proc/sys/kernel/random/uuid > /stamp\nRUN echo; cat /a >> /stamp\n")
    changed = build(hearth, context, tag="cached:3")
    assert changed.stderr.count("CACHED") == 2, changed.stderr
    assert run(hearth, "cached:3", "cat", "/stamp") == stamp
    (context / "a").write_text("two")
    other = build(hearth, context, tag="cached:4")
    assert "CACHED" not in other.stderr
    assert run(hearth, "cached:4", "cat", "/stamp") != stamp
    fresh = build(hearth, context, "--no-cache", tag="cached:5")
    assert "CACHED" not in fresh.stderr
    assert run(hearth, "cached:5", "cat", "/stamp") != run(hearth, "cached:4", "cat", "/stamp")


def test_arguments_are_part_of_what_a_step_is(hearth, small, context):
    write(context, "FROM small\nARG v=1\nRUN echo $v > /v\n")
    assert build(hearth, context, tag="arg:1").returncode == 0
    assert "CACHED" in build(hearth, context, tag="arg:1").stderr
    assert "CACHED" not in build(hearth, context, "--build-arg", "v=2", tag="arg:2").stderr
    assert run(hearth, "arg:2", "cat", "/v") == "2\n"


@pytest.mark.parametrize("dockerfile, message", [
    ("FROM small\n\nRUN echo before; exit 3\n", "Dockerfile:3: RUN: exit code 3"),
    ("FROM small\nRUN true\nRUN /nothing\n", "Dockerfile:3: RUN: exit code 127"),
    ("FROM small\nRUN [\"/nothing\"]\n", "Dockerfile:2: RUN: command '/nothing': no such program"),
    ("FROM small\nUSER nobody-here\nRUN id\n", "Dockerfile:3: RUN: "),
    ("FROM small\nCOPY missing /x\n", "Dockerfile:2: COPY: 'missing': no such file"),
    ("FROM small\nADD https://example.org/x /x\n", "Dockerfile:2: ADD: 'https://example.org/x': sources on the network"),
    ("FROM small\nRUN --mount=type=secret,id=x id\n", "Dockerfile:2: RUN: '--mount=type=secret,id=x' is not"),
    ("FROM small\nNONSENSE x\n", "Dockerfile:2: unknown instruction 'NONSENSE'"),
    ("FROM small\nCOPY --chown=nobody-here a /a\n", "Dockerfile:2: COPY: the image has no user 'nobody-here'"),
])
def test_failures_name_their_line(hearth, small, context, dockerfile, message):
    write(context, dockerfile, a="a")
    before = names(hearth)
    done = build(hearth, context, tag="fails:1")
    assert done.returncode != 0
    assert message in done.stderr.splitlines()[-1], done.stderr
    assert names(hearth) == before
    nothing_left(hearth)
    wait_until(lambda: not [s for s in sandboxes(hearth) if s.get("build")], "no sandbox of the build")
    error = json.loads(hearth.cli("--json", "image", "build", context, text=True).stdout)["error"]
    assert error["code"] in ("build_failed", "invalid_argument", "path_not_found", "unsupported",
                             "command_not_found", "user_not_found")


def test_what_commands_change_is_what_the_layers_say(hearth, small, context):
    write(context, """FROM small
RUN rm /old/file && rm -r /old/sub && mkdir /old/sub && echo new > /old/sub/new
RUN mv /old /renamed && ln /etc/passwd /etc/passwd2 && chmod 4755 /bin/busybox && echo x > "$(printf '/a\\nb')" && ln -s nowhere /dangling && mkdir -p /run/kept && touch /run/kept/file /tmp/kept
RUN test ! -e /old && test -e /renamed/sub/new && test ! -e /renamed/sub/deep && sleep 1000 &
RUN rm /dangling && echo changed >> /etc/passwd2 && touch -d '2001-02-03 04:05:06' /dated
""")
    done = build(hearth, context, tag="changes:1")
    assert done.returncode == 0, done.stderr
    script = ("find /renamed /dangling /old /tmp | sort; stat -c '%h %a' /etc/passwd /bin/busybox; head -n1 '/a\nb';"
              "stat -c %Y /dated; wc -l < /etc/passwd2")
    told = hearth.cli("run", "--image", "changes:1", "--", "sh", "-c", script, text=True).stdout.splitlines()
    assert told == ["/renamed", "/renamed/sub", "/renamed/sub/new", "/tmp", "/tmp/kept", "1 644", "1 4755", "x",
                    "981173106", "3"], told


def test_archives_and_dockerfiles_elsewhere(hearth, small, context, tmp_path):
    with tarfile.open(context / "some.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("inner/file")
        info.size, info.uid, info.mode = 3, 7, 0o600
        tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("inner/link")
        link.type, link.linkname = tarfile.LNKTYPE, "inner/file"
        tar.addfile(link)
    (context / "plain.gz").write_bytes(b"not a tar")
    other = tmp_path / "elsewhere.df"
    other.write_text("FROM small\nADD some.tar.gz plain.gz /into/\nCOPY some.tar.gz *.gz /as-is/\nRUN ls /as-is\n"
                     "COPY . /all\n")
    done = build(hearth, context, "-f", other, tag="added:1")
    assert done.returncode == 0, done.stderr
    told = run(hearth, "added:1", "sh", "-c",
               "cat /into/inner/link; stat -c ' %u %a %h' /into/inner/file; ls /into /as-is; ls -A /all")
    assert told.split() == ["abc", "7", "600", "2", "/as-is:", "plain.gz", "some.tar.gz", "/into:", "inner", "plain.gz",
                            "plain.gz", "some.tar.gz"]
    with tarfile.open(tmp_path / "ctx.tar", "w") as tar:
        info = tarfile.TarInfo("sub/My.df")
        data = b"FROM small\nRUN echo by stdin > /how\n"
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    done = hearth.cli("image", "build", "-t", "stdin:1", "-f", "sub/My.df", "-",
                      input=(tmp_path / "ctx.tar").read_bytes(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert run(hearth, "stdin:1", "cat", "/how") == "by stdin\n"


def tar_of(*entries):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content, kind in entries:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content.encode()))
    return file.getvalue()


@pytest.mark.parametrize("entry, copy, message", [
    (("../../out", "x", tarfile.REGTYPE), "COPY . /x", "leads out of the image"),
    (("link", "/etc/shadow", tarfile.SYMTYPE), "COPY link/../x /x", "no such file"),
    (("link", "/etc", tarfile.SYMTYPE), "COPY link/shadow /x", "no such file"),
    (("link", "../../../../etc", tarfile.SYMTYPE), "COPY link/shadow /x", "no such file"),
    (("hard", "/etc/shadow", tarfile.LNKTYPE), "COPY hard /x", "is a hard link to what is not there"),
    (("x", "y", tarfile.REGTYPE), "COPY ../../../etc/shadow /x", "leads out of the context"),
    (("x", "y", tarfile.REGTYPE), "COPY /etc/shadow /x", "no such file"),
])
def test_hostile_contexts(hearth, small, entry, copy, message):
    data = tar_of(("Dockerfile", f"FROM small\n{copy}\n", tarfile.REGTYPE), entry)
    done = hearth.cli("image", "build", "-t", "hostile:1", "-", input=data)
    assert done.returncode != 0 and message in done.stderr.decode(), done.stderr
    assert "hostile:1" not in names(hearth)
    nothing_left(hearth)


def test_a_link_out_of_the_context_is_only_a_link(hearth, small):
    data = tar_of(("Dockerfile", "FROM small\nCOPY d /x\n", tarfile.REGTYPE), ("d/secret", "/etc/shadow", tarfile.SYMTYPE))
    done = hearth.cli("image", "build", "-t", "links:1", "-", input=data)
    assert done.returncode == 0, done.stderr
    told = hearth.cli("run", "--image", "links:1", "--", "sh", "-c", "ls -l /x/secret; cat /x/secret", text=True)
    assert "-> /etc/shadow" in told.stdout and "No such file" in told.stderr


def test_other_things_that_are_no_context(hearth, small):
    done = hearth.cli("image", "build", "-", input=b"FROM small\n" * 100)
    assert done.returncode != 0 and b"the context" in done.stderr
    done = hearth.cli("image", "build", "-", input=tar_of(("x", "y", tarfile.REGTYPE)))
    assert b"'Dockerfile': there is no such file in the context" in done.stderr
    with pytest.raises(ApiError, match="'nonsense': unknown key"):
        hearth.client.request("POST", "/v1/images/build", b"", query={"options": '{"nonsense": 1}'})


def test_a_command_that_does_not_end(hearth, small, context):
    write(context, "FROM small\nRUN echo begins; sleep 1000\n")
    done = build(hearth, context, "--run-timeout", "2s", tag="slow:1")
    assert done.returncode != 0 and "begins\n" in done.stderr
    assert "Dockerfile:2: RUN: the command did not end within 2 s" in done.stderr, done.stderr
    assert "slow:1" not in names(hearth)
    nothing_left(hearth)


def begin(h, dockerfile, tag, seen):
    """A build by hand; returns the connection once the line with `seen` has come."""
    options = urllib.parse.quote(json.dumps({"name": tag}))
    connection = UnixConnection(str(h.socket), 120)
    connection.request("POST", f"/v1/images/build?options={options}",
                       tar_of(("Dockerfile", dockerfile, tarfile.REGTYPE)), {"Content-Type": "application/x-tar"})
    answer = connection.getresponse()
    for line in answer:
        if seen.encode() in line:
            return connection, answer
        assert b'"error"' not in line, line
    pytest.fail(f"{seen} was not told")


SLOW = "FROM small\nRUN echo kept > /kept\nRUN echo is-running; sleep 1000\n"


def test_client_that_goes_away_ends_its_build(hearth, small):
    connection, answer = begin(hearth, SLOW, "gone:1", '"is-running\\n')
    assert [s for s in sandboxes(hearth) if s.get("build")]
    answer.close()
    connection.close()
    wait_until(lambda: not [s for s in sandboxes(hearth) if s.get("build")], "the sandbox goes")
    nothing_left(hearth)
    assert "gone:1" not in names(hearth)


def test_built_image_in_use_keeps_its_name(hearth, small, context):
    """The build's own name for the same content does not count."""
    write(context, "FROM small\nRUN echo used > /used\n")
    assert build(hearth, context, tag="used:1").returncode == 0
    box = hearth.create("used:1")
    refused = hearth.cli("image", "rm", "used:1")
    assert refused.returncode == 1 and b"a sandbox stands on it" in refused.stderr
    box.remove()
    hearth.cli("image", "rm", "used:1", check=True)


def test_interrupt_of_the_command_line(hearth, small, context):
    write(context, SLOW)
    child = hearth.popen("image", "build", "-t", "interrupted:1", str(context), stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if line == "is-running\n":
            break
    child.send_signal(signal.SIGINT)
    assert child.wait(30) != 0
    child.stdout.close()
    child.stderr.close()
    wait_until(lambda: not [s for s in sandboxes(hearth) if s.get("build")], "the sandbox goes")
    assert "interrupted:1" not in names(hearth)


def test_sandbox_that_dies_ends_its_build(hearth, small):
    connection, answer = begin(hearth, SLOW, "dies:1", '"is-running\\n')
    box = [s for s in sandboxes(hearth) if s.get("build")][0]
    os.kill(box["pid"], signal.SIGKILL)
    rest = answer.read().decode()
    connection.close()
    assert "Dockerfile:3: RUN: " in json.loads(rest.splitlines()[-1])["error"]["message"]
    wait_until(lambda: not [s for s in sandboxes(hearth) if s.get("build")], "the sandbox goes")


def test_daemon_that_is_killed_leaves_nothing_half(own, hearth, small):
    for seen in ("RUN echo kept", "is-running\\n"):
        connection, _ = begin(own, SLOW, "killed:1", seen)
        own.kill()
        connection.close()
        own.start()
        assert "killed:1" not in names(own)
        assert not sandboxes(own)
        wait_until(lambda: not list((own.state / "sandboxes").glob("*")), "directories go")
    # The cache is good: what was done is found, the rest is done.
    data = tar_of(("Dockerfile", SLOW.replace("sleep 1000", "true"), tarfile.REGTYPE))
    done = own.cli("image", "build", "-t", "killed:1", "-", input=data)
    assert done.returncode == 0 and done.stderr.count(b"CACHED") == 1, done.stderr
    nothing_left(own)


def test_many_commands_and_much_output(hearth, small, context):
    lines = "\n".join(f"RUN echo {i} >> /count" for i in range(66))
    loud = "i=0; while [ $i -lt 20000 ]; do echo 'xyzä€ and more of it'; i=$((i+1)); done"
    write(context, f"FROM small\nRUN {loud}\n{lines}\n")
    done = build(hearth, context, tag="many:1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr.count("xyzä€ and more of it\n") == 20000
    assert run(hearth, "many:1", "wc", "-l", "/count") == "66 /count\n"


PEER = """ARG BASE
FROM $BASE AS one
WORKDIR /w
COPY --chown=500:501 tree/ tree/
RUN echo run > made && mkdir -m 700 d && mv tree/a d/ && rm /old/file && ln made d/hard && chmod 2755 d
FROM $BASE
COPY --from=one /w/ /copied/
COPY top.txt link.txt /
ADD arch.tar /unpacked
ENV A=1 B="two words"
ENV PATH=/x:$PATH
LABEL x.y=z
USER app
WORKDIR /copied
EXPOSE 80/tcp 53/udp
ENTRYPOINT ["/bin/ls"]
CMD ["-l"]
"""


@pytest.mark.skipif(not shutil.which("buildah") or not oci.have_tools(), reason="buildah is not there")
def test_result_is_what_the_peer_builds(hearth, small, context, tmp_path):
    (context / "tree/sub").mkdir(parents=True)
    (context / "tree/a").write_text("a\n")
    (context / "tree/sub/b").write_text("b\n")
    (context / "tree/sub/b").chmod(0o640)
    (context / "tree/sub/x").symlink_to("../a")
    (context / "link.txt").symlink_to("top.txt")
    with tarfile.open(context / "arch.tar", "w") as tar:
        info = tarfile.TarInfo("in/file")
        info.size, info.uid, info.gid, info.mode, info.mtime = 2, 3, 4, 0o604, 1500000000
        tar.addfile(info, io.BytesIO(b"xy"))
    write(context, PEER, **{"top.txt": "top\n"})
    os.utime(context / "top.txt", (1400000000, 1400000000))
    done = build(hearth, context, "--build-arg", "BASE=small", tag="peer:1")
    assert done.returncode == 0, done.stderr
    hearth.cli("image", "export", "peer:1", tmp_path / "ours.tar", check=True)
    (tmp_path / "ours").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "ours.tar", "-C", tmp_path / "ours"], check=True)

    storage = ["--root", str(tmp_path / "root"), "--runroot", str(tmp_path / "runroot"), "--storage-driver", "vfs"]
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(tmp_path)}
    policy = tmp_path / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def buildah(*args):
        done = subprocess.run(["buildah", *storage, *map(str, args)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    base = buildah("pull", "-q", "--signature-policy", policy, f"oci:{small.dir}:v1")
    buildah("bud", "-q", "--signature-policy", policy, "--isolation", "chroot", "--build-arg", f"BASE={base}", "-t",
            "peer", context)
    buildah("push", "-q", "--signature-policy", policy, "peer", f"oci:{tmp_path / 'theirs'}:v1")

    def unpack(layout, tag, where):
        subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", where], check=True, capture_output=True)
        return oci.describe(pathlib.Path(where) / "rootfs")

    mine, my_links = unpack(tmp_path / "ours", "peer:1", tmp_path / "ours-bundle")
    other, other_links = unpack(tmp_path / "theirs", "v1", tmp_path / "their-bundle")
    # Places where things are mounted while a command runs.
    mounted = {b"proc", b"sys", b"dev", b"run", b"etc/hosts", b"etc/resolv.conf"}
    assert {name: facts[:7] for name, facts in mine.items() if name not in mounted} == \
        {name: facts[:7] for name, facts in other.items() if name not in mounted}
    assert mine[b"top.txt"][7] == other[b"top.txt"][7]
    assert mine[b"unpacked/in/file"][7] == other[b"unpacked/in/file"][7]

    def config(layout):
        index = json.loads((layout / "index.json").read_text())
        blob = lambda d: json.loads((layout / "blobs/sha256" / d["digest"][7:]).read_text())
        return blob(blob(index["manifests"][0])["config"])["config"]

    ours, theirs = config(tmp_path / "ours"), config(tmp_path / "theirs")
    theirs["Labels"].pop("io.buildah.version", None)
    for one in (ours, theirs):  # the peer puts what is set again to the end
        one["Env"].sort()
    assert ours == theirs
