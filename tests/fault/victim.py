"""Processes that answer as fast as they can and tell every acknowledgement, until somebody kills
them.

What they print: `ask SESSION QUERY` before an answer is given, `ack SESSION QUERY VALUE` after it
was acknowledged, `refused SESSION QUERY CODE` if it was not, and `rest` when there is nothing left
to answer.
"""

import asyncio
import os
from collections.abc import Sequence

import everhold
from everhold.core.status import OpenQuery
from everhold.errors import EverholdError
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore


@everhold.program
async def ladder(ctx: everhold.Context, rungs: int) -> list:
    """One question after another, now and then two at once; every third counts in a shared
    place.
    """
    said = []
    for rung in range(rungs):
        if rung % 5 == 4:
            said += await ctx.llm_batch([f"{rung} left", f"{rung} right"])
        else:
            said.append(await ctx.llm(f"{rung}"))
        if rung % 3 == 0:
            await ctx.state.incr("rungs")
    return said


def say(*words: object) -> None:
    """One line, in one write: a line is there whole or not at all."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def climb(path: str, life: int, ladders: list[int], rungs: int, pace: float = 0.0) -> None:
    """Answer what these ladders ask, in four tasks at once, until they are climbed; `pace` is a
    pause in seconds.
    """
    async with Runtime(SQLiteStore(path)) as runtime:
        ids = [
            (await runtime.start(ladder(rungs=rungs), key=f"ladder-{n}")).session_id
            for n in ladders
        ]
        say("up", life)
        await asyncio.gather(*(_climb(runtime, ids[n::4], life, pace) for n in range(4)))
        say("rest")


async def _climb(runtime: Runtime, ids: Sequence[str], life: int, pace: float) -> None:
    waiting = list(ids)
    while waiting:
        for session_id in list(waiting):
            status = await runtime.status(session_id)
            if status.state == "completed":
                waiting.remove(session_id)
            for query in getattr(status, "queries", ()):
                await answered(runtime, query, f"{query.prompt.replace(' ', '-')}/life-{life}")
                await asyncio.sleep(pace)


async def answered(runtime: Runtime, query: OpenQuery, value: str) -> bool:
    say("ask", query.session_id, query.id)
    try:
        await runtime.answer(query, value)
    except EverholdError as error:
        say("refused", query.session_id, query.id, error.code)
        return False
    say("ack", query.session_id, query.id, value)
    return True
