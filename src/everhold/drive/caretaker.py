"""What happens by itself while a runtime is open: timers fire, accepted answers are handed over, the sessions of
dead processes are taken up, idle ones leave memory, and this process says that it lives.

One task per runtime looks; it sleeps until the earliest moment something is due, until it hears that another process
wrote to the store or ended, or until one of them is taken for dead; where the store hears nothing, it looks a few times
a second. Another task renews what says that this process lives, whatever the first one is busy with.

A plain runtime leaves sessions alone on which a worker holds a lease. A worker has a `crew`, which takes leases. A
runtime that moves nothing by itself says that it lives all the same while it works on what it was asked to, and hears
others while somebody waits for a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from everhold.core.errors import EverholdError, Overtaken, StoreBusy, StoreDamaged, UnknownSession
from everhold.core.session import Birth
from everhold.drive.alive import Census, Vigil, owner
from everhold.drive.dispatch import AWAY, Dispatch
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.program import REGISTRY, Clock
from everhold.ports.store import BEGUN, LOOK_EVERY, OPEN, Record

log = logging.getLogger("everhold")

AT_ONCE: Final = 100
#: How many times longer than a look takes the news of others can wait for the next one, and seconds at most.
PEACE: Final = 10
LONGEST: Final = 0.05
#: Seconds that others have for what they see to first.
HEAD_START: Final = 0.05
#: Seconds between two looks at what is urgent, at least.
SHORTEST: Final = 0.005
#: Seconds between two tries to reach a store that is away, at most.
PATIENCE: Final = 5.0
#: Seconds after which the row of a worker that died is forgotten.
MOURNING: Final = 86_400.0

#: Something else to see to at each look, at this moment: returns whether to look again at once.
Chore = Callable[[float], Awaitable[bool]]
#: Moves one session, of which this was read just now.
Act = Callable[[str, Record], Awaitable[Any]]


class Crew(Protocol):
    """Who moves sessions under leases."""

    async def engage(self, found: Sequence[tuple[str, Act]]) -> None:
        """Begin to move as many as there is room for; calls for another look when it makes sense."""
        ...

    def cannot(self, birth: Birth, error: EverholdError) -> None:
        """A session does not go on here."""
        ...


class _Passed(msgspec.Struct, frozen=True):
    """A session that did not move, as it stood when it was looked at."""

    revision: int
    due_at: float | None
    at: float

    def stands(self, revision: int, now: float) -> bool:
        """Whether nothing has happened to it since, nor has its time come."""
        return revision == self.revision and not (self.due_at is not None and self.at <= self.due_at < now)


class Caretaker:
    def __init__(self, sessions: Sessions, runner: Runner, dispatch: Dispatch, clock: Clock, *, idle: float) -> None:
        self._sessions, self._runner, self._dispatch, self._leases = sessions, runner, dispatch, dispatch.leases
        self._clock = clock
        self._idle = idle
        self._poked = asyncio.Event()
        self._heard = asyncio.Event()
        self._rested = 0.0  # until when the news of others can wait
        self._look_every = LOOK_EVERY
        self._skip: dict[str, _Passed] = {}  # sessions that did not move
        self._knew = dict(REGISTRY)  # the programs that were known then
        self._looked = 0.0  # when all were looked at
        self._death: float | None = None  # when somebody is taken for dead, unless he is heard of
        self._buried: set[str] = set()  # the dead whose leases were released
        self.living: frozenset[str] = frozenset()  # who lived when it was looked
        self._vigil = Vigil(self._poked.set)
        self.chores: list[Chore] = []
        self.urgent: list[Chore] = []  # those that are seen to at once when others tell of something
        self._seen_to = 0.0  # when that was
        self._ours = False  # whether others told of something that nobody else sees to first
        self.crew: Crew | None = None
        self._tasks: list[asyncio.Task[None]] = []
        sessions.poke = self.poke

    @property
    def started(self) -> bool:
        return bool(self._tasks)

    def start(self, *, looks: bool = True, every: float | None = None) -> None:
        """Begin; without `looks`, nothing moves unless somebody else calls `move`.

        It looks `every` so often, or as the store says.
        """
        self._dispatch.pulse.begin()
        work = [self._keep_alive(), self._keep_house(every) if looks else self._keep_listening()]
        self._tasks = [asyncio.get_running_loop().create_task(one) for one in work]

    def poke(self) -> None:
        """Something may have happened: look."""
        self._poked.set()

    def _hear(self, first: str) -> None:
        """Another process has written; `first` is who sees to it before others do."""
        self._ours = self._ours or first == self._dispatch.worker or first not in self.living
        self._heard.set()

    async def stop(self, *, looks_only: bool = False) -> None:
        """Look no more; with `looks_only`, this process is still said to live."""
        stopped = self._tasks[1:] if looks_only else self._tasks
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
        self._tasks = [task for task in self._tasks if task not in stopped]
        if not looks_only:
            self._vigil.close()

    # ---- being alive

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(self._leases.timings.every)
            self._dispatch.pulse.feel(self._leases.timings)
            try:
                await self.beat()
            except EverholdError as error:
                log.warning("this process could not say that it lives: %s", error)
            except Exception:
                log.exception("this process could not say that it lives")

    async def beat(self) -> None:
        """Say that this process lives, if anything depends on it."""
        if self._sessions.jobs or len(self._leases) or self.crew is not None:
            await self._dispatch.introduce()
            await self._leases.renew()

    # ---- hearing

    async def _keep_listening(self) -> None:
        """Tell whoever waits for a session when another process may have moved it."""
        sessions, patience = self._sessions, None
        while True:
            await sessions.awaited.wait()
            if patience is None:
                await asyncio.sleep(LOOK_EVERY)  # most wait for this process only, and not for long
                if not sessions.awaited.is_set():
                    continue
                patience = sessions.store.listen(self._hear)
            try:
                if self._heard.is_set() or await sessions.store.changed():
                    self._heard.clear()
                    sessions.changed()
            except EverholdError as error:
                log.warning("other processes are not heard: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):  # `wait_for` of Python 3.11 forgets that it was cancelled
                    await self._heard.wait()

    # ---- looking

    async def _keep_house(self, every: float | None) -> None:
        heard = self._sessions.store.listen(self._hear, self._dispatch.worker)
        self._look_every = heard if every is None else min(every, heard)
        look, wait = True, LOOK_EVERY
        while True:
            try:
                look, wait = await self._round(look), LOOK_EVERY
            except asyncio.CancelledError:
                raise
            except StoreBusy:
                look = True
            except AWAY as error:
                log.warning("nothing moves by itself while the store is away: %s", error)
                look = True
                await asyncio.sleep(wait)
                wait = min(wait * 2, PATIENCE)
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
        if look and await self.move():
            return True
        return await self._rest()

    async def _rest(self) -> bool:
        """Sleep until something may have happened; returns whether it did."""
        due = await self._due()
        now, moments = self._clock.now(), [at for at in (due, self._death) if at is not None]
        if any(at < now for at in moments):  # it came after the last look, or while that was under way
            return True
        sleeps = [self._clock.sleep(at - now + 0.0005) for at in moments]
        patience = min(LOOK_EVERY, self._look_every) if self._vigil.blind else self._look_every
        woken = await self._woken(patience, *sleeps)
        if woken and not self._heard.is_set():
            return True
        if not self._heard.is_set():
            self._ours = await self._sessions.store.changed()
        if self._heard.is_set() or self._ours:
            await self._in_peace(due)
            return True
        if self._vigil.blind and self._vigil.ended():
            return True
        return self._clock.now() >= self._looked + self._leases.timings.ttl / 2  # time alone may have freed something

    async def _woken(self, timeout: float, *sleeps: Awaitable[None]) -> bool:
        """Wait until somebody calls, others tell of something, or a sleep is over; returns whether it was in time."""
        waits = [asyncio.ensure_future(each) for each in (self._poked.wait(), self._heard.wait(), *sleeps)]
        try:
            done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for wait in waits:
                wait.cancel()

    async def _in_peace(self, due: float | None) -> None:
        """Leave time for work between two looks, however much others tell; not beyond what is due, or called for.

        Whoever waits for a session is told meanwhile, and what is urgent is seen to, unless another does so first.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + HEAD_START
        while True:
            self._heard.clear()
            self._sessions.changed()
            urgent, self._ours = self._ours, False
            until = self._rested if urgent else max(until, self._rested)
            left = until - loop.time()
            if due is not None:
                left = min(left, due - self._clock.now())
            if left <= 0:
                return
            if urgent:
                await self._see_to_urgent()
            if not await self._woken(left) or self._poked.is_set():
                return

    async def _see_to_urgent(self) -> None:
        """What others tell of is seen to at once, but not all the time."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._seen_to + SHORTEST - loop.time())
        self._seen_to = loop.time()
        for chore in self.urgent:
            await self._see_to(chore, self._clock.now())

    async def _due(self) -> float | None:
        """The earliest moment since the last look at which anything moves by itself: before, it could not move here."""
        store = self._sessions.store
        moments = [await store.next_due(), await store.next_duty(self._looked) if self.chores else None]
        return min((at for at in moments if at is not None and at >= self._looked), default=None)

    async def move(self) -> bool:
        """Move the sessions whose time has come; returns whether to look again at once."""
        self._looked = now = self._clock.now()
        loop = asyncio.get_running_loop()
        urgent = [loop.create_task(self._see_to(chore, now)) for chore in self.urgent]
        try:
            moved = await self._look(now)
            return any([await task for task in urgent]) or moved
        finally:
            for task in urgent:
                task.cancel()
            await asyncio.gather(*urgent, return_exceptions=True)

    async def _look(self, now: float) -> bool:
        store, began = self._sessions.store, asyncio.get_running_loop().time()
        found = await self._dispatch.census()
        self.living = found.living
        buried = await self._bury(found)
        self._death = None if found.next is None else self._clock.now() + max(found.next, 0.0)
        self._vigil.watch(found.near)
        orphans = await store.orphans(set(found.living))
        self._learn()
        skipped = len(self._skip)
        due = await store.due(now, AT_ONCE + skipped)
        moved = len(due) == AT_ONCE + skipped
        if not moved:  # these are all: others that were skipped have moved since
            self._skip = {each: self._skip[each] for each in (*orphans, *due) if each in self._skip}
        acts: list[tuple[str, Act]] = [(session_id, self._dispatch.recover) for session_id in orphans]
        acts += [(session_id, self._runner.pump) for session_id in due]
        if self._skip:
            still = await self._still(session_id for session_id, _ in acts)
            acts = [(session_id, act) for session_id, act in acts if session_id not in still]
        looked = asyncio.get_running_loop().time()
        self._rested = looked + min((looked - began) * PEACE, LONGEST)
        if self.crew is not None:
            await self.crew.engage(acts)
            moved = moved and len(self._skip) > skipped  # those that do not move here hide others
        else:
            for session_id, act in acts:
                moved = await self._alone(session_id, act) or moved
        for chore in self.chores:
            moved = await self._see_to(chore, now) or moved
        return moved or buried  # what they held is free

    def _learn(self) -> None:
        """What did not move may do so with a program that is known only now."""
        if self._knew != REGISTRY:
            self._knew = dict(REGISTRY)
            self._skip.clear()

    async def _still(self, found: Iterable[str]) -> set[str]:
        """Those that did not move before, and to which nothing has happened since."""
        skipped = {session_id: self._skip[session_id] for session_id in found if session_id in self._skip}
        standing = await self._sessions.store.standing([*skipped]) if skipped else {}
        now = self._clock.now()
        return {each for each, stands in standing.items() if skipped[each].stands(stands.revision, now)}

    async def _see_to(self, chore: Chore, now: float) -> bool:
        """Do a chore; what goes wrong with one does not keep the others from being done."""
        try:
            return await chore(now)
        except AWAY:
            raise
        except Exception:
            log.exception("the caretaker stumbled")
            return False

    async def _bury(self, found: Census) -> bool:
        """Release what the dead hold, and forget those who died long ago; returns whether anything was released."""
        self._buried &= {worker.id for worker in found.dead}
        before = len(self._buried)
        for worker in found.dead:
            if worker.id not in self._buried and not worker.expired:  # else its leases have ended with it
                self._buried.add(worker.id)
                await self._sessions.store.leave(owner(worker))
            if worker.age > MOURNING:
                await self._sessions.store.release(worker.id)
        return len(self._buried) > before

    # ---- moving one

    async def _alone(self, session_id: str, act: Act) -> bool:
        """Move one session without a lease, unless somebody has one."""
        try:
            record = await self.waits(session_id)
            if record is None or await self._leases.foreign(session_id) is not None:
                return False
            return await self.one(record, act)
        except UnknownSession:
            return False
        except StoreDamaged as error:
            self.damaged(session_id, error)
            return False

    def damaged(self, session_id: str, error: StoreDamaged) -> None:
        """A session cannot be read: it is left as it is, and this is told once."""
        if session_id not in self._skip:
            log.warning("session %s cannot go on: %s", session_id, error)
        self._skip[session_id] = _Passed(-1, None, self._clock.now())

    def pass_over(self, record: Record) -> None:
        """Leave a session to others until something happens to it."""
        self._skip[record.birth.id] = _Passed(record.head.revision, record.head.due_at, self._clock.now())

    def was_skipped(self, session_id: str) -> bool:
        """Whether it did not move before, so that it has to be looked at before anything is spent on it."""
        return session_id in self._skip

    async def waits(self, session_id: str) -> Record | None:
        """The session, unless it did not move before and nothing happened to it since. Raises `UnknownSession`."""
        now, known = self._clock.now(), session_id in self._skip or self._sessions.cached(session_id) is not None
        record = await self._sessions.store.load(session_id, since=OPEN if known else BEGUN)  # it is rebuilt from it
        passed = self._skip.get(session_id)
        return None if passed is not None and passed.stands(record.head.revision, now) else record

    async def one(self, record: Record, act: Act) -> bool:
        """Move one session; returns whether it moved."""
        session_id, revision = record.birth.id, record.head.revision
        passed = _Passed(revision, record.head.due_at, self._clock.now())
        self._sessions.overtaken(session_id, revision)
        try:
            await act(session_id, record)
        except Overtaken:
            return True
        except ABSENT as error:
            self._cannot(record.birth, error)  # it goes on where its program is
        except AWAY as error:
            log.warning("session %s could not be moved, which is tried again: %s", session_id, error)
            return False
        except EverholdError as error:
            log.warning("session %s cannot go on here: %s", session_id, error)
            self._cannot(record.birth, error)
        live = self._sessions.cached(session_id)
        moved = live is not None and live.head.revision != revision
        if not moved and (await self._sessions.store.load(session_id, since=-1)).head.revision == revision:
            self._skip[session_id] = passed
            return False
        self._skip.pop(session_id, None)
        return True

    def _cannot(self, birth: Birth, error: EverholdError) -> None:
        if self.crew is not None:
            self.crew.cannot(birth, error)
