"""What the house asks of the file beside sessions: who has to be told, what a session weighs, what nobody needs."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from everhold.core.codec import dumps
from everhold.core.query import Query
from everhold.core.session import Birth
from everhold.ports.store import Asking, Reclaimed

Run = Callable[..., sqlite3.Cursor]

#: Blobs that are removed in one transaction, so that writers need not wait for all of them.
AT_ONCE: Final = 200

_birth = msgspec.json.Decoder(Birth).decode
_query = msgspec.json.Decoder(Query).decode


def asking(run: Run, wanted: Asking, without: str | None = None) -> list[tuple[Birth, Query, float]]:
    """What is asked by notices; signals of the name `without` are left out."""
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
        where.append("(n.kind <> 'signal' OR n.addressee IS NOT NULL)")
    if wanted.to:
        where.append(f"n.addressee IN ({_marks(wanted.to)})")
        values += wanted.to
    if without is not None:
        where.append("(n.kind <> 'signal' OR instr(n.query, ?) = 0)")  # functions for JSON stumble over NUL
        values.append(f'"name":{dumps(without)}')
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


def _marks(given: tuple[str, ...]) -> str:
    return ", ".join("?" * len(given))


def size(run: Run, ref: int, needed: int) -> int:
    """Bytes of a session, but for its steps up to `needed`, which forks read."""
    steps: int = run(
        "SELECT coalesce(sum(length(CAST(answers AS BLOB)) + length(CAST(asked AS BLOB))"
        " + coalesce(length(CAST(notes AS BLOB)), 0)), 0) FROM journal WHERE session = ? AND n > ?",
        (ref, needed),
    ).fetchone()[0]
    attached: int = run(
        "SELECT coalesce(sum(a.size), 0) FROM attachment a WHERE a.session = ? AND a.n >= ?"
        " AND NOT EXISTS (SELECT 1 FROM attachment o WHERE o.blob = a.blob AND o.session <> a.session)",
        (ref, needed),
    ).fetchone()[0]
    return steps + attached


def drop_blobs(run: Run) -> tuple[int, int]:
    """Remove some of the bytes that nobody names; returns how many they were, and their length."""
    gone = run(
        "SELECT id, length(data) FROM blob b WHERE NOT EXISTS (SELECT 1 FROM attachment WHERE blob = b.id) LIMIT ?",
        (AT_ONCE,),
    ).fetchall()
    for id, _ in gone:
        run("DELETE FROM blob WHERE id = ?", (id,))
    return len(gone), sum(length for _, length in gone)


def drop_loose(run: Run) -> int:
    """Remove rows of sessions that are not there any more; returns how many."""
    gone = run("DELETE FROM attachment WHERE session NOT IN (SELECT ref FROM session)").rowcount
    for table in ("notice", "effect", "letter", "item", "lease"):
        gone += run(f"DELETE FROM {table} WHERE session NOT IN (SELECT ref FROM head_1)").rowcount
    return gone


class Upkeep:
    """These verbs, for a store that has one connection."""

    _run: Run
    _reading: Callable[[], AbstractContextManager[None]]
    _needed: Callable[[int], int]
    _session: Callable[[str], tuple[Any, Any, int | None]]
    _write: Callable[[Callable[[], Any]], Any]

    async def asking(self, wanted: Asking) -> builtins.list[tuple[Birth, Query, float]]:
        with self._reading():
            return asking(self._run, wanted)

    async def size(self, session_id: str) -> int:
        with self._reading():
            ref = self._session(session_id)[1].ref
            return size(self._run, ref, self._needed(ref))

    async def reclaim(self) -> Reclaimed:
        rows: int = await self._write(lambda: drop_loose(self._run))
        blobs = length = 0
        while True:
            count, more = await self._write(lambda: drop_blobs(self._run))
            blobs, length = blobs + count, length + more
            if count < AT_ONCE:
                return Reclaimed(blobs, length, rows)
