"""Rows that forks share with their sources, deliveries and attachments, and what a deletion keeps.

Attaching and deleting exclude each other through the advisory lock of the garbage collection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final

from everhold.ports.attachment import Attachment
from everhold.ports.store import StoreProblem
from everhold.stores.postgres.address import escape_nul, unescape_nul
from everhold.stores.postgres.schema import LOCKS, make_lock_number

#: Runs a statement on a connection and returns its rows.
RunQuery = Callable[..., Awaitable[list[tuple[Any, ...]]]]

#: Where a new fork reads its shared deliveries, by id: its origin or, if that session has no
#: delivery of its own up to this number, the source of its origin. So every session in a chain of
#: sources contributes deliveries.
SOURCE: Final = (
    "WITH RECURSIVE chain (id, origin, origin_n) AS (SELECT id, origin, origin_n FROM"
    " everhold.session"
    " WHERE id = %s AND deleted = 0 UNION SELECT s.id, s.origin, s.origin_n FROM chain c"
    " JOIN everhold.session s ON s.ref = c.origin WHERE c.origin_n >= %s)"
    " SELECT id FROM chain WHERE origin IS NULL OR origin_n < %s"
)
#: The last delivery of a session that a living fork reads, directly or through deleted forks.
_NEEDED: Final = (
    "WITH RECURSIVE reader (ref, upto, deleted) AS (SELECT ref, origin_n, deleted FROM"
    " everhold.session"
    " WHERE origin = %s UNION SELECT s.ref, least(r.upto, s.origin_n), s.deleted FROM reader r"
    " JOIN everhold.session s ON s.origin = r.ref WHERE r.deleted = 1)"
    " SELECT coalesce(max(upto), -1) FROM reader WHERE deleted = 0"
)
#: A session and its sources (see `SOURCE`), each with the step before which its
#: attachments are shared.
_CHAIN: Final = (
    "WITH RECURSIVE chain (ref, upto, origin, origin_n) AS ("
    " SELECT ref, 9223372036854775807::int8, origin, origin_n FROM everhold.session WHERE ref ="
    " %s UNION ALL"
    " SELECT s.ref, least(chain.upto, chain.origin_n), s.origin, s.origin_n FROM chain"
    " JOIN everhold.session s ON s.ref = chain.origin)"
)


async def lock_lineage(say: RunQuery, schema: str, *, shared: bool = False) -> None:
    """Takes the lock of the garbage collection until the transaction ends.

    Only one process at a time may decide what a chain of forks shares. `shared` is for adding.
    """
    lock = "pg_advisory_xact_lock_shared" if shared else "pg_advisory_xact_lock"
    await say(f"SELECT {lock}(%s::int, %s::int)", LOCKS, make_lock_number(f"{schema} gc"))


async def find_last_needed(say: RunQuery, ref: int) -> int:
    """The last delivery of a session that a living fork reads; -1 if there is none."""
    needed: int = (await say(_NEEDED, ref))[0][0]
    return needed


async def count_kept_deliveries(say: RunQuery, session_id: str) -> int:
    """Number of deliveries that are kept of a deleted session."""
    rows = await say(
        "SELECT count(*) FROM everhold.journal j JOIN everhold.session s ON s.ref = j.session"
        " WHERE s.id = %s",
        escape_nul(session_id),
    )
    kept: int = rows[0][0]
    return kept


async def forget_unneeded(say: RunQuery, ref: int | None) -> None:
    """Deletes the rows of a deleted session, and of deleted sources before it, that no living fork
    reads.
    """
    while ref is not None:
        last = await find_last_needed(say, ref)
        await drop_attachments(say, ref, last)
        await say("DELETE FROM everhold.journal WHERE session = %s AND n > %s", ref, last)
        # The source loses a reader only if this session read more of it than its own forks do.
        before = await say(
            "SELECT o.ref FROM everhold.session s JOIN everhold.session o ON o.ref = s.origin"
            " WHERE s.ref = %s AND s.origin_n > %s AND o.deleted = 1",
            ref,
            last,
        )
        await say(
            "DELETE FROM everhold.session s WHERE ref = %s"
            " AND NOT EXISTS (SELECT 1 FROM everhold.session WHERE origin = s.ref)",
            ref,
        )
        ref = before[0][0] if before else None


# ---- attachments


async def insert_attachment(
    say: RunQuery, ref: int, n: int, made: Attachment, data: bytes, at: float
) -> None:
    await say(
        "INSERT INTO everhold.blob (id, data) VALUES (%s, %s) ON CONFLICT DO NOTHING", made.id, data
    )
    await say(
        "INSERT INTO everhold.attachment (session, blob, n, media_type, size, at) VALUES (%s,"
        " %s, %s, %s, %s, %s)"
        " ON CONFLICT DO NOTHING",
        ref,
        made.id,
        n,
        escape_nul(made.media_type),
        made.size,
        at,
    )


async def select_attachment(say: RunQuery, ref: int, id: str) -> tuple[Attachment, bytes] | None:
    """Reads an attachment that the session owns or shares; raises `ValueError` if it is damaged."""
    rows = await say(
        f"{_CHAIN} SELECT a.size, a.media_type, b.data FROM chain JOIN everhold.attachment a ON"
        " a.session = chain.ref"
        " AND a.blob = %s AND a.n < chain.upto JOIN everhold.blob b ON b.id = a.blob LIMIT 1",
        ref,
        escape_nul(id),
    )
    if not rows:
        return None
    size, media_type, data = rows[0]
    if sha256(data).hexdigest() != id:
        raise ValueError(f"attachment {id} does not match its name")
    return Attachment(id, size, unescape_nul(media_type)), bytes(data)


async def list_attachments(say: RunQuery, ref: int) -> list[Attachment]:
    rows = await say(
        f"{_CHAIN} SELECT a.blob, min(a.size), min(a.media_type) FROM chain JOIN"
        " everhold.attachment a"
        " ON a.session = chain.ref AND a.n < chain.upto GROUP BY a.blob ORDER BY min(a.at), a.blob",
        ref,
    )
    return [Attachment(blob, size, unescape_nul(media_type)) for blob, size, media_type in rows]


async def drop_attachments(say: RunQuery, ref: int, needed: int) -> None:
    """Deletes attachments of a deleted session that no fork reads, and bytes that no row
    refers to.
    """
    gone = await say(
        "DELETE FROM everhold.attachment WHERE session = %s AND n >= %s RETURNING blob", ref, needed
    )
    if gone:
        await say(
            "DELETE FROM everhold.blob b WHERE id = ANY(%s)"
            " AND NOT EXISTS (SELECT 1 FROM everhold.attachment WHERE blob = b.id)",
            [blob for (blob,) in gone],
        )


async def find_attachment_problems(say: RunQuery) -> list[StoreProblem]:
    """Yields bytes that do not match their name, and rows that refer to missing bytes."""
    broken = await say(
        "SELECT id FROM everhold.blob WHERE encode(sha256(data), 'hex') <> id ORDER BY id"
    )
    loose = await say(
        "SELECT a.session, a.blob FROM everhold.attachment a LEFT JOIN everhold.session s ON"
        " s.ref = a.session"
        " WHERE s.ref IS NULL ORDER BY a.session, a.blob"
    )
    return [StoreProblem("", "broken_seal", f"attachment {id}") for (id,) in broken] + [
        StoreProblem("", "dangling_attachment", f"{blob} of session number {ref}")
        for ref, blob in loose
    ]
