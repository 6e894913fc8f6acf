"""This process among others: its row among the workers, which says that it lives, and theirs."""

from __future__ import annotations

import asyncio
import os

from everhold.core.lease import LeaseTimings
from everhold.engine.liveness import (
    SuspendDetector,
    WorkerLiveness,
    classify_workers,
    get_machine_id,
)
from everhold.ports.program import Clock
from everhold.ports.store import Store, WorkerRecord


class Presence:
    def __init__(self, store: Store, clock: Clock, worker: str, timings: LeaseTimings) -> None:
        self._store = store
        self._clock = clock
        self.worker = worker
        self.timings = timings
        self.is_introduced = False
        self._beaten = 0.0  # when this process last said that it lives
        self._introducing = asyncio.Lock()
        # a store with a clock of its own is one of a test: such a clock jumps on purpose
        self.pulse = SuspendDetector() if store.time is None else SuspendDetector(lambda: 0.0)

    def live_by(self, timings: LeaseTimings) -> None:
        """Use these timings from now on: a worker may have its own."""
        self.timings = timings

    async def introduce(self) -> None:
        """Be known to live before a mark is made in this process's name, and while it works."""
        if self._is_known():
            return
        async with self._introducing:
            if not self._is_known():
                now = self._clock.now()
                me = WorkerRecord(self.worker, get_machine_id(), os.getpid(), self.timings.ttl)
                await self._store.beat(me)
                self.is_introduced = True
                self._beaten = now

    def _is_known(self) -> bool:
        return self.is_introduced and self._clock.now() < self._beaten + self.timings.every

    def withdraw(self) -> bool:
        """Say nothing more of this process; returns whether it was introduced."""
        was = self.is_introduced
        self.is_introduced = False
        return was

    async def release(self) -> None:
        """Take this process off the list."""
        await self._store.release(self.worker)

    async def workers(self) -> list[WorkerRecord]:
        """All processes that are known, with the time since each was heard of."""
        return self.pulse.heard(await self._store.workers(), self.timings)

    async def census(self) -> WorkerLiveness:
        """Which processes live, as far as this machine and the store's clock can tell."""
        return classify_workers(await self.workers(), self.worker)
