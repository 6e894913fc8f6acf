"""A process dies before or after any look, claim or commit of an intake: the next one brings all to
one end each.
"""

import asyncio

import pytest

from everhold.agents.agent import Agent
from everhold.core.graph import extract_text
from everhold.core.intake import ItemState
from everhold.ports.tool import tool
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from everhold.testing.store_wrapper import StoreWrapper
from tests.scenario.harness import TTL, die, opened
from tests.scenario.talk import use


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


steady = Agent(tools=[look], name="intake_steady")


async def model(query):
    """Looks something up once for each thing said."""
    return "Done." if query.messages[-1]["role"] == "tool" else use("look", what="x")


class Died(Exception):
    """The process is gone."""


class Mortal(StoreWrapper):
    """A store whose process dies at its write number `at`, before or after it lands; later nothing
    works any more.
    """

    def __init__(self, store, at, when):
        super().__init__(store)
        self.at, self.when, self.count = at, when, 0
        self.gone = asyncio.Event()

    async def forward(self, verb, *given, **options):
        writes = verb.__name__ in ("commit", "intake")
        self.count += writes
        mine = writes and self.count == self.at
        if mine and self.when == "before":
            self.gone.set()
        if self.gone.is_set():
            raise Died
        said = await verb(*given, **options)
        if mine:
            self.gone.set()
            raise Died
        return said


async def story(runtime):
    """Put, take back, command and wait; told again, it is the same story."""
    session = await runtime.session(steady, "chat")
    await session.enqueue("One.", key="one")
    await session.enqueue("Two.", key="two", at="after_work")
    await session.enqueue("Three.", key="three", alone=True)
    await session.enqueue("Never.", key="never", available_at=9e9)
    await session.command("reset", key="anew")
    await session.cancel("never")
    await session.send("Four.", id="four")
    for name in ("one", "two", "three", "command:reset:anew"):
        await session.turn(name)
    return session


async def dies(store, at, when, story=story, llm=model):
    """Tell a story until the process dies; returns how many writes it made."""
    clock = ManualClock()
    mortal = Mortal(store, at, when)
    runtime = Runtime(mortal, clock=clock, ttl=TTL, llm=llm)
    await runtime.__aenter__()
    telling = asyncio.ensure_future(story(runtime))
    gone = asyncio.ensure_future(mortal.gone.wait())
    await asyncio.wait([telling, gone], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    telling.cancel()
    gone.cancel()
    await asyncio.gather(telling, gone, return_exceptions=True)
    await die(runtime, clock)
    return mortal.count, clock


async def ended(store, clock):
    """Tell the story again in another process, and look at what came of it."""
    async with opened(on=store, clock=clock, llm=model) as runtime:
        async with asyncio.timeout(60):
            session = await story(runtime)
        turns = await session.turns()
        named = [name for one in turns for name in (one.input, *one.taken)]
        assert sorted(named) == ["command:reset:anew", "four", "one", "three", "two"]
        items = {item.id: item.state for item in await session.intake(all=True)}
        assert items.pop("never") is ItemState.CANCELLED
        assert set(items.values()) == {ItemState.COMPLETED}
        nodes = (await session.conversation()).graph.nodes.values()
        said = "".join(extract_text(node.content) for node in nodes if node.role == "user")
        assert [said.count(words) for words in ("One.", "Two.", "Three.", "Four.", "Never.")] == [
            1,
            1,
            1,
            1,
            0,
        ]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_death_at_any_write_of_an_intake(when):
    """None is lost, none is said twice, wherever it was when the process died."""
    whole, _ = await dies(MemoryStore(), 0, when)
    assert whole > 20
    for at in range(1, whole + 1):
        store = MemoryStore()
        _, clock = await dies(store, at, when)
        await ended(store, clock)
