"""Moves one session as far as this process can; nothing else moves sessions.

    1. load the session, or take it from memory;
    2. resolve marks without a running task, by the `rerun` of each call;
    3. deliver accepted input: letters, then due timers, then the queued input of an agent;
    4. start to answer open queries that this process can and may answer;
    5. return when to move the session again, and which other sessions got letters.

Rules
  1. A move is idempotent, and two may run at the same time. The fence of each commit decides; the
     loser loads the session again.
  2. Queued input is first planned on a copy of the intake. The commit that delivers it takes the
     lease, claims the items and completes them, all at once. After it, only the journal matters. If
     the commit is refused, nothing has changed. A worker keeps the lease if the step started work
     for it.
  3. If no turn runs, `Intake.choose` selects the input: inputs that may join become one turn. A
     running turn gets the input meant for it.
  4. Queued input of an ended session fails. Queued input of a session whose program is not here
     stays queued.
  5. A move does not raise errors of a session: `Next` has the reason why it cannot move here.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.intake import INPUT, Boundary, Claim, Intake, IntakeItem
from everhold.core.journal import AskedQuery
from everhold.core.lease import Fence, LeaseRefused
from everhold.core.query import Kind, QueryAnswer
from everhold.core.session import Head, SessionId
from everhold.core.status import Raised
from everhold.engine import children
from everhold.engine.accept import BUDGET_LETTER
from everhold.engine.effects import STORE_AWAY_ERRORS, EffectDispatcher
from everhold.engine.intake_messages import (
    count_joined_inputs,
    has_item_to_enter,
    is_cancel_command,
    plan_intake_messages,
)
from everhold.engine.leases import Leases
from everhold.engine.live_session import LiveSession, NoExecution, change_budget
from everhold.engine.liveness import Presence
from everhold.engine.serving import Serving
from everhold.engine.session_cache import SessionCache
from everhold.errors import (
    BadArguments,
    ClaimLost,
    EverholdError,
    LeaseLost,
    NotAProgram,
    Overtaken,
    SessionEnded,
    UnknownProgram,
    UnknownSession,
    VersionMissing,
)
from everhold.ports.mover import Next
from everhold.ports.program import Clock
from everhold.ports.store import FROM_OPEN, FROM_RESTART, SessionRecord

log = logging.getLogger("everhold")

#: The errors of a program that this process does not have.
PROGRAM_ABSENT_ERRORS: Final = (UnknownProgram, NotAProgram, VersionMissing)


class HeldClaim(msgspec.Struct, frozen=True):
    """Claimed items and the fence of their lease. `keeps`: this process already held the lease."""

    claim: Claim
    fence: Fence
    keeps: bool


class SessionMoves:
    """Moves the sessions of one store, in this process."""

    def __init__(
        self,
        sessions: SessionCache,
        effects: EffectDispatcher,
        leases: Leases,
        presence: Presence,
        serving: Serving,
        clock: Clock,
        unbegun: set[str],
        max_input: int,
    ) -> None:
        self._sessions = sessions
        self._effects = effects
        self._presence = presence
        self._serving = serving
        self._clock = clock
        self._store = sessions.store
        self._leases = leases
        self._owner = leases.owner
        self._max_input = max_input  # bytes of one input of a conversation
        self._unbegun = unbegun  # sessions with a requested move that has not started

    def leave_alone(self, session_id: str) -> None:
        """Stop requesting moves of a session that cannot be moved here."""
        self._unbegun.discard(session_id)

    async def move(self, session_id: str, *, asked: bool = False, leased: bool = False) -> Next:
        """Move one session as far as this process can now.

        `asked`: a verb's caller requested the move. `leased`: the caller holds the session's lease.
        With neither, a session whose lease another worker holds is left to that worker.
        """
        self._unbegun.discard(session_id)
        try:
            if (
                not asked
                and not leased
                and (lease := await self._leases.foreign(session_id)) is not None
            ):
                return Next(lease.expires_at)
            head, record = await self._fresh(session_id)
            revision = head.revision
            if head.ended:
                await self._fail_waiting(session_id, head.state)
                return Next()
            try:
                at, others = await self._sessions.on(
                    session_id, functools.partial(self._act, asked), record
                )
            except BadArguments as error:
                if record is None or head.n >= 0:
                    raise
                return await self._cannot_begin(record, error)
        except UnknownSession:
            return Next()
        except PROGRAM_ABSENT_ERRORS as error:
            return Next(absent=_describe(error), exception=error.exception)
        except STORE_AWAY_ERRORS:
            raise
        except EverholdError as error:
            if not leased:  # a worker reports it itself, once
                log.warning("session %s cannot be moved here: %s", session_id, error)
            return Next(absent=_describe(error), exception=error.exception)
        live = self._sessions.cached(session_id)
        return Next(at, others, moved=live is None or live.head.revision != revision)

    async def _cannot_begin(self, record: SessionRecord, error: BadArguments) -> Next:
        """End a session whose arguments do not fit its program; they were accepted unchecked."""
        live = LiveSession(record.birth, record.head, NoExecution())
        live.letters = record.letters
        try:
            await self._sessions.end(live, Raised(str(error), error.code, "", record.head.n))
        except Overtaken:
            return Next(self._clock.now())  # another process committed first: move again
        return Next(moved=True)

    async def _fresh(self, session_id: str) -> tuple[Head, SessionRecord | None]:
        """The current head: from memory if no other process may have moved the session, else
        loaded.
        """
        live = self._sessions.cached(session_id)
        if (
            live is not None
            and session_id not in self._sessions.suspects
            and not live.outdated
            and not live.stale
        ):
            return live.head, None
        self._sessions.suspects.discard(session_id)
        record = await self._store.load(
            session_id, since=FROM_RESTART if live is None else FROM_OPEN
        )
        self._sessions.overtaken(session_id, record.head.revision)
        return record.head, record

    async def _act(self, asked: bool, live: LiveSession) -> tuple[float | None, list[SessionId]]:
        """Steps 2 to 4 of a move; the session's lock is held.

        Returns when the session is due next, and the sessions that got letters.
        """
        live.others = []
        for part in (
            self._effects.resolve,
            self.deliver,
            self._let_in,
            functools.partial(self._effects.adopt, asked=asked),
        ):
            if not live.head.ended and not live.stale:
                await part(live)
        return None if live.head.ended else live.head.due_at, live.others

    # ---- letters and time

    async def deliver(self, live: LiveSession) -> None:
        """Deliver the letters that the session can receive now, and due timers. The session's lock
        is
        held.
        """
        if live.head.mail and children.has_relevant_letters(live):
            await self._read_letters(live)
        await self._on_time(live)

    async def _read_letters(self, live: LiveSession) -> None:
        for letter in list(live.letters):
            if live.head.ended or live.stale:
                return
            if letter.kind == "start":
                if live.head.n < 0:
                    await self._sessions.step(live, [], read=[letter.id])
            elif letter.kind == "cancel":
                await self._sessions.step(live, [], cancel=str(letter.body), read=[letter.id])
            elif letter.kind == "answer":
                answer = msgspec.convert(letter.body, QueryAnswer)
                if live.head.due_at is not None and live.head.due_at < letter.at:
                    await self._on_time(live)
                if live.head.ended:
                    return
                answers = live.kept([answer]) if answer.q in live.opened else []
                await self._sessions.step(live, answers, read=[letter.id])
            elif letter.kind == BUDGET_LETTER:
                budget = change_budget(live, letter.body["limits"])
                by = None if budget is None else letter.body["by"]
                await self._sessions.step(live, [], read=[letter.id], budget=budget, by=by)
            else:
                await children.deliver_signal_letter(self._sessions, live, letter)
        await children.pause_if_idle(self._sessions, live)

    async def _on_time(self, live: LiveSession) -> None:
        """Fire due timers and expire due queries, in the order of their times."""
        due = live.head.due_at
        now = self._clock.now()
        if due is not None and due < now:
            due = live.deadline()  # a due attempt is not for the program
        while due is not None and due < now and not live.head.ended:
            answers = []
            for q, entry in live.expiring.items():
                expires = entry.query.expires_at
                if expires is not None and expires <= now:
                    answers.append(_expired(q, entry))
            fired = live.timer is not None and live.timer <= now
            await self._sessions.step(live, answers, fired=fired)
            due = live.deadline()

    # ---- the intake of a conversation

    async def _let_in(self, live: LiveSession) -> None:
        """Deliver queued input to an agent, as far as its turn allows."""
        while find_input_query(live.opened) is not None and not live.head.ended:
            seen = await self._store.intake(live.id, _copied)
            if not _has_any(seen) or not _may_enter(live.opened, seen):
                return
            waiting = sum(
                item.waits and item.available_at <= seen.now for item in seen.items.values()
            )
            try:
                entered = await self._enter(live, seen)
            except (ClaimLost, LeaseLost):  # another process was quicker
                return
            if not entered or entered == waiting:
                return

    async def _fail_waiting(self, session_id: str, state: str) -> None:
        end: JSON = {"code": SessionEnded.code, "message": f"the session is {state}"}
        if await self._store.intake(session_id, lambda intake: intake.end_all(end)):
            self._sessions.changed(session_id)

    async def hand(self, live: LiveSession, said: dict[str, JSON]) -> bool:
        """Deliver an input now, if no turn runs and the intake is empty. Returns whether it was
        delivered.
        """
        q = find_input_query(live.opened)
        if q is None or not is_waiting_for_input(live.opened):
            head = (await self._store.load(live.id, since=FROM_OPEN)).head
            if head.revision != live.head.revision:
                # the session in memory is not current
                raise Overtaken(live.id, live.head.revision)
            return False
        if await self._store.intake(live.id, _has_any):
            return False
        await self._sessions.step(live, [QueryAnswer(q, said)])
        return True

    async def _enter(self, live: LiveSession, seen: Intake) -> int:
        """Deliver the first queued input in one commit that also claims and completes its items.

        Returns how many items are done.
        """
        turn = None if is_waiting_for_input(live.opened) else live.turns + 1
        token = secrets.token_hex(8)
        found = self._claim(token, turn, seen)
        q = find_input_query(live.opened)
        if found is None or q is None:
            if seen.written:  # items meant for a turn that is over were deferred
                await self._store.intake(live.id, functools.partial(_defer, turn))
            return 0
        await self._presence.introduce()
        wanted = plan_intake_messages(found.claim.items, turn, live.execution.keep, self._max_input)
        if wanted.failed:
            for item, end in wanted.failed:
                await self._store.intake(
                    live.id, functools.partial(self._end, token, turn, [item], end, failed=True)
                )
            self._sessions.changed(live.id)
            return len(wanted.failed)
        entry = wanted.entries[0]
        if entry.said is None:
            done = functools.partial(self._end, token, turn, entry.items, {"applied": False})
            await self._store.intake(live.id, done)
            return len(entry.items)
        end = {"step": live.head.n + 1}
        held = list[Fence]()

        def land(intake: Intake) -> None:
            works = (
                self._serving.worker is not None
                and self._owner.incarnation in live.working.values()
            )
            fence = self._end(token, turn, entry.items, end, intake, keep=works)
            held[:] = [] if fence is None else [fence]

        await self._sessions.step(live, [QueryAnswer(q, entry.said)], intake=land)
        for fence in held:
            self._leases.adopt(live.id, fence)
        return len(entry.items)

    def _claim(self, token: str, turn: int | None, intake: Intake) -> HeldClaim | None:
        """Take the lease and claim the first items. Returns None, without changes, if there are
        none.
        """
        before = intake.lease
        keeps = (
            before is not None
            and before.live(intake.now)
            and before.owner == self._owner
            and before.token != token
        )
        if before is not None and keeps:
            fence = before.fence
        else:
            taken = intake.take(self._owner, token, self._leases.timings.ttl)
            if isinstance(taken, LeaseRefused):
                return None
            fence = taken.lease.fence
        _defer(turn, intake)
        if turn is None:
            claim = intake.choose(fence, token, most=count_joined_inputs(intake))
        else:
            claim = self._early(intake, fence, token, turn)
        if claim is None:
            intake.lease = before
            return None
        return HeldClaim(claim, fence, keeps)

    def _end(
        self,
        token: str,
        turn: int | None,
        items: Sequence[IntakeItem],
        end: JSON,
        intake: Intake,
        *,
        failed: bool = False,
        keep: bool = False,
    ) -> Fence | None:
        """Claim items and complete or fail them in the same transaction.

        Releases the lease, unless this process held it before. With `keep`, the lease stays and its
        fence is returned. Raises `ClaimLost`, without changes, if these items are not the first any
        more.
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
        named = [item.id for item in intake.waiting() if is_cancel_command(item)][:1]
        stop, _ = intake.claim_named(fence, f"{token}c", named)
        more = (
            ()
            if stop is not None
            else intake.claim_boundary(fence, token, turn, Boundary.BEFORE_COMPLETION)
        )
        return next((claim for claim in (stop, *more) if claim is not None), None)


# ---- what an agent waits for


def find_input_query(opened: dict[int, AskedQuery]) -> int | None:
    """The open query by which an agent receives input."""
    for q, entry in opened.items():
        if entry.query.kind is Kind.SIGNAL and entry.query.name == INPUT:
            return q
    return None


def is_waiting_for_input(opened: dict[int, AskedQuery]) -> bool:
    """Whether an agent waits for input only: no turn runs."""
    return len(opened) == 1 and find_input_query(opened) is not None


def _expired(q: int, entry: AskedQuery) -> QueryAnswer:
    default = entry.query.default
    if default is msgspec.UNSET:
        return QueryAnswer(
            q, error={"code": "expired", "message": "nobody answered in time"}, expired=True
        )
    return QueryAnswer(q, default, expired=True)


def can_enter_conversation(opened: dict[int, AskedQuery], intake: Intake) -> bool:
    """Whether any queued input could be delivered to an agent with these open queries."""
    return _may_enter(opened, _copied(intake))


def _copied(intake: Intake) -> Intake:
    """A copy of an intake, to plan on."""
    return Intake(
        intake.session_id, intake.now, intake.lease, intake.seq, intake.items.values(), intake.state
    )


def _has_any(intake: Intake) -> bool:
    """Whether any queued item is available now, claimed or not."""
    return any(item.waits and item.available_at <= intake.now for item in intake.items.values())


def _may_enter(opened: dict[int, AskedQuery], intake: Intake) -> bool:
    return find_input_query(opened) is not None and has_item_to_enter(
        intake, is_waiting_for_input(opened)
    )


# ---- changes of an intake within one transaction


def _defer(turn: int | None, intake: Intake) -> None:
    """Move items meant for a turn that is over to the next one. `turn` is the running turn."""
    if turn is None:
        intake.defer()
    else:
        for over in {item.running for item in intake.waiting()} - {None, turn}:
            intake.defer(over)


def _part(claim: Claim, items: Sequence[IntakeItem]) -> Claim:
    return msgspec.structs.replace(claim, items=tuple(items))


def _describe(error: EverholdError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)
