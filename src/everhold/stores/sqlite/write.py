"""The commit of one step in SQLite: its statements, inside a transaction that `group_commit` began.

Rules
  1. Compare-and-set first: a change computed from an old revision touches nothing.
  2. A column named in SET rewrites its index even if unchanged, so a light change has its own
     UPDATE.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, checksum_row, dumps
from everhold.core.journal import Delivery
from everhold.core.journal import checksum_delivery as delivery_seal
from everhold.core.session import Birth, Head, SessionState
from everhold.errors import KeyConflict, Overtaken
from everhold.ports.store import Change, Letter, ValueWrite
from everhold.stores.row_codec import (
    checksum_head,
    checksum_mark,
    encode_birth,
    encode_failed_attempt,
    read_head,
)
from everhold.stores.sqlite import intake_rows, lineage

#: The UPDATE of a light change. It names no indexed column (rule 2).
LIGHT: Final = (
    "UPDATE head_2 SET revision = ?, n = ?, open_from = ?, updated_at = ?, metrics = ?, seal = ?"
    " WHERE ref = ? AND revision = ?"
)
FULL: Final = (
    "UPDATE head_2 SET revision = ?, n = ?, open_from = ?, updated_at = ?, metrics = ?, seal = ?,"
    " state = ?, due_at = ?, mail = ?, attempts = ?, parked = ?, asking = ? WHERE ref = ? AND"
    " revision = ?"
)
DELIVER: Final = (
    "INSERT INTO journal (session, n, at, answers, asked, notes, seal) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_HEAD: Final = (
    "INSERT INTO head_2 (ref, revision, state, n, open_from, due_at, updated_at, metrics, mail,"
    " attempts, seal, parked, asking, created_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SESSION: Final = (
    "INSERT INTO session (id, key, program, created_at, parent, origin, origin_n, birth, seal)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LABEL: Final = "INSERT INTO label (name, value, created_at, session) VALUES (?, ?, ?, ?)"
_NOTICE: Final = (
    "INSERT OR REPLACE INTO notice (session, q, kind, addressee, asked_at, query, seal, created_at)"
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, (SELECT created_at FROM head_2 WHERE ref = ?1))"
)
_EFFECT: Final = (
    "INSERT OR REPLACE INTO effect (session, q, worker, since, failed, seal)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)

_text = msgspec.json.Encoder().encode


def make_light_row(head: Head, fence: int) -> tuple[Any, ...]:
    metrics = _text(head.metrics)
    sealed = checksum_head(head, metrics)
    return (
        head.revision,
        head.n,
        head.open_from,
        head.updated_at,
        metrics.decode(),
        sealed,
        head.ref,
        fence,
    )


def make_delivery_row(ref: int, delivery: Delivery) -> tuple[Any, ...]:
    n = delivery.n
    at = delivery.at
    answers = _text(delivery.answers)
    asked = _text(delivery.asked)
    if delivery.notes is None:
        return (
            ref,
            n,
            at,
            answers.decode(),
            asked.decode(),
            None,
            delivery_seal(n, at, answers, asked, None),
        )
    notes = _text(delivery.notes)
    sealed = delivery_seal(n, at, answers, asked, notes)
    return ref, n, at, answers.decode(), asked.decode(), notes.decode(), sealed


def write_change(run: Any, change: Change, fence: int, now: Callable[[], float]) -> None:
    """Writes one change; raises `Overtaken` or `KeyConflict` if it is refused."""
    head = change.head
    if change.birth is not None:
        head.ref = _bear(run, change.birth, head)
    elif change.light:
        if run(LIGHT, make_light_row(head, fence)).rowcount != 1:
            raise Overtaken(change.id, fence)
    else:
        _move(run, change.id, head, fence)
    for delivery in change.deliveries:
        run(DELIVER, make_delivery_row(head.ref, delivery))
    if not change.light:
        _land_rest(run, change, head)
        if change.intake is not None:
            intake = intake_rows.read_intake(
                run, head.ref, change.id, head.state, now(), change.named
            )
            change.intake(intake)
            intake_rows.write_intake(run, head.ref, intake)


def _move(run: Any, session_id: str, head: Head, fence: int) -> None:
    light = make_light_row(head, fence)
    row = (
        *light[:6],
        head.state.value,
        head.due_at,
        head.mail,
        head.attempts,
        int(head.parked),
        int(head.asking),
        *light[6:],
    )
    if run(FULL, row).rowcount != 1:
        raise Overtaken(session_id, fence)


def _land_rest(run: Any, change: Change, head: Head) -> None:
    ref = head.ref
    if head.ended:
        run("DELETE FROM notice WHERE session = ?", (ref,))
        run("DELETE FROM effect WHERE session = ?", (ref,))
    for q in change.closed:
        run("DELETE FROM notice WHERE session = ? AND q = ?", (ref, q))
        run("DELETE FROM effect WHERE session = ? AND q = ?", (ref, q))
    for notice in change.notices:
        row = (
            ref,
            notice.q,
            notice.kind.value,
            notice.to,
            float(notice.asked_at),
            dumps(notice.query),
        )
        run(_NOTICE, (*row, checksum_row(*row)))
    for effect in change.effects:
        failed = encode_failed_attempt(effect.failed)
        mark = (ref, effect.q, effect.worker, float(effect.since), failed)
        run(_EFFECT, (*mark, checksum_mark(*mark)))
    for letter_id in change.read:
        run("DELETE FROM letter WHERE id = ? AND session = ?", (letter_id, ref))
    for birth, born in change.births:
        born.ref = _bear(run, birth, born)
    for letter in change.letters:
        _post(run, letter, ref)
    for write in change.writes:
        _write(run, write, change)


def _bear(run: Any, birth: Birth, head: Head) -> int:
    origin, source = (
        (None, None)
        if birth.origin is None
        else lineage.find_fork_source(run, birth.origin, birth.origin_n)
    )
    text = encode_birth(birth, source)
    created = float(birth.created_at)
    row = (
        birth.id,
        birth.key,
        birth.program,
        created,
        birth.parent,
        origin,
        birth.origin_n,
        text,
        checksum_row(text),
    )
    try:
        ref: int = run(_SESSION, row).lastrowid
    except sqlite3.IntegrityError:
        owner = run("SELECT id FROM session WHERE key = ?", (birth.key,)).fetchone()
        if owner is not None and owner[0] != birth.id:
            raise KeyConflict(birth.key or "", owner[0]) from None
        raise Overtaken(birth.id, 0) from None
    metrics = _text(head.metrics)
    values = (
        ref,
        head.revision,
        head.state.value,
        head.n,
        head.open_from,
        head.due_at,
        head.updated_at,
    )
    rest = head.mail, head.attempts, checksum_head(head, metrics), int(head.parked)
    run(_HEAD, (*values, metrics.decode(), *rest, int(head.asking), created))
    for name, value in birth.labels.items():
        run(_LABEL, (name, value, created, ref))
    return ref


def _post(run: Any, letter: Letter, own: int) -> None:
    """Puts a letter into the intake of this session or of another one, which then becomes ready."""
    ref = own
    if letter.to is not None:
        found = run(
            f"SELECT {HEAD_COLUMNS} FROM head_2 h JOIN session s ON s.ref = h.ref WHERE s.id = ?",
            (letter.to,),
        )
        row = found.fetchone()
        if row is None:
            return
        head = read_head(row)
        if head.ended:
            return
        ref = head.ref
        fence = head.revision
        head.revision = fence + 1
        head.mail = head.mail + 1
        head.state = SessionState.RUNNING
        _move(run, letter.to, head, fence)
    body = dumps(letter.body)
    at = float(letter.at)
    run(
        "INSERT INTO letter (session, kind, body, at, seal) VALUES (?, ?, ?, ?, ?)",
        (ref, letter.kind, body, at, checksum_row(letter.kind, body, at)),
    )


def _write(run: Any, write: ValueWrite, change: Change) -> None:
    value = None if write.value is None else dumps(write.value)
    version = write.version + 1
    sealed = checksum_row(write.namespace, write.key, value, version)
    if write.version == 0:
        statement = (
            "INSERT INTO value (value, version, seal, namespace, key) VALUES (?, ?, ?,"
            " ?, ?) ON CONFLICT DO NOTHING"
        )
        done = run(statement, (value, version, sealed, write.namespace, write.key))
    else:
        statement = (
            "UPDATE value SET value = ?, version = ?, seal = ? WHERE namespace = ? AND"
            " key = ? AND version = ?"
        )
        done = run(statement, (value, version, sealed, write.namespace, write.key, write.version))
    if done.rowcount != 1:
        raise Overtaken(change.id, change.head.revision - 1)


def write_value(run: Any, namespace: str, key: str, value: JSON) -> None:
    """Writes a durable value outside of a step, without comparing versions."""
    row = run(
        "SELECT version FROM value WHERE namespace = ? AND key = ?", (namespace, key)
    ).fetchone()
    text = dumps([value])
    version = (row[0] if row is not None else 0) + 1
    run(
        "INSERT OR REPLACE INTO value (value, version, seal, namespace, key) VALUES (?, ?, ?, ?,"
        " ?)",
        (text, version, checksum_row(namespace, key, text, version), namespace, key),
    )


HEAD_COLUMNS: Final = (
    "h.ref, h.revision, h.state, h.n, h.open_from, h.due_at, h.updated_at, h.metrics, h.mail,"
    " h.attempts, h.seal, h.parked, h.asking"
)
