"""Checkpoints: a thread with its own connection moves the write-ahead log into the database file.

Rules
  1. The loop's thread never makes a checkpoint and never waits for one: it only looks at the size
     of the log.
  2. After some changes the thread makes a passive checkpoint. That blocks no other process, but it
     never resets the log of a busy writer. A restart moves the few frames that arrived meanwhile,
     and the next writer starts the log from the beginning, in blocks that are already allocated.
     Writers are refused for that moment and try again.
  3. Above `LIMIT` bytes the thread truncates the log. SQLite lets one process at a time do that. It
     takes longer, and the file must grow again, so it is only used when restarts did not keep the
     log small.
  4. Above `MOST` bytes, commits of this process wait until its thread has tried.
  5. A reader that stays open holds the log. The thread waits for it once, for at most `HOLD`
     seconds, and then lets the log grow until the reader moves on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from everhold.errors import StoreUnavailable
from everhold.stores.sqlite.database import DatabaseFile, is_busy_error, translate_sqlite_error

log = logging.getLogger("everhold")

#: Changes after which the size of the log is checked, and after which a passive checkpoint runs.
LOOK_AFTER: Final = 100
#: The same while the log is above `LIMIT`: 100 large changes of several writers are many megabytes.
LOOK_AFTER_LARGE: Final = 10
MOVE_AFTER: Final = 1000
#: Bytes of the log above which it is truncated, and above which commits wait for that.
LIMIT: Final = 32 * 1024 * 1024
MOST: Final = 48 * 1024 * 1024
#: Bytes of the log that the last connection may move when it closes.
_LITTLE: Final = 1024 * 1024
#: Seconds for which a truncation may block writers while it waits for readers.
HOLD: Final = 0.25
#: Milliseconds for which a restart of the log may block writers.
_BRIEFLY: Final = 10
#: Seconds after which a job gives up, and between its tries.
_PATIENCE: Final = 1.0
_PAUSE: Final = 0.005
#: Seconds between two jobs.
_REST: Final = 0.05


class Checkpoints:
    """The checkpoints of one store. `wrote` is called after each transaction."""

    def __init__(self, place: DatabaseFile, where: str) -> None:
        self._place = place
        self._where = where
        self._log = place.path + "-wal"
        # the thread starts with its first job
        self._thread = ThreadPoolExecutor(1, "everhold-checkpoint")
        self._job: asyncio.Future[None] | None = None
        self._held: asyncio.Future[None] | None = None  # the job that commits wait for, if any
        self._looked_after = self._moved_after = 0  # changes since the last look, the last job
        self._look_after = LOOK_AFTER
        self._rest_until = 0.0
        # frames that the last failed truncation had moved; only the thread uses it
        self._stuck_at = -1
        self._logged = ""  # the last message that was logged
        self._closed = False

    def wrote(self, changes: int) -> asyncio.Future[None] | None:
        """Counts committed changes; returns what the next commit must wait for, if anything."""
        self._looked_after += changes
        return self._check_size() if self._looked_after >= self._look_after else None

    def _check_size(self) -> asyncio.Future[None] | None:
        self._moved_after += self._looked_after
        self._looked_after = 0
        size = self._size()
        self._look_after = LOOK_AFTER if size <= LIMIT else LOOK_AFTER_LARGE
        if (
            self._job is None
            and (size > LIMIT or self._moved_after >= MOVE_AFTER)
            and not self._closed
            and asyncio.get_running_loop().time() >= self._rest_until
        ):
            try:
                self._begin()
            # no thread could be started; the changes are committed all the same
            except RuntimeError as error:
                self._log_failure(error)
        self._held = self._job if size > MOST else None
        return self._held

    def _begin(self) -> asyncio.Future[None]:
        self._moved_after = 0
        self._job = job = asyncio.get_running_loop().run_in_executor(self._thread, self.move)
        job.add_done_callback(self._done)
        return job

    async def room(self) -> None:
        """Waits until the log may grow."""
        if self._held is not None:
            await asyncio.wait([self._held])

    def _done(self, job: asyncio.Future[None]) -> None:
        self._job = self._held = None
        self._rest_until = job.get_loop().time() + _REST
        self._log_failure(None if job.cancelled() else job.exception())

    def _log_failure(self, error: BaseException | None) -> None:
        """Logs why the log could not be moved, once per cause."""
        reason = "" if error is None else str(error)
        if reason and reason != self._logged:
            log.warning("the write-ahead log was not moved into the database: %s", error)
        self._logged = reason

    async def close(self) -> None:
        """Finishes the running job and starts no other, so that the last connection has little left
        to move when it closes.
        """
        self._closed = True
        if self._job is not None:
            await asyncio.wait([self._job])
        if self._size() > _LITTLE:
            await asyncio.wait([self._begin()])
        self._thread.shutdown()

    # ---- in the thread

    def move(self) -> None:
        """Moves the log into the file, then restarts it, or truncates it if it is large. Raises
        translated errors.
        """
        try:
            with closing(self._place.connect(timeout=HOLD)) as connection:
                connection.execute("PRAGMA fullfsync = 1")
                self._checkpoint_until_done(connection)
        except StoreUnavailable:
            pass  # a removed file has nothing to move, and must not be created again
        except sqlite3.Error as error:
            if not is_busy_error(error):  # otherwise the next job does it
                raise translate_sqlite_error(error, self._where) from None

    def _checkpoint_until_done(self, connection: sqlite3.Connection) -> None:
        end = time.monotonic() + _PATIENCE
        while True:
            _, frames, moved = _checkpoint(connection, "PASSIVE")
            if self._size() <= LIMIT:
                connection.execute(f"PRAGMA busy_timeout = {_BRIEFLY}")
                _checkpoint(connection, "RESTART")
                return
            if frames >= 0:  # otherwise another process is making a checkpoint
                if moved == self._stuck_at or not _checkpoint(connection, "TRUNCATE")[0]:
                    return
                self._stuck_at = moved
            if time.monotonic() > end:
                return
            time.sleep(_PAUSE)

    def _size(self) -> int:
        try:
            return os.stat(self._log).st_size
        except OSError:
            return 0


def _checkpoint(connection: sqlite3.Connection, mode: str) -> tuple[int, int, int]:
    """Runs a checkpoint: whether it was blocked, the frames in the log, and the frames moved."""
    row: tuple[int, int, int] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return row
