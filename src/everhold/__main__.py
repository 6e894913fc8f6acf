"""The command `everhold`, also as `python -m everhold`."""

from __future__ import annotations

import gc
import sys

#: Objects with references after which Python looks for unreachable cycles. Its own value is for
#: small programs: with 1,000 sessions at work, it takes two fifths of the CPU time.
GC_THRESHOLD = 50_000


def main() -> None:
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])  # the process is everhold's own

    from everhold.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
