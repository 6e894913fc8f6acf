"""The command `everhold`, also as `python -m everhold`."""

from __future__ import annotations

import sys


def main() -> None:
    from everhold.cli.app import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
