"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count


class ManualClock:
    """Time for tests: `now` changes, and sleepers wake, only by `advance`."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has advanced by `seconds`; zero or less is one turn of the loop."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move the clock, and wake the sleepers that are due, the earliest first.

        A negative number sets the clock back and wakes no sleeper. Safe to call from any thread.
        """
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            woken = heappop(self._sleepers)[2]
            if not woken.done():
                woken.get_loop().call_soon_threadsafe(_wake, woken)

    @property
    def waiting(self) -> list[float]:
        """The times at which sleepers will wake, the earliest first."""
        return sorted(at for at, _, woken in self._sleepers if not woken.done())


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
