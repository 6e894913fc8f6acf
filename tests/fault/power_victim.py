"""A process that works at one durability level and says what was acknowledged, for tests that cut
the power.

It says `ack WHAT SESSION WORD` when a verb has returned, and `did HOW SESSION WORD` from within an
effect. WHAT is `model`, `person` or `effect`: whose the word is. HOW is the effect's `rerun`. Each
word is said once, and can be found in the database. `closed` says that the database was closed in
good order.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from itertools import count

import everhold
from everhold.agents.agent import Agent
from everhold.core.status import Status
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, store
from tests.fault.victim import say

PLAN = (
    "model",
    "model",
    "person",
    "model",
    "safe",
    "model",
    "never",
    "approval",
    "model",
    "signal",
    "model",
    "model",
)
talker = Agent(name="power_talker")
words: Iterator[str] = (f"word{n:04}" for n in count())


@everhold.program
async def errand(ctx: everhold.Context, name: str, plan: list[str], begun: str) -> list:
    """Do what a plan says, one thing after another; each effect is told the last word."""
    said = [begun]
    for part in plan:
        if part == "model":
            said.append(await ctx.llm("what next?"))
        elif part == "person":
            said.append(await ctx.input("and you?"))
        elif part == "approval":
            said.append(await ctx.approval("may I?"))
        elif part == "signal":
            said.append(await ctx.receive("go"))
        else:
            try:
                said.append(await ctx.call(act, part, name, said[-1], rerun=part))
            except everhold.OutcomeUnknown:  # nobody knows whether it was done
                said.append("unknown")
    return said


def act(how: str, name: str, word: str) -> str:
    say("did", how, name, word)
    return f"{word}-done"


async def begun(runtime: Runtime, name: str, plan: list[str]) -> str:
    word = next(words)
    status = await runtime.start(errand(name=name, plan=plan, begun=word), key=name)
    say("ack", "model", name, word)
    return status.session_id


async def answered(runtime: Runtime, session_id: str, name: str, part: str) -> Status:
    """Answer what a session asks by its plan, and say so."""
    word = next(words)
    if part == "signal":
        await runtime.signal(session_id, "go", word)
    elif part == "approval":
        await runtime.answer(session_id, True, by={"user": word})
    else:
        await runtime.answer(session_id, word)
    say("ack", "model" if part == "model" else "person", name, word)
    return await runtime.wait(session_id)


async def alone(runtime: Runtime, name: str, plan: tuple[str, ...]) -> None:
    """One session from its start to its end, one thing after another."""
    session_id = await begun(runtime, name, list(plan))
    for part in plan:
        if part in ("safe", "never"):
            record = await runtime.store.load(session_id)
            (done,) = [answer.value for answer in record.deliveries[-1].answers]
            say("ack", "effect", name, done)
        else:
            await answered(runtime, session_id, name, part)


async def together(runtime: Runtime, prefix: str, plan: tuple[str, ...]) -> None:
    """Sessions that step at the same moment and share their commits."""
    names = [f"{prefix}-{n}" for n in range(4)]
    ids = await asyncio.gather(*(begun(runtime, name, list(plan)) for name in names))
    for part in plan:
        await asyncio.gather(
            *(answered(runtime, one, name, part) for one, name in zip(ids, names, strict=True))
        )


async def talked(runtime: Runtime, name: str) -> None:
    """A conversation: what is said to it begins a turn, or waits in its intake."""
    session = await runtime.session(talker, name)
    for say_it in (session.send, session.steer, session.steer):
        word = next(words)
        await say_it(word)
        say("ack", "person", name, word)


async def finished(runtime: Runtime) -> int:
    """After a cut: answer whatever is asked, and see each errand come to its end; how many there
    were.
    """
    errands = [one.session_id for one in await runtime.sessions() if "talk" not in str(one.key)]
    for _ in PLAN:
        for one in errands:
            await runtime.wait(one)
        for query in await runtime.inbox(kind="signal"):
            if query.session_id in errands:
                await runtime.signal(query.session_id, "go", "again")
        for query in await runtime.inbox():
            if query.session_id in errands:
                await runtime.answer(query, True if query.kind == "approval" else "again")
    ends = [await runtime.wait(one) for one in errands]
    assert all(one.state == "completed" for one in ends), ends
    return len(errands)


async def life(path: str, level: str, name: str) -> None:
    async with Runtime(SQLiteStore(path, durability=level)) as runtime:
        await alone(runtime, f"{name}-alone", PLAN)
        store.CHECKPOINT_EVERY = 16  # type: ignore[misc]  # from here on a short life has some, which sync as well
        await together(runtime, f"{name}-together", ("person", "model", "person"))
        await talked(runtime, f"{name}-talk")
        if name == "last":
            os._exit(0)  # the files stay as they are
    say("closed", "-", "-", "-")


async def lives(path: str, level: str) -> None:
    await life(path, level, "first")
    await life(path, level, "last")


if __name__ == "__main__":
    asyncio.run(lives(*sys.argv[1:]))
