"""What one may hear of a session's life.

Subclass `Observer` and override what you care about. The first user of this vocabulary is
`metrics.Metrics`.

Rules
  1. An observer hears what is committed. It cannot change or undo it.
  2. What an observer raises is logged under "everhold"; the session goes on and the next observer
     is told.
  3. Nothing is told during replay.
  4. `answered` is told for every answer; `partly_answered` follows it while other queries stay
     open, and `resumed` when the program goes on. One of `completed`, `failed` and `cancelled` is
     the last thing told; only after `failed` may more follow, when somebody retries the session.
  5. Observers run on the path of every step: whoever has slow work to do hands it to somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from everhold.core.codec import JSON
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer
from everhold.core.usage import TokenCost

log = logging.getLogger("everhold")


class Observer:
    """Does nothing, on purpose. Subclasses override what they need."""

    def paused(self, session_id: str, queries: Sequence[Query]) -> None:
        """The program asked these queries and waits."""

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        """One query has its answer. `usage` is what it cost, or None for what costs no tokens."""

    def partly_answered(
        self, session_id: str, query: Query, answer: QueryAnswer, remaining: int
    ) -> None:
        """One query has its answer and `remaining` others are still open."""

    def resumed(self, session_id: str) -> None:
        """The program goes on."""

    def completed(self, session_id: str, value: JSON, metrics: Metrics) -> None:
        """The program returned `value`."""

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        """The program ended with an error."""

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        """Somebody outside stopped the session."""


class Observers(Observer):
    """Several observers, told in order. False when there are none, so that the hot path can skip
    the call.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def paused(self, session_id: str, queries: Sequence[Query]) -> None:
        self._tell(lambda observer: observer.paused(session_id, queries))

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        self._tell(lambda observer: observer.answered(session_id, query, answer, usage))

    def partly_answered(
        self, session_id: str, query: Query, answer: QueryAnswer, remaining: int
    ) -> None:
        self._tell(lambda observer: observer.partly_answered(session_id, query, answer, remaining))

    def resumed(self, session_id: str) -> None:
        self._tell(lambda observer: observer.resumed(session_id))

    def completed(self, session_id: str, value: JSON, metrics: Metrics) -> None:
        self._tell(lambda observer: observer.completed(session_id, value, metrics.copy()))

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        self._tell(lambda observer: observer.failed(session_id, error, metrics.copy()))

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        self._tell(lambda observer: observer.cancelled(session_id, reason, metrics.copy()))

    def _tell(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception:
                log.exception("observer %s failed", type(observer).__name__)
