"""Checks answers from outside: which query they answer, who may answer it, and whether they fit.

All checks happen before anything is changed.

Rules
  1. The first answer wins. An equal answer changes nothing; a different one is a conflict.
  2. Several answers in one call are accepted together or not at all.
  3. An answer is checked against the schema that is stored with its query. So a process without the
     program can accept it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from everhold.core.codec import JSON, is_same_json
from everhold.core.journal import AskedQuery, Delivery
from everhold.core.query import (
    QUESTIONS,
    SENT_BY_NAME,
    Kind,
    Query,
    QueryAnswer,
    QueryState,
    Usage,
    parse_query_number,
)
from everhold.core.session import Head
from everhold.core.status import Raised, Stopped, require_sole_query
from everhold.engine import unknown_effects
from everhold.engine.effects import fit_answer_value
from everhold.errors import (
    AnswerConflict,
    AnswerRefused,
    BadArguments,
    NotAllowed,
    QueryClosed,
    SessionEnded,
    UnknownQuery,
)
from everhold.shell_command import format_command


class GivenAnswer(msgspec.Struct, frozen=True):
    """An unchecked answer from outside."""

    query_id: str | None
    value: Any = None
    error: str | None = None
    usage: Usage | None = None


def list_answerable(
    opened: Mapping[int, AskedQuery], working: Mapping[int, Any]
) -> list[AskedQuery]:
    """The open questions that can be answered from outside, as they are shown. A signal is none: it
    is sent by its name.
    """
    found = []
    for q, entry in opened.items():
        kind = entry.query.kind
        if q in working:
            continue
        if kind in QUESTIONS:
            found.append(entry)
        elif kind is Kind.CALL:
            found.append(
                AskedQuery(unknown_effects.make_rerun_question(entry.query), entry.n, entry.at)
            )
    return found


class AnswerCheck:
    """Checks answers against the open queries of one session."""

    def __init__(
        self,
        session_id: str,
        head: Head,
        opened: Mapping[int, AskedQuery],
        working: Mapping[int, Any],
    ) -> None:
        self._id = session_id
        self._head = head
        self._opened = opened
        self._working = working

    def check(
        self, given: Sequence[GivenAnswer], by: dict[str, JSON] | None
    ) -> tuple[list[QueryAnswer], list[QueryAnswer]]:
        """Return the accepted answers, and those to queries that are not open. The caller passes
        the latter to `settle_late_answer`.
        """
        if not given:
            raise BadArguments("answer", "no answer is given")
        taken: dict[int, QueryAnswer] = {}
        late: list[QueryAnswer] = []
        for one in given:
            answer, is_open = self._one(one, by)
            if not is_open:
                late.append(answer)
            elif answer.q not in taken:
                taken[answer.q] = answer
            elif not is_same_answer(taken[answer.q], answer):
                raise AnswerConflict(self._id, answer.id, at_once=True)
        return list(taken.values()), late

    def _one(self, given: GivenAnswer, by: dict[str, JSON] | None) -> tuple[QueryAnswer, bool]:
        if given.query_id is None:
            listed = [entry.query for entry in list_answerable(self._opened, self._working)]
            q = require_sole_query(self._id, self._head.state, listed).q
        else:
            found = parse_query_number(str(given.query_id))
            if found is None:
                raise UnknownQuery(self._id, str(given.query_id))
            q = found
        entry = self._opened.get(q)
        if entry is None:
            value = None if given.error is not None else given.value
            return QueryAnswer(q, value, _error(given), given.usage, by), False
        return self._fitting(entry.query, given, by), True

    def _fitting(self, query: Query, given: GivenAnswer, by: dict[str, JSON] | None) -> QueryAnswer:
        if query.kind is Kind.CALL and query.q not in self._working:
            query = unknown_effects.make_rerun_question(query)
        elif query.kind in SENT_BY_NAME:
            raise NotAllowed(
                f"{query.id} of session {self._id!r} is the signal {query.name!r}: a signal is"
                " sent, not answered",
                f"See how to send it: {format_command('explain', self._id)}",
                self._id,
            )
        elif query.kind not in QUESTIONS:
            raise NotAllowed(
                f"{query.id} of session {self._id!r} is a {query.kind}; only everhold answers it",
                f"See what the session waits for: {format_command('explain', self._id)}",
                self._id,
            )
        if given.error is not None:
            return QueryAnswer(query.q, None, _error(given), given.usage, by)
        return QueryAnswer(query.q, _fitted(query, given.value), None, given.usage, by)


def settle_late_answer(
    session_id: str, head: Head, answer: QueryAnswer, deliveries: Sequence[Delivery]
) -> None:
    """Handle an answer to a query that is not open: returns if it is equal, else raises."""
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


def _same_again(session_id: str, asked: Query | None, old: QueryAnswer, new: QueryAnswer) -> None:
    if old.expired:
        raise QueryClosed(session_id, old.id, QueryState.EXPIRED)
    if asked is not None and new.error is None:
        new = (
            unknown_effects.apply_rerun_decision(new)
            if asked.kind is Kind.CALL
            else msgspec.structs.replace(new, value=_fitted(asked, new.value))
        )
    if not is_same_answer(old, new):
        raise AnswerConflict(session_id, old.id)


def _fitted(query: Query, value: Any) -> Any:
    """The value as it is stored. An `AnswerRefused` names the query."""
    try:
        return fit_answer_value(query, value)
    except AnswerRefused as error:
        raise AnswerRefused(error.path, error.expected, error.got, query.id) from None


def is_same_answer(one: QueryAnswer, other: QueryAnswer) -> bool:
    """Whether two answers have equal values or errors. Usage and author are ignored."""
    return one.error == other.error and is_same_json(one.value, other.value)


def _error(given: GivenAnswer) -> dict[str, str] | None:
    return None if given.error is None else {"code": "error", "message": str(given.error)}
