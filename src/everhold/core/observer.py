"""Observers: callbacks for the events of a session.

Subclass `Observer` and override the methods you need. `metrics.Metrics` counts the same
events, except `attempt_failed`, `progressed` and `printed`.

Rules
  1. An observer is called after the commit, except for `printed`. It cannot change or undo it.
  2. An exception from an observer is logged under "everhold"; the session continues, and the next
     observer is called.
  3. Observers are not called during replay.
  4. `answered` is called for every answer; `partly_answered` follows while other queries are open,
     `resumed` when the program resumes: once for answers that it awaits together. One of
     `completed`, `failed` and `cancelled` is the last call; more calls follow only if a failed
     session is retried.
  5. Observers run on the path of every step: slow work belongs in a task or a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from everhold.core.codec import JSON
from everhold.core.metrics import Metrics
from everhold.core.progress import Progress
from everhold.core.query import FailedAttempt, Query, QueryAnswer
from everhold.core.usage import TokenCost

log = logging.getLogger("everhold")


class Observer:
    """Methods that do nothing; subclasses override what they need."""

    def paused(self, session_id: str, queries: Sequence[Query]) -> None:
        """The program made these queries and waits."""

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        """One query was answered. `usage` is None if the answer cost no tokens."""

    def partly_answered(
        self, session_id: str, query: Query, answer: QueryAnswer, remaining: int
    ) -> None:
        """One query was answered and `remaining` others are still open."""

    def attempt_failed(self, session_id: str, query: Query, failed: FailedAttempt) -> None:
        """An attempt at a query failed, and another one follows: see `everhold.Retry`."""

    def resumed(self, session_id: str) -> None:
        """The program resumes."""

    def progressed(self, session_id: str, progress: Progress) -> None:
        """The program reported its progress: the last report of the step."""

    def printed(self, session_id: str, call: str, text: str) -> None:
        """A program that a model or a host runs in this session has printed `text`. It is not
        stored yet; after a crash, the same may be printed again. May be called from a thread.
        """

    def completed(self, session_id: str, value: JSON, metrics: Metrics) -> None:
        """The program returned `value`."""

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        """The program ended with an error."""

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        """The session was cancelled."""


class Observers(Observer):
    """Several observers, called in order. False if there are none, so that a step can skip the
    call.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def paused(self, session_id: str, queries: Sequence[Query]) -> None:
        self._notify(lambda observer: observer.paused(session_id, queries))

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        self._notify(lambda observer: observer.answered(session_id, query, answer, usage))

    def partly_answered(
        self, session_id: str, query: Query, answer: QueryAnswer, remaining: int
    ) -> None:
        self._notify(
            lambda observer: observer.partly_answered(session_id, query, answer, remaining)
        )

    def attempt_failed(self, session_id: str, query: Query, failed: FailedAttempt) -> None:
        self._notify(lambda observer: observer.attempt_failed(session_id, query, failed))

    def resumed(self, session_id: str) -> None:
        self._notify(lambda observer: observer.resumed(session_id))

    def progressed(self, session_id: str, progress: Progress) -> None:
        self._notify(lambda observer: observer.progressed(session_id, progress))

    def printed(self, session_id: str, call: str, text: str) -> None:
        self._notify(lambda observer: observer.printed(session_id, call, text))

    def completed(self, session_id: str, value: JSON, metrics: Metrics) -> None:
        self._notify(lambda observer: observer.completed(session_id, value, metrics.copy()))

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        self._notify(lambda observer: observer.failed(session_id, error, metrics.copy()))

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        self._notify(lambda observer: observer.cancelled(session_id, reason, metrics.copy()))

    def _notify(self, call: Callable[[Observer], None]) -> None:
        for observer in self._observers:
            try:
                call(observer)
            except Exception:
                log.exception("observer %s failed", type(observer).__name__)
