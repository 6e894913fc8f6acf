"""Attachment rows in SQLite: what a session may read, and when the bytes are deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from everhold.ports.attachment import Attachment
from everhold.ports.store import StoreProblem

Run = Callable[..., sqlite3.Cursor]

#: A session and its sources (see lineage.py), each with the step before which its attachments are
#: shared.
CHAIN = """
WITH RECURSIVE chain (ref, upto, origin, origin_n) AS (
  SELECT ref, 9223372036854775807, origin, origin_n FROM session WHERE ref = ?
  UNION
  SELECT s.ref, min(chain.upto, chain.origin_n), s.origin, s.origin_n FROM chain JOIN session s ON s.ref = chain.origin
)
"""  # noqa: E501


def insert_attachment(run: Run, ref: int, n: int, made: Attachment, data: bytes, at: float) -> None:
    run("INSERT INTO blob (id, data) VALUES (?, ?) ON CONFLICT DO NOTHING", (made.id, data))
    run(
        "INSERT INTO attachment (session, blob, n, media_type, size, at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (ref, made.id, n, made.media_type, made.size, at),
    )


def select_attachment(run: Run, ref: int, id: str) -> tuple[Attachment, bytes] | None:
    """Reads an attachment that the session owns or shares; raises `ValueError` if it is damaged."""
    row = run(
        f"{CHAIN} SELECT a.size, a.media_type, b.data FROM chain JOIN attachment a ON a.session"
        " = chain.ref"
        " AND a.blob = ? AND a.n < chain.upto JOIN blob b ON b.id = a.blob LIMIT 1",
        (ref, id),
    ).fetchone()
    if row is None:
        return None
    if sha256(row[2]).hexdigest() != id:
        raise ValueError(f"attachment {id} does not match its name")
    return Attachment(id, row[0], row[1]), row[2]


def list_attachments(run: Run, ref: int) -> list[Attachment]:
    rows = run(
        f"{CHAIN} SELECT a.blob, a.size, a.media_type FROM chain JOIN attachment a ON a.session"
        " = chain.ref"
        " AND a.n < chain.upto GROUP BY a.blob ORDER BY min(a.at), a.blob",
        (ref,),
    )
    return [Attachment(*row) for row in rows]


def drop_attachments(run: Run, ref: int, needed: int) -> None:
    """Deletes attachments of a deleted session that no fork reads, and bytes that no row
    refers to.
    """
    gone = run("SELECT blob FROM attachment WHERE session = ? AND n >= ?", (ref, needed)).fetchall()
    run("DELETE FROM attachment WHERE session = ? AND n >= ?", (ref, needed))
    for (blob,) in gone:
        run(
            "DELETE FROM blob WHERE id = ? AND NOT EXISTS (SELECT 1 FROM attachment WHERE blob ="
            " ?)",
            (blob, blob),
        )


def find_attachment_problems(connection: sqlite3.Connection) -> Iterator[StoreProblem]:
    """Yields bytes that do not match their name, and rows that refer to missing bytes."""
    for id, data in connection.execute("SELECT id, data FROM blob"):
        if not isinstance(data, bytes) or sha256(data).hexdigest() != id:
            yield StoreProblem("", "broken_seal", f"attachment {id}")
    loose: Any = connection.execute(
        "SELECT session, blob FROM attachment WHERE session NOT IN (SELECT ref FROM session)"
        " OR blob NOT IN (SELECT id FROM blob)"
    )
    for ref, blob in loose.fetchall():
        yield StoreProblem("", "dangling_attachment", f"{blob} of session number {ref}")
