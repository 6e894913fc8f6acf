"""Letting in what waits in the intakes of agents.

Rules
  1. What comes first is tried on a look. The commit that hands it over takes the lease, claims it and ends it, in one
     moment: from then on the journal is responsible for it. Where that is refused, nothing has happened. A worker that
     has work to do for it keeps the lease.
  2. Where no turn is under way, what comes first is chosen by `Intake.choose`: inputs that may join each other are one
     turn. A turn under way is told what is meant for it.
  3. What waits for a session that has ended fails. What waits for a program that is not here goes on waiting.
  4. One drain at a time for each session, and a few at a time for all: being woken twice is being woken once.
  5. An error never costs an item: it is logged, and whoever looks next tries again; where it is the session's own (a
     divergence, damage), when something has changed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.errors import (
    ClaimLost,
    EverholdError,
    LeaseLost,
    Overtaken,
    SessionEnded,
    StoreDamaged,
    UnknownSession,
)
from everhold.core.intake import Boundary, Claim, Intake, Item
from everhold.core.journal import Opened, open_queries
from everhold.core.lease import Busy, Fence
from everhold.core.query import Answer, Kind
from everhold.drive.agent.life import INPUT
from everhold.drive.caretaker import HEAD_START
from everhold.drive.dispatch import AWAY
from everhold.drive.entry import cancels, enters, joined, plan
from everhold.drive.leases import Leases
from everhold.drive.live import Live
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.program import REGISTRY
from everhold.ports.store import Record, Standing, Store

log = logging.getLogger("everhold")

#: Sessions that are looked after at the same time.
AT_ONCE: Final = 8
#: Sessions that one look takes up.
LOOK: Final = 100


class Held(msgspec.Struct, frozen=True):
    """What was claimed, and under which lease; `keeps` if the lease is a worker's, who has it longer."""

    claim: Claim
    fence: Fence
    keeps: bool


class Drain:
    """Hands over what waits, in this process."""

    def __init__(
        self,
        sessions: Sessions,
        runner: Runner,
        leases: Leases,
        tasks: set[asyncio.Task[Any]],
        introduce: Callable[[], Awaitable[None]],
        *,
        awake: bool = True,
    ) -> None:
        self._sessions, self._runner, self._store = sessions, runner, sessions.store
        self._leases, self.owner = leases, leases.owner
        self._introduce = introduce  # whoever holds a lease is known to live, or to have died
        self._awake = awake  # else nothing moves by itself here
        self._tasks = tasks  # of the house, which waits for them when it is closed
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._again: set[str] = set()
        self._places = asyncio.Semaphore(AT_ONCE)
        self.programs: frozenset[str] = frozenset()  # whose conversations hear what waits here; none: all
        self._vain: dict[str, object] = {}  # sessions that nothing could enter, and how they stood then
        self._knew = dict(REGISTRY)  # the programs that were known then
        self.living: Callable[[], Collection[str]] = frozenset  # the workers that are known to live
        sessions.settled = self.wake

    # ---- being woken

    def wake(self, session_id: str) -> None:
        """See to one session soon, whatever was found there before."""
        self._vain.pop(session_id, None)
        if self._awake:
            self._see_to(session_id)

    async def look(self, now: float) -> bool:
        """See to all sessions for which something waits that nobody sees to; returns whether there may be more."""
        if self._knew != REGISTRY:
            self._knew = dict(REGISTRY)
            self._vain.clear()
        known = len(self._vain)
        ready = await self._store.ready(LOOK + known)
        mine = [each for each in self._sessions.jobs if each not in ready and self._may_hear(each)]
        self._vain = {each: self._vain[each] for each in (*ready, *mine) if each in self._vain}
        still = await self._still(ready) if self._vain else set()
        wanted = [session_id for session_id in (*ready, *mine) if session_id not in still]
        tasks = {self._see_to(session_id, polite=True) for session_id in wanted}
        if not tasks:
            return False
        done, _ = await asyncio.wait(tasks)
        entered = any(not task.cancelled() and task.result() for task in done)
        return len(ready) == LOOK + known and (entered or len(self._vain) > known)  # there may be others behind them

    async def _still(self, ready: Sequence[str]) -> set[str]:
        """Those of them that nothing could enter, and to which nothing has happened since."""
        standing = await self._store.standing([each for each in ready if each in self._vain])
        return {each for each, stands in standing.items() if self._vain.get(each) == (stands, None)}

    def _may_hear(self, session_id: str) -> bool:
        """Whether a session in work here, which nobody else sees to, may be told something as it stands."""
        live = self._sessions.cached(session_id)
        return live is None or hearing(live.opened) is not None

    async def rest(self) -> None:
        """Wait until nothing is being let in any more."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    def _see_to(self, session_id: str, *, polite: bool = False) -> asyncio.Task[bool]:
        running = self._running.get(session_id)
        if running is not None:
            self._again.add(session_id)
            return running
        task = asyncio.get_running_loop().create_task(self._drain(session_id, polite))
        self._running[session_id] = task
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._done, session_id))
        return task

    def _done(self, session_id: str, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        self._running.pop(session_id, None)
        again = session_id in self._again
        self._again.discard(session_id)
        if again and not task.cancelled():
            self._see_to(session_id)

    async def _drain(self, session_id: str, polite: bool) -> bool:
        """Let in all that may enter, unless, being polite, one leaves it to another; returns whether anything did."""
        entered = False
        async with self._places:
            try:
                while await self._one(session_id, polite):
                    entered = True
            except UnknownSession:
                pass  # it was deleted, and what waited with it
            except StoreDamaged as error:
                if session_id not in self._vain:
                    log.warning("nothing can enter session %s: %s", session_id, error)
                self._vain[session_id] = None
            except Exception:
                log.exception("what waits for session %s could not be let in", session_id)
        return entered

    # ---- handing over at once

    async def hand(self, session_id: str, said: dict[str, JSON]) -> bool:
        """Say an input if no turn is under way and nothing waits before it; returns whether it was said."""

        async def act(live: Live) -> bool:
            q = hearing(live.opened)
            if q is None or not is_idle(live.opened):
                await self._unless_overtaken(live)
                return False
            if await self._store.intake(session_id, _has_any):
                return False
            await self._sessions.step(live, [Answer(q, said)])
            return True

        try:
            return await self._runner.enter(session_id, act)
        except ABSENT:
            return False

    async def _unless_overtaken(self, live: Live) -> None:
        """Raise `Overtaken` if what is in memory here is not how the session stands."""
        head = (await self._store.load(live.id, since=-1)).head
        if head.revision != live.head.revision:
            raise Overtaken(live.id, live.head.revision)

    # ---- letting in

    async def _one(self, session_id: str, polite: bool) -> bool:
        """Let in what comes first; returns whether there may be more."""
        seen = await self._store.intake(session_id, _copied)
        if not _has_any(seen):
            return False
        if polite and self._leaves(seen):
            asyncio.get_running_loop().call_later(HEAD_START, self._sessions.poke)
            return False
        live = self._known(session_id, seen)
        if live is not None:
            birth, head, opened = live.birth, live.head, live.opened
        else:
            record = await self._store.load(session_id, since=-1)
            birth, head, opened = record.birth, record.head, open_queries(record.deliveries)
            if head.ended:
                await self._fail_all(session_id, head.state)
                return False
            self._sessions.overtaken(session_id, head.revision)
        stands = _stands(head.revision, seen)
        others = bool(self.programs) and birth.program not in self.programs  # are to see to it
        if others or not _may_enter(opened, seen) or self._vain.get(session_id) == stands:
            self._vain[session_id] = stands
            return False
        moments = [seen]

        async def enter(live: Live) -> bool:  # again, if somebody was quicker: then it is another moment
            return await self._enter(live, moments.pop() if moments else await self._store.intake(live.id, _copied))

        try:
            entered = await self._runner.enter(session_id, enter)
        except SessionEnded:
            return True  # to tell what waits
        except (ClaimLost, LeaseLost):  # somebody else was quicker
            return False
        except ABSENT:
            entered = False
        except AWAY:
            raise
        except EverholdError as error:  # nothing enters it before something changes
            log.warning("nothing can enter session %s: %s", session_id, error)
            entered = False
        if not entered:
            self._vain[session_id] = stands
        return entered

    def _known(self, session_id: str, seen: Intake) -> Live | None:
        """The session in memory, if it can be taken at its word: where it is not so any more, the commit tells."""
        live = self._sessions.cached(session_id)
        if live is None or live.lock.locked() or session_id in self._vain:
            return None
        mine = seen.lease is not None and seen.lease.owner == self.owner  # nobody else has worked on it since
        return live if mine and _may_enter(live.opened, seen) else None

    def _leaves(self, seen: Intake) -> bool:
        """Whether it has only just come, and another who lives had the session last: he sees to it first."""
        last = "" if seen.lease is None else seen.lease.owner.incarnation
        since = min(max(item.at, item.available_at) for item in seen.items.values())
        return last != self.owner.incarnation and last in self.living() and seen.now < since + HEAD_START

    async def _fail_all(self, session_id: str, state: str) -> None:
        end: JSON = {"code": SessionEnded.code, "message": f"the session is {state}"}
        if await self._store.intake(session_id, lambda intake: intake.end_all(end)):
            self._sessions.changed(session_id)

    async def _enter(self, live: Live, seen: Intake) -> bool:
        """Say what comes first, in the commit that claims and ends it; returns whether anything came of it."""
        turn = None if is_idle(live.opened) else live.turns + 1
        token = secrets.token_hex(8)
        found = self._claim(token, turn, seen)
        q = hearing(live.opened)
        if found is None or q is None:
            if seen.written:  # what was for a turn that is over
                await self._store.intake(live.id, functools.partial(_defer, turn))
            return False
        await self._introduce()
        wanted = plan(found.claim.items, turn, getattr(live.execution, "keep", None))
        if wanted.failed:
            for item, end in wanted.failed:
                await self._store.intake(live.id, functools.partial(self._end, token, turn, [item], end, failed=True))
            self._sessions.changed(live.id)
            return True
        entry = wanted.entries[0]
        if entry.said is None:
            done = functools.partial(self._end, token, turn, entry.items, {"applied": False})
            await self._store.intake(live.id, done)
            return True
        end, held = {"step": live.head.n + 1}, list[Fence]()

        def land(intake: Intake) -> None:
            works = self._leases.driven is not None and self.owner.incarnation in live.working.values()
            fence = self._end(token, turn, entry.items, end, intake, keep=works)
            held[:] = [] if fence is None else [fence]

        await self._sessions.step(live, [Answer(q, entry.said)], intake=land)
        for fence in held:
            self._leases.adopt(live.id, fence)
        return True

    def _claim(self, token: str, turn: int | None, intake: Intake) -> Held | None:
        """Take the lease and claim what comes first; None, and nothing is changed, if there is nothing."""
        before = intake.lease
        keeps = before is not None and before.live(intake.now) and before.owner == self.owner and before.token != token
        if before is not None and keeps:
            fence = before.fence
        else:
            taken = intake.take(self.owner, token, self._leases.timings.ttl)
            if isinstance(taken, Busy):
                return None
            fence = taken.lease.fence
        _defer(turn, intake)
        if turn is None:
            claim = intake.choose(fence, token, most=joined(intake))
        else:
            claim = self._early(intake, fence, token, turn)
        if claim is None:
            intake.lease = before
            return None
        return Held(claim, fence, keeps)

    def _end(
        self,
        token: str,
        turn: int | None,
        items: Sequence[Item],
        end: JSON,
        intake: Intake,
        *,
        failed: bool = False,
        keep: bool = False,
    ) -> Fence | None:
        """Claim items and end them in one moment; the lease goes with it, unless it is to be kept: then it is told.

        Raises `ClaimLost`, and nothing lands, if they are not what comes first any more.
        """
        held = self._claim(token, turn, intake)
        ids = {item.id for item in items}
        mine = [] if held is None else [item for item in held.claim.items if item.id in ids]
        if held is None or len(mine) < len(ids):
            raise ClaimLost(intake.session_id, items[0].id)
        (intake.fail if failed else intake.complete)(_part(held.claim, mine), end)
        intake.abandon(_part(held.claim, [item for item in held.claim.items if item.id not in ids]))
        if held.keeps:
            return None
        if keep:
            return held.fence
        intake.release(held.fence)
        return None

    @staticmethod
    def _early(intake: Intake, fence: Fence, token: str, turn: int) -> Claim | None:
        named = [item.id for item in intake.waiting() if cancels(item)][:1]
        stop, _ = intake.claim_named(fence, f"{token}c", named)
        more = () if stop is not None else intake.claim_boundary(fence, token, turn, Boundary.BEFORE_COMPLETION)
        return next((claim for claim in (stop, *more) if claim is not None), None)


# ---- where a session stands


def hearing(opened: dict[int, Opened]) -> int | None:
    """The question that hears what is said to an agent."""
    for q, entry in opened.items():
        if entry.query.kind is Kind.SIGNAL and entry.query.name == INPUT:
            return q
    return None


def is_idle(opened: dict[int, Opened]) -> bool:
    """Whether an agent waits for nothing but to be told something."""
    return len(opened) == 1 and hearing(opened) is not None


async def could_hear(store: Store, record: Record) -> bool:
    """Whether something that waits for a conversation could enter it as it stands."""
    return _may_enter(open_queries(record.deliveries), await store.intake(record.birth.id, _copied))


def _copied(intake: Intake) -> Intake:
    """An intake as it stands, to try on what would come of it."""
    return Intake(intake.session_id, intake.now, intake.lease, intake.seq, intake.items.values(), intake.state)


def _has_any(intake: Intake) -> bool:
    """Whether anything waits that is available now, claimed or not."""
    return any(item.waits and item.available_at <= intake.now for item in intake.items.values())


def _may_enter(opened: dict[int, Opened], intake: Intake) -> bool:
    """Whether something that waits could enter a conversation that stands so."""
    return hearing(opened) is not None and enters(intake, is_idle(opened))


def _stands(revision: int, intake: Intake) -> tuple[Standing, int | None]:
    """What has to change before it is worth another try: how the session stands, and the lease that is alive."""
    lease = intake.lease
    held = lease.generation if lease is not None and lease.live(intake.now) else None
    waiting = sum(item.waits and item.available_at <= intake.now for item in intake.items.values())
    return Standing(revision, intake.seq, waiting), held


# ---- what is done to an intake, in one moment


def _defer(turn: int | None, intake: Intake) -> None:
    """What was meant for a turn that is over is for the next one; `turn` is the one under way."""
    if turn is None:
        intake.defer()
    else:
        for over in {item.running for item in intake.waiting()} - {None, turn}:
            intake.defer(over)


def _part(claim: Claim, items: Sequence[Item]) -> Claim:
    return msgspec.structs.replace(claim, items=tuple(items))
