"""Image layouts made by hand, a real registry on loopback to put them into, and a proxy that spoils answers."""
import gzip
import hashlib
import http.client
import http.server
import io
import json
import os
import pathlib
import random
import re
import shutil
import socket
import struct
import subprocess
import tarfile
import threading

OCI = "application/vnd.oci.image."
DOCKER = "application/vnd.docker."


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Layer:
    """A layer tar, entry by entry."""

    def __init__(self):
        self.file = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.file, mode="w", format=tarfile.PAX_FORMAT)

    def add(self, name, data=None, type=tarfile.REGTYPE, mode=0o644, uid=0, gid=0, mtime=1600000000, link="",
            xattrs=None, device=(0, 0)):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.uid, info.gid, info.mtime, info.linkname = type, mode, uid, gid, mtime, link
        info.devmajor, info.devminor = device
        for key, value in (xattrs or {}).items():
            info.pax_headers[f"SCHILY.xattr.{key}"] = value
        if data is not None:
            data = data.encode() if isinstance(data, str) else data
            info.size = len(data)
        self.tar.addfile(info, io.BytesIO(data) if data is not None else None)
        return self

    def dir(self, name, mode=0o755, **kw):
        return self.add(name, type=tarfile.DIRTYPE, mode=mode, **kw)

    def symlink(self, name, target):
        return self.add(name, type=tarfile.SYMTYPE, mode=0o777, link=target)

    def hardlink(self, name, target):
        return self.add(name, type=tarfile.LNKTYPE, link=target)

    def tree(self, source, prefix=""):
        """Everything below a directory."""
        for path in sorted(pathlib.Path(source).rglob("*")):
            self.tar.add(path, prefix + str(path.relative_to(source)), recursive=False)
        return self

    def bytes(self):
        self.tar.close()
        return self.file.getvalue()


class Layout:
    """An OCI image layout in a directory."""

    def __init__(self, directory):
        self.dir = pathlib.Path(directory)
        (self.dir / "blobs/sha256").mkdir(parents=True)
        (self.dir / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self.entries = []

    def blob(self, data, media_type):
        digest = sha256(data)
        (self.dir / "blobs/sha256" / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def image(self, tag, layers, config=None, compress="gzip", architecture="amd64", history=None):
        """Layers are tar bytes; returns the manifest's descriptor."""
        blobs, diff_ids = [], []
        for data in layers:
            data = data.bytes() if isinstance(data, Layer) else data
            diff_ids.append(f"sha256:{sha256(data)}")
            if compress == "gzip":
                data, kind = gzip.compress(data, 1, mtime=0), "layer.v1.tar+gzip"
            elif compress == "zstd":
                data = subprocess.run(["zstd", "-q", "-1", "-c"], input=data, capture_output=True, check=True).stdout
                kind = "layer.v1.tar+zstd"
            else:
                kind = "layer.v1.tar"
            blobs.append(self.blob(data, OCI + kind))
        document = {"architecture": architecture, "os": "linux", "config": config or {},
                    "rootfs": {"type": "layers", "diff_ids": diff_ids}}
        manifest = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json",
                    "config": self.blob(json.dumps(document).encode(), OCI + "config.v1+json"), "layers": blobs}
        entry = self.blob(json.dumps(manifest).encode(), OCI + "manifest.v1+json")
        entry["platform"] = {"os": "linux", "architecture": architecture}
        self.tag(tag, entry)
        return entry

    def tag(self, tag, entry):
        if tag:
            self.entries.append({**entry, "annotations": {"org.opencontainers.image.ref.name": tag}})
            self.write()

    def write(self):
        (self.dir / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.entries}))


def free_port():
    """For somebody who binds it later: none that the kernel may give to an outgoing connection meanwhile."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as s:
            port = random.SystemRandom().randrange(first // 2, first)
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass  # taken: another


class Registry:
    """The distribution's docker-registry on a port of its own."""

    def __init__(self, directory, password=None):
        self.dir = pathlib.Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        auth = ""
        self.password = password
        if password:
            import crypt  # the registry takes bcrypt only; here, because Python 3.13 has it no more
            hashed = crypt.crypt(password, crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16))
            (self.dir / "htpasswd").write_text(f"me:{hashed}\n")
            auth = f"auth: {{htpasswd: {{realm: test, path: {self.dir}/htpasswd}}}}\n"
        (self.dir / "config.yml").write_text(
            "version: 0.1\nlog: {level: error}\n" + auth +
            f"storage: {{filesystem: {{rootdirectory: {self.dir}/data}}}}\nhttp: {{addr: '{self.host}'}}\n")
        self.process = None
        self.start()

    def start(self):
        with open(self.dir / "log", "ab") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", str(self.dir / "config.yml")],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while True:
            try:
                http.client.HTTPConnection(self.host, timeout=5).request("GET", "/v2/")
                return self
            except ConnectionRefusedError:
                assert self.process.poll() is None, (self.dir / "log").read_text()
                try:
                    self.process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass

    def stop(self):
        self.process.kill()
        self.process.wait()

    def push(self, layout, tag, name, *options):
        login = ["--dest-creds", f"me:{self.password}"] if self.password else []
        done = subprocess.run(["skopeo", "copy", "--quiet", "--insecure-policy", "--dest-tls-verify=false", *login,
                               *options, f"oci:{layout.dir}:{tag}", f"docker://{self.host}/{name}"],
                              capture_output=True, text=True)
        assert done.returncode == 0, (done.stderr, (self.dir / "log").read_text()[-2000:])
        return f"{self.host}/{name}"


class Proxy:
    """Between a client and a registry. `spoil(path, headers, number)` may return what to do with a request:
    ("status", 429, {"Retry-After": "1"}), ("cut", bytes), ("data", bytes[, type]), ("change",) or None."""

    def __init__(self, target):
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.target = target
        self.spoil = lambda path, headers, number: None
        self.seen = []
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                proxy.serve(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def serve(self, request):
        number = sum(1 for seen in self.seen if seen[0] == request.path)
        self.seen.append((request.path, dict(request.headers)))
        todo = self.spoil(request.path, request.headers, number) or ("pass",)
        if todo[0] == "status":
            request.send_response(todo[1])
            for key, value in todo[2].items():
                request.send_header(key, value)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.request("GET", request.path, headers={
            k: v for k, v in request.headers.items() if k.lower() not in ("host", "connection")})
        answer = connection.getresponse()
        data = answer.read()
        status = answer.status
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")}
        if todo[0] == "data":
            status, data = 200, todo[1]
            headers["Content-Length"] = str(len(data))
            if len(todo) > 2:
                headers["Content-Type"] = todo[2]
        if todo[0] == "change":
            data = bytes([data[0] ^ 1]) + data[1:]
        if todo[0] == "whole" and status == 206:  # a server that knows no ranges
            connection.request("GET", request.path)
            answer = connection.getresponse()
            data, status = answer.read(), answer.status
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in ("connection",)}
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.end_headers()
        try:
            if todo[0] == "cut":
                request.wfile.write(data[:todo[1]])
                request.wfile.flush()
                request.connection.shutdown(socket.SHUT_RDWR)
                request.close_connection = True
            else:
                request.wfile.write(data)
        except OSError:
            request.close_connection = True


def is_blob(path):
    return re.search(r"/blobs/sha256:", path)


def umoci_unpack(layout, tag, directory):
    """What the peer makes of an image."""
    subprocess.run(["umoci", "unpack", "--image", f"{layout.dir}:{tag}", str(directory)], check=True,
                   capture_output=True)
    return pathlib.Path(directory) / "rootfs"


def describe(root):
    """Everything that can be told about a tree: path -> facts."""
    root = os.fsencode(str(root))
    found, links = {}, {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            kind = st.st_mode & 0o170000
            content = None
            if kind == 0o100000:
                with open(path, "rb") as f:
                    content = hashlib.file_digest(f, "sha256").hexdigest() if hasattr(hashlib, "file_digest") \
                        else sha256(f.read())
            elif kind == 0o120000:
                content = os.readlink(path)
            xattrs = sorted((k, os.getxattr(path, k, follow_symlinks=False))
                            for k in os.listxattr(path, follow_symlinks=False))
            rel = os.path.relpath(path, root)
            is_dir = kind == 0o040000
            found[rel] = (oct(st.st_mode), st.st_uid, st.st_gid, st.st_rdev if kind in (0o020000, 0o060000) else 0,
                          0 if is_dir else st.st_size, content, xattrs, st.st_mtime_ns)
            if not is_dir and st.st_nlink > 1:
                links.setdefault(st.st_ino, []).append(rel)
    return found, sorted(sorted(group) for group in links.values())


def packs_of(path):
    """The packs that an EROFS file of ours needs, in order: those that its device table names."""
    with open(path, "rb") as f:
        block = f.read(4096)
    count, table = struct.unpack_from("<HH", block, 1024 + 86)
    slots = [block[table * 128 + i * 128:][:128] for i in range(count)]
    packs = [pathlib.Path(path).parent.parent / "layers" / f"{slot[:64].decode()}.pack" for slot in slots]
    assert [p.stat().st_size for p in packs] == [struct.unpack_from("<I", slot, 64)[0] * 4096 for slot in slots]
    return packs


def fsck(path):
    subprocess.run(["fsck.erofs", *(f"--device={pack}" for pack in packs_of(path)), str(path)], check=True,
                   capture_output=True)


class Mounted:
    """An EROFS file, looked at by the kernel."""

    def __init__(self, path, where):
        self.where = pathlib.Path(where)
        self.where.mkdir(parents=True, exist_ok=True)
        self.loops = []
        try:
            for pack in packs_of(path):
                self.loops.append(subprocess.run(["losetup", "-r", "--show", "-f", str(pack)], check=True,
                                                 capture_output=True, text=True).stdout.strip())
            options = ",".join(["loop", "ro"] + [f"device={loop}" for loop in self.loops])
            subprocess.run(["mount", "-t", "erofs", "-o", options, str(path), str(self.where)], check=True)
        except BaseException:
            self.detach()
            raise

    def detach(self):
        for loop in self.loops:
            subprocess.run(["losetup", "-d", loop], check=True)

    def __enter__(self):
        return self.where

    def __exit__(self, *args):
        subprocess.run(["umount", str(self.where)], check=True)
        self.detach()


def have_tools():
    return all(shutil.which(tool) for tool in ("docker-registry", "skopeo", "umoci"))
