"""The statements that read and write intakes, leases and duties, and the decoding of their rows.

Rules
  1. A writer of an intake has locked the session's head and its lease, in this order. A read locks
     nothing.
  2. The time is the server's, read after the locks, unless the store has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import psycopg

from everhold.core.intake import Intake, IntakeItem
from everhold.core.lease import LeaseOwner
from everhold.core.session import SessionState
from everhold.errors import BadArguments, BadValue
from everhold.ports.store import Duty, StoreProblem
from everhold.stores.loop_turns import iterate_with_turns
from everhold.stores.postgres.address import escape_nul, qualify_schema, unescape_nul
from everhold.stores.postgres.connection import PgConnection
from everhold.stores.postgres.lineage import RunQuery
from everhold.stores.row_codec import (
    CHANGING_COLUMNS,
    DUTY_COLUMNS,
    ITEM_COLUMNS,
    LEASE_COLUMNS,
    UNREADABLE,
    find_intake_flaws,
    make_duty_row,
    make_item_row,
    make_lease_row,
    read_duty,
    read_item,
    read_lease,
)

Rows = Sequence[tuple[Any, ...]]
Statement = tuple[str, tuple[Any, ...]]

#: The time: a given one, or the server's. `now()` would be the start of the transaction, before its
#: locks were granted.
NOW: Final = "coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)"
_ITEM: Final = ", ".join(ITEM_COLUMNS)
_LEASE: Final = ", ".join(LEASE_COLUMNS)
_DUTY: Final = ", ".join(DUTY_COLUMNS)
SET_LOCAL: Final = (
    "SELECT set_config('synchronous_commit', %s, true), set_config('lock_timeout', %s, true)"
)

_SESSION: Final = (
    "FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref{more} WHERE"
    " s.id = ANY(%s) AND s.deleted = 0"
)
# NO KEY UPDATE is weaker than FOR UPDATE: it does not block foreign-key checks of other sessions.
_LOCK_HEAD: Final = f"SELECT h.ref {_SESSION.format(more='')} FOR NO KEY UPDATE OF h"
_LOCK_LEASE: Final = (
    "SELECT session FROM everhold.lease WHERE session = ANY"
    " (ARRAY(SELECT s.ref FROM everhold.session s WHERE s.id = ANY(%s) AND s.deleted = 0)) FOR"
    " NO KEY UPDATE"
)
_OPEN: Final = "SELECT * FROM everhold.open_intake_1(%s, %s::text[], %s, %s, %s)"
#: Items, each by an index, however many have ended: the queued ones, and the named ones.
_WAITING: Final = f"SELECT {_ITEM} FROM everhold.item WHERE session = s.ref AND state = 'waiting'"
_ENDED: Final = f"SELECT {_ITEM} FROM everhold.item WHERE session = s.ref AND state <> 'waiting'"
_CHOSEN: Final = (
    f"{_WAITING} UNION ALL {_ENDED} AND id = ANY(%s) UNION ALL {_ENDED} AND key = ANY(%s)"
)
_ALL: Final = f"SELECT {_ITEM} FROM everhold.item WHERE session = s.ref"
_ONLY: Final = f"{_ALL} AND id = ANY(%s) UNION {_ALL} AND key = ANY(%s)"
_COLUMNS: Final = ", ".join(
    [*(f"l.{name}" for name in LEASE_COLUMNS), *(f"i.{name}" for name in ITEM_COLUMNS)]
)
_LOOK: Final = f"SELECT s.id, h.ref, h.state, {NOW}, {_COLUMNS} " + _SESSION.format(
    more=" LEFT JOIN everhold.lease l ON l.session = s.ref LEFT JOIN LATERAL ({items}) i ON true"
)
# All rows are one JSON parameter, so that the statement, and its prepared form, is always the same.
_WRITE_LEASES: Final = (
    f"INSERT INTO everhold.lease (session, {_LEASE}) SELECT session, {_LEASE}"
    " FROM json_populate_recordset(NULL::everhold.lease, %s::json) ON CONFLICT (session)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in LEASE_COLUMNS)}"
)
_WRITE_ITEMS: Final = (
    f"INSERT INTO everhold.item (session, {_ITEM}) SELECT session, {_ITEM}"
    " FROM json_populate_recordset(NULL::everhold.item, %s::json) ON CONFLICT (session, seq)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in CHANGING_COLUMNS)}"
)
_WRITE_BOTH: Final = f"WITH leased AS ({_WRITE_LEASES} RETURNING 1) {_WRITE_ITEMS}"
# `clock` is materialized: clock_timestamp() would be evaluated again for every row.
STANDING: Final = (
    f"WITH clock AS MATERIALIZED (SELECT {NOW} AS now) SELECT s.id, h.revision, coalesce(l.seq,"
    " 0), (SELECT count(*)"
    " FROM everhold.item i WHERE i.session = s.ref AND i.state = 'waiting' AND i.available_at <="
    " clock.now)"
    " FROM clock CROSS JOIN everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref"
    " LEFT JOIN everhold.lease l ON l.session = s.ref WHERE s.id = ANY(%s) AND s.deleted = 0"
)
KEEP: Final = (
    f"UPDATE everhold.lease l SET expires_at = greatest(l.expires_at, {NOW} + %s) FROM"
    " everhold.session s"
    " WHERE s.ref = l.session AND l.incarnation = %s AND l.owner = %s AND l.released = 0 AND"
    f" l.expires_at > {NOW}"
    " RETURNING s.id"
)
LEAVE: Final = (
    "UPDATE everhold.lease SET released = 1 WHERE incarnation = %s AND owner = %s AND released = 0"
)
#: Releases one lease, and returns whether the session has queued items.
RELEASE: Final = (
    "WITH one AS (SELECT ref FROM everhold.session WHERE id = %s AND deleted = 0), freed AS"
    " (UPDATE everhold.lease l"
    " SET released = 1 FROM one WHERE l.session = one.ref AND (l.incarnation, l.owner, l.token,"
    " l.generation) ="
    " (%s, %s, %s, %s) AND l.released = 0)"
    " SELECT EXISTS (SELECT 1 FROM everhold.item i WHERE i.session = one.ref AND i.state ="
    " 'waiting'"
    f" AND i.seq > %s AND i.available_at <= {NOW}) FROM one"
)
#: One query per kind: the index of due duties starts with the kind and would be scanned otherwise.
NEXT_DUTY: Final = (
    "WITH RECURSIVE k (kind) AS (SELECT min(kind) FROM everhold.duty WHERE due_at IS NOT NULL"
    " UNION ALL SELECT"
    " (SELECT min(kind) FROM everhold.duty WHERE kind > k.kind AND due_at IS NOT NULL) FROM k"
    " WHERE k.kind IS NOT NULL)"
    " SELECT least((SELECT min((SELECT min(d.due_at) FROM everhold.duty d WHERE d.kind = k.kind"
    " AND d.due_at > %s))"
    " FROM k), (SELECT min(available_at) FROM everhold.item WHERE state = 'waiting' AND"
    " available_at > %s))"
)
#: One row if this was not done before; a concurrent transaction that does it is waited for.
RECEIPT: Final = "INSERT INTO everhold.receipt (id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING 1"
ONE_DUTY: Final = f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND id = %s"
DUE_DUTIES: Final = (
    f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND due_at <= %s ORDER BY"
    " due_at, id LIMIT %s"
)
NAMED_DUTIES: Final = (
    f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND starts_with(id, %s) AND"
    " id > %s ORDER BY id LIMIT %s"
)
_AS_IT_WAS: Final = "kind = %s AND id = %s AND version = %s"


def open_intake(
    session_id: str, chosen: Sequence[str] | None, settings: tuple[str, str], *, only: bool = False
) -> Statement:
    """The statement that locks the head of a session, then its lease, and reads its intake as
    `build_intake_select` does. `settings` are the values of `SET_LOCAL`.
    """
    which = "all" if chosen is None else "only" if only else "chosen" if chosen else "waiting"
    names = [escape_nul(name) for name in chosen or ()]
    return _OPEN, (escape_nul(session_id), names, which, *settings)


def build_lock_statements(sessions: Sequence[str], *, free: bool = False) -> list[Statement]:
    """The statements that lock the intakes of sessions until the transaction ends.

    They return the numbers of the locked sessions; `free` skips those that others have locked.
    """
    ids = [escape_nul(each) for each in sessions]
    how = " SKIP LOCKED" if free else ""
    return [(_LOCK_HEAD + how, (ids,)), (_LOCK_LEASE + how, (ids,))]


def build_intake_select(
    sessions: Sequence[str], chosen: Sequence[str] | None = (), *, only: bool = False
) -> Statement:
    """The statement that reads the intakes of sessions at one moment, for `read_intake`.

    `chosen` are the names of items to read although they have ended; None reads all of them. With
    `only`, no others are read.
    """
    ids = [escape_nul(each) for each in sessions]
    if chosen is None:
        return _LOOK.format(items=_ALL), (None, ids)
    if not chosen and not only:
        return _LOOK.format(items=_WAITING), (None, ids)
    names = [escape_nul(name) for name in chosen]
    return _LOOK.format(items=_ONLY if only else _CHOSEN), (None, names, names, ids)


def group_intake_rows(sessions: Sequence[str], rows: Rows) -> list[Rows]:
    """Groups the rows of `build_intake_select` by session."""
    found: dict[str, list[tuple[Any, ...]]] = {escape_nul(each): [] for each in sessions}
    for row in rows:
        found[row[0]].append(row)
    return [found[escape_nul(each)] for each in sessions]


def is_intake_locked(rows: Rows, heads: Rows, leases: Rows) -> bool:
    """Whether the rows of `build_intake_select` cannot change any more; `heads` and `leases` are
    what `build_lock_statements` read.
    """
    if not rows:
        return False
    _, ref, _, _, lease, *_ = rows[0]
    return (ref,) in heads and (lease is None or (ref,) in leases)


def read_intake(
    session_id: str,
    rows: Rows,
    time: Callable[[], float] | None,
    chosen: Sequence[str] | None,
    *,
    only: bool = False,
) -> tuple[int, Intake]:
    """The session's number and its intake; raises one of `UNREADABLE`, or `BadValue`, if a row is
    damaged.
    """
    _, ref, state, now, *first = rows[0]
    held = tuple(first[: len(LEASE_COLUMNS)])
    lease, seq = (None, 0) if held[0] is None else read_lease(_told_lease(held))
    items = [
        decode_item(row[-len(ITEM_COLUMNS) :])
        for row in rows
        if row[-len(ITEM_COLUMNS)] is not None
    ]
    at = now if time is None else time()
    return ref, Intake(session_id, at, lease, seq, items, SessionState(state), chosen, only=only)


async def write_intakes(
    line: PgConnection, schema: str, intakes: Mapping[int, Intake], more: Iterable[Statement]
) -> None:
    """Writes the changes, runs the remaining statements, and ends the transaction."""
    try:
        await send_statements(line, schema, [*_writes(intakes), *more, ("COMMIT", ())])
    except psycopg.errors.UniqueViolation as error:
        if error.diag.table_name != "item":
            raise
        raise BadArguments("intake", "the id was already used") from None


def _writes(intakes: Mapping[int, Intake]) -> Iterator[Statement]:
    leases = [_named_lease(ref, intake) for ref, intake in intakes.items() if intake.moved]
    items = []
    for ref, intake in intakes.items():
        for id, item in intake.written.items():
            if item is None:
                yield (
                    "DELETE FROM everhold.item WHERE session = %s AND id = %s",
                    (ref, escape_nul(id)),
                )
            else:
                items.append(_named_item(ref, id, item))
    texts = [msgspec.json.encode(rows).decode() for rows in (leases, items) if rows]
    if leases and items:
        yield _WRITE_BOTH, tuple(texts)
    elif texts:
        yield _WRITE_LEASES if leases else _WRITE_ITEMS, tuple(texts)


def _named_item(ref: int, id: str, item: IntakeItem) -> dict[str, Any]:
    seq, _, key, *rest = make_item_row(item)
    row = (seq, escape_nul(id), None if key is None else escape_nul(key), *rest)
    return {"session": ref, **dict(zip(ITEM_COLUMNS, row, strict=True))}


def _named_lease(ref: int, intake: Intake) -> dict[str, Any]:
    lease = make_lease_row(intake.lease, intake.seq)
    row = (lease[0], *map(escape_nul, lease[1:4]), *lease[4:])
    return {"session": ref, **dict(zip(LEASE_COLUMNS, row, strict=True))}


async def find_intake_problems(say: RunQuery) -> list[StoreProblem]:
    """Yields the problems of intakes and duties."""
    names = {
        ref: unescape_nul(id)
        for ref, id in await say("SELECT ref, id FROM everhold.session WHERE deleted = 0")
    }
    leases = {
        row[0]: _told_lease(row[1:])
        for row in await say(f"SELECT session, {_LEASE} FROM everhold.lease")
    }
    items: dict[int, list[tuple[Any, ...]]] = {}
    async for ref, *row in iterate_with_turns(
        await say(f"SELECT session, {_ITEM} FROM everhold.item ORDER BY session, seq")
    ):
        items.setdefault(ref, []).append(_told_row(tuple(row)))
    found = [
        StoreProblem("", f"dangling_{table}", f"rows of session number {ref}, which does not exist")
        for table, refs in (("item", items), ("lease", leases))
        for ref in refs
        if ref not in names
    ]
    async for ref in iterate_with_turns(leases.keys() | items.keys()):
        found += [
            StoreProblem(names.get(ref, ""), *flaw)
            for flaw in find_intake_flaws(leases.get(ref), items.get(ref, ()))
        ]
    async for one in iterate_with_turns(
        await say(f"SELECT {', '.join(DUTY_COLUMNS)} FROM everhold.duty")
    ):
        try:
            decode_duty(one)
        except (BadValue, *UNREADABLE) as error:
            found.append(StoreProblem("", "broken_seal", str(error)))
    return found


def decode_duty(row: tuple[Any, ...]) -> Duty:
    """Decodes a duty; raises one of `UNREADABLE`, or `BadValue`, if it is damaged."""
    return read_duty((unescape_nul(row[0]), unescape_nul(row[1]), *row[2:]))


async def send_statements(line: PgConnection, schema: str, acts: Iterable[Statement]) -> list[Rows]:
    """Sends statements in one go and returns the rows of each."""
    async with line.pipeline():
        cursors = [
            await line.execute(qualify_schema(statement, schema), values)
            for statement, values in acts
        ]
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def decode_item(row: tuple[Any, ...]) -> IntakeItem:
    """Decodes an item; raises one of `UNREADABLE`, or `BadValue`, if it is damaged."""
    return read_item(_told_row(row))


def _told_row(row: tuple[Any, ...]) -> tuple[Any, ...]:
    seq, id, key, *rest = row
    return (seq, unescape_nul(id), None if key is None else unescape_nul(key), *rest)


def _told_lease(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0], *map(unescape_nul, row[1:4]), *row[4:])


# ---- leases and duties


def find_last_holder(intakes: Iterable[Intake]) -> str:
    """The last lease holder of these sessions if it is the same one for all, otherwise empty."""
    holders = {"" if one.lease is None else one.lease.owner.incarnation for one in intakes}
    return holders.pop() if len(holders) == 1 else ""


def make_owner_values(owner: LeaseOwner) -> tuple[str, str]:
    return escape_nul(owner.incarnation), escape_nul(owner.name)


def build_duty_statement(duty: Duty) -> Statement:
    """The statement that writes a duty and returns 1 if its version was unchanged."""
    kind = escape_nul(duty.kind)
    id = escape_nul(duty.id)
    version = duty.version
    if duty.body is None and version == 0:
        return (
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM everhold.duty WHERE kind = %s AND id = %s)",
            (kind, id),
        )
    if duty.body is None:
        return f"DELETE FROM everhold.duty WHERE {_AS_IT_WAS} RETURNING 1", (kind, id, version)
    row = make_duty_row(duty)
    if version == 0:
        marks = ", ".join(["%s"] * len(DUTY_COLUMNS))
        insert = (
            f"INSERT INTO everhold.duty ({_DUTY}) VALUES ({marks}) ON CONFLICT DO NOTHING"
            " RETURNING 1"
        )
        return insert, (kind, id, *row[2:])
    update = "UPDATE everhold.duty SET body = %s, due_at = %s, version = %s, seal = %s"
    return f"{update} WHERE {_AS_IT_WAS} RETURNING 1", (*row[2:], kind, id, version)
