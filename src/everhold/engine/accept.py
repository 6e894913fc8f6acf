"""Accepts input: records answers, signals and inputs durably, then acknowledges them.

Accepting needs neither the program nor a worker. If the program is in this process, a verb of the
engine delivers the input in one step instead. It accepts here only what it cannot deliver.

Rules
  1. An answer names its query. The first answer wins, an equal one changes nothing, and a different
     one is a conflict.
  2. A signal names no query. Every acknowledged signal is received, even if two have equal values.
  3. A signal or an input with a key is accepted once. Its tombstone is part of the same commit.
  4. A change of the budget is stored as it was given; it is applied when it is delivered.
  5. Every acceptance ends with a request to move the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from everhold.core.budget import BudgetChange
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

#: The kind of a letter that changes the budget of its session.
BUDGET_LETTER: Final = "budget"


class Signal(msgspec.Struct, frozen=True):
    """A signal to a program. With a key, it is sent once."""

    name: str
    value: JSON
    key: str | None = None

    @property
    def tombstone(self) -> IntakeItem | None:
        """The item that records the key of this signal in the intake; None without a key."""
        if self.key is None:
            return None
        return IntakeItem(self.key, ItemKind.TASK, {"signal": self.name, "value": self.value})

    def receiver(self, opened: Mapping[int, AskedQuery]) -> Query | None:
        """The open query that waits for this signal."""
        for entry in opened.values():
            if entry.query.kind is Kind.SIGNAL and entry.query.name == self.name:
                return entry.query
        return None


class Acceptance:
    """Records accepted input for the sessions of one store."""

    def __init__(self, sessions: SessionCache, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        self._store = sessions.store

    async def start(self, birth: Birth, signals: Sequence[Signal] = ()) -> None:
        """Record a new session, and the signals that it receives first, without loading its
        program. Raises `KeyConflict`.
        """
        at = birth.created_at
        letters = [Letter("start", None, at)]
        for signal in signals:
            value = to_plain(signal.value, "the signal")
            letters.append(Letter("signal", {"name": signal.name, "value": value}, at))
        head = Head(0, 1, SessionState.RUNNING, -1, 0, None, at, Metrics(), mail=len(letters))
        change = Change(birth.id, head, birth=birth, letters=letters, durable=True)
        await self._store.commit(change, 0)
        self._request_move(birth.id)

    async def answers(
        self, session_id: str, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> Status:
        """Record several answers, all or none."""
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
        """Record the outcome of an effect that its program cannot receive now, and remove its mark.

        Returns False if the session has ended or the query is closed.
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
        """Record a signal for later delivery. Returns False if its key was sent before."""
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

    async def budget(
        self, session_id: str, change: BudgetChange, by: dict[str, JSON] | None
    ) -> None:
        """Record a change of the budget for later delivery."""
        while True:
            record = await self._store.load(session_id, since=FROM_OPEN)
            if record.head.ended:
                raise SessionEnded(session_id, record.head.state, "given a budget")
            at = max(self._clock.now(), record.head.updated_at)
            letter = Letter(BUDGET_LETTER, {"limits": change, "by": by}, at)
            if await self._keep(record, [letter], SessionState.RUNNING):
                return

    async def was_sent(self, session_id: str, signal: Signal) -> bool:
        """Whether a signal with this key was sent before. Raises `InputConflict` if its content
        differs.
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
        """Record an input or a command for an agent, once per key. Raises `InputConflict`."""
        names = [item.id] if item.key is None else [item.id, item.key]
        return await self.act(session_id, lambda intake: intake.enqueue(item), names)

    async def act(
        self, session_id: str, act: Callable[[Intake], Receipt], named: Sequence[str]
    ) -> Receipt:
        """Change an intake by `act`, then request a move of its session."""
        receipt = await self._store.intake(session_id, act, named=named, only=True, writes=True)
        self._sessions.changed(session_id)
        self._sessions.send(session_id)
        return receipt

    async def words(self, session_id: str, words: JSON, key: str) -> bool:
        """Record text for an agent under a key. Returns whether the key is new."""
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
        """Commit letters. Returns False if another process committed first."""
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
        self._request_move(record.birth.id)
        return True

    def _request_move(self, session_id: str) -> None:
        """Drop the session from memory, because it lacks the accepted input, and request a move."""
        self._sessions.outdate(session_id)
        self._sessions.changed(session_id)
        self._sessions.send(session_id)


def make_tombstone_marker(signal: Signal) -> Callable[[Intake], object] | None:
    """The change of the intake that records a signal's key; None without a key."""
    item = signal.tombstone
    return None if item is None else lambda intake: intake.mark(item)
