"""What the house asks of the memory beside sessions: who has to be told, what a session weighs,
what nobody needs.
"""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

from everhold.core.query import NOTIFIED, Query
from everhold.core.session import Birth
from everhold.ports.store import Notice, QuestionFilter, ReclaimResult, make_asking_id

_birth = msgspec.json.Decoder(Birth).decode
_notice = msgspec.json.Decoder(Notice).decode


def is_wanted_notice(wanted: QuestionFilter, notice: Notice) -> bool:
    """Whether a notice is of the kinds, and for those, that are wanted."""
    kind = notice.kind
    to = notice.to
    of_kind = kind in wanted.kinds if wanted.kinds else kind in NOTIFIED or to is not None
    return of_kind and (not wanted.to or to in wanted.to)


class MemoryMaintenance:
    """These verbs, for a store in memory."""

    _live: dict[str, Any]
    _sessions: dict[str, Any]
    _buried: dict[str, Any]
    _blobs: dict[str, bytes]
    _duties: dict[tuple[str, str], tuple[str, float | None, int]]

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        found = []
        for session in self._live.values():
            if wanted.session in (None, session.birth.id):
                taken = session.taken() if session.notices else ()
                for q, text in session.notices.items():
                    notice = _notice(text)
                    told = (wanted.without, make_asking_id(session.birth.id, q, notice.asked_at))
                    if (
                        q not in taken
                        and is_wanted_notice(wanted, notice)
                        and told not in self._duties
                    ):
                        found.append(
                            (notice.asked_at, *session.place, q, session.text, notice.query)
                        )
        found.sort(key=lambda one: one[:4])
        return [(_birth(text), query, at) for at, _, _, _, text, query in found[: wanted.limit]]

    async def size(self: Any, session_id: str) -> int:
        session = self._known(session_id)
        needed: int = self._needed(session)
        steps: int = sum(
            sum(map(len, filter(None, row[2:]))) for row in session.rows if row[0] > needed
        )
        others = {
            id
            for one in (*self._sessions.values(), *self._buried.values())
            if one is not session
            for id in one.attached
        }
        mine: list[int] = [
            made.size
            for id, (made, n) in session.attached.items()
            if n >= needed and id not in others
        ]
        return steps + sum(mine)

    async def reclaim(self) -> ReclaimResult:
        named = {
            id for one in (*self._sessions.values(), *self._buried.values()) for id in one.attached
        }
        gone = [id for id in self._blobs if id not in named]
        freed = sum(len(self._blobs.pop(id)) for id in gone)
        return ReclaimResult(len(gone), freed)
