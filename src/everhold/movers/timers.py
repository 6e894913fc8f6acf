"""When to move which session: the nearest times are kept here, all of them are in the store."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from math import inf
from typing import Final

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
