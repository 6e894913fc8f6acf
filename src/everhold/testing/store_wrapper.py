"""A store that forwards each verb to another store, so that a test can count, delay or break a
verb.

    class Counting(StoreWrapper):
        async def forward(self, verb, *given, **options):
            self.count += 1
            return await verb(*given, **options)

Plain functions (`commit_now`, `listen`, `use_clock`) do not go through `forward`.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everhold.core.codec import JSON
from everhold.core.intake import Intake
from everhold.core.lease import Fence, LeaseOwner
from everhold.core.query import Kind, Query
from everhold.core.session import Birth, SessionId
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    Change,
    Duty,
    InboxPlace,
    Maintenance,
    ProgressCallback,
    QuestionFilter,
    ReclaimResult,
    RemoteChange,
    SessionFilter,
    SessionFingerprint,
    SessionRecord,
    SessionSummary,
    Store,
    StoreProblem,
    UnmovedSession,
    WorkerRecord,
)

T = TypeVar("T")


class StoreWrapper:
    """Forwards to `store`. All async verbs except `open` and `close` go through `forward`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def forward(self, verb: Callable[..., Awaitable[T]], *given: Any, **options: Any) -> T:
        """Call a verb of the inner store, or of its maintenance."""
        return await verb(*given, **options)

    @property
    def where(self) -> str:
        return self.store.where

    @property
    def durability(self) -> str:
        return self.store.durability

    @property
    def time(self) -> Callable[[], float] | None:
        return self.store.time

    @property
    def maintenance(self) -> Maintenance | None:
        inner = self.store.maintenance
        return None if inner is None else MaintenanceWrapper(inner, self)

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.store.use_clock(now)

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    def commit_now(self, change: Change, fence: int) -> bool:
        return self.store.commit_now(change, fence)

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return self.store.listen(wake, me)

    async def commit(self, change: Change, fence: int) -> None:
        return await self.forward(self.store.commit, change, fence)

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        return await self.forward(self.store.load, session_id, since)

    async def find(self, key: str) -> SessionId | None:
        return await self.forward(self.store.find, key)

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        return await self.forward(self.store.list, wanted)

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, after: InboxPlace | None = None
    ) -> builtins.list[tuple[Birth, Query, float]]:
        return await self.forward(self.store.inbox, kind=kind, to=to, limit=limit, after=after)

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        return await self.forward(self.store.unmoved, now, living, parked=parked, limit=limit)

    async def next_due(self) -> float | None:
        return await self.forward(self.store.next_due)

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
        return await self.forward(
            self.store.intake, session_id, act, named=named, whole=whole, only=only, writes=writes
        )

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        return await self.forward(self.store.standing, sessions)

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        return await self.forward(self.store.keep, owner, ttl)

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        return await self.forward(self.store.release_lease, session_id, fence, came)

    async def leave(self, owner: LeaseOwner) -> None:
        return await self.forward(self.store.leave, owner)

    async def duty(self, kind: str, id: str) -> Duty | None:
        return await self.forward(self.store.duty, kind, id)

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        return await self.forward(
            self.store.duties, kind, due=due, prefix=prefix, after=after, limit=limit
        )

    async def undertake(self, duties: Sequence[Duty]) -> None:
        return await self.forward(self.store.undertake, duties)

    async def next_duty(self, after: float = -1.0) -> float | None:
        return await self.forward(self.store.next_duty, after)

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        return await self.forward(self.store.value, namespace, key)

    async def keys(self, namespace: str) -> builtins.list[str]:
        return await self.forward(self.store.keys, namespace)

    async def beat(self, worker: WorkerRecord) -> None:
        return await self.forward(self.store.beat, worker)

    async def workers(self) -> builtins.list[WorkerRecord]:
        return await self.forward(self.store.workers)

    async def release(self, worker_id: str) -> None:
        return await self.forward(self.store.release, worker_id)

    async def delete(self, session_id: str, fence: int, by: dict[str, JSON] | None = None) -> int:
        return await self.forward(self.store.delete, session_id, fence, by)

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        return await self.forward(self.store.attach, session_id, made, data, at)

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        return await self.forward(self.store.attachment, session_id, id)

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        return await self.forward(self.store.attachments, session_id)

    async def changed(self) -> bool:
        return await self.forward(self.store.changed)


class MaintenanceWrapper:
    """The maintenance of the inner store; each verb goes through `forward` of the wrapper."""

    def __init__(self, inner: Maintenance, wrapper: StoreWrapper) -> None:
        self._inner = inner
        self._forward = wrapper.forward

    @property
    def path(self) -> Path | None:
        return self._inner.path

    def stats(self) -> dict[str, Any]:
        return self._inner.stats()

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        return await self._forward(self._inner.asking, wanted)

    async def size(self, session_id: str) -> int:
        return await self._forward(self._inner.size, session_id)

    async def reclaim(self) -> ReclaimResult:
        return await self._forward(self._inner.reclaim)

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        return await self._forward(self._inner.verify, progress)
