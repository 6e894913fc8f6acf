"""The leases that this process holds on sessions.

Rules
  1. A lease reserves the work on a session. It does not permit commits: the head's revision does.
     A verb that only answers takes no lease.
  2. All leases are renewed together, at least three times within their time to live. A lease that
     was not renewed is lost: this process starts no new work for its session. Running work
     continues, and the revision decides whether its outcome is committed.
  3. Each `take` needs a `release`. A session taken twice is released with the second release. A
     lease whose release failed is released later instead of renewed.
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
    """A held lease: its fence, its takes, and the intake's sequence number when it was taken."""

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
        self._presence = presence  # its row is written before a lease is taken
        self._serving = serving
        self._held: dict[str, _Hold] = {}
        self._taking: dict[str, asyncio.Lock] = {}
        self._renewed = 0.0
        self._strays: set[str] = set()  # ours in the store, but not held here

    @property
    def timings(self) -> LeaseTimings:
        """The time to live of leases and the interval of their renewal."""
        return self._presence.timings

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, session_id: str) -> bool:
        return session_id in self._held

    async def take(self, session_id: str) -> Fence | None:
        """Take a session's lease. Returns None if another process has it. Raises
        `UnknownSession`.
        """
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
        token = secrets.token_hex(8)  # makes a repeated transaction idempotent
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
        """Undo one take; the last one releases the lease."""
        hold = self._held.get(session_id)
        if hold is None:
            return
        hold.takes -= 1
        if hold.takes:
            return
        del self._held[session_id]

        try:
            arrived = await self._store.release_lease(session_id, hold.fence, hold.came)
            # other processes could not deliver it while this lease was held
            if arrived and self._serving.worker is not None:
                self._serving.worker.lease_freed(session_id)
        # the session was deleted, or the store is unavailable: then the lease expires
        except EverholdError as error:
            log.debug("could not release the lease of session %s: %s", session_id, error)

    def tell_all(self, session_id: str) -> None:
        """Notify the worker of any queued input when this lease is released, even of input that is
        older than the lease.
        """
        hold = self._held.get(session_id)
        if hold is not None:
            hold.came = -1

    def adopt(self, session_id: str, fence: Fence) -> None:
        """Hold a lease that a commit took. The worker takes it over and releases it."""
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
        """Hold a session's lease within a context; None if another process has it."""
        fence = await self.take(session_id)
        try:
            yield fence
        finally:
            if fence is not None:
                await self.release(session_id)

    async def foreign(self, session_id: str) -> Lease | None:
        """The lease that another process holds on a session now."""

        def look(intake: Intake) -> Lease | None:
            lease = intake.lease
            return (
                lease
                if lease is not None and lease.live(intake.now) and lease.owner != self.owner
                else None
            )

        return await self._store.intake(session_id, look, only=True)

    async def renew(self) -> None:
        """Renew all leases. Those that another process has taken are lost."""
        before = dict(self._held)
        if not before:
            return
        try:
            kept = set(await self._store.keep(self.owner, self.timings.ttl))
            self._renewed = self._clock.now()
        except EverholdError as error:
            if self._clock.now() < self._renewed + self.timings.ttl:
                log.warning("could not renew leases; retrying: %s", error)
                return
            kept = set()
        for session_id, hold in before.items():
            if session_id not in kept and self._held.get(session_id) is hold:
                del self._held[session_id]
                log.warning(
                    "the lease of session %s was lost; its running work may still be committed",
                    session_id,
                )
                if self._serving.worker is not None:
                    self._serving.worker.lease_lost(session_id)
        await self._release_strays(kept)

    async def _release_strays(self, kept: Iterable[str]) -> None:
        """Release leases that are ours in the store but not held here; `keep` renews them, too.

        A move holds a lease for a moment, too. So only a lease that was a stray at the last renewal
        is released.
        """
        strays = {session_id for session_id in kept if session_id not in self._held}
        for session_id in strays & self._strays:
            await self._store.intake(session_id, self._release_unheld, only=True)
        self._strays = strays

    def _release_unheld(self, intake: Intake) -> None:
        lease = intake.lease
        if lease is not None and lease.owner == self.owner and intake.session_id not in self._held:
            intake.release(lease.fence)

    async def leave(self) -> None:
        """Release all leases."""
        self._held.clear()
        await self._store.leave(self.owner)
