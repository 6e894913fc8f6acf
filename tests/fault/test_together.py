"""Any number of processes use one file at once: nothing is lost, nothing is recorded twice,
refusals are typed.
"""

import asyncio
import resource
import sqlite3
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

import everhold
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.faults import Nursery, read_all_lines
from tests.fault.victim import ladder


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.crowd") as found:
        yield found


async def sound(path: Path) -> dict[str | None, SessionRecord]:
    """Every session by key, from a database without a problem."""
    store = SQLiteStore(path)
    await store.open()
    assert await store.maintenance.verify() == []
    found = [
        await store.load(each.birth.id) for each in await store.list(SessionFilter(limit=1000))
    ]
    assert (await store.value("default", "rungs"))[0] is not None
    await store.close()
    return {record.birth.key: record for record in found}


def crowded(nursery: Nursery, path: Path, people: int, **more: int) -> list[list[str]]:
    """Let so many processes do the same at once; what each of them printed."""
    children = [
        nursery.start("attend", path=str(path), person=person, **more) for person in range(people)
    ]
    printed = read_all_lines(children)
    codes = [child.wait() for child in children]
    for child in children:
        child.close()
    assert codes == [0] * people
    return printed


def checked(record: SessionRecord, people: int, rounds: int) -> list[str]:
    """A meeting that has ended, everybody's words once and in their place; returns who won what all
    were asked.
    """
    assert record.head.state == "completed"
    answers = [answer for delivery in record.deliveries for answer in delivery.answers]
    assert len(answers) == len({answer.id for answer in answers})
    last = record.deliveries[-1].notes
    assert last is not None
    said = last.outcome.value
    own = [[f"{number}-from-{person}" for person in range(people)] for number in range(rounds)]
    assert [words[:-1] for words in said] == own
    return [words[-1] for words in said]


@pytest.mark.parametrize(
    ("people", "meetings", "rounds"),
    [
        (2, 20, 15),
        (8, 10, 6),
        pytest.param(2, 40, 20, marks=pytest.mark.soak),
        pytest.param(8, 20, 10, marks=pytest.mark.soak),
    ],
)
async def test_processes_answer_the_same_and_different_sessions(
    nursery: Nursery, tmp_path: Path, people: int, meetings: int, rounds: int
) -> None:
    """Rounds of two processes and of eight: each one's answer is accepted, and one wins where they
    compete.
    """
    path = tmp_path / "crowd.db"
    assert (
        nursery.run("prepare", path=str(path), meetings=meetings, rounds=rounds, people=people)[0]
        == 0
    )
    printed = crowded(nursery, path, people, meetings=meetings, rounds=rounds, rungs=meetings)
    records = await sound(path)
    winners = {
        (record.birth.id, words)
        for key, record in records.items()
        if key.startswith("meeting")
        for words in checked(record, people, rounds)
    }
    assert len(winners) == meetings * rounds
    heard = [line.split(" ") for lines in printed for line in lines]
    accepted = {(words[1], words[3]) for words in heard if words[0] == "ack" and "-by-" in words[3]}
    assert accepted == winners
    assert {words[3] for words in heard if words[0] == "refused"} <= {"answer_conflict"}
    ladders = [record for key, record in records.items() if key.startswith("ladder")]
    assert [record.head.state for record in ladders] == ["completed"] * people


def test_processes_count_together(nursery: Nursery, tmp_path: Path) -> None:
    """Six processes raise one durable number 30 times each: none of the 180 is lost."""
    path = tmp_path / "count.db"
    children = [
        nursery.start("count", path=str(path), key=f"count-{n}", times=30) for n in range(6)
    ]
    sums = read_all_lines(children)
    assert [child.wait() for child in children] == [0] * 6
    assert max(float(words.split(" ")[1]) for [words] in sums) == 180


def test_processes_start_one_key_at_once(nursery: Nursery, tmp_path: Path) -> None:
    """Eight processes that make the file and start the same key together get one session."""
    for n in range(5):
        path = tmp_path / f"key-{n}.db"
        children = [nursery.start("begin", path=str(path), key="same") for _ in range(8)]
        ids = {line for lines in read_all_lines(children) for line in lines}
        assert [child.wait() for child in children] == [0] * 8
        assert len(ids) == 1


@contextmanager
def held(nursery: Nursery, path: Path) -> Iterator[Callable[[], None]]:
    """Another process holds the write lock, until the function that is given is called."""
    sign = path.with_suffix(".release")
    child = nursery.start("hold", path=str(path), until=str(sign))
    assert next(child.lines()) == "held"

    def release() -> None:
        sign.touch()
        assert child.wait() == 0

    try:
        yield release
    finally:
        sign.touch()
        child.wait()
        child.close()


class Observed(sqlite3.Connection):
    """A connection that keeps account of the statements that find the file locked."""

    made: ClassVar[list["Observed"]] = []
    #: For each such statement, how often its thread went to sleep meanwhile.
    refused: ClassVar[list[int]] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.thread = threading.get_ident()
        self.made.append(self)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(ObservedCursor)


class ObservedCursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> Any:
        before = sleeps()
        try:
            return super().execute(*args)
        except sqlite3.OperationalError as error:
            assert error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            Observed.refused.append(sleeps() - before)
            raise


def sleeps() -> int:
    """How often this thread has given up the processor to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


async def test_a_foreign_write_lock_never_stops_the_loop(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another program holds the write lock, each try is refused at once, the loop turns, and
    the answer lands.

    SQLite would wait by itself, on the loop's thread: by a busy timeout or a busy handler, which
    sleeps. A thread that sleeps gives up the processor, and that is counted. Other causes (another
    thread has the interpreter) are rare.
    """
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Observed)
    )
    monkeypatch.setattr(Observed, "made", [])
    monkeypatch.setattr(Observed, "refused", [])
    path = tmp_path / "locked.db"
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(ladder(rungs=3))
        ours = [each for each in Observed.made if each.thread == threading.get_ident()]
        waits = [each.execute("PRAGMA busy_timeout").fetchone()[0] for each in ours]
        assert waits == [0] * len(ours) != []
        with held(nursery, path) as release:
            answering = asyncio.ensure_future(runtime.answer(status.session_id, "kept"))
            while len(Observed.refused) < 50 and not answering.done():
                await asyncio.sleep(0.001)
            assert not answering.done()
            release()
        assert isinstance(await answering, everhold.Paused)
        assert statistics.median(Observed.refused) == 0
        assert await runtime.archive.verify() == []


async def test_a_write_lock_that_stays_is_a_typed_refusal(nursery: Nursery, tmp_path: Path) -> None:
    """Past the store's patience the answer is refused as `store_busy`; sent again, it lands."""
    path = tmp_path / "locked.db"
    async with Runtime(SQLiteStore(path, patience=0.1)) as runtime:
        status = await runtime.start(ladder(rungs=3))
        with held(nursery, path):
            with pytest.raises(everhold.EverholdError) as refused:
                await runtime.answer(status.session_id, "kept")
            assert refused.value.code == "store_busy"
        assert isinstance(await runtime.answer(status.session_id, "kept"), everhold.Paused)
