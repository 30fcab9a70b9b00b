"""The TCP port, with what others would use: curl, TLS, a WebSocket client, promtool, browsers' pre-flights."""
import hashlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request

import pytest

from conftest import wait_until


def url_of(hearth):
    return (hearth.state / "hearthd.url").read_text().strip()


def key_of(hearth, *args):
    return hearth.cli("key", "create", *args, text=True, check=True).stdout.strip()


def ask(url, key=None, method="GET", body=None, headers=None, context=None):
    """(status, headers, bytes)"""
    request = urllib.request.Request(url, method=method, headers={
        **({"X-API-Key": key} if key else {}), **(headers or {})},
        data=None if body is None else json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=120, context=context) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


@pytest.fixture(scope="module")
def port(hearth):
    """(URL, key of tenant default)"""
    return url_of(hearth), key_of(hearth, "--role", "admin", "--name", "tests")


def test_curl_makes_uses_and_removes_a_sandbox(hearth, port):
    url, key = port

    def curl(*args):
        done = subprocess.run(["curl", "-sS", "--fail-with-body", "-H", f"X-API-Key: {key}", *args],
                              capture_output=True, timeout=300)
        assert done.returncode == 0, done
        return done.stdout
    made = json.loads(curl(f"{url}/v1/sandboxes", "-d", '{"image": "base", "name": "curled"}'))
    assert made["state"] == "running" and made["tenant"] == "default"
    # A pipe as a body: curl sends it chunked.
    done = subprocess.run(["curl", "-sS", "--fail", "-H", f"X-API-Key: {key}", "-T", "-",
                           f"{url}/v1/sandboxes/curled/files?path=/tmp/in"], input=b"x" * 300000,
                          capture_output=True, timeout=60)
    assert done.returncode == 0, done
    result = json.loads(curl(f"{url}/v1/sandboxes/curled/exec", "-d",
                             '{"argv": ["sh", "-c", "wc -c < /tmp/in; hostname"]}'))
    assert result["stdout"].split() == ["300000", "curled"]
    assert curl("-r", "10-14", f"{url}/v1/sandboxes/curled/files?path=/tmp/in") == b"xxxxx"
    assert curl("-X", "DELETE", f"{url}/v1/sandboxes/curled") == b""
    assert ask(f"{url}/v1/sandboxes/curled", key)[0] == 404


def test_hundreds_of_kept_connections_are_served_in_turns(port):
    url, key = port
    host, number = url.removeprefix("http://").split(":")
    request = f"GET /v1/sandboxes HTTP/1.1\r\nHost: h\r\nX-API-Key: {key}\r\n\r\n".encode()
    socks = [socket.create_connection((host, int(number)), timeout=30) for _ in range(400)]
    try:
        for _ in range(2):
            for sock in socks:
                sock.sendall(request)
            for sock in socks:
                assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    finally:
        for sock in socks:
            sock.close()


def test_streams_are_flushed_at_once(hearth, port, box):
    """A line that a command prints arrives while it sleeps, over HTTP as over a stream."""
    url, key = port
    host, number = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(number)), timeout=30)
    sock.sendall(f"GET /v1/sandboxes/{box.id}/files/watch?path=/tmp HTTP/1.1\r\nHost: h\r\n"
                 f"X-API-Key: {key}\r\n\r\n".encode())
    data = b""
    while b"armed" not in data:
        data += sock.recv(4096)
    box.exec("touch", "/tmp/flushed")
    while b"flushed" not in data:
        data += sock.recv(4096)
    sock.close()


def test_a_page_of_another_origin_may_ask(port):
    url, key = port
    status, headers, _ = ask(f"{url}/v1/sandboxes", method="OPTIONS", headers={
        "Origin": "http://page", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key"})
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "*"
    status, headers, _ = ask(f"{url}/v1/sandboxes", key, headers={"Origin": "http://page"})
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "*"


def test_promtool_has_nothing_to_say(port):
    url, key = port
    if not shutil.which("promtool"):
        pytest.skip("no promtool; it is in the package prometheus")
    status, headers, text = ask(f"{url}/metrics", key)
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done
    names = {line.split("{")[0].split(" ")[0] for line in text.decode().splitlines() if line[0] != "#"}
    for name in ("hearth_http_request_duration_seconds_bucket", "hearth_sandboxes", "hearth_errors_total",
                 "hearth_http_sent_bytes_total", "process_resident_memory_bytes", "hearth_http_connections"):
        assert name in names
    assert b'hearth_sandboxes{state="running"}' in text


def test_the_dashboard_asks_for_metrics_that_exist(port):
    import pathlib
    import re
    url, key = port
    text = ask(f"{url}/metrics", key)[2].decode()
    known = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum")}
    dashboard = (pathlib.Path(__file__).resolve().parents[2] / "docs/grafana.json").read_text()
    asked = set(re.findall(r"\b(?:hearth|process)_[a-z_]+\b", " ".join(
        target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"])))
    assert asked and asked <= known, asked - known


# ---- terminal ----

websocket = pytest.importorskip("websocket", reason="python3-websocket is not installed")


class Terminal:
    def __init__(self, url, box, key, query="session=work", **kw):
        self.ws = websocket.create_connection(
            f"{url.replace('http', 'ws', 1)}/v1/sandboxes/{box.id}/terminal?{query}", timeout=60,
            **(kw or {"header": {"X-API-Key": key}}))
        self.out = b""
        self.said = []

    def wait(self, text):
        while text not in self.out:
            opcode, data = self.ws.recv_data()
            if opcode == websocket.ABNF.OPCODE_BINARY:
                self.out += data
            elif opcode == websocket.ABNF.OPCODE_TEXT:
                self.said.append(json.loads(data))
            else:
                pytest.fail(f"closed before {text!r}: {self.out!r} {self.said} {data!r}")
        return self

    def type(self, text):
        self.ws.send_binary(text.encode())
        return self


def test_a_terminal_is_found_again_with_its_scroll_back(hearth, port, fresh):
    url, key = port
    first = Terminal(url, fresh, key)
    first.type("v=4; echo up-${v}2\r").wait(b"up-42")
    first.ws.send(json.dumps({"type": "resize", "rows": 50, "cols": 132}))
    first.type("stty size\r").wait(b"50 132")
    # It runs: an interrupt that comes before would be the shell's.
    first.type("sh -c 'echo in-$0; exec sleep 1000' $((40+1))\r").wait(b"in-41")
    first.ws.close()
    again = Terminal(url, fresh, key).wait(b"up-42").wait(b"in-41")
    again.type("\x03")  # as a keyboard: what is in front is interrupted
    again.type("echo still-${v}2\r").wait(b"still-42")
    # Also after the daemon was killed: the terminal lives in the guest.
    again.ws.close()
    hearth.kill()
    hearth.start()
    url = url_of(hearth)
    third = Terminal(url, fresh, key).wait(b"still-42")
    third.type("exit 3\r")
    while True:
        opcode, data = third.ws.recv_data()
        if opcode == websocket.ABNF.OPCODE_TEXT and json.loads(data)["type"] == "exit":
            assert json.loads(data)["exit_code"] == 3
            break
    third.ws.close()


def test_a_browsers_key_comes_as_a_subprotocol(hearth, port, fresh):
    url, key = url_of(hearth), port[1]
    t = Terminal(url, fresh, key, subprotocols=["hearth", f"hearth-key.{key}"])
    assert t.ws.getsubprotocol() == "hearth"
    t.type("echo in-$((40+2))\r").wait(b"in-42").ws.close()
    with pytest.raises(websocket.WebSocketBadStatusException):
        Terminal(url, fresh, key, subprotocols=["hearth", "hearth-key.e2b_" + 40 * "0"])


# ---- a daemon of its own ----

def certificate(directory):
    cert, key = directory / "cert.pem", directory / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True,
                   capture_output=True)
    return cert, key


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to make a certificate with")
def test_tls_serves_requests_uploads_and_streams(own):
    own.stop()
    cert, pem = certificate(own.dir)
    own.env.update(HEARTH_TLS_CERT=str(cert), HEARTH_TLS_KEY=str(pem))
    own.start()
    url, key = url_of(own), key_of(own)
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=str(cert))
    assert ask(f"{url}/healthz", context=context)[0] == 200
    assert ask(f"{url}/v1/sandboxes", context=context)[0] == 401
    box = own.create()
    data = os.urandom(5_000_000)
    request = urllib.request.Request(f"{url}/v1/sandboxes/{box.id}/files?path=/tmp/big", data=data,
                                     method="PUT", headers={"X-API-Key": key})
    assert urllib.request.urlopen(request, context=context, timeout=120).status == 204
    back = ask(f"{url}/v1/sandboxes/{box.id}/files?path=/tmp/big", key, context=context)[2]
    assert hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
    t = Terminal(url, box, key, header={"X-API-Key": key}, sslopt={"ca_certs": str(cert)})
    t.type("seq 20000\r").wait(b"\n20000\r")
    t.ws.close()
    # Nothing of it is spoken in the clear, and old versions are not spoken at all.
    host, number = url.removeprefix("https://").split(":")
    with socket.create_connection((host, int(number)), timeout=10) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        try:
            assert not sock.recv(100).startswith(b"HTTP/1")
        except ConnectionResetError:
            pass
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        with socket.create_connection((host, int(number)), timeout=10) as sock:
            old.wrap_socket(sock)


def test_a_daemon_that_ends_answers_what_was_asked(own):
    """SIGTERM while a command runs: its answer comes, new connections do not get in."""
    box = own.create()
    url, key = url_of(own), key_of(own)
    answers = []

    def run():
        answers.append(ask(f"{url}/v1/sandboxes/{box.id}/exec", key, "POST",
                           {"argv": ["sh", "-c", "echo begun > /tmp/begun; sleep 2; echo done"]}))
    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: box.exec("cat", "/tmp/begun")["exit_code"] == 0, "the command begins")
    own.daemon.send_signal(signal.SIGTERM)
    thread.join(30)
    own.daemon.wait(30)
    assert answers[0][0] == 200 and json.loads(answers[0][2])["stdout"] == "done\n"
    assert not (own.state / "hearthd.url").exists()
    with pytest.raises(OSError):
        ask(f"{url}/healthz")


def test_the_access_log_tells_who_did_what_but_no_secret(own):
    own.stop()
    log = own.dir / "access"
    own.env["HEARTH_ACCESS_LOG"] = str(log)
    own.start()
    url, key = url_of(own), key_of(own, "--tenant", "acme")
    ask(f"{url}/v1/sandboxes/none/files?path=/secret&signature=v1_hidden", key)
    ask(f"{url}/v1/sandboxes", "e2b_" + 40 * "1")
    own.stop()
    text = log.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert key not in text and "hidden" not in text and 40 * "1" not in text
    mine = next(line for line in lines if line["route"] == "/v1/sandboxes/ID/files")
    assert (mine["tenant"], mine["status"], mine["code"], mine["path"]) == (
        "acme", 404, "sandbox_not_found", "/v1/sandboxes/none/files")
    assert any(line["status"] == 401 and "tenant" not in line for line in lines)
    own.env.pop("HEARTH_ACCESS_LOG")


def test_a_port_that_is_taken_is_an_error_when_it_was_asked_for(own):
    own.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        done = subprocess.run([str(own.bin / "hearthd"), "--listen", f"127.0.0.1:{number}"], env=own.env,
                              capture_output=True, timeout=60, text=True)
    assert done.returncode == 1 and f"127.0.0.1:{number}" in done.stderr
    for bad in ("127.0.0.1", "::1:80", ":80", "127.0.0.1:99999"):
        done = subprocess.run([str(own.bin / "hearthd"), "--listen", bad], env=own.env,
                              capture_output=True, timeout=60, text=True)
        assert done.returncode == 1 and "HOST:PORT" in done.stderr


def test_keys_on_the_command_line(own):
    key = key_of(own, "--tenant", "acme", "--role", "viewer", "--name", "ci", "--quota",
                 "sandboxes=2,memory=1G,rate=5")
    listed = json.loads(own.cli("--json", "key", "ls", text=True, check=True).stdout)["keys"]
    assert [(k["tenant"], k["role"], k["name"]) for k in listed] == [("acme", "viewer", "ci")]
    assert listed[0]["quota"] == {"sandboxes": 2, "cpus": 0, "memory_mib": 1024, "disk_mib": 0, "rate": 5}
    assert ask(f"{url_of(own)}/v1/usage", key)[0] == 200
    own.cli("key", "revoke", listed[0]["id"], check=True)
    assert ask(f"{url_of(own)}/v1/usage", key)[0] == 401
    assert own.cli("key", "create", "--quota", "kings=1").returncode != 0
    assert own.cli("key", "revoke", "nobody").returncode != 0
