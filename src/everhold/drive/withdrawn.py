"""Work that nobody waits for any more: it is stopped here, when another process has withdrawn what it is for.

What this process withdraws itself it stops at once. What others do (a turn is cancelled, a session has ended, somebody
took over) is seen in the store, where the mark of the work is gone.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from everhold.core.errors import UnknownSession
from everhold.drive.dispatch import Dispatch
from everhold.drive.sessions import Sessions

log = logging.getLogger("everhold")

#: Seconds between two looks, at least; and for each session that was looked at.
PAUSE: Final = 1.0
EACH: Final = 0.05


class Withdrawn:
    def __init__(self, sessions: Sessions, dispatch: Dispatch) -> None:
        self._sessions, self._dispatch = sessions, dispatch
        self._next = 0.0  # the loop's time of the next look, at the earliest
        self._again: asyncio.TimerHandle | None = None  # calls for it, if somebody wanted one before

    async def look(self, now: float) -> bool:
        """A chore of the caretaker: stop what was withdrawn, now or soon."""
        doing, loop = self._dispatch.doing, asyncio.get_running_loop()
        if not doing:
            return False
        if loop.time() < self._next:
            if self._again is None or self._again.when() < loop.time():
                self._again = loop.call_at(self._next, self._sessions.poke)
            return False
        looked = [each for each, jobs in self._sessions.jobs.items() if not doing.isdisjoint(jobs.values())]
        for session_id in looked:
            self._stop(session_id, set(doing), await self._marked(session_id))
        self._next = loop.time() + PAUSE + EACH * len(looked)
        return False

    async def _marked(self, session_id: str) -> set[int]:
        """The queries of a session that this process is known to work on."""
        try:
            effects = (await self._sessions.store.load(session_id, since=-1)).effects
        except UnknownSession:
            return set()
        return {effect.q for effect in effects if effect.worker == self._dispatch.worker}

    def _stop(self, session_id: str, before: set[asyncio.Task[Any] | None], marked: set[int]) -> None:
        """Stop what is not marked; what began after the look is another look's."""
        jobs = self._sessions.jobs.get(session_id, {})
        gone = {q: task for q, task in jobs.items() if q not in marked and task in before & self._dispatch.doing}
        for q, task in gone.items():
            log.info("q-%d of session %s was withdrawn elsewhere: what is done for it here is stopped", q, session_id)
            del jobs[q]
            task.cancel()
        if gone:
            if not jobs:
                self._sessions.jobs.pop(session_id, None)
            self._sessions.changed(session_id)
