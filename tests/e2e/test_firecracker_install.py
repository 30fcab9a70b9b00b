"""`hearth firecracker install` against a server of the test's own; needs no KVM and no daemon."""
import hashlib
import http.server
import io
import os
import pathlib
import platform
import re
import ssl
import subprocess
import tarfile
import threading

import pytest

from conftest import BIN, ROOT

VERSION = re.search(r'FC_VERSION_MIN "(.*)"',
                    (ROOT / "vmm-manager/backend/firecracker/fc-find.h").read_text()).group(1)
MACHINE = platform.machine()
NAME = f"firecracker-v{VERSION}-{MACHINE}.tgz"


def release(says=f"Firecracker v{VERSION}", programs=("firecracker", "jailer")):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for program in programs:
            text = f"#!/bin/sh\necho '{says}'\n".encode()
            entry = tarfile.TarInfo(f"release-v{VERSION}-{MACHINE}/{program}-v{VERSION}-{MACHINE}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
    return data.getvalue()


class Server:
    """Serves `files` by path; over TLS with a certificate of its own when it has one."""

    def __init__(self, certificate=None):
        files = self.files = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = files.get(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write((body or b"")[:self.server.cut])

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.cut = None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://localhost:{self.http.server_port}/base"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def publish(self, archive, checksum=None):
        self.files[f"/base/v{VERSION}/{NAME}"] = archive
        if checksum is not None:
            self.files[f"/base/v{VERSION}/{NAME}.sha256.txt"] = checksum.encode()


@pytest.fixture
def server():
    s = Server()
    yield s
    s.http.shutdown()
    s.http.server_close()


@pytest.fixture
def certificate(tmp_path):
    key, cert = tmp_path / "key", tmp_path / "cert"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert,
                    "-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
                   check=True, capture_output=True)
    return cert, key


def install(directory, url, *more, **env):
    return subprocess.run([BIN / "hearth", "firecracker", "install", "--dir", directory, "--url", url, *more],
                          capture_output=True, text=True, timeout=120,
                          env={**os.environ, "no_proxy": "localhost", **{k: str(v) for k, v in env.items()}})


def sha(data):
    return hashlib.sha256(data).hexdigest()


def files_of(directory):
    return sorted(path.name for path in pathlib.Path(directory).iterdir()) if os.path.isdir(directory) else []


def test_a_release_is_installed_and_not_again(server, tmp_path):
    archive = release()
    server.publish(archive)
    done = install(tmp_path / "d", server.url, "--sha256", sha(archive).upper())
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "d") == ["firecracker", "jailer"]
    says = subprocess.run([tmp_path / "d/firecracker", "--version"], capture_output=True, text=True).stdout
    assert says == f"Firecracker v{VERSION}\n"
    server.files.clear()  # whoever asks now gets nothing
    again = install(tmp_path / "d", server.url, "--sha256", sha(archive))
    assert again.returncode == 0 and "already there" in again.stderr
    assert install(tmp_path / "d", server.url, "--sha256", sha(archive), "--force").returncode == 1
    assert files_of(tmp_path / "d") == ["firecracker", "jailer"]


def test_the_checksum_beside_it_is_taken_over_tls(certificate, tmp_path):
    server = Server(certificate)
    archive = release()
    server.publish(archive, f"{sha(archive)}  {NAME}\n")
    trusted = {"CURL_CA_BUNDLE": certificate[0]}
    assert install(tmp_path / "d", server.url).returncode == 1  # a certificate that nobody vouches for
    assert files_of(tmp_path / "d") == []
    done = install(tmp_path / "d", server.url, **trusted)
    assert done.returncode == 0, done.stderr
    assert files_of(tmp_path / "d") == ["firecracker", "jailer"]
    server.publish(archive, "no checksum\n")
    assert "no SHA-256" in install(tmp_path / "e", server.url, **trusted).stderr
    server.http.shutdown()
    server.http.server_close()


@pytest.mark.parametrize("name,words", [
    ("wrong_checksum", "expected"), ("cut", "cannot download"), ("missing", "cannot download"),
    ("no_jailer", "lacks firecracker or jailer"), ("other_version", "does not say"),
    ("rubbish", "lacks firecracker or jailer"), ("no_checksum", "--sha256"), ("bad_checksum", "no SHA-256")])
def test_what_is_not_right_is_not_installed(server, tmp_path, name, words):
    archive = {"no_jailer": release(programs=["firecracker"]), "other_version": release("Firecracker v1.15.0"),
               "rubbish": b"rubbish" * 1000}.get(name, release())
    server.publish(archive)
    if name == "missing":
        server.files.clear()
    if name == "cut":
        server.http.cut = 100
    checksum = {"wrong_checksum": sha(b""), "bad_checksum": "abc"}.get(name, sha(archive))
    arguments = [] if name == "no_checksum" else ["--sha256", checksum]
    done = install(tmp_path / "d", server.url, *arguments)
    assert done.returncode == 1 and words in done.stderr, done
    assert files_of(tmp_path / "d") == []
