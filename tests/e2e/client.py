"""A client of the native API, written from docs/API.md alone: what any other client could do."""
import http.client
import json
import os
import select
import socket
import struct
import time
import urllib.parse

# On an emulated host everything takes its time.
EMULATED = bool(os.environ.get("HEARTH_EMULATED_HOST"))
PATIENCE = 5 if EMULATED else 1

STDIN, STDOUT, STDERR, STDIN_EOF, RESIZE, SIGNAL, STARTED, EXIT, ERROR, WINDOW = range(10)


class ApiError(Exception):
    def __init__(self, status, body):
        self.status = status
        self.code = body.get("code")
        self.message = body.get("message")
        super().__init__(f"{status} {self.code}: {self.message}")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("hearth", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Stream:
    """An upgraded connection: frames both ways."""

    def __init__(self, sock, rest=b""):
        self.sock = sock
        self.data = rest
        self.window = 65536

    def send(self, kind, payload=b""):
        self.sock.sendall(struct.pack(">B3xI", kind, len(payload)) + payload)

    def recv(self, timeout=60):
        """One frame (kind, payload), or None at the end of the stream."""
        deadline = time.monotonic() + timeout
        while True:
            if len(self.data) >= 8:
                kind, size = struct.unpack(">B3xI", self.data[:8])
                assert size <= 65536, "frame over the limit"
                if len(self.data) >= 8 + size:
                    payload, self.data = self.data[8:8 + size], self.data[8 + size:]
                    if kind == WINDOW:
                        self.window += struct.unpack(">I", payload)[0]
                    return kind, payload
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError("no frame in time")
            chunk = self.sock.recv(1 << 16)
            if not chunk:
                return None
            self.data += chunk

    def write_stdin(self, data, timeout=60):
        """Sends data within the window; frames that arrive meanwhile are returned."""
        frames = []
        while data:
            while self.window == 0:
                frame = self.recv(timeout)
                assert frame is not None, "stream ended while writing"
                if frame[0] != WINDOW:
                    frames.append(frame)
            n = min(len(data), self.window, 65536)
            self.send(STDIN, data[:n])
            self.window -= n
            data = data[n:]
        return frames

    def finish(self, timeout=60, frames=()):
        """Reads to the end: (stdout, stderr, result). An ERROR frame raises ApiError."""
        out = {STDOUT: bytearray(), STDERR: bytearray()}
        frames = list(frames)
        while True:
            frame = frames.pop(0) if frames else self.recv(timeout)
            assert frame is not None, "stream ended without EXIT or ERROR"
            kind, payload = frame
            if kind in out:
                out[kind] += payload
            elif kind == EXIT:
                self.close()
                return bytes(out[STDOUT]), bytes(out[STDERR]), json.loads(payload)
            elif kind == ERROR:
                self.close()
                raise ApiError(0, json.loads(payload))

    def wait_for(self, kind, timeout=60):
        while True:
            frame = self.recv(timeout)
            assert frame is not None, f"stream ended before a frame of type {kind}"
            if frame[0] == kind:
                return frame[1]

    def close(self):
        self.sock.close()


class Client:
    def __init__(self, socket_path):
        self.path = socket_path

    def request(self, method, path, body=None, headers=None, timeout=300, raw=False, query=None):
        connection = UnixConnection(self.path, timeout)
        headers = dict(headers or {})
        if query:
            path += "?" + urllib.parse.urlencode(query)
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiError(answer.status, json.loads(data) if data else {})
        if raw:
            return data
        return json.loads(data) if data else None

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body=None, **kw):
        return self.request("POST", path, {} if body is None else body, **kw)

    def delete(self, path, **kw):
        return self.request("DELETE", path, **kw)

    def upgrade(self, path, body, timeout=300, protocol="hearth-stream"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        sock.connect(self.path)
        data = json.dumps(body).encode()
        sock.sendall(
            f"POST {path} HTTP/1.1\r\nHost: hearth\r\nConnection: Upgrade\r\n"
            f"Upgrade: {protocol}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = sock.recv(4096)
            if not chunk:
                break
            head += chunk
        head, _, rest = head.partition(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        if status != 101:
            length = 0
            for line in head.split(b"\r\n")[1:]:
                key, _, value = line.partition(b":")
                if key.lower() == b"content-length":
                    length = int(value)
            while len(rest) < length:
                chunk = sock.recv(65536)
                if not chunk:
                    break
                rest += chunk
            sock.close()
            raise ApiError(status, json.loads(rest) if rest else {})
        return Stream(sock, rest)


class Sandbox:
    """One sandbox, with the calls the tests make most."""

    def __init__(self, client, info):
        self.client = client
        self.info = info
        self.id = info["id"]
        self.url = f"/v1/sandboxes/{self.id}"

    def exec(self, *argv, **options):
        timeout = options.pop("http_timeout", 120 * PATIENCE)
        return self.client.post(f"{self.url}/exec", {"argv": list(argv), **options},
                                timeout=timeout)

    def stream(self, *argv, **options):
        return self.client.upgrade(f"{self.url}/exec", {"argv": list(argv), **options})

    def run(self, text, session="default", **options):
        return self.client.post(f"{self.url}/sessions/{session}/run", {"text": text, **options},
                                timeout=120 * PATIENCE)

    def run_stream(self, text, session="default", **options):
        return self.client.upgrade(f"{self.url}/sessions/{session}/run", {"text": text, **options})

    def session(self, name, **options):
        return self.client.post(f"{self.url}/sessions", {"name": name, **options})

    def read(self, path, **query):
        return self.client.get(f"{self.url}/files", query={"path": path, **query}, raw=True)

    def write(self, path, data, **query):
        self.client.request("PUT", f"{self.url}/files", bytes(data), query={"path": path, **query},
                            raw=True)

    def stat(self, path, **query):
        return self.client.get(f"{self.url}/files/stat", query={"path": path, **query})

    def list(self, path, **query):
        return self.client.get(f"{self.url}/files/list", query={"path": path, **query})["entries"]

    def state(self):
        return self.client.get(self.url)["state"]

    def remove(self):
        self.client.delete(self.url, raw=True)
