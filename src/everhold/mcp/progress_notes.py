"""Progress and logs while a call waits.

An observer hears that a session moved; whoever follows it reads what is new in the journal and
tells the client. It tells nothing that is not committed, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext

from everhold.core.observer import Observer
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Query, QueryAnswer
from everhold.core.usage import TokenCost
from everhold.engine.journal_reader import JournalReader
from everhold.ports.store import Store

log = logging.getLogger("everhold")

T = TypeVar("T")
RequestContext = ServerRequestContext[Any, Any]

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
_NAMES: Final = {"warn": "warning", "fatal": "critical", "trace": "debug"}
#: Where a connection keeps the level it asked for.
LOG_LEVEL_KEY: Final = "everhold.log_level"


class ProgressObserver(Observer):
    """Wakes those who follow a session."""

    def __init__(self) -> None:
        self._events: dict[str, set[asyncio.Event]] = {}

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        self._wake(session_id)

    def paused(self, session_id: str, queries: Sequence[Query]) -> None:
        self._wake(session_id)

    def _wake(self, session_id: str) -> None:
        for event in self._events.get(session_id, ()):
            event.set()

    async def during(self, work: Awaitable[T], teller: ProgressNotifier) -> T:
        """Do something, and tell the client meanwhile what the session does."""
        event = asyncio.Event()
        event.set()
        self._events.setdefault(teller.session_id, set()).add(event)
        telling = asyncio.ensure_future(teller.follow(event))
        try:
            return await work
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            left = self._events[teller.session_id]
            left.discard(event)
            if not left:
                del self._events[teller.session_id]


class ProgressNotifier:
    """Tells one client what is new in the journal of one session after delivery `seen`."""

    def __init__(self, context: RequestContext, store: Store, session_id: str, seen: int) -> None:
        self._context = context
        self._store = store
        self.session_id = session_id
        self._reader = JournalReader(seen + 1)
        self._answers = 0

    async def follow(self, event: asyncio.Event) -> None:
        while True:
            await event.wait()
            event.clear()
            progress = await self.news()
            said = f"{self._answers} answers so far" if progress is None else _words(progress)
            await self._context.session.report_progress(self._reader.next_n, None, said)

    async def rest(self) -> None:
        """Tell what was logged and not told yet, to a client that asked for it."""
        if wants_log(self._context):
            await self.news()

    async def news(self) -> Progress | None:
        record = await self._store.load(self.session_id, self._reader.next_n)
        progress: Progress | None = None
        for step in self._reader.read(record.deliveries):
            self._answers += len(step.answered)
            await _tell_log(self._context, step.notes.log)
            progress = step.notes.progress or progress
        return progress


def _words(progress: Progress) -> str:
    return progress.message or f"step {progress.step}" + (
        f" of {progress.total}" if progress.total else ""
    )


def wants_log(context: RequestContext) -> bool:
    """Whether the client asked for what programs log: with a request since 2026-07-28, before that
    once for all.
    """
    return bool(_levels(context)) and (
        context.meta is not None or LOG_LEVEL_KEY in context.session._connection.state
    )


def _levels(context: RequestContext) -> frozenset[str]:
    allowed = allowed_log_levels(context.session.protocol_version, context.meta)
    wanted = context.session._connection.state.get(LOG_LEVEL_KEY, "info")
    return frozenset(level for level in LOG_LEVELS[LOG_LEVELS.index(wanted) :] if level in allowed)


async def _tell_log(context: RequestContext, entries: Sequence[LogEntry]) -> None:
    wanted = _levels(context) if entries else frozenset()
    for entry in entries:
        level: Any = _NAMES.get(entry.level, entry.level)
        level = level if level in LOG_LEVELS else "info"
        if level in wanted:
            params = types.LoggingMessageNotificationParams(
                level=level, logger=entry.source, data=entry.message
            )
            message = types.LoggingMessageNotification(params=params)
            await context.session.send_notification(message, related_request_id=context.request_id)
