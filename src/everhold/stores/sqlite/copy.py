"""Copying a database while it is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from everhold.errors import BadSetting, StoreUnavailable
from everhold.ports.store import ProgressCallback
from everhold.stores.sqlite.database import adopt_copied_file, translate_sqlite_error

#: Pages that are copied before it is told how far that is.
PAGES: Final = 256


def copy_database(source: Path, target: Path, progress: ProgressCallback | None = None) -> int:
    """Copy a whole database into a new file, for this user alone; returns its size. Overwrites
    nothing.
    """
    if target.exists():
        raise BadSetting("target", f"{target} is there already; name a file that is not")
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreUnavailable(str(target), error.strerror or str(error)) from None
    try:
        _backup(source, partial, progress)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def _backup(source: Path, target: Path, progress: ProgressCallback | None) -> None:
    try:
        with (
            closing(sqlite3.connect(source, timeout=10)) as origin,
            closing(sqlite3.connect(target)) as copied,
        ):
            # In a transaction the copy is of one moment, and need not begin anew when others write.
            origin.execute("BEGIN")
            origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
            origin.backup(copied, pages=PAGES, progress=_told(progress))
            copied.execute("PRAGMA journal_mode = DELETE")  # one file, complete in itself
            adopt_copied_file(copied, target)
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, str(target)) from None


def _told(progress: ProgressCallback | None) -> Callable[[int, int, int], object] | None:
    if progress is None:
        return None
    return lambda status, left, pages: progress(pages - left, pages)
