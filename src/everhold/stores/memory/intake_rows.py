"""Intake and duties in memory."""

from __future__ import annotations

import builtins
import copy
import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from everhold.core.codec import dumps, loads
from everhold.core.intake import Intake, IntakeItem
from everhold.core.lease import Fence, Lease, LeaseOwner
from everhold.core.session import Head, SessionId
from everhold.errors import BadArguments, Overtaken, UnknownSession
from everhold.ports.store import Duty, SessionFingerprint
from everhold.stores.intake_rows import check_duties, make_item_row, read_item, release_if_held

T = TypeVar("T")


class MemoryIntake:
    """The intake of one session."""

    __slots__ = ("items", "lease", "seq")

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.seq = 0
        self.items: dict[str, IntakeItem] = {}

    def look(
        self,
        session_id: str,
        head: Head,
        now: float,
        named: Sequence[str],
        *,
        whole: bool = False,
        only: bool = False,
    ) -> Intake:
        def wanted(item: IntakeItem) -> bool:
            return whole or (item.waits and not only) or item.id in named or item.key in named

        items = [copy.deepcopy(item) for item in self.items.values() if wanted(item)]
        return Intake(
            session_id,
            now,
            self.lease,
            self.seq,
            items,
            head.state,
            None if whole else named,
            only=only,
        )

    def take(self, intake: Intake) -> None:
        """Stores the changes as a file would: everything is checked before anything is written."""
        fresh = {
            id: None if item is None else read_item(make_item_row(item))
            for id, item in intake.written.items()
        }
        for id, item in fresh.items():
            if item is not None and id in self.items and self.items[id].seq != item.seq:
                raise BadArguments("intake", f"the id {id!r} was already used")
        self.lease = intake.lease
        self.seq = intake.seq
        for id, item in fresh.items():
            if item is None:
                self.items.pop(id, None)
            else:
                self.items[id] = item


class MemoryIntakeRows:
    """The intake and duty verbs of a store in memory."""

    time: Callable[[], float] | None = None

    def __init__(self) -> None:
        self._doors: dict[str, MemoryIntake] = {}
        self._duties: dict[tuple[str, str], tuple[str, float | None, int]] = {}

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.time = now

    def now(self) -> float:
        return time.time() if self.time is None else self.time()

    def _head(self, session_id: str) -> Head:
        raise NotImplementedError

    async def intake(
        self,
        session_id: str,
        act: Callable[[Intake], T],
        *,
        named: Sequence[str] = (),
        whole: bool = False,
        only: bool = False,
        writes: bool = False,
    ) -> T:
        head = self._head(session_id)
        door = self._doors.get(session_id) or MemoryIntake()
        given = door.look(session_id, head, self.now(), named, whole=whole, only=only)
        said = act(given)
        if given.moved or given.written:
            door.take(given)
            self._doors[session_id] = door
        return said

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        now = self.now()
        found = {}
        for session_id in sessions:
            with suppress(UnknownSession):
                head = self._head(session_id)
                door = self._doors.get(session_id) or MemoryIntake()
                waiting = sum(
                    item.waits and item.available_at <= now for item in door.items.values()
                )
                found[SessionId(session_id)] = SessionFingerprint(head.revision, door.seq, waiting)
        return found

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        now = self.now()
        kept = []
        for session_id, door in self._doors.items():
            lease = door.lease
            if lease is not None and lease.owner == owner and lease.live(now):
                door.lease = msgspec.structs.replace(
                    lease, expires_at=max(lease.expires_at, now + ttl)
                )
                kept.append(SessionId(session_id))
        return kept

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        return await self.intake(session_id, functools.partial(release_if_held, fence, came))

    async def leave(self, owner: LeaseOwner) -> None:
        for door in self._doors.values():
            if door.lease is not None and door.lease.owner == owner:
                door.lease = msgspec.structs.replace(door.lease, released=True)

    async def duty(self, kind: str, id: str) -> Duty | None:
        found = self._duties.get((kind, id))
        return None if found is None else Duty(kind, id, loads(found[0]), found[1], found[2])

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        rows = [(id, *row) for (of, id), row in self._duties.items() if of == kind]
        if due is not None:
            found = sorted(
                (at, id, text, v) for id, text, at, v in rows if at is not None and at <= due
            )
            return [
                Duty(kind, id, loads(text), at, version) for at, id, text, version in found[:limit]
            ]
        named = sorted(row for row in rows if row[0].startswith(prefix) and row[0] > after)
        return [Duty(kind, id, loads(text), at, version) for id, text, at, version in named[:limit]]

    async def undertake(self, duties: Sequence[Duty]) -> None:
        check_duties(duties)
        fresh = dict(self._duties)
        for one in duties:
            place = (one.kind, one.id)
            if (fresh[place][2] if place in fresh else 0) != one.version:
                raise Overtaken(f"{one.kind}/{one.id}", one.version)
            if one.body is None:
                fresh.pop(place, None)
            else:
                fresh[place] = (dumps(one.body), one.due_at, one.version + 1)
        self._duties = fresh

    async def next_duty(self, after: float = -1.0) -> float | None:
        due = [at for _, at, _ in self._duties.values() if at is not None]
        waits = [
            item.available_at
            for door in self._doors.values()
            for item in door.items.values()
            if item.waits
        ]
        return min((at for at in (*due, *waits) if at > after), default=None)
