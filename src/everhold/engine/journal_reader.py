"""Reads a stored journal as steps: each answer beside its query, and the queries that are open.

Everything that looks at a stored session uses this reader: snapshots, transcripts, `explain`,
usage, exports, recordings, the command line and the MCP server. It needs no program and runs
nothing. `engine/replay.py` runs the program again; `engine/live_session.py` keeps what is open in a
session that moves.

Rules
  1. A delivery is read once. A reader may continue with the deliveries that were recorded since.
  2. An answer stands beside its query as it was asked last: after a `retry`, the program asks its
     open queries again, perhaps in other words.
  3. A reader that begins inside a journal does not know the queries asked before. The answers to
     them have no query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from everhold.core.journal import AskedQuery, Delivery, DeliveryNotes, fold_delivery
from everhold.core.query import Query, QueryAnswer
from everhold.core.status import Outcome


class AnsweredQuery(msgspec.Struct, frozen=True):
    """An answer, beside the query that it closed."""

    answer: QueryAnswer
    asked: AskedQuery | None  # None: it was asked before the reader began

    @property
    def query(self) -> Query | None:
        return None if self.asked is None else self.asked.query


class JournalStep(msgspec.Struct, frozen=True):
    """One delivery in its place: the answers with their queries, and what the program asked
    next.
    """

    delivery: Delivery
    answered: list[AnsweredQuery]
    notes: DeliveryNotes  # those of the delivery, or empty ones

    @property
    def n(self) -> int:
        return self.delivery.n

    @property
    def at(self) -> float:
        return self.delivery.at

    @property
    def asked(self) -> list[Query]:
        return self.delivery.asked


class JournalReader:
    """Reads one journal in order. `next_n` is the first delivery that it has not read."""

    def __init__(self, next_n: int = 0) -> None:
        self.next_n = next_n
        self.opened: dict[int, AskedQuery] = {}  # after the last step that was read

    def read(self, deliveries: Iterable[Delivery]) -> Iterator[JournalStep]:
        """Yield a step for each delivery that was not read before."""
        for delivery in deliveries:
            if delivery.n < self.next_n:
                continue
            answered = [
                AnsweredQuery(answer, self.opened.get(answer.q)) for answer in delivery.answers
            ]
            fold_delivery(self.opened, delivery)
            self.next_n = delivery.n + 1
            yield JournalStep(delivery, answered, delivery.notes or DeliveryNotes())


def read_steps(deliveries: Iterable[Delivery]) -> Iterator[JournalStep]:
    """The steps of a whole journal."""
    return JournalReader().read(deliveries)


def index_queries(deliveries: Iterable[Delivery]) -> dict[int, Query]:
    """Every query of a journal by its number, as it was asked last."""
    return {query.q: query for delivery in deliveries for query in delivery.asked}


def read_outcome(deliveries: Sequence[Delivery]) -> Outcome | None:
    """How the session ended, if its last delivery ended it."""
    notes = deliveries[-1].notes if deliveries else None
    return None if notes is None else notes.outcome


def find_last_handed(deliveries: Sequence[Delivery]) -> int:
    """The place of the last delivery that is not a retry: a retry hands it over again."""
    last = len(deliveries) - 1
    while last > 0 and (notes := deliveries[last].notes) is not None and notes.retry:
        last -= 1
    return last
