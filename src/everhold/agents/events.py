"""Events of a conversation: facts from the journal, and live text while a model answers, in one
resumable stream.

Rules
  1. A fact is an event in the journal. Its cursor (delivery, position) never changes, and is the
     same for every watcher.
  2. Live text is buffered for a while in the process that receives it, and nowhere else. It is
     provisional until the answer is a fact. It comes after its question and before its answer.
  3. A cursor names the last event that was seen. After a fact, no event is missed. If live text
     after the cursor is lost, the stream says so: a `gap`, then a fresh `view`, then new events.
  4. A cursor of another conversation, or an invalid one, is refused.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from enum import StrEnum
from typing import Any, Final
from weakref import WeakSet

import msgspec

from everhold.core.codec import JSON
from everhold.core.conversation import extract_inputs
from everhold.core.graph import Node, NodeKind, get_custom_type, resolve_node
from everhold.core.journal import Delivery, find_open_queries
from everhold.core.query import (
    ASKED_OUTSIDE,
    SENT_BY_NAME,
    Kind,
    Query,
    QueryAnswer,
    QueryId,
    Usage,
)
from everhold.core.tool import HANDED_OVER, LATER, NEEDS_CONFIRM
from everhold.core.turn import SettledTurn
from everhold.errors import BadArguments
from everhold.exception_info import ExceptionInfo
from everhold.ports.store import SessionRecord, Store
from everhold.ports.stream import Delta, DeltaKind, StreamListener

#: Live text: its position in the buffer, its query, and the delta.
LiveDelta = tuple[int, QueryId, Delta]
#: Live deltas that are kept for watchers that reconnect.
LIVE_BUFFER_SIZE: Final = 2048


class EventKind(StrEnum):
    """The kind of an event: a fact of the journal, or live text."""

    # facts
    INPUT = "input"  # an input arrived: `text` is its id, `value` its content
    MESSAGE = "message"  # `node` was added to the conversation
    FRAME = "frame"  # `node` opened a new context
    NODE = "node"  # `node` was added by a tool or plugin, with data of the type `name`
    MODEL_ASKED = "model_asked"  # a model was asked: `query`
    MODEL_ANSWERED = "model_answered"  # a model answered `query` with `usage`, or failed: `error`
    TOOL_STARTED = "tool_started"  # tool `name` was called with `value`, for the model's `call`
    TOOL_FINISHED = "tool_finished"  # it returned `value`, or failed: `error`
    ASKED = "asked"  # `query` waits for an answer: `name` is its kind, `text` its prompt
    REPLIED = "replied"  # `query` was answered with `value`
    SETTLED = "settled"  # the turn has ended: `settled`
    MOVED = "moved"  # the leaf was moved to the node `text`, or before all nodes
    ENDED = "ended"  # the session has ended: `value` is its outcome
    # live
    TEXT = "text"  # a piece of the answer to `query`
    THINKING = "thinking"  # a piece of the model's reasoning
    TOOL_CALL = "tool_call"  # a piece of JSON in `text`; `call` and `name` come with the first
    PROGRESS = "progress"  # progress of tool `name`, in `text`, for the model's `call`
    OUTPUT = "output"  # a piece of what a program in `name` prints, in `text`, for `call`
    # the running subagent `name`, whose session is `text`, has used `usage` in a model call
    USAGE = "usage"
    RESET = "reset"  # discard the text for `query` so far: the model is asked again
    # where the stream was interrupted
    GAP = "gap"  # live text after the cursor is lost: `text` says why
    VIEW = "view"  # the current conversation, in `value`


_LIVE: Final = {
    DeltaKind.TEXT: EventKind.TEXT,
    DeltaKind.THINKING: EventKind.THINKING,
    DeltaKind.TOOL: EventKind.TOOL_CALL,
    DeltaKind.PROGRESS: EventKind.PROGRESS,
    DeltaKind.OUTPUT: EventKind.OUTPUT,
    DeltaKind.RESET: EventKind.RESET,
    DeltaKind.USAGE: EventKind.USAGE,
}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event. Which fields are set depends on its kind."""

    kind: EventKind
    cursor: str
    at: float = 0.0
    turn: int = 0
    query: str = ""
    call: str = ""
    name: str = ""
    part: int = 0
    text: str = ""
    value: JSON = None
    error: str = ""
    node: Node | None = None
    settled: SettledTurn | None = None
    usage: Usage | None = None
    exception: ExceptionInfo | None = None  # behind `error`, if code of a user raised it


class Cursor(msgspec.Struct, frozen=True):
    """The position of an event: after `i` facts of delivery `n`. For live text, also the buffer and
    a position in it.
    """

    session_id: str
    n: int
    i: int
    ring: str = ""
    k: int = 0

    def __str__(self) -> str:
        fact = f"e1.{self.session_id}.{self.n}.{self.i}"
        return f"{fact}.{self.ring}.{self.k}" if self.ring else fact


def parse_cursor(given: str, session_id: str) -> Cursor:
    """Parse a cursor; raises `BadArguments` if it is invalid or of another session."""
    parts = given.split(".") if isinstance(given, str) else []
    try:
        if parts[0] != "e1" or len(parts) not in (4, 6):
            raise ValueError
        fact = parts[1], int(parts[2]), int(parts[3])
        found = Cursor(*fact) if len(parts) == 4 else Cursor(*fact, parts[4], int(parts[5]))
    except (IndexError, ValueError):
        raise BadArguments(
            "events", f"{given!r} is not a cursor; pass the cursor of an event"
        ) from None
    if found.session_id != session_id:
        raise BadArguments(
            "events", f"the cursor belongs to session {found.session_id!r}, not to {session_id!r}"
        )
    return found


# ---- facts


class EventTranslator:
    """Turns deliveries into events."""

    def __init__(self, session_id: str) -> None:
        self._id = session_id
        self._asked: dict[int, Query] = {}
        self.answered: set[str] = set()  # answered models and tools: their live text is dropped
        self.turn = 0
        self._said: dict[int, JSON] = {}  # answers of the running turn, which nodes refer to
        self._ahead: set[int] = set()  # inputs that no node refers to yet

    def know(self, opened: Iterable[Query]) -> None:
        """Start between two turns, with the open queries."""
        self._asked = {query.q: query for query in opened}

    def of(self, delivery: Delivery) -> list[Event]:
        """The events of one delivery, in cursor order."""
        found = [*self._answers(delivery), *self._notes(delivery), *self._questions(delivery)]
        return [
            msgspec.structs.replace(
                event, cursor=str(Cursor(self._id, delivery.n, i + 1)), at=delivery.at
            )
            for i, event in enumerate(found)
        ]

    def _answers(self, given: Delivery) -> Iterator[Event]:
        for answer in given.answers:
            query = self._asked.pop(answer.q, None)
            self._said[answer.q] = (
                answer.value if answer.error is None else answer.error.get("message", "")
            )
            if query is not None:
                yield from self._answer(query, answer)

    def _answer(self, query: Query, answer: QueryAnswer) -> Iterator[Event]:
        error = "" if answer.error is None else answer.error.get("message", "")
        match query.kind, answer.value:
            case Kind.LLM, _:
                self.answered.add(query.id)
                yield Event(
                    EventKind.MODEL_ANSWERED,
                    "",
                    turn=self.turn,
                    query=query.id,
                    error=error,
                    usage=answer.usage,
                    exception=answer.exception,
                )
            case Kind.CALL, value if is_tool_call(query) and not is_unfinished(answer):
                self.answered.add(query.id)
                yield self._tool(EventKind.TOOL_FINISHED, query, value, error, answer.exception)
            case Kind.SIGNAL, {"id": str(), "content": _}:
                self._ahead.add(query.q)
                for input_id, content in extract_inputs(answer.value):
                    yield Event(EventKind.INPUT, "", query=query.id, text=input_id, value=content)
            case kind, value if kind in ASKED_OUTSIDE:
                yield Event(
                    EventKind.REPLIED, "", turn=self.turn, query=query.id, value=value, error=error
                )

    def _notes(self, reply: Delivery) -> Iterator[Event]:
        notes = reply.notes
        if notes is None:
            return
        for kept in notes.nodes:
            node = resolve_node(kept, self._said)
            self._ahead.discard(-1 if node.q is None else node.q)
            self.turn = int(node.id.partition(".")[0])
            if node.kind is NodeKind.MESSAGE:
                yield Event(EventKind.MESSAGE, "", turn=self.turn, node=node)
            elif node.kind is NodeKind.FRAME:
                yield Event(EventKind.FRAME, "", turn=self.turn, node=node)
            elif node.kind is NodeKind.CUSTOM:
                name = get_custom_type(node)
                yield Event(EventKind.NODE, "", turn=self.turn, name=name, node=node)
        if notes.settled is not None:
            self._said = {q: self._said[q] for q in self._ahead}
            yield Event(EventKind.SETTLED, "", turn=notes.settled.turn, settled=notes.settled)
        if notes.leaf is not msgspec.UNSET:
            yield Event(EventKind.MOVED, "", text=notes.leaf or "")
        if notes.outcome is not None:
            yield Event(EventKind.ENDED, "", value=msgspec.to_builtins(notes.outcome))

    def _questions(self, reply: Delivery) -> Iterator[Event]:
        for query in reply.asked:
            self._asked[query.q] = query
            if query.kind is Kind.LLM:
                yield Event(EventKind.MODEL_ASKED, "", turn=self.turn, query=query.id)
            elif query.kind is Kind.CALL and is_tool_call(query):
                yield self._tool(EventKind.TOOL_STARTED, query, query.args, "")
            elif query.kind in ASKED_OUTSIDE:
                words = query.prompt or query.name
                yield Event(
                    EventKind.ASKED,
                    "",
                    turn=self.turn,
                    query=query.id,
                    name=query.kind,
                    text=words,
                    value=query.args,
                )

    def _tool(
        self,
        kind: EventKind,
        query: Query,
        value: JSON,
        error: str,
        exception: ExceptionInfo | None = None,
    ) -> Event:
        options: Any = query.options or {}
        call = str(options.get("call", ""))
        return Event(
            kind,
            "",
            turn=self.turn,
            query=query.id,
            call=call,
            name=query.name,
            value=value,
            error=error,
            exception=exception,
        )


def is_tool_call(query: Query) -> bool:
    """Whether a model made this call; plugins make calls of their own."""
    return "call" in (query.options or {})


def is_unfinished(answer: QueryAnswer) -> bool:
    """Whether a call continues: it needs an approval, finishes later, or is taken over by a
    program.
    """
    return answer.error is not None and answer.error.get("code") in (
        NEEDS_CONFIRM,
        LATER,
        HANDED_OVER,
    )


# ---- live text


class LiveBuffer(StreamListener):
    """The newest live text of one session in this process, for any number of watchers."""

    def __init__(self, session_id: str, limit: int = LIVE_BUFFER_SIZE) -> None:
        super().__init__(session_id, limit)
        self.name = secrets.token_hex(4)
        self.count = 0  # deltas received so far
        self.ended = False  # the runtime was closed: its watchers end
        self._kept: deque[LiveDelta] = deque(maxlen=limit)
        self._stirs: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def hear(self, query_id: str, delta: Delta) -> None:
        if delta.kind in _LIVE:
            self.count += 1
            self._kept.append((self.count, QueryId(query_id), delta))
            self._stir()

    def _stir(self) -> None:
        for loop, stir in tuple(self._stirs):
            try:  # the publisher may run on the loop of another thread
                loop.call_soon_threadsafe(stir.set)
            except RuntimeError:  # that loop is closed, so its watcher is gone
                self._stirs.discard((loop, stir))

    def stirs(self, stir: asyncio.Event) -> None:
        """Set this event whenever live text arrives."""
        self._stirs.add((asyncio.get_running_loop(), stir))

    def end(self) -> None:
        """Stop listening, and end the watchers."""
        self.ended = True
        self.close()
        self._stir()

    def leave(self, stir: asyncio.Event) -> None:
        self._stirs = {each for each in self._stirs if each[1] is not stir}

    def since(self, k: int) -> list[LiveDelta] | None:
        """Live text after position `k`; None if a part of it was dropped."""
        if k > self.count or k + 1 < self.first:
            return None
        return [each for each in self._kept if each[0] > k]

    @property
    def first(self) -> int:
        """The oldest buffered position."""
        return self._kept[0][0] if self._kept else self.count + 1

    def event(self, at: Cursor, heard: LiveDelta, turn: int) -> Event:
        """Live text as an event; `at` is the last fact before it."""
        k, query_id, delta = heard
        place = str(Cursor(at.session_id, at.n, at.i, self.name, k))
        return Event(
            _LIVE[delta.kind],
            place,
            turn=turn,
            query=query_id,
            call=delta.call,
            name=delta.name,
            part=delta.part,
            text=delta.text,
            usage=delta.usage,
        )


#: Sessions with a live buffer in one process.
MAX_LIVE_BUFFERS: Final = 100
#: Seconds between two reads of the store without a notification.
STREAM_POLL_SECONDS: Final = 5.0

SessionWatcher = Callable[[str], AbstractContextManager["asyncio.Future[None]"]]


class LiveBuffers:
    """The live buffers of the sessions that were watched last."""

    def __init__(self) -> None:
        self._rings: OrderedDict[str, LiveBuffer] = OrderedDict()
        self._all: WeakSet[LiveBuffer] = WeakSet()  # also dropped ones that are still watched

    def of(self, session_id: str) -> LiveBuffer:
        ring = self._rings.get(session_id)
        if ring is None:
            ring = self._rings[session_id] = LiveBuffer(session_id)
            ring.__enter__()
            self._all.add(ring)
        self._rings.move_to_end(session_id)
        if len(self._rings) > MAX_LIVE_BUFFERS:
            self._rings.popitem(last=False)[1].close()
        return ring

    def close(self) -> None:
        """Stop listening, and end all watchers."""
        self._rings.clear()
        for ring in tuple(self._all):
            ring.end()


class EventStream:
    """One watcher of a conversation. `view` returns the conversation after live text was lost."""

    def __init__(
        self,
        store: Store,
        session_id: str,
        ring: LiveBuffer,
        watched: SessionWatcher,
        view: Callable[[], Awaitable[JSON]],
    ) -> None:
        self._store = store
        self._id = session_id
        self._ring = ring
        self._watched = watched
        self._view = view
        self._facts = EventTranslator(session_id)
        self._at = Cursor(session_id, 0, 0)  # the last fact that was yielded
        self._k = ring.count  # the last position read from the buffer
        self._heard: list[LiveDelta] = []  # live text whose question was not yielded yet
        self._asked: set[str] = set()  # open model queries
        self._next = 0  # the first delivery that was not read yet
        self._ended = False

    @property
    def at(self) -> int:
        """The first delivery that was not read."""
        return self._next

    @property
    def cursor(self) -> str:
        return str(self._at)

    async def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """The events after a cursor, until the session ends."""
        for event in await self._begin(cursor):
            yield event
        async with aclosing(self.further()) as further:
            async for event in further:
                yield event

    async def here(self) -> None:
        """Move to the end of the journal. Between turns, only the open queries are needed for
        that.
        """
        record = await self._store.load(self._id, since=-1)
        opened = [entry.query for entry in find_open_queries(record.deliveries).values()]
        if all(query.kind in SENT_BY_NAME for query in opened):
            self._facts.know(opened)
            record.deliveries = []
        else:
            record = await self._store.load(self._id)
        self._stand(record)

    async def further(self) -> AsyncGenerator[Event, None]:
        """The events from the current position."""
        stir = asyncio.Event()
        self._ring.stirs(stir)
        try:
            while not self._ended and not self._ring.ended:
                stir.clear()
                with self._stirred(stir):
                    facts = await self._read()
                    for event in self._merged(facts):
                        yield event
                    if not facts and not self._ended:
                        await _wait(stir)
        finally:
            self._ring.leave(stir)

    async def _begin(self, given: str | None) -> list[Event]:
        """Move to the cursor; returns the events that report lost live text."""
        if given is None:
            return []
        cursor = parse_cursor(given, self._id)
        lost = self._live_after(cursor)
        record = await self._store.load(self._id)
        self._stand(record, None if lost else cursor)
        if not lost:
            return []
        return [
            Event(EventKind.GAP, given, text=lost),
            Event(EventKind.VIEW, str(self._at), value=await self._view()),
        ]

    def _stand(self, record: SessionRecord, cursor: Cursor | None = None) -> None:
        """Move to a cursor, or to the end."""
        at = cursor or Cursor(self._id, record.head.n + 1, 0)
        for delivery in record.deliveries:
            if delivery.n < at.n:
                for event in self._facts.of(delivery):
                    self._tell(event)
        self._at = at
        self._next = at.n

    def _live_after(self, cursor: Cursor) -> str:
        """Continue after the cursor's live text; returns the reason if that text is lost."""
        if not cursor.ring:
            return ""
        if cursor.ring != self._ring.name:
            return "unavailable"
        if self._ring.since(cursor.k) is None:
            return "trimmed"
        self._k = cursor.k
        return ""

    def _merged(self, facts: list[Event]) -> Iterator[Event]:
        """Facts and live text in order: the text of an answer comes between its question and its
        answer.
        """
        self._heard += self._fresh()
        for fact in facts:
            if fact.kind in (EventKind.MODEL_ANSWERED, EventKind.TOOL_FINISHED):
                yield from self._words({fact.query})
            elif fact.kind is EventKind.SETTLED:  # a cancelled turn has no answers
                yield from self._words(self._asked)
            self._tell(fact)
            yield fact
        yield from self._words({"", *self._asked})
        self._heard = [one for one in self._heard if one[1] not in self._facts.answered]

    def _words(self, queries: set[str]) -> Iterator[Event]:
        ready = [one for one in self._heard if one[1] in queries]
        self._heard = [one for one in self._heard if one[1] not in queries]
        for one in ready:
            yield self._ring.event(self._at, one, self._facts.turn)

    def _fresh(self) -> list[LiveDelta]:
        """New live text of the buffer."""
        heard = self._ring.since(self._k)
        if heard is None:  # this watcher was too slow
            heard = self._ring.since(self._ring.first - 1) or []
        if heard:
            self._k = heard[-1][0]
        return heard

    def _tell(self, fact: Event) -> None:
        self._at = parse_cursor(fact.cursor, self._id)
        if fact.kind in (EventKind.MODEL_ASKED, EventKind.TOOL_STARTED):
            self._asked.add(fact.query)
        elif fact.kind in (EventKind.MODEL_ANSWERED, EventKind.TOOL_FINISHED):
            self._asked.discard(fact.query)

    async def _read(self) -> list[Event]:
        """New facts."""
        record = await self._store.load(self._id, since=self._next)
        found: list[Event] = []
        for delivery in record.deliveries:
            if delivery.n >= self._next:
                found += self._facts.of(delivery)
                self._next = delivery.n + 1
        self._ended = record.head.ended
        known = [event for event in found if _place(event) <= (self._at.n, self._at.i)]
        for event in known:  # yielded before the client reconnected
            self._tell(event)
        return found[len(known) :]

    @contextmanager
    def _stirred(self, stir: asyncio.Event) -> Iterator[None]:
        with self._watched(self._id) as change:
            change.add_done_callback(lambda _: stir.set())
            yield


def _place(event: Event) -> tuple[int, int]:
    _, _, n, i = event.cursor.split(".")
    return int(n), int(i)


async def _wait(stir: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(STREAM_POLL_SECONDS):
            await stir.wait()
    except TimeoutError:
        pass
