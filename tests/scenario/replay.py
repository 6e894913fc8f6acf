"""Replay journals in this process: python -m tests.scenario.replay TAPES. Says which one does not
replay.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from everhold.packages.find import find_program
from everhold.ports.program import set_signals_handled
from everhold.ports.store import SessionRecord
from tests.scenario.harness import again


def main(path):
    failed = 0
    set_signals_handled()  # a program that raised what Ctrl-C does has ended so
    for line in Path(path).read_bytes().splitlines():
        record = msgspec.json.decode(line, type=SessionRecord)
        try:
            asyncio.run(again(record, find_program))
        except Exception as error:
            failed += 1
            print(f"{record.birth.program}: {type(error).__name__}: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 100))
