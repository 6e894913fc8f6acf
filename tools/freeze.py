"""Freeze a database of the present format into tests/data, for every later version to open.

    python -m tools.freeze            writes tests/data/format-N.db

A frozen database is never made again once a version with its format was released: later versions
must open real files of earlier versions.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

from everhold.stores.sqlite.database import load_migrations

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300_000


def main() -> int:
    path = ROOT / "tests" / "data" / f"format-{len(load_migrations())}.db"
    path.parent.mkdir(exist_ok=True)
    for old in path.parent.glob(f"{path.name}*"):
        old.unlink()
    asyncio.run(import_module("tests.fault.house").furnish(path))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM file")  # it is made to be copied
        connection.commit()
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    return 0 if size <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
