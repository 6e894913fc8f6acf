"""A caller may be cancelled at any await: what its call has begun completes, and the same call
again does no harm.

Each verb of `callers.py` is called by callers that leave: at each suspension of the verb, and after
each number of turns of the event loop. Between two turns of the loop each verb of the store is
either not begun, or landed and not yet acknowledged (`SlowStore`). Time stands still, so that what
a caller failed to request is not found by a later look.
"""

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.agents import AgentSession
from everhold.agents.envelopes import Envelopes
from everhold.agents.events import LiveBuffers
from everhold.archive.archive import Archive
from everhold.movers import Workers
from everhold.notify import Notifications
from everhold.ports import attachment
from everhold.runtime import Runtime
from everhold.schedules import Schedules, Triggers
from everhold.stores.memory import MemoryStore
from everhold.stores.registry import create_store as store_at
from everhold.testing.cancel import When, cancel_caller_at
from everhold.testing.clock import ManualClock
from everhold.testing.faults import SlowStore
from tests.fault.callers import Case, Desk, bot, cases, model
from tests.postgres import fresh

NUMBERS = itertools.count(1)
PATIENCE = 60  # seconds; only a caller that waits for ever takes so long


@asynccontextmanager
async def opened(
    url: str, around: Any = SlowStore
) -> AsyncIterator[tuple[Runtime, Any, ManualClock]]:
    store, clock = store_at(url), ManualClock()
    async with Runtime(around(store), clock=clock, llm=model, tell=[Desk()]) as runtime:
        yield runtime, store, clock
        assert [
            problem for problem in await store.maintenance.verify() if not problem.warning
        ] == []


class Calls:
    """The calls of one verb, each under a mark of its own."""

    def __init__(self, kind: type[Case], *around: Any) -> None:
        self._kind, self._around = kind, around

    async def _prepared(self) -> Case:
        runtime, store, clock, folder = self._around
        case = self._kind(runtime, store, clock, f"m{next(NUMBERS)}m", folder)
        await case.prepare()
        await case.rest()
        return case

    async def undisturbed(self) -> None:
        """Learn how everything stands before the call, after it, and in the end."""
        case = await self._prepared()
        self.before = await case.look()
        await case.verb()
        await case.rest()
        self.after = await case.look()
        await case.finish()
        await case.rest()
        self.end = await case.look()
        await case.clean()

    async def left(self, when: When, at: int) -> bool:
        """Cancel one caller; returns whether it was still there to be cancelled."""
        case, place = await self._prepared(), f"{when} {at}"
        assert await case.look() == self.before, place
        came = await cancel_caller_at(case.verb(), when, at)
        assert came != "stayed", place
        if when == "turn" or not case.repeats:
            await case.rest()
            seen = await case.look()
            assert not case.whole or seen in (self.before, self.after), place
            if came == "left" and (case.repeats or seen == self.before):
                await case.verb()
        elif came == "left":
            await case.verb()  # beside what the first call left behind
        await case.rest()
        assert not case.whole or await case.look() == self.after, place
        await case.finish()
        await case.rest()
        assert await case.look() == self.end, place
        await case.clean()
        return came == "left"


async def everywhere(kind: type[Case], url: str, folder: Path, turns: int = 1) -> None:
    async with opened(url) as (runtime, store, clock):
        calls = Calls(kind, runtime, store, clock, folder)
        async with asyncio.timeout(PATIENCE):
            await calls.undisturbed()
        await at_every_place(calls.left, turns)


async def at_every_place(left: Callable[[When, int], Awaitable[bool]], turns: int = 1) -> None:
    """Cancel a caller at each suspension, and after each so many turns of the event loop, until it
    is too late.
    """
    whens: tuple[tuple[When, int, int], ...] = (("await", 1, 1), ("turn", 0, turns))
    for when, first, step in whens:
        for at in itertools.count(first, step):
            async with asyncio.timeout(PATIENCE):
                if not await left(when, at):
                    break
        assert at > first, f"nobody left at any {when}"


@pytest.mark.parametrize("kind", cases(), ids=lambda kind: kind.verb_of)
@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_caller_leaves_at_every_await(kind: type[Case], where: str, tmp_path: Path) -> None:
    url = "memory://" if where == "memory" else f"sqlite:///{tmp_path}/app.db"
    await everywhere(kind, url, tmp_path)


@pytest.mark.soak
@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("kind", cases(), ids=lambda kind: kind.verb_of)
async def test_a_caller_leaves_on_postgres(kind: type[Case], postgres: Any, tmp_path: Path) -> None:
    """A round trip takes many turns, so that not after each of them somebody leaves."""
    await everywhere(kind, fresh(postgres), tmp_path, turns=7)


# ---- verbs that change nothing


@everhold.program
async def shown(ctx: everhold.Context) -> Any:
    return [await ctx.call(keep), await ctx.llm("Why?", to="bob"), await ctx.approval("Go?")]


async def keep() -> str:
    await attachment.keep_attachment(b"bytes", "text/plain")
    return "kept"


@asynccontextmanager
async def furnished(url: str, around: Any = SlowStore) -> AsyncIterator[tuple[Runtime, str, str]]:
    """A runtime with something of everything to look at: a session that waits, and a
    conversation.
    """
    async with opened(url, around) as (runtime, _, _):
        session = (await runtime.start(shown(), key="shown")).session_id
        await runtime.schedules.add("hourly", "0 * * * *", shown)
        await runtime.triggers.add("event", shown)
        await runtime.triggers.emit("event", key="it")
        talk = await runtime.session(bot, "talk")
        await talk.send("Hello.", id="hello")
        await talk.enqueue("Later.", key="later", available_at=runtime.clock.now() + 1e9)
        yield runtime, session, talk.id


async def collected(events: AsyncIterator[Any]) -> int:
    return len([event async for event in events])


def handle(runtime: Runtime, talk: str) -> AgentSession:
    """Another handle of a conversation."""
    return AgentSession(runtime.engine, LiveBuffers(), runtime.fork, bot, talk)


async def read_without_agent(runtime: Runtime, id: str) -> Any:
    return await (await runtime.conversation("talk")).messages()


async def refreshed(talk: AgentSession) -> int:
    await talk.refresh()
    return len(await talk.history())


async def conversed(talk: AgentSession) -> Any:
    return (await talk.conversation()).turns


async def spent(talk: AgentSession) -> Any:
    return (await talk.usage()).usage


async def first_node(talk: AgentSession) -> Any:
    return await talk.node((await talk.history())[0].id)


LOOKS: dict[str, Callable[[Runtime, str], Coroutine[Any, Any, Any]]] = {
    "Runtime.attachment": lambda runtime, id: first_attachment(runtime, id),
    "Runtime.attachments": lambda runtime, id: runtime.attachments(id),
    "Runtime.conversation": read_without_agent,
    "Runtime.explain": lambda runtime, id: runtime.explain(id),
    "Runtime.find": lambda runtime, id: runtime.find("shown"),
    "Triggers.handovers": lambda runtime, id: runtime.triggers.handovers(),
    "Runtime.inbox": lambda runtime, id: runtime.inbox(),
    "Schedules.next_runs": lambda runtime, id: runtime.schedules.next_runs("hourly"),
    "Notifications.list": lambda runtime, id: runtime.notifications.list(),
    "Schedules.list": lambda runtime, id: runtime.schedules.list(),
    "Runtime.sessions": lambda runtime, id: runtime.sessions(),
    "Runtime.snapshot": lambda runtime, id: runtime.snapshot(id, include_history=True),
    "Runtime.status": lambda runtime, id: runtime.status(id),
    "Runtime.steps": lambda runtime, id: runtime.steps(id),
    "Runtime.transcript": lambda runtime, id: runtime.transcript(id),
    "Triggers.list": lambda runtime, id: runtime.triggers.list(),
    "Archive.deleted_by": lambda runtime, id: runtime.archive.deleted_by(id),
    "Archive.verify": lambda runtime, id: runtime.archive.verify(),
    "Runtime.usage": lambda runtime, id: runtime.usage(),
    "Runtime.wait": lambda runtime, id: runtime.wait(id),
    "Workers.list": lambda runtime, id: runtime.workers.list(),
}
READS: dict[str, Callable[[AgentSession], Coroutine[Any, Any, Any]]] = {
    "conversation": conversed,
    "follow": lambda talk: collected(talk.follow("hello")),
    "frames": lambda talk: talk.frames(),
    "envelope": lambda talk: talk.envelope(),
    "history": lambda talk: talk.history(),
    "input": lambda talk: talk.input("hello"),
    "intake": lambda talk: talk.intake(all=True),
    "messages": lambda talk: talk.messages(),
    "node": first_node,
    "nodes": lambda talk: talk.nodes("note"),
    "options": lambda talk: talk.options(),
    "refresh": refreshed,
    "revision": lambda talk: talk.revision(),
    "snapshot": lambda talk: talk.snapshot(),
    "stored": lambda talk: talk.stored(fresh=True),
    "tools": lambda talk: talk.tools(),
    "turn": lambda talk: talk.turn("hello"),
    "turns": lambda talk: talk.turns(),
    "usage": spent,
    "view": lambda talk: talk.view(),
}


async def first_attachment(runtime: Runtime, id: str) -> bytes:
    return await runtime.attachment(id, (await runtime.attachments(id))[0].id)


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_who_only_looks_leaves_everything_as_it_was(where: str, tmp_path: Path) -> None:
    """The next one sees the same, also through the same handle."""
    async with furnished("memory://" if where == "memory" else f"sqlite:///{tmp_path}/app.db") as (
        runtime,
        id,
        talk,
    ):

        async def left(
            name: str, handle: Any, verb: Callable[..., Any], when: When, at: int
        ) -> bool:
            talk = handle()
            came = await cancel_caller_at(verb(*talk), when, at)
            assert came != "stayed", name
            assert repr(await verb(*talk)) == seen, f"{name}, {when} {at}"
            return came == "left"

        for name, look in LOOKS.items():
            seen = repr(await look(runtime, id))
            await at_every_place(partial(left, name, lambda: (runtime, id), look))
        for name, read in READS.items():
            seen = repr(await read(handle(runtime, talk)))
            await at_every_place(partial(left, name, lambda: (handle(runtime, talk),), read))
        assert not runtime.engine.sessions._watchers


async def test_a_check_ends_with_its_caller() -> None:
    """It changes nothing, and leaves no process behind."""
    async with furnished("memory://") as (runtime, _, _):
        for at in (1, 2, 4, 8):
            assert await cancel_caller_at(runtime.archive.check(), "await", at) == "left"
        report = await runtime.archive.check(program="shown")
        assert [checked.verdict for checked in report.checked] == ["ok"] * 2


# ---- opening and closing


class Closing(SlowStore):
    closed = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        await self.store.close()
        self.closed += 1


async def for_ever() -> None:
    await asyncio.Event().wait()


@everhold.program
async def endless(ctx: everhold.Context) -> None:
    await ctx.call(for_ever)


async def test_a_runtime_is_closed_though_its_caller_leaves() -> None:
    """To close it again waits until it is closed. Nothing of it runs after that."""

    async def left(when: When, at: int) -> bool:
        store = Closing(MemoryStore())
        runtime = Runtime(store, clock=ManualClock(), llm=model, tell=[Desk()])  # type: ignore[arg-type]
        await runtime.__aenter__()
        await runtime.start(endless(), wait=0)
        came = await cancel_caller_at(runtime.close(grace=0), when, at)
        await runtime.close(grace=0)
        assert store.closed == 1, f"{when} {at}"
        assert asyncio.all_tasks() == {asyncio.current_task()}, f"{when} {at}"
        return came == "left"

    await at_every_place(left)


# ---- the table


def test_the_table_names_every_verb() -> None:
    """Each public async verb of a runtime and of a conversation is cancelled somewhere above."""
    named = {kind.verb_of.partition(" ")[0] for kind in cases()}
    named |= {"Archive.check", "Runtime.close", "Notifications.close", "Notifications.flush"}
    named |= {"Workers.run"}
    named |= {*LOOKS} | {f"AgentSession.{name}" for name in READS}
    named |= {"AgentSession.provide_tools"}  # changes only this process, and waits for nothing
    named |= {"Envelopes.export", "Envelopes.read"}  # they look, as AgentSession.envelope does
    parts = (Schedules, Triggers, Notifications, Archive, Workers, Envelopes)
    assert named == {
        f"{owner.__name__}.{name}"
        for owner in (Runtime, AgentSession, *parts)
        for name in verbs(owner)
    }


def verbs(owner: type) -> list[str]:
    found = inspect.getmembers(
        owner, lambda each: inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
    )
    return [name for name, _ in found if not name.startswith("_")]
