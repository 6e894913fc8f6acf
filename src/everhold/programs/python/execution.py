"""Runs a Python program: an `async def` on the deterministic loop.

An execution holds the program's coroutine, the futures of its open queries, and the notes since the
last delivery. Answers come in as decoded JSON, and queries go out in the order asked. There is no
I/O here.

Fast replay
  A recorded answer is sent directly into the program's coroutine (`go_along`), without a round trip
  through task, loop and engine. The coroutine cannot tell the difference: it yields the future of
  its query and gets the answer, as from its task.
  1. This happens only if the result must be the same: the program's root task awaits the one query
     that it has just made, the query equals the recorded one, the next delivery brings exactly its
     answer, and nothing else is ready.
  2. It happens within one callback of the loop. At the first pause where rule 1 does not hold, the
     replay continues in the usual way.

Garbage collection
  The collector runs at any moment and calls finalizers of unrelated objects. Some of them look for
  the running loop: clients of model providers start a task that closes them. Inside a program that
  would be an extra task at a moment that no replay repeats, and the keys of all later queries would
  change. So there is no running loop and no guarded execution while the collector works.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import Delivery, DeliveryNotes, ProgramReply, Restart
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer, Usage
from everhold.core.retry import Retry
from everhold.core.schema import decode_value_as, encode_value_as
from everhold.core.session import Birth, get_budget
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.errors import (
    AfterCancel,
    AnswerFailed,
    ChildFailed,
    EverholdError,
    Expired,
    OutcomeUnknown,
    Overtaken,
    Spinning,
    Stuck,
    VersionMissing,
    words_of,
)
from everhold.exception_info import format_exception, map_texts, remember_exception
from everhold.ports.exception_reader import describe_exception, strip_own_frames
from everhold.ports.program import Call, Program, is_raised_by_code
from everhold.programs.python import asyncio_replacements, determinism_guard
from everhold.programs.python.context import PythonContext
from everhold.programs.python.coroutine_close import INNER_AWAITS
from everhold.programs.python.event_loop import (
    UNDROPPED_LOOPS,
    DeterministicFuture,
    DeterministicLoop,
    DeterministicTask,
)

#: Characters of an error that are stored; its exception holds less.
MAX_ERROR_CHARS: Final = 20_000

# The loop and execution that the collector interrupted. One at most: one thread collects at a time.
_interrupted: list[tuple[DeterministicLoop, Any]] = []


def install_gc_guard() -> None:
    """Hide the running program from finalizers while the collector works. Idempotent."""
    if _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def _on_collection(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        running = asyncio._get_running_loop()
        if type(running) is DeterministicLoop:
            _interrupted.append((running, determinism_guard.swap_executing(None)))
            asyncio._set_running_loop(None)
    elif _interrupted:
        running, executing = _interrupted.pop()
        asyncio._set_running_loop(running)
        determinism_guard.swap_executing(executing)


class ReplayCoroutine:
    """Wraps the coroutine of a replayed program; its task sends to this object instead."""

    def __init__(self, coro: Coroutine[Any, Any, Any], execution: PythonExecution) -> None:
        self._coro = coro
        self._execution = execution
        self.recorded: Sequence[Delivery] = ()
        self.place = self._last = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)

    def lay(self, recorded: Sequence[Delivery], place: int, last: int) -> None:
        """Allow fast replay from `place`, the delivery that comes now, up to `last`."""
        self.recorded = recorded
        self.place = place
        self._last = last

    def leave(self) -> None:
        """End the replay: the task sends to the coroutine itself, at no extra cost per step."""
        self.send = self._coro.send  # type: ignore[method-assign, assignment]

    def send(self, value: None) -> Any:
        paused = self._coro.send(value)
        if self.place < self._last:
            last = self._last
            self._last = 0
            paused = self._execution.go_along(self, paused, self._coro, last)
        return paused


Coroutine.register(ReplayCoroutine)  # asyncio.Task accepts only coroutines
INNER_AWAITS[ReplayCoroutine] = attrgetter("cr_await")


asyncio_replacements.install_asyncio_replacements()
install_gc_guard()


class PendingQuery(DeterministicFuture):
    """The future of an open query, made by `PythonExecution.ask`. Cancelling it withdraws the
    query.
    """

    __slots__ = ("execution", "q", "type", "usage")

    execution: PythonExecution
    q: int
    type: Any  # of its answer
    usage: Usage | None  # of its answer, if the answerer reported any

    # The C constructor, without a Python call in between: every query makes one of these. `ask`
    # sets what DeterministicFuture.__init__ would set.
    __init__: Any = asyncio.Future.__init__

    def cancel(self, msg: Any = None) -> bool:
        done = super().cancel(msg)
        if done:
            self.execution.withdraw(self.q)
        return done


class PythonExecution:
    remote = bare = False

    def __init__(
        self,
        program: Program[Any, Any],
        birth: Birth,
        meter: Metrics,
        restart: Restart | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.program = program
        self.retry = program.retry or retry  # the default policy of its questions and calls
        self.birth = birth
        self.meter = meter
        self.budget = get_budget(birth, meter)
        self.args = birth.args if restart is None else restart.args
        self.restarts = 0 if restart is None else restart.count
        self.loop = DeterministicLoop(  # type: ignore[abstract]
            salt=parse_hex_number(birth.seeds[0].seed),
            prefix=f"{self.restarts}@" if self.restarts else "",
        )
        self.n = -1
        self.cancelled = False
        self.recorded_versions: dict[str, int] = {}  # of the delivery being replayed
        self.recorded: Delivery | None = None  # the delivery being replayed
        self.facts: dict[str, JSON] = {}
        self.after: list[Callable[[], Any]] = []  # to run after this advance is committed
        self.versions: dict[str, int] = {}
        self.record: dict[str, JSON] = {}
        self.asked_count = 0 if restart is None else restart.q
        self.llm_asked = 0  # llm queries of this delivery, for budgets
        self.spent = Ledger()  # usage of its answers
        self.spent.add("", None if restart is None else restart.spent)
        self.keep: Callable[[JSON], JSON] | None = None  # changes answers before they are recorded
        self._effects: dict[int, Callable[[], Any]] = {}
        self._withdrawn_effects: list[Callable[[], Any]] = []
        self._children: dict[int, Call[Any]] = {}
        self._pending: dict[int, PendingQuery] = {}
        self._asked: list[Query] = []
        self._withdrawn: list[int] = []
        self._notes: DeliveryNotes | None = None
        self._root: DeterministicTask | None = None
        self._track: ReplayCoroutine | None = None  # the root's coroutine, if it began in a replay
        self.context = PythonContext(self)

    # ---- the port

    def entered(self) -> DeterministicLoop:
        return self.loop

    def advance(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        loop = self.loop
        if budget is not None:
            self.budget = budget
        self.n = n
        loop.now = at
        self._asked = []
        self._withdrawn = []
        self._notes = None
        self.llm_asked = 0
        if self.after:
            self.after = []
        if self._withdrawn_effects:
            self._release_effects()
        if loop.dropped:
            raise Overtaken(self.birth.id, n)
        try:
            with determinism_guard.WatchedAdvance(self):
                if self._root is None:
                    self._begin()
                for answer in answers:
                    self._deliver(answer)
                if fired:
                    loop.fire()
                if cancel is not None:
                    # Cancel the root task: the program sees CancelledError once. Later queries
                    # are refused.
                    self.cancelled = True
                    assert self._root is not None
                    self._root.cancel(cancel)
                loop.drain()
        except BaseException as error:
            return self._fail(error, cancel)
        return self._reply(cancel)

    def follow(
        self, recorded: Sequence[Delivery], place: int, last: int
    ) -> tuple[int, ProgramReply]:
        self.recorded = given = recorded[place]
        track = self._track
        if track is not None:
            track.lay(recorded, place, last)
        reply = self.advance(given.n, given.at, given.answers, False, None)
        return (place if track is None else track.place), reply

    def effect(self, q: int) -> Callable[[], Any] | None:
        return self._effects.get(q)

    def child(self, q: int) -> Call[Any] | None:
        return self._children.get(q)

    def take_after(self) -> list[Callable[[], Any]]:
        taken = self.after
        self.after = []
        return taken

    def again(self, restart: Restart, meter: Metrics) -> PythonExecution:
        return PythonExecution(self.program, self.birth, meter, restart, self.retry)

    def drop(self) -> None:
        if self.loop.dropped:
            return
        try:
            with determinism_guard.WatchedAdvance(self):
                self.loop.drop()
        except determinism_guard.Overtime:
            determinism_guard.clear_executing()
        self._pending.clear()
        self._effects.clear()
        self._withdrawn_effects.clear()
        self._children.clear()

    # ---- running

    def _begin(self) -> None:
        arguments = self.program.arguments(self.args)
        coro: Any = self.program.body(self.context, **arguments)
        if self.replaying:
            coro = self._track = ReplayCoroutine(coro, self)
        self._root = self.loop.create_task(coro)
        UNDROPPED_LOOPS.add(self.loop)

    def _deliver(self, answer: QueryAnswer) -> None:
        pending = self._pending.pop(answer.q, None)
        self._effects.pop(answer.q, None)
        child = self._children.pop(answer.q, None)
        if pending is None or pending.done():
            return
        if answer.usage is not None:
            pending.usage = answer.usage
            self.spent.add("", answer.usage)
        if answer.error is not None:
            pending.set_exception(_make_answer_error(answer))
        elif pending.type is None:
            pending.set_result(answer.value)
        else:
            wanted = child.program.types.get("return", Any) if child is not None else pending.type
            try:
                pending.set_result(
                    answer.value if wanted is Any else decode_value_as(answer.value, wanted)
                )
            except EverholdError as error:
                pending.set_exception(_strip_traceback(error))

    def go_along(
        self, track: ReplayCoroutine, paused: Any, coro: Coroutine[Any, Any, Any], last: int
    ) -> Any:
        """Deliver recorded answers up to `last` while rule 1 holds; returns the last pause.

        `paused` is what the coroutine has yielded: the future of the query it awaits.
        """
        root = self._root
        loop = self.loop
        place = track.place
        recorded = track.recorded
        assert root is not None
        ready = loop._ready
        cancelling = root.cancelling
        send = coro.send
        try:
            while place < last:
                asked = self._asked
                following = recorded[place + 1]
                answers = following.answers
                if (
                    len(asked) != 1
                    or len(answers) != 1
                    or type(paused) is not PendingQuery
                    or asked[0].q != paused.q
                    or answers[0].q != paused.q
                    or asked != recorded[place].asked
                    or ready
                    or cancelling()
                    or paused._callbacks
                    or not paused._asyncio_future_blocking
                ):
                    break
                place += 1
                self.recorded = following
                self.n = following.n
                loop.now = following.at
                self.llm_asked = 0
                asked.clear()
                if self._withdrawn:
                    self._withdrawn = []
                # asyncio.Task clears this mark of a yielded future; here the task is not involved.
                paused._asyncio_future_blocking = False
                self._deliver(answers[0])
                error = paused.exception()
                paused = send(None) if error is None else coro.throw(error)
                error = None  # releases its traceback, as the task would
        finally:
            track.place = place
        return paused

    def _fail(self, error: BaseException, cancel: str | None) -> ProgramReply:
        """End an advance that raised. Ctrl-C and our own bugs propagate: nothing is committed."""
        determinism_guard.clear_executing()
        if isinstance(error, determinism_guard.Overtime):
            error = determinism_guard.make_overtime_error().with_traceback(error.__traceback__)
        fails = isinstance(error, Spinning | SystemExit) or (
            isinstance(error, KeyboardInterrupt) and is_raised_by_code(error)
        )
        if not fails:
            self.drop()
            raise error
        return self._end_raised(error) if cancel is None else self._end(Stopped(cancel))

    def _reply(self, cancel: str | None) -> ProgramReply:
        assert self._root is not None
        if cancel is not None:
            return self._end(Stopped(cancel))
        if self._root.done():
            made = self._make_outcome(self._root)
            return self._end_raised(made) if isinstance(made, BaseException) else self._end(made)
        due = self.loop.due()
        if not self._pending and due is None:
            if self._notes is None or self._notes.restart is None:
                names = [f"{task.path} ({_format_position(task)})" for task in self.loop.living()]
                return self._end_raised(Stuck(names))
            reply = ProgramReply([], self._withdrawn, None, None, self._notes)
            self.drop()
            return reply
        return ProgramReply(self._asked, self._withdrawn, due, None, self._notes)

    def _make_outcome(self, root: DeterministicTask) -> Outcome | BaseException:
        """The outcome of a program, or its error."""
        if root.cancelled():
            return Raised(
                "CancelledError: the program cancelled itself", "CancelledError", "", self.n
            )
        error = root.exception()
        if error is None:
            try:
                return Returned(
                    encode_value_as(
                        root.result(), self.program.types.get("return"), "the return value"
                    )
                )
            except EverholdError as problem:
                error = problem
        return error

    def _end_raised(self, error: BaseException) -> ProgramReply:
        outcome = make_raised_outcome(error, self.n)
        keep = self.keep
        if keep is not None:
            outcome = msgspec.structs.replace(
                outcome,
                error=str(keep(outcome.error)),
                exception=None
                if outcome.exception is None
                else map_texts(outcome.exception, lambda text: str(keep(text))),
            )
        reply = self._end(outcome)
        if not self.replaying:
            strip_own_frames(error)
            remember_exception(self.birth.id, outcome, error)
        return reply

    def _end(self, outcome: Outcome) -> ProgramReply:
        self.drop()
        return ProgramReply([], [], None, outcome, self._notes)

    # ---- called by the context

    def begin_again(self, args: dict[str, JSON]) -> None:
        """End this execution, and note what the next one needs. No callback runs afterwards."""
        if self._root is None or self._root.done():
            return  # it has already ended
        asked_now = {query.q for query in self._asked}
        self._withdrawn += sorted(self._pending.keys() - asked_now)
        self._asked = []
        self._pending.clear()
        self.loop.clear_callbacks()
        self.notes.restart = Restart(
            args=args,
            count=self.restarts + 1,
            q=self.asked_count,
            metrics=self.meter.copy(),
            spent=self.spent.usage,
        )

    def withdraw(self, q: int) -> None:
        if self._pending.pop(q, None) is None or self.loop.dropped:
            return
        effect = self._effects.pop(q, None)
        if effect is not None:
            self._withdrawn_effects.append(effect)
        # A query that was made and withdrawn in the same advance is not recorded at all.
        if self._asked and q >= self._asked[0].q:
            self._asked = [query for query in self._asked if query.q != q]
        else:
            self._withdrawn.append(q)

    def _release_effects(self) -> None:
        """Release withdrawn effects.

        An effect may hold the last reference to an async generator. The loop is inactive here, so
        that the generator is not closed (`_finalize`): in the live run the effect may still have
        been running, so replay could not repeat that moment.
        """
        self.loop.active = False
        try:
            self._withdrawn_effects.clear()
        finally:
            self.loop.active = True

    def ask(
        self, query: Query, type_: Any, effect: Any = None, child: Call[Any] | None = None
    ) -> DeterministicFuture:
        if self.loop.dropped:
            return DeterministicFuture(self.loop)  # never completes
        if self.cancelled:
            raise AfterCancel(query.kind)
        q = query.q
        loop = self.loop
        pending: PendingQuery = PendingQuery(loop=loop)
        loop._count = pending.number = loop._count + 1
        pending.execution = self
        pending.q = q
        pending.type = type_
        self._pending[q] = pending
        self._asked.append(query)
        if effect is not None:
            self._effects[q] = effect
        if child is not None:
            self._children[q] = child
        return pending

    def next_q(self) -> int:
        q = self.asked_count
        self.asked_count = q + 1
        return q

    @property
    def replaying(self) -> bool:
        return self.loop.replaying

    @replaying.setter
    def replaying(self, value: bool) -> None:
        self.loop.replaying = value
        if not value:
            self.recorded = None
            if self._track is not None:
                self._track.leave()

    def get_recorded_query(self) -> Query | None:
        """The recorded query that the next one should repeat; None if none is replayed."""
        recorded = self.recorded
        if recorded is None:
            return None
        return next((query for query in recorded.asked if query.q == self.asked_count), None)

    @property
    def silent(self) -> bool:
        return self.loop.replaying or self.loop.dropped

    @property
    def notes(self) -> DeliveryNotes:
        if self._notes is None:
            self._notes = DeliveryNotes(withdrawn=[], log=[], record={}, versions={}, facts={})
        return self._notes

    def seed(self) -> str:
        """The random seed of this delivery; a forked session has its own from the fork point on."""
        return next(entry.seed for entry in reversed(self.birth.seeds) if self.n >= entry.since)


def parse_hex_number(text: str) -> int:
    """The number of the first 12 hexadecimal digits."""
    return int(text[:12] or "0", 16)


def _make_answer_error(answer: QueryAnswer) -> EverholdError:
    """The exception that a program sees for an answer with an error."""
    error = answer.error or {}
    code = error.get("code", "")
    message = error.get("message", "")
    if code == Expired.code:
        return Expired(answer.id)
    if code == OutcomeUnknown.code:
        return OutcomeUnknown(message)
    made: ChildFailed | AnswerFailed
    if code == ChildFailed.code:
        made = ChildFailed(error.get("session_id", ""), error.get("state", ""), message)
    else:
        made = AnswerFailed(message, code, error.get("hint", ""))
    if answer.exception is not None:
        made.exception = answer.exception
        made.add_note(format_exception(answer.exception))
    return made


def _strip_traceback(error: EverholdError) -> EverholdError:
    """Remove traceback and causes: its frames refer to the future that will hold the error, and
    such a cycle would be freed by the garbage collector, at a random moment.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def make_raised_outcome(error: BaseException, n: int) -> Raised:
    """An error as it is stored: message, kind, and the frames of the user's code."""
    name = type(error).__name__
    words = words_of(error)
    if isinstance(error, AnswerFailed) and error.kind[:1].isupper() and words != error.kind:
        words = f"{error.kind}: {words}"  # the kind is the class of a function's exception
    message = f"{name}: {words}" if words else name
    kind = error.code if isinstance(error, EverholdError) else name
    return Raised(message[:MAX_ERROR_CHARS], kind, "", n, describe_exception(error))


def _format_position(task: DeterministicTask) -> str:
    coro: Any = task.get_coro()
    frame = getattr(coro, "cr_frame", None)
    return f"{coro.__qualname__}, line {frame.f_lineno}" if frame is not None else coro.__qualname__


class PythonHost:
    """Finds a session's program with `find` and makes executions of it. `retry` is the default
    policy of the runtime.
    """

    def __init__(
        self, find: Callable[[str, int], Program[Any, Any]], retry: Retry | None = None
    ) -> None:
        self._find = find
        self._retry = retry

    def begin(self, birth: Birth, meter: Metrics) -> PythonExecution:
        program = self._find(birth.program, birth.version)
        if program.version != birth.version:
            raise VersionMissing(program.name, birth.version, program.version)
        return PythonExecution(program, birth, meter, retry=self._retry)
