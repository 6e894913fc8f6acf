"""One tool call: how it finds a session, waits for it, and reports its progress to the client.

Rules
  1. A call waits at most its `wait` seconds for what it cannot hurry.
  2. A session that waits for a child is moved by answering the child: the child is named in the
     result, and the call does not wait for it.
  3. Progress and logs are read from the journal: only what is committed is reported, and no session
     waits for the report.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import mcp_types as types
import msgspec
from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext

from everhold.core.codec import JSON
from everhold.core.observer import Observer
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import MODEL_KINDS, Query, QueryAnswer
from everhold.core.status import Accepted, OpenQuery, Paused, Running, Status
from everhold.core.usage import TokenCost
from everhold.engine.journal_reader import JournalReader
from everhold.errors import StateError, UsageError
from everhold.mcp import elicitation, multi_round, render
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.ports.store import Store
from everhold.runtime import Runtime

T = TypeVar("T")
RequestContext = ServerRequestContext[Any, Any]

#: Seconds a call waits unless it says otherwise.
DEFAULT_WAIT_SECONDS: Final = 30.0
#: Seconds between two looks at a session that waits for a person, or for a child.
POLL_SECONDS: Final = 0.25
_ID: Final = re.compile(r"s-[0-9a-f]{16}-[0-9a-f]{24}")


class StatusResult(msgspec.Struct):
    """Where a session stands, and what else the result says of it."""

    status: Status
    title: str = ""
    extra: dict[str, JSON] = {}
    notes: dict[str, str] = {}  # why an answer of the client's model was refused, by query id
    parent: str | None = None  # the session that waits for its end
    asked: bool = False  # whether the person here was asked, and did not answer


class ToolCall:
    """One call of a tool, with the runtime it works on."""

    def __init__(
        self,
        holder: RuntimeHolder,
        observer: ProgressObserver,
        runtime: Runtime,
        context: RequestContext,
    ) -> None:
        self.holder = holder
        self.runtime = runtime
        self.context = context
        self._observer = observer

    async def record_round_reply(self, back: multi_round.RoundReply) -> StatusResult:
        """Take what came back to what was asked, and say where the session stands."""
        put = back.put
        record = await self.runtime.store.load(put.session_id, since=-1)
        standing = StatusResult(await self.runtime.status(put.session_id), record.birth.title)
        for query in (
            *render.list_model_questions(standing.status),
            *render.list_other_questions(standing.status),
        ):
            if query.id in put.query_ids:
                await self.record_answer(
                    standing,
                    query,
                    multi_round.read_round_answer(query, back.responses.get(query.id)),
                )
        if isinstance(standing.status, Accepted):  # what is left to ask is told, too
            standing.status = await self.runtime.status(put.session_id)
        settled = await self.settle(standing.status, standing.title, seen=record.head.n)
        return msgspec.structs.replace(
            settled,
            extra=standing.extra,
            notes=standing.notes,
            parent=record.birth.parent,
            asked=standing.asked,
        )

    async def record_answer(self, standing: StatusResult, query: OpenQuery, value: Any) -> bool:
        """Hand on what a person, or the client's model, said, and whether it was an answer that
        counts.
        """
        sampled = query.kind in MODEL_KINDS
        if value is msgspec.UNSET:
            if not sampled:
                standing.extra["person"] = f"{query.id} was not answered here; it stays open"
                standing.asked = True
            return False
        by = elicitation.describe_client(self.context) | {
            "through": "sampling" if sampled else "elicitation"
        }
        try:
            standing.status = await self.runtime.answer_many(
                query.session_id, {query.id: value}, by=by, wait=0
            )
        except (UsageError, StateError) as error:  # it does not fit, or somebody else was quicker
            if sampled:
                standing.notes[query.id] = str(error)
            else:
                standing.extra["person"] = f"{query.id}: {error}"
            standing.status = await self.runtime.status(query.session_id)
            return False
        return True

    async def find_session(self, name: str) -> str:
        return name if _ID.fullmatch(name) else await self.runtime.find(name)

    async def settle(
        self,
        status: Status,
        title: str,
        *,
        seen: int = -1,
        wait: float | None = None,
        extra: dict[str, JSON] | None = None,
        ref: str = "",
    ) -> StatusResult:
        """Wait for what moves by itself, and tell the client meanwhile what is new after delivery
        `seen`.
        """
        runtime = self.runtime
        seconds = DEFAULT_WAIT_SECONDS if wait is None else wait
        teller = ProgressNotifier(self.context, runtime.store, status.session_id, seen)
        if _moves(status) and seconds and not self._is_far_timer(status, seconds):
            status = await self._observer.during(self._wait_for_moves(status, seconds), teller)
        await teller.rest()
        return StatusResult(
            status, title, {**(extra or {}), **render.render_code_hint(ref, status)}
        )

    async def _wait_for_moves(self, status: Status, seconds: float) -> Status:
        """Wait for what moves by itself, which a child that asks somebody does not; one may be born
        meanwhile.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (
            _moves(status)
            and (left := end - clock()) > 0
            and not await find_asking_child(self.runtime, status)
        ):
            status = await self.runtime.wait(status.session_id, min(left, POLL_SECONDS))
        return status

    async def wait_for_person(self, status: Status, seconds: float) -> Status:
        """Wait for a person, who answers somewhere else, as long as there is nothing for the
        model.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (
            render.list_other_questions(status)
            and not render.list_model_questions(status)
            and clock() < end
        ):
            await asyncio.sleep(POLL_SECONDS)
            status = await self.runtime.status(status.session_id)
        return status

    def _is_far_timer(self, status: Status, seconds: float) -> bool:
        """Whether only a timer is waited for that goes off later."""
        return (
            isinstance(status, Paused)
            and status.waiting_for == ("a timer",)
            and status.until is not None
            and status.until > self.runtime.clock.now() + seconds
        )


def _moves(status: Status) -> bool:
    return isinstance(status, Running) or (isinstance(status, Paused) and not status.queries)


# ---- children

#: How a status says that it waits for a child.
_CHILD: Final = "child session "


async def find_asking_child(runtime: Runtime, status: Status) -> str:
    """The child, or a child of a child, that waits for somebody's answer; empty if there is
    none.
    """
    for child in _children(status):
        found = await runtime.status(child)
        if isinstance(found, Paused) and found.queries:
            return child
        if deeper := await find_asking_child(runtime, found):
            return deeper
    return ""


def _children(status: Status) -> list[str]:
    words = status.waiting_for if isinstance(status, Paused | Running) else ()
    return [word.removeprefix(_CHILD) for word in words if word.startswith(_CHILD)]


# ---- progress

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
