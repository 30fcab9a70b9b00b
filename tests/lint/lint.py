#!/usr/bin/env python3
"""Rules of the tree that a compiler does not check. One verb a rule; exit 1 with one line a finding.

  layers   an #include may name only the own folder or one that its library links, and libraries link
           only downwards: base < model < the middle < core < cluster < api < daemon; cli uses base only
  size     a .c file has at most 1000 lines (a note from 600 on), a function at most 100
  banned   functions that are never right here
  words    texts speak of the product only
  format   clang-format agrees
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ["vmm-manager", "guest-agentless", "rootfs-tools", "snapshots", "tests"]
INCLUDE_ROOTS = ["vmm-manager", "guest-agentless", "rootfs-tools", "snapshots"]

# Rank of every library of ours; a library links only lower ranks, or equal ones named here.
RANK = {
    "base": 0,
    "model": 1,
    "session_pb": 1, "protocol": 2, "guest": 3, "host": 3, "rootfs": 2, "snapshots": 1, "pager": 2,
    "backend": 2, "backend_qemu": 3, "backend_firecracker": 3, "net": 2, "policy": 2, "meter": 2,
    "core": 4, "cluster": 5,
    "api": 6, "api_front": 7, "api_native": 8, "api_e2b": 9, "api_swerex": 9, "api_docker": 9,
    "daemon": 10, "cli": 10,
}
CLI_MAY_USE = {"base", "cli"}

BANNED = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "snprintf", "strcat": "buf_append",
    "strncpy": "snprintf", "strtok": "strcspn", "atoi": "parse_u64", "atol": "parse_u64",
    "gets": "fgets", "system": "spawn", "popen": "spawn", "signal": "sigaction",
    "strerror": "errno_text", "usleep": "a loop source", "sleep": "a loop source", "alloca": "malloc",
    "mktemp": "mkostemp", "tmpnam": "mkostemp",
}


def sources(*suffixes, folders=CODE):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def strip_comments(text):
    """Blanks comments and string contents, keeping line numbers."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text,
                  flags=re.S)


def libraries():
    """name -> (folder, [linked libraries of ours]) from the hearth_library() calls."""
    found = {}
    for cmake in ROOT.rglob("CMakeLists.txt"):
        if any(part.startswith("build") for part in cmake.relative_to(ROOT).parts):
            continue
        text = re.sub(r"#[^\n]*", "", cmake.read_text())
        for body in re.findall(r"hearth_library\(([^)]*)\)", text):
            words = body.split()
            links = words[words.index("LINK") + 1:] if "LINK" in words else []
            names = [w for w in words if "/" in w and w.endswith(".c")]
            folders = {cmake.parent} | {(cmake.parent / n).parent for n in names}
            found[words[0]] = (folders, [x for x in links if "::" not in x])
    return found


def closure(libs, name):
    seen, todo = set(), [name]
    while todo:
        lib = todo.pop()
        if lib not in seen:
            seen.add(lib)
            todo += libs.get(lib, ((), []))[1]
    return seen


def check_layers():
    libs = libraries()
    folder_lib = {}
    for name, (folders, links) in libs.items():
        for folder in folders:
            folder_lib.setdefault(folder, set()).add(name)
        if name not in RANK:
            yield f"library {name}: not in the table of layers"
            continue
        for link in links:
            if link in RANK and RANK[link] >= RANK[name]:
                yield f"library {name} (layer {RANK[name]}) links {link} (layer {RANK[link]})"
        if name == "cli" and not set(x for x in links if x in libs) <= CLI_MAY_USE:
            yield f"library cli links {links}; it speaks HTTP only"
    for path in sources(".c", ".h", folders=INCLUDE_ROOTS):
        owner = path.parent
        while owner not in folder_lib and owner != ROOT:
            owner = owner.parent
        mine = folder_lib.get(owner)
        if not mine:
            continue
        allowed = set().union(*(closure(libs, lib) for lib in mine))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not match:
                continue
            target = next((ROOT / r / match[1] for r in INCLUDE_ROOTS
                           if (ROOT / r / match[1]).exists()), None)
            if target is None:
                continue  # generated
            folder = target.parent
            while folder not in folder_lib and folder != ROOT:
                folder = folder.parent
            owners = folder_lib.get(folder, set())
            if owners and not owners & allowed:
                yield (f"{path.relative_to(ROOT)}:{number}: includes {match[1]} of "
                       f"{'/'.join(sorted(owners))}, which it does not link")


def check_size():
    for path in sources(".c"):
        lines = path.read_text().splitlines()
        name = path.relative_to(ROOT)
        if len(lines) > 1000:
            yield f"{name}: {len(lines)} lines, at most 1000"
        elif len(lines) > 600:
            print(f"note: {name}: {len(lines)} lines, consider splitting")
        start = None
        for number, line in enumerate(lines, 1):
            if line == "{":
                start = number
            elif line == "}" and start:
                if number - start > 100:
                    yield f"{name}:{start}: function of {number - start} lines, at most 100"
                start = None


def check_banned():
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
    for path in sources(".c", ".h"):
        for number, line in enumerate(strip_comments(path.read_text()).splitlines(), 1):
            match = pattern.search(line)
            if match:
                yield (f"{path.relative_to(ROOT)}:{number}: {match[1]}() is banned; "
                       f"use {BANNED[match[1]]}")
    for path in sources(".c", ".h"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.match(r"\s*//", line):
                yield f"{path.relative_to(ROOT)}:{number}: // is for debugging only"
            if "TODO" in line or "FIXME" in line or "XXX" in line.replace("XXXXXX", ""):
                yield f"{path.relative_to(ROOT)}:{number}: unfinished: {line.strip()}"


def check_words():
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                             capture_output=True, check=True).stdout.split("\n")
    # Spelled apart so that this file does not find itself.
    bad = re.compile("|".join(["/wo" + r"rk/", "hearth-" + "lab", r"deb\.deb" + "ian", "pypi" + r"\.org",
                               "regis" + r"try\.npm", "/tmp/b" + "-"]))
    for name in filter(None, tracked):
        path = ROOT / name
        if not path.is_file() or path.stat().st_size > 1 << 20:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if bad.search(line):
                yield f"{name}:{number}: names a place of one machine or a host: {line.strip()[:80]}"


def check_format():
    files = [str(p) for p in sources(".c", ".h")]
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], capture_output=True,
                          text=True)
    for line in done.stderr.splitlines():
        if "error:" in line:
            yield line.replace(str(ROOT) + "/", "")


def main():
    checks = {"layers": check_layers, "size": check_size, "banned": check_banned,
              "words": check_words, "format": check_format}
    if len(sys.argv) != 2 or sys.argv[1] not in checks:
        sys.exit(__doc__)
    findings = list(checks[sys.argv[1]]())
    for finding in findings[:100]:
        print(finding)
    print(f"{sys.argv[1]}: {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
