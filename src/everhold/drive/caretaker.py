"""What happens by itself while a runtime is open: timers fire, accepted answers are handed over, the sessions of
dead processes are taken up, idle ones leave memory, and this process says that it lives.

One task per runtime. It sleeps until the earliest moment something is due, and looks a few times a second whether
another process wrote to the store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from everhold.core.errors import EverholdError, Overtaken, StoreBusy
from everhold.drive.dispatch import Dispatch
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.program import Clock

log = logging.getLogger("everhold")

LOOK_EVERY: Final = 0.2
AT_ONCE: Final = 100


class Caretaker:
    def __init__(
        self, sessions: Sessions, runner: Runner, dispatch: Dispatch, clock: Clock, *, idle: float, ttl: float
    ) -> None:
        self._sessions, self._runner, self._dispatch = sessions, runner, dispatch
        self._clock = clock
        self._idle = idle
        self._ttl = ttl
        self._poked = asyncio.Event()
        self._skip: dict[str, int] = {}  # sessions that cannot move here, by revision
        self._task: asyncio.Task[None] | None = None
        self._next_beat = 0.0
        sessions.poke = self._poked.set

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_house())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_house(self) -> None:
        look = True
        while True:
            try:
                look = await self._round(look)
            except asyncio.CancelledError:
                raise
            except StoreBusy:
                look = True
            except Exception:
                log.exception("the caretaker stumbled")
                look = True
                await asyncio.sleep(LOOK_EVERY)

    async def _round(self, look: bool) -> bool:
        """One look at the house; returns whether another is needed at once."""
        now = self._clock.now()
        if self._sessions.jobs and now >= self._next_beat:
            await self._dispatch.beat()
            self._next_beat = now + self._ttl / 3
        for live in self._sessions.idle(now - self._idle):
            self._sessions.drop(live)
        moved = await self.move() if look else False
        self._poked.clear() if not moved else None
        if moved:
            return True
        return await self._rest()

    async def _rest(self) -> bool:
        """Sleep until something may have happened; returns whether it did."""
        due = await self._sessions.store.next_due()
        now = self._clock.now()
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._poked.wait())]
        if due is not None:
            waits.append(asyncio.ensure_future(self._clock.sleep(max(due - now, 0) + 0.0005)))
        try:
            done, _ = await asyncio.wait(waits, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if done:
            return True
        if await self._sessions.store.changed():
            self._sessions.changed()
            return True
        return bool(self._sessions.jobs) or bool(self._skip)

    async def move(self) -> bool:
        """Move every session whose time has come; returns whether any moved."""
        moved = await self._take_up()
        for session_id in await self._sessions.store.due(self._clock.now(), AT_ONCE):
            if await self._one(session_id, self._runner.pump):
                moved = True
        return moved

    async def _take_up(self) -> bool:
        living = await self._dispatch.alive()
        moved = False
        for session_id in await self._sessions.store.orphans(living):
            moved = await self._one(session_id, self._dispatch.recover) or moved
        return moved

    async def _one(self, session_id: str, act: Any) -> bool:
        head = (await self._sessions.store.load(session_id, since=-1)).head
        if self._skip.get(session_id) == head.revision:
            return False
        try:
            await act(session_id)
        except Overtaken:
            return True
        except ABSENT:
            pass  # it goes on where its program is
        except EverholdError as error:
            log.warning("session %s cannot go on here: %s", session_id, error)
        after = (await self._sessions.store.load(session_id, since=-1)).head
        if after.revision == head.revision:
            self._skip[session_id] = head.revision
            return False
        self._skip.pop(session_id, None)
        return True
