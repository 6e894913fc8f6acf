"""A worker that was given programs: conversations, schedules and events of others are left to
others.
"""

import asyncio
import datetime

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.engine import reconcile
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted

mine = Agent(name="mine")
other = Agent(name="other")


@everhold.program
async def wanted(ctx):
    return "wanted"


@everhold.program
async def unwanted(ctx):
    return "unwanted"


def house(path, **options):
    return Runtime(SQLiteStore(path / "app.db"), recover=False, **options)


async def test_conversations_of_others_hear_nothing_here(tmp_path, monkeypatch):
    """However many wait: they hide none of those that it works for."""
    monkeypatch.setattr(reconcile, "AT_ONCE", 2)
    async with house(tmp_path) as runtime:
        others = [await runtime.session(other, f"other {n}") for n in range(5)]
        for session in others:
            await session.enqueue("Hello?")
        session = await runtime.session(mine, "mine")
        await session.enqueue("Hello?")
    model = Scripted()
    async with house(tmp_path, llm=model) as runtime:
        await runtime.workers.worker(programs=[mine.ref]).once(60)
        assert len(await (await runtime.session(mine, "mine")).turns()) == 1
        for session in others:
            waits = await runtime.store.intake(session.id, lambda intake: intake.waiting())
            assert len(waits) == 1
    assert len(model.shown) == 1
    async with house(tmp_path, llm=model) as runtime:
        await runtime.workers.worker(programs=[other.ref]).once(60)
    assert len(model.shown) == 6


@pytest.mark.parametrize("how", ["schedule", "event"])
async def test_what_is_begun_of_others_is_left_to_them(tmp_path, how):
    """A schedule that is due, or an event that happened, begins sessions of its own programs
    only.
    """
    async with house(tmp_path) as runtime:
        for program in (wanted, unwanted):
            if how == "schedule":
                await runtime.schedules.add(
                    program.name, datetime.datetime.now(datetime.UTC), program
                )
            else:
                await runtime.triggers.add("happened", program)
    async with house(tmp_path) as runtime:
        worker = runtime.workers.worker(programs=[wanted.ref])
        if how == "event":
            await runtime.triggers.emit("happened")
        await asyncio.sleep(0.01)
        await worker.once(60)
        assert [row.program for row in await runtime.sessions()] == [wanted.ref]
    async with opened(tmp_path, replay=False) as runtime:
        async with asyncio.timeout(60):
            while len(await runtime.sessions()) < 2:
                runtime.engine.reconciler.poke()
                runtime.clock.advance(1e9)
                await asyncio.sleep(0.01)


async def test_words_that_wait_are_work_that_is_left(tmp_path):
    """Who leaves before a conversation has heard them says so; a turn that waits for a person
    leaves nothing.
    """
    async with house(tmp_path) as runtime:
        await (await runtime.session(mine, "mine")).enqueue("Hello?")
    async with house(tmp_path) as runtime:
        assert await runtime.workers.worker(programs=[other.ref]).once(0) == 0
    async with house(tmp_path) as runtime:
        assert await runtime.workers.worker().once(0) == 1
    async with house(tmp_path) as runtime:  # which has no model: whoever answers is asked
        assert await runtime.workers.worker().once(60) == 0
        session = await runtime.session(mine, "mine")
        await session.enqueue("And now?")
    async with house(tmp_path) as runtime:
        assert await runtime.workers.worker().once(60) == 0
