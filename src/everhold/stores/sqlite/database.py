"""One SQLite file: opening, migrating, copying it, long reads, and the translation of its errors.

Rules
  1. Opening never leaves a half-made database: tables and format number are written in one
     transaction.
  2. A file with a newer format, or of another program, is refused before anything is written.
  3. Migrations go forward one number at a time, after a backup was made beside the file.
  4. SQLite's busy handler is not used on the loop's thread: it would block the loop.
  5. A database records which file it is in. The first process that opens a copy checks whether it
     came with its write-ahead log, and stores the result.
  6. A read that may visit every row starts on the loop, where most are short. After `STEPS`
     instructions of SQLite it is interrupted, and a thread runs it again from the beginning, with
     a connection of its own.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeVar

from everhold.errors import (
    BadSetting,
    BadValue,
    EverholdError,
    ReadOnlyStore,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreNewer,
    StoreUnavailable,
)
from everhold.portability import sync_folder
from everhold.ports.store import ProgressCallback

T = TypeVar("T")

#: "evrh": lets `file` and everhold recognise the database.
APPLICATION_ID: Final = 0x65767268
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def load_migrations() -> list[str]:
    """The migrations in order; the first one creates an empty database."""
    folder = resources.files(__package__) / "migrations"
    return [
        entry.read_text()
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".sql")
    ]


def connect_file(path: Path) -> sqlite3.Connection:
    """Opens a connection with our settings. Creates the file and its folder for this user alone if
    needed.
    """
    try:
        if not path.exists():
            # SQLite syncs the folder of its file; its new parents are synced here
            made = [one for one in (path.parent, *path.parent.parents) if not one.exists()]
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for one in made:
                with suppress(OSError):  # like SQLite: not every file system can sync a folder
                    sync_folder(one.parent)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        # isolation_level=None: Python begins no transactions of its own. timeout=0: rule 4.
        connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    except OSError as error:
        raise StoreUnavailable(str(path), error.strerror or str(error), _hint(error)) from None
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, str(path)) from None
    return connection


def _hint(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "Allow this user to write to the folder, or name another database."
    return ""


def prepare_database(
    connection: sqlite3.Connection, path: Path, steps: list[str] | None = None
) -> None:
    """Prepares the file: write-ahead log, format, tables. Waits a little for another process that
    does the same.
    """
    known = load_migrations() if steps is None else steps
    _retry_while_locked(connection, path, lambda: _prepare(connection, path, known))


def _retry_while_locked(connection: sqlite3.Connection, path: Path, act: Callable[[], T]) -> T:
    """Runs `act` as soon as no other process locks the file. It blocks the loop with `sleep`,
    which is harmless while a store opens.
    """
    deadline = time.monotonic() + 10
    while True:
        try:
            return act()
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not is_busy_error(error) or time.monotonic() > deadline:
                raise translate_sqlite_error(error, str(path)) from None
            time.sleep(0.005)
        # SQLite's message about a damaged schema quotes the damage
        except UnicodeDecodeError as error:
            raise StoreDamaged(str(path), str(error)) from None


def _prepare(connection: sqlite3.Connection, path: Path, steps: list[str]) -> None:
    run = connection.execute
    found = _format(connection, path, len(steps))
    if run("PRAGMA journal_mode").fetchone()[0] != "wal":
        run("PRAGMA page_size = 4096")  # cannot be changed once the file has a write-ahead log
        if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreUnavailable(
                str(path), "its folder does not allow a write-ahead log", "Use a local disk."
            )
    run("PRAGMA synchronous = NORMAL")
    run("PRAGMA wal_autocheckpoint = 0")  # a thread does that: see checkpoint.py
    run("PRAGMA fullfsync = 1")  # macOS: otherwise fsync does not reach the disk
    if found == len(steps):
        return
    if found:
        _copy(connection, path, found)
    run("BEGIN IMMEDIATE")
    found = _format(connection, path, len(steps))  # another process may have been faster
    for step in steps[found:]:
        for statement in _statements(step):
            run(statement)
    run("INSERT OR IGNORE INTO file (one, inode, alone) VALUES (1, ?, 0)", (_inode(path),))
    run(f"PRAGMA application_id = {APPLICATION_ID}")
    run(f"PRAGMA user_version = {len(steps)}")
    run("COMMIT")
    run("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # so that the file alone has the tables


def has_log(path: Path) -> bool:
    """Whether a write-ahead log is beside a file that is not open yet."""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except OSError:
        return False


def is_copied_alone(connection: sqlite3.Connection, path: Path, *, logged: bool) -> bool:
    """Whether the file is a copy made without its write-ahead log; `logged` says whether it has one
    now.
    """
    return _retry_while_locked(
        connection, path, lambda: _is_copied_alone(connection, _inode(path), logged)
    )


def _is_copied_alone(connection: sqlite3.Connection, inode: str, logged: bool) -> bool:
    run = connection.execute
    row = run("SELECT inode, alone FROM file").fetchone()
    if row is None:  # it was made by `everhold db copy`
        return False
    if row[0] == inode:
        return bool(row[1])
    try:
        run("BEGIN IMMEDIATE")
        run(
            "UPDATE file SET inode = ?, alone = max(alone, ?) WHERE inode <> ?",
            (inode, int(not logged), inode),
        )
        run("COMMIT")
    except sqlite3.Error as error:
        if _code(error) != sqlite3.SQLITE_READONLY:
            raise
        if connection.in_transaction:
            run("ROLLBACK")
        return bool(row[1]) or not logged
    return bool(run("SELECT alone FROM file").fetchone()[0])


def adopt_copied_file(connection: sqlite3.Connection, path: Path) -> None:
    """Records the file's identity in a complete copy."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'file'").fetchone():
        with connection:
            connection.execute("UPDATE file SET inode = ?, alone = 0", (_inode(path),))


def _inode(path: Path) -> str:
    return str(os.stat(path).st_ino)


def _format(connection: sqlite3.Connection, path: Path, known: int) -> int:
    """The format of the file; 0 if empty. Refuses a file of another program or a newer format."""
    found, owner, filled = _marks(connection)
    if owner != APPLICATION_ID:
        if found or owner or filled:
            raise StoreUnavailable(
                str(path), "it is a database of another program", "Name another file."
            )
        return 0
    if found > known:
        raise StoreNewer(str(path), found, known)
    return found


def _marks(connection: sqlite3.Connection) -> tuple[int, int, bool]:
    """Reads format, owner and whether there are tables at one moment: another process may be
    creating the file.
    """
    run = connection.execute
    alone = not connection.in_transaction
    if alone:
        run("BEGIN")
    try:
        found = run("PRAGMA user_version").fetchone()[0]
        owner = run("PRAGMA application_id").fetchone()[0]
        return found, owner, run("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
    finally:
        if alone and connection.in_transaction:
            run("COMMIT")


def _copy(connection: sqlite3.Connection, path: Path, found: int) -> None:
    """Makes a backup beside the file before a migration."""
    target = path.with_name(f"{path.name}.format-{found}")
    if target.exists():
        return
    partial = target.with_name(target.name + f".{os.getpid()}")
    os.close(os.open(partial, os.O_CREAT | os.O_WRONLY, 0o600))
    copy = sqlite3.connect(partial)
    try:
        connection.backup(copy)
        adopt_copied_file(copy, partial)
        is_old = copy.execute("PRAGMA user_version").fetchone()[0] == found
    finally:
        copy.close()
    if is_old:
        os.replace(partial, target)
    else:  # another process has migrated meanwhile and made the backup
        partial.unlink()


class DatabaseFile:
    """The identity of an open file. SQLite does not notice that its file was removed, and keeps
    writing to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.path.abspath(path)  # the working directory may change
        try:
            found = os.stat(self.path)
        except OSError:
            raise self.gone() from None
        self.inode = found.st_ino
        self.device = found.st_dev

    def check(self) -> None:
        """Raises `StoreUnavailable` if the file at the path was removed or replaced."""
        try:
            found = os.stat(self.path)
        except OSError:
            raise self.gone() from None
        if found.st_ino != self.inode or found.st_dev != self.device:
            raise self.gone()

    def connect(self, timeout: float = 0.0) -> sqlite3.Connection:
        """Opens another connection to the file; never creates a new file."""
        self.check()
        at = Path(self.path).as_uri() + "?mode=rw"
        return sqlite3.connect(at, uri=True, isolation_level=None, timeout=timeout)

    def gone(self) -> StoreUnavailable:
        """The error for a write into a file that was removed from its path."""
        hint = "Restore the file, or restart the process; this call wrote nothing."
        return StoreUnavailable(self.path, "it was removed or replaced while it was open", hint)


class ClosedConnection:
    """Stands in for the connection of a store that is not open; every use raises
    `StoreUnavailable`.
    """

    def __init__(self, where: str) -> None:
        self._where = where

    def __call__(self, *_: Any) -> Any:
        hint = "Use it within `async with everhold.open(…) as runtime:`."
        raise StoreUnavailable(self._where, "it was closed, or never opened", hint)

    def __getattr__(self, name: str) -> Any:
        return self()


def _statements(script: str) -> list[str]:
    """The statements of a migration; a statement ends with `;` at the end of a line."""
    statements = []
    lines = []
    for line in script.splitlines():
        lines.append(line)
        if sqlite3.complete_statement("\n".join(lines)):
            statements.append("\n".join(lines))
            lines = []
    return statements


def is_busy_error(error: sqlite3.Error) -> bool:
    return _code(error) in _BUSY


def _code(error: sqlite3.Error) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code


def translate_sqlite_error(error: sqlite3.Error, where: str) -> EverholdError:
    """Translates an SQLite error."""
    code = _code(error)
    if code in _BUSY:
        return StoreBusy(where, 0)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(where)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return ReadOnlyStore(where)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(where, str(error))
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(where, "the file or its folder cannot be opened")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(
            where, f"the disk failed ({error})", "Check the disk; nothing was changed."
        )
    if isinstance(error, sqlite3.ProgrammingError) and "thread" in str(error):
        hint = (
            "Use a runtime in the thread that opened it; everhold.open_blocking makes one for all"
            " threads."
        )
        return StoreUnavailable(where, "it was opened in another thread", hint)
    if code == sqlite3.SQLITE_MISMATCH or isinstance(
        error, sqlite3.InterfaceError | sqlite3.ProgrammingError
    ):
        return BadValue("the value", str(error))
    return StoreDamaged(where, str(error))


#: Pages that are copied between two progress reports.
PAGES: Final = 256


def copy_database(source: Path, target: Path, progress: ProgressCallback | None = None) -> int:
    """Copies a whole database into a new file, for this user alone; returns its size. Never
    overwrites a file.
    """
    if target.exists():
        raise BadSetting("target", f"{target} already exists; name a new file")
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
            # In a transaction the copy shows one moment, and need not start again when others
            # write.
            origin.execute("BEGIN")
            origin.execute("SELECT count(*) FROM sqlite_master").fetchone()
            origin.backup(copied, pages=PAGES, progress=_adapt_progress(progress))
            copied.execute("PRAGMA journal_mode = DELETE")  # one file, complete without a log
            adopt_copied_file(copied, target)
    except sqlite3.Error as error:
        raise translate_sqlite_error(error, str(target)) from None


def _adapt_progress(progress: ProgressCallback | None) -> Callable[[int, int, int], object] | None:
    if progress is None:
        return None
    return lambda status, left, pages: progress(pages - left, pages)


R = TypeVar("R")

#: Instructions of SQLite's virtual machine that a statement may take on the loop: a few
#: milliseconds.
STEPS: Final = 100_000


class ScanTooLong(Exception):
    """A statement took more than `STEPS`."""


@contextmanager
def limit_steps(connection: sqlite3.Connection) -> Iterator[None]:
    """Makes statements raise `ScanTooLong` after `STEPS` instructions."""
    connection.set_progress_handler(lambda: 1, STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        raise ScanTooLong from None
    finally:
        connection.set_progress_handler(None, 0)


async def run_in_thread(place: DatabaseFile, act: Callable[[sqlite3.Connection], R]) -> R:
    """Runs a read in a thread, in one transaction. Cancelling the caller interrupts it."""
    left = threading.Event()

    def work() -> R:
        with closing(place.connect()) as connection:
            # Another process may lock the file for a moment, for example to restart its log. This
            # thread may sleep until then; the loop's thread may not.
            connection.execute("PRAGMA busy_timeout = 10000")
            connection.set_progress_handler(left.is_set, STEPS)
            connection.execute("BEGIN")
            return act(connection)

    try:
        return await asyncio.get_running_loop().run_in_executor(None, work)
    except asyncio.CancelledError:
        left.set()
        raise


class ThreadProgress:
    """Reports a thread's progress on the loop. An exception from `progress` stops the thread."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress, self._loop = progress, asyncio.get_running_loop()
        self._error: Exception | None = None

    def __call__(self, done: int, total: int) -> None:
        """Called in the thread."""
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
        """Raises what the last call of `progress` raised."""
        if self._error is not None:
            raise self._error


#: Instructions that `read_view` may take: a few tens of milliseconds.
VIEW_STEPS: Final = 1_000_000


def read_view(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Runs one SELECT on the public views, beside whatever else uses the file. Never creates,
    migrates or locks a database; after `VIEW_STEPS` instructions it returns the rows found so far.
    """
    # Without a log, `immutable` leaves no file behind. A log beside the file belongs to a process
    # that is working, or to a copy whose log must not be checkpointed here.
    mode = "ro" if has_log(path) else "ro&immutable=1"
    rows: list[tuple[Any, ...]] = []
    try:
        at = f"{path.absolute().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(at, uri=True, timeout=0)) as connection:
            connection.set_progress_handler(lambda: 1, VIEW_STEPS)
            for row in connection.execute(sql, values):
                rows.append(row)
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
            raise translate_sqlite_error(error, str(path)) from None
    return rows
