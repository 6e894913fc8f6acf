"""Attachment rows in PostgreSQL: what a session may read, and when the bytes are deleted.

Attaching and deleting exclude each other through the advisory lock of the garbage collection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final

from everhold.ports.attachment import Attachment
from everhold.ports.store import StoreProblem
from everhold.stores.postgres.address import escape_nul, unescape_nul

#: Runs a statement on a connection and returns its rows.
RunQuery = Callable[..., Awaitable[list[tuple[Any, ...]]]]

#: A session and its sources (see `SOURCE` in write.py), each with the step before which its
#: attachments are shared.
_CHAIN: Final = (
    "WITH RECURSIVE chain (ref, upto, origin, origin_n) AS ("
    " SELECT ref, 9223372036854775807::int8, origin, origin_n FROM everhold.session WHERE ref ="
    " %s UNION ALL"
    " SELECT s.ref, least(chain.upto, chain.origin_n), s.origin, s.origin_n FROM chain"
    " JOIN everhold.session s ON s.ref = chain.origin)"
)


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
