"""A sandbox that would notice if a snapshot changed, lost or repeated anything of it."""
import hashlib
import os
import time

from client import ApiError
from conftest import BACKEND, wait_until

MIB = 1 << 20

# Counts in a file, one number a line. It starts no process for its pauses: several guests that did would keep a small
# machine busy with nothing else.
COUNTER = ("mkfifo /root/tick; (exec 9<>/root/tick; i=0; while :; do i=$((i+1)); echo $i; read -rt 0.05 -u 9; done "
           "> /root/count 2>/dev/null) &")


class Witness:
    """Half of its memory is a file in tmpfs, another file is on its disk, and a process counts.

    What the files must hold is known here, on the host; the counter writes one number a line, so that
    a skipped or repeated step is a line that is not its own number.
    """

    def __init__(self, hearth, memory_mib=96, **spec):
        self.hearth = hearth
        self.box = hearth.create("base", memory_mib=memory_mib, **spec)
        self.sums = {}
        self.box.run("mkdir /ram; mount -t tmpfs -o size=90% tmpfs /ram")
        # Half of the memory, or what a large kernel leaves of it.
        free = int(self.box.run("awk '/MemAvailable/ { print int($2 / 1024) }' /proc/meminfo")["stdout"])
        half = min(memory_mib // 2, free * 2 // 3)
        for path, size in (("/ram/half", half * MIB), ("/root/disk", 8 * MIB)):
            data = os.urandom(size)
            self.put(path, data)
            self.sums[path] = hashlib.sha256(data).hexdigest()
        self.box.run("cd /var; kept=yes; exec 7>/root/open; echo before >&7")
        self.box.run(COUNTER)
        self.identity = self.box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname")["stdout"]
        self.counted = 0

    def put(self, path, data):
        """A sandbox with a short life may fall asleep in the middle of it; then anew."""
        for attempt in range(5):
            try:
                return self.box.client.request("PUT", f"{self.box.url}/files", data, query={"path": path}, raw=True)
            except (ApiError, OSError):
                if attempt == 4:
                    raise

    def check_sums(self):
        out = self.box.exec("sha256sum", *self.sums, http_timeout=600)["stdout"]
        assert dict(line.split()[::-1] for line in out.splitlines()) == self.sums

    def count(self):
        return int(self.box.exec("sh", "-c", "wc -l < /root/count")["stdout"])

    def check_counter(self):
        """Every line is its own number; at least as many as at the last look, and it counts on."""
        script = "awk 'NR != $1 { print \"line\", NR, \"says\", $1; exit } END { print NR }' /root/count"
        out = self.box.exec("sh", "-c", script)["stdout"].split()
        assert len(out) == 1, out
        count = int(out[0])
        assert count >= self.counted, (count, self.counted)
        self.counted = count

    def check_clock(self):
        before = time.time()
        guest = float(self.box.exec("date", "+%s.%N")["stdout"])
        assert before - 1 < guest < time.time() + 1, (before, guest)

    def check_session(self):
        """The same shell: directory, variable, open descriptor, identity."""
        result = self.box.run("echo again >&7; pwd; echo $kept; head -1 /root/open")
        assert result["stdout"] == "/var\nyes\nbefore\n", result
        same = self.box.run("cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname")["stdout"]
        assert same == self.identity, (same, self.identity)

    def check(self, sums=True):
        self.check_clock()
        self.check_session()
        self.check_counter()
        if sums:
            self.check_sums()


def used_ones_go(hearth):
    """What a sandbox was woken from goes. Firecracker keeps a record of what changes since, so there it stays as long
    as the sandbox."""
    if BACKEND == "firecracker":
        assert {one["kind"] for one in snapshots(hearth)} <= {"hibernated", "fork"}
    else:
        wait_until(lambda: stored(hearth) == [], "the used snapshot to go")


def snapshots(hearth):
    return hearth.client.get("/v1/snapshots")["snapshots"]


def stored(hearth):
    """What lies in the store, half-made ones included."""
    return sorted(path.name for path in (hearth.state / "snapshots").iterdir())
