"""The door: who may answer what, and whether an answer fits. Nothing passes that would have to be
undone.

Rules
  1. First answer wins; the same again changes nothing; another is a conflict.
  2. Several answers in one call are all taken or none.
  3. An answer is checked against the schema stored with its query, so that a process without the
     program can take it too: it is then kept in the intake, and the session is ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everhold.core.codec import JSON, same
from everhold.core.journal import Delivery, Opened
from everhold.core.query import ANSWERABLE, Answer, Kind, Query, QueryState, Usage, number
from everhold.core.session import Head
from everhold.core.status import Raised, Stopped, sole
from everhold.engine import unknown_effects
from everhold.engine.effects import fitted
from everhold.errors import (
    AnswerConflict,
    AnswerRefused,
    BadArguments,
    NotAllowed,
    QueryClosed,
    SessionEnded,
    UnknownQuery,
)


class Given(msgspec.Struct, frozen=True):
    """An answer as somebody gave it."""

    query_id: str | None
    value: Any = None
    error: str | None = None
    usage: Usage | None = None


def answerable(opened: Mapping[int, Opened], working: Mapping[int, Any]) -> list[Opened]:
    """The open queries that somebody outside can answer, as they are put to them."""
    found = []
    for q, entry in opened.items():
        kind = entry.query.kind
        if q in working:
            continue
        if kind in ANSWERABLE:
            found.append(entry)
        elif kind is Kind.CALL:
            found.append(Opened(unknown_effects.put(entry.query), entry.n, entry.at))
    return found


class Door:
    """Checks answers against what is open in one session."""

    def __init__(
        self, session_id: str, head: Head, opened: Mapping[int, Opened], working: Mapping[int, Any]
    ) -> None:
        self._id = session_id
        self._head = head
        self._opened = opened
        self._working = working

    def check(
        self, given: Sequence[Given], by: dict[str, JSON] | None
    ) -> tuple[list[Answer], list[Answer]]:
        """The answers to take, and those to queries that are not open: `settle` decides about the
        latter.
        """
        if not given:
            raise BadArguments("answer", "Empty responses array")
        taken: dict[int, Answer] = {}
        late: list[Answer] = []
        for one in given:
            answer, is_open = self._one(one, by)
            if not is_open:
                late.append(answer)
            elif answer.q not in taken:
                taken[answer.q] = answer
            elif not same_answer(taken[answer.q], answer):
                raise AnswerConflict(self._id, answer.id, at_once=True)
        return list(taken.values()), late

    def _one(self, given: Given, by: dict[str, JSON] | None) -> tuple[Answer, bool]:
        if given.query_id is None:
            listed = [entry.query for entry in answerable(self._opened, self._working)]
            q = sole(self._id, self._head.state, listed).q
        else:
            found = number(str(given.query_id))
            if found is None:
                raise UnknownQuery(self._id, str(given.query_id))
            q = found
        entry = self._opened.get(q)
        if entry is None:
            value = None if given.error is not None else given.value
            return Answer(q, value, _error(given), given.usage, by), False
        return self._fitting(entry.query, given, by), True

    def _fitting(self, query: Query, given: Given, by: dict[str, JSON] | None) -> Answer:
        if query.kind is Kind.CALL and query.q not in self._working:
            query = unknown_effects.put(query)
        elif query.kind not in ANSWERABLE:
            raise NotAllowed(
                f"{query.id} of session {self._id!r} is a {query.kind}: nobody outside answers it",
                "It moves by itself; `everhold explain` says when.",
            )
        if given.error is not None:
            return Answer(query.q, None, _error(given), given.usage, by)
        return Answer(query.q, _fitted(query, given.value), None, given.usage, by)


def settle(session_id: str, head: Head, answer: Answer, deliveries: Sequence[Delivery]) -> None:
    """Decide about an answer to a query that is not open: a no-op, a conflict, or a refusal."""
    asked: Query | None = None
    for delivery in deliveries:
        for query in delivery.asked:
            if query.q == answer.q:
                asked = query
        for old in delivery.answers:
            if old.q == answer.q:
                _same_again(session_id, asked, old, answer)
                return
        if delivery.notes is not None and answer.q in delivery.notes.withdrawn:
            raise QueryClosed(session_id, answer.id, QueryState.WITHDRAWN)
    if asked is None:
        raise UnknownQuery(session_id, answer.id)
    if head.ended:
        outcome = deliveries[-1].notes.outcome if deliveries and deliveries[-1].notes else None
        if isinstance(outcome, Stopped | Raised):
            raise SessionEnded(session_id, head.state, "answered")
    raise QueryClosed(session_id, answer.id, QueryState.WITHDRAWN)


def _same_again(session_id: str, asked: Query | None, old: Answer, new: Answer) -> None:
    if old.expired:
        raise QueryClosed(session_id, old.id, QueryState.EXPIRED)
    if asked is not None and new.error is None:
        new = (
            unknown_effects.decided(new)
            if asked.kind is Kind.CALL
            else msgspec.structs.replace(new, value=_fitted(asked, new.value))
        )
    if not same_answer(old, new):
        raise AnswerConflict(session_id, old.id)


def _fitted(query: Query, value: Any) -> Any:
    """The value as it will be stored; a refusal says which of the answers it is about."""
    try:
        return fitted(query, value)
    except AnswerRefused as error:
        raise AnswerRefused(error.path, error.expected, error.got, query.id) from None


def same_answer(one: Answer, other: Answer) -> bool:
    """Whether two answers say the same; usage and who said it do not matter."""
    return one.error == other.error and same(one.value, other.value)


def _error(given: Given) -> dict[str, str] | None:
    return None if given.error is None else {"code": "error", "message": str(given.error)}
