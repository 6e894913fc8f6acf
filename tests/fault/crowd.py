"""Processes that answer the same and different sessions at once."""

import asyncio

import everhold
import everhold.stores.postgres  # so that children need not
from everhold.core.status import OpenQuery
from everhold.ports.store import Store
from everhold.runtime import Runtime
from everhold.stores.registry import create_store
from tests.fault.victim import answered, ladder, say


def at(path: str) -> Store:
    """The store of a file, or at an address."""
    return create_store(path if "://" in path else f"sqlite:///{path}")


@everhold.program
async def meeting(ctx: everhold.Context, rounds: int, people: int) -> list:
    """In each round everybody is asked something of their own, and all are asked one thing
    together.
    """
    said = []
    for number in range(rounds):
        own = [f"{number} for {person}" for person in range(people)]
        said.append(await ctx.llm_batch([*own, f"{number} for all"]))
        await ctx.state.incr("rounds")
    return said


async def prepare(path: str, meetings: int, rounds: int, people: int) -> None:
    async with Runtime(at(path)) as runtime:
        for n in range(meetings):
            await runtime.start(meeting(rounds=rounds, people=people), key=f"meeting-{n}")


async def attend(path: str, person: int, meetings: int, rounds: int, rungs: int) -> None:
    """Say one's part in every meeting, and climb a ladder of one's own beside."""
    async with Runtime(at(path)) as runtime:
        await asyncio.gather(
            _meet(runtime, person, meetings, rounds), _climb(runtime, person, rungs)
        )


async def _meet(runtime: Runtime, person: int, meetings: int, rounds: int) -> None:
    for n in range(meetings):
        session_id = await runtime.store.find(f"meeting-{n}")
        for number in range(rounds):
            own, common = await _asked(runtime, session_id, number, person)
            if common is not None:
                await answered(runtime, common, f"{number}-by-{person}")
            assert await answered(runtime, own, f"{number}-from-{person}"), (
                "an answer of one's own was refused"
            )


async def _asked(
    runtime: Runtime, session_id: str, number: int, person: int
) -> tuple[OpenQuery, OpenQuery | None]:
    while True:
        status = await runtime.status(session_id)
        found = {query.prompt: query for query in getattr(status, "queries", ())}
        if f"{number} for {person}" in found:
            return found[f"{number} for {person}"], found.get(f"{number} for all")
        await asyncio.sleep(0.0005)


async def _climb(runtime: Runtime, person: int, rungs: int) -> None:
    status = await runtime.start(ladder(rungs=rungs), key=f"ladder-{person}")
    while status.state != "completed":
        for query in getattr(status, "queries", ()):
            await answered(runtime, query, f"{query.prompt.replace(' ', '-')}")
            await asyncio.sleep(0.001)
        status = await runtime.status(status.session_id)


async def count(path: str, key: str, times: int) -> None:
    """Raise one shared number again and again."""
    async with Runtime(at(path)) as runtime:
        say("sum", await runtime.run(counting(times=times), key=key))


@everhold.program
async def counting(ctx: everhold.Context, times: int) -> float:
    last = 0.0
    for _ in range(times):
        last = await ctx.state.incr("shared")
        await ctx.call(nothing)
    return last


def nothing() -> None:
    """A call, so that each increment lands in a commit of its own."""


async def begin(path: str, key: str) -> None:
    """Start the session with this key, as others do at the same moment."""
    async with Runtime(at(path)) as runtime:
        status = await runtime.start(ladder(rungs=1), key=key)
        say("id", status.session_id)


def hold(path: str, until: str) -> None:
    """Hold the write lock of the file, as another program may, until a file named `until`
    exists.
    """
    import sqlite3
    import time
    from pathlib import Path

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("held")
    while not Path(until).exists():
        time.sleep(0.01)
    connection.execute("COMMIT")
    say("free")


@everhold.program
async def dictation(ctx: everhold.Context) -> None:
    while True:
        await ctx.llm("and then?")


async def write(path: str, answers: int, length: int, seconds: float = 0.0) -> None:
    """Give so many answers of this length, and go on for so many seconds, as fast as it goes; says
    how many it gave.
    """
    loop, given = asyncio.get_running_loop(), 0
    async with Runtime(at(path), recover=False) as runtime:
        end = loop.time() + seconds
        status = await runtime.start(dictation())
        # clock: how long it writes at least; nothing is judged by it
        while given < answers or loop.time() < end:
            status = await runtime.answer(status.queries[0], "v" * length)
            given += 1
        say(status.session_id, given)


async def read(path: str, until: str) -> None:
    """Look at sessions again and again, as a console does, until a file named `until` exists."""
    from pathlib import Path

    async with Runtime(at(path), recover=False) as runtime:
        say("reads")
        while not Path(until).exists():
            for found in await runtime.sessions():
                await runtime.status(found.session_id)
            await asyncio.sleep(0.001)
