"""Maintenance of a store in PostgreSQL: unnotified questions, sizes, leftovers, damage."""

from __future__ import annotations

import builtins
import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.query import NOTIFIED, Query
from everhold.core.session import Birth
from everhold.ports.store import ProgressCallback, QuestionFilter, ReclaimResult, StoreProblem
from everhold.stores.postgres import lineage, read, verify
from everhold.stores.postgres.address import escape_nul
from everhold.stores.postgres.connection import PgConnection
from everhold.stores.postgres.lineage import RunQuery

if TYPE_CHECKING:
    from everhold.stores.postgres.store import PostgresStore

#: Blobs that are deleted in one transaction, so that writers wait only briefly.
AT_ONCE: Final = 200

_SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8 FROM pg_catalog.pg_class c"
    " JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace WHERE s.nspname = %s AND"
    " c.relkind = 'r'"
)

_query = msgspec.json.Decoder(Query).decode


def build_question_select(wanted: QuestionFilter) -> tuple[str, list[Any]]:
    """The statement of `asking` and its values."""
    where = [
        "NOT EXISTS (SELECT 1 FROM everhold.effect e WHERE e.session = n.session AND e.q = n.q)",
        "NOT EXISTS (SELECT 1 FROM everhold.letter l WHERE l.session = n.session AND l.kind ="
        " 'answer'"
        " AND (everhold.readable(l.body) ->> 'q')::int8 = n.q)",
    ]
    values: list[Any] = []
    if wanted.session is not None:
        where.append("s.id = %s")
        values.append(escape_nul(wanted.session))
    if wanted.kinds:
        where.append("n.kind = ANY(%s)")
        values.append([kind.value for kind in wanted.kinds])
    else:
        where.append("(n.kind = ANY(%s) OR n.addressee IS NOT NULL)")
        values.append(sorted(kind.value for kind in NOTIFIED))
    if wanted.to:
        where.append("n.addressee = ANY(%s)")
        values.append([escape_nul(each) for each in wanted.to])
    if wanted.without is not None:
        name = "s.id || '/q-' || n.q || '/' || trunc(n.asked_at * 1000)::int8"
        where.append(
            f"NOT EXISTS (SELECT 1 FROM everhold.duty d WHERE d.kind = %s AND d.id = {name})"
        )
        values.append(escape_nul(wanted.without))
    statement = (
        "SELECT s.birth, n.query, n.asked_at FROM everhold.notice n JOIN everhold.session s ON"
        " s.ref = n.session"
        f" WHERE {' AND '.join(where)} ORDER BY n.asked_at, s.created_at, s.id, n.q LIMIT %s"
    )
    return statement, [*values, wanted.limit]


async def measure_session(say: RunQuery, ref: int, needed: int) -> int:
    """Bytes of a session, without its steps up to `needed`, which forks read."""
    steps = await say(
        "SELECT coalesce(sum(octet_length(answers) + octet_length(asked) +"
        " coalesce(octet_length(notes), 0)), 0)::int8"
        " FROM everhold.journal WHERE session = %s AND n > %s",
        ref,
        needed,
    )
    attached = await say(
        "SELECT coalesce(sum(a.size), 0)::int8 FROM everhold.attachment a WHERE a.session = %s"
        " AND a.n >= %s"
        " AND NOT EXISTS (SELECT 1 FROM everhold.attachment o WHERE o.blob = a.blob AND"
        " o.session <> a.session)",
        ref,
        needed,
    )
    found: int = steps[0][0] + attached[0][0]
    return found


async def drop_loose_blobs(say: RunQuery) -> tuple[int, int]:
    """Deletes some of the bytes that no row refers to; returns their number and size."""
    gone = await say(
        "DELETE FROM everhold.blob WHERE id IN (SELECT id FROM everhold.blob b"
        " WHERE NOT EXISTS (SELECT 1 FROM everhold.attachment WHERE blob = b.id) LIMIT %s)"
        " RETURNING octet_length(data)",
        AT_ONCE,
    )
    return len(gone), sum(length for (length,) in gone)


async def drop_loose_rows(say: RunQuery) -> int:
    """Deletes rows of sessions that do not exist any more; returns how many."""
    there = "SELECT 1 FROM everhold.session s WHERE s.ref = x.session"
    gone = len(
        await say(f"DELETE FROM everhold.attachment x WHERE NOT EXISTS ({there}) RETURNING 1")
    )
    living = "SELECT 1 FROM everhold.head_1 h WHERE h.ref = x.session"
    for table in ("notice", "effect", "letter", "item", "lease"):
        gone += len(
            await say(f"DELETE FROM everhold.{table} x WHERE NOT EXISTS ({living}) RETURNING 1")
        )
    return gone


class PostgresMaintenance:
    path = None

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._bytes = 0  # the time of the last `verify`

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        statement, values = build_question_select(wanted)
        store = self._store

        async def act(line: PgConnection) -> builtins.list[tuple[Birth, Query, float]]:
            rows = await store._on(line, statement, *values)
            return [(read.read_birth(birth), _query(query), at) for birth, query, at in rows]

        return await store._run_retrying(act)

    async def size(self, session_id: str) -> int:
        store = self._store
        known = store._escape_id(session_id)

        async def act(line: PgConnection) -> int:
            _, head = store._session(session_id, await store._on(line, read.SESSION, known))
            say = functools.partial(store._on, line)
            return await measure_session(
                say, head.ref, await lineage.find_last_needed(say, head.ref)
            )

        return await store._run_retrying(act)

    async def reclaim(self) -> ReclaimResult:
        store = self._store

        async def act(line: PgConnection, drop: Any) -> Any:
            async with line.transaction():  # attaching takes this lock, too
                say = functools.partial(store._on, line)
                await lineage.lock_lineage(say, store.schema)
                return await drop(say)

        rows = await store._run_retrying(lambda line: act(line, drop_loose_rows))
        blobs = length = 0
        while True:
            count, more = await store._run_retrying(lambda line: act(line, drop_loose_blobs))
            blobs = blobs + count
            length = length + more
            if count < AT_ONCE:
                return ReclaimResult(blobs, length, rows)

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        store = self._store

        async def act(line: PgConnection) -> builtins.list[StoreProblem]:
            await line.execute(read.SNAPSHOT)
            found = await verify.PostgresVerifier(line, store.schema).problems(progress)
            self._bytes = (await store._on(line, _SIZE, store.schema))[0][0]
            await line.execute("COMMIT")
            return found

        return await store._run_retrying(act)

    def stats(self) -> dict[str, Any]:
        store = self._store
        return {
            "where": store.where,
            "kind": "postgres",
            "format": store._format,
            "schema": store.schema,
            "bytes": self._bytes,
            "durability": store.durability,
            "pooled": store._lines.pooled,
            "hears": store._channel.hears,
        }
