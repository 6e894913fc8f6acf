"""Intake and duty rows in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from everhold.core.codec import dumps
from everhold.core.intake import Intake
from everhold.core.lease import LeaseOwner
from everhold.core.session import SessionId, SessionState
from everhold.errors import BadArguments, BadValue, Overtaken
from everhold.ports.store import Duty, SessionFingerprint, StoreProblem
from everhold.stores.listing import build_prefix_condition
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

Run = Callable[..., sqlite3.Cursor]
T = TypeVar("T")

_ITEM = ", ".join(ITEM_COLUMNS)
_LEASE = ", ".join(LEASE_COLUMNS)
_DUTY = ", ".join(DUTY_COLUMNS)


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def read_intake(
    run: Run,
    ref: int,
    session_id: str,
    state: SessionState,
    now: float,
    named: Sequence[str],
    *,
    whole: bool = False,
    only: bool = False,
) -> Intake:
    """Reads the intake of one session; raises `ValueError` if a row is damaged."""
    found = run(f"SELECT {_LEASE} FROM lease WHERE session = ?", (ref,)).fetchone()
    lease, seq = (None, 0) if found is None else read_lease(found)
    rows = [] if found is None else _items(run, ref, named, whole, only)
    return Intake(
        session_id,
        now,
        lease,
        seq,
        map(read_item, rows),
        state,
        None if whole else named,
        only=only,
    )


def _items(run: Run, ref: int, named: Sequence[str], whole: bool, only: bool) -> list[Any]:
    """Item rows. Ended items are only looked up by name, because there may be many."""
    of = f"SELECT {_ITEM} FROM item WHERE session = ?"
    if whole:
        return run(of, (ref,)).fetchall()
    each: list[str] = []
    values: list[Any] = []
    if not only:  # without the hint SQLite reads and filters all rows of the session
        each.append(
            f"SELECT {_ITEM} FROM item INDEXED BY item_open WHERE session = ? AND state = 'waiting'"
        )
        values.append(ref)
    if named:
        each += [f"{of} AND {name} IN ({_marks(len(named))})" for name in ("id", "key")]
        values += [ref, *named] * 2
    return run(" UNION ".join(each), values).fetchall() if each else []


def write_intake(run: Run, ref: int, intake: Intake) -> None:
    """Writes the changed rows of an intake."""
    if intake.moved:
        row = make_lease_row(intake.lease, intake.seq)
        run(
            f"INSERT OR REPLACE INTO lease (session, {_LEASE}) VALUES"
            f" ({_marks(len(LEASE_COLUMNS) + 1)})",
            (ref, *row),
        )
    for id, item in intake.written.items():
        if item is None:
            run("DELETE FROM item WHERE session = ? AND id = ?", (ref, id))
        else:
            _put(run, (ref, *make_item_row(item)))


def _put(run: Run, row: tuple[Any, ...]) -> None:
    changed = ", ".join(f"{name} = excluded.{name}" for name in CHANGING_COLUMNS)
    upsert = (
        f"INSERT INTO item (session, {_ITEM}) VALUES ({_marks(len(row))}) ON CONFLICT"
        " (session, seq) DO UPDATE"
    )
    try:
        run(f"{upsert} SET {changed}", row)
    except sqlite3.IntegrityError:
        raise BadArguments("intake", f"the id {row[2]!r} was already used") from None


def select_fingerprints(
    run: Run, sessions: Sequence[str], now: float
) -> dict[SessionId, SessionFingerprint]:
    rows = run(
        "SELECT s.id, h.revision, coalesce(l.seq, 0), CASE WHEN l.seq IS NULL THEN 0 ELSE"
        " (SELECT count(*) FROM item"
        " INDEXED BY item_open WHERE session = s.ref AND state = 'waiting' AND available_at <="
        " ?) END"
        " FROM json_each(?) e CROSS JOIN session s ON s.id = e.value JOIN head_2 h ON h.ref = s.ref"
        " LEFT JOIN lease l ON l.session = s.ref WHERE s.deleted = 0",
        (now, dumps(list(sessions))),
    )
    return {SessionId(row[0]): SessionFingerprint(*row[1:]) for row in rows}


def extend_leases(run: Run, owner: LeaseOwner, ttl: float, now: float) -> list[SessionId]:
    mine = "incarnation = ? AND owner = ? AND released = 0 AND expires_at > ?"
    given = (owner.incarnation, owner.name, now)
    rows = run(
        f"SELECT s.id FROM lease l JOIN session s ON s.ref = l.session WHERE {mine}", given
    ).fetchall()
    run(f"UPDATE lease SET expires_at = max(expires_at, ?) WHERE {mine}", (now + ttl, *given))
    return [SessionId(row[0]) for row in rows]


def release_leases(run: Run, owner: LeaseOwner) -> None:
    mine = "incarnation = ? AND owner = ? AND released = 0"
    run(f"UPDATE lease SET released = 1 WHERE {mine}", (owner.incarnation, owner.name))


# ---- duties


def select_duty(run: Run, kind: str, id: str) -> Duty | None:
    row = run(f"SELECT {_DUTY} FROM duty WHERE kind = ? AND id = ?", (kind, id)).fetchone()
    return None if row is None else read_duty(row)


def select_duties(
    run: Run, kind: str, due: float | None, prefix: str, after: str, limit: int
) -> Iterator[Duty]:
    if due is not None:
        rows = run(
            f"SELECT {_DUTY} FROM duty WHERE kind = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?",
            (kind, due, limit),
        )
    else:
        named, bounds = build_prefix_condition("id", prefix)
        rows = run(
            f"SELECT {_DUTY} FROM duty WHERE kind = ? AND {named} AND id > ? ORDER BY id LIMIT ?",
            (kind, *bounds, after, limit),
        )
    return map(read_duty, rows.fetchall())


def write_duties(run: Run, given: Sequence[Duty]) -> None:
    """Writes duties; raises `Overtaken` if one was computed from an older version."""
    for one in given:
        if one.body is None and one.version == 0:
            done = run(
                "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM duty WHERE kind = ? AND id = ?)",
                (one.kind, one.id),
            )
            if done.fetchone():
                continue
        elif one.body is None:
            done = run(
                "DELETE FROM duty WHERE kind = ? AND id = ? AND version = ?",
                (one.kind, one.id, one.version),
            )
        elif one.version == 0:
            row = make_duty_row(one)
            done = run(
                f"INSERT INTO duty ({_DUTY}) VALUES ({_marks(len(DUTY_COLUMNS))}) ON CONFLICT DO"
                " NOTHING",
                row,
            )
        else:
            row = (*make_duty_row(one)[2:], one.kind, one.id, one.version)
            changed = "UPDATE duty SET body = ?, due_at = ?, version = ?, seal = ?"
            done = run(f"{changed} WHERE kind = ? AND id = ? AND version = ?", row)
        if done.rowcount != 1:
            raise Overtaken(f"{one.kind}/{one.id}", one.version)


def select_next_duty(run: Run, after: float) -> float | None:
    # One query per kind: the index of due duties starts with the kind and would be scanned
    # otherwise.
    found: float | None = run(
        "WITH RECURSIVE k (kind) AS (SELECT min(kind) FROM duty WHERE due_at IS NOT NULL UNION"
        " ALL SELECT"
        " (SELECT min(kind) FROM duty WHERE kind > k.kind AND due_at IS NOT NULL) FROM k WHERE"
        " k.kind IS NOT NULL)"
        " SELECT min(at) FROM (SELECT (SELECT min(due_at) FROM duty WHERE kind = k.kind AND"
        " due_at > ?) AS at FROM k"
        " UNION ALL SELECT min(available_at) FROM item WHERE state = 'waiting' AND available_at"
        " > ?)",
        (after, after),
    ).fetchone()[0]
    return found


def find_intake_problems(run: Run) -> Iterator[StoreProblem]:
    """Yields the problems of intakes and duties."""
    names = dict(run("SELECT ref, id FROM session WHERE deleted = 0").fetchall())
    for table in ("item", "lease"):
        for (ref,) in run(f"SELECT DISTINCT session FROM {table}").fetchall():
            if ref not in names:
                yield StoreProblem(
                    "", f"dangling_{table}", f"rows of session number {ref}, which does not exist"
                )
    leases = {row[0]: row[1:] for row in run(f"SELECT session, {_LEASE} FROM lease").fetchall()}
    for (ref,) in run("SELECT session FROM lease UNION SELECT session FROM item").fetchall():
        rows = run(f"SELECT {_ITEM} FROM item WHERE session = ? ORDER BY seq", (ref,)).fetchall()
        yield from (
            StoreProblem(names.get(ref, ""), *flaw)
            for flaw in find_intake_flaws(leases.get(ref), rows)
        )
    for row in run(f"SELECT {_DUTY} FROM duty").fetchall():
        try:
            read_duty(row)
        except (BadValue, *UNREADABLE) as error:
            yield StoreProblem("", "broken_seal", str(error))
