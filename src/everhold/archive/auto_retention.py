"""Sweeping by itself: every so often, by one of the processes that keep a database open. Off unless
it was asked for.

One duty says when the next sweep is. Whoever moves it on sweeps; one that dies in the middle leaves
the rest to the next. No session waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from everhold.archive.retention import RetentionPlan, SweepReport, sweep_sessions
from everhold.errors import EverholdError, Overtaken
from everhold.ports.program import Clock
from everhold.ports.store import Duty, Store

log = logging.getLogger("everhold")

SWEEP_KIND: Final = "sweep"
_ID: Final = "retention"


class AutoRetention:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        plan: RetentionPlan,
        every: float,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._plan = plan
        self._every = every
        self._tasks = tasks  # those that closing waits for, and then stops
        self._next = 0.0
        self._busy = False

    async def see_to(self, now: float) -> bool:
        """A chore of reconciliation: begin a sweep, if it is time."""
        if now < self._next or self._busy:
            return False
        duty = await self._store.duty(SWEEP_KIND, _ID) or Duty(
            SWEEP_KIND, _ID, {"began_at": now - self._every}
        )
        self._next = duty.body["began_at"] + self._every  # another process may want it less often
        if now < self._next:
            return False
        self._next = now + self._every
        try:
            await self._store.undertake(
                [Duty(SWEEP_KIND, _ID, {"began_at": now}, self._next, duty.version)]
            )
        except Overtaken:
            return False
        self._busy = True
        task = asyncio.create_task(self._sweep())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def _sweep(self) -> None:
        try:
            _tell(await sweep_sessions(self._store, self._plan, self._clock.now()))
        except EverholdError as error:
            log.warning("the sweep did not end: %s", error)
        finally:
            self._busy = False


def _tell(swept: SweepReport) -> None:
    if swept.deleted:
        log.info("swept %d sessions, %d bytes", len(swept.deleted), swept.bytes)
