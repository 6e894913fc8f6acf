"""Compares two runs of a program, for `crash_everywhere` and `cancel_everywhere`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.core.journal import describe_query
from everhold.core.query import SCRIPTED_KINDS, Query
from everhold.core.status import Raised
from everhold.engine.journal_reader import index_queries, read_outcome
from everhold.errors import OutcomeUnknown
from everhold.ports.answerer import Answerer
from everhold.ports.store import SessionFilter, SessionRecord, Store
from everhold.testing.runtime import list_call_names

T = TypeVar("T")


class NotSame(AssertionError):
    """A crash, or a cancelled caller, changed the behaviour of a program."""


class RememberingAnswerer(Answerer):
    """Repeats the answers of the first run; new questions go to the answers of the test.

    A question that is tried again gets the outcomes of its attempts in the order of the first run.
    """

    kinds = SCRIPTED_KINDS

    def __init__(self, inner: Answerer | None, asks: str) -> None:
        self._inner = inner
        self._asks = asks
        self._known: dict[tuple[str, str], list[Any]] = {}
        self._given: Counter[tuple[str, str]] = Counter()  # in this run

    def begin_run(self) -> None:
        """Begin with the first attempts again."""
        self._given.clear()

    async def answer(self, query: Query, session_id: str) -> Any:
        place = (session_id, query.key)
        known = self._known.setdefault(place, [])
        fails = bool(known) and isinstance(known[-1], Exception) and query.retry is not None
        if not known or (fails and self._given[place] >= len(known)):
            known.append(await self._ask(query, session_id))
        answer = known[min(self._given[place], len(known) - 1)]
        self._given[place] += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _ask(self, query: Query, session_id: str) -> Any:
        if self._inner is None:
            raise AssertionError(f"{self._asks} has no answer for {describe_query(query)}")
        try:
            return await self._inner.answer(query, session_id)
        except Exception as error:
            return error


class SessionTrace(msgspec.Struct):
    """A session without ids and times: the questions by place, the answers, and the outcome."""

    asked: dict[str, str]
    answers: dict[str, JSON]
    unknown: list[str]
    outcome: Any

    @classmethod
    def of(cls, record: SessionRecord) -> SessionTrace:
        queries = index_queries(record.deliveries)
        given = [answer for delivery in record.deliveries for answer in delivery.answers]
        outcome = read_outcome(record.deliveries)
        if isinstance(outcome, Raised):
            outcome = Raised(outcome.error, outcome.kind)
        return cls(
            {query.key: describe_query(query) for query in queries.values()},
            {
                queries[answer.q].key: (
                    answer.value if answer.error is None else {"error": answer.error}
                )
                for answer in given
            },
            [
                list_call_names([queries[answer.q]])[0]
                for answer in given
                if answer.error is not None and answer.error.get("code") == OutcomeUnknown.code
            ],
            outcome,
        )


async def load_records(store: Store) -> list[SessionRecord]:
    """Load every session of a store, by id."""
    rows = await store.list(SessionFilter(limit=10_000))
    return [await store.load(id) for id in sorted(row.birth.id for row in rows)]


def find_differences(
    expected: Mapping[str, SessionTrace], actual: Mapping[str, SessionTrace], after: str
) -> list[str]:
    """The differences between two runs, in words; `after` names the disturbance, such as "the
    crash".
    """
    found = [f"session {name} is missing" for name in expected if name not in actual]
    found += [f"session {name} is extra" for name in actual if name not in expected]
    for name in expected.keys() & actual.keys():
        found += _compare_traces(expected[name], actual[name], after)
    return found


def _compare_traces(was: SessionTrace, now: SessionTrace, after: str) -> list[str]:
    found = []
    for what, old, new in (("asked", was.asked, now.asked), ("answered", was.answers, now.answers)):
        for place in dict.fromkeys([*old, *new]):
            a = old.get(place, "nothing")
            b = new.get(place, "nothing")
            if a != b:
                found.append(f"{what} at {place}: {a!r}; after {after} {b!r}")
    if was.outcome != now.outcome:
        found.append(f"it ended with {was.outcome!r}; after {after} with {now.outcome!r}")
    return found


def run_in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop in a thread, because another loop may be running here."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="everhold-everywhere")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
