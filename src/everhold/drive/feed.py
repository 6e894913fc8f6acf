"""Sending something to a session under a key: once, whoever tries it how often.

What was sent leaves a tombstone under its key in the session's intake, in the commit that hands it over. Whoever comes
later finds it; whoever comes at the same time has seen an older head, and is refused and looks again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from everhold.core.codec import JSON, dumps, plain, same
from everhold.core.errors import InputConflict, Overtaken, SessionEnded
from everhold.core.intake import Item, ItemKind
from everhold.core.journal import Opened, open_queries
from everhold.core.query import Answer, Kind, Query
from everhold.core.session import Head, SessionId, State
from everhold.drive.dispatch import fitted
from everhold.drive.live import Live
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.store import Change, Letter, Store


async def say(sessions: Sessions, session_id: str, words: JSON, key: str) -> bool:
    """Say something to a conversation, when its turn comes; returns whether this was the first time."""
    plain(words, "what is said")
    item = Item(key, ItemKind.INPUT, {"content": words if isinstance(words, str) else dumps(words)}, key)
    found = await sessions.store.intake(session_id, lambda intake: intake.enqueue(item), named=[key], only=True)
    sessions.poke()
    return found.new


class Signal(msgspec.Struct, frozen=True):
    """A signal to be sent once."""

    name: str
    value: JSON
    key: str
    at: float

    @property
    def item(self) -> Item:
        return Item(self.key, ItemKind.TASK, {"signal": self.name, "value": self.value})

    def waits_in(self, opened: Mapping[int, Opened], kept: Collection[int] = ()) -> Query | None:
        """The question that this is the answer of, if one waits for it."""
        for q, entry in opened.items():
            if entry.query.kind is Kind.SIGNAL and entry.query.name == self.name and q not in kept:
                return entry.query
        return None


async def send(sessions: Sessions, runner: Runner, session_id: str, signal: Signal) -> bool:
    """Send a signal, which is kept until the program receives it; returns whether this was the first time."""
    plain(signal.value, "the signal")

    async def act(live: Live) -> bool:
        if await _was_sent(sessions.store, session_id, signal.item):
            return False
        query = signal.waits_in(live.opened)
        if query is not None:
            answers = live.kept([Answer(query.q, fitted(query, signal.value))])
            await sessions.step(live, answers, intake=lambda intake: intake.mark(signal.item))
            return True
        try:
            await _post(sessions, live.id, live.head, signal, None)
        finally:
            sessions.drop(live)
        return True

    try:
        return await runner.enter(session_id, act)
    except ABSENT:
        return await _unseen(sessions, session_id, signal)


async def _unseen(sessions: Sessions, session_id: str, signal: Signal) -> bool:
    """Send a signal where the program is not: it is kept, or answers the question that waits for it."""
    while True:
        record = await sessions.store.load(session_id, since=-1)
        if await _was_sent(sessions.store, session_id, signal.item):
            return False
        if record.head.ended:
            raise SessionEnded(session_id, record.head.state, "sent a signal")
        kept = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
        query = signal.waits_in(open_queries(record.deliveries), kept)
        try:
            await _post(sessions, record.birth.id, record.head, signal, query)
        except Overtaken:
            continue
        return True


async def _post(sessions: Sessions, session_id: SessionId, head: Head, signal: Signal, query: Query | None) -> None:
    """Land a letter, as the answer of a question or to be received later, and the tombstone with it."""
    at, fence = max(signal.at, head.updated_at), head.revision
    letter = Letter("signal", {"name": signal.name, "value": signal.value}, at)
    if query is not None:
        letter = Letter("answer", {"q": query.q, "value": fitted(query, signal.value)}, at)
        head.state = State.RUNNING
    head.revision, head.mail, head.updated_at = fence + 1, head.mail + 1, at
    change = Change(session_id, head, letters=[letter], closed=[] if query is None else [query.q], durable=True)
    change.intake = lambda intake: intake.mark(signal.item)
    await sessions.store.commit(change, fence)
    sessions.poke()
    sessions.changed(session_id)


async def _was_sent(store: Store, session_id: str, item: Item) -> bool:
    found = await store.intake(session_id, lambda intake: intake.items.get(item.id), named=[item.id], only=True)
    if found is not None and not same(found.body, item.body):
        raise InputConflict(item.id, session_id, found.id)
    return found is not None
