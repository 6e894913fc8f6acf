"""A Lua execution in a worker process, for the engine.

Rules
  1. The journal has everything that is known here. If a worker is gone, or busy with another
     session, the caller gets `Overtaken`, and rebuilds the session in another worker.
  2. A session that takes too long, or sends too much, fails. That is its recorded outcome; `retry`
     delivers the same answers again.
  3. If a worker dies, another one tries the same delivery; if that one dies, too, the session
     fails as poison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.journal import Delivery, ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, QueryAnswer, make_lua_namespace
from everhold.core.session import Birth, get_budget
from everhold.core.status import Raised, Stopped
from everhold.errors import EverholdError, Overtaken, Poison, Spinning, TooLarge, WorkerFailed
from everhold.ports.program import Call
from everhold.programs.lua.pool import LuaWorker, LuaWorkerPool
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import (
    LuaLimits,
    WorkerOrder,
    WorkerStep,
    encode_step,
    slice_steps,
)
from everhold.programs.lua.values import get_namespace_name, may_use_namespace
from everhold.programs.lua.worker_process import (
    ProtocolBreach,
    SyncLuaWorker,
    WorkerBusy,
    WorkerDied,
    WorkerGone,
    WorkerOvertime,
)

#: Workers that may die of one delivery before its session counts as poison.
MAX_WORKER_DEATHS: Final = 2


class RemoteLuaExecution:
    remote = True
    bare = False
    keep = None
    spent = None
    after = ()

    def __init__(
        self,
        program: LuaProgram,
        birth: Birth,
        meter: Metrics,
        home: LuaPoolHolder,
        space: str = "",
        limits: LuaLimits | None = None,
    ) -> None:
        self.program = program
        self._limits = limits or home.limits
        self.birth = birth
        ctx = program.ctx(birth.args)
        self._space = space or make_lua_namespace(get_namespace_name(ctx))
        self.meter = meter
        self.budget = get_budget(birth, meter) or Budget.read(ctx.get("budget"))
        self.replaying = False
        self.recorded: Delivery | None = None
        self.recorded_versions: dict[str, int] = {}
        self._home = home
        self._worker: LuaWorker | None = None
        self._lone: SyncLuaWorker | None = None
        self._number = 0
        self._begun = False
        self._dropped = False

    # ---- the port

    def entered(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def advance_there(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        step: WorkerStep = (n, at, answers, fired, cancel, budget)
        if budget is not None:
            self.budget = budget
        if not self._begun:
            return (await self._live([step], replaying=False))[0]
        worker = self._worker
        if worker is None or self._dropped:
            raise Overtaken(self.birth.id, n)
        try:
            await worker.turn()
            (reply,) = self._check_namespaces(
                worker,
                await worker.work(
                    [WorkerOrder(self._number, [encode_step(step)])], self._limits.wall
                ),
            )
        except (WorkerBusy, WorkerGone):
            self.drop()
            raise Overtaken(self.birth.id, n) from None
        except WorkerDied:
            self._worker = None
            if self._home.died(self.birth.id, n) < MAX_WORKER_DEATHS:
                raise Overtaken(self.birth.id, n) from None
            return _ended(step, Poison(MAX_WORKER_DEATHS))
        except (WorkerOvertime, ProtocolBreach) as error:
            self._worker = None
            return _ended(step, self._make_failure(error))
        self._home.went_well(self.birth.id)
        return self._after([reply])[0]

    async def replay_there(self, steps: list[WorkerStep]) -> list[ProgramReply]:
        for step in steps:
            self.budget = step[5] or self.budget
        return await self._live(steps, replaying=True) if steps else []

    def take_after(self) -> list[Callable[[], Any]]:
        return []

    def advance(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        """One advance in a blocking worker, for recordings and checks."""
        step: WorkerStep = (n, at, answers, fired, cancel, budget)
        if budget is not None:
            self.budget = budget
        if self._begun and (self._lone is None or self._lone is not self._home.lone):
            raise Overtaken(self.birth.id, n)
        if self._lone is None:
            self._number = next(self._home.numbers)
            self._lone = self._home.alone()
        order = WorkerOrder(self._number, [encode_step(step)], replaying=self.replaying)
        if not self._begun:
            self._make_first(order)
            self._begun = True
        try:
            return self._lone.work(order, self._limits.wall)
        except WorkerGone:
            raise Overtaken(self.birth.id, n) from None
        except (WorkerDied, WorkerOvertime, ProtocolBreach) as error:
            self._home.forget_lone()
            return _ended(
                step, Poison(1) if isinstance(error, WorkerDied) else self._make_failure(error)
            )

    def follow(
        self, recorded: Sequence[Delivery], place: int, last: int
    ) -> tuple[int, ProgramReply]:
        one = recorded[place]
        return place, self.advance(one.n, one.at, one.answers, False, None)

    def effect(self, q: int) -> Callable[[], Any] | None:
        return None

    def child(self, q: int) -> Call[Any] | None:
        return None

    def drop(self) -> None:
        self._dropped = True
        if self._worker is not None:
            self._worker.drop(self._number)
            self._worker = None
        if self._lone is not None and self._lone is self._home.lone:
            self._lone.drop(self._number)
        self._lone = None

    # ---- from the start

    async def _live(self, steps: list[WorkerStep], *, replaying: bool) -> list[ProgramReply]:
        """Start in a worker, and in another one if the first dies."""
        self._begun = True
        alone = self._home.deaths(self.birth.id) > 0
        pool = self._home.pool()
        deaths = failures = 0
        while deaths < MAX_WORKER_DEATHS:
            try:
                worker = await pool.place(alone=alone or deaths > 0)
                replies = await self._begin(worker, steps, replaying)
            except WorkerGone:
                # a new pool would start a process that nothing closes
                if pool.closed:
                    raise WorkerFailed("the runtime was closed meanwhile") from None
                continue
            except WorkerFailed:  # it did not start, or was killed meanwhile
                failures += 1
                if failures > 1:
                    raise
                continue
            except WorkerDied:
                deaths += 1
                continue
            except (WorkerOvertime, ProtocolBreach) as error:
                return self._partly(steps, error)
            if len(replies) < len(steps) and not (replies and replies[-1].outcome):
                raise WorkerFailed("it answered less than it was asked")
            if self._dropped:  # meanwhile
                worker.drop(self._number)
                raise Overtaken(self.birth.id, steps[-1][0])
            self._worker = worker
            return self._after(replies)
        if len(steps) > 1:
            raise Poison(MAX_WORKER_DEATHS)
        return [_ended(steps[0], Poison(MAX_WORKER_DEATHS))]

    async def _begin(
        self, worker: LuaWorker, steps: list[WorkerStep], replaying: bool
    ) -> list[ProgramReply]:
        try:
            self._number = next(worker.pool.numbers)
            worker.held.add(self._number)
            groups = slice_steps([encode_step(step) for step in steps])
            orders = [WorkerOrder(self._number, group, replaying=replaying) for group in groups]
            self._make_first(orders[0])
            replies = await worker.work(orders, self._limits.wall)
            return self._check_namespaces(worker, replies)
        except BaseException:  # also if the caller was cancelled
            worker.drop(self._number)
            raise

    def _make_first(self, order: WorkerOrder) -> None:
        """Make this the order that starts the execution."""
        # the worker finds the program where it is now; the session may know an older place
        order.birth = msgspec.structs.replace(self.birth, program=self.program.ref)
        order.roots = list(self.program.roots)
        order.space = self._space
        if self._limits != self._home.limits:
            order.limits = self._limits

    def _check_namespaces(
        self, worker: LuaWorker, replies: list[ProgramReply]
    ) -> list[ProgramReply]:
        """The replies. If one asks for values of another namespace, the worker is killed."""
        for reply in replies:
            for query in reply.asked:
                if query.kind is Kind.STATE and not may_use_namespace(
                    query.args, self._space, self.birth.id
                ):
                    worker.end(ProtocolBreach(0))
                    raise ProtocolBreach(0)
        return replies

    def _partly(
        self, steps: list[WorkerStep], error: WorkerOvertime | ProtocolBreach
    ) -> list[ProgramReply]:
        """The replies of an execution that was killed. Only its last step can be new, so only there
        the error becomes the outcome; at an earlier step it is raised.
        """
        told = error.told if isinstance(error, WorkerOvertime) else []
        failure = self._make_failure(error)
        if len(told) < len(steps) - 1:
            raise failure
        return [*told, _ended(steps[-1], failure)]

    def _after(self, replies: list[ProgramReply]) -> list[ProgramReply]:
        if replies[-1].outcome is not None and self._worker is not None:
            self._worker.held.discard(self._number)  # the worker has dropped it already
            self._worker = None
        return replies

    def _make_failure(self, error: WorkerOvertime | ProtocolBreach) -> EverholdError:
        limits = self._limits
        if isinstance(error, WorkerOvertime):
            return Spinning(limits.describe_cpu(limits.wall))
        return TooLarge(error.size, limits.largest) if error.size else Poison(1)


class LuaPoolHolder:
    """What the executions of one host share: the pool of the running event loop, and the number of
    worker deaths.
    """

    def __init__(self, limits: LuaLimits | None = None, **settings: Any) -> None:
        self.limits = limits or LuaLimits()
        self._settings = settings
        self._pool: LuaWorkerPool | None = None
        self.lone: SyncLuaWorker | None = None  # for blocking calls
        self.numbers = count(1)
        self._deaths: dict[str, tuple[int, int]] = {}  # by session: the delivery, and how many

    def pool(self) -> LuaWorkerPool:
        import asyncio

        if self._pool is None or self._pool.loop is not asyncio.get_running_loop():
            if self._pool is not None:
                self._pool.abandon()  # its event loop has ended
            self._pool = LuaWorkerPool(self.limits, **self._settings)
        return self._pool

    def alone(self) -> SyncLuaWorker:
        """The worker for blocking calls."""
        if self.lone is None:
            self.lone = SyncLuaWorker(self.limits)
        return self.lone

    def forget_lone(self) -> None:
        if self.lone is not None:
            self.lone.end()
            self.lone = None

    def died(self, session_id: str, n: int) -> int:
        """Count a death; returns how many there were at this delivery."""
        before, deaths = self._deaths.get(session_id, (n, 0))
        deaths = deaths + 1 if before == n else 1
        self._deaths[session_id] = n, deaths
        return deaths

    def deaths(self, session_id: str) -> int:
        return self._deaths.get(session_id, (0, 0))[1]

    def went_well(self, session_id: str) -> None:
        if self._deaths:
            self._deaths.pop(session_id, None)

    async def close(self) -> None:
        self.forget_lone()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None


def _ended(step: WorkerStep, error: EverholdError) -> ProgramReply:
    """The reply for an advance that was ended from outside."""
    n = step[0]
    cancel = step[4]
    outcome = (
        Raised(f"{type(error).__name__}: {error}", error.code, "", n)
        if cancel is None
        else Stopped(cancel)
    )
    return ProgramReply([], [], None, outcome, None)
