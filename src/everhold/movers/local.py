"""The mover of a process without leases: a queue of requested moves, and timers.

Moves of one session never run in parallel. A request during a move causes one more move. At most
`MAX_CONCURRENT_MOVES` sessions move at a time, in the order of their requests.

Only the nearest timers are in memory. All of them are in the store, and reconciliation finds them.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from everhold.errors import EverholdError
from everhold.ports.mover import Move, Next
from everhold.ports.program import Clock

#: The nearest timers that stay in memory when the heap is trimmed, at twice this size.
MAX_TIMERS: Final = 1000


class MoveTimers:
    """Calls `fire` once with each session at the earliest time that was set for it."""

    def __init__(self, clock: Clock, fire: Callable[[str], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[float, str]] = []  # may hold times that were replaced
        self._due: dict[str, float] = {}
        self._set = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set(self, session_id: str, at: float) -> None:
        if at >= self._due.get(session_id, inf):
            return
        self._due[session_id] = at
        heapq.heappush(self._heap, (at, session_id))
        if len(self._heap) > 2 * MAX_TIMERS:
            self._trim()
        if self._heap[0] == (at, session_id):
            self._set.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _trim(self) -> None:
        """Keep only the nearest of the current times."""
        self._heap = heapq.nsmallest(
            MAX_TIMERS, ((at, session_id) for session_id, at in self._due.items())
        )
        self._due = {session_id: at for at, session_id in self._heap}

    async def stop(self) -> None:
        """Forget all timers."""
        self._heap.clear()
        self._due.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._heap:
            self._set.clear()
            now = self._clock.now()
            while self._heap and self._heap[0][0] < now:
                at, session_id = heapq.heappop(self._heap)
                if self._due.get(session_id) == at:
                    del self._due[session_id]
                    self._fire(session_id)
            if self._heap:
                await self._sleep(self._heap[0][0] - self._clock.now() + 0.0005)

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the time is over or an earlier one is set."""
        waits = [
            asyncio.ensure_future(each) for each in (self._clock.sleep(seconds), self._set.wait())
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


log = logging.getLogger("everhold")

#: Sessions that move at the same time.
MAX_CONCURRENT_MOVES: Final = 8
#: Seconds until a move is retried for which the store was unavailable.
STORE_RETRY_DELAY: Final = 1.0
#: Seconds until a move is retried that raised an unexpected error.
FAILED_MOVE_DELAY: Final = 60.0


class LocalMover:
    """See `Mover`. Unless it serves, it drops all requests: then only the caller's verbs move
    sessions.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers = MoveTimers(clock, self.send)
        self._wanted: dict[str, None] = {}  # sessions with a requested move, in order
        self._running: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._serving = False

    def send(self, session_id: str, *, at: float | None = None) -> None:
        if not self._serving:
            return
        if at is not None:
            self._timers.set(session_id, at)
            return
        self._wanted[session_id] = None
        self._woken.set()

    async def serve(self, move: Move) -> None:
        self._serving = True
        while self._serving:
            self._woken.clear()
            for session_id in [each for each in self._wanted if each not in self._running]:
                if len(self._running) < MAX_CONCURRENT_MOVES:
                    del self._wanted[session_id]
                    task = asyncio.get_running_loop().create_task(self._move(move, session_id))
                    self._running[session_id] = task
            await self._woken.wait()

    async def _move(self, move: Move, session_id: str) -> None:
        found = Next()
        try:
            found = await move(session_id)
        except EverholdError as error:
            log.warning("could not move session %s; retrying: %s", session_id, error)
            found = Next(self._clock.now() + STORE_RETRY_DELAY)
        except Exception:
            log.exception("could not move session %s", session_id)
            found = Next(self._clock.now() + FAILED_MOVE_DELAY)
        finally:
            del self._running[session_id]
            self._woken.set()
        if found.at is not None:
            self.send(session_id, at=found.at)

    async def rest(self) -> None:
        """Wait until all requested moves have ended."""
        while self._wanted or self._running:
            if self._running:
                await asyncio.wait(set(self._running.values()), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)

    async def leave(self, grace: float) -> None:
        self._serving = False
        self._wanted.clear()
        self._woken.set()
        await self._timers.stop()
        running = set(self._running.values())
        if running and grace > 0:
            await asyncio.wait(running, timeout=grace)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
