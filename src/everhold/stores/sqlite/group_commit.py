"""Group commit in SQLite: one change in place, or many in one transaction; never blocks the loop.

Rules
  1. A task that commits alone in its turn of the loop commits in place: no future, no thread, no
     wait.
  2. A second task in the same turn waits for the end of the turn. All changes that arrived by then
     go into one transaction. Each change is isolated, so a refused one never fails the others.
  3. No task commits in place more than `TURNS` times (with fsync: 2) without yielding to the loop.
  4. When another process holds the write lock, the commit tries briefly, then retries
     asynchronously.
  5. Commits wait while the write-ahead log is too large: see `checkpoint`.
  6. Every transaction checks, right before it commits, that the file is still at its path.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from os import stat
from typing import Any, Final

from everhold.errors import (
    BadValue,
    EverholdError,
    Overtaken,
    StoreBusy,
    StoreDamaged,
    StoreNewer,
    StoreUnavailable,
)
from everhold.ports.store import Change
from everhold.stores.loop_turns import TURNS, current_task
from everhold.stores.sqlite.database import (
    DatabaseFile,
    is_busy_error,
    load_migrations,
    translate_sqlite_error,
)
from everhold.stores.sqlite.write import (
    DELIVER,
    LIGHT,
    make_delivery_row,
    make_light_row,
    write_change,
)

TURNS_FSYNCED: Final = 2
BATCH: Final = 1000
_FIRST_WAIT: Final = 50e-6
_LONGEST_WAIT: Final = 2e-3

Waiter = tuple[Change, int, "asyncio.Future[None]"]


class SQLiteGroupCommit:
    """The commits of one connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        where: str,
        *,
        fsync: bool,
        patience: float,
        place: DatabaseFile,
        after: Callable[[int], asyncio.Future[None] | None],
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._run = connection.cursor().execute
        self._many = connection.cursor()
        self._where = where
        self._fsync = fsync
        self._patience = patience
        self._place = place
        self._path = place.path
        self._inode = place.inode
        self._device = place.device
        # receives the number of changes in a transaction; returns what the next one must wait for
        self._after = after
        self._held: asyncio.Future[None] | None = None  # what the next batch waits for
        self._now = now
        self._turns = TURNS_FSYNCED if fsync else TURNS
        self._owner: asyncio.Task[Any] | None = None
        self._in_place = 0
        self._queue: list[Waiter] = []
        self._flushing = False
        self._retry: asyncio.Task[None] | None = None

    async def commit(self, change: Change, fence: int) -> None:
        """See `Store.commit`."""
        if (self._owner is not None and self._in_place >= self._turns) or not self.commit_now(
            change, fence
        ):
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            self._queue.append((change, fence, done))
            if not self._flushing:
                self._flushing = True
                loop.call_soon(self._flush)
            await done

    def commit_now(self, change: Change, fence: int) -> bool:
        """See `Store.commit_now`: commits in place if this task is the only one in this turn.

        The caller must yield to the loop now and then.
        """
        loop = asyncio.get_running_loop()
        task = current_task(loop)
        if self._owner is None:
            self._owner = task
            self._in_place = 0
            loop.call_soon(self._end_turn)
        if self._owner is task and not self._flushing:
            self._in_place += 1
            try:
                self._commit_in_place(change, fence)
                held = self._after(1)
                if held is not None:
                    self._hold(held)
                return True
            except sqlite3.Error as error:
                if not is_busy_error(error):
                    raise self._translate(error) from None
            except (TypeError, ValueError) as error:
                raise self._translate_value_error(error) from None
        return False

    def close(self) -> None:
        """Tries the waiting changes once more, then refuses them: the store is closed."""
        if self._retry is not None:
            self._retry.cancel()
        try:
            while self._queue and self._try_flush():
                pass
        finally:
            self._fail(StoreBusy(self._where, 0))

    # ---- alone

    def _end_turn(self) -> None:
        self._owner = None

    def _commit_in_place(self, change: Change, fence: int) -> None:
        run = self._run
        fsync = change.durable and not self._fsync
        if fsync:  # before BEGIN: it cannot be changed in a transaction
            run("PRAGMA synchronous = FULL")
        try:
            # IMMEDIATE takes the write lock now. A deferred transaction that reads first fails at
            # its first write if another process has committed in between.
            run("BEGIN IMMEDIATE")
            if change.light:
                if run(LIGHT, make_light_row(change.head, fence)).rowcount != 1:
                    raise Overtaken(change.id, fence)
                for delivery in change.deliveries:
                    run(DELIVER, make_delivery_row(change.head.ref, delivery))
            else:
                write_change(run, change, fence, self._now)
            # The same as `DatabaseFile.check`, without the call: this runs in every step.
            try:
                found = stat(self._path)
            except OSError:
                raise self._place.gone() from None
            if found.st_ino != self._inode or found.st_dev != self._device:
                raise self._place.gone()
            run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            if fsync:
                self._restore_synchronous()

    # ---- together

    def _flush(self) -> None:
        try:
            if not self._try_flush():
                self._retry = asyncio.get_running_loop().create_task(self._flush_later())
                return
        except BaseException as error:  # no caller may wait for ever
            self._fail(error)
        self._flushed()

    async def _flush_later(self) -> None:
        wait = _FIRST_WAIT
        waited = 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            while not self._try_flush():
                waited = loop.time() - began
                if waited > self._patience:
                    raise StoreBusy(self._where, waited)
                await asyncio.sleep(wait)
                wait = min(wait * 1.5, _LONGEST_WAIT)
        except BaseException as error:
            self._fail(error)
        self._flushed()

    def _flushed(self) -> None:
        held = self._held
        self._held = None
        if held is not None:
            self._hold(held)
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._flushing = False

    def _hold(self, until: asyncio.Future[None]) -> None:
        """Makes commits wait until then."""
        self._flushing = True
        until.add_done_callback(lambda _: self._flush())

    def _fail(self, error: BaseException) -> None:
        queue = self._queue
        self._queue = []
        told = error if isinstance(error, EverholdError) else StoreBusy(self._where, 0)
        for _, _, done in queue:
            if not done.done():
                done.set_exception(told)

    def _try_flush(self) -> bool:
        """Commits the waiting changes in one transaction; False if another process holds the write
        lock.
        """
        batch = self._queue[:BATCH]
        self._queue = self._queue[BATCH:]
        if not batch:
            return True
        run = self._run
        fsync = not self._fsync and any(change.durable for change, _, _ in batch)
        try:
            if fsync:
                run("PRAGMA synchronous = FULL")
            run("BEGIN IMMEDIATE")
            refused = self._write_all(batch)
            self._place.check()
            run("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            if is_busy_error(error):
                self._queue[:0] = batch
                return False
            refused = dict.fromkeys(range(len(batch)), self._translate(error))
        except StoreUnavailable as error:
            self._roll_back()
            refused = dict.fromkeys(range(len(batch)), error)
        except BaseException:
            self._roll_back()
            self._queue[:0] = batch  # the code that catches this reports it to them
            raise
        finally:
            if fsync:
                self._restore_synchronous()
        for index, (_, _, done) in enumerate(batch):
            if done.done():
                continue
            if index in refused:
                done.set_exception(refused[index])
            else:
                done.set_result(None)
        self._held = self._after(len(batch))
        return True

    def _write_all(self, batch: list[Waiter]) -> dict[int, EverholdError]:
        if all(change.light for change, _, _ in batch) and self._write_all_light(batch):
            return {}
        refused: dict[int, EverholdError] = {}
        run = self._run
        for index, (change, fence, _) in enumerate(batch):
            run("SAVEPOINT one")  # ROLLBACK TO keeps it open; RELEASE ends it in either case
            try:
                write_change(run, change, fence, self._now)
            except EverholdError as error:
                run("ROLLBACK TO one")
                refused[index] = error
            except (TypeError, ValueError, sqlite3.IntegrityError) as error:
                run("ROLLBACK TO one")
                refused[index] = self._translate_value_error(error)
            run("RELEASE one")
        return refused

    def _write_all_light(self, batch: list[Waiter]) -> bool:
        """Applies all changes at once; False, with nothing changed, if one of them is refused."""
        many = self._many
        run = self._run
        try:
            rows = [
                make_delivery_row(change.head.ref, one)
                for change, _, _ in batch
                for one in change.deliveries
            ]
        except (TypeError, ValueError):
            return False  # one by one, to find the refused one
        run("SAVEPOINT all_of_them")
        # The rowcount is the sum of all updates: it is smaller if one change was overtaken.
        many.executemany(LIGHT, [make_light_row(change.head, fence) for change, fence, _ in batch])
        if many.rowcount == len(batch):
            try:
                many.executemany(DELIVER, rows)
                run("RELEASE all_of_them")
                return True
            except sqlite3.IntegrityError:
                pass
        run("ROLLBACK TO all_of_them")
        run("RELEASE all_of_them")
        return False

    # ---- failures

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._run("ROLLBACK")

    def _restore_synchronous(self) -> None:
        self._run("PRAGMA synchronous = NORMAL")

    def _translate_value_error(self, error: Exception) -> EverholdError:
        """The error for a value that cannot be written or a row that cannot be read."""
        if isinstance(error, TypeError | UnicodeError):
            return BadValue("the change", str(error))
        return StoreDamaged(self._where, str(error))

    def _translate(self, error: sqlite3.Error) -> EverholdError:
        return find_newer_format(self._connection, self._where) or translate_sqlite_error(
            error, self._where
        )


def find_newer_format(connection: sqlite3.Connection, where: str) -> StoreNewer | None:
    """Whether another process has migrated the file to a newer format."""
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error:
        return None
    known = len(load_migrations())
    return StoreNewer(where, found, known) if found > known else None
