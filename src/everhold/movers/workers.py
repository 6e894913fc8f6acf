"""Workers: claim sessions with leases, take over those of dead workers, hand theirs over at the
end.

Rules
  1. A worker moves a session while it holds its lease: from before its first work on the session
     until the session waits for an answer from outside, has ended, or has no work here. It moves
     at most `concurrency` sessions at once.
  2. The oldest session is first; a session that was just served is last. Workers start at different
     places of the line, so that they rarely claim the same session. After `JOBS_BEFORE_SHARING`
     calls a session no longer counts against `concurrency`; from then on the limiter lets all
     sessions take turns.
  3. Input that arrives while the effects of a session run is delivered at once: the session is
     moved again.
  4. A session that cannot move here (its program or its version is missing) is left to other
     workers. It is tried again after it changed.
  5. A worker that leaves claims nothing more. Running work has a grace period to reach its commit.
     Work that has not started loses its mark's worker. Then the worker releases its leases and its
     row.

`Workers` makes workers from the settings and lists the living ones.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from everhold.core.journal import find_open_queries
from everhold.core.lease import LeaseTimings
from everhold.core.query import MODEL_KINDS, Kind, Query
from everhold.core.session import WORKERS, Birth, Head
from everhold.engine.arguments import check_seconds_arg
from everhold.engine.effects import STORE_AWAY_ERRORS
from everhold.engine.engine import CLOSE_TIMEOUT, Engine
from everhold.engine.limits import JobLimiter, Limits
from everhold.engine.liveness import get_machine_id, get_machine_name
from everhold.engine.move import can_enter_conversation, is_waiting_for_input
from everhold.errors import BadSetting, EverholdError, StoreDamaged, UnknownSession
from everhold.exception_info import ExceptionInfo
from everhold.movers.local import FAILED_MOVE_DELAY, STORE_RETRY_DELAY, MoveTimers
from everhold.packages.settings import Settings, parse_duration
from everhold.ports.mover import Move
from everhold.ports.program_identity import find_same_program
from everhold.ports.store import FROM_OPEN, ITEM, LOOK_EVERY, PARKED, SessionRecord, WorkerRecord
from everhold.shell_command import format_command

log = logging.getLogger("everhold")

#: Sessions that one worker moves at once.
CONCURRENCY: Final = 16
#: Seconds that running work has to reach its commit when a worker leaves.
GRACE: Final = 10.0
#: Calls after which a session no longer counts against the concurrency of its worker.
JOBS_BEFORE_SHARING: Final = 8
#: Seconds that other workers have for a model question before this one reports that it cannot
#: answer it.
UNANSWERED_SECONDS: Final = 10.0
#: A worker holds at most this many times its concurrency.
MAX_HELD_FACTOR: Final = 10


class WorkerEvent(msgspec.Struct, frozen=True):
    """An event of a worker, for its log."""

    event: str  # started, leaves, skips, took_up, cannot, lost, stopping, gave_up, stopped
    text: str
    session_id: str | None = None
    name: str = ""  # the key or the title of the session
    exception: ExceptionInfo | None = None  # behind it, if code of a user raised it


class _Driven:
    """A session that this worker moves."""

    __slots__ = ("again", "settled", "task", "turns")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.turns = 0  # jobs that started since it was claimed
        self.again = False  # whether another move was requested
        self.settled = False  # whether a turn settled: queued input may be delivered


class Worker:
    """Moves the sessions of a store until it is stopped. Made by `runtime.workers.worker`.

    `await worker.run()` works until `worker.stop()`. `await worker.once()` moves what is due and
    returns. It is also an async context manager. Afterwards, its runtime moves only the sessions
    that its callers use.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        adopt_parked: bool = False,
        concurrency: int = CONCURRENCY,
        limits: Limits | None = None,
        programs: Collection[str] = (),
        ttl: float | None = None,
        grace: float = GRACE,
        poll: float | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or concurrency < 1:
            raise BadSetting(
                "concurrency", f"{concurrency!r} is not a number of sessions; give 1 or more"
            )
        if grace < 0:
            raise BadSetting("grace", f"{grace!r} is negative; give 0 or more seconds")
        if poll is not None and poll <= 0:
            raise BadSetting("poll", f"{poll!r} is not an interval; give more than 0 seconds")
        self._engine = engine
        self._sessions = engine.sessions
        self._effects = engine.effects
        self._clock = engine.clock
        self._moves = engine.moves
        self._reconciler = engine.reconciler
        self.adopts_older = adopt_parked
        self._leases = engine.leases
        self._timings = self._leases.timings if ttl is None else LeaseTimings(ttl)
        self._programs = frozenset(programs)
        self._grace = grace
        self._poll = poll
        self._tell = tell
        self.gate = JobLimiter(concurrency, limits or Limits(), self._began)
        self._driven: dict[str, _Driven] = {}
        self._served: dict[str, int] = {}  # the order in which sessions were last claimed
        self._order = count(1)
        self._wanted: dict[str, None] = {}  # requested moves that wait for capacity
        self._timers = MoveTimers(engine.clock, self.send)
        self._cannot: set[str] = set()  # sessions that cannot move here, and were reported
        self._not_served: set[str] = set()  # programs that were not given, and were reported
        self._busy: dict[str, float] = {}  # sessions leased by others, and when that was seen
        self._retry: asyncio.TimerHandle | None = None  # retries them
        self._reporting: asyncio.Task[None] | None = None  # reports unanswered questions
        self._stopping = asyncio.Event()
        self._entered = self._left_already = False
        self.moved = 0  #: moves that changed a session
        self.turns = 0  #: turns of agents that settled

    # ---- starting and leaving

    async def run(self) -> None:
        """Work until `stop` is called, then hand over and leave."""
        async with self:
            await self._stopping.wait()

    def stop(self) -> None:
        """Claim nothing more; `run` hands over and returns."""
        self._stopping.set()

    async def once(self, within: float | None = None) -> int:
        """Move what is due, within at most `within` seconds, and leave. Returns how many sessions
        still need a move.
        """
        loop = asyncio.get_running_loop()
        end = None if within is None else loop.time() + within
        await self._enter(looks=False)
        more = False
        try:
            while not self._stopping.is_set() and (end is None or loop.time() < end):
                more = await self._reconciler.look()
                tasks = self._tasks()
                if tasks:
                    left = None if end is None else max(0.0, end - loop.time())
                    await asyncio.wait(
                        {*tasks, stopping := loop.create_task(self._stopping.wait())},
                        timeout=left,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    stopping.cancel()
                elif not more and not self._wanted:
                    await self._say_unanswered(self._clock.now())
                    break
        finally:
            await self.leave()
        return await self._left() or int(more)  # the last look did not see all

    async def __aenter__(self) -> Self:
        await self._enter(looks=True)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave()

    async def _enter(self, *, looks: bool) -> None:
        if self._entered or self._engine.serving.gate is not None:
            raise BadSetting("worker", "this runtime already is or was a worker")
        self._entered = True
        if self._reconciler.started:
            await self._reconciler.stop()
        self._engine.presence.live_by(self._timings)
        self._engine.serving.serve_by(self)
        await self._engine.presence.introduce()
        self._say(
            "started",
            f"process {os.getpid()} on {get_machine_name(get_machine_id())},"
            f" {_counted(self.gate.concurrency, 'session')} at once",
        )
        await self._say_what_is_left_alone()
        self._reconciler.start(self, looks=looks, every=self._poll)
        if looks:
            self._reporting = asyncio.get_running_loop().create_task(self._keep_reporting())

    async def _say_what_is_left_alone(self) -> None:
        """Report once that some model questions are not for workers, if this worker has a model."""
        if self._tell is None or not self._engine.policy.is_inline(Query(0, "")):
            return
        asked = await self._sessions.store.inbox(kind=Kind.LLM, to=None, limit=100)
        left = {birth.id: birth for birth, _, _ in asked if birth.llm != WORKERS}
        older = [birth for birth in left.values() if not birth.llm]
        if left:
            words = f"{_counted(len(left), 'session')} whose model questions are answered outside"
            more = (
                ""
                if not older or self.adopts_older
                else "; --adopt-parked takes those of older databases"
            )
            self._say("leaves", f"{words} (by an MCP host, or by hand){more}")

    async def leave(self, grace: float | None = None) -> None:
        """Hand over and release everything. Running work has `grace` seconds to reach its
        commit.
        """
        self._stopping.set()
        if not self._entered or self._left_already:
            return
        self._left_already = True
        self._grace = self._grace if grace is None else grace
        if self._reporting is not None:
            self._reporting.cancel()
        await self._reconciler.stop(looks_only=True)
        await self._timers.stop()
        self._engine.leave()
        if self.gate.running:
            count = _counted(self.gate.running, "call")
            self._say("stopping", f"{count} running; waiting up to {self._grace:g} s")
        self._sessions.changed()  # the tasks wake and release their leases
        await self._settle()
        for task in self._tasks():
            task.cancel()
        with suppress(TimeoutError):  # a release may wait for an unavailable store
            await asyncio.wait_for(
                asyncio.gather(*self._tasks(), return_exceptions=True), CLOSE_TIMEOUT
            )
        await self._reconciler.stop()
        self._engine.serving.serve_locally()
        await self._engine.release()
        self._say("stopped", f"{_counted(self.moved, 'move')} made; everything is handed over")

    async def _settle(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._grace
        while (tasks := self._tasks()) and loop.time() < end:
            await asyncio.wait(tasks, timeout=end - loop.time())
        if self.gate.running:
            self._say(
                "gave_up",
                f"{_counted(self.gate.running, 'call')} did not end in time; the outcome is"
                " unknown",
            )

    def _tasks(self) -> set[asyncio.Task[Any]]:
        return {*self._effects.tasks, *(driven.task for driven in self._driven.values())}

    async def _left(self) -> int:
        """How many sessions could still be moved here now."""
        rows = await self._reconciler.left(older=self.adopts_older)
        left = 0
        for session_id, reasons in rows.items():
            if session_id in self._cannot:
                continue
            try:
                record = await self._sessions.store.load(session_id, since=FROM_OPEN)
            except UnknownSession:
                continue
            except StoreDamaged:
                left += 1
                continue
            left += self._wants(record) and await self._could_move(record, reasons)
        return left

    async def _could_move(self, record: SessionRecord, reasons: set[str]) -> bool:
        """Whether a move of this session would change anything.

        Queued input may have to wait for the running turn, and a question may be for another model.
        """
        if record.head.ended or reasons - {ITEM, PARKED}:
            return True
        opened = find_open_queries(record.deliveries)
        if PARKED in reasons and any(
            entry.query.kind is Kind.LLM and self._engine.policy.is_inline(entry.query)
            for entry in opened.values()
        ):
            return True
        return ITEM in reasons and await self._sessions.store.intake(
            record.birth.id, functools.partial(can_enter_conversation, opened)
        )

    # ---- claiming

    def send(self, session_id: str, *, at: float | None = None) -> None:
        """See `Mover.send`."""
        if self._stopping.is_set():
            return
        if at is not None:
            self._timers.set(session_id, at)
            return
        driven = self._driven.get(session_id)
        if driven is not None:
            driven.again = True
            self._sessions.changed(session_id)
        elif self._room() < 1 or self._seen_busy(session_id):
            self._wanted[session_id] = None
        else:
            self._wanted.pop(session_id, None)
            self._drive(session_id)

    def _serve_wanted(self) -> None:
        """Drive as many waiting sessions as there is capacity for."""
        for session_id in self._in_turn(list(self._wanted)):
            if self._stopping.is_set() or self._room() < 1:
                return
            if not self._seen_busy(session_id):
                self.send(session_id)

    async def serve(self, move: Move) -> None:
        """Work until `stop` is called; see `Mover.serve`. `move` is not used: the worker calls its
        own
        engine.
        """
        await self._stopping.wait()

    async def rest(self) -> None:
        """Wait until all requested moves have ended."""
        while self._driven:
            await asyncio.wait({driven.task for driven in self._driven.values()})

    def _in_turn(self, fresh: list[str]) -> list[str]:
        """Order sessions: the last served is last. Each worker begins with another part of the new
        ones.
        """
        living = sorted({self._engine.presence.worker, *self._reconciler.living})
        mine = {*fresh[living.index(self._engine.presence.worker) :: len(living)]}
        return sorted(fresh, key=lambda each: (self._served.get(each, 0), each not in mine))

    @property
    def cannot(self) -> int:
        """How many sessions could not be moved here."""
        return len(self._cannot)

    def _wants(self, record: SessionRecord) -> bool:
        return (
            not self._programs
            or find_same_program(record.birth.program, self._programs) is not None
        )

    def _room(self) -> int:
        """How many more sessions may be claimed."""
        counted = sum(driven.turns < JOBS_BEFORE_SHARING for driven in self._driven.values())
        return min(
            self.gate.concurrency - counted,
            self.gate.concurrency * MAX_HELD_FACTOR - len(self._driven),
        )

    def _seen_busy(self, session_id: str) -> bool:
        """Whether another worker held the lease a moment ago. Then the session is retried soon."""
        seen = self._busy.get(session_id)
        return seen is not None and asyncio.get_running_loop().time() < seen + LOOK_EVERY

    def _is_busy(self, session_id: str) -> None:
        self._busy[session_id] = asyncio.get_running_loop().time()
        self._wanted[session_id] = None
        self._await_busy()

    def _await_busy(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(LOOK_EVERY * 1.1, self._retry_busy)

    def _retry_busy(self) -> None:
        """Retry the sessions that others held a moment ago; some may have been marked since."""
        self._retry = None
        self._busy = {each: seen for each, seen in self._busy.items() if self._seen_busy(each)}
        self._serve_wanted()
        if self._busy and not self._stopping.is_set():
            self._await_busy()

    # ---- moving sessions

    def _drive(self, session_id: str, *, moves: bool = True) -> None:
        driven = self._driven[session_id] = _Driven()
        driven.again = moves
        if len(self._served) > 10 * MAX_HELD_FACTOR * self.gate.concurrency:
            self._served = {each: at for each, at in self._served.items() if each in self._driven}
        self._served[session_id] = next(self._order)
        driven.task = asyncio.get_running_loop().create_task(self._driving(session_id, driven))

    async def _driving(self, session_id: str, driven: _Driven) -> None:
        moves = driven.again
        driven.again = False
        try:
            if self._programs:
                record = await self._sessions.store.load(session_id, since=FROM_OPEN)
                if not self._wants(record):
                    self._say_not_served(record.birth)
                    return self._moves.leave_alone(session_id)
            if moves and self._waits_for_input(session_id):
                await self._move(session_id)  # the commit that delivers the input takes the lease
                moves = False
                if not self._leases.holds(session_id):
                    return
            async with self._leases.held(session_id) as fence:
                if fence is None:
                    return self._is_busy(session_id)
                while True:
                    if moves:
                        await self._move(session_id)
                    await self._while_it_works(session_id, driven)
                    self._say_blocked(session_id)
                    moves = driven.again
                    driven.again = False
                    if not moves or not self._leases.holds(session_id):
                        driven.again = moves
                        break
        except UnknownSession:
            pass
        except STORE_AWAY_ERRORS as error:
            log.warning("could not move session %s; retrying: %s", session_id, error)
            self._timers.set(session_id, self._clock.now() + STORE_RETRY_DELAY)
        except EverholdError as error:  # the session cannot be read
            self._moves.leave_alone(session_id)
            self._cannot_move(session_id, str(error), exception=error.exception)
        except Exception:
            log.exception("could not move session %s", session_id)
            self._timers.set(session_id, self._clock.now() + FAILED_MOVE_DELAY)
        finally:
            del self._driven[session_id]
            if self._leases.holds(session_id):  # a commit took the lease again during the release
                self.lease_adopted(session_id)
            elif driven.again:
                self.send(session_id)
            self._serve_wanted()

    def _waits_for_input(self, session_id: str) -> bool:
        """Whether a session in memory is an agent between two turns."""
        live = self._sessions.cached(session_id)
        return live is not None and not live.head.mail and is_waiting_for_input(live.opened)

    async def _move(self, session_id: str) -> None:
        found = await self._moves.move(session_id, leased=True)
        self.moved += found.moved
        if found.absent is not None and session_id not in self._cannot:
            record = await self._sessions.store.load(session_id, since=FROM_OPEN)
            self._cannot_move(session_id, found.absent, record.birth, found.exception)
        elif found.at is not None:
            self._timers.set(session_id, found.at)

    def _cannot_move(
        self,
        session_id: str,
        why: str,
        birth: Birth | None = None,
        exception: ExceptionInfo | None = None,
    ) -> None:
        """Report once that a session cannot be moved here."""
        if session_id in self._cannot:
            return
        self._cannot.add(session_id)
        if self._tell is None:
            log.warning("session %s cannot be moved here: %s", session_id, why)
        self._say("cannot", f"left to other workers: {why}", session_id, birth, exception)

    def _say_blocked(self, session_id: str) -> None:
        """Report a model question of a session in memory that the model here could not answer."""
        live = self._sessions.cached(session_id)
        if live is not None and live.head.metrics.blocked is not None:
            why = self._why_refused(live.birth, live.head)
            if why:
                self._cannot_move(session_id, why, live.birth)

    def _why_refused(self, birth: Birth, head: Head) -> str:
        """Why the model of this worker could not answer; empty if it did."""
        for q, blocked in (head.metrics.blocked or {}).items():
            if self._engine.policy.is_refused(birth.id, q):
                return f"q-{q} could not be answered: {blocked.message}. {blocked.hint}".strip()
        return ""

    async def _keep_reporting(self) -> None:
        """Report the questions that no worker answers. Other workers have some seconds for them."""
        while True:
            await self._clock.sleep(UNANSWERED_SECONDS)
            try:
                await self._say_unanswered(self._clock.now() - UNANSWERED_SECONDS)
            except STORE_AWAY_ERRORS:
                pass  # the looks report it

    async def _say_unanswered(self, before: float) -> None:
        """Report the sessions that have waited since before a moment for a model that this worker
        does not have.
        """
        living = set(self._reconciler.living)
        rows = await self._sessions.store.unmoved(before, living, parked=True)
        for row in rows:
            if row.why != PARKED or row.since > before or row.id in self._cannot:
                continue
            try:
                record = await self._sessions.store.load(row.id, since=FROM_OPEN)
            except (UnknownSession, StoreDamaged):
                continue
            why = self._why_refused(record.birth, record.head) or self._why_unanswered(record)
            if why and self._wants(record):
                self._cannot_move(row.id, why, record.birth)

    def _why_unanswered(self, record: SessionRecord) -> str:
        """Why this worker cannot answer a model question of a session; empty if it can answer
        all.
        """
        for entry in find_open_queries(record.deliveries).values():
            query = entry.query
            for_models = query.kind in MODEL_KINDS and query.to is None
            if for_models and not self._engine.policy.is_inline(query):
                name = (query.options or {}).get("model")
                model = f"the model {name!r}" if name else "a model"
                return (
                    f"{query.id} asks {model}, which this worker does not have. Start a worker with"
                    " --model, --answer-with or --answers."
                )
        return ""

    def _say_not_served(self, birth: Birth) -> None:
        """Report a session of a program that this worker was not given: each one whose program has
        the name of a given one, which may be meant, and one of each other program.
        """
        name = birth.program.rpartition(":")[2]
        alike = sorted(ref for ref in self._programs if ref.rpartition(":")[2] == name)
        if alike:
            why = f"its program is {birth.program}, and this worker serves {', '.join(alike)}."
            place = birth.program.rpartition(":")[0]
            if place.endswith((".py", ".lua")) and not os.path.exists(place):
                why += f" There is no file {place} here."
            else:
                why += f" Did you mean: {format_command('worker', birth.program)}"
            self._cannot_move(birth.id, why, birth)
        elif birth.program not in self._not_served:
            self._not_served.add(birth.program)
            self._say("skips", f"sessions of {birth.program}: not a program of this worker")

    async def _while_it_works(self, session_id: str, driven: _Driven) -> None:
        """Wait while the session's work runs here, until another move is requested."""
        while (
            self._sessions.jobs.get(session_id)
            and self._leases.holds(session_id)
            and not driven.again
        ):
            await self._sessions.next_change(session_id, None)

    def _began(self, session_id: str) -> None:
        """A job of the session started. If the session was not claimed here, hold it while it
        works.
        """
        driven = self._driven.get(session_id)
        if driven is not None:
            driven.turns += 1
            if driven.turns == JOBS_BEFORE_SHARING and self._wanted:
                self._serve_wanted()
        else:
            self.lease_adopted(session_id)

    def lease_adopted(self, session_id: str) -> None:
        """Drive a session whose lease came with a commit, as long as its work runs."""
        if session_id not in self._driven and not self._stopping.is_set():
            self._drive(session_id, moves=False)

    def lease_freed(self, session_id: str) -> None:
        """Input arrived for a session whose lease was just released. Drive it again, or look."""
        driven = self._driven.get(session_id)
        if driven is not None and driven.settled:
            driven.again = True
        else:
            self._reconciler.poke()

    def turn_settled(self, session_id: str) -> None:
        """A turn settled. The release of the lease reports whether input is queued for the next."""
        self.turns += 1
        driven = self._driven.get(session_id)
        if driven is None:
            self.send(session_id)
        else:
            driven.settled = True
            self._leases.tell_all(session_id)

    def took_over(self, birth: Birth) -> None:
        self._say("took_up", "claimed from a worker that is dead", birth.id, birth)

    def lease_lost(self, session_id: str) -> None:
        live = self._sessions.cached(session_id)
        self._say(
            "lost", "another worker has it now", session_id, None if live is None else live.birth
        )
        self._sessions.changed(session_id)

    def _say(
        self,
        event: str,
        text: str,
        session_id: str | None = None,
        birth: Birth | None = None,
        exception: ExceptionInfo | None = None,
    ) -> None:
        if self._tell is not None:
            name = "" if birth is None else birth.key or birth.title
            self._tell(WorkerEvent(event, text, session_id, name, exception))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class WorkerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[worker]` of the settings."""

    concurrency: int = CONCURRENCY
    lease_ttl: float | str | None = None
    grace: float | str = GRACE
    limits: Limits = Limits()
    adopt_parked: bool = False


def parse_worker_settings(table: Mapping[str, Any]) -> WorkerSettings:
    """Parse the table. Raises `BadSetting`."""
    _refuse_unknown("worker", table, WorkerSettings.__struct_fields__)
    limits = table.get("limits")
    if isinstance(limits, Mapping):
        _refuse_unknown("worker.limits", limits, Limits.__struct_fields__)
    try:
        return msgspec.convert(dict(table), WorkerSettings)
    except msgspec.ValidationError as error:
        raise BadSetting("worker", str(error)) from None


def _refuse_unknown(where: str, table: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in table:
        if name not in names:
            raise BadSetting(where, f"there is no {name!r}; there are {', '.join(names)}")


class Workers:
    """`runtime.workers`: makes workers and lists the living ones.

    `take_up` loads the given programs, starts the chores of a process that moves their sessions,
    and returns their references.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings | None,
        take_up: Callable[[Iterable[str]], frozenset[str]],
    ) -> None:
        self._engine = engine
        self._table = settings.worker if settings is not None else {}
        self._take_up = take_up

    def worker(
        self,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        programs: Iterable[str] = (),
        ttl: float | None = None,
        grace: float | None = None,
        poll: float | None = None,
        adopt_parked: bool | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> Worker:
        """Make a worker: it claims sessions that need a move, drives them, and takes over those of
        dead workers.

        Defaults come from the settings. `programs` are names or references; without any, the worker
        moves sessions of all programs. Raises if one of them is not here. Leases live for `ttl`
        seconds. At the end, running work has `grace` seconds to reach its commit. The worker looks
        for work at least every `poll` seconds. With `adopt_parked` it also answers model questions
        of sessions that an older everhold started, which do not say who answers them. `tell` is
        called with each `WorkerEvent`.
        """
        for name, given in (("ttl", ttl), ("grace", grace), ("poll", poll)):
            check_seconds_arg(name, given)
        found = parse_worker_settings(self._table)
        if ttl is None and found.lease_ttl is not None:
            ttl = parse_duration(found.lease_ttl, "worker.lease_ttl")
        wanted = self._take_up(programs)
        return Worker(
            self._engine,
            adopt_parked=found.adopt_parked if adopt_parked is None else adopt_parked,
            concurrency=found.concurrency if concurrency is None else concurrency,
            limits=found.limits if limits is None else limits,
            programs=wanted,
            ttl=ttl,
            grace=parse_duration(found.grace, "worker.grace") if grace is None else grace,
            poll=poll,
            tell=tell,
        )

    async def run(
        self,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        programs: Iterable[str] = (),
        ttl: float | None = None,
        grace: float | None = None,
        poll: float | None = None,
        adopt_parked: bool | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> None:
        """Run a worker until this task is cancelled. For the options, see `worker`."""
        worker = self.worker(
            concurrency=concurrency,
            limits=limits,
            programs=programs,
            ttl=ttl,
            grace=grace,
            poll=poll,
            adopt_parked=adopt_parked,
            tell=tell,
        )
        await worker.run()

    async def list(self) -> builtins.list[WorkerRecord]:
        """The living worker processes of this store."""
        living = (await self._engine.presence.census()).living
        return [worker for worker in await self._engine.store.workers() if worker.id in living]
