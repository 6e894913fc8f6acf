"""One tool call: finds its session, waits for it, and reports progress to the client.

Rules
  1. A call waits at most `wait` seconds.
  2. If a session waits for a child session that has questions, the call returns at once and names
     the child.
  3. Progress and logs come from the journal, so only committed steps are reported. No session waits
     for a report.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.core.observer import Observer
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import MODEL_KINDS, Query, QueryAnswer
from everhold.core.session import format_session_name
from everhold.core.status import Accepted, OpenQuery, Paused, Running, Status
from everhold.core.usage import TokenCost
from everhold.engine.journal_reader import JournalReader
from everhold.errors import StateError, UsageError
from everhold.mcp import elicitation, multi_round, render
from everhold.mcp.protocol import (
    LOG_LEVELS,
    Notification,
    RequestContext,
    list_deliverable_levels,
)
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.ports.store import FROM_OPEN, Store
from everhold.runtime import Runtime

T = TypeVar("T")

#: Seconds that a call waits without `wait`.
DEFAULT_WAIT_SECONDS: Final = 30.0
#: Seconds between two polls of a session that waits for a person or a child session.
POLL_SECONDS: Final = 0.25
#: What is added to a progress number that would not grow.
LEAST_PROGRESS: Final = 0.001
_ID: Final = re.compile(r"s-[0-9a-f]{16}-[0-9a-f]{24}")


class StatusResult(msgspec.Struct):
    """The status of a session, and what else its result contains."""

    status: Status
    title: str = ""
    extra: dict[str, JSON] = {}
    notes: dict[str, str] = {}  # why an answer of the client's model was refused, by query id
    parent: str | None = None  # the session that started this one and waits for it
    asked: bool = False  # the person at the client was asked and did not answer


class ToolCall:
    """One call of a tool, with its runtime and its client."""

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
        """Record the answers of a round and return the status."""
        state = back.state
        record = await self.runtime.store.load(state.session_id, since=-1)
        standing = StatusResult(await self.runtime.status(state.session_id), record.birth.title)
        for query in (
            *render.list_model_questions(standing.status),
            *render.list_other_questions(standing.status),
        ):
            if query.id in state.query_ids:
                await self.record_answer(
                    standing,
                    query,
                    multi_round.read_round_answer(query, back.responses.get(query.id)),
                )
        if isinstance(standing.status, Accepted):  # `Accepted` does not list the open questions
            standing.status = await self.runtime.status(state.session_id)
        settled = await self.settle(standing.status, standing.title, seen=record.head.n)
        return msgspec.structs.replace(
            settled,
            extra=standing.extra,
            notes=standing.notes,
            parent=record.birth.parent,
            asked=standing.asked,
        )

    async def record_answer(self, standing: StatusResult, query: OpenQuery, value: Any) -> bool:
        """Record the answer of a person or the client's model; return whether it was accepted."""
        sampled = query.kind in MODEL_KINDS
        if value is msgspec.UNSET:
            if not sampled:
                standing.extra["person"] = (
                    f"{query.id} was not answered at this client; it stays open"
                )
                standing.asked = True
            return False
        by = elicitation.describe_client(self.context) | {
            "through": "sampling" if sampled else "elicitation"
        }
        try:
            standing.status = await self.runtime.answer_many(
                query.session_id, {query.id: value}, by=by, wait=0
            )
        except (UsageError, StateError) as error:  # it does not fit, or another answer came first
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
        """Wait until the session ends or has questions, and report its progress to the client.

        `seen` is the last delivery that the client knows. `ref` is the program's, for hints.
        """
        runtime = self.runtime
        seconds = DEFAULT_WAIT_SECONDS if wait is None else wait
        notifier = ProgressNotifier(self.context, runtime.store, status.session_id, seen)
        # it waits only for a timer, which fires after this call ends
        sleeps = (
            isinstance(status, Paused)
            and status.waiting_for == ("a timer",)
            and status.until is not None
            and status.until > self.runtime.clock.now() + seconds
        )
        if _moves(status) and seconds and not sleeps:
            status = await self._observer.during(self._wait_for_moves(status, seconds), notifier)
        await notifier.send_remaining_logs()
        return StatusResult(
            status, title, {**(extra or {}), **render.render_code_hint(ref, status)}
        )

    async def _wait_for_moves(self, status: Status, seconds: float) -> Status:
        # polls, because a child that has questions may start while this call waits
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
        """Wait until a person answers elsewhere, or until there are questions for the model."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (
            isinstance(status, Paused)
            and status.needs_outside
            and not render.list_model_questions(status)
            and clock() < end
        ):
            await asyncio.sleep(POLL_SECONDS)
            status = await self.runtime.status(status.session_id)
        return status


def _moves(status: Status) -> bool:
    return isinstance(status, Running) or (isinstance(status, Paused) and not status.needs_outside)


# ---- children

#: The beginning of an entry of `waiting_for` that names a child session.
_CHILD: Final = "child session "


async def find_asking_child(runtime: Runtime, status: Status) -> str:
    """The child session that has open questions, at any depth; empty if there is none."""
    words = status.waiting_for if isinstance(status, Paused | Running) else ()
    for child in [word.removeprefix(_CHILD) for word in words if word.startswith(_CHILD)]:
        found = await runtime.status(child)
        if isinstance(found, Paused) and found.needs_outside:
            return child
        if deeper := await find_asking_child(runtime, found):
            return deeper
    return ""


async def find_session_name(runtime: Runtime, status: Status) -> str:
    """What people call a session that needs them; empty if nobody has to name it."""
    if not (isinstance(status, Paused) and status.needs_outside):
        return ""
    birth = (await runtime.store.load(status.session_id, since=FROM_OPEN)).birth
    return format_session_name(birth.id, birth.key)


# ---- progress

_NAMES: Final = {"warn": "warning", "fatal": "critical", "trace": "debug"}
#: The key of a connection's state for the log level that the client requested.
LOG_LEVEL_KEY: Final = "everhold.log_level"


class ProgressObserver(Observer):
    """Wakes the notifiers of a session when it moves."""

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

    async def during(self, work: Awaitable[T], notifier: ProgressNotifier) -> T:
        """Await `work`, and report the progress of the session meanwhile."""
        event = asyncio.Event()
        event.set()
        self._events.setdefault(notifier.session_id, set()).add(event)
        following = asyncio.ensure_future(notifier.follow(event))
        try:
            return await work
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            left = self._events[notifier.session_id]
            left.discard(event)
            if not left:
                del self._events[notifier.session_id]


class ProgressNotifier:
    """Reports the steps of one session after delivery `seen` to one client."""

    def __init__(self, context: RequestContext, store: Store, session_id: str, seen: int) -> None:
        self._context = context
        self._store = store
        self.session_id = session_id
        self._reader = JournalReader(seen + 1)
        self._answers = 0
        self._sent = -1.0  # the last number that was sent

    async def follow(self, event: asyncio.Event) -> None:
        while True:
            await event.wait()
            event.clear()
            progress = await self._read_new_steps()
            if progress is None:
                message = f"{self._answers} answers so far"
                number, total = float(self._reader.next_n), None
            else:
                message = progress.message or str(progress)
                number, total = float(progress.step), float(progress.total) or None
            if number <= self._sent:  # the protocol wants a larger number in each notification
                number = self._sent + LEAST_PROGRESS
            self._sent = number
            await self._context.session.report_progress(number, total, message)

    async def send_remaining_logs(self) -> None:
        """Send the log entries that were not sent yet, if the client requested logs."""
        if wants_log(self._context):
            await self._read_new_steps()

    async def _read_new_steps(self) -> Progress | None:
        """Send the logs of the new steps. Returns what the program reported last, also before."""
        record = await self._store.load(self.session_id, self._reader.next_n)
        for step in self._reader.read(record.deliveries):
            self._answers += len(step.answered)
            await _send_log(self._context, step.notes.log)
        return record.head.metrics.progress


def wants_log(context: RequestContext) -> bool:
    """Whether the client requested the logs of programs: with each request since 2026-07-28, before
    that once per connection.
    """
    return bool(_list_log_levels(context)) and (
        context.meta is not None or LOG_LEVEL_KEY in context.session._connection.state
    )


def _list_log_levels(context: RequestContext) -> frozenset[str]:
    allowed = list_deliverable_levels(context.session.protocol_version, context.meta)
    wanted = context.session._connection.state.get(LOG_LEVEL_KEY, "info")
    return frozenset(level for level in LOG_LEVELS[LOG_LEVELS.index(wanted) :] if level in allowed)


async def _send_log(context: RequestContext, entries: Sequence[LogEntry]) -> None:
    wanted = _list_log_levels(context) if entries else frozenset()
    for entry in entries:
        level = _NAMES.get(entry.level, entry.level)
        level = level if level in LOG_LEVELS else "info"
        if level in wanted:
            params = {"level": level, "logger": entry.source, "data": entry.message}
            message = Notification("notifications/message", params)
            await context.session.send_notification(message, related_request_id=context.request_id)
