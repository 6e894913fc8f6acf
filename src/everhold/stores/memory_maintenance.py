"""Maintenance of a store in memory: unnotified questions, sizes, leftovers, flaws."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from everhold.core.codec import FORMAT
from everhold.core.query import NOTIFIED, Query
from everhold.core.session import Birth
from everhold.ports.store import (
    Notice,
    ProgressCallback,
    QuestionFilter,
    ReclaimResult,
    StoreProblem,
    make_asking_id,
)
from everhold.stores.loop_turns import TURNS, give_loop_turns
from everhold.stores.row_codec import find_item_flaws

if TYPE_CHECKING:
    from everhold.stores.memory import MemoryStore, _Session

_birth = msgspec.json.Decoder(Birth).decode
_notice = msgspec.json.Decoder(Notice).decode


def is_wanted_notice(wanted: QuestionFilter, notice: Notice) -> bool:
    """Whether a notice matches the wanted kinds and addressees."""
    kind = notice.kind
    to = notice.to
    of_kind = kind in wanted.kinds if wanted.kinds else kind in NOTIFIED or to is not None
    return of_kind and (not wanted.to or to in wanted.to)


@give_loop_turns
class MemoryMaintenance:
    path = None

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        found = []
        for session in self._store._live.values():
            if wanted.session in (None, session.birth.id):
                taken = session.handled_queries() if session.notices else ()
                for q, text in session.notices.items():
                    notice = _notice(text)
                    told = (wanted.without, make_asking_id(session.birth.id, q, notice.asked_at))
                    if (
                        q not in taken
                        and is_wanted_notice(wanted, notice)
                        and told not in self._store._duties
                    ):
                        found.append(
                            (notice.asked_at, *session.place, q, session.text, notice.query)
                        )
        found.sort(key=lambda one: one[:4])
        return [(_birth(text), query, at) for at, _, _, _, text, query in found[: wanted.limit]]

    async def size(self, session_id: str) -> int:
        session = self._store._known(session_id)
        needed = self._store._needed(session)
        steps = sum(sum(map(len, filter(None, row[2:]))) for row in session.rows if row[0] > needed)
        others = {id for one in self._kept() if one is not session for id in one.attached}
        mine = [
            made.size
            for id, (made, n) in session.attached.items()
            if n >= needed and id not in others
        ]
        return steps + sum(mine)

    async def reclaim(self) -> ReclaimResult:
        blobs = self._store._blobs
        named = {id for one in self._kept() for id in one.attached}
        gone = [id for id in blobs if id not in named]
        freed = sum(len(blobs.pop(id)) for id in gone)
        return ReclaimResult(len(gone), freed)

    def _kept(self) -> builtins.list[_Session]:
        """All sessions, including buried ones."""
        return [*self._store._sessions.values(), *self._store._buried.values()]

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        problems = []
        sessions = [*self._store._sessions.items()]
        for done, (id, session) in enumerate(sessions, 1):
            if id in self._store._sessions:  # otherwise it was deleted meanwhile
                problems += [StoreProblem(id, *found) for found in self._flaws(session)]
            if progress is not None:
                progress(done, len(sessions))
            if not done % TURNS:
                await asyncio.sleep(0)
        return problems

    def _flaws(self, session: _Session) -> Iterator[tuple[str, str]]:
        head = session.head
        birth = session.birth
        oldest = [link for link, _ in self._store._chain(session)][-1]
        if oldest.source is not None:
            yield "origin", f"forked from {oldest.source!r}, which is not here"
            return
        last = session.rows[-1][0] if session.rows else birth.origin_n
        if head.n != last:
            yield "head", f"the head is at delivery {head.n}, the journal at {last}"
        numbers = [one.n for one in self._store._deliveries(session, 0)]
        if numbers != list(range(len(numbers))):
            yield "gap", f"the journal has {len(numbers)} deliveries up to number {numbers[-1]}"
        if head.mail != len(session.letters):
            yield (
                "mail",
                f"the head counts {head.mail} letters, the intake has {len(session.letters)}",
            )
        held = self._store._intakes.get(birth.id)
        if held is not None:
            for item in held.items.values():
                yield from find_item_flaws(held.lease, held.seq, item)
        opened = self._store._opened(session)
        yield from (("notice", f"q-{q} is not open") for q in session.notices if q not in opened)
        yield from (("effect", f"q-{q} is not open") for q in session.effects if q not in opened)

    def stats(self) -> dict[str, Any]:
        return {
            "where": self._store.where,
            "kind": "memory",
            "format": FORMAT,
            "sessions": len(self._store._sessions),
            "deliveries": sum(len(session.rows) for session in self._kept()),
            "durability": self._store.durability,
        }
