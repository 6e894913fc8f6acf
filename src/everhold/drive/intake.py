"""Letting in what waits in the intakes of agents.

Rules
  1. Whoever lets something in has the session's lease. What he claims he hands over in a commit that ends it: from
     then on the journal is responsible for it. Where the commit is refused, the claim is given back.
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
from collections.abc import Awaitable, Callable, Sequence
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
from everhold.core.lease import TTL, Busy, Fence, Owner
from everhold.core.query import Answer, Kind
from everhold.drive.agent.life import INPUT
from everhold.drive.dispatch import AWAY
from everhold.drive.entry import Plan, cancels, enters, joined, plan
from everhold.drive.live import Live
from everhold.drive.runner import ABSENT, Runner
from everhold.drive.sessions import Sessions
from everhold.ports.store import Record, Store

log = logging.getLogger("everhold")

#: Sessions that are looked after at the same time.
AT_ONCE: Final = 8
#: Sessions that one look takes up.
LOOK: Final = 100


class Held(msgspec.Struct):
    """What was claimed, and under which lease; `keeps` if the lease is a worker's, who has it longer."""

    claims: list[Claim]
    fence: Fence
    keeps: bool
    left: list[Item] = []  # what is not handed over yet

    def __post_init__(self) -> None:
        self.left = [item for claim in self.claims for item in claim.items]


class Drain:
    """Hands over what waits, in this process."""

    def __init__(
        self,
        sessions: Sessions,
        runner: Runner,
        owner: Owner,
        tasks: set[asyncio.Task[Any]],
        introduce: Callable[[], Awaitable[None]],
        *,
        ttl: float = TTL,
        awake: bool = True,
    ) -> None:
        self._sessions, self._runner, self._store = sessions, runner, sessions.store
        self.owner, self._ttl = owner, ttl
        self._introduce = introduce  # whoever holds a lease is known to live, or to have died
        self._awake = awake  # else nothing moves by itself here
        self._tasks = tasks  # of the house, which waits for them when it is closed
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._again: set[str] = set()
        self._places = asyncio.Semaphore(AT_ONCE)
        self.programs: frozenset[str] = frozenset()  # whose conversations hear what waits here; none: all
        self._vain: dict[str, object] = {}  # sessions that nothing could enter, and how they stood then
        sessions.settled = self.wake

    # ---- being woken

    def wake(self, session_id: str) -> None:
        """See to one session soon, whatever was found there before."""
        self._vain.pop(session_id, None)
        if self._awake:
            self._see_to(session_id)

    async def look(self, now: float) -> bool:
        """See to all sessions for which something waits that nobody sees to; returns whether there may be more."""
        known = len(self._vain)
        ready = await self._store.ready(LOOK + known)
        mine = [each for each in self._sessions.jobs if each not in ready and self._may_hear(each)]
        self._vain = {each: self._vain[each] for each in (*ready, *mine) if each in self._vain}
        tasks = {self._see_to(session_id) for session_id in (*ready, *mine)}
        if not tasks:
            return False
        done, _ = await asyncio.wait(tasks)
        behind = len(ready) == LOOK + known and len(self._vain) > known  # those that nothing enters hide others
        return behind or any(not task.cancelled() and task.result() for task in done)

    def _may_hear(self, session_id: str) -> bool:
        """Whether a session in work here, which nobody else sees to, may be told something as it stands."""
        live = self._sessions.cached(session_id)
        return live is None or hearing(live.opened) is not None

    async def rest(self) -> None:
        """Wait until nothing is being let in any more."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    def _see_to(self, session_id: str) -> asyncio.Task[bool]:
        running = self._running.get(session_id)
        if running is not None:
            self._again.add(session_id)
            return running
        task = asyncio.get_running_loop().create_task(self._drain(session_id))
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

    async def _drain(self, session_id: str) -> bool:
        """Let in all that may enter; returns whether anything did."""
        entered = False
        async with self._places:
            try:
                while await self._one(session_id):
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

    async def _one(self, session_id: str) -> bool:
        """Let in what comes first; returns whether there may be more."""
        if not await self._store.intake(session_id, _has_any):
            return False
        record = await self._store.load(session_id, since=-1)
        if record.head.ended:
            await self._fail_all(session_id, record.head.state)
            return False
        if self.programs and record.birth.program not in self.programs:
            self._vain[session_id] = record.head.revision  # for others to see to
            return False
        opened = open_queries(record.deliveries)
        idle, hears = is_idle(opened), hearing(opened) is not None
        found, stands = await self._store.intake(session_id, lambda intake: (enters(intake, idle), _stands(intake)))
        if not hears or not found or self._vain.get(session_id) == (record.head.revision, stands):
            self._vain[session_id] = (record.head.revision, stands)
            return False
        self._sessions.overtaken(session_id, record.head.revision)
        try:
            entered = await self._runner.enter(session_id, self._enter)
        except SessionEnded:
            return True  # to tell what waits
        except (ClaimLost, LeaseLost, *ABSENT):  # somebody else does it
            entered = False
        except AWAY:
            raise
        except EverholdError as error:  # nothing enters it before something changes
            log.warning("nothing can enter session %s: %s", session_id, error)
            entered = False
        if not entered:
            self._vain[session_id] = (record.head.revision, stands)
        return entered

    async def _fail_all(self, session_id: str, state: str) -> None:
        end: JSON = {"code": SessionEnded.code, "message": f"the session is {state}"}
        if await self._store.intake(session_id, lambda intake: intake.end_all(end)):
            self._sessions.changed(session_id)

    async def _enter(self, live: Live) -> bool:
        """Claim, and hand over; returns whether anything was."""
        turn = None if is_idle(live.opened) else live.turns + 1
        await self._introduce()
        claim = functools.partial(self._claim, secrets.token_hex(8), turn)
        held = await self._store.intake(live.id, claim)
        if held is None:
            return False
        released, keep = False, getattr(live.execution, "keep", None)
        try:
            for one in held.claims:
                released = await self._hand_over(live, held, one, plan(one.items, turn, keep))
        finally:
            if held.left or not (released or held.keeps):
                await asyncio.shield(self._store.intake(live.id, functools.partial(_give_back, held)))
        return True

    async def _hand_over(self, live: Live, held: Held, claim: Claim, wanted: Plan) -> bool:
        """Say what there is to say, each in a commit that ends its items; returns whether the lease went with it."""
        last = False
        for item, end in wanted.failed:
            await self._store.intake(live.id, functools.partial(_fail, claim, item, end))
            held.left.remove(item)
            self._sessions.changed(live.id)
        for entry in wanted.entries:
            q = hearing(live.opened)
            if q is None or live.head.ended:
                return False
            if entry.said is None:
                await self._store.intake(live.id, functools.partial(_drop, claim, entry.items))
            else:
                last = entry.items == tuple(held.left)
                end = {"step": live.head.n + 1}
                done = functools.partial(_complete, _part(claim, entry.items), end, held.fence, last and not held.keeps)
                await self._sessions.step(live, [Answer(q, entry.said)], intake=done)
            for item in entry.items:
                held.left.remove(item)
        return last

    def _claim(self, token: str, turn: int | None, intake: Intake) -> Held | None:
        """Take the lease and claim what may enter; None, and nothing is changed, if there is nothing."""
        before = intake.lease
        keeps = before is not None and before.live(intake.now) and before.owner == self.owner and before.token != token
        if before is not None and keeps:
            fence = before.fence
        else:
            taken = intake.take(self.owner, token, self._ttl)
            if isinstance(taken, Busy):
                return None
            fence = taken.lease.fence
        claims = self._next(intake, fence, token) if turn is None else self._early(intake, fence, token, turn)
        if not claims:
            intake.lease = before
            return None
        return Held(claims, fence, keeps)

    @staticmethod
    def _next(intake: Intake, fence: Fence, token: str) -> list[Claim]:
        intake.defer()
        claim = intake.choose(fence, token, most=joined(intake))
        return [] if claim is None else [claim]

    @staticmethod
    def _early(intake: Intake, fence: Fence, token: str, turn: int) -> list[Claim]:
        for over in {item.running for item in intake.waiting()} - {None, turn}:
            intake.defer(over)
        named = [item.id for item in intake.waiting() if cancels(item)][:1]
        stop, _ = intake.claim_named(fence, f"{token}c", named)
        more = intake.claim_boundary(fence, token, turn, Boundary.BEFORE_COMPLETION)
        return [claim for claim in (stop, *more) if claim is not None]


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
    opened = open_queries(record.deliveries)
    idle = is_idle(opened)
    return hearing(opened) is not None and await store.intake(record.birth.id, lambda intake: enters(intake, idle))


def _has_any(intake: Intake) -> bool:
    """Whether anything waits that is available now, claimed or not."""
    return any(item.waits and item.available_at <= intake.now for item in intake.items.values())


def _stands(intake: Intake) -> object:
    """What has to change before it is worth another try."""
    lease = intake.lease
    held = lease is not None and lease.live(intake.now) and lease.generation
    return held, tuple(item.id for item in intake.waiting() if item.available_at <= intake.now)


# ---- what is done to an intake, in one moment


def _part(claim: Claim, items: Sequence[Item]) -> Claim:
    return msgspec.structs.replace(claim, items=tuple(items))


def _complete(claim: Claim, end: JSON, fence: Fence, release: bool, intake: Intake) -> None:
    """In the commit of a step: raises `ClaimLost`, and nothing lands, if somebody else has claimed it since."""
    intake.complete(claim, end)
    if release:
        intake.release(fence)


def _drop(claim: Claim, items: Sequence[Item], intake: Intake) -> None:
    """There was nothing to do."""
    mine = [item for item in items if _is_held(intake, item)]
    intake.complete(_part(claim, mine), {"applied": False})


def _fail(claim: Claim, item: Item, end: JSON, intake: Intake) -> None:
    mine = [item] if _is_held(intake, item) else []
    intake.fail(_part(claim, mine), end)


def _give_back(held: Held, intake: Intake) -> None:
    """Give back what was claimed and not handed over, unless somebody else has it by now, and the lease."""
    for claim in held.claims:
        mine = [item for item in claim.items if item in held.left and _is_held(intake, item)]
        intake.abandon(_part(claim, mine))
    if not held.keeps:
        intake.release(held.fence)


def _is_held(intake: Intake, item: Item) -> bool:
    now = intake.items.get(item.id)
    return now is not None and now.waits and now.hold == item.hold
