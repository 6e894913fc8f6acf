"""Maintenance of a store in SQLite: unnotified questions, sizes, leftovers, damage."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.query import NOTIFIED, Kind, Query
from everhold.core.session import Birth
from everhold.ports.store import ProgressCallback, QuestionFilter, ReclaimResult, StoreProblem
from everhold.stores.loop_turns import give_loop_turns
from everhold.stores.sqlite import lineage, verify
from everhold.stores.sqlite.database import ThreadProgress

if TYPE_CHECKING:
    from everhold.stores.sqlite.store import SQLiteStore

Run = Callable[..., sqlite3.Cursor]

#: Rows that are deleted in one transaction, so that writers wait only briefly.
AT_ONCE: Final = 200
#: Tables with rows that belong to a session, each with the table that must hold the session.
_REFERRING: Final = {"attachment": "session"} | dict.fromkeys(
    ("notice", "effect", "letter", "item", "lease"), "head_2"
)

_birth = msgspec.json.Decoder(Birth).decode
_query = msgspec.json.Decoder(Query).decode


def select_questions(run: Run, wanted: QuestionFilter) -> list[tuple[Birth, Query, float]]:
    """Open questions that have notices, oldest first."""
    where = [
        "NOT EXISTS (SELECT 1 FROM effect e WHERE e.session = n.session AND e.q = n.q)",
        "NOT EXISTS (SELECT 1 FROM letter l WHERE l.session = n.session AND l.kind = 'answer'"
        " AND json_extract(l.body, '$.q') = n.q)",
    ]
    values: list[Any] = []
    if wanted.session is not None:
        where.append("s.id = ?")
        values.append(wanted.session)
    if wanted.kinds:
        where.append(f"n.kind IN ({_marks(wanted.kinds)})")
        values += [kind.value for kind in wanted.kinds]
    else:
        where.append(f"(n.kind IN ({quote_kinds(NOTIFIED)}) OR n.addressee IS NOT NULL)")
    if wanted.to:
        where.append(f"n.addressee IN ({_marks(wanted.to)})")
        values += wanted.to
    if wanted.without is not None:
        name = "s.id || '/q-' || n.q || '/' || CAST(n.asked_at * 1000 AS INTEGER)"
        where.append(f"NOT EXISTS (SELECT 1 FROM duty d WHERE d.kind = ? AND d.id = {name})")
        values.append(wanted.without)
    rows = run(
        "SELECT s.birth, n.query, n.asked_at FROM notice n JOIN session s ON s.ref = n.session"
        f" WHERE {' AND '.join(where)} ORDER BY n.asked_at, s.created_at, s.id, n.q LIMIT ?",
        (*values, wanted.limit),
    )
    return [(_birth(birth), _query(query), at) for birth, query, at in rows.fetchall()]


def quote_kinds(kinds: Collection[Kind]) -> str:
    """Kinds of queries as an SQL list."""
    return ", ".join(f"'{kind}'" for kind in sorted(kinds))


def _marks(given: tuple[str, ...]) -> str:
    return ", ".join("?" * len(given))


def measure_session(run: Run, ref: int, needed: int) -> int:
    """Bytes of a session, without its steps up to `needed`, which forks read."""
    steps: int = run(
        "SELECT coalesce(sum(length(CAST(answers AS BLOB)) + length(CAST(asked AS BLOB))"
        " + coalesce(length(CAST(notes AS BLOB)), 0)), 0) FROM journal WHERE session = ? AND n > ?",
        (ref, needed),
    ).fetchone()[0]
    attached: int = run(
        "SELECT coalesce(sum(a.size), 0) FROM attachment a WHERE a.session = ? AND a.n >= ?"
        " AND NOT EXISTS (SELECT 1 FROM attachment o WHERE o.blob = a.blob AND o.session <>"
        " a.session)",
        (ref, needed),
    ).fetchone()[0]
    return steps + attached


def find_loose_blobs(run: Run) -> list[str]:
    """The attachment bytes that no row refers to."""
    rows = run(
        "SELECT id FROM blob b WHERE NOT EXISTS (SELECT 1 FROM attachment WHERE blob = b.id)"
    )
    return [row[0] for row in rows]


def drop_loose_blobs(run: Run, ids: Sequence[str]) -> tuple[int, int]:
    """Deletes bytes that still no row refers to; returns their number and size."""
    count = length = 0
    for id in ids:
        still = "id = ? AND NOT EXISTS (SELECT 1 FROM attachment WHERE blob = b.id)"
        row = run(f"SELECT length(data) FROM blob b WHERE {still}", (id,)).fetchone()
        if row is not None:
            run("DELETE FROM blob WHERE id = ?", (id,))
            count = count + 1
            length = length + row[0]
    return count, length


def find_loose_rows(run: Run) -> list[tuple[str, int]]:
    """Tables with rows of deleted sessions, each with the number of one such session."""
    return [
        (table, row[0])
        for table, there in _REFERRING.items()
        for row in run(
            f"SELECT DISTINCT session FROM {table} WHERE session NOT IN (SELECT ref FROM {there})"
        )
    ]


def drop_loose_rows(run: Run, found: Sequence[tuple[str, int]]) -> int:
    """Deletes rows of sessions that still do not exist; returns how many."""
    return sum(
        run(
            f"DELETE FROM {table} WHERE session = ? AND NOT EXISTS (SELECT 1 FROM"
            f" {_REFERRING[table]} WHERE ref = ?)",
            (ref, ref),
        ).rowcount
        for table, ref in found
    )


@give_loop_turns
class SQLiteMaintenance:
    def __init__(self, store: SQLiteStore) -> None:
        self._store = store

    @property
    def path(self) -> Path:
        return self._store.path

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        return await self._store._scan(lambda store: select_questions(store._run, wanted))

    async def size(self, session_id: str) -> int:
        store = self._store
        with store._reading():
            ref = store._session(session_id)[1].ref
            return measure_session(store._run, ref, lineage.find_last_needed(store._run, ref))

    async def reclaim(self) -> ReclaimResult:
        store = self._store
        store._place.check()  # also where nothing is deleted
        # Candidates are found beforehand, outside the write transaction: scanning every row would
        # block other writers.
        rows = blobs = length = 0
        found = await store._scan(lambda each: find_loose_rows(each._run))
        for some in _portions(found):
            rows += await store._write(partial(drop_loose_rows, store._run, some))
        for portion in _portions(await store._scan(lambda each: find_loose_blobs(each._run))):
            count, more = await store._write(partial(drop_loose_blobs, store._run, portion))
            blobs = blobs + count
            length = length + more
        return ReclaimResult(blobs, length, rows)

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        told = None if progress is None else ThreadProgress(progress)
        found = await self._store._aside(
            lambda store: verify.find_problems(store._connection, told)
        )
        if told is not None:
            told.check()
        if not self._store._copied_alone:
            return found
        return [*found, verify.warn_copied_alone(self.path)]

    def stats(self) -> dict[str, Any]:
        size = sum(
            (path.stat().st_size if path.exists() else 0)
            for path in (self.path, self.path.with_name(self.path.name + "-wal"))
        )
        found = self._store._run("PRAGMA user_version").fetchone()[0]
        return {
            "where": self._store.where,
            "kind": "sqlite",
            "format": found,
            "bytes": size,
            "durability": self._store.durability,
        }


def _portions(found: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(found), AT_ONCE):
        yield found[start : start + AT_ONCE]
