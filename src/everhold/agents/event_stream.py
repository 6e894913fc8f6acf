"""Watching a conversation: what is in the journal, and what is being said, in one stream that can
be taken up again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from typing import Final

from everhold.agents.events import (
    Cursor,
    Event,
    EventKind,
    EventTranslator,
    LiveBuffer,
    LiveDelta,
    parse_cursor,
)
from everhold.core.codec import JSON
from everhold.core.journal import find_open_queries
from everhold.core.query import SENT_BY_NAME
from everhold.ports.store import SessionRecord, Store

#: Sessions whose live words are kept in one process.
MAX_LIVE_BUFFERS: Final = 100
#: Seconds between two looks at the store when no change was announced.
STREAM_POLL_SECONDS: Final = 5.0

SessionWatcher = Callable[[str], AbstractContextManager["asyncio.Future[None]"]]


class LiveBuffers:
    """The live words of the sessions that were watched last."""

    def __init__(self) -> None:
        self._rings: OrderedDict[str, LiveBuffer] = OrderedDict()

    def of(self, session_id: str) -> LiveBuffer:
        ring = self._rings.get(session_id)
        if ring is None:
            ring = self._rings[session_id] = LiveBuffer(session_id)
            ring.__enter__()
        self._rings.move_to_end(session_id)
        if len(self._rings) > MAX_LIVE_BUFFERS:
            self._rings.popitem(last=False)[1].close()
        return ring

    def close(self) -> None:
        while self._rings:
            self._rings.popitem()[1].close()


class EventStream:
    """One who watches. `view` gives the conversation as it stands, after live words were lost."""

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
        self._at = Cursor(session_id, 0, 0)  # the last fact that was told
        self._k = ring.count  # the last live words that were taken from the ring
        self._heard: list[LiveDelta] = []  # live words that wait for the fact that they belong to
        self._asked: set[str] = set()  # questions to models that are open
        self._next = 0  # the first delivery that was not read yet
        self._ended = False

    @property
    def at(self) -> int:
        """The first delivery that was not told."""
        return self._next

    @property
    def cursor(self) -> str:
        return str(self._at)

    async def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """What happens after a cursor, until the session ends."""
        for event in await self._begin(cursor):
            yield event
        async with aclosing(self.further()) as further:
            async for event in further:
                yield event

    async def here(self) -> None:
        """Stand at the end of what has happened. Between turns, what is open is all that has to be
        known.
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
        """What happens from where it stands."""
        stir = asyncio.Event()
        self._ring.stirs(stir)
        try:
            while not self._ended:
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
        """Stand where the cursor is; returns what has to be said about live words that are lost."""
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
        """Stand at a cursor, or at the end."""
        at = cursor or Cursor(self._id, record.head.n + 1, 0)
        for delivery in record.deliveries:
            if delivery.n < at.n:
                for event in self._facts.of(delivery):
                    self._tell(event)
        self._at = at
        self._next = at.n

    def _live_after(self, cursor: Cursor) -> str:
        """Go on after the cursor's live words; returns why that cannot be done."""
        if not cursor.ring:
            return ""
        if cursor.ring != self._ring.name:
            return "unavailable"
        if self._ring.since(cursor.k) is None:
            return "trimmed"
        self._k = cursor.k
        return ""

    def _merged(self, facts: list[Event]) -> Iterator[Event]:
        """Facts and live words: the words of an answer come after its question and before the
        answer is a fact.
        """
        self._heard += self._fresh()
        for fact in facts:
            if fact.kind is EventKind.MODEL_ANSWERED:
                yield from self._words({fact.query})
            self._tell(fact)
            yield fact
        yield from self._words({"", *self._asked})
        self._heard = [one for one in self._heard if one[1] not in self._facts.answered]

    def _words(self, queries: set[str]) -> Iterator[Event]:
        told = [one for one in self._heard if one[1] in queries]
        self._heard = [one for one in self._heard if one[1] not in queries]
        for one in told:
            yield self._ring.event(self._at, one, self._facts.turn)

    def _fresh(self) -> list[LiveDelta]:
        """Live words that were not taken from the ring yet."""
        heard = self._ring.since(self._k)
        if heard is None:  # this watcher was too slow
            heard = self._ring.since(self._ring.first - 1) or []
        if heard:
            self._k = heard[-1][0]
        return heard

    def _tell(self, fact: Event) -> None:
        self._at = parse_cursor(fact.cursor, self._id)
        if fact.kind is EventKind.MODEL_ASKED:
            self._asked.add(fact.query)
        elif fact.kind is EventKind.MODEL_ANSWERED:
            self._asked.discard(fact.query)

    async def _read(self) -> list[Event]:
        """Facts that were not told yet."""
        record = await self._store.load(self._id, since=self._next)
        found: list[Event] = []
        for delivery in record.deliveries:
            if delivery.n >= self._next:
                found += self._facts.of(delivery)
                self._next = delivery.n + 1
        self._ended = record.head.ended
        known = [event for event in found if _place(event) <= (self._at.n, self._at.i)]
        for event in known:  # told before the line broke
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
