"""Every verb, and every long piece of work, gives the event loop turns. Turns are counted, not
time.
"""

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import pytest

import everhold
from everhold.core.query import Kind
from everhold.ports.attachment import Attachment
from everhold.ports.store import QuestionFilter, ReclaimResult, SessionFilter, Store
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore, database
from everhold.testing.clock import ManualClock
from tests.fault.callers import Case, cases
from tests.fault.test_cancel import LOOKS, READS, furnished, handle, opened
from tests.postgres import fresh


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.seen = 0
        self._going = True

    def _tick(self) -> None:
        self.seen += 1
        if self._going:
            asyncio.get_running_loop().call_soon(self._tick)

    def __enter__(self) -> "Turns":
        asyncio.get_running_loop().call_soon(self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        self._going = False


def itself(store: Any) -> Any:
    return store


def address(where: str, folder: Path) -> str:
    return "memory://" if where == "memory" else f"sqlite:///{folder}/app.db"


async def looked(url: str, times: int) -> dict[str, int]:
    """The turns that the loop had while each verb that changes nothing was awaited so often."""
    found = {}
    async with furnished(url, itself) as (runtime, id, talk_id):
        talk = handle(runtime, talk_id)
        verbs: dict[str, Callable[[], Any]] = {
            **{name: lambda look=look: look(runtime, id) for name, look in LOOKS.items()},
            **{f"session {name}": lambda read=read: read(talk) for name, read in READS.items()},
        }
        for name, verb in verbs.items():
            with Turns() as turns:
                for _ in range(times):
                    await verb()
            found[name] = turns.seen
    return found


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_who_looks_again_and_again_lets_others_run(where: str, tmp_path: Path) -> None:
    """Of 100 looks in a row at anything, at least every 20th gives the loop a turn."""
    found = await looked(address(where, tmp_path), 100)
    assert {name: turns for name, turns in found.items() if turns < 5} == {}


@pytest.mark.xdist_group("postgres")
async def test_who_looks_at_a_server_lets_others_run(postgres: Any) -> None:
    found = await looked(fresh(postgres), 20)
    assert {name: turns for name, turns in found.items() if turns < 1} == {}


@pytest.mark.parametrize("where", ["memory", "sqlite"])
@pytest.mark.parametrize("kind", cases(), ids=lambda kind: kind.verb_of)
async def test_a_verb_that_changes_something_gives_a_turn(
    kind: type[Case], where: str, tmp_path: Path
) -> None:
    """Each of 20 calls would do; here one call, for it takes a turn each time."""
    async with opened(address(where, tmp_path), itself) as (runtime, store, clock):
        case = kind(runtime, store, clock, "m0m", tmp_path)
        await case.prepare()
        await case.rest()
        with Turns() as turns:
            for _ in range(20 if case.repeats and not case.gated else 1):
                await case.verb()
        await case.rest()
        await case.finish()
        await case.clean()
    assert turns.seen >= 1


# ---- long pieces of work


@everhold.program
async def count(ctx: everhold.Context, times: int) -> float:
    last = 0.0
    for _ in range(times):
        last = await ctx.state.incr("n")
    return last


@everhold.program
async def talk(ctx: everhold.Context) -> None:
    while True:
        await ctx.llm("?")


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_long_step_lets_others_run(where: str, tmp_path: Path) -> None:
    """A step that counts to 2,000 gives the loop a turn for every 16 of them, and can be stopped
    there.
    """
    async with everhold.open(address(where, tmp_path)) as runtime:
        with Turns() as turns:
            assert await runtime.run(count(times=2000)) == 2000
        assert turns.seen >= 100


async def test_a_long_replay_lets_others_run() -> None:
    """A session of 3,000 steps comes back into memory in parts, and is the same."""
    store = MemoryStore()
    async with Runtime(store) as runtime:
        status = await runtime.start(talk())
        for _ in range(3000):
            status = await runtime.answer(status.queries[0], "x")
    async with Runtime(store) as runtime:
        with Turns() as turns:
            after = await runtime.answer(status.queries[0], "y")
        assert (await store.load(after.session_id, since=-1)).head.n == 3001
        assert turns.seen >= 10


class Threads(sqlite3.Connection):
    """A connection that records which thread runs what."""

    loop_thread = 0
    ran: ClassVar[Counter[tuple[bool, str]]] = Counter()

    def execute(self, *args: Any) -> Any:
        self.record(args[0])
        return super().execute(*args)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(ThreadsCursor)

    @classmethod
    def record(cls, statement: str) -> None:
        cls.ran[threading.get_ident() == cls.loop_thread, statement] += 1


class ThreadsCursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> Any:
        Threads.record(args[0])
        return super().execute(*args)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[bool, str]]:
    """What was run, and whether by the loop's thread."""
    connect = sqlite3.connect

    def recorded(*args: Any, **options: Any) -> Any:
        return connect(*args, **options, factory=Threads)

    monkeypatch.setattr(sqlite3, "connect", recorded)
    monkeypatch.setattr(Threads, "ran", Counter())
    monkeypatch.setattr(Threads, "loop_thread", threading.get_ident())
    return Threads.ran


def by_the_loop(ran: Counter[tuple[bool, str]], words: str) -> list[bool]:
    """For each statement with these words, whether the loop's thread ran it."""
    return sorted({mine for mine, statement in ran if words in statement})


async def test_verify_runs_in_a_thread(ran: Counter[tuple[bool, str]], tmp_path: Path) -> None:
    """What it reads is read by a thread; progress is told on the loop's, and what that raises ends
    it.
    """
    threads: set[int] = set()
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        threads.add(threading.get_ident())
        told.append((done, total))

    def fails(done: int, total: int) -> None:
        raise LookupError("enough")

    async with Runtime(SQLiteStore(tmp_path / "app.db")) as runtime:
        for _ in range(3):
            await runtime.start(talk())
        ran.clear()
        assert await runtime.archive.verify(progress) == []
        assert by_the_loop(ran, "integrity_check") == by_the_loop(ran, "FROM journal") == [False]
        assert told == [(1, 3), (2, 3), (3, 3)]
        assert threads == {threading.get_ident()}
        with pytest.raises(LookupError, match="enough"):
            await runtime.archive.verify(fails)


async def test_a_verify_whose_caller_leaves_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread does not read on for nobody."""
    interrupted, going = threading.Event(), threading.Event()

    def endless(connection: sqlite3.Connection, progress: Any) -> list[Any]:
        going.set()
        try:
            connection.execute(
                "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT max(x) FROM n"
            )
        except sqlite3.OperationalError:
            interrupted.set()
        return []

    monkeypatch.setattr("everhold.stores.sqlite.verify.find_problems", endless)
    async with Runtime(SQLiteStore(tmp_path / "app.db")) as runtime:
        verifying = asyncio.ensure_future(runtime.archive.verify())
        while not going.is_set():
            await asyncio.sleep(0.001)
        verifying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await verifying
        while not interrupted.is_set():
            await asyncio.sleep(0.001)


@contextmanager
def limited(monkeypatch: pytest.MonkeyPatch, steps: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(database, "STEPS", steps)
        yield


@asynccontextmanager
async def filled(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    async with Runtime(store, clock=ManualClock()) as runtime:
        for n in range(20):
            await runtime.start(talk(), labels={"n": str(n)})
            await runtime.start(asking())
        await runtime.run(count(times=3))
        yield store


@everhold.program
async def asking(ctx: everhold.Context) -> Any:
    return await ctx.approval("Go?")


SCANS: dict[str, Callable[[Store], Any]] = {
    "list": lambda store: store.list(SessionFilter(labels={"n": "7"})),
    "inbox": lambda store: store.inbox(kind=None, to=None, limit=100),
    "asking": lambda store: store.maintenance.asking(QuestionFilter(kinds=(Kind.APPROVAL,))),
    "reclaim": lambda store: store.maintenance.reclaim(),
}


async def test_a_long_scan_runs_in_a_thread(
    ran: Counter[tuple[bool, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes SQLite long is done by a thread, with the same result; what is short stays on the
    loop.
    """
    async with filled(tmp_path / "app.db") as store:
        for name, verb in SCANS.items():
            ran.clear()
            short = await verb(store)
            assert [mine for mine, _ in ran if not mine] == [], name
            with limited(monkeypatch, 50):
                ran.clear()
                assert repr(await verb(store)) == repr(short), name
                assert [mine for mine, _ in ran if not mine] != [], name
        assert (await store.keys("default")) == ["n"]


async def test_a_scan_removes_only_what_is_still_loose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are named between the look of a thread and the removal stay."""
    async with filled(tmp_path / "app.db") as store:
        session_id = (await store.list(SessionFilter()))[0].birth.id
        made = [
            Attachment(sha256(data).hexdigest(), 4, "text/plain") for data in (b"kept", b"gone")
        ]
        for one, data in zip(made, (b"kept", b"gone"), strict=True):
            store._run("INSERT INTO blob (id, data) VALUES (?, ?)", (one.id, data))
        write = store._write

        async def late(act: Callable[[], Any], **more: Any) -> Any:
            monkeypatch.setattr(store, "_write", write)
            await store.attach(session_id, made[0], b"kept", 1.0)
            return await write(act, **more)

        monkeypatch.setattr(store, "_write", late)
        assert await store.maintenance.reclaim() == ReclaimResult(1, 4, 0)
        assert await store.attachment(session_id, made[0].id) == (made[0], b"kept")
