"""The fixture `everhold`: a runtime in memory, and handles of its sessions.

    def test_a_refund_waits_for_a_person(everhold):
        everhold.answers({"*likely reason*": "It broke."})
        session = everhold.start(refund(order="7"))
        session.assert_waits_for("Refund order 7?")
        everhold.skip(days=3)
        session.approve()
        assert session.result == "paid"

Every verb waits until nothing moves any more, and returns. This works the same in a plain test and
in an `async def` one: the sessions run on their own loop in a thread, and no plugin for async tests
is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from everhold.archive.recording import Recording
from everhold.blocking import BlockingRuntime
from everhold.core.journal import describe_query
from everhold.core.query import MODEL_KINDS, Kind, Query
from everhold.core.status import (
    Accepted,
    Finished,
    OpenQuery,
    Paused,
    Status,
    describe_signals,
)
from everhold.errors import EverholdError, Waiting
from everhold.models import test_guard
from everhold.models.script import compile_prompt_pattern
from everhold.ports.program import Call
from everhold.programs.python import determinism_guard
from everhold.runtime import convert_result
from everhold.stores.memory import MemoryStore
from everhold.testing.answers import Answers, StandIns, make_test_answerer
from everhold.testing.guards import refuse_network
from everhold.testing.replay_check import ReplayFinding, replay_record
from everhold.testing.runtime import RuntimeForTests, StillClock, list_call_names

R = TypeVar("R")


class NotReplayed(AssertionError):
    """A session of a test does not replay: it would not survive a restart."""


class Kit:
    """The fixture `everhold`."""

    def __init__(
        self, *, folder: Path | None = None, update: bool = False, fresh: bool = False
    ) -> None:
        self.clock = StillClock()
        self.checks = True  #: whether sessions are replayed after the test
        self.accepted: list[Path] = []  # recordings that were updated
        self._runtime = RuntimeForTests(MemoryStore(), self.clock, StandIns())
        self._blocking = BlockingRuntime(self._runtime)
        self._folder = folder
        self._update = update
        self._fresh = fresh
        self._last: Session | None = None
        self._allowed: set[str] = set()
        self._quiet, self._offline = ExitStack(), ExitStack()

    def __enter__(self) -> Self:
        self._quiet.callback(
            determinism_guard.configure_guard, mode=determinism_guard.configure_guard(mode="refuse")
        )
        self._quiet.enter_context(test_guard.refuse_real_models())
        self._offline.enter_context(refuse_network())
        self._quiet.push(self._offline)
        self._quiet.enter_context(self._blocking)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._quiet:
            if kind is None and self.checks:
                self.check_replays()

    # ---- what is prepared

    def answers(self, given: Answers | None, *, people: bool = False) -> None:
        """Answer model questions from now on: by a dict of patterns, a list, a function, or a
        recorded session.

        With `people`, also people's questions. None leaves questions open, as at the start: the
        test answers them.
        """
        self._runtime.answer_with(
            None if given is None else make_test_answerer(given, self._folder), people=people
        )
        self._wait(self._runtime.adopt())

    def calls(self, given: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Replace functions that programs call by a value, an error to raise, or another function.

        By the function's name, or a pattern of `module:name`. Other functions are called normally.
        """
        self._runtime.stand_ins.add({**(given or {}), **more})

    def allow(self, *names: str) -> None:
        """Do not report these calls to clocks or random numbers: allow("time.perf_counter")."""
        self._allowed.update(names)

    def allow_network(self) -> None:
        """Let the functions that programs call connect to other machines. Programs themselves never
        may.
        """
        self._offline.close()

    # ---- running

    def start(self, call: Call[Any], *, answers: Answers | None = None, **more: Any) -> Session:
        """Start a session, and wait until nothing moves any more."""
        if answers is not None:
            self.answers(answers)
        status = self._wait(self._runtime.start(call, **more))
        self._settle()
        self._last = Session(self, status.session_id)
        return self._last

    def run(self, call: Call[R], *, answers: Answers | None = None, **more: Any) -> R:
        """Run a program to its end and return its result; raises `Waiting` if questions are
        open.
        """
        session = self.start(call, answers=answers, **more)
        status = session.status
        if not isinstance(status, Finished):
            raise Waiting(session.session_id, session.queries, None, session.waits_for)
        return convert_result(call, status)

    def skip(self, **time: float) -> Session | None:
        """Advance the clock: skip(days=3), skip(hours=1). Timers and expiries on the way fire in
        order, each at its time.
        """
        self._wait(self._runtime.skip(timedelta(**time).total_seconds()))
        return self._last

    def restart(self) -> None:
        """Remove everything from memory, as a crash or a deploy does. The next verb resumes from
        the journal.
        """

        async def forget() -> None:
            self._runtime.forget()

        self._wait(forget())

    # ---- the session that was started last

    @property
    def last(self) -> Session:
        """The session that was started last; `answer`, `approve`, `signal` and the like use it."""
        assert self._last is not None, "no session was started in this test"
        return self._last

    def answer(self, value: Any, to: str | None = None) -> Session:
        """Answer an open question of the last session; see `Session.answer`."""
        return self.last.answer(value, to)

    def approve(self, to: str | None = None) -> Session:
        """Approve an open approval of the last session."""
        return self.last.approve(to)

    def decline(self, to: str | None = None) -> Session:
        """Decline an open approval of the last session."""
        return self.last.decline(to)

    def signal(self, name: str, value: Any = None) -> Session:
        """Send a signal to the last session."""
        return self.last.signal(name, value)

    @property
    def open(self) -> Sequence[OpenQuery]:
        """The open questions of the last session."""
        return self.last.queries

    @property
    def status(self) -> Status:
        """The status of the last session."""
        return self.last.status

    # ---- looking

    @property
    def asked(self) -> list[str]:
        """The prompts of all model questions in this test."""
        return [prompt for session in self.sessions for prompt in session.asked]

    @property
    def now(self) -> datetime:
        """The time as programs see it."""
        return datetime.fromtimestamp(self.clock.now(), UTC)

    @property
    def inbox(self) -> list[OpenQuery]:
        """The open questions of all sessions, oldest first."""
        return self._blocking.inbox(limit=10_000)

    @property
    def sessions(self) -> list[Session]:
        """All sessions, children too, oldest first."""
        return [Session(self, record.birth.id) for record in self._wait(self._runtime.records())]

    @property
    def called(self) -> list[str]:
        """The names of the functions that programs called, in order."""
        return list_call_names(self._runtime.called)

    @property
    def runtime(self) -> BlockingRuntime:
        """The runtime itself, for verbs that the kit does not have."""
        return self._blocking

    # ---- replaying

    def check_replays(self) -> None:
        """Replay every session of this test; raises `NotReplayed` with the steps that differ. The
        fixture also does this after the test.
        """
        found = self.not_replayed()
        if found:
            raise NotReplayed(found)

    def not_replayed(self) -> str:
        """The differences that a replay finds, in words; empty if there are none."""
        complaints = []
        for record in self._wait(self._runtime.records()):
            found = self._wait(self._replay(record))
            if found:
                words = "\n".join(f"  {finding}" for finding in found)
                complaints.append(f"{record.birth.program} changes on replay:\n{words}")
        if self._fresh and not complaints:
            complaints = self._replay_in_fresh_process()
        return "\n".join(complaints)

    async def _replay(self, record: Any) -> list[ReplayFinding]:
        try:
            return replay_record(record, self._runtime.engine.host, self._allowed)
        except EverholdError as error:
            return [ReplayFinding(0, "the beginning", f"{error} [{error.code}]")]

    def _replay_in_fresh_process(self) -> list[str]:
        """Replay in a fresh process with another hash seed the sessions that it can load."""
        records = self._wait(self._runtime.records())
        ids = [record.birth.id for record in records if "<locals>" not in record.birth.program]
        report = self._blocking.archive.check(ids) if ids else None
        complaints = []
        for one in report.checked if report is not None else ():
            found = [f"step {word.step}, {word.query_id}: recorded {word.recorded!r}; asked"
                     f" there: {word.asked!r}"
                     for word in one.reworded]  # fmt: skip
            found += [one.reason] if one.verdict == "diverged" else []
            if found:
                words = "\n".join(f"  {finding}" for finding in found)
                complaints.append(
                    f"{one.program} changes in a process with another hash seed:\n{words}"
                )
        return complaints

    def replays(self, file: str | Path) -> None:
        """Replay a session that was exported as a test; fails with the questions or results that
        differ.

        `pytest --everhold-update` accepts the differences and rewrites the file.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        path = (self._folder or Path()) / file
        tape = Recording.read(path)
        found = self._wait(self._difference(tape))
        if found and self._update:
            self._wait(self._accept(tape, path))
        elif found:
            words = "If this is intended, accept it: pytest --everhold-update"
            raise AssertionError(
                f"{tape.birth.program} no longer matches {path.name}\n{found}\n{words}"
            )

    async def _difference(self, tape: Recording) -> str:
        return tape.difference(self._runtime.engine.host)

    async def _accept(self, tape: Recording, path: Path) -> None:
        tape.updated(self._runtime.engine.host).write(path)
        self.accepted.append(path)

    # ---- how it is put together

    def _wait(self, work: Any) -> Any:
        return self._blocking.wait_for(work)

    def _settle(self) -> None:
        self._wait(self._runtime.settle())


class Session:
    """One session of a test."""

    def __init__(self, kit: Kit, session_id: str) -> None:
        self._kit = kit
        self.session_id = session_id

    def __repr__(self) -> str:
        return f"<session {self.session_id}: {self.waits_for}>"

    # ---- moving it

    def answer(self, value: Any, to: str | None = None) -> Session:
        """Answer its open question, or the one that matches the pattern `to`; an exception becomes
        an error answer.
        """
        query = self._open(to)
        if isinstance(value, BaseException):
            return self._after(self._kit.runtime.answer(query, error=str(value)))
        return self._after(self._kit.runtime.answer(query, value))

    def approve(self, to: str | None = None) -> Session:
        """Approve its open approval."""
        return self._decide(True, to)

    def decline(self, to: str | None = None) -> Session:
        """Decline its open approval."""
        return self._decide(False, to)

    def signal(self, name: str, value: Any = None) -> Session:
        """Send it a signal; it waits until the program receives it."""
        return self._after(self._kit.runtime.signal(self.session_id, name, value))

    def cancel(self, reason: str = "") -> Session:
        """Cancel it."""
        return self._after(self._kit.runtime.cancel(self.session_id, reason))

    def retry(self) -> Session:
        """Resume it from its last answer, after a failure."""
        return self._after(self._kit.runtime.retry(self.session_id))

    # ---- looking at it

    @property
    def status(self) -> Status:
        """Its status."""
        return self._kit.runtime.status(self.session_id)

    @property
    def state(self) -> str:
        """ "running", "paused", "completed", "failed" or "cancelled"."""
        return self.status.state

    @property
    def result(self) -> Any:
        """Its return value. Raises `Failed` or `Cancelled`, and fails the test if it has not
        ended.
        """
        status = self.status
        assert isinstance(status, Finished), (
            f"session {self.session_id} has not ended: {self.waits_for}"
        )
        return status.result

    @property
    def error(self) -> str | None:
        """The error it failed with; None if it did not fail."""
        status = self.status
        return status.error if isinstance(status, Finished) else None

    @property
    def queries(self) -> tuple[OpenQuery, ...]:
        """Its open questions."""
        status = self.status
        return status.queries if isinstance(status, Paused) else ()

    @property
    def questions(self) -> list[Query]:
        """All its questions of any kind, in order."""
        found: dict[int, Query] = {}
        for step in self._kit.runtime.steps(self.session_id):
            for query in step.asked:
                found.setdefault(query.q, query)
        return list(found.values())

    @property
    def asked(self) -> list[str]:
        """The prompts of its model questions, in order."""
        return [query.prompt for query in self.questions if query.kind in MODEL_KINDS]

    @property
    def waits_for(self) -> str:
        """Its status in words."""
        status = self.status
        if isinstance(status, Finished):
            return status.state if status.error is None else f"failed: {status.error}"
        questions = [f"it waits for {describe_query(query.query)}" for query in self.queries]
        words = () if isinstance(status, Accepted) else status.waiting_for
        if isinstance(status, Paused):
            words += describe_signals(status.signals)
        return "; ".join([*questions, *(f"it waits for {word}" for word in words)]) or status.state

    # ---- saying what should be so

    def assert_asked(self, pattern: str, times: int | None = None) -> None:
        """Assert that a question matches this text or pattern; with `times`, exactly so many."""
        __tracebackhide__ = True
        found = len(self._matching(pattern))
        if found == 0 if times is None else found != times:
            wanted = "did not ask" if times is None else f"asked {found} times, not {times},"
            listed = "\n".join(f"  {query.id} {describe_query(query)}" for query in self.questions)
            raise AssertionError(
                f"it {wanted} {pattern!r}. Its questions:\n{listed or '  nothing'}"
            )

    def assert_not_asked(self, pattern: str) -> None:
        """Assert that none of its questions matches."""
        __tracebackhide__ = True
        if found := self._matching(pattern):
            raise AssertionError(f"it asked {pattern!r}: {describe_query(found[0])}")

    def assert_waits_for(self, pattern: str) -> None:
        """Assert that an open question matches."""
        __tracebackhide__ = True
        matches = _fits(pattern)
        if not any(matches(query.query) for query in self.queries):
            raise AssertionError(f"it does not wait for {pattern!r}: {self.waits_for}")

    def assert_returned(self, value: Any) -> None:
        """Assert that it has ended with this value."""
        __tracebackhide__ = True
        status = self.status
        if (
            not isinstance(status, Finished)
            or status.error is not None
            or status.state != "completed"
        ):
            raise AssertionError(f"it has not returned: {self.waits_for}")
        assert status.result == value, f"it returned {status.result!r}, not {value!r}"

    def assert_failed(self, pattern: str = "*") -> None:
        """Assert that it failed with an error that matches."""
        __tracebackhide__ = True
        error = self.error
        if error is None or not compile_prompt_pattern(pattern)(error):
            raise AssertionError(f"it did not fail with {pattern!r}: {self.waits_for}")

    def _decide(self, value: bool, to: str | None) -> Session:
        return self._after(self._kit.runtime.answer(self._open(to, Kind.APPROVAL), value))

    def _open(self, to: str | None, kind: Kind | None = None) -> OpenQuery:
        matches = _fits(to)
        found = [
            query for query in self.queries if kind in (None, query.kind) and matches(query.query)
        ]
        if len(found) == 1:
            return found[0]
        what = f"no open {kind or 'question'}" if not found else f"{len(found)} open questions"
        raise AssertionError(
            f"there is {what}{'' if to is None else f' like {to!r}'}: {self.waits_for}"
        )

    def _matching(self, pattern: str) -> list[Query]:
        matches = _fits(pattern)
        return [query for query in self.questions if matches(query)]

    def _after(self, status: Status) -> Session:
        self._kit._settle()
        return self


def _fits(pattern: str | None) -> Any:
    """Make a function that matches a question's prompt or name with a pattern, as in
    `everhold.ScriptModel`.
    """
    if pattern is None:
        return lambda query: True
    matches = compile_prompt_pattern(pattern)
    return lambda query: bool(matches(query.prompt or query.name))
