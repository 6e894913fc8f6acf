"""What the subagents of a conversation wait for: their questions are the questions of the turn that
waits for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Self, TypeVar

from everhold.core.journal import find_open_queries
from everhold.core.query import SENT_BY_NAME, Kind
from everhold.core.session import SessionId, SessionState
from everhold.core.status import OpenQuery, Paused, Status
from everhold.engine.answer_check import list_answerable
from everhold.engine.engine import Engine
from everhold.ports.store import SessionFilter

T = TypeVar("T")

#: Seconds after which sessions below are looked at though nobody told of a change: another process
#: may have moved them.
CHILD_POLL_SECONDS: Final = 5.0


class ChangeWaiter:
    """Waits until one of the sessions that it watches may have changed. Watch first, then look:
    nothing is missed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stack = ExitStack()
        self._futures: list[asyncio.Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def watch(self, session_id: str) -> None:
        self._futures.append(self._stack.enter_context(self._engine.sessions.watched(session_id)))

    async def wait(self, timeout: float | None) -> None:
        await asyncio.wait(self._futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def select_open_questions(status: Status) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer; an input that may come is not asked for."""
    queries = status.queries if isinstance(status, Paused) else ()
    return tuple(query for query in queries if query.kind not in SENT_BY_NAME)


def is_worked_on_here(engine: Engine, session_id: str, revision: int | None = None) -> bool:
    """Whether this process works on all that a session waits for; being told something is not
    waited for.

    With a revision: and whether the session stands there, as far as it is known here.
    """
    live = engine.sessions.cached(session_id)
    jobs = engine.sessions.jobs.get(session_id)
    if live is None or not jobs or (revision is not None and live.head.revision != revision):
        return False
    return all(q in jobs or entry.query.kind in SENT_BY_NAME for q, entry in live.opened.items())


async def find_questions_below(
    engine: Engine, session_id: str, watch: Callable[[str], Any] = lambda child: None
) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer before the sessions below this one go on; each of them is
    watched.
    """
    found: list[OpenQuery] = []
    wanted = SessionFilter(
        parent=SessionId(session_id), state=(SessionState.RUNNING, SessionState.PAUSED)
    )
    # who is waited for
    for child in [row.birth for row in await engine.store.list(wanted) if not row.birth.wakes]:
        watch(child.id)
        status = await engine.status(child.id)
        found += select_open_questions(status) or await find_questions_below(
            engine, child.id, watch
        )
    return tuple(found)


async def find_all_questions(engine: Engine, session_id: str) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer, this session or one below it, before it goes on."""
    record = await engine.store.load(session_id, since=-1)
    # and not handed over yet
    taken = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
    opened = {
        q: entry for q, entry in find_open_queries(record.deliveries).items() if q not in taken
    }
    working = {effect.q: effect.worker for effect in record.effects}
    found = [
        OpenQuery(record.birth.id, one.query, one.at) for one in list_answerable(opened, working)
    ]
    found = [query for query in found if query.kind not in SENT_BY_NAME]
    if found or not any(entry.query.kind is Kind.SESSION for entry in opened.values()):
        return tuple(found)
    return await find_questions_below(engine, session_id)


async def stream_until_question(
    engine: Engine, session_id: str, events: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    """Events, until a session below waits for somebody outside: then nothing more happens before
    they answer.
    """
    below: asyncio.Future[Any] = asyncio.ensure_future(_waits_below(engine, session_id))
    working = [below]
    try:
        while True:
            following: asyncio.Future[T] = asyncio.ensure_future(_next(events))
            working = [below, following]
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            yield following.result()
    except StopAsyncIteration:
        return
    finally:
        for task in working:
            task.cancel()
        try:
            await asyncio.gather(*working, return_exceptions=True)
        finally:
            with suppress(RuntimeError):  # it still runs, if the caller was cancelled twice
                await events.aclose()


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)


async def _waits_below(engine: Engine, session_id: str) -> None:
    """Return as soon as somebody outside has to answer before the sessions below go on."""
    while True:
        with ChangeWaiter(engine) as changes:
            changes.watch(session_id)
            if await find_questions_below(engine, session_id, changes.watch):
                return
            await changes.wait(CHILD_POLL_SECONDS)
