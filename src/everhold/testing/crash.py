"""Crash points for anybody's program: it is run once undisturbed, and then crashed before and after
every commit.

    report = crash_everywhere(refund(order="7"), answers={"*reason*": "It broke.", "Refund*": True})
    assert not report.repeated      # no call was run twice

After each crash a new runtime goes on from what was stored, as another process would. The end, the
questions and the answers must be those of the undisturbed run, else `crash_everywhere` raises
`NotSame` with every place where not.

Two things may differ, because the program declared them: a call with `rerun="safe"` may run again,
and one with `rerun="never"` or `"ask"` may leave its outcome unknown. The report lists both.

Time passes by itself where the program waits for it. A crash here is an exception at the commit, in
one process: fast, and exact. For a real `kill -9` of a real process there is
`everhold.testing.faults.Nursery`.
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
    """A place to crash at, and what came of it."""

    commit: int
    when: When
    differences: list[str] = []
    repeated: list[str] = []  # calls that were run more than once
    unknown: list[str] = []  # calls whose outcome the program was told is unknown

    def __str__(self) -> str:
        return f"{self.when} commit {self.commit}"


class CrashReport(msgspec.Struct, frozen=True):
    """What came of a program that was crashed everywhere."""

    program: str
    commits: int
    points: list[CrashPoint]
    result: JSON

    @property
    def repeated(self) -> list[str]:
        """Calls that were run more than once after some crash. Make them safe to repeat, or say
        rerun="never".
        """
        return sorted({name for point in self.points for name in point.repeated})

    @property
    def unknown(self) -> list[str]:
        """Calls whose outcome the program did not learn after some crash."""
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
            f"  {name} may be run twice: {_where(self.points, name, 'repeated')}"
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

    `answers` are for people's questions too; `calls` stand in for the functions that it calls, by
    name; `signals` are sent when it waits for them, by name. It must come to its end with what is
    given.
    """
    return run_in_own_loop(_Crashes(call, answers, dict(calls or {}), dict(signals or {})).report())


class _Crash(BaseException):
    """The process is gone."""


class _Mortal(CrashingStore):
    """A store that nobody can write to any more once its process is dead."""

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
        asyncio.get_running_loop().set_exception_handler(_silent_about_crashes)
        store = _Mortal(MemoryStore())
        told, called = await self._story(store)
        points = []
        for commit in range(1, store.commits + 1):
            for when in ("before", "after"):
                points.append(await self._crashed(commit, when, told, called))
        outcome = next(iter(told.values())).outcome
        result = outcome.value if isinstance(outcome, Returned) else None
        report = CrashReport(self._call.program.ref, store.commits, points, result)
        if any(point.differences for point in points):
            raise NotSame(str(report))
        return report

    async def _crashed(
        self, commit: int, when: When, expected: dict[str, SessionTrace], calls: Counter[str]
    ) -> CrashPoint:
        memory = MemoryStore()
        clock = StillClock()
        first = _Mortal(memory, commit, when)
        again = _Mortal(memory)
        _, before = await self._life(first, clock)
        _, after = await self._life(again, clock)
        told = await _all_told(memory)
        repeated = [name for name, times in (before + after).items() if times > calls[name]]
        unknown = [name for one in told.values() for name in one.unknown]
        differ = [] if first.dead else ["it made fewer commits than before"]
        if not unknown:  # else it was told something else, and may do something else
            differ += find_differences(expected, told, "the crash")
        return CrashPoint(commit, when, differ, repeated, unknown)

    async def _story(self, store: _Mortal) -> tuple[dict[str, SessionTrace], Counter[str]]:
        ended, calls = await self._life(store, StillClock())
        if not ended:
            waits = "; ".join(self._open) or "something that never comes"
            raise AssertionError(
                f"{self._call!r} does not come to an end with what is given: it waits for {waits}"
            )
        return await _all_told(store.store), calls

    async def _life(self, store: _Mortal, clock: StillClock) -> tuple[bool, Counter[str]]:
        """One process: it goes on with the story to its end, or to its own."""
        house = RuntimeForTests(store, clock, self._stand_ins)
        house.answer_with(self._answers, people=True)
        ended = False
        await house.__aenter__()
        try:
            ended = await self._told(house, store)
        except _Crash:
            pass
        finally:
            await house.die()
        return ended, Counter(list_call_names(house.called))

    async def _told(self, house: RuntimeForTests, store: _Mortal) -> bool:
        await house.adopt()
        status: Any = await house.start(self._call, key=_KEY)
        for _ in range(_TURNS):
            await house.settle()
            if store.dead:
                raise _Crash
            status = await house.status(status.session_id)
            if isinstance(status, Finished) and not await house.sessions(
                state=("running", "paused")
            ):
                return True
            if not await self._moved(house):
                self._open = [describe_query(query.query) for query in await house.inbox()]
                return False
        raise AssertionError(f"{self._call!r} does not come to an end in {_TURNS} turns")

    async def _moved(self, house: RuntimeForTests) -> bool:
        """Do one thing that the sessions wait for; False if there is nothing."""
        for query in await house.inbox():
            if query.kind is Kind.CALL:
                # somebody looked, and it had not happened
                await house.answer(query, {"rerun": True})
                return True
            if query.kind is Kind.SIGNAL and query.name in self._signals:
                await house.signal(query.session_id, query.name, self._signals[query.name])
                return True
        due = await house.store.next_due()
        if due is None:
            return False
        house.still.advance(max(due - house.still.now(), 0) + AFTER)
        return True


async def _all_told(store: Store) -> dict[str, SessionTrace]:
    return {record.birth.id: SessionTrace.of(record) for record in await load_records(store)}


def _silent_about_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), _Crash):
        loop.default_exception_handler(context)


def _where(points: list[CrashPoint], name: str, field: str) -> str:
    places = [str(point) for point in points if name in getattr(point, field)]
    return ", ".join(places[:4]) + (f" and at {len(places) - 4} more" if len(places) > 4 else "")
