"""The statements for lists of sessions and for the inbox, for stores that speak SQL.

A store drives a `Reading`: it runs each statement that is yielded and sends the rows back. Nothing
here does I/O.

Rules
  1. A page costs what it shows, however many sessions there are: every filter has an index that
     ends in the order of the list.
  2. The values of one filter are read one by one, each in order, and merged: a database would sort
     all rows if it read several values from one index.
  3. Of several filters, the one that matches the fewest sessions is read, and the others are
     conditions. At most `FEW` rows of each are counted to find out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.query import Kind
from everhold.core.session import ENDED
from everhold.ports.program_identity import match_programs
from everhold.ports.store import InboxPlace, SessionFilter

R = TypeVar("R")
Rows = list[tuple[Any, ...]]
#: A conversation with a database: statements with their values out, rows in.
Reading = Generator[tuple[str, list[Any]], Rows, R]

#: How many rows of a filter are counted.
FEW: Final = 500


class Dialect(msgspec.Struct, frozen=True):
    """What differs between two databases. Values are marked with `?`."""

    head: str  # the table of heads
    columns: str  # of a head, for the reader of rows
    ended: str  # the condition for heads in the index `head_ended`
    ended_at: str  # the column that it sorts by
    queued: str  # the condition for a notice `n` whose answer is queued
    session: str = "session"
    label: str = "label"
    notice: str = "notice"
    effect: str = "effect"
    joined: str = " CROSS JOIN "  # joins in the order written
    forced: bool = True  # whether an index can be named in a statement
    escape: Callable[[str], str] = lambda text: text  # as it is stored

    def use(self, index: str) -> str:
        return f" INDEXED BY {index}" if self.forced else ""


class _Source(msgspec.Struct, frozen=True):
    """The sessions with one value of a filter."""

    table: str  # and its index
    joins: str  # the other tables
    condition: str  # of the rows of `table`
    values: tuple[Any, ...]
    order: str = ""  # the column by which the index sorts them; empty: not as a list does
    test: str = ""  # the condition for a row of `session s` and the head `h`, if it is another


class SessionLister:
    """Reads one page of `list`."""

    def __init__(self, dialect: Dialect, wanted: SessionFilter) -> None:
        self._dialect = dialect
        self._wanted = wanted
        self._head = f"{dialect.joined}{dialect.head} h ON h.ref = s.ref"
        self._session = f"{dialect.joined}{dialect.session} s ON s.ref = "

    def read(self) -> Reading[Rows]:
        """The births and heads of the page."""
        wanted = self._wanted
        filters = yield from self._filters()
        if not all(filters):
            return []
        if wanted.older_than is None:
            return (yield from self._newest(filters))
        return (yield from self._longest_unmoved(wanted.older_than, filters))

    def _newest(self, filters: list[list[_Source]]) -> Reading[Rows]:
        wanted = self._wanted
        where, values = self._shared()
        last = None if wanted.after is None else (yield from self._place(wanted.after))
        if last is not None:
            where.append("(s.created_at, s.id) < (?, ?)")
            values += last
        chosen = yield from self._choose(filters)
        parts = []
        given: list[Any] = []
        for source in chosen or [self._everything()]:
            tests, known = _test_others(filters, chosen)
            conditions = [source.condition, *tests, *where]
            order = source.order or "s.created_at"
            given += [*source.values, *known, *values]
            if last is not None and source.order:
                conditions.append(f"{order} <= ?")  # where the index is entered
                given.append(last[0])
            parts.append(
                "SELECT * FROM (SELECT s.created_at AS born, s.id,"
                f" s.birth, {self._dialect.columns} FROM {source.table}{source.joins}"
                f" WHERE {' AND '.join(conditions)} ORDER BY {order} DESC, s.id DESC LIMIT ?) AS p"
            )
            given.append(wanted.limit)
        merged = f"{' UNION ALL '.join(parts)} ORDER BY born DESC, id DESC LIMIT ?"
        found = yield merged, [*given, wanted.limit]
        return [row[2:] for row in found]

    def _longest_unmoved(self, older_than: float, filters: list[list[_Source]]) -> Reading[Rows]:
        wanted, dialect = self._wanted, self._dialect
        chosen = yield from self._choose(filters, least=True)
        order = "h.updated_at"
        sources = chosen or [self._everything()]
        if chosen is None and wanted.state and ENDED.issuperset(wanted.state):
            order = dialect.ended_at
            table = f"{dialect.head} h{dialect.use('head_ended')}"
            sources = [_Source(table, f"{self._session}h.ref", dialect.ended, ())]
        where, values = self._shared()
        where.append(f"{order} < ?")
        values.append(float(older_than))
        if wanted.after is not None:
            moved = f"SELECT h.updated_at, s.id FROM {dialect.session} s{self._head} WHERE s.id = ?"
            last = yield moved, [dialect.escape(wanted.after)]
            if last:  # else it was deleted, and the rest follows from the beginning
                where += [f"({order}, s.id) > (?, ?)", f"{order} >= ?"]
                values += [*last[0], last[0][0]]
        parts = []
        given: list[Any] = []
        for source in sources:
            tests, known = _test_others(filters, chosen)
            parts.append(
                f"SELECT * FROM (SELECT {order} AS moved, s.id, s.birth, {dialect.columns} FROM"
                f" {source.table}{source.joins}"
                f" WHERE {' AND '.join([source.condition, *tests, *where])}"
                f" ORDER BY {order}, s.id LIMIT ?) AS p"
            )
            given += [*source.values, *known, *values, wanted.limit]
        merged = f"{' UNION ALL '.join(parts)} ORDER BY moved, id LIMIT ?"
        found = yield merged, [*given, wanted.limit]
        return [row[2:] for row in found]

    def _shared(self) -> tuple[list[str], list[Any]]:
        """The conditions of every page, and their values."""
        if self._wanted.newer_than is None:
            return ["s.deleted = 0"], []
        return ["s.deleted = 0", "h.updated_at >= ?"], [float(self._wanted.newer_than)]

    def _everything(self) -> _Source:
        dialect = self._dialect
        table = f"{dialect.session} s{dialect.use('session_created')}"
        return _Source(table, self._head, "1 = 1", (), "s.created_at")

    def _place(self, session_id: str) -> Reading[tuple[float, str]]:
        """The place of the last session of a page, or of the one before it if it was deleted: ids
        sort by time.
        """
        session_id = self._dialect.escape(session_id)
        before = f"SELECT created_at FROM {self._dialect.session} WHERE id <= ?"
        found = yield f"{before} ORDER BY id DESC LIMIT 1", [session_id]
        return (found[0][0], session_id) if found else (float("-inf"), "")

    def _filters(self) -> Reading[list[list[_Source]]]:
        """Every filter but those by age, each as the sources of its values."""
        wanted, dialect = self._wanted, self._dialect
        filters: list[list[_Source]] = []
        for name, value in wanted.labels.items():
            condition = "l.name = ? AND l.value = ?"
            test = f"EXISTS (SELECT 1 FROM {dialect.label} l WHERE {condition}"
            test += " AND l.created_at = s.created_at AND l.session = s.ref)"
            joins = f"{self._session}l.session{self._head}"
            given = (dialect.escape(name), dialect.escape(value))
            table = f"{dialect.label} l"
            filters.append([_Source(table, joins, condition, given, "l.created_at", test)])
        if wanted.parent is not None:
            table = f"{dialect.session} s{dialect.use('session_parent')}"
            parent = (dialect.escape(wanted.parent),)
            filters.append([_Source(table, self._head, "s.parent = ?", parent, "s.created_at")])
        if wanted.prefix:
            condition, bounds = build_prefix_condition("s.id", dialect.escape(wanted.prefix))
            filters.append([_Source(f"{dialect.session} s", self._head, condition, bounds)])
        if wanted.programs:
            # every program that has sessions: one look at the index for each
            rows = yield (
                f"WITH RECURSIVE one (program) AS (SELECT min(program) FROM {dialect.session}"
                f" UNION ALL SELECT (SELECT min(s.program) FROM {dialect.session} s WHERE s.program"
                " > one.program) FROM one WHERE one.program IS NOT NULL)"
                " SELECT program FROM one WHERE program IS NOT NULL",
                [],
            )
            names = [dialect.escape(name) for name in wanted.programs]
            table = f"{dialect.session} s{dialect.use('session_program')}"
            filters.append(
                [
                    _Source(table, self._head, "s.program = ?", (program,), "s.created_at")
                    for program in match_programs(names, [row[0] for row in rows])
                ]
            )
        if wanted.state:
            table = f"{dialect.head} h{dialect.use('head_state')}"
            joins = f"{self._session}h.ref"
            filters.append(
                [
                    _Source(table, joins, "h.state = ?", (state.value,), "h.created_at")
                    for state in dict.fromkeys(wanted.state)
                ]
            )
        return filters

    def _choose(
        self, filters: list[list[_Source]], *, least: bool = False
    ) -> Reading[list[_Source] | None]:
        """The filter to read: the one with the fewest sessions, else one that is in order.

        `least` asks for few sessions, in any order. None if no filter helps.
        """
        if len(filters) == 1 and filters[0][0].order and not least:
            return filters[0]
        fewest = None
        for sources in filters:
            parts = [f"SELECT 1 FROM {one.table} WHERE {one.condition}" for one in sources]
            statement = f"SELECT count(*) FROM ({' UNION ALL '.join(parts)} LIMIT {FEW}) AS p"
            rows = yield statement, [value for one in sources for value in one.values]
            if rows[0][0] < (FEW if fewest is None else fewest[0]):
                fewest = (rows[0][0], sources)
        if fewest is not None:
            return fewest[1]
        if least:
            return None
        return next((sources for sources in filters if sources[0].order), None)


def _test_others(
    filters: list[list[_Source]], chosen: list[_Source] | None
) -> tuple[list[str], list[Any]]:
    """The conditions of the filters that are not read, and their values."""
    others = [sources for sources in filters if sources is not chosen]
    tests = [f"({' OR '.join(one.test or one.condition for one in some)})" for some in others]
    return tests, [value for some in others for one in some for value in one.values]


def select_noticed(
    dialect: Dialect, kinds: Sequence[Kind], to: str | None, limit: int, after: InboxPlace | None
) -> tuple[str, list[Any]]:
    """The questions that have a row in the inbox, and neither a running answerer nor a queued
    answer: the oldest session first.
    """
    running = f"SELECT 1 FROM {dialect.effect} e WHERE e.session = n.session AND e.q = n.q"
    conditions = [f"NOT EXISTS ({running})", f"NOT ({dialect.queued})"]
    known: list[Any] = []
    if after is not None:
        conditions += ["(s.created_at, s.id, n.q) > (?, ?, ?)", "n.created_at >= ?"]
        known += [after.created_at, dialect.escape(after.session_id), after.q, after.created_at]
    names = [kind.value for kind in kinds]
    if to is None:  # one index per kind
        groups = [[name] for name in names]
        index = dialect.use("notice_kind")
    else:
        groups = [names]
        index = dialect.use("notice_addressee")
        conditions.append("n.addressee = ?")
        known.append(dialect.escape(to))
    parts = []
    given: list[Any] = []
    for group in groups:
        wanted = f"n.kind IN ({', '.join('?' * len(group))})"
        parts.append(
            "SELECT * FROM (SELECT s.birth, n.query, n.asked_at, s.created_at AS born,"
            f" s.id, n.q FROM {dialect.notice} n{index}{dialect.joined}{dialect.session} s ON"
            f" s.ref = n.session{dialect.joined}{dialect.head} h ON h.ref = s.ref"
            f" WHERE {' AND '.join([wanted, *conditions])}"
            " ORDER BY n.created_at, s.id, n.q LIMIT ?) AS p"
        )
        given += [*group, *known, limit]
    return f"{' UNION ALL '.join(parts)} ORDER BY born, id, q LIMIT ?", [*given, limit]


def select_asking(dialect: Dialect, limit: int, after: InboxPlace | None) -> tuple[str, list[Any]]:
    """Sessions that may have an open question without a row in the inbox, oldest first. With
    `after`, they begin with its session.
    """
    conditions = ["h.asking = 1", "h.state IN ('running', 'paused')", "s.deleted = 0"]
    values: list[Any] = []
    if after is not None:
        conditions += ["(s.created_at, s.id) >= (?, ?)", "h.created_at >= ?"]
        values += [after.created_at, dialect.escape(after.session_id), after.created_at]
    return (
        "SELECT s.ref, s.birth, h.mail, s.created_at, s.id, s.origin, s.origin_n, h.open_from FROM"
        f" {dialect.head} h{dialect.use('head_asking')}{dialect.joined}{dialect.session} s ON s.ref"
        f" = h.ref WHERE {' AND '.join(conditions)} ORDER BY h.created_at, s.id LIMIT ?",
        [*values, limit],
    )


def build_prefix_condition(column: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """A condition for "text starts with prefix" that can use an index, and its values."""
    for end in range(len(prefix), 0, -1):
        code = ord(prefix[end - 1]) + 1
        # the upper bound is the prefix with its last character replaced by the next one
        if code <= sys.maxunicode:
            after = chr(0xE000 if code == 0xD800 else code)
            return f"{column} >= ? AND {column} < ?", (prefix, prefix[: end - 1] + after)
    return f"{column} >= ?", (prefix,)
