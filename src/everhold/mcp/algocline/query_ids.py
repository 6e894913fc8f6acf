"""Query ids as algocline has them, and the queries they mean.

Everhold's ids never repeat in a session. In algocline a single question is always `q-0`, a batch is
`q-0`, `q-1`, …, and question k of program v of a fork is `f-v-k`. Both can be computed from the
journal, so nothing is stored and nothing can be lost.

Rules
  1. A question gets the smallest `q-N` that no open question has. In Lua programs, questions of the
     children of a fork get `f-v-k`. A name is unique among the open questions, and stays the same
     while its question is open.
  2. A name means the open question that has it. An id of everhold means its question, unless it was
     used as a name.
  3. The meanings at an earlier step are known too: a name means what it meant when the client last
     saw the session.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

import msgspec

from everhold.core.journal import Delivery, find_open_queries
from everhold.core.query import MODEL_KINDS, Query, QueryAnswer, parse_query_number
from everhold.engine.journal_reader import read_steps
from everhold.packages.program_hosts import is_lua_ref
from everhold.ports.store import SessionRecord, Store


class QueryNames:
    """The names of the questions to models that a journal holds."""

    def __init__(
        self, deliveries: Iterable[Delivery], *, lua: bool, kept: Iterable[QueryAnswer] = ()
    ) -> None:
        self.all: dict[int, str] = {}
        self.open: dict[str, int] = {}
        self.answered: dict[str, QueryAnswer] = {}  # name -> the last answer under it
        self.latest: list[str] = []  # names of the questions answered last
        self.said: dict[int, QueryAnswer] = {}  # number of a question -> its answer
        self._since: dict[int, int] = {}  # number of a question -> the delivery that asked it
        self._places = _Places()
        self._lua = lua
        for step in read_steps(deliveries):
            self._close([one.answer for one in step.answered])
            for q in step.notes.withdrawn:
                self.open.pop(self.all.get(q, ""), None)
            if step.notes.outcome is not None:
                self.open.clear()
            for query in step.asked:
                self._ask(query, step.n)
        self._close(kept)

    def __getitem__(self, query_id: str) -> str:
        """The name of an id of everhold, or the id itself if it has no name."""
        q = parse_query_number(query_id)
        return query_id if q is None else self.all.get(q, query_id)

    def meant(self, name: str) -> int | None:
        """The number of the open question with this name or id."""
        if name in self.open or name in self.answered:
            return self.open.get(name)
        q = parse_query_number(name)
        return q if q in self.open.values() else None

    def is_of_now(self, answer: QueryAnswer) -> bool:
        """Whether the answered question was asked together with one that is still open."""
        return self._since[answer.q] in {self._since[q] for q in self.open.values()}

    def _close(self, answers: Iterable[QueryAnswer]) -> None:
        closed = [answer for answer in answers if answer.q in self.all]
        for answer in closed:
            name = self.all[answer.q]
            self.open.pop(name, None)
            self.answered[name] = self.said[answer.q] = answer
        if closed:
            self.latest = [self.all[answer.q] for answer in closed]

    def _ask(self, query: Query, n: int) -> None:
        strand = query.key.rpartition(":")[0]
        place = self._places.seen(strand, n) if self._lua and "." in strand else ""
        if query.kind not in MODEL_KINDS:
            return
        if query.q not in self.all:
            self._since[query.q] = n
            self.all[query.q] = (
                f"f-{place}-{self._places.asked(strand)}"
                if place
                else next(name for name in map("q-{}".format, count()) if name not in self.open)
            )
        self.open[self.all[query.q]] = query.q


class _Places:
    """The place of each strand of a Lua program among the children of its fork.

    All children of one fork appear first in the same delivery.
    """

    def __init__(self) -> None:
        # strand -> delivery in which it forked last, its first child then
        self._forks: dict[str, tuple[int, int]] = {}
        self._places: dict[str, str] = {}
        self._asked: dict[str, int] = {}

    def seen(self, strand: str, n: int) -> str:
        if strand not in self._places:
            parent, _, child = strand.rpartition(".")
            begun, first = self._forks.get(parent, (n, 0))
            if begun != n:
                first = int(child)
            self._forks[parent] = (n, first)
            above = f"{self.seen(parent, n)}-" if "." in parent else ""
            self._places[strand] = f"{above}{int(child) - first}"
        return self._places[strand]

    def asked(self, strand: str) -> int:
        """How many questions the strand has asked before this one."""
        before = self._asked.get(strand, 0)
        self._asked[strand] = before + 1
        return before


def read_query_names(record: SessionRecord) -> QueryNames:
    """The names in a session, from its complete journal."""
    kept = [
        msgspec.convert(letter.body, QueryAnswer)
        for letter in record.letters
        if letter.kind == "answer"
    ]
    return QueryNames(record.deliveries, lua=is_lua_ref(record.birth.program), kept=kept)


def read_query_names_at(record: SessionRecord, step: int) -> QueryNames:
    """The names at a step."""
    then = [delivery for delivery in record.deliveries if delivery.n <= step]
    return QueryNames(then, lua=is_lua_ref(record.birth.program))


async def load_open_names(store: Store, session_id: str) -> tuple[SessionRecord, QueryNames]:
    """A session and the names of its open questions.

    The complete journal is read only if the names depend on it.
    """
    record = await store.load(session_id, since=-1)
    if record.head.ended or record.letters or not _asked_together(record):
        record = await store.load(session_id)
    return record, read_query_names(record)


def _asked_together(record: SessionRecord) -> bool:
    """Whether the last step asked all open questions, outside a fork."""
    opened = find_open_queries(record.deliveries).values()
    return all(
        entry.n == record.head.n and "." not in entry.query.key.rpartition(":")[0]
        for entry in opened
    )
