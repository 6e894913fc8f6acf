"""Crashes a program before and after every commit, and compares with an undisturbed run.

    report = crash_everywhere(refund(order="7"), answers={"*reason*": "It broke.", "Refund*": True})
    assert not report.repeated      # no call was run twice

After each crash a new runtime resumes from the stored data, as another process would. The end, the
questions and the answers must equal those of the undisturbed run; otherwise `crash_everywhere`
raises `NotSame` and lists every place.

Two things may differ, because the program declared them: a call with `rerun="safe"` may run again,
and one with `rerun="never"` or `"ask"` may leave its outcome unknown. The report lists both.

The clock advances by itself when the program waits for time. A crash is an exception at the commit,
in one process: fast and exact. For a real `kill -9` of a real process, use
`everhold.testing.Nursery`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal, NoReturn

import msgspec

from everhold.core.codec import JSON
from everhold.core.journal import describe_query
from everhold.core.query import Kind
from everhold.core.status import Finished, Returned
from everhold.ports.program import Call
from everhold.ports.store import Change, Store
from everhold.stores.memory import MemoryStore
from everhold.testing.answers import Answers, StandIns, make_test_answerer
from everhold.testing.compare import (
    NotSame,
    RememberingAnswerer,
    SessionTrace,
    find_differences,
    load_records,
    run_in_own_loop,
)
from everhold.testing.faults import CrashingStore
from everhold.testing.runtime import AFTER, RuntimeForTests, StillClock, list_call_names

When = Literal["before", "after"]

_KEY: Final = "crash-everywhere"
_TURNS: Final = 1000  # answers and timers before a program counts as endless


class CrashPoint(msgspec.Struct, frozen=True):
    """A commit to crash at, and the result."""

    commit: int
    when: When
    differences: list[str] = []
    repeated: list[str] = []  # calls that ran more than once
    unknown: list[str] = []  # calls whose outcome the program saw as unknown

    def __str__(self) -> str:
        return f"{self.when} commit {self.commit}"


class CrashReport(msgspec.Struct, frozen=True):
    """The result of crashing a program everywhere."""

    program: str
    commits: int
    points: list[CrashPoint]
    result: JSON

    @property
    def repeated(self) -> list[str]:
        """Calls that ran more than once after some crash. Make them safe to repeat, or declare them
        rerun="never".
        """
        return sorted({name for point in self.points for name in point.repeated})

    @property
    def unknown(self) -> list[str]:
        """Calls whose outcome stayed unknown to the program after some crash."""
        return sorted({name for point in self.points for name in point.unknown})

    def __str__(self) -> str:
        wrong = [point for point in self.points if point.differences]
        lines = [
            f"{self.program}: {len(self.points)} crashes at {self.commits} commits, {len(wrong)}"
            " changed something"
        ]
        for point in wrong:
            lines += [f"  crashed {point}:", *(f"    {words}" for words in point.differences)]
        lines += [
            f"  {name} may run twice: {_where(self.points, name, 'repeated')}"
            for name in self.repeated
        ]
        lines += [
            f"  {name} may stay unknown: {_where(self.points, name, 'unknown')}"
            for name in self.unknown
        ]
        return "\n".join(lines)


def crash_everywhere(
    call: Call[Any],
    *,
    answers: Answers | None = None,
    calls: Mapping[str, Any] | None = None,
    signals: Mapping[str, JSON] | None = None,
) -> CrashReport:
    """Run a program, then crash it before and after every commit, and compare; raises `NotSame`.

    `answers` also answer people's questions. `calls` replace the functions that the program calls,
    by name. `signals` are sent when the program waits for them, by name. With these the program
    must reach its end.
    """
    return run_in_own_loop(_Crashes(call, answers, dict(calls or {}), dict(signals or {})).report())


class _Crash(BaseException):
    """Simulates the end of the process."""


class _Mortal(CrashingStore):
    """A store that refuses every commit after its process has died."""

    def __init__(self, store: MemoryStore, at: int = 0, when: When = "before") -> None:
        super().__init__(store, at=at, when=when, die=self._end)
        self.dead = False

    def _end(self) -> NoReturn:
        self.dead = True
        raise _Crash

    async def commit(self, change: Change, fence: int) -> None:
        if self.dead:
            raise _Crash
        await super().commit(change, fence)


class _Crashes:
    def __init__(
        self,
        call: Call[Any],
        answers: Answers | None,
        calls: dict[str, Any],
        signals: dict[str, JSON],
    ) -> None:
        self._call = call
        self._signals = signals
        self._answers = RememberingAnswerer(
            None if answers is None else make_test_answerer(answers), "crash_everywhere"
        )
        self._stand_ins = StandIns()
        self._stand_ins.add(calls)
        self._open: list[str] = []

    async def report(self) -> CrashReport:
        asyncio.get_running_loop().set_exception_handler(_ignore_crashes)
        store = _Mortal(MemoryStore())
        traces, called = await self._run_undisturbed(store)
        points = []
        for commit in range(1, store.commits + 1):
            for when in ("before", "after"):
                points.append(await self._crashed(commit, when, traces, called))
        outcome = next(iter(traces.values())).outcome
        result = outcome.value if isinstance(outcome, Returned) else None
        report = CrashReport(self._call.program.ref, store.commits, points, result)
        if any(point.differences for point in points):
            raise NotSame(str(report))
        return report

    async def _crashed(
        self, commit: int, when: When, expected: dict[str, SessionTrace], calls: Counter[str]
    ) -> CrashPoint:
        self._answers.begin_run()
        memory = MemoryStore()
        clock = StillClock()
        first = _Mortal(memory, commit, when)
        again = _Mortal(memory)
        _, before = await self._run_process(first, clock)
        _, after = await self._run_process(again, clock)
        traces = await _load_traces(memory)
        repeated = [name for name, times in (before + after).items() if times > calls[name]]
        unknown = [name for one in traces.values() for name in one.unknown]
        differ = [] if first.dead else ["it made fewer commits than the undisturbed run"]
        if not unknown:  # an unknown outcome may lead the program elsewhere
            differ += find_differences(expected, traces, "the crash")
        return CrashPoint(commit, when, differ, repeated, unknown)

    async def _run_undisturbed(
        self, store: _Mortal
    ) -> tuple[dict[str, SessionTrace], Counter[str]]:
        ended, calls = await self._run_process(store, StillClock())
        if not ended:
            waits = "; ".join(self._open) or "nothing that can happen"
            raise AssertionError(
                f"{self._call!r} does not reach its end with these answers: it waits for {waits}"
            )
        return await _load_traces(store.store), calls

    async def _run_process(self, store: _Mortal, clock: StillClock) -> tuple[bool, Counter[str]]:
        """Run one process until the program ends or the process crashes."""
        runtime = RuntimeForTests(store, clock, self._stand_ins)
        runtime.answer_with(self._answers, people=True)
        ended = False
        await runtime.__aenter__()
        try:
            ended = await self._play(runtime, store)
        except _Crash:
            pass
        finally:
            await runtime.die()
        return ended, Counter(list_call_names(runtime.called))

    async def _play(self, runtime: RuntimeForTests, store: _Mortal) -> bool:
        await runtime.adopt()
        status: Any = await runtime.start(self._call, key=_KEY)
        for _ in range(_TURNS):
            await runtime.settle()
            if store.dead:
                raise _Crash
            status = await runtime.status(status.session_id)
            if isinstance(status, Finished) and not await runtime.sessions(
                state=("running", "paused")
            ):
                return True
            if not await self._supply_one(runtime):
                waits = [*await runtime.inbox(), *await runtime.inbox(kind=Kind.SIGNAL)]
                self._open = [describe_query(query.query) for query in waits]
                return False
        raise AssertionError(f"{self._call!r} does not reach its end in {_TURNS} turns")

    async def _supply_one(self, runtime: RuntimeForTests) -> bool:
        """Supply one thing that the sessions wait for; False if there is nothing to supply."""
        for query in await runtime.inbox():
            if query.kind is Kind.CALL:
                # a person checked: the call had not happened
                await runtime.answer(query, {"rerun": True})
                return True
        for query in await runtime.inbox(kind=Kind.SIGNAL):
            if query.name in self._signals:
                await runtime.signal(query.session_id, query.name, self._signals[query.name])
                return True
        due = await runtime.store.next_due()
        if due is None:
            return False
        runtime.still.advance(max(due - runtime.still.now(), 0) + AFTER)
        return True


async def _load_traces(store: Store) -> dict[str, SessionTrace]:
    return {record.birth.id: SessionTrace.of(record) for record in await load_records(store)}


def _ignore_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), _Crash):
        loop.default_exception_handler(context)


def _where(points: list[CrashPoint], name: str, field: str) -> str:
    places = [str(point) for point in points if name in getattr(point, field)]
    return ", ".join(places[:4]) + (f" and at {len(places) - 4} more" if len(places) > 4 else "")
