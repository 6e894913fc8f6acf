"""Accepting: what comes from outside is recorded durably as what it is, and then acknowledged.

It needs neither the program nor a worker. Where the session is in memory and its program is here, a
verb of the engine makes acceptance and the step one commit instead; what it cannot hand over at
once comes here.

Rules
  1. An answer names its query: the first one wins, the same again changes nothing, another is a
     conflict.
  2. A signal names nothing but itself. Each one that is acknowledged is one that is received, equal
     values included.
  3. A signal or an input with a key is accepted once. Its tombstone lands in the same commit.
  4. Every acceptance ends with a request to move the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from everhold.core.codec import JSON, dumps, is_same_json, to_plain
from everhold.core.intake import Intake, IntakeItem, ItemKind, Receipt
from everhold.core.journal import AskedQuery, Delivery, find_open_queries
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.core.status import Accepted, Status
from everhold.engine.answer_check import (
    AnswerCheck,
    GivenAnswer,
    is_same_answer,
    list_answerable,
    settle_late_answer,
)
from everhold.engine.effects import fit_answer_value
from everhold.engine.session_cache import SessionCache
from everhold.errors import InputConflict, Overtaken, SessionEnded
from everhold.ports.program import Clock
from everhold.ports.store import FROM_OPEN, Change, Letter, SessionRecord


class Signal(msgspec.Struct, frozen=True):
    """A message to a program; with a key, it is sent once."""

    name: str
    value: JSON
    key: str | None = None

    @property
    def tombstone(self) -> IntakeItem | None:
        """What the intake keeps of a signal that was sent under a key."""
        if self.key is None:
            return None
        return IntakeItem(self.key, ItemKind.TASK, {"signal": self.name, "value": self.value})

    def receiver(self, opened: Mapping[int, AskedQuery]) -> Query | None:
        """The open query that waits for it."""
        for entry in opened.values():
            if entry.query.kind is Kind.SIGNAL and entry.query.name == self.name:
                return entry.query
        return None


class Acceptance:
    """Records what was accepted for sessions of one store."""

    def __init__(self, sessions: SessionCache, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._store = sessions.store

    async def start(self, birth: Birth) -> None:
        """Record a session that has not begun; its program is not looked for. Raises
        `KeyConflict`.
        """
        at = birth.created_at
        head = Head(0, 1, SessionState.RUNNING, -1, 0, None, at, Metrics(), mail=1)
        change = Change(
            birth.id, head, birth=birth, letters=[Letter("start", None, at)], durable=True
        )
        await self._store.commit(change, 0)
        self._moves(birth.id)

    async def answers(
        self, session_id: str, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> Status:
        """Record answers, all of them or none."""
        while True:
            record = await self._store.load(session_id)
            head = record.head
            opened = find_open_queries(record.deliveries)
            if head.ended:
                raise SessionEnded(session_id, head.state, "answered")
            kept = {
                letter.body["q"]: letter.body
                for letter in record.letters
                if letter.kind == "answer"
            }
            waiting = {q: entry for q, entry in opened.items() if q not in kept}
            working = {effect.q: effect.worker for effect in record.effects}
            answers, late = AnswerCheck(session_id, head, waiting, working).check(given, by)
            for answer in late:
                if answer.q in kept:
                    old = msgspec.convert(kept[answer.q], QueryAnswer)
                    if not is_same_answer(old, answer):
                        settle_late_answer(
                            session_id,
                            head,
                            answer,
                            [Delivery(0, 0, [old], [opened[answer.q].query])],
                        )
                else:
                    settle_late_answer(session_id, head, answer, record.deliveries)
            remaining = len(list_answerable(waiting, working)) - len(answers)
            if not answers or await self._keep_answers(record, answers):
                return Accepted(SessionId(session_id), remaining)

    async def outcome(self, session_id: str, answer: QueryAnswer) -> bool:
        """Record what came of an effect that its program cannot take now, and drop its mark.

        Returns whether it was recorded: not if the session has ended, or the query is not open any
        more.
        """
        while True:
            record = await self._store.load(session_id)
            marked = any(effect.q == answer.q for effect in record.effects)
            if (
                record.head.ended
                or not marked
                or answer.q not in find_open_queries(record.deliveries)
            ):
                return False
            if await self._keep_answers(record, [answer]):
                return True

    async def _keep_answers(self, record: SessionRecord, answers: list[QueryAnswer]) -> bool:
        at = max(self._clock.now(), record.head.updated_at)
        letters = [Letter("answer", msgspec.to_builtins(answer), at) for answer in answers]
        return await self._keep(
            record, letters, SessionState.RUNNING, closed=[answer.q for answer in answers]
        )

    async def signal(self, session_id: str, signal: Signal) -> bool:
        """Record a signal until the program receives it; returns False if it was sent before, under
        its key.
        """
        to_plain(signal.value, "the signal")
        while True:
            record = await self._store.load(session_id, since=FROM_OPEN)
            if await self.was_sent(session_id, signal):
                return False
            if record.head.ended:
                raise SessionEnded(session_id, record.head.state, "sent a signal")
            receiver = signal.receiver(find_open_queries(record.deliveries))
            value = signal.value if receiver is None else fit_answer_value(receiver, signal.value)
            at = max(self._clock.now(), record.head.updated_at)
            letter = Letter("signal", {"name": signal.name, "value": value}, at)
            state = record.head.state if receiver is None else SessionState.RUNNING
            if await self._keep(record, [letter], state, intake=make_tombstone_marker(signal)):
                return True

    async def was_sent(self, session_id: str, signal: Signal) -> bool:
        """Whether a signal with this key was sent before; raises `InputConflict` if it said
        something else.
        """
        item = signal.tombstone
        if item is None:
            return False
        found = await self._store.intake(
            session_id, lambda intake: intake.items.get(item.id), named=[item.id], only=True
        )
        if found is not None and not is_same_json(found.body, item.body):
            raise InputConflict(item.id, session_id, found.id)
        return found is not None

    async def item(self, session_id: str, item: IntakeItem) -> Receipt:
        """Record an input or a command for a conversation, once for each key; raises
        `InputConflict`.
        """
        names = [item.id] if item.key is None else [item.id, item.key]
        return await self.act(session_id, lambda intake: intake.enqueue(item), names)

    async def act(
        self, session_id: str, act: Callable[[Intake], Receipt], named: Sequence[str]
    ) -> Receipt:
        """Let something into an intake, by an act that says how."""
        receipt = await self._store.intake(session_id, act, named=named, only=True, writes=True)
        self._sessions.changed(session_id)
        self._sessions.send(session_id)
        return receipt

    async def words(self, session_id: str, words: JSON, key: str) -> bool:
        """Record words for a conversation; returns whether they are new."""
        to_plain(words, "what is said")
        body = {"content": words if isinstance(words, str) else dumps(words)}
        return (await self.item(session_id, IntakeItem(key, ItemKind.INPUT, body, key))).new

    async def _keep(
        self,
        record: SessionRecord,
        letters: list[Letter],
        state: SessionState,
        *,
        closed: Sequence[int] = (),
        intake: Callable[[Intake], object] | None = None,
    ) -> bool:
        """Land letters; False if another process was quicker."""
        head = record.head
        fence = record.head.revision
        head.revision, head.mail = fence + 1, head.mail + len(letters)
        head.updated_at = letters[-1].at
        head.state = state
        change = Change(
            record.birth.id, head, letters=letters, closed=closed, durable=True, intake=intake
        )
        try:
            await self._store.commit(change, fence)
        except Overtaken:
            return False
        self._moves(record.birth.id)
        return True

    def _moves(self, session_id: str) -> None:
        """What is in memory does not know of what was just accepted; a move does."""
        self._sessions.outdate(session_id)
        self._sessions.changed(session_id)
        self._sessions.send(session_id)


def make_tombstone_marker(signal: Signal) -> Callable[[Intake], object] | None:
    """What a commit that hands a signal over does to the intake: a signal with a key leaves its
    tombstone there.
    """
    item = signal.tombstone
    return None if item is None else lambda intake: intake.mark(item)
