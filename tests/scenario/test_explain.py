"""`explain` says what is so: which tasks run, what no process has begun, and who may answer a
question to a model.
"""

import asyncio

import msgspec
import pytest

import everhold
from everhold.core.session import OUTSIDE, WORKERS
from everhold.ports.store import Change
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, opened


class World:
    def __init__(self):
        self.begun, self.ends = asyncio.Event(), asyncio.Event()


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


async def last() -> str:
    world.begun.set()
    await world.ends.wait()
    return "done"


@everhold.program
async def lasts(ctx):
    return await ctx.call(last, rerun="never")


@everhold.program
async def asks(ctx):
    return await ctx.llm("Why?")


@everhold.program
async def child(ctx):
    return "child"


async def test_a_process_is_said_to_work_while_its_task_runs():
    async with opened() as runtime:
        status = await runtime.start(lasts(), wait=0)
        await world.begun.wait()
        assert "works on" in (await runtime.explain(status.session_id)).because[0]
        world.ends.set()
        await runtime.wait(status.session_id, 60)


async def test_a_mark_without_a_task_is_not_work():
    """Nothing is done for it here: that is said, and the next move begins it, though it may never
    run twice.
    """
    async with opened(recover=False) as runtime:
        session_id = await stranded(runtime)
        explained = await runtime.explain(session_id)
        assert "has not started" in explained.because[0] and "works on" not in " ".join(
            explained.because
        )
        world.ends.set()
        await runtime.engine.reconciler.move()
        assert (await runtime.wait(session_id, 60)).result == "done"


async def stranded(runtime):
    """A session whose call was marked by a commit after which nothing was begun."""
    begin = runtime.engine.effects._begin
    runtime.engine.effects._begin = lambda live, query, effect: None
    status = await runtime.start(lasts(), wait=0)
    runtime.engine.effects._begin = begin
    return status.session_id


async def test_a_session_that_has_not_begun_says_so():
    async with opened(recover=False, replay=False) as runtime:
        status = await runtime.start(f"{__name__}:child", unchecked=True)
        explained = await runtime.explain(status.session_id)
        assert (
            "has not started" in explained.because[0]
            and f"{__name__}:child" in explained.because[0]
        )
        assert "everhold worker" in " ".join(explained.moves)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({}, WORKERS, "Name the model in everhold.toml, then: everhold worker"),
        ({"llm": None}, OUTSIDE, "never by a worker"),
    ],
)
async def test_who_may_answer_a_model_question(options, kind, words):
    runtime = Runtime(MemoryStore(), clock=ManualClock(), **options)
    async with runtime:
        status = await runtime.start(asks())
        assert (await runtime.store.load(status.session_id)).birth.llm == kind
        explained = await runtime.explain(status.session_id)
        assert words in " ".join([*explained.because, *explained.moves])


@everhold.program
async def rates(ctx, count: int):
    return await ctx.llm_batch([f"Rate {number}" for number in range(count)])


@everhold.program
async def calls(ctx, count: int):
    return await asyncio.gather(*(ctx.call(last) for _ in range(count)))


async def test_questions_that_repeat_are_explained_once():
    """The first three by name, the rest counted; how to answer them stands there once."""
    async with opened(recover=False) as runtime:
        status = await runtime.start(rates(count=16))
        name = status.session_id
        explained = await runtime.explain(name)
        assert explained.because == [
            "q-0 asks a model (0 s ago): Rate 0",
            "q-1 asks a model (0 s ago): Rate 1",
            "q-2 asks a model (0 s ago): Rate 2",
            "The same goes for 13 more: q-3 to q-15.",
        ]
        assert explained.moves == [
            "A worker that has a model and its program answers it. Name the model in"
            " everhold.toml, then: everhold worker",
            f"Answer it: everhold answer {name} --query q-0",
            "The same way for q-1 to q-15.",
        ]
        await runtime.answer_many(name, {f"q-{q}": "good" for q in (3, 4, 6, 9, 10, 12, 14)})
        explained = await runtime.explain(name)
        assert (
            explained.because[3] == "The same goes for 6 more: q-5, q-7, q-8, q-11, q-13 and 1"
            " more."
        )


async def test_a_few_questions_are_all_told():
    async with opened(recover=False) as runtime:
        status = await runtime.start(rates(count=4))
        told = (await runtime.explain(status.session_id)).because
        assert [one[-6:] for one in told] == ["Rate 0", "Rate 1", "Rate 2", "Rate 3"]


async def test_calls_that_repeat_are_explained_once():
    """One line for all that one process works on."""
    store = MemoryStore()
    async with opened(on=store) as runtime:
        status = await runtime.start(calls(count=16), wait=0)
        await world.begun.wait()
        (running,) = (await runtime.explain(status.session_id)).because
        assert "works on" in running and "last (q-0 to q-15)" in running
        world.ends.set()
        await runtime.wait(status.session_id, 60)


async def test_a_session_of_an_older_database_says_how_a_worker_takes_it():
    store, clock = MemoryStore(), ManualClock()
    async with Runtime(store, clock=clock) as runtime:
        session_id = (await runtime.start(asks())).session_id
    old = await store.load(session_id)
    store._sessions.clear()
    store._live.clear()
    head = msgspec.structs.replace(old.head, ref=0, revision=1, parked=False)
    await store.commit(
        Change(session_id, head, old.deliveries, msgspec.structs.replace(old.birth, llm="")), 0
    )
    async with Runtime(store, clock=clock, llm=["Because."], recover=False) as runtime:
        explained = await runtime.explain(session_id)
        assert "--adopt-parked" in " ".join(explained.moves)
        assert await runtime.workers.worker().once(60) == 0
        assert (await runtime.status(session_id)).state == "paused"
    async with Runtime(store, clock=clock, llm=["Because."], recover=False) as runtime:
        assert await runtime.workers.worker(adopt_parked=True).once(60) == 0
        assert (await runtime.status(session_id)).result == "Because."


@everhold.program
async def refuses(ctx):
    return await ctx.llm("Why?")


async def test_a_fork_is_told_once_and_commands_name_the_database(tmp_path, monkeypatch):
    """The step before the end is also the one that asks again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERHOLD_DATABASE_URL", raising=False)
    async with everhold.open("app.db") as runtime:
        await runtime.start(at_top(refuses.body)(), key="k")
        await runtime.answer("k", error="no")
        option = f" -d sqlite:///{tmp_path}/app.db"
        assert (await runtime.explain("k")).moves == [
            "Ask q-0 again (the recorded answer is an error): everhold fork k --at 0" + option,
            "Fix the program, then: everhold retry k" + option,
        ]


@everhold.tool
async def never() -> str:
    """Never ends."""
    return await last()


helper = everhold.Agent(name="helper", tools=[never])


async def test_a_conversation_in_a_turn_does_not_wait_for_an_input():
    """It waits for what the turn waits for."""
    call = '{"text": "", "tool_calls": [{"name": "never", "input": {}}]}'
    async with opened(llm=[call, "so"]) as runtime:
        session = await runtime.session(helper, "h")
        before = await runtime.explain("h")
        assert before.because == ["It has waited 0 s for an input."]
        await session.enqueue("go")
        await world.begun.wait()
        during = await runtime.explain("h")
        assert [one for one in during.because if "input" in one] == []
        assert not [one for one in during.moves if "everhold chat" in one]
        world.ends.set()
        await runtime.wait("h", 60, settled=True)
        assert "It has waited 0 s for an input." in (await runtime.explain("h")).because
