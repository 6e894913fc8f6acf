"""Odd values, odd clocks and programs that misbehave: refused or failed by name, and nobody else is
harmed.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import everhold
from everhold.errors import BadValue, Diverged
from everhold.programs.python import determinism_guard
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.faults import Nursery
from tests.fault import odd


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "odd.db"


async def answered(path: Path, call: everhold.Call, value: object = "so") -> everhold.Finished:
    """Start, answer the one question, and read the end back in another runtime."""
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(call)
        live = await runtime.answer(status.session_id, value)
    async with Runtime(SQLiteStore(path)) as runtime:
        stored = await runtime.status(status.session_id)
        assert await runtime.archive.verify() == []
    assert isinstance(stored, everhold.Finished)
    assert stored == live
    return stored


# ---- values


@pytest.mark.parametrize("megabytes", [1, 50])
async def test_a_large_answer(path: Path, megabytes: int) -> None:
    """An answer of 1 MB, and one of 50 MB, comes back as it was given."""
    value = "æ" + "0123456789abcdef" * (megabytes << 16)
    assert (await answered(path, odd.echo(), value)).result == value


STRANGE = [
    "a\0b",
    {"\0": ["\0"]},
    "\0",
    "line\r\n",
    "\u2028",
    "\U0001f469\u200d",
    "",
    2**63 - 1,
    0.1,
    -0.0,
    [[]],
    None,
]


@pytest.mark.parametrize("value", STRANGE, ids=ascii)
async def test_a_strange_value_is_kept(path: Path, value: object) -> None:
    """NUL and other rare characters, and numbers at their limits, come back as they were given."""
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(odd.hear())
        found = (await runtime.signal(status.session_id, "word", value)).result
    assert (found, str(found)) == (value, str(value))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("\ud800", "the answer"),
        ({"a": ["x", "\udfff"]}, "the answer.a[1]"),
        ({"a": float("nan")}, "the answer.a"),
        ([1, float("inf")], "the answer[1]"),
        ({"a": {"b": {1, 2}}}, "the answer.a.b"),
        ({"a": {1: 2}}, "the answer.a"),
        ({"a": [(1, 2)]}, "the answer.a[0]"),
        ([2**63], "the answer[0]"),
        ({"\ud800": 1}, "a key of the answer"),
        ([object()], "the answer[0]"),
    ],
)
async def test_a_value_that_json_would_change(path: Path, value: object, where: str) -> None:
    """It is refused with its path, nothing is changed, and a plain answer is taken afterwards."""
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(odd.echo())
        with pytest.raises(BadValue) as refused:
            await runtime.answer(status.session_id, value)
        assert refused.value.path == where
        assert await runtime.status(status.session_id) == status
        assert (await runtime.answer(status.session_id, "plain")).result == "plain"


async def test_ten_thousand_queries_in_one_batch(path: Path) -> None:
    """A batch of 10,000 is asked at once, answered in any order, in several calls, by several
    processes' worth.
    """
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(odd.crowd(size=10_000))
        assert len(status.queries) == 10_000
        session_id = status.session_id
        first = {query.id: "x" for query in status.queries[5000:]}
        assert await runtime.answer_many(session_id, first) == everhold.Accepted(session_id, 5000)
        assert await runtime.answer(status.queries[7], "y") == everhold.Accepted(session_id, 4999)
    async with Runtime(SQLiteStore(path)) as runtime:
        left = (await runtime.status(session_id)).queries
        assert len(left) == 4999
        done = await runtime.answer_many(session_id, {query.id: "z" for query in left})
        assert done.result == 10_000
        assert await runtime.archive.verify() == []


# ---- clocks


async def test_a_clock_going_backwards(path: Path) -> None:
    """The program's time never turns; a timer fires when the clock has come past it again, and not
    before.
    """
    clock = ManualClock(1_700_000_000.0)
    async with Runtime(SQLiteStore(path), clock=clock, recover=False) as runtime:
        status = await runtime.start(odd.napping())
        clock.advance(-3600)
        await runtime.answer(status.session_id, "one")
        record = await runtime.store.load(status.session_id)
        assert [delivery.at for delivery in record.deliveries] == [1_700_000_000.0] * 2
        assert isinstance(await runtime.status(status.session_id), everhold.Paused)
        clock.advance(3600 + 30)
        assert (await runtime.answer(status.session_id, "two")).result == 30.0


async def test_a_clock_going_backwards_between_plain_steps(path: Path) -> None:
    """A question of a model after another, in a session in memory: no step is earlier than the one
    before it.
    """
    clock = ManualClock(1_700_000_000.0)
    async with Runtime(SQLiteStore(path), clock=clock, recover=False) as runtime:
        status = await runtime.start(odd.chatting())
        moments = []
        for seconds in (10, -3600, 5, 4000):
            clock.advance(seconds)
            status = await runtime.answer(status.queries[0], "on")
            moments.append(
                (await runtime.store.load(status.session_id, since=-1)).head.updated_at
                - 1_700_000_000.0
            )
            assert status.queries[0].asked_at - 1_700_000_000.0 == moments[-1]
        assert moments == [10.0, 10.0, 10.0, 415.0]
        record = await runtime.store.load(status.session_id)
        assert [one.at - 1_700_000_000.0 for one in record.deliveries] == [0.0, *moments]


async def test_a_clock_going_backwards_expires_nothing(path: Path) -> None:
    """With the clock set back a day, a timeout does not fire, and fires once its moment has
    passed.
    """
    clock = ManualClock(1_700_000_000.0)
    async with Runtime(SQLiteStore(path), clock=clock, recover=False) as runtime:
        status = await runtime.start(odd.napping())
        await runtime.answer(status.session_id, "one")
        clock.advance(-86_400)
        await runtime.engine.reconciler.move()
        assert (await runtime.status(status.session_id)).queries[0].prompt == "second"
        clock.advance(86_400 + 61)
        await runtime.engine.reconciler.move()
        assert (await runtime.status(status.session_id)).error.startswith("TimeoutError")


# ---- programs


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (odd.recursing(), "RecursionError: maximum recursion depth exceeded"),
        (odd.strange(), "Strange: not an Exception"),
        (odd.leaving(), "SystemExit: 3"),
        (odd.stuck(), "the program waits, but no question or timer is open"),
        (odd.polling(), "the program did not pause within 1,000,000 turns of its loop"),
    ],
    ids=["recursion", "BaseException", "SystemExit", "stuck", "polling"],
)
async def test_a_program_that_breaks_down(path: Path, call: everhold.Call, said: str) -> None:
    """It has failed with its own words, on disk too, and the process goes on with others."""
    assert said in (await answered(path, call)).error
    assert (await answered(path, odd.echo(), "fine")).result == "fine"


@pytest.mark.parametrize("what", ["set", "nan", "tuple", "key", "surrogate", "object", "big"])
async def test_a_program_that_returns_what_is_not_json(path: Path, what: str) -> None:
    """It has failed, and the error names the path of the value."""
    error = (await answered(path, odd.returning(what=what))).error
    assert "the return value.a" in error and "cannot be stored as JSON" in error


@pytest.fixture
def impatient() -> Iterator[None]:
    before = determinism_guard._settings.limit
    determinism_guard.configure_guard(limit=0.2)
    yield
    determinism_guard.configure_guard(limit=before)


async def test_a_program_that_spins_for_ever(path: Path, impatient: None) -> None:
    """It is stopped at its time limit and has failed; the process goes on with others."""
    began = time.process_time()
    assert "did not pause within 0.2 s of CPU time" in (await answered(path, odd.spinning())).error
    assert time.process_time() - began < 10
    assert (await answered(path, odd.echo(), "fine")).result == "fine"


async def test_a_program_that_counts_for_ever(path: Path) -> None:
    """Endless reads and writes of durable values are refused; nothing of them is kept, and the
    question is open.
    """
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(odd.counting())
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.answer(status.session_id, "so")
        assert refused.value.code == "spinning"
        assert (await runtime.store.value("default", "endless"))[0] is None
        assert (await runtime.status(status.session_id)).queries == status.queries


async def test_a_program_that_swallows_its_cancel(path: Path, impatient: None) -> None:
    """It is cancelled all the same: it sees CancelledError once, and what it asks afterwards is
    refused.
    """
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(odd.stubborn())
        ended = await runtime.cancel(status.session_id, "enough")
        assert ended.state == "cancelled"
        assert await runtime.cancel(status.session_id) == ended
        assert await runtime.inbox() == []
        assert await runtime.archive.verify() == []
    assert path.stat().st_size < 1_000_000  # what it logged in its rage is bounded


# ---- programs that change

CODE = """
import everhold

@everhold.program
async def story(ctx: everhold.Context) -> list:
    said = [await ctx.llm({first!r})]
    {between}
    said.append(await ctx.llm("second"))
    said.append(await ctx.llm("third"))
    return said
"""


def written(folder: Path, first: str = "first", between: str = "pass") -> None:
    (folder / "changing.py").write_text(CODE.format(first=first, between=between))


async def go(folder: str, act: str, value: str = "") -> None:
    """In a process of its own, with the program as it is on disk: start, or answer what is open."""
    from tests.fault.victim import say

    found = f"{folder}/changing.py:story"
    async with Runtime(SQLiteStore(f"{folder}/odd.db"), recover=False) as runtime:
        if act == "start":
            from everhold.packages.find import find_program

            status = await runtime.start(find_program(found)(), key="changing")
        else:
            session_id = await runtime.store.find("changing")
            try:
                status = await runtime.answer(session_id, value)
            except everhold.EverholdError as error:
                say(error.code, error)
                return
        result = getattr(status, "outcome", None)
        say(
            type(status).__name__,
            [query.prompt for query in getattr(status, "queries", ())],
            result and result.value,
        )


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.test_odd") as found:
        yield found


def goes(nursery: Nursery, folder: Path, act: str, value: str = "") -> str:
    code, [line] = nursery.run("go", folder=str(folder), act=act, value=value)
    assert code == 0
    return line


async def journal(folder: Path) -> list:
    store = SQLiteStore(folder / "odd.db")
    await store.open()
    record = await store.load(await store.find("changing"))
    await store.close()
    return [record.head.revision, record.head.mail, *record.deliveries]


async def test_a_program_whose_prompts_are_edited(nursery: Nursery, tmp_path: Path) -> None:
    """A change of wording lets a session go on; the recorded answer stands."""
    written(tmp_path)
    goes(nursery, tmp_path, "start")
    assert goes(nursery, tmp_path, "answer", "a") == "Paused ['second'] None"
    written(tmp_path, first="first, in other words")
    assert goes(nursery, tmp_path, "answer", "b") == "Paused ['third'] None"
    assert goes(nursery, tmp_path, "answer", "c") == "Finished [] ['a', 'b', 'c']"


async def test_a_program_whose_shape_changes(nursery: Nursery, tmp_path: Path) -> None:
    """Another shape is refused as `diverged`, nothing is changed, and rolling back heals it."""
    written(tmp_path)
    goes(nursery, tmp_path, "start")
    goes(nursery, tmp_path, "answer", "a")
    before = await journal(tmp_path)
    written(tmp_path, between="await ctx.approval('really?')")
    assert goes(nursery, tmp_path, "answer", "b").startswith(
        f"{Diverged.code} step 1: the program asks approval"
    )
    assert await journal(tmp_path) == before
    written(tmp_path)
    assert goes(nursery, tmp_path, "answer", "b") == "Paused ['third'] None"


async def test_a_program_that_disappears(nursery: Nursery, tmp_path: Path) -> None:
    """Where the program is gone an answer is accepted and kept; where it is back the session goes
    on with it.
    """
    written(tmp_path)
    goes(nursery, tmp_path, "start")
    (tmp_path / "changing.py").unlink()
    assert goes(nursery, tmp_path, "answer", "a").startswith("Accepted")
    assert (await journal(tmp_path))[1] == 1
    written(tmp_path)
    assert goes(nursery, tmp_path, "answer", "b") == "Paused ['third'] None"
    assert goes(nursery, tmp_path, "answer", "c") == "Finished [] ['a', 'b', 'c']"


async def test_a_program_that_does_not_load(nursery: Nursery, tmp_path: Path) -> None:
    """A syntax error on disk is as if the program were gone: the answer is kept, and mending the
    file heals it.
    """
    written(tmp_path)
    goes(nursery, tmp_path, "start")
    (tmp_path / "changing.py").write_text("def broken(:\n")
    assert goes(nursery, tmp_path, "answer", "a").startswith("Accepted")
    written(tmp_path)
    assert goes(nursery, tmp_path, "answer", "b") == "Paused ['third'] None"
