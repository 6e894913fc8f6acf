"""The mover of one process by itself: a queue of requests, and timers.

Requests for one session never run side by side. A request that comes while the session is being
moved moves it once more. A few sessions are moved at a time, in the order in which they were
requested.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from everhold.errors import EverholdError
from everhold.movers.timers import MoveTimers
from everhold.ports.mover import Move, Next
from everhold.ports.program import Clock

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
