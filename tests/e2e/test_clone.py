"""Every sandbox is a machine of its own."""
import concurrent.futures
import os
import time

IDENTITY = "; ".join([
    "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "hostname",
    "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo",
    "python3 -c 'import os,uuid; print(os.getrandom(16).hex()); print(uuid.uuid4())'",
    "date +%s.%N"])


def test_clones_share_nothing(hearth):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        boxes = list(pool.map(lambda _: hearth.create("base"), range(8)))
        try:
            results = list(pool.map(lambda b: (time.time(), b.exec("sh", "-c", IDENTITY), time.time()), boxes))
            rows = [r["stdout"].split() for _, r, _ in results]
            for column in range(6):
                values = [row[column] for row in rows]
                assert len(set(values)) == 8, (column, values)
            for row, (before, _, after) in zip(rows, results):
                assert before - 1 < float(row[6]) < after + 1, (before, row[6], after)
            list(pool.map(lambda b: b.exec("sh", "-c", "echo mine > /only; echo mine > /dev/shm/only"), boxes[:1]))
            for box in boxes[1:]:
                assert box.exec("sh", "-c", "ls /only /dev/shm/only")["exit_code"] != 0
        finally:
            list(pool.map(lambda b: b.remove(), boxes))


def first_look(hearth, memory_mib):
    """A new sandbox's very first command, beside the host's clock around it."""
    began = time.time()
    box = hearth.create("base", memory_mib=memory_mib)
    try:
        before = time.time()
        result = box.exec("sh", "-c", FIRST)
        return box.info, began, before, result["stdout"].split(), time.time()
    finally:
        box.remove()


FIRST = "date +%s.%N; " + "; ".join([
    "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "cat /proc/sys/kernel/random/uuid", "hostname",
    "head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'; echo",
    "python3 -c 'import os,uuid; print(os.getrandom(32).hex(), uuid.uuid4(), hash(\"x\"))'",
    "mktemp -u XXXXXXXXXXXXXXXXXXXXXXXX"])
NAMES = ("machine-id", "boot_id", "kernel uuid", "hostname", "urandom", "getrandom", "uuid4", "hash seed",
         "mktemp")


def test_many_clones_of_one_template(hearth, request):
    """200 with --full, some at a time: nothing twice, and the clock is right before the first command."""
    count = int(os.environ.get("HEARTH_TEST_CLONES", 200)) if request.config.getoption("--full") else 6
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        looks = list(pool.map(lambda _: first_look(hearth, 128), range(count)))
    assert len({info["template"] for info, *_ in looks if "template" in info}) <= 1
    cold = sum(info["timings"]["cold"] for info, *_ in looks)
    assert cold <= 3, cold  # all but those that made the template are clones of it
    rows = [row[1:] for _, _, _, row, _ in looks]
    for column, name in enumerate(NAMES):
        values = [row[column] for row in rows]
        assert len(set(values)) == count, (name, values)
    off = [max(before - float(row[0]), float(row[0]) - after) for _, _, before, row, after in looks]
    print(f"{count} clones ({cold} cold): all different; clock off by at most {max(max(off), 0):.3f} s")
    assert max(off) < 1, max(off)


def test_second_sandbox_is_a_restore(hearth):
    first = hearth.create("base")
    second = hearth.create("base")
    try:
        templates = hearth.client.get("/v1/templates")["templates"]
        assert templates
        assert second.info["timings"]["restore_ms"] > 0
    finally:
        first.remove()
        second.remove()


def test_image_is_never_written(hearth, cache):
    import hashlib
    import json
    name = json.loads((cache / "images/names/base.json").read_text())
    box = hearth.create("base")
    try:
        box.exec("sh", "-c", "rm -rf /usr/share/doc /bin/ls; echo x > /etc/passwd; sync")
    finally:
        box.remove()
    digest = hashlib.sha256()
    with open(cache / f"images/blobs/{name['sha256']}.erofs", "rb") as blob:
        while chunk := blob.read(1 << 20):
            digest.update(chunk)
    assert digest.hexdigest() == name["sha256"]
