"""Rows that forks share with their sources, deliveries and attachments, and what a deletion keeps.

The column `session.origin` is the source of a fork: the session that has its deliveries up to
`origin_n`. That is the session it was forked from or, if that session has no delivery of its own up
to `origin_n`, the source of that session. So every session in a chain of sources contributes
deliveries, and a fork of a fork costs no more than a fork. Chains that older versions wrote contain
sessions that contribute nothing; they are read in the same way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, Final

from everhold.core.session import SessionId
from everhold.errors import UnknownSession
from everhold.ports.attachment import Attachment
from everhold.ports.store import StoreProblem

Run = Callable[..., sqlite3.Cursor]

# `UNION`, not `UNION ALL`: it terminates even when damage made a chain circular.
_SOURCE: Final = """
WITH RECURSIVE chain (ref, id, origin, origin_n) AS (
  SELECT ref, id, origin, origin_n FROM session WHERE id = :origin AND deleted = 0
  UNION
  SELECT s.ref, s.id, s.origin, s.origin_n FROM chain JOIN session s ON s.ref = chain.origin
  WHERE chain.origin_n >= :origin_n
)
SELECT ref, id FROM chain WHERE origin IS NULL OR origin_n < :origin_n
"""
_SPANS: Final = """
WITH RECURSIVE chain (ref, after, upto, origin) AS (
  SELECT ref, origin_n, 9223372036854775807, origin FROM session WHERE ref = :ref
  UNION
  SELECT s.ref, s.origin_n, min(chain.upto, chain.after), s.origin FROM chain JOIN session s ON s.ref = chain.origin
  WHERE chain.after >= :first
)
SELECT ref, upto FROM chain WHERE after < upto ORDER BY upto
"""  # noqa: E501
#: A session and its sources, each with the step before which its attachments are shared.
_CHAIN: Final = """
WITH RECURSIVE chain (ref, upto, origin, origin_n) AS (
  SELECT ref, 9223372036854775807, origin, origin_n FROM session WHERE ref = ?
  UNION
  SELECT s.ref, min(chain.upto, chain.origin_n), s.origin, s.origin_n FROM chain JOIN session s ON s.ref = chain.origin
)
"""  # noqa: E501
_NEEDED: Final = """
WITH RECURSIVE reader (ref, upto, deleted) AS (
  SELECT ref, origin_n, deleted FROM session WHERE origin = ?
  UNION
  SELECT s.ref, min(reader.upto, s.origin_n), s.deleted FROM reader JOIN session s ON s.origin = reader.ref
  WHERE reader.deleted
)
SELECT coalesce(max(upto), -1) FROM reader WHERE NOT deleted
"""  # noqa: E501


def find_fork_source(run: Run, origin: SessionId, origin_n: int) -> tuple[int, SessionId]:
    """The session from which a new fork reads its deliveries up to `origin_n`: number and id."""
    found = run(_SOURCE, {"origin": origin, "origin_n": origin_n}).fetchone()
    if found is None:
        raise UnknownSession(origin)
    return found[0], SessionId(found[1])


def list_fork_spans(run: Run, ref: int, first: int) -> list[tuple[int, int]]:
    """The sessions that hold a fork's deliveries from `first` on, in order, each with the last one
    it contributes.
    """
    return run(_SPANS, {"ref": ref, "first": first}).fetchall()


def find_last_needed(run: Run, ref: int) -> int:
    """The last delivery of a session that a living fork reads; -1 if there is none."""
    found: int = run(_NEEDED, (ref,)).fetchone()[0]
    return found


def forget_unneeded(run: Run, ref: int | None) -> None:
    """Deletes the rows of a deleted session, and of deleted sources before it, that no living fork
    reads.
    """
    while ref is not None:
        last = find_last_needed(run, ref)
        drop_attachments(run, ref, last)
        run("DELETE FROM journal WHERE session = ? AND n > ?", (ref, last))
        origin_n, before = run(
            "SELECT s.origin_n, o.ref FROM session s LEFT JOIN session o ON o.ref = s.origin AND"
            " o.deleted"
            " WHERE s.ref = ?",
            (ref,),
        ).fetchone()
        run(
            "DELETE FROM session WHERE ref = ? AND NOT EXISTS (SELECT 1 FROM session WHERE"
            " origin = ?)",
            (ref, ref),
        )
        # The source loses a reader only if this session read more of it than its own forks do.
        ref = before if last < origin_n else None


# ---- attachments


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
        f"{_CHAIN} SELECT a.size, a.media_type, b.data FROM chain JOIN attachment a ON a.session"
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
        f"{_CHAIN} SELECT a.blob, a.size, a.media_type FROM chain JOIN attachment a ON a.session"
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
