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
from tests.scenario.harness import opened


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
        ({}, WORKERS, "everhold worker --answer-with"),
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
