"""Cases of a client's script: one line each, as cases.mjs."""
import sys
import time
import traceback

failed = 0


def case(name):
    """Runs what it decorates at once."""
    def decorate(fn):
        global failed
        started = time.monotonic()
        try:
            fn()
            print(f"ok {name} {int(1000 * (time.monotonic() - started))} ms", flush=True)
        except BaseException:  # noqa: B036 (the report is the point)
            failed += 1
            print(f"FAIL {name}: " + traceback.format_exc().replace("\n", " | "), flush=True)
        return fn
    return decorate


def end():
    sys.exit(1 if failed else 0)
