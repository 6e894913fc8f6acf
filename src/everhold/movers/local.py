"""The mover of one process by itself: a queue of requests, and timers.

Requests for one session never run side by side. A request that comes while the session is being
moved moves it once more. A few sessions are moved at a time, in the order in which they were
requested.

When to move which session: the nearest times are kept here, all of them are in the store.
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

#: Times that are kept in memory at least, the nearest; twice as many at most. Reconciliation finds
#: the others when they are due.
MOST: Final = 1000


class MoveTimers:
    """Calls `fire` with a session when its time has come, once; the earliest time that was set for
    it counts.
    """

    def __init__(self, clock: Clock, fire: Callable[[str], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[float, str]] = []  # some of them do not count any more
        self._due: dict[str, float] = {}
        self._set = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def set(self, session_id: str, at: float) -> None:
        if at >= self._due.get(session_id, inf):
            return
        self._due[session_id] = at
        heapq.heappush(self._heap, (at, session_id))
        if len(self._heap) > 2 * MOST:
            self._trim()
        if self._heap[0] == (at, session_id):
            self._set.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _trim(self) -> None:
        """Keep the nearest times only, and those that count."""
        self._heap = heapq.nsmallest(
            MOST, ((at, session_id) for session_id, at in self._due.items())
        )
        self._due = {session_id: at for at, session_id in self._heap}

    async def stop(self) -> None:
        """Forget all times."""
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
        """Sleep, unless an earlier time is set meanwhile."""
        waits = [
            asyncio.ensure_future(each) for each in (self._clock.sleep(seconds), self._set.wait())
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


log = logging.getLogger("everhold")

#: Sessions that are moved at the same time.
MAX_CONCURRENT_MOVES: Final = 8
#: Seconds until a move is tried again for which the store was away.
STORE_RETRY_DELAY: Final = 1.0
#: Seconds until a move is tried again that failed for a reason that is not known.
FAILED_MOVE_DELAY: Final = 60.0


class LocalMover:
    """See `Mover`. While it does not serve, requests are dropped: nothing moves that was not asked
    for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timers = MoveTimers(clock, self.send)
        self._wanted: dict[str, None] = {}  # sessions to be moved, in order
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
            log.warning(
                "session %s could not be moved, which is tried again: %s", session_id, error
            )
            found = Next(self._clock.now() + STORE_RETRY_DELAY)
        except Exception:
            log.exception("session %s could not be moved", session_id)
            found = Next(self._clock.now() + FAILED_MOVE_DELAY)
        finally:
            del self._running[session_id]
            self._woken.set()
        if found.at is not None:
            self.send(session_id, at=found.at)

    async def rest(self) -> None:
        """Wait until everything that was requested so far has been moved."""
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
