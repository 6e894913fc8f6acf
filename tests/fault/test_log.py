"""The write-ahead log of a file stays small while several processes write, and nobody waits for it
on the loop.
"""

import asyncio
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import everhold
from everhold.ports.store import WorkerRecord
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, checkpoint
from everhold.stores.sqlite.checkpoint import Checkpoints
from everhold.stores.sqlite.database import DatabaseFile
from everhold.testing.faults import Nursery, read_all_lines
from tests.fault.crowd import dictation

MB = 1024 * 1024
MANY = 10_000
TRUNCATE = "PRAGMA wal_checkpoint(TRUNCATE)"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.crowd") as found:
        yield found


def size(path: Path) -> int:
    """Bytes of the write-ahead log."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


@contextmanager
def sampled(path: Path) -> Iterator[list[int]]:
    """The sizes of the log, looked at by a thread every few milliseconds."""
    sizes, over = [0], threading.Event()

    def sample() -> None:
        # clock: a pause between two looks
        while not over.wait(0.005):
            sizes.append(size(path))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("writers", "work"),
    [
        (2, {"answers": 1200, "length": 40_000}),
        pytest.param(4, {"answers": 1000, "length": 200, "seconds": 60.0}, marks=pytest.mark.soak),
        pytest.param(4, {"answers": 3000, "length": 40_000}, marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(600)
async def test_the_log_stays_small_beside_several_writers(
    nursery: Nursery, tmp_path: Path, writers: int, work: dict[str, Any]
) -> None:
    """Writers and a reader at full speed: the log stays under 64 MB, no answer is lost, no writer
    fails.
    """
    path, sign = tmp_path / "log.db", tmp_path / "enough"
    async with Runtime(SQLiteStore(path)):
        pass
    reader = nursery.start("read", path=str(path), until=str(sign))
    assert next(reader.lines()) == "reads"
    children = [nursery.start("write", path=str(path), **work) for _ in range(writers)]
    with sampled(path) as sizes:
        printed = [line.split(" ") for lines in read_all_lines(children) for line in lines]
    sign.touch()
    assert [child.wait() for child in (*children, reader)] == [0] * (writers + 1)
    for child in (*children, reader):
        child.close()
    assert 0 < max(sizes) < 64 * MB
    store = SQLiteStore(path)
    await store.open()
    steps = {
        session_id: (await store.load(session_id, since=-1)).head.n for session_id, _ in printed
    }
    await store.close()
    assert steps == {session_id: int(given) for session_id, given in printed}


class Recorded(sqlite3.Connection):
    """A connection that records the checkpoints that are made, by thread."""

    made: ClassVar[Counter[tuple[bool, str]]] = Counter()
    loop_thread = 0

    def execute(self, *args: Any) -> Any:
        self.record(args[0])
        return super().execute(*args)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(RecordedCursor)

    @classmethod
    def record(cls, statement: str) -> None:
        if "wal_checkpoint" in statement:
            cls.made[threading.get_ident() == cls.loop_thread, statement] += 1


class RecordedCursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> Any:
        Recorded.record(args[0])
        return super().execute(*args)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bool, str]]:
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Recorded)
    )
    monkeypatch.setattr(Recorded, "made", Counter())
    monkeypatch.setattr(Recorded, "loop_thread", threading.get_ident())
    return Recorded.made


async def test_the_loop_makes_no_checkpoint(
    recorded: Counter[tuple[bool, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers, and writes that are not steps, have the log truncated: by a thread, never by the
    loop's.
    """
    monkeypatch.setattr(checkpoint, "LIMIT", MB)
    path = tmp_path / "log.db"
    async with Runtime(SQLiteStore(path)) as runtime:
        recorded.clear()  # a new file is moved once while it is opened, when nothing runs yet
        status = await runtime.start(dictation())
        for _ in range(MANY):
            status = await runtime.answer(status.queries[0], "v" * 8000)
            if recorded[False, TRUNCATE]:
                break
        assert recorded.pop((False, TRUNCATE)) > 0
        for _ in range(MANY):
            await runtime.store.beat(WorkerRecord("w-1", "h" * 4000, 1, 60.0, 0.0))
            await asyncio.sleep(0)
            if recorded[False, TRUNCATE]:
                break
        assert recorded[False, TRUNCATE] > 0
    assert [place for place in recorded if place[0]] == []


async def test_commits_wait_while_the_log_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the upper limit a commit waits for the thread, the loop turns meanwhile, and then it
    lands.
    """
    monkeypatch.setattr(checkpoint, "LIMIT", MB)
    monkeypatch.setattr(checkpoint, "MOST", 2 * MB)
    go, path = threading.Event(), tmp_path / "log.db"
    move = Checkpoints.move
    monkeypatch.setattr(Checkpoints, "move", lambda self: (go.wait(60), move(self))[1])
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(dictation())
        given = 0
        while given < MANY:
            answering = asyncio.ensure_future(runtime.answer(status.queries[0], "v" * 8000))
            for _ in range(20):
                await asyncio.sleep(0)
            if not answering.done():
                break
            status, given = answering.result(), given + 1
        beating = asyncio.ensure_future(
            runtime.store.beat(WorkerRecord("w-1", "here", 1, 60.0, 0.0))
        )
        reached = size(path)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not answering.done() and not beating.done() and size(path) == reached
        assert 2 * MB < reached < 8 * MB
        go.set()
        await asyncio.gather(answering, beating)
        assert (await runtime.store.load(status.session_id, since=-1)).head.n == given + 1
        assert size(path) < reached


@pytest.fixture
def file(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with a write-ahead log that is not moved by itself."""
    connection = sqlite3.connect(tmp_path / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute("CREATE TABLE t (x)")
    yield connection
    connection.close()


def filled(connection: sqlite3.Connection, megabytes: int) -> None:
    for _ in range(megabytes):
        connection.execute("INSERT INTO t VALUES (randomblob(1048576))")


def test_a_reader_that_stays_holds_writers_off_once(
    recorded: Counter[tuple[bool, str]],
    file: sqlite3.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a reader keeps the log, writers are held off once, not for each try; the log is
    truncated afterwards.
    """
    monkeypatch.setattr(checkpoint, "LIMIT", MB)
    path = tmp_path / "plain.db"
    checkpoints = Checkpoints(DatabaseFile(path), str(path))
    filled(file, 2)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchone()
    filled(file, 2)
    for _ in range(5):
        checkpoints.move()
        filled(file, 1)
    assert recorded[True, TRUNCATE] == 1
    assert size(path) > 8 * MB
    reader.execute("COMMIT")
    reader.close()
    checkpoints.move()
    assert size(path) == 0
    assert file.execute("SELECT count(*) FROM t").fetchone() == (9,)


def test_one_process_at_a_time_truncates(file: sqlite3.Connection, tmp_path: Path) -> None:
    """Four of them at once find a large log: SQLite lets one act, none fails, and the log is empty
    afterwards.
    """
    path = tmp_path / "plain.db"
    filled(file, 40)
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(Checkpoints(DatabaseFile(path), str(path)).move) for _ in range(4)]
    assert [job.exception() for job in jobs] == [None] * 4
    assert size(path) == 0
    assert file.execute("SELECT count(*) FROM t").fetchone() == (40,)


def test_a_small_log_begins_anew_in_its_file(file: sqlite3.Connection, tmp_path: Path) -> None:
    """The next writer overwrites what was moved: the file neither grows nor has to be made longer
    again.
    """
    path = tmp_path / "plain.db"
    checkpoints = Checkpoints(DatabaseFile(path), str(path))
    sizes = []
    for _ in range(5):
        filled(file, 2)
        sizes.append(size(path))
        checkpoints.move()
    assert sizes == sizes[:1] * 5 and size(path) == sizes[0]
    assert file.execute("SELECT count(*) FROM t").fetchone() == (10,)


async def test_a_checkpoint_that_fails_is_told_once_and_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk fails under the thread: commits land, one warning is logged, and no error is left to
    the loop.
    """
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    failures = 0

    def failing(connection: sqlite3.Connection, mode: str) -> Any:
        nonlocal failures
        failures += 1
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    monkeypatch.setattr(checkpoint, "LIMIT", MB)
    monkeypatch.setattr(checkpoint, "_REST", 0.0)
    monkeypatch.setattr(checkpoint, "_checkpoint", failing)
    with caplog.at_level(logging.WARNING, "everhold"):
        async with Runtime(SQLiteStore(tmp_path / "log.db")) as runtime:
            status = await runtime.start(dictation())
            given = 0
            while failures < 3 and given < MANY:
                status = await runtime.answer(status.queries[0], "v" * 8000)
                given += 1
            assert isinstance(status, everhold.Paused)
            assert (await runtime.store.load(status.session_id, since=-1)).head.n == given
    told = [record for record in caplog.records if "write-ahead log" in record.message]
    assert (failures >= 3, len(told)) == (True, 1)
    assert isinstance(told[0].args[0], everhold.EverholdError)
    assert unhandled == []
