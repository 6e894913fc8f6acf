"""Who may work now: jobs go in one after another, so many at once, and no session before its turn.

A job is one thing that a program asked of this process: a call, a tool, a question to a model that
answers here.

Rules
  1. So many sessions are in work at once; a session, a program and a tool have limits of their own,
     if they are set.
  2. Sessions take turns: the one whose last job began longest ago goes first, so that one that
     always has another job keeps nobody out.
  3. After `close` nothing goes in any more; what has not begun is somebody else's.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from everhold.errors import BadSetting


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs run at once in one process: of one session, of one program, of one tool.

    Programs, tools and functions are named by their names, or as `module:name`; questions to models
    are `llm`. What is not named has no limit but that of its session.
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
                    f"limits.{name}", f"{most!r} is not a number of jobs; it is 1 or more"
                )


def _named(kind: str, table: Mapping[str, int]) -> dict[str, int]:
    return {f"{kind}.{name}": most for name, most in table.items()}


class Job(msgspec.Struct, frozen=True):
    """What wants to go in."""

    session: str
    program: str
    tool: str


class LimiterClosed(Exception):
    """The gate is closed: the job was not begun."""


class JobLimiter:
    """Lets jobs in, in turn."""

    def __init__(
        self, concurrency: int, limits: Limits, began: Callable[[str], None] | None = None
    ) -> None:
        self.concurrency = concurrency
        self._limits = limits
        self._named = bool(limits.program or limits.tool)
        self._waiting: OrderedDict[str, list[tuple[Job, asyncio.Future[None]]]] = OrderedDict()
        # jobs that run, by kind of limit and name
        self._running: Counter[tuple[str, str]] = Counter()
        self._sessions: Counter[str] = Counter()
        # sessions, by when their last job began
        self._begun: OrderedDict[str, None] = OrderedDict()
        self.closed = False
        self._began = began  # told of the session of each job that is let in

    @property
    def running(self) -> int:
        """How many jobs run."""
        return sum(self._sessions.values())

    @property
    def full(self) -> bool:
        return len(self._sessions) >= self.concurrency

    @asynccontextmanager
    async def entered(self, job: Job) -> AsyncIterator[None]:
        """Wait for one's turn, and be within; raises `LimiterClosed` if it does not come any
        more.
        """
        await self._enter(job)
        try:
            yield
        finally:
            self._leave(job)

    def close(self) -> None:
        """Let nobody in any more."""
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
        # its turn came in the same moment
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
        """Let in whoever may go, the session first that waited longest."""
        if not self._waiting:
            self._begun.clear()
            return
        moved = True
        while moved:
            moved = False
            for session_id in self._in_turn():
                if session_id not in self._sessions and self.full:
                    # those in work do not overtake it: else one that always works would keep it out
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
        """The limits that concern a job."""
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
