"""Work whose question another process has withdrawn: it is stopped where it is done."""

import asyncio

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.ports.tool import tool
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, told, use

PATIENCE = 60


class World:
    def __init__(self):
        self.begun, self.stopped, self.goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(self):
        self.begun.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return "done"


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


async def last() -> str:
    return await world.act()


@everhold.program
async def lasts(ctx):
    return await ctx.call(last)


@tool
async def lasting() -> str:
    """Takes for ever."""
    return await world.act()


agent = Agent(tools=[lasting], name="withdrawn")


def house(path, **options):
    return Runtime(SQLiteStore(path / "app.db"), **options)


async def test_a_call_ends_when_its_session_is_cancelled_elsewhere(tmp_path):
    async with house(tmp_path) as one, house(tmp_path, recover=False) as two:
        status = await one.start(lasts(), wait=0)
        await world.begun.wait()
        assert (await two.cancel(status.session_id, "enough")).state == "cancelled"
        await asyncio.wait_for(world.stopped.wait(), PATIENCE)
        assert not one.engine.sessions.jobs and not one.engine.effects.doing


async def test_a_tool_ends_when_its_turn_is_cancelled_elsewhere(tmp_path):
    """Whoever cancels need not be the process that works: a server takes the word, a worker does
    the work.
    """
    async with (
        house(tmp_path, llm=Scripted(use("lasting"))) as one,
        house(tmp_path, recover=False) as two,
    ):
        session = await one.session(agent, "chat")
        sending = asyncio.ensure_future(session.send("Go."))
        await world.begun.wait()
        await (await two.session(agent, "chat")).cancel_turn("enough")
        await asyncio.wait_for(world.stopped.wait(), PATIENCE)
        assert (await asyncio.wait_for(sending, PATIENCE)).outcome.reason == "enough"
        assert "may or may not have happened" in told(await session.history())[0]


async def test_what_is_wanted_goes_on():
    """A look stops nothing that is marked, nor what has come to its outcome and waits to be
    written.
    """
    async with opened() as runtime:
        status = await runtime.start(lasts(), wait=0)
        await world.begun.wait()
        looking = runtime.engine.reconciler
        await looking._stop_withdrawn()
        (job,) = runtime.engine.sessions.jobs[status.session_id].values()
        runtime.engine.effects.doing.discard(job)
        runtime.engine.sessions.store.load = None  # nothing is read for it
        looking._withdrawing = 0
        await looking._stop_withdrawn()
        del runtime.engine.sessions.store.load
        assert not job.cancelling()
        world.goes_on.set()
        assert (await runtime.wait(status.session_id, PATIENCE)).result == "done"


async def test_a_look_that_comes_too_early_is_made_up_for():
    """Looks cost something: there is a pause between them, and one look at its end."""
    async with opened() as runtime:
        status = await runtime.start(lasts(), wait=0)
        await world.begun.wait()
        pokes, looking = [], runtime.engine.reconciler
        looking.poke = lambda: pokes.append(1)
        await looking._stop_withdrawn()
        looking._withdrawing = asyncio.get_running_loop().time() + 3600
        await looking._stop_withdrawn()
        timer = looking._again
        for _ in range(2):
            await looking._stop_withdrawn()
            assert looking._again is timer
        assert (timer.when(), pokes) == (looking._withdrawing, [])
        timer._run()
        timer.cancel()
        assert pokes == [1]
        del looking.poke
        world.goes_on.set()
        assert (await runtime.wait(status.session_id, PATIENCE)).result == "done"
