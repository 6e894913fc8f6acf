"""The programs that the mover tests run, and the log of their effects.

A program has effects only through calls: `once` for calls with rerun="never", `act` for others.
`EFFECT_LOG` counts how often each call started, ended and was stopped, and can block a call until
it is released. Each test gets a new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from everhold.agents.agent import Agent
from everhold.core.query import Query
from everhold.errors import BudgetExceeded, ChildFailed, OutcomeUnknown
from everhold.ports.context import Context
from everhold.ports.program import program
from everhold.ports.tool import tool

#: What a program says of a call whose outcome is unknown.
UNKNOWN = "unknown"


class EffectLog:
    """The effects that ran, and gates that block them."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        self.once: Counter[str] = Counter()  # how often each call with rerun="never" was begun
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, *names: str) -> None:
        """Block these calls until `free` is called."""
        self._gates |= {name: asyncio.Event() for name in names}

    def free(self, *names: str) -> None:
        for name in names:
            self._gates[name].set()

    async def done(self, name: str) -> str:
        self.begun[name] += 1
        try:
            gate = self._gates.get(name)
            await (asyncio.sleep(0) if gate is None else gate.wait())
        except asyncio.CancelledError:
            self.stopped[name] += 1
            raise
        self.ended[name] += 1
        return name


EFFECT_LOG = EffectLog()


def reset_effect_log() -> EffectLog:
    """Make a new effect log for the next test."""
    EFFECT_LOG.__init__()  # type: ignore[misc]
    return EFFECT_LOG


async def act(name: str) -> str:
    """A call that may run again."""
    return await EFFECT_LOG.done(name)


async def once(name: str) -> str:
    """A call that never runs twice."""
    EFFECT_LOG.once[name] += 1
    return await EFFECT_LOG.done(name)


async def sure(ctx: Context, name: str) -> str:
    """Call `once`, with rerun="never"."""
    try:
        return await ctx.call(once, name, rerun="never")
    except OutcomeUnknown:
        return UNKNOWN


# ---- calls, questions, signals


@program
async def errands(ctx: Context, name: str, count: int = 1) -> list[str]:
    """Several calls in sequence."""
    return [await sure(ctx, f"{name}-{number}") for number in range(count)]


@program
async def lasts(ctx: Context, name: str) -> str:
    """A call that may run again and takes long."""
    return await ctx.call(act, name)


@program
async def asks(ctx: Context, name: str) -> list[str]:
    """A question, a call, a question."""
    return [
        await ctx.llm(f"{name} first?"),
        await sure(ctx, name),
        await ctx.llm(f"{name} second?"),
    ]


@program
async def batch(ctx: Context, size: int) -> list[str]:
    return await ctx.llm_batch([f"number {number}?" for number in range(size)])


@program
async def beside(ctx: Context, name: str) -> list[str]:
    """A call and a question at the same time; another call follows the answer."""
    call = asyncio.ensure_future(sure(ctx, name))
    said = await ctx.llm(f"{name}?")
    heard = await sure(ctx, f"{name}-heard")
    return [said, heard, await call]


@program
async def hears(ctx: Context, count: int, first: str = "") -> list[Any]:
    """Receives signals, after a question if `first` is one."""
    if first:
        await ctx.llm(first)
    return [await ctx.receive("news") for _ in range(count)]


@program
async def collects(ctx: Context, name: str, most: int = 10_000) -> list[Any]:
    """Receives signals until one is "stop"; calls `act` after every third."""
    found: list[Any] = []
    while len(found) < most and (one := await ctx.receive("news")) != "stop":
        found.append(one)
        if len(found) % 3 == 0:
            await ctx.call(act, f"{name}-{len(found)}")
    return found


@program
async def approves(ctx: Context, name: str) -> list[Any]:
    return [await ctx.approval("Sure?", to="boss"), await sure(ctx, name)]


@program
async def spends(ctx: Context) -> list[str]:
    """Asks until its budget is used up."""
    said: list[str] = []
    try:
        while len(said) < 10:
            said.append(await ctx.llm(f"round {len(said)}?"))
    except BudgetExceeded:
        said.append("no budget")
    return said


# ---- time


@program
async def sleeps(ctx: Context, name: str, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await sure(ctx, name)


@program
async def hurries(ctx: Context, seconds: float) -> str:
    """A question that is withdrawn after a timeout."""
    try:
        async with asyncio.timeout(seconds):  # clock: a program's timer, on the fleet's own clock
            return await ctx.llm("quick?")
    except TimeoutError:
        return "too late"


@program
async def expires(ctx: Context, seconds: float) -> Any:
    return await ctx.input("Name?", timeout=seconds, default="nobody")


# ---- children


@program
async def fails(ctx: Context) -> None:
    raise ValueError("broken")


@program
async def parent(ctx: Context, name: str, how: str) -> list[str]:
    """Waits for a child that ends, fails, or asks."""
    calls: dict[str, Any] = {"ends": errands(name=name), "fails": fails(), "asks": asks(name=name)}
    try:
        found: Any = await ctx.spawn(calls[how])
        return [*found, await sure(ctx, f"{name}-parent")]
    except ChildFailed:
        return ["child failed", await sure(ctx, f"{name}-parent")]


@program
async def starts(ctx: Context, name: str) -> list[Any]:
    """Starts a background program, and receives its outcome."""
    await ctx.background(errands(name=name), title="the errand")
    heard = await ctx.receive("process")
    return [heard["title"], heard["state"], heard["value"]]


# ---- agents


@tool(rerun="never")
async def stamp(name: str) -> str:
    """Stamp a paper."""
    return f"stamped {await once(name)}"


clerk = Agent(instructions="Stamp what you are given.", tools=[stamp], name="clerk")


class StampingModel:
    """A model that answers questions, calls the tool `stamp` for each named paper, and records its
    prompts.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, query: Query) -> Any:
        if query.messages is None:
            self.asked.append(query.prompt)
            return f"answer to {query.prompt}"
        parts = [(one["role"], part) for one in query.messages for part in one["content"]]
        papers = [part["text"] for role, part in parts if role == "user" and part["type"] == "text"]
        stamped = {part["input"]["name"] for _, part in parts if part["type"] == "tool_use"}
        left = [name for name in papers if name not in stamped]
        return (
            {"tool_calls": [{"name": "stamp", "input": {"name": name}} for name in left]}
            if left
            else "Done."
        )


# ---- all of it


@program
async def story(ctx: Context, name: str) -> list[Any]:
    """One of each: calls of each rerun policy, a model, a signal, a timer, a person, a child."""
    told: list[Any] = [await sure(ctx, f"{name}-never"), await ctx.llm(f"{name}?")]
    told.append(await ctx.receive("news"))
    await ctx.sleep(60)
    told.append(await ctx.approval(f"{name} sure?"))
    told.append(await ctx.spawn(errands(name=f"{name}-child")))
    told.append(await ctx.call(act, f"{name}-safe"))
    return told


def expect_story_result(name: str) -> list[Any]:
    """The result of a story if no outcome is unknown."""
    answer = f"answer to {name}?"
    return [f"{name}-never", answer, f"news for {name}", True, [f"{name}-child-0"], f"{name}-safe"]


def is_fully_known(result: Any) -> Any:
    """Whether no outcome in a result is unknown."""
    return all(map(is_fully_known, result)) if isinstance(result, list) else result != UNKNOWN


# ---- code that changes


def make_edition(way: str) -> Any:
    """Make a program as it is before or after a code change; all versions have one reference."""

    @program
    async def deployed(ctx: Context, name: str) -> list[str]:
        call = asyncio.ensure_future(sure(ctx, name)) if way != "other" else None
        said = await (ctx.approval("Other?") if way == "other" else ctx.llm("Same?"))
        if way == "broken":
            raise ValueError("broken")
        return [str(said), "" if call is None else await call, await sure(ctx, f"{name}-after")]

    return deployed
