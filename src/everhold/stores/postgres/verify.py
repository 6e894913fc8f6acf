"""The checks of `verify`: broken seals, gaps, dangling references, rows that contradict their
birth.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from everhold.core.codec import checksum_row, loads
from everhold.core.journal import Delivery, find_first_open_delivery, find_open_queries, is_asking
from everhold.core.query import EFFECTS, Query
from everhold.core.session import Head
from everhold.errors import EverholdError
from everhold.ports.store import ProgressCallback, StoreProblem
from everhold.stores.loop_turns import iterate_with_turns
from everhold.stores.postgres import intake_rows, lineage
from everhold.stores.postgres.address import escape_nul, qualify_schema, unescape_nul
from everhold.stores.postgres.connection import PgConnection
from everhold.stores.postgres.group_commit import HEAD_COLUMNS
from everhold.stores.postgres.write import make_label_row
from everhold.stores.row_codec import (
    UNREADABLE,
    StoredBirth,
    checksum_mark,
    read_delivery,
    read_head,
)

#: Sessions that are read at once.
PAGE: Final = 200
_SESSIONS: Final = (
    "SELECT ref, id, key, program, birth, seal, deleted, origin, origin_n, parent, created_at,"
    " labels"
    " FROM everhold.session ORDER BY ref"
)


#: Sessions whose head, notices or labels contradict their row.
_UNLISTED: Final = (
    "SELECT s.id FROM everhold.session s LEFT JOIN everhold.head_1 h ON h.ref = s.ref"
    " LEFT JOIN (SELECT session, jsonb_object_agg(name, value) AS labels, min(created_at) AS least,"
    " max(created_at) AS most FROM everhold.label GROUP BY session) l ON l.session = s.ref"
    " WHERE s.deleted = 0 AND (h.created_at <> s.created_at OR s.labels <> coalesce(l.labels, '{}')"
    " OR l.least <> s.created_at OR l.most <> s.created_at OR EXISTS (SELECT 1 FROM"
    " everhold.notice n WHERE n.session = s.ref AND n.created_at <> s.created_at)) ORDER BY s.ref"
)


class PostgresVerifier:
    """Reads a whole schema in one transaction."""

    def __init__(self, line: PgConnection, schema: str) -> None:
        self._line = line
        self._schema = schema
        self._known: dict[int, tuple[Any, ...]] = {}

    async def problems(self, progress: ProgressCallback | None) -> list[StoreProblem]:
        """Yields every problem in the order found."""
        sessions = await self._rows(_SESSIONS)
        self._known = {row[0]: row for row in sessions}
        found: list[StoreProblem] = []
        for start in range(0, len(sessions), PAGE):
            page = sessions[start : start + PAGE]
            rows = await self._parts([row[0] for row in page])
            for done, row in enumerate(page, start + 1):
                found += [problem async for problem in self._session(row, rows)]
                if progress is not None:
                    progress(done, len(sessions))
        found += [problem async for problem in self._unlisted()]
        found += [problem async for problem in self._loose()]
        found += await lineage.find_attachment_problems(self._rows)
        found += await intake_rows.find_intake_problems(self._rows)
        return found

    async def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await (
            await self._line.execute(qualify_schema(statement, self._schema), values)
        ).fetchall()

    async def _parts(self, refs: list[int]) -> dict[str, dict[int, list[tuple[Any, ...]]]]:
        """Heads, notices, effects and letter counts of some sessions."""
        wanted = {
            "head": f"SELECT h.ref, {HEAD_COLUMNS} FROM everhold.head_1 h WHERE h.ref = ANY(%s)",
            "notice": "SELECT session, q, kind, addressee, asked_at, query, seal FROM"
            " everhold.notice"
            " WHERE session = ANY(%s)",
            "effect": (
                "SELECT session, q, worker, since, failed, seal FROM everhold.effect WHERE session"
                " = ANY(%s)"
            ),
            "mail": (
                "SELECT session, count(*) FROM everhold.letter WHERE session = ANY(%s) GROUP"
                " BY session"
            ),
        }
        parts: dict[str, dict[int, list[tuple[Any, ...]]]] = {}
        for name, statement in wanted.items():
            parts[name] = {}
            for row in await self._rows(statement, refs):
                parts[name].setdefault(row[0], []).append(row[1:])
        return parts

    async def _session(
        self, row: tuple[Any, ...], parts: dict[str, Any]
    ) -> AsyncIterator[StoreProblem]:
        ref, id, _, _, text, sealed, deleted, *_ = row
        if checksum_row(text) != sealed:
            yield StoreProblem(unescape_nul(id), "broken_seal", "its birth")
            return
        try:
            born = msgspec.json.decode(text, type=StoredBirth)
        except (msgspec.MsgspecError, UnicodeError) as error:
            yield StoreProblem(unescape_nul(id), "unreadable", str(error))
            return
        wrong = self._row(row, born)
        if wrong is not None:
            yield wrong
            return
        heads = parts["head"].get(ref)
        if deleted:
            if heads:
                yield StoreProblem(
                    born.id, "mismatch", "the session is marked as deleted but has a head"
                )
            return
        if heads is None:
            yield StoreProblem(born.id, "no_head", "the session has no head")
            return
        try:
            head = read_head(heads[0])
            deliveries = await self._journal(ref)
        except UNREADABLE as error:
            yield StoreProblem(born.id, "broken_seal", str(error))
            return
        numbers = [delivery.n for delivery in deliveries]
        if numbers != list(range(head.n + 1)):
            missing = sorted(set(range(head.n + 1)) - set(numbers))
            yield StoreProblem(
                born.id,
                "gap",
                f"{len(numbers)} deliveries for step {head.n}; missing {missing[:5]}",
            )
            return
        for problem in _open(born.id, head, deliveries, parts):
            yield problem

    def _row(self, row: tuple[Any, ...], born: StoredBirth) -> StoreProblem | None:
        """The problem of a session's row that contradicts its birth, if any."""
        _, id, key, program, _, _, deleted, origin, origin_n, parent, created_at, labels = row
        said = (
            escape_nul(born.id),
            escape_nul(born.program),
            None if deleted or born.key is None else escape_nul(born.key),
            born.origin_n,
            None if born.parent is None else escape_nul(born.parent),
            born.created_at,
            make_label_row(born.labels),
        )
        if said != (id, program, key, origin_n, parent, created_at, labels) or deleted not in (
            0,
            1,
        ):
            return StoreProblem(born.id, "mismatch", "its row contradicts its birth")
        source = born.source or born.origin
        if origin in self._known and (other := unescape_nul(self._known[origin][1])) != source:
            return StoreProblem(
                born.id, "mismatch", f"it shares the steps of {source}, not of {other}"
            )
        if (origin is None) != (source is None) or (
            origin is not None and origin not in self._known
        ):
            return StoreProblem(
                born.id, "dangling_origin", f"it shares the steps of {source}, which does not exist"
            )
        return None

    async def _journal(self, ref: int) -> list[Delivery]:
        """Every delivery of a session; those of its sources come first."""
        spans: dict[int, int] = {}
        at: int | None = ref
        upto = 2**63 - 1
        while at is not None and at not in spans:
            spans[at] = upto
            at, upto = self._known[at][7], min(upto, self._known[at][8])
        found: list[Delivery] = []
        statement = (
            "SELECT n, at, answers, asked, notes, seal FROM everhold.journal WHERE"
            " session = %s AND n <= %s ORDER BY n"
        )
        for source, last in reversed(spans.items()):
            # old chains have sessions that contribute nothing
            if self._known[source][8] < last:
                found += [
                    read_delivery(source, row) for row in await self._rows(statement, source, last)
                ]
        return found

    async def _unlisted(self) -> AsyncIterator[StoreProblem]:
        """Sessions whose rows for lists contradict their own row."""
        for (id,) in await self._rows(_UNLISTED):
            yield StoreProblem(
                unescape_nul(id), "mismatch", "its rows for lists contradict its row"
            )

    async def _loose(self) -> AsyncIterator[StoreProblem]:
        for table, column in (
            ("journal", "session"),
            ("notice", "session"),
            ("effect", "session"),
            ("letter", "session"),
            ("head_1", "ref"),
        ):
            rows = await self._rows(
                f"SELECT DISTINCT t.{column} FROM everhold.{table} t LEFT JOIN everhold.session"
                f" s ON s.ref = t.{column}"
                " WHERE s.ref IS NULL"
            )
            for (ref,) in rows:
                name = table.removesuffix("_1")
                yield StoreProblem(
                    "", f"dangling_{name}", f"rows of session number {ref}, which does not exist"
                )
        letters = await self._rows("SELECT id, kind, body, at, seal FROM everhold.letter")
        async for letter_id, kind, body, at, sealed in iterate_with_turns(letters):
            if checksum_row(unescape_nul(kind), body, at) != sealed:
                yield StoreProblem("", "broken_seal", f"letter {letter_id}")
        values = await self._rows("SELECT namespace, key, value, version, seal FROM everhold.value")
        async for namespace, key, value, version, sealed in iterate_with_turns(values):
            name = f"the value {unescape_nul(namespace)}/{unescape_nul(key)}"
            if checksum_row(unescape_nul(namespace), unescape_nul(key), value, version) != sealed:
                yield StoreProblem("", "broken_seal", name)
            elif value is not None:
                try:
                    loads(value)
                except EverholdError as error:
                    yield StoreProblem("", "unreadable", f"{name}: {error}")


def _open(
    id: str, head: Head, deliveries: list[Delivery], parts: dict[str, Any]
) -> Iterator[StoreProblem]:
    """Compares the head, the inbox and the marks with the journal."""
    opened = find_open_queries(deliveries)
    if not head.ended and find_first_open_delivery(opened, head.n) < head.open_from:
        yield StoreProblem(
            id,
            "open_from",
            f"open queries from {find_first_open_delivery(opened, head.n)} on, not"
            f" {head.open_from}",
        )
    last = deliveries[-1].notes.outcome if deliveries and deliveries[-1].notes is not None else None
    if head.ended != (last is not None):
        yield StoreProblem(
            id, "end", f"it is {head.state}, but its journal {'ends' if last else 'does not end'}"
        )
    for q, kind, addressee, asked_at, text, sealed in parts["notice"].get(head.ref, ()):
        if (
            checksum_row(
                head.ref,
                q,
                kind,
                None if addressee is None else unescape_nul(addressee),
                asked_at,
                text,
            )
            != sealed
        ):
            yield StoreProblem(id, "broken_seal", f"the notice of q-{q}")
        elif q not in opened:
            yield StoreProblem(id, "dangling_notice", f"q-{q} is not open")
        else:
            shown = msgspec.json.decode(text, type=Query)
            if shown.kind not in EFFECTS and shown != opened[q].query:
                yield StoreProblem(id, "mismatch", f"the notice of q-{q} differs from the question")
    for q, worker, since, failed, sealed in parts["effect"].get(head.ref, ()):
        if checksum_mark(head.ref, q, unescape_nul(worker), since, failed) != sealed:
            yield StoreProblem(id, "broken_seal", f"the effect of q-{q}")
        elif q not in opened:
            yield StoreProblem(id, "dangling_effect", f"q-{q} is not open")
    held = {row[0] for part in ("notice", "effect") for row in parts[part].get(head.ref, ())}
    if not head.ended and not head.asking and is_asking(opened, held):
        yield StoreProblem(id, "asking", "an open question is missing in the inbox")
    count = parts["mail"].get(head.ref, [(0,)])[0][0]
    if count != head.mail and not head.ended:
        yield StoreProblem(id, "mail", f"{count} letters, but its head counts {head.mail}")
