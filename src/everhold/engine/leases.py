"""The leases that this process holds: on which sessions it spends work.

Rules
  1. A lease says who works, never who may commit: the head's revision does. Who only answers takes
     none.
  2. All are renewed together, three times in their life at least. One that was not renewed is lost:
     no new work is spent on its session here; what is under way goes on, and the revision decides
     what becomes of it.
  3. Who takes releases. A session that is taken twice here is released with the second. What could
     not be released is not renewed for long.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from everhold.core.intake import Intake
from everhold.core.lease import Fence, Lease, LeaseOwner, LeaseRefused, LeaseTimings
from everhold.engine.liveness import Presence
from everhold.engine.serving import Serving
from everhold.errors import EverholdError
from everhold.ports.program import Clock
from everhold.ports.store import Store

log = logging.getLogger("everhold")


class _Hold:
    """A lease held here, how often it was taken, and what had come into the intake when it was."""

    __slots__ = ("came", "fence", "takes")

    def __init__(self, fence: Fence, takes: int = 1, came: int = -1) -> None:
        self.fence = fence
        self.takes = takes
        self.came = came


class Leases:
    def __init__(
        self,
        store: Store,
        owner: LeaseOwner,
        clock: Clock,
        presence: Presence,
        serving: Serving,
    ) -> None:
        self._store = store
        self.owner = owner
        self._clock = clock
        self._presence = presence  # a process that holds a lease is known to live
        self._serving = serving
        self._held: dict[str, _Hold] = {}
        self._taking: dict[str, asyncio.Lock] = {}
        self._renewed = 0.0
        self._strays: set[str] = set()  # renewed as ours, though they are not held

    @property
    def timings(self) -> LeaseTimings:
        """How long leases live, and how often they are renewed."""
        return self._presence.timings

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, session_id: str) -> bool:
        return session_id in self._held

    async def take(self, session_id: str) -> Fence | None:
        """The right to work on a session; None if somebody else has it. Raises `UnknownSession`."""
        lock = self._taking.setdefault(session_id, asyncio.Lock())
        try:
            async with lock:
                hold = self._held.get(session_id)
                if hold is not None:
                    hold.takes += 1
                    return hold.fence
                return await self._acquire(session_id)
        finally:
            if not lock.locked():
                self._taking.pop(session_id, None)

    async def _acquire(self, session_id: str) -> Fence | None:
        await self._presence.introduce()
        token = secrets.token_hex(8)  # one try, however often the store has to repeat it
        found, came = await self._store.intake(
            session_id,
            lambda intake: (intake.take(self.owner, token, self.timings.ttl), intake.seq),
            only=True,
        )
        if isinstance(found, LeaseRefused):
            return None
        if not self._held:
            self._renewed = self._clock.now()
        self._held[session_id] = _Hold(found.lease.fence, came=came)
        return found.lease.fence

    async def release(self, session_id: str) -> None:
        """Give one take back; with the last one, others may have the session."""
        hold = self._held.get(session_id)
        if hold is None:
            return
        hold.takes -= 1
        if hold.takes:
            return
        del self._held[session_id]

        try:
            arrived = await self._store.release_lease(session_id, hold.fence, hold.came)
            # others could not deliver it while the session was held
            if arrived and self._serving.worker is not None:
                self._serving.worker.lease_freed(session_id)
        # it was deleted, or the store is away: then time releases it
        except EverholdError as error:
            log.debug("the lease of session %s was not released: %s", session_id, error)

    def tell_all(self, session_id: str) -> None:
        """Have the worker told of whatever waits when this lease is given back, however long it has
        waited.
        """
        hold = self._held.get(session_id)
        if hold is not None:
            hold.came = -1

    def adopt(self, session_id: str, fence: Fence) -> None:
        """Hold a lease that came with a commit: whoever drives takes it, and gives it back."""
        hold = self._held.get(session_id)
        if hold is not None:
            hold.fence = fence
            return
        if not self._held:
            self._renewed = self._clock.now()
        self._held[session_id] = _Hold(fence, takes=0)
        if self._serving.worker is not None:
            self._serving.worker.lease_adopted(session_id)

    @asynccontextmanager
    async def held(self, session_id: str) -> AsyncIterator[Fence | None]:
        """Hold a session's lease for a while; None if somebody else has it."""
        fence = await self.take(session_id)
        try:
            yield fence
        finally:
            if fence is not None:
                await self.release(session_id)

    async def foreign(self, session_id: str) -> Lease | None:
        """The lease of somebody else who works on a session now."""

        def look(intake: Intake) -> Lease | None:
            lease = intake.lease
            return (
                lease
                if lease is not None and lease.live(intake.now) and lease.owner != self.owner
                else None
            )

        return await self._store.intake(session_id, look, only=True)

    async def renew(self) -> None:
        """Let all live on; those that somebody else has by now are lost."""
        before = dict(self._held)
        if not before:
            return
        try:
            kept = set(await self._store.keep(self.owner, self.timings.ttl))
            self._renewed = self._clock.now()
        except EverholdError as error:
            if self._clock.now() < self._renewed + self.timings.ttl:
                log.warning("leases could not be renewed, which is tried again: %s", error)
                return
            kept = set()
        for session_id, hold in before.items():
            if session_id not in kept and self._held.get(session_id) is hold:
                del self._held[session_id]
                log.warning(
                    "the lease of session %s was lost; what is under way may still land", session_id
                )
                if self._serving.worker is not None:
                    self._serving.worker.lease_lost(session_id)
        await self._release_strays(kept)

    async def _release_strays(self, kept: Iterable[str]) -> None:
        """Release what was to be released while the store was away: else it would be renewed with
        the others for ever.

        Whoever lets something in has a lease for a moment, too; one that was a stray before has
        been for longer.
        """
        strays = {session_id for session_id in kept if session_id not in self._held}
        for session_id in strays & self._strays:
            await self._store.intake(session_id, self._let_go, only=True)
        self._strays = strays

    def _let_go(self, intake: Intake) -> None:
        lease = intake.lease
        if lease is not None and lease.owner == self.owner and intake.session_id not in self._held:
            intake.release(lease.fence)

    async def leave(self) -> None:
        """Release all at once."""
        self._held.clear()
        await self._store.leave(self.owner)
