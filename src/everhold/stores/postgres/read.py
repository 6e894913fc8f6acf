"""The statements of a store's reading verbs, and the decoding of their rows. Nothing here
writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from everhold.core.codec import checksum_row, loads
from everhold.core.journal import Delivery, find_open_queries
from everhold.core.metrics import Metrics
from everhold.core.query import ANSWERABLE, NOTICED, Kind, Query
from everhold.core.session import Birth, Head
from everhold.ports.store import FROM_OPEN as OPENED
from everhold.ports.store import (
    FROM_RESTART,
    Effect,
    FoundQuestion,
    InboxPlace,
    Letter,
    SessionFilter,
    SessionRecord,
    place_in_inbox,
)
from everhold.stores import listing
from everhold.stores.postgres.address import escape_nul, unescape_nul
from everhold.stores.postgres.group_commit import HEAD_COLUMNS
from everhold.stores.postgres.intake_rows import NOW
from everhold.stores.postgres.lineage import RunQuery
from everhold.stores.row_codec import read_delivery, read_mark

#: Starts a transaction in which all statements see the same moment.
SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
SESSION: Final = (
    f"SELECT s.birth, s.seal, {HEAD_COLUMNS} FROM everhold.session s JOIN everhold.head_1 h ON"
    " h.ref ="
    " s.ref"
    " WHERE s.id = %s AND s.deleted = 0"
)
#: The deliveries of sessions from a number on, each with the session that reads it, including those
#: of its sources.
_CHAIN: Final = (
    "chain (root, source, since, upto, origin, origin_n) AS ({first} UNION ALL"
    " SELECT c.root, o.ref, c.since, least(c.upto, c.origin_n), o.origin, o.origin_n FROM chain c"
    " JOIN everhold.session o ON o.ref = c.origin WHERE c.origin_n >= c.since)"
)
_STEPS: Final = (
    "chain c JOIN everhold.journal j ON j.session = c.source AND j.n >= c.since AND j.n <= c.upto"
)
_TOP: Final = "9223372036854775807"
# its position in the array of metrics
_BEGUN: Final = Metrics.__struct_fields__.index("begun")
#: What `load` reads at one moment: the index of the wanted session, the part, and the columns of
#: `_PARTS`. Each wanted session has the number of its first delivery, or a negative number that
#: says where to start.
LOAD: Final = (
    "WITH RECURSIVE wanted AS (SELECT w.i, w.since, s.ref, s.birth, s.seal, s.origin, s.origin_n"
    " FROM unnest(%s::text[], %s::int8[]) WITH ORDINALITY AS w (id, since, i)"
    " JOIN everhold.session s ON s.id = w.id AND s.deleted = 0), "
    + _CHAIN.format(
        first=f"SELECT w.i, w.ref, CASE w.since WHEN {OPENED} THEN h.open_from WHEN"
        f" {FROM_RESTART} THEN"
        f" coalesce((h.metrics::json ->> {_BEGUN})::int8, 0) ELSE w.since END, {_TOP}, w.origin,"
        " w.origin_n"
        " FROM wanted w JOIN everhold.head_1 h ON h.ref = w.ref"
    )
    + " SELECT w.i, 0, h.ref, w.birth, h.state, h.metrics, h.due_at, h.updated_at, w.seal,"
    " h.revision, h.n,"
    " h.open_from, h.mail, h.attempts, h.seal, h.parked, h.asking FROM wanted w"
    " JOIN everhold.head_1 h ON h.ref = w.ref UNION ALL"
    " SELECT c.root, 1, j.n, j.answers, j.asked, j.notes, j.at, NULL, j.seal, NULL, NULL, NULL,"
    " NULL, NULL, NULL, NULL, NULL"
    f" FROM {_STEPS} UNION ALL"
    " SELECT w.i, 2, l.id, l.kind, l.body, NULL, l.at, NULL, l.seal, l.session, NULL, NULL,"
    " NULL, NULL, NULL, NULL, NULL"
    " FROM wanted w JOIN everhold.letter l ON l.session = w.ref UNION ALL"
    " SELECT w.i, 3, e.q, e.worker, e.failed, NULL, e.since, NULL, e.seal, e.session, NULL, NULL,"
    " NULL, NULL, NULL, NULL, NULL"
    " FROM wanted w JOIN everhold.effect e ON e.session = w.ref ORDER BY 1, 2, 3"
)
#: The columns of each part, in reading order: a head after its birth, a delivery, a letter, a mark.
_PARTS: Final = tuple(
    itemgetter(*columns)
    for columns in (
        (3, 8, 2, 9, 4, 10, 11, 6, 7, 5, 12, 13, 14, 15, 16),
        (2, 6, 3, 4, 5, 8),
        (3, 4, 6, 2, 8, 9),
        (2, 3, 6, 4, 8, 9),
    )
)
OPEN: Final = (
    "WITH RECURSIVE "
    + _CHAIN.format(
        first=f"SELECT s.ref, s.ref, h.open_from, {_TOP}, s.origin, s.origin_n"
        " FROM everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref WHERE s.ref = ANY(%s)"
    )
    + (
        f" SELECT c.root, j.n, j.at, j.answers, j.asked, j.notes, j.seal FROM {_STEPS} ORDER BY"
        " c.root, j.n"
    )
)
LETTERS_OF: Final = (
    "SELECT kind, body, at, id, seal, session FROM everhold.letter WHERE session"
    " = ANY(%s) ORDER BY id"
)
HIDDEN: Final = (
    "SELECT session, q FROM everhold.notice WHERE session = ANY(%s)"
    " UNION ALL SELECT session, q FROM everhold.effect WHERE session = ANY(%s)"
)
#: Sessions that need a move, each with the reason. Every part uses an index of its own.
UNMOVED: Final = (
    f"WITH clock AS MATERIALIZED (SELECT {NOW} AS now) SELECT s.id, w.why, w.since,"
    " coalesce(h.revision, 0), w.came"
    " FROM (SELECT h.ref, 'timer' AS why, h.due_at AS since, 0 AS came FROM everhold.head_1 h"
    " WHERE h.due_at <= %s"
    " AND h.state IN ('running', 'paused') UNION ALL"
    " SELECT h.ref, 'letter', (SELECT min(l.at) FROM everhold.letter l WHERE l.session = h.ref), 0"
    " FROM everhold.head_1 h WHERE h.mail > 0 AND h.state = 'running' UNION ALL"
    " SELECT e.session, 'mark', min(e.since), 0 FROM everhold.effect e WHERE NOT e.worker = ANY(%s)"
    " GROUP BY e.session UNION ALL"
    " SELECT i.session, 'item', i.since, l.seq + i.count FROM (SELECT i.session, min(i.at) AS"
    " since, count(*) AS count"
    " FROM everhold.item i, clock WHERE i.state = 'waiting' AND i.available_at <= clock.now"
    " GROUP BY i.session) i"
    " CROSS JOIN clock JOIN everhold.lease l ON l.session = i.session"
    " WHERE l.released = 1 OR l.expires_at <= clock.now UNION ALL"
    " SELECT h.ref, 'parked', h.updated_at, 0 FROM everhold.head_1 h WHERE h.parked = 1 AND %s"
    " AND h.state IN ('running', 'paused')) w JOIN everhold.session s ON s.ref = w.ref"
    " LEFT JOIN everhold.head_1 h ON h.ref = w.ref WHERE s.deleted = 0 ORDER BY w.since, w.ref,"
    " w.why LIMIT %s"
)
NEXT_DUE: Final = (
    "SELECT min(due_at) FROM everhold.head_1 WHERE due_at IS NOT NULL AND state IN"
    " ('running', 'paused')"
)
#: Sessions whose journals are read at once for the inbox.
PAGE: Final = 200
_LAST: Final = 2**62  # a number after that of every query

DIALECT: Final = listing.Dialect(
    head="everhold.head_1",
    columns=HEAD_COLUMNS,
    ended="h.ended_at IS NOT NULL",
    ended_at="h.ended_at",
    queued="h.mail > 0 AND EXISTS (SELECT 1 FROM everhold.letter l WHERE l.session = n.session AND"
    " l.kind = 'answer' AND (everhold.readable(l.body) ->> 'q')::int8 = n.q)",
    session="everhold.session",
    label="everhold.label",
    notice="everhold.notice",
    effect="everhold.effect",
    joined=" JOIN ",
    forced=False,
    escape=escape_nul,
)

read_birth = msgspec.json.Decoder(Birth).decode
_query = msgspec.json.Decoder(Query).decode
#: The rows of each part of one session.
LoadedRows = tuple[list[tuple[Any, ...]], ...]


def split_loaded_rows(count: int, rows: Sequence[tuple[Any, ...]]) -> list[LoadedRows]:
    """The rows of `LOAD`, session by session in the wanted order."""
    found: list[LoadedRows] = [tuple([] for _ in _PARTS) for _ in range(count)]
    for row in rows:
        part = row[1]
        found[row[0] - 1][part].append(_PARTS[part](row))
    return found


def build_record(
    birth: Birth,
    head: Head,
    journal: list[tuple[Any, ...]],
    letters: list[tuple[Any, ...]],
    effects: list[tuple[Any, ...]],
) -> SessionRecord:
    """Decodes a session; raises one of `UNREADABLE` if a row is damaged."""
    deliveries = [read_delivery(head.ref, row) for row in journal]
    return SessionRecord(
        birth, head, deliveries, [*map(decode_letter, letters)], [*map(decode_effect, effects)]
    )


def decode_letter(row: tuple[Any, ...]) -> Letter:
    """Decodes a letter; raises `ValueError` if it is damaged."""
    kind, body, at, letter_id, sealed, _ = row
    if checksum_row(unescape_nul(kind), body, at) != sealed:
        raise ValueError(f"letter {letter_id} does not match its seal")
    return Letter(unescape_nul(kind), loads(body), at, letter_id)


def decode_effect(row: tuple[Any, ...]) -> Effect:
    """Decodes a mark; raises `ValueError` if it is damaged."""
    q, worker, since, failed, sealed, ref = row
    return read_mark(ref, q, unescape_nul(worker), since, failed, sealed)


async def read_page(say: RunQuery, wanted: SessionFilter) -> listing.Rows:
    """The births and heads of a page of sessions."""
    reading = listing.SessionLister(DIALECT, wanted).read()
    rows: listing.Rows | None = None
    try:
        while True:
            statement, values = reading.send(rows)  # type: ignore[arg-type]
            rows = await say(mark_values(statement), *values)
    except StopIteration as done:
        found: listing.Rows = done.value
        return found


def mark_values(statement: str) -> str:
    """A statement of `listing` with the marks of psycopg."""
    return statement.replace("?", "%s")


class InboxReader:
    """Finds the open queries of all sessions in one transaction."""

    def __init__(
        self,
        say: RunQuery,
        kinds: Sequence[Kind],
        to: str | None,
        limit: int,
        after: InboxPlace | None,
    ) -> None:
        self._say = say
        self._kinds = kinds
        self._to = to
        self._limit = limit
        self._after = after

    async def noticed(self) -> list[FoundQuestion]:
        """Open queries with a notice."""
        statement, values = listing.select_noticed(
            DIALECT, self._kinds, self._to, self._limit, self._after
        )
        rows = await self._say(mark_values(statement), *values)
        return [(read_birth(row[0]), _query(row[1]), row[2]) for row in rows]

    async def unnoticed(self) -> list[FoundQuestion]:
        """Open queries without a notice, found through the journals of sessions that may have
        one.
        """
        found: list[FoundQuestion] = []
        if (ANSWERABLE - NOTICED).isdisjoint(self._kinds):
            return found
        after = self._after
        while len(found) < self._limit:
            statement, values = listing.select_asking(DIALECT, PAGE, after)
            page = await self._say(mark_values(statement), *values)
            found += [
                one
                for one in await self._opened(page)
                if one[1].kind in self._kinds and (after is None or place_in_inbox(one) > after)
            ]
            if len(page) < PAGE:
                break
            after = InboxPlace(page[-1][3], unescape_nul(page[-1][4]), _LAST)
        return found

    async def _opened(self, page: list[tuple[Any, ...]]) -> list[FoundQuestion]:
        refs = [row[0] for row in page]
        journals: dict[int, list[Delivery]] = {ref: [] for ref in refs}
        for ref, *row in await self._say(OPEN, refs):
            journals[ref].append(read_delivery(ref, tuple(row)))
        hidden = {(ref, q) for ref, q in await self._say(HIDDEN, refs, refs)}
        hidden |= await self._answered([row[0] for row in page if row[2]])
        return [
            (read_birth(birth), entry.query, entry.at)
            for ref, birth, *_ in page
            for q, entry in sorted(find_open_queries(journals[ref]).items())
            if (ref, q) not in hidden and entry.query.kind in ANSWERABLE
        ]

    async def _answered(self, refs: list[int]) -> set[tuple[int, int]]:
        """Queries whose answer is queued in the intake."""
        rows = await self._say(LETTERS_OF, refs) if refs else []
        return {(row[5], decode_letter(row).body["q"]) for row in rows if row[0] == "answer"}
