"""The command `everhold`, also as `python -m everhold`."""

from __future__ import annotations

import gc
import sys

#: Objects with references after which Python looks for unreachable cycles. Its own value is for
#: small programs: with 1,000 sessions at work, it takes two fifths of the CPU time.
GC_THRESHOLD = 50_000
#: The exit code after Ctrl-C: `ExitCode.INTERRUPTED` of `wire.py`, which may not be imported yet.
INTERRUPTED = 130


def main() -> None:
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])  # the process is everhold's own

    try:
        from everhold.cli.app import main as run

        code = run()
    except KeyboardInterrupt:  # while the command was imported
        code = INTERRUPTED
    if code == INTERRUPTED:
        from everhold.ports.script_end import leave_threads

        leave_threads(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
