"""A process that works for sessions: it claims what can go on, drives it, and hands it over when it leaves.

Rules
  1. A session is driven under a lease: from before this process spends work on it until it waits for somebody outside,
     has ended, or has nothing to do here. So many are driven at once.
  2. Oldest first, and whoever was served last goes last; several workers share those in line, so that they do not all
     reach for the same. A session that was served `TURNS` times in a row no longer keeps others out: from then on all
     take turns at the gate.
  3. What does not go on here (another version of its program, none at all) is left to others, and looked at again when
     something has happened to it.
  4. Leaving: nothing is claimed any more, work under way gets to its commit within a grace, what has not begun is
     nobody's from then on, and then leases and row are given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from everhold.core.errors import BadSetting, EverholdError, StoreDamaged, UnknownSession
from everhold.core.journal import open_queries
from everhold.core.lease import Timings
from everhold.core.query import Kind
from everhold.core.session import Birth, State
from everhold.drive.alive import here, named
from everhold.drive.caretaker import Act, Caretaker
from everhold.drive.dispatch import FAREWELL, Dispatch
from everhold.drive.gate import Gate, Limits
from everhold.drive.intake import could_hear
from everhold.drive.sessions import Sessions
from everhold.ports.program import Clock
from everhold.ports.store import LOOK_EVERY, NOBODY, Record

log = logging.getLogger("everhold")

#: Sessions that one worker drives at once.
CONCURRENCY: Final = 16
#: Seconds that work under way has to get to its commit when a worker leaves.
GRACE: Final = 10.0
#: Jobs after which a session no longer keeps others out.
TURNS: Final = 8
#: How many times more sessions than it drives at once a worker may hold.
MOST: Final = 10


class Told(msgspec.Struct, frozen=True):
    """Something worth knowing about a worker."""

    event: str  # started, took_up, cannot, lost, stopping, gave_up, stopped
    text: str
    session_id: str | None = None
    name: str = ""  # what people call the session: its key, or its title


class _Driven:
    """A session in work here."""

    __slots__ = ("task", "turns")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.turns = 0  # jobs that began since it was claimed


class Worker:
    """Works for the sessions of a store until it is stopped. Made by `Runtime.worker`.

    `await worker.run()` works until `worker.stop()`; `await worker.once()` does what is due; or use it with
    `async with`. A runtime that was a worker moves nothing by itself afterwards.
    """

    def __init__(
        self,
        sessions: Sessions,
        dispatch: Dispatch,
        caretaker: Caretaker,
        clock: Clock,
        *,
        concurrency: int = CONCURRENCY,
        limits: Limits | None = None,
        programs: Collection[str] = (),
        ttl: float | None = None,
        grace: float = GRACE,
        poll: float | None = None,
        tell: Callable[[Told], object] | None = None,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise BadSetting("concurrency", f"{concurrency!r} is not a number of sessions; it is 1 or more")
        if grace < 0:
            raise BadSetting("grace", f"{grace!r} s is less than no time")
        if poll is not None and poll <= 0:
            raise BadSetting("poll", f"{poll!r} is not a time between two looks")
        self._sessions, self._dispatch, self._caretaker, self._clock = sessions, dispatch, caretaker, clock
        self._leases = dispatch.leases
        self._timings = self._leases.timings if ttl is None else Timings(ttl)
        self._programs = frozenset(programs)
        self._grace, self._poll = grace, poll
        self._tell = tell
        self._gate = Gate(concurrency, limits or Limits())
        self._driven: dict[str, _Driven] = {}
        self._served: dict[str, int] = {}  # sessions, by the order in which they were last claimed
        self._order = count(1)
        self._waiting = False  # whether there was no room for some
        self._busy: dict[str, float] = {}  # sessions that others work on, and when that was seen
        self._stopping = asyncio.Event()
        self._entered = False
        self.moved = 0  #: how often a session was moved

    # ---- the life of a worker

    async def run(self) -> None:
        """Work until `stop`, then hand over and leave."""
        async with self:
            await self._stopping.wait()

    def stop(self) -> None:
        """Claim nothing any more; `run` hands over and returns."""
        self._stopping.set()
        self._caretaker.poke()

    async def once(self, within: float | None = None) -> int:
        """Do what is due, for `within` seconds at most, and leave; returns how many sessions still have to move."""
        loop = asyncio.get_running_loop()
        end = None if within is None else loop.time() + within
        await self._enter(looks=False)
        moved = False
        try:
            while not self._stopping.is_set() and (end is None or loop.time() < end):
                moved = await self._caretaker.move()
                tasks = self._tasks()
                if tasks:
                    left = None if end is None else max(0.0, end - loop.time())
                    await asyncio.wait(
                        {*tasks, stopping := loop.create_task(self._stopping.wait())},
                        timeout=left,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    stopping.cancel()
                elif not moved:
                    break
        finally:
            await self.leave()
        return await self._left() or int(moved)  # there was more to look for when it had to leave

    async def __aenter__(self) -> Self:
        await self._enter(looks=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def _enter(self, *, looks: bool) -> None:
        if self._entered or self._dispatch.gate is not None:
            raise BadSetting("worker", "this runtime is a worker already, or was one")
        self._entered = True
        if self._caretaker.started:
            await self._caretaker.stop()
        self._leases.timings = self._timings
        self._leases.lost, self._leases.freed = self._lost, self._caretaker.poke
        self._leases.driven = self._drive_on
        self._gate.began = self._began
        self._dispatch.gate, self._caretaker.crew = self._gate, self
        await self._dispatch.introduce()
        self._caretaker.start(looks=looks, every=self._poll)
        self._say(
            "started",
            f"process {os.getpid()} on {named(here())}, {_counted(self._gate.concurrency, 'session')} at once",
        )

    async def leave(self) -> None:
        """Hand over and give everything back; work under way has the grace to get to its commit."""
        self._stopping.set()
        if self._caretaker.crew is not self:
            return
        await self._caretaker.stop(looks_only=True)
        self._dispatch.leave()
        if self._gate.running:
            count = _counted(self._gate.running, "call")
            self._say("stopping", f"{count} under way, for which there are {self._grace:g} s")
        self._sessions.changed()  # whoever drives looks up, and lets go
        await self._settle()
        for task in self._tasks():
            task.cancel()
        with suppress(TimeoutError):  # of those that give a lease back to a store that is away
            await asyncio.wait_for(asyncio.gather(*self._tasks(), return_exceptions=True), FAREWELL)
        await self._caretaker.stop()
        self._caretaker.crew, self._leases.driven = None, None
        await self._dispatch.release()
        self._say("stopped", f"{_counted(self.moved, 'move')} made; everything is handed over")

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._grace
        while (tasks := self._tasks()) and loop.time() < end:
            await asyncio.wait(tasks, timeout=end - loop.time())
        if self._gate.running:
            self._say("gave_up", f"{_counted(self._gate.running, 'call')} did not end in time: the outcome is unknown")

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return {*self._dispatch.tasks, *(driven.task for driven in self._driven.values())}

    async def _left(self) -> int:
        """How many sessions could move now, if somebody moved them."""
        store, found, now = self._sessions.store, await self._dispatch.census(), self._clock.now()
        orphans = {*await store.orphans(set(found.living))}
        due, ready = {*await store.due(now, 1000)} - orphans, {*await store.ready(1000)} - orphans
        left = 0 if self._programs else len(orphans)  # all of them are wanted, and need not be looked at
        for session_id in {*due, *ready, *(orphans if self._programs else ())}:
            try:
                record = await store.load(session_id, since=-1)
                moves = session_id in orphans or (session_id in due and not _keeps(record, now))
                left += self._wants(record) and (moves or (session_id in ready and await could_hear(store, record)))
            except UnknownSession:
                pass
            except StoreDamaged:
                left += 1
        return left

    # ---- claiming

    async def engage(self, found: Sequence[tuple[str, Act]]) -> None:
        """Begin to drive as many as there is room for; see `Crew`."""
        fresh: dict[str, Act] = {}
        for session_id, act in found:
            if session_id not in self._driven:
                fresh.setdefault(session_id, act)
        self._served = {each: at for each, at in self._served.items() if each in fresh or each in self._driven}
        self._waiting = False
        for session_id in self._in_turn(list(fresh)):
            if self._stopping.is_set() or self._seen_busy(session_id):
                continue
            if self._room() < 1:
                self._waiting = True
                return
            if not self._programs and not self._caretaker.was_skipped(session_id):
                self._drive(session_id, fresh[session_id])
                continue
            try:
                record = await self._caretaker.waits(session_id)
            except UnknownSession:
                continue
            except StoreDamaged as error:
                self._caretaker.damaged(session_id, error)
                continue
            if record is not None and not self._wants(record):
                self._caretaker.pass_over(record)
            elif record is not None and session_id not in self._driven:
                self._drive(session_id, fresh[session_id])

    def _in_turn(self, fresh: list[str]) -> list[str]:
        """Whoever was served last goes last. Of those in line, each worker begins with others than its fellows."""
        living = sorted({self._dispatch.worker, *self._caretaker.living})
        mine = {*fresh[living.index(self._dispatch.worker) :: len(living)]}
        return sorted(fresh, key=lambda each: (self._served.get(each, 0), each not in mine))

    def cannot(self, birth: Birth, error: EverholdError) -> None:
        self._say("cannot", f"left to others: {error}", birth.id, birth)

    def _wants(self, record: Record) -> bool:
        return not self._programs or record.birth.program in self._programs

    def _room(self) -> int:
        """How many more sessions may be claimed."""
        counted = sum(driven.turns < TURNS for driven in self._driven.values())
        return min(self._gate.concurrency - counted, self._gate.concurrency * MOST - len(self._driven))

    def _seen_busy(self, session_id: str) -> bool:
        """Whether somebody else worked on it a moment ago; then it is looked at in a moment."""
        seen = self._busy.get(session_id)
        return seen is not None and asyncio.get_running_loop().time() < seen + LOOK_EVERY

    def _is_busy(self, session_id: str) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._busy = {each: seen for each, seen in self._busy.items() if now < seen + LOOK_EVERY}
        if not self._busy:
            loop.call_later(LOOK_EVERY * 1.1, self._caretaker.poke)
        self._busy[session_id] = now

    # ---- driving

    def _drive(self, session_id: str, act: Act | None) -> None:
        driven = self._driven[session_id] = _Driven()
        self._served[session_id] = next(self._order)
        driven.task = asyncio.get_running_loop().create_task(self._driving(session_id, act))

    async def _driving(self, session_id: str, act: Act | None) -> None:
        moved = False
        try:
            async with self._leases.held(session_id) as fence:
                if fence is None:
                    return self._is_busy(session_id)
                record = None if act is None else await self._caretaker.waits(session_id)
                if record is not None and act is not None:
                    moved = await self._caretaker.one(record, act)
                    self._count(record, moved, act)
                await self._while_it_works(session_id)
        except UnknownSession:
            pass
        except StoreDamaged as error:
            self._caretaker.damaged(session_id, error)
        except Exception:
            log.exception("session %s could not be driven", session_id)
        finally:
            del self._driven[session_id]
            if self._leases.holds(session_id):  # something came in as the lease was given back
                self._drive_on(session_id)
            if moved or self._waiting:
                self._caretaker.poke()

    def _count(self, record: Record, moved: bool, act: Act) -> None:
        self.moved += moved
        if moved and act == self._dispatch.recover and any(effect.worker != NOBODY for effect in record.effects):
            self._say("took_up", "taken up from a worker that is gone", record.birth.id, record.birth)

    async def _while_it_works(self, session_id: str) -> None:
        """Hold on while this process works on what the session asked."""
        while self._sessions.jobs.get(session_id) and self._leases.holds(session_id):
            await self._sessions.next_change(session_id, None)

    def _began(self, session_id: str) -> None:
        """A job went in; a session that was not claimed here is held as long as it works."""
        driven = self._driven.get(session_id)
        if driven is not None:
            driven.turns += 1
            if driven.turns == TURNS and self._waiting:
                self._caretaker.poke()
        else:
            self._drive_on(session_id)

    def _drive_on(self, session_id: str) -> None:
        """Hold a session that was not claimed here as long as it works."""
        if session_id not in self._driven and not self._stopping.is_set():
            self._drive(session_id, None)

    def _lost(self, session_id: str) -> None:
        live = self._sessions.cached(session_id)
        self._say("lost", "another worker has it now", session_id, None if live is None else live.birth)
        self._sessions.changed(session_id)

    def _say(self, event: str, text: str, session_id: str | None = None, birth: Birth | None = None) -> None:
        if self._tell is not None:
            self._tell(Told(event, text, session_id, "" if birth is None else birth.key or birth.title))


def _keeps(record: Record, now: float) -> bool:
    """Whether all that is there for a session are signals which it does not ask for yet."""
    head = record.head
    if head.state is not State.PAUSED or (head.due_at is not None and head.due_at <= now):
        return False
    asked = {entry.query.name for entry in open_queries(record.deliveries).values() if entry.query.kind is Kind.SIGNAL}
    return all(letter.kind == "signal" and letter.body["name"] not in asked for letter in record.letters)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
