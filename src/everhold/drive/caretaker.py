"""What happens by itself while a runtime is open: timers fire, accepted answers are handed over, the sessions of
dead processes are taken up, idle ones leave memory, and this process says that it lives.

One task per runtime. It sleeps until the earliest moment something is due, or until it hears that another process
wrote to the store; where the store hears nothing, it looks a few times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from everhold.core.errors import EverholdError, Overtaken, StoreBusy
from everhold.drive.dispatch import Dispatch
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.program import Clock
from everhold.ports.store import LOOK_EVERY

log = logging.getLogger("everhold")

AT_ONCE: Final = 100

#: Something else to see to at each look, at this moment: returns whether to look again at once.
Chore = Callable[[float], Awaitable[bool]]


class Caretaker:
    def __init__(
        self, sessions: Sessions, runner: Runner, dispatch: Dispatch, clock: Clock, *, idle: float, ttl: float
    ) -> None:
        self._sessions, self._runner, self._dispatch = sessions, runner, dispatch
        self._clock = clock
        self._idle = idle
        self._ttl = ttl
        self._poked = asyncio.Event()
        self._heard = False
        self._look_every = LOOK_EVERY
        self._skip: dict[str, tuple[int, float]] = {}  # sessions that did not move: at which revision, and when
        self._looked = 0.0  # when all were looked at
        self.chores: list[Chore] = []
        self._task: asyncio.Task[None] | None = None
        sessions.poke = self._poked.set

    def start(self) -> None:
        self._look_every = self._sessions.store.listen(self._hear)
        self._task = asyncio.get_running_loop().create_task(self._keep_house())

    def _hear(self) -> None:
        self._heard = True
        self._poked.set()

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
        if self._sessions.jobs:
            await self._dispatch.introduce()
        for live in self._sessions.idle(now, self._idle):
            self._sessions.drop(live)
        look = look or self._poked.is_set()  # somebody called while nobody was listening
        self._poked.clear()  # before looking: what happens meanwhile is looked at next
        moved = await self.move() if look else False
        if moved:
            return True
        return await self._rest()

    async def _rest(self) -> bool:
        """Sleep until something may have happened; returns whether it did."""
        due = await self._due()
        now = self._clock.now()
        if due is not None and self._looked <= due < now:
            return True
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._poked.wait())]
        if due is not None and due >= now:  # else it cannot move here, and is no reason to hurry
            waits.append(asyncio.ensure_future(self._clock.sleep(due - now + 0.0005)))
        try:
            done, _ = await asyncio.wait(waits, timeout=self._look_every, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if done and not self._heard:
            return True
        self._heard = False
        if await self._sessions.store.changed():
            self._sessions.changed()
            return True
        if done:
            return True
        return self._clock.now() >= self._looked + self._ttl / 2  # a process may have died, which writes nothing

    async def _due(self) -> float | None:
        """The earliest moment at which anything moves by itself."""
        store = self._sessions.store
        moments = [await store.next_due(), await store.next_duty() if self.chores else None]
        return min((at for at in moments if at is not None), default=None)

    async def move(self) -> bool:
        """Move the sessions whose time has come; returns whether to look again at once."""
        store = self._sessions.store
        self._looked = now = self._clock.now()
        orphans = await store.orphans(await self._dispatch.alive())
        limit = AT_ONCE + len(self._skip)
        due = await store.due(now, limit)
        moved = len(due) == limit
        if not moved:  # these are all: others that were skipped have moved since
            self._skip = {each: self._skip[each] for each in (*orphans, *due) if each in self._skip}
        for session_id in orphans:
            moved = await self._one(session_id, self._dispatch.recover, now) or moved
        for session_id in due:
            moved = await self._one(session_id, self._runner.pump, now) or moved
        for chore in self.chores:
            moved = await chore(now) or moved
        return moved

    async def _one(self, session_id: str, act: Any, now: float) -> bool:
        """Move one session, unless it did not move before and nothing happened to it since."""
        head = (await self._sessions.store.load(session_id, since=-1)).head
        revision, looked = self._skip.get(session_id, (-1, now))
        if revision == head.revision and not (head.due_at is not None and looked <= head.due_at < now):
            return False
        self._sessions.overtaken(session_id, head.revision)
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
            self._skip[session_id] = (head.revision, now)
            return False
        self._skip.pop(session_id, None)
        return True
