"""The worker processes of one event loop: found, filled, watched, killed, let go.

Rules
  1. A new life goes to the idle worker that holds least; if none is idle another is started, up to
     `most`.
  2. Whoever finds its worker busy with one advance for longer than `patience` gets `WorkerBusy`,
     and begins elsewhere. A queue that moves is no reason.
  3. An advance that uses more CPU time than the limit allows is killed with its worker, and its
     session has failed. A worker that uses none for five times the limit is killed, too, and its
     work is done again elsewhere: a program cannot wait, so something stopped the worker. Time in
     which this process stood still does not count.
  4. There are, or soon will be, two workers, and an idle one; one that computes for long gets less
     of the processor, and takes no place from others: beside it another may be started, up to
     `MAX_CROWD_FACTOR` times `most`. So hostile code holds up nobody but itself.
  5. A worker without work ends after a while; what it held is made again where it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from itertools import count
from typing import Final

from everhold.errors import EverholdError, WorkerFailed
from everhold.programs.lua.process import LuaWorkerProcess
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.worker_client import LuaWorker, WorkerGone

log = logging.getLogger("everhold")

_LOOK: Final = 0.01  # seconds between two looks at busy workers
_AWAY: Final = 1.0  # seconds between two looks after which this process stood still
_SPARE: Final = 0.05  # seconds after which another worker is started, so that one is idle
#: How many times `most` there may be, however many of them compute for long: each takes memory.
MAX_CROWD_FACTOR: Final = 4


class LuaWorkerPool:
    """All workers of one loop. `close` ends them."""

    def __init__(
        self,
        limits: LuaLimits | None = None,
        *,
        most: int = 8,
        patience: float = 0.02,
        idle: float = 60.0,
    ):
        self.loop = asyncio.get_running_loop()
        self.limits = limits or LuaLimits()
        self.patience = patience
        self.workers: list[LuaWorker] = []
        self.numbers = count(1)
        self._most = most
        self._idle = idle
        self._watching: asyncio.TimerHandle | None = None
        self._looked = 0.0
        self._resting: asyncio.TimerHandle | None = None
        self._sparing: asyncio.TimerHandle | None = None
        self._queue: deque[asyncio.Future[LuaWorker]] = deque()
        self._dying: list[LuaWorkerProcess] = []
        self.closed = False

    async def place(self, *, alone: bool = False) -> LuaWorker:
        """A worker for a new life, whose turn it is now; `alone` wants one that holds nothing else.

        Raises `WorkerGone` if there is none any more: one that ends now, or all of them.
        """
        if self.closed:
            raise WorkerGone
        idle = [
            worker for worker in self.workers if not worker.busy and not (alone and worker.held)
        ]
        if idle:
            chosen = min(idle, key=lambda worker: len(worker.held))
        elif self._has_room():
            chosen = self._start()
        elif alone:
            return await self.place()
        else:
            return await self._next_free()
        await chosen.turn()
        if self._sparing is None and len(self.workers) < 2:
            self._sparing = self.loop.call_later(_SPARE, self._spare)
        return chosen

    def _has_room(self) -> bool:
        """Whether another may be started."""
        if self.closed or len(self.workers) < self._most:
            return not self.closed
        now = time.monotonic()
        places = sum(not worker.is_long(now) for worker in self.workers)
        return places < self._most and len(self.workers) < MAX_CROWD_FACTOR * self._most

    def _spare(self) -> None:
        """See to it that one is idle, and that there are two; whoever waits has it."""
        self._sparing = None
        if (
            len(self.workers) < 2 or all(worker.busy for worker in self.workers)
        ) and self._has_room():
            try:
                self.freed(self._start())
            except WorkerFailed as error:  # whoever needs one is told
                log.warning("%s", error)

    async def _next_free(self) -> LuaWorker:
        mine: asyncio.Future[LuaWorker] = self.loop.create_future()
        self._queue.append(mine)
        try:
            return await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled() and mine.exception() is None:
                mine.result().finish()
            raise

    def _start(self) -> LuaWorker:
        worker = LuaWorker(self)
        self.workers.append(worker)
        if self._resting is None:
            self._resting = self.loop.call_later(self._idle, self._rest)
        return worker

    def freed(self, worker: LuaWorker) -> None:
        """A worker has nothing to do: whoever waits for any has it."""
        while self._queue and not worker.dead:
            waiting = self._queue.popleft()
            if not waiting.done():
                worker.occupy()
                waiting.set_result(worker)
                return

    def left(self, worker: LuaWorker) -> None:
        """A worker was killed; if somebody waits, another is started."""
        self.workers.remove(worker)
        self._dying.append(worker.process)
        if self.closed:
            return
        self.watch()
        if self._queue:
            self.loop.call_soon(self._replace)

    def _replace(self) -> None:
        if not self._queue or not self._has_room():
            return
        try:
            self.freed(self._start())
        except EverholdError as error:
            if not self.workers:  # else the next that is free serves them
                self._refuse(error)

    def _refuse(self, reason: Exception) -> None:
        """Tell whoever waits that there is none for him."""
        for waiting in self._queue:
            if not waiting.done():
                waiting.set_exception(reason)
        self._queue.clear()

    # ---- the clock

    def watch(self) -> None:
        """Look at the workers for as long as one is busy, or one that was killed has not ended
        yet.
        """
        if self._watching is None:
            self._watching = self.loop.call_later(_LOOK, self._look)

    def _look(self) -> None:
        self._watching = None
        now = time.monotonic()
        passed = now - self._looked
        self._looked = now
        busy = [worker for worker in self.workers if worker.busy]
        for worker in busy:
            worker.look(now, passed if passed < _AWAY else _LOOK)
        self._dying = [process for process in self._dying if not process.ended()]
        if not busy and not self._dying:
            return
        if len(busy) == len(self.workers) and any(
            now - worker.since > _LOOK for worker in busy if worker.ready
        ):
            self._spare()
        self.watch()

    def _rest(self) -> None:
        """Let go of workers that had nothing to do for a while; one that holds sessions stays if it
        is the last.
        """
        self._resting = None
        old = time.monotonic() - self._idle
        for worker in [each for each in self.workers if not each.busy and each.idle_since <= old]:
            if not worker.held or len(self.workers) > 1:
                worker.end(WorkerGone())
        if self.workers:
            self._resting = self.loop.call_later(self._idle, self._rest)

    async def close(self) -> None:
        """End all workers."""
        self.abandon()

    def abandon(self) -> None:
        """`close`, where the loop runs no more."""
        self.closed = True
        for timer in (self._resting, self._sparing):
            if timer is not None:
                timer.cancel()
        for worker in list(self.workers):
            worker.end(WorkerGone())
        if self._watching is not None:
            self._watching.cancel()
        for process in self._dying:
            process.wait()
        self._dying.clear()
        if not self.loop.is_closed():
            self._refuse(WorkerGone())
