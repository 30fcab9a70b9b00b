"""Counts the tests of a run from its JUnit files: names what failed and what was skipped and why.

The last line is `N passed, N failed, N skipped`; the exit status is 1 when a test failed or none ran.
"""
import collections
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def last_line(text):
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def why_failed(case, message):
    """The harness marks the place with `not ok`; elsewhere the last line is the best there is."""
    lines = (case.findtext("system-out") or "").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("not ok"):
            return " ".join(part.strip() for part in lines[number:number + 2])
    if message and message != "Failed":
        return message
    return last_line(case.findtext("system-out")) or message


def outcome(case):
    """('passed' | 'failed' | 'skipped', reason) of one test case."""
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            return "failed", why_failed(case, found.get("message"))
    found = case.find("skipped")
    if found is not None:
        reason = found.get("message") or ""
        # ctest only knows the exit status; the program's last line says why.
        if "SKIP_RETURN_CODE" in reason or not reason:
            reason = last_line(case.findtext("system-out")) or reason
        return "skipped", reason
    return "passed", ""


def main():
    counts = collections.Counter()
    failed = []
    skipped = collections.defaultdict(list)
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        for case in ElementTree.parse(path).iter("testcase"):
            kind, reason = outcome(case)
            counts[kind] += 1
            name = f"{path.stem}: {case.get('name')}"
            if kind == "failed":
                failed.append((name, last_line(reason)[:200]))
            elif kind == "skipped":
                skipped[reason].append(name)
    for reason, names in sorted(skipped.items()):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"skipped: {', '.join(names[:3])}{more}: {reason}")
    for name, reason in failed:
        print(f"FAILED: {name}: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
