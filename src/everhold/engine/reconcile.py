"""Reconciliation: finds every session that needs a move and has none, such as one of a dead worker.

A request for a move is lost if its process dies. Its reason is in the store: an accepted input that
was not delivered, a due timer, a mark without a running task, queued input of an agent, or a model
question that a worker here may answer. A *look* queries the store for those sessions and requests
their moves again. A runtime looks when it opens, when another process wrote without naming the
session, and at a slow interval.

The same loop serves no session in particular: it renews this process's worker row, checks which
workers are alive, removes idle sessions from memory, cancels work that another process withdrew,
and runs the chores of schedules, triggers and notifications.

A runtime that only moves what it is asked to still renews its row while it works. It listens to
other processes while a caller waits for a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from everhold.core.query import Kind
from everhold.core.session import SessionId
from everhold.engine.answer_policy import AnswerPolicy
from everhold.engine.effects import STORE_AWAY_ERRORS, EffectDispatcher
from everhold.engine.leases import Leases
from everhold.engine.liveness import Presence, ProcessWatcher, WorkerLiveness, make_lease_owner
from everhold.engine.move import SessionMoves, find_input_query
from everhold.engine.serving import Serving
from everhold.engine.session_cache import SessionCache
from everhold.errors import EverholdError, StoreBusy, UnknownSession
from everhold.ports.mover import Mover, Next
from everhold.ports.program import REGISTRY, Clock
from everhold.ports.store import (
    FROM_OPEN,
    ITEM,
    LOOK_EVERY,
    MARK,
    PARKED,
    TIMER,
    RemoteChange,
    UnmovedSession,
)

log = logging.getLogger("everhold")

#: Sessions that one look finds at most, for each reason.
AT_ONCE: Final = 100
#: The pause after a look that other processes' writes caused: this many times the duration of the
#: look, and seconds at most.
LOOK_PAUSE_FACTOR: Final = 10
MAX_LOOK_PAUSE: Final = 0.05
#: Seconds that another worker has before this one looks at the same change.
HEAD_START: Final = 0.05
#: The longest pause between two tries to reach an unavailable store, in seconds.
MAX_STORE_RETRY_DELAY: Final = 5.0
#: Seconds after which the row of a dead worker is deleted.
DEAD_WORKER_RETENTION: Final = 86_400.0
#: The least pause between two searches for withdrawn work, in seconds, plus a part for each session
#: that was checked.
WITHDRAWN_LOOK_PAUSE: Final = 1.0
WITHDRAWN_LOOK_PER_SESSION: Final = 0.05

#: Runs at each look, with its time. Returns whether to look again immediately.
Chore = Callable[[float], Awaitable[bool]]


class Reconciler:
    def __init__(
        self,
        sessions: SessionCache,
        effects: EffectDispatcher,
        moves: SessionMoves,
        leases: Leases,
        policy: AnswerPolicy,
        presence: Presence,
        serving: Serving,
        clock: Clock,
        *,
        wakeup: asyncio.Event,
        unbegun: set[str],
        idle: float,
    ) -> None:
        self._sessions = sessions
        self._effects = effects
        self._moves = moves
        self._leases = leases
        self._policy = policy
        self._presence = presence
        self._serving = serving
        self._store = sessions.store
        self._clock = clock
        self._idle = idle
        self._mover: Mover | None = None
        self._poked = wakeup
        self._heard = asyncio.Event()
        self._ours = False  # whether a change was heard that no other worker handles first
        self._rested = 0.0  # loop time of the end of the pause after a look
        self._look_every = LOOK_EVERY
        self._tried: set[UnmovedSession] = set()  # found by an earlier look, and not changed since
        self._unbegun = unbegun  # sessions with a requested move that has not started
        self._knew = dict(REGISTRY)  # the programs known at the last look
        self._looked = 0.0  # time of the last look
        self._death: float | None = (
            None  # when the next worker counts as dead, unless it renews its row
        )
        self._buried: set[str] = set()  # dead workers whose leases were released
        # loop time of the next search for withdrawn work, at the earliest
        self._withdrawing = 0.0
        self._again: asyncio.TimerHandle | None = None  # starts that search
        self.living: frozenset[str] = frozenset()  # workers alive at the last look
        self._vigil = ProcessWatcher(self._poked.set)
        self._chores: list[Chore] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add_chore(self, chore: Chore) -> None:
        """Run this at each look from now on."""
        self._chores.append(chore)

    @property
    def started(self) -> bool:
        return bool(self._tasks)

    def start(self, mover: Mover | None, *, looks: bool = True, every: float | None = None) -> None:
        """Start the loops. Moves are requested of `mover`; without one, none are.

        `every` is the interval of looks in seconds; by default the store says it. Without `looks`,
        only calls of `look` look.
        """
        self._presence.pulse.begin()
        self._mover = mover
        work = [
            self._keep_alive(),
            self._keep_looking(every) if mover and looks else self._keep_listening(),
        ]
        self._tasks = [asyncio.get_running_loop().create_task(one) for one in work]

    def poke(self) -> None:
        """Look now: something may have changed."""
        self._poked.set()

    async def stop(self, *, looks_only: bool = False) -> None:
        """Stop looking. With `looks_only`, this process's row is still renewed."""
        stopped = self._tasks[1:] if looks_only else self._tasks
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
        self._tasks = [task for task in self._tasks if task not in stopped]
        if not looks_only:
            self._vigil.close()

    # ---- liveness

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(self._leases.timings.every)
            self._presence.pulse.feel(self._leases.timings)
            try:
                await self.beat()
            except EverholdError as error:
                log.warning("could not renew this process's worker row: %s", error)
            except Exception:
                log.exception("could not renew this process's worker row")

    async def beat(self) -> None:
        """Renew this process's worker row and leases, if any work depends on them."""
        if self._sessions.jobs or len(self._leases) or self._serving.worker is not None:
            await self._presence.introduce()
            await self._leases.renew()

    # ---- changes by other processes

    def _hear(self, news: RemoteChange) -> None:
        """Another process has written."""
        for session_id in news.sessions:
            if news.heads:
                self._sessions.suspect(session_id)
            self._sessions.changed(session_id)
            if session_id in self._sessions.jobs:
                self._heard.set()  # its work here may have been withdrawn
        if news.sessions and not news.moves:
            return
        ours = news.first == self._presence.worker or news.first not in self.living
        if self._mover is None or not news.sessions or not ours:
            self._ours = self._ours or ours
            # another worker handles it first, or the change names no session: a look finds out
            self._heard.set()
            return
        for session_id in news.sessions:
            self._mover.send(session_id)

    async def _keep_listening(self) -> None:
        """Wake the tasks that wait for a session when another process may have moved it."""
        sessions = self._sessions
        patience = None
        while True:
            await sessions.awaited.wait()
            if patience is None:
                await asyncio.sleep(LOOK_EVERY)  # most waits are short and for this process only
                if not sessions.awaited.is_set():
                    continue
                patience = sessions.store.listen(self._hear)
            try:
                if self._heard.is_set() or await sessions.store.changed():
                    self._heard.clear()
                    sessions.changed()
            except EverholdError as error:
                log.warning("could not read the changes of other processes: %s", error)
            with suppress(TimeoutError):
                # `asyncio.wait_for` of Python 3.11 may lose a cancellation
                async with asyncio.timeout(patience):
                    await self._heard.wait()

    # ---- looking

    async def _keep_looking(self, every: float | None) -> None:
        heard = self._sessions.store.listen(self._hear, self._presence.worker)
        self._look_every = heard if every is None else min(every, heard)
        look = True
        wait = LOOK_EVERY
        while True:
            try:
                look = await self._round(look)
                wait = LOOK_EVERY
            except asyncio.CancelledError:
                raise
            except StoreBusy:
                look = True
            except STORE_AWAY_ERRORS as error:
                log.warning("the store is unavailable; sessions do not move: %s", error)
                look = True
                await asyncio.sleep(wait)
                wait = min(wait * 2, MAX_STORE_RETRY_DELAY)
            except Exception:
                log.exception("reconciliation failed; it is retried")
                look = True
                await asyncio.sleep(LOOK_EVERY)

    async def _round(self, look: bool) -> bool:
        """One look and the pause after it. Returns whether the next round must look."""
        now = self._clock.now()
        if self._sessions.jobs:
            await self._presence.introduce()
        for live in self._sessions.idle(now, self._idle):
            self._sessions.drop(live)
        look = look or self._poked.is_set()  # a poke before this round began to wait
        self._poked.clear()  # before the look, so that a change during it causes another
        if look and await self.look():
            return True
        return await self._rest()

    async def _rest(self) -> bool:
        """Sleep until something may have changed. Returns whether to look."""
        due = await self._due()
        now = self._clock.now()
        moments = [at for at in (due, self._death) if at is not None]
        # it became due since the last look began
        if any(at < now for at in moments):
            return True
        sleeps = [self._clock.sleep(at - now + 0.0005) for at in moments]
        patience = min(LOOK_EVERY, self._look_every) if self._vigil.blind else self._look_every
        woken = await self._woken(patience, *sleeps)
        if woken and not self._heard.is_set():
            return True
        if not self._heard.is_set():
            self._ours = await self._store.changed()
        if self._heard.is_set() or self._ours:
            await self._in_peace(due)
            return True
        if self._vigil.blind and self._vigil.ended():
            return True
        # leases may have expired
        return self._clock.now() >= self._looked + self._leases.timings.ttl / 2

    async def _woken(self, timeout: float, *sleeps: Awaitable[None]) -> bool:
        """Wait for a poke, a change by another process, or the end of a sleep. False on timeout."""
        waits = [
            asyncio.ensure_future(each)
            for each in (self._poked.wait(), self._heard.wait(), *sleeps)
        ]
        try:
            done, _ = await asyncio.wait(
                waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    async def _in_peace(self, due: float | None) -> None:
        """Pause before the next look, so that a busy database does not cause endless looks.

        Ends early when a timer is due or a look is requested. Waiting tasks are woken meanwhile.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + HEAD_START
        while True:
            self._heard.clear()
            self._sessions.changed()
            ours = self._ours
            self._ours = False
            until = self._rested if ours else max(until, self._rested)
            left = until - loop.time()
            if due is not None:
                left = min(left, due - self._clock.now())
            if left <= 0 or not await self._woken(left) or self._poked.is_set():
                return

    async def _due(self) -> float | None:
        """The earliest due time of a timer or duty after the last look. What was due before could
        not
        be moved here.
        """
        moments = [
            await self._store.next_due(),
            await self._store.next_duty(self._looked) if self._chores else None,
        ]
        return min((at for at in moments if at is not None and at >= self._looked), default=None)

    async def look(self) -> bool:
        """Request the moves of all sessions that need one, and run the chores. Returns whether to
        look again immediately.
        """
        wanted, more = await self._look()
        fresh = [session_id for session_id in wanted if session_id not in self._unbegun]
        for session_id in wanted:
            if self._mover is not None:
                self._unbegun.add(session_id)
                self._mover.send(session_id)
        return await self._do_chores() or more or bool(fresh)

    async def move(self) -> bool:
        """Move all sessions that need it, one after the other, and run the chores. Returns whether
        anything moved.
        """
        wanted, more = await self._look()
        for session_id in wanted:
            try:
                found = await self._moves.move(session_id)
            except STORE_AWAY_ERRORS as error:
                log.warning("could not move session %s; retrying: %s", session_id, error)
                found = Next(self._clock.now())
            more = found.moved or more
            if found.at is not None and not found.moved:  # no mover will do it at that time
                self._tried = {row for row in self._tried if row.id != session_id}
        return await self._do_chores() or more

    async def _look(self) -> tuple[list[SessionId], bool]:
        """Find the living workers and the sessions that need a move; also returns whether there may
        be more.
        """
        self._looked = now = self._clock.now()
        began = asyncio.get_running_loop().time()
        found = await self._presence.census()
        self.living = found.living
        buried = await self._bury(found)
        self._death = None if found.next is None else self._clock.now() + max(found.next, 0.0)
        self._vigil.watch(found.near)
        await self._stop_withdrawn()
        wanted, more = await self._find(now)
        for session_id in wanted:
            self._sessions.suspect(session_id)
        looked = asyncio.get_running_loop().time()
        self._rested = looked + min((looked - began) * LOOK_PAUSE_FACTOR, MAX_LOOK_PAUSE)
        return wanted, more or buried  # the leases of dead workers are free now

    async def _do_chores(self) -> bool:
        more = False
        for chore in self._chores:
            more = await self._see_to(chore, self._looked) or more
        return more

    async def left(self, *, older: bool = False) -> dict[str, set[str]]:
        """All sessions that need a move now, with the reasons, including those that only workers
        move.

        With `older`, includes model questions of sessions that do not say who answers them.
        """
        self.living = (await self._presence.census()).living
        found: dict[str, set[str]] = {}
        for row in await self._unmoved(self._clock.now(), 1000, adopts=True, older=older):
            found.setdefault(row.id, set()).add(row.why)
        return found

    async def _find(self, now: float) -> tuple[list[SessionId], bool]:
        """The sessions that need a move, oldest first, and whether there may be more.

        A session that was tried before and has not changed since is left to other processes. A
        session whose requested move has not started is returned again: the request may be lost.
        """
        # a newly registered program may move what could not be moved before
        if self._knew != REGISTRY:
            self._knew = dict(REGISTRY)
            self._tried.clear()
        limit = AT_ONCE + len(self._tried)
        adopts = self._serving.adopts
        older = self._serving.adopts_older
        rows = await self._unmoved(now, limit, adopts=adopts, older=older)
        fresh = [row for row in rows if row not in self._tried or row.id in self._unbegun]
        if len(rows) < limit:  # the list is complete: forget sessions that have moved
            self._tried = set(rows)
            self._unbegun.intersection_update({row.id for row in rows})
        else:
            self._tried.update(fresh)
        return list(dict.fromkeys(row.id for row in fresh)), bool(fresh) and len(rows) >= limit

    async def _unmoved(
        self, now: float, limit: int, *, adopts: bool, older: bool
    ) -> list[UnmovedSession]:
        alive = set(self.living) - {self._presence.worker}
        parked = adopts and self._policy.answers_models
        rows = await self._store.unmoved(now, alive, parked=parked, limit=limit)
        if parked and older:
            rows += await self._older()
        rows += await self._in_work()
        return [
            row
            for row in rows
            if not self._is_working(row)
            and (row.why != TIMER or row.since < now)
            and (row.why != MARK or row.since <= now)  # a later one waits for its next attempt
        ]

    async def _in_work(self) -> list[UnmovedSession]:
        """Conversations with queued input that this process works on. `unmoved` omits them because
        of the lease.
        """
        mine = [each for each in self._sessions.jobs if self._may_hear(each)]
        found = await self._store.standing(mine) if mine else {}
        return [
            UnmovedSession(id, ITEM, 0.0, one.revision, one.came)
            for id, one in found.items()
            if one.waiting
        ]

    def _may_hear(self, session_id: str) -> bool:
        live = self._sessions.cached(session_id)
        return live is None or find_input_query(live.opened) is not None

    async def _older(self) -> list[UnmovedSession]:
        """Sessions of older databases with a model question. They do not say who answers it."""
        asked = await self._store.inbox(kind=Kind.LLM, to=None, limit=AT_ONCE)
        return [
            UnmovedSession(birth.id, PARKED, at, query.q)
            for birth, query, at in asked
            if not birth.llm
        ]

    def _is_working(self, row: UnmovedSession) -> bool:
        """Whether a row is a mark of this process with a running task."""
        return row.why == MARK and row.id in self._sessions.jobs

    async def _see_to(self, chore: Chore, now: float) -> bool:
        """Run a chore. Its failure does not stop the others."""
        try:
            return await chore(now)
        except STORE_AWAY_ERRORS:
            raise
        except Exception:
            log.exception("a chore failed")
            return False

    async def _bury(self, found: WorkerLiveness) -> bool:
        """Release the leases of dead workers and delete the rows of those dead for long. Returns
        whether any lease was released.
        """
        self._buried &= {worker.id for worker in found.dead}
        before = len(self._buried)
        for worker in found.dead:
            # the leases of an expired worker have expired with it
            if worker.id not in self._buried and not worker.expired:
                self._buried.add(worker.id)
                await self._store.leave(make_lease_owner(worker))
            if worker.age > DEAD_WORKER_RETENTION:
                await self._store.release(worker.id)
        return len(self._buried) > before

    # ---- withdrawn work

    async def _stop_withdrawn(self) -> None:
        """Cancel local work whose query another process withdrew: its mark is gone from the store.

        The work of queries withdrawn in this process is cancelled by the step that withdraws them.
        """
        doing = self._effects.doing
        loop = asyncio.get_running_loop()
        if not doing:
            return
        if loop.time() < self._withdrawing:
            if self._again is None or self._again.when() < loop.time():
                self._again = loop.call_at(self._withdrawing, self.poke)
            return
        looked = [
            each
            for each, jobs in self._sessions.jobs.items()
            if not doing.isdisjoint(jobs.values())
        ]
        for session_id in looked:
            self._stop(session_id, set(doing), await self._marked(session_id))
        self._withdrawing = (
            loop.time() + WITHDRAWN_LOOK_PAUSE + WITHDRAWN_LOOK_PER_SESSION * len(looked)
        )

    async def _marked(self, session_id: str) -> set[int]:
        """The queries of a session that the store marks as work of this process."""
        try:
            effects = (await self._store.load(session_id, since=FROM_OPEN)).effects
        except UnknownSession:
            return set()
        return {effect.q for effect in effects if effect.worker == self._presence.worker}

    def _stop(
        self, session_id: str, before: set[asyncio.Task[Any] | None], marked: set[int]
    ) -> None:
        """Cancel work without a mark. `before` excludes work that started after the load."""
        jobs = self._sessions.jobs.get(session_id, {})
        gone = {
            q: task
            for q, task in jobs.items()
            if q not in marked and task in before & self._effects.doing
        }
        for q, task in gone.items():
            log.info(
                "q-%d of session %s was withdrawn by another process; its work here is cancelled",
                q,
                session_id,
            )
            del jobs[q]
            task.cancel()
        if gone:
            if not jobs:
                self._sessions.jobs.pop(session_id, None)
            self._sessions.changed(session_id)
