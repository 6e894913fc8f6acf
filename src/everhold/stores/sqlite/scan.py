"""Long reads run in a thread, with a connection of their own.

A read that may look at every row begins on the loop, where most are short. After `STEPS`
instructions of SQLite it is interrupted, and a thread does it from the beginning.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final, TypeVar

from everhold.ports.store import ProgressCallback
from everhold.stores.sqlite.database import DatabaseFile

T = TypeVar("T")

#: Instructions of SQLite's virtual machine that one statement may take on the loop: a few
#: milliseconds.
STEPS: Final = 100_000


class ScanTooLong(Exception):
    """A statement took more than `STEPS`."""


@contextmanager
def limit_steps(connection: sqlite3.Connection) -> Iterator[None]:
    """Raise `ScanTooLong` where a statement takes more than `STEPS`."""
    connection.set_progress_handler(lambda: 1, STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise ScanTooLong from None
    finally:
        connection.set_progress_handler(None, 0)


async def run_in_thread(place: DatabaseFile, act: Callable[[sqlite3.Connection], T]) -> T:
    """Run a read in a thread, in one transaction. It is interrupted if its caller is cancelled."""
    left = threading.Event()

    def work() -> T:
        with closing(place.connect()) as connection:
            connection.set_progress_handler(left.is_set, STEPS)
            connection.execute("BEGIN")
            return act(connection)

    try:
        return await asyncio.get_running_loop().run_in_executor(None, work)
    except asyncio.CancelledError:
        left.set()
        raise


class ThreadProgress:
    """The progress of a thread, told on the loop. What `progress` raises there stops the thread."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress, self._loop = progress, asyncio.get_running_loop()
        self._error: Exception | None = None

    def __call__(self, done: int, total: int) -> None:
        """For the thread."""
        if self._error is not None:
            raise self._error
        self._loop.call_soon_threadsafe(self._tell, done, total)

    def _tell(self, done: int, total: int) -> None:
        if self._error is None:
            try:
                self._progress(done, total)
            except Exception as error:
                self._error = error

    def check(self) -> None:
        """Raise what the last call of `progress` raised."""
        if self._error is not None:
            raise self._error
