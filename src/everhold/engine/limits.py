"""Concurrency limits: which job may start next in this process.

A job is one effect of a session: a call, a tool, or a model question that this process answers.

Rules
  1. `concurrency` limits the sessions with running calls. Sessions, programs and tools may have
     limits of their own.
  2. Sessions take turns: the session whose last job started longest ago is next. A session with
     many calls does not starve the others.
  3. After `close` no job starts. Jobs that have not started are left for other processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from everhold.errors import BadSetting


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls run at once in one process: per session, per program and per tool.

    Programs, tools and functions are named by their names, or as `module:name`. `llm` names model
    questions. What is not named has only the limit of its session.
    """

    session: int | None = None
    program: Mapping[str, int] = {}
    tool: Mapping[str, int] = {}

    def __post_init__(self) -> None:
        given = {"session": self.session} if self.session is not None else {}
        named = {**given, **_named("program", self.program), **_named("tool", self.tool)}
        for name, most in named.items():
            if not isinstance(most, int) or isinstance(most, bool) or most < 1:
                raise BadSetting(
                    f"limits.{name}", f"{most!r} is not a number of calls; give 1 or more"
                )


def _named(kind: str, table: Mapping[str, int]) -> dict[str, int]:
    return {f"{kind}.{name}": most for name, most in table.items()}


class Job(msgspec.Struct, frozen=True):
    """One effect that waits to start."""

    session: str
    program: str
    tool: str


class LimiterClosed(Exception):
    """The limiter is closed; the job did not start."""


class JobLimiter:
    """Starts calls within the limits, session by session in turn."""

    def __init__(
        self, concurrency: int, limits: Limits, began: Callable[[str], None] | None = None
    ) -> None:
        self.concurrency = concurrency
        self._limits = limits
        self._named = bool(limits.program or limits.tool)
        self._waiting: OrderedDict[str, list[tuple[Job, asyncio.Future[None]]]] = OrderedDict()
        # running calls, by kind of limit and name
        self._running: Counter[tuple[str, str]] = Counter()
        self._sessions: Counter[str] = Counter()
        # sessions, in the order in which their last calls started
        self._begun: OrderedDict[str, None] = OrderedDict()
        self.closed = False
        self._began = began  # called with the session of each job that starts

    @property
    def running(self) -> int:
        """The number of running calls."""
        return sum(self._sessions.values())

    @property
    def full(self) -> bool:
        return len(self._sessions) >= self.concurrency

    @asynccontextmanager
    async def entered(self, job: Job) -> AsyncIterator[None]:
        """Wait until the job may start; it counts as running within the context.

        Raises `LimiterClosed` if the limiter closes first.
        """
        await self._enter(job)
        try:
            yield
        finally:
            self._leave(job)

    def close(self) -> None:
        """Start no more calls; waiting ones raise `LimiterClosed`."""
        self.closed = True
        waiting = self._waiting
        self._waiting = OrderedDict()
        for _, turn in (one for queue in waiting.values() for one in queue):
            if not turn.done():
                turn.set_exception(LimiterClosed())

    async def _enter(self, job: Job) -> None:
        if self.closed:
            raise LimiterClosed
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job.session, []).append((job, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self._withdraw(job, turn)
            raise

    def _withdraw(self, job: Job, turn: asyncio.Future[None]) -> None:
        # admitted and cancelled at the same time: the job counts as running, so it must leave
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self._leave(job)
            return
        self._unqueue(job, turn)

    def _unqueue(self, job: Job, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(job.session, [])
        queue[:] = [one for one in queue if one[1] is not turn]
        if not queue:
            self._waiting.pop(job.session, None)

    def _leave(self, job: Job) -> None:
        for place in self._places(job):
            self._running[place] -= 1
        self._sessions[job.session] -= 1
        if not self._sessions[job.session]:
            del self._sessions[job.session]
        self._admit()

    def _admit(self) -> None:
        """Start every job that the limits allow, in the turn of their sessions."""
        if not self._waiting:
            self._begun.clear()
            return
        moved = True
        while moved:
            moved = False
            for session_id in self._in_turn():
                if session_id not in self._sessions and self.full:
                    # running sessions may not pass it, else they could keep it waiting for ever
                    break
                queue = self._waiting[session_id]
                chosen = next(
                    (one for one in queue if not one[1].done() and self._fits(one[0])), None
                )
                if chosen is not None:
                    self._begin(*chosen)
                    moved = True

    def _in_turn(self) -> list[str]:
        served = {session_id: at for at, session_id in enumerate(self._begun, 1)}
        return sorted(self._waiting, key=lambda session_id: served.get(session_id, 0))

    def _begin(self, job: Job, turn: asyncio.Future[None]) -> None:
        self._unqueue(job, turn)
        for place in self._places(job):
            self._running[place] += 1
        self._sessions[job.session] += 1
        self._begun[job.session] = None
        self._begun.move_to_end(job.session)
        turn.set_result(None)
        if self._began is not None:
            self._began(job.session)

    def _fits(self, job: Job) -> bool:
        if self._limits.session is not None and self._sessions[job.session] >= self._limits.session:
            return False
        return all(self._running[place] < self._most(place) for place in self._places(job))

    def _most(self, place: tuple[str, str]) -> int:
        found: Mapping[str, int] = getattr(self._limits, place[0])
        return found[place[1]]

    def _places(self, job: Job) -> list[tuple[str, str]]:
        """The program and tool limits of a job."""
        if not self._named:
            return []
        return [
            (kind, name)
            for kind, whole, limits in (
                ("program", job.program, self._limits.program),
                ("tool", job.tool, self._limits.tool),
            )
            for name in dict.fromkeys((whole, whole.rpartition(":")[2]))
            if name in limits
        ]
