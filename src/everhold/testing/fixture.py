"""What a test gets from the fixture `everhold`: a runtime in memory, and sessions to talk to.

    def test_a_refund_waits_for_a_person(everhold):
        everhold.answers({"*likely reason*": "It broke."})
        session = everhold.start(refund(order="7"))
        session.assert_waits_for("Refund order 7?")
        everhold.skip(days=3)
        session.approve()
        assert session.result == "paid"

Every verb waits until nothing moves by itself any more, and returns. That works the same in a plain
test and in an `async def` one: the sessions live on a loop of their own, in a thread, and no plugin
for async tests is needed.
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
from everhold.core.status import Finished, OpenQuery, Status
from everhold.errors import EverholdError, Waiting
from everhold.models import test_guard
from everhold.ports.program import Call
from everhold.programs.python import determinism_guard
from everhold.runtime import convert_result
from everhold.stores.memory import MemoryStore
from everhold.testing import network
from everhold.testing.answers import Answers, StandIns, make_test_answerer
from everhold.testing.replay_check import ReplayFinding, replay_record
from everhold.testing.runtime import RuntimeForTests, StillClock, list_call_names
from everhold.testing.session import Session

R = TypeVar("R")


class NotReplayed(AssertionError):
    """What ran in a test does not replay: it would not survive a restart."""


class Kit:
    """The fixture `everhold`."""

    def __init__(
        self, *, folder: Path | None = None, update: bool = False, fresh: bool = False
    ) -> None:
        self.clock = StillClock()
        self.checks = True  #: whether what ran is replayed when the test is over
        self.accepted: list[Path] = []  # recordings that were updated
        self._house = RuntimeForTests(MemoryStore(), self.clock, StandIns())
        self._blocking = BlockingRuntime(self._house)
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
        self._offline.enter_context(network.refuse_network())
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
        """Answer models' questions from now on: by a dict of patterns, a list, a function, or a
        recorded session.

        With `people`, those for people too. None leaves questions open, as in the beginning: the
        test answers them.
        """
        self._house.answer_with(
            None if given is None else make_test_answerer(given, self._folder), people=people
        )
        self._wait(self._house.adopt())

    def calls(self, given: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        """Put something in the place of functions that programs call: a value, an error to raise,
        or a function.

        By the function's name, or a pattern of `module:name`. What is not named here is called as
        it is.
        """
        self._house.stand_ins.add({**(given or {}), **more})

    def allow(self, *names: str) -> None:
        """Do not complain of these clocks or dice: allow("time.perf_counter")."""
        self._allowed.update(names)

    def allow_network(self) -> None:
        """Let this test reach other machines, from the functions that programs call. Programs never
        may.
        """
        self._offline.close()

    # ---- running

    def start(self, call: Call[Any], *, answers: Answers | None = None, **more: Any) -> Session:
        """Begin a session. It has done what it can do by itself when this returns."""
        if answers is not None:
            self.answers(answers)
        status = self._wait(self._house.start(call, **more))
        self._settle()
        self._last = Session(self, status.session_id)
        return self._last

    def run(self, call: Call[R], *, answers: Answers | None = None, **more: Any) -> R:
        """Run a program to its end and return what it returns; raises `Waiting` if it waits for
        somebody.
        """
        session = self.start(call, answers=answers, **more)
        status = session.status
        if not isinstance(status, Finished):
            raise Waiting(session.session_id, session.queries, None, session.waits_for)
        return convert_result(call, status)

    def skip(self, **time: float) -> Session | None:
        """Let time pass: skip(days=3), skip(hours=1). Timers and expiries on the way come each at
        its moment.
        """
        self._wait(self._house.skip(timedelta(**time).total_seconds()))
        return self._last

    def restart(self) -> None:
        """Forget everything in memory, as after a crash or a deploy: what comes next goes on from
        the journal.
        """

        async def forget() -> None:
            self._house.forget()

        self._wait(forget())

    # ---- the session that was started last

    @property
    def last(self) -> Session:
        """The session that was started last; `answer`, `approve`, `signal` and the like are meant
        for it.
        """
        assert self._last is not None, "no session was started in this test"
        return self._last

    def answer(self, value: Any, to: str | None = None) -> Session:
        return self.last.answer(value, to)

    def approve(self, to: str | None = None) -> Session:
        return self.last.approve(to)

    def decline(self, to: str | None = None) -> Session:
        return self.last.decline(to)

    def signal(self, name: str, value: Any = None) -> Session:
        return self.last.signal(name, value)

    @property
    def open(self) -> Sequence[OpenQuery]:
        """Its open questions."""
        return self.last.queries

    @property
    def status(self) -> Status:
        return self.last.status

    # ---- looking

    @property
    def asked(self) -> list[str]:
        """What models were asked in this test, in words."""
        return [prompt for session in self.sessions for prompt in session.asked]

    @property
    def now(self) -> datetime:
        """The time, as programs see it."""
        return datetime.fromtimestamp(self.clock.now(), UTC)

    @property
    def inbox(self) -> list[OpenQuery]:
        """The open questions of all sessions, oldest first."""
        return self._blocking.inbox(limit=10_000)

    @property
    def sessions(self) -> list[Session]:
        """All sessions, children too, oldest first."""
        return [Session(self, record.birth.id) for record in self._wait(self._house.records())]

    @property
    def called(self) -> list[str]:
        """The names of the functions that programs called, in order."""
        return list_call_names(self._house.called)

    @property
    def runtime(self) -> BlockingRuntime:
        """The runtime itself, for what has no verb here."""
        return self._blocking

    # ---- replaying

    def check_replays(self) -> None:
        """Replay every session of this test; raises `NotReplayed` with the steps that differ. Done
        at its end, too.
        """
        found = self.not_replayed()
        if found:
            raise NotReplayed(found)

    def not_replayed(self) -> str:
        """What does not replay, in words; nothing if all does."""
        complaints = []
        for record in self._wait(self._house.records()):
            found = self._wait(self._again(record))
            if found:
                words = "\n".join(f"  {finding}" for finding in found)
                complaints.append(
                    f"{record.birth.program} is not the same when it is replayed:\n{words}"
                )
        if self._fresh and not complaints:
            complaints = self._elsewhere()
        return "\n".join(complaints)

    async def _again(self, record: Any) -> list[ReplayFinding]:
        try:
            return replay_record(record, self._house.engine.host, self._allowed)
        except EverholdError as error:
            return [ReplayFinding(0, "the beginning", f"{error} [{error.code}]")]

    def _elsewhere(self) -> list[str]:
        """Replay what another process can load in a fresh one with another hash seed."""
        records = self._wait(self._house.records())
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
                    f"{one.program} is not the same in a process with another hash seed:\n{words}"
                )
        return complaints

    def replays(self, file: str | Path) -> None:
        """Play a session that was exported as a test; fails with what the program asks or returns
        otherwise now.

        `pytest --everhold-update` accepts it: the file is written anew.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        path = (self._folder or Path()) / file
        tape = Recording.read(path)
        found = self._wait(self._difference(tape))
        if found and self._update:
            self._wait(self._accept(tape, path))
        elif found:
            words = "If that is meant, accept it: pytest --everhold-update"
            raise AssertionError(
                f"{tape.birth.program} asks or ends otherwise than in {path.name}\n{found}\n{words}"
            )

    async def _difference(self, tape: Recording) -> str:
        return tape.difference(self._house.engine.host)

    async def _accept(self, tape: Recording, path: Path) -> None:
        tape.updated(self._house.engine.host).write(path)
        self.accepted.append(path)

    # ---- how it is put together

    def _wait(self, work: Any) -> Any:
        return self._blocking.wait_for(work)

    def _settle(self) -> None:
        self._wait(self._house.settle())
