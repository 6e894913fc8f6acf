"""Crash points for anybody's program: it is run once undisturbed, and then crashed before and after every commit.

    report = crash_everywhere(refund(order="7"), answers={"*reason*": "It broke.", "Refund*": True})
    assert not report.repeated      # no call was run twice

After each crash a new runtime goes on from what was stored, as another process would. The end, the questions and the
answers must be those of the undisturbed run, else `crash_everywhere` raises `NotSame` with every place where not.

Two things may differ, because the program declared them: a call with `rerun="safe"` may run again, and one with
`rerun="never"` or `"ask"` may leave its outcome unknown. The report lists both.

Time passes by itself where the program waits for it. A crash here is an exception at the commit, in one process: fast,
and exact. For a real `kill -9` of a real process there is `everhold.testing.faults.Nursery`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Literal, NoReturn, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.core.errors import OutcomeUnknown
from everhold.core.journal import describe
from everhold.core.query import Answer, Kind, Query
from everhold.core.status import Finished, Raised, Returned
from everhold.ports.program import Answerer, Call
from everhold.ports.store import Change, Record
from everhold.stores.memory import MemoryStore
from everhold.testing.answers import Answers, StandIns, answerer
from everhold.testing.faults import CrashingStore
from everhold.testing.house import AFTER, House, StillClock, named

T = TypeVar("T")
When = Literal["before", "after"]

_KEY: Final = "crash-everywhere"
_TURNS: Final = 1000  # answers and timers before a program counts as endless


class NotSame(AssertionError):
    """A crash changed what a program did."""


class Point(msgspec.Struct, frozen=True):
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
    points: list[Point]
    result: JSON

    @property
    def repeated(self) -> list[str]:
        """Calls that were run more than once after some crash. Make them safe to repeat, or say rerun="never"."""
        return sorted({name for point in self.points for name in point.repeated})

    @property
    def unknown(self) -> list[str]:
        """Calls whose outcome the program did not learn after some crash."""
        return sorted({name for point in self.points for name in point.unknown})

    def __str__(self) -> str:
        wrong = [point for point in self.points if point.differences]
        lines = [
            f"{self.program}: {len(self.points)} crashes at {self.commits} commits, {len(wrong)} changed something"
        ]
        for point in wrong:
            lines += [f"  crashed {point}:", *(f"    {words}" for words in point.differences)]
        lines += [f"  {name} may be run twice: {_where(self.points, name, 'repeated')}" for name in self.repeated]
        lines += [f"  {name} may stay unknown: {_where(self.points, name, 'unknown')}" for name in self.unknown]
        return "\n".join(lines)


def crash_everywhere(
    call: Call[Any],
    *,
    answers: Answers | None = None,
    calls: Mapping[str, Any] | None = None,
    signals: Mapping[str, JSON] | None = None,
) -> CrashReport:
    """Run a program, then crash it before and after every commit, and compare; raises `NotSame`.

    `answers` are for people's questions too; `calls` stand in for the functions that it calls, by name; `signals` are
    sent when it waits for them, by name. It must come to its end with what is given.
    """
    return _apart(_Crashes(call, answers, dict(calls or {}), dict(signals or {})).report())


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


class _Remembering:
    """Answers as the first run was answered; whatever is new is asked of the test."""

    kinds = frozenset({Kind.LLM, Kind.APPROVAL, Kind.INPUT})

    def __init__(self, inner: Answerer | None) -> None:
        self._inner = inner
        self._known: dict[tuple[str, str], Any] = {}

    async def answer(self, query: Query, session_id: str) -> Any:
        place = (session_id, query.key)
        if place not in self._known:
            if self._inner is None:
                raise AssertionError(f"crash_everywhere has no answer for {describe(query)}")
            try:
                self._known[place] = await self._inner.answer(query, session_id)
            except Exception as error:
                self._known[place] = error
        said = self._known[place]
        if isinstance(said, Exception):
            raise said
        return said


class _Crashes:
    def __init__(
        self, call: Call[Any], answers: Answers | None, calls: dict[str, Any], signals: dict[str, JSON]
    ) -> None:
        self._call, self._signals = call, signals
        self._answers = _Remembering(None if answers is None else answerer(answers))
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

    async def _crashed(self, commit: int, when: When, expected: dict[str, _Told], calls: Counter[str]) -> Point:
        memory = MemoryStore()
        clock = StillClock()
        first, again = _Mortal(memory, commit, when), _Mortal(memory)
        _, before = await self._life(first, clock)
        _, after = await self._life(again, clock)
        told = {name: _Told.of(record) for name, record in await _records(memory)}
        repeated = [name for name, times in (before + after).items() if times > calls[name]]
        unknown = [name for one in told.values() for name in one.unknown]
        differences = [] if first.dead else ["it made fewer commits than before"]
        if not unknown:  # else it was told something else, and may do something else
            differences += _differences(expected, told)
        return Point(commit, when, differences, repeated, unknown)

    async def _story(self, store: _Mortal) -> tuple[dict[str, _Told], Counter[str]]:
        ended, calls = await self._life(store, StillClock())
        if not ended:
            waits = "; ".join(self._open) or "something that never comes"
            raise AssertionError(f"{self._call!r} does not come to an end with what is given: it waits for {waits}")
        return {name: _Told.of(record) for name, record in await _records(store.store)}, calls  # type: ignore[arg-type]

    async def _life(self, store: _Mortal, clock: StillClock) -> tuple[bool, Counter[str]]:
        """One process: it goes on with the story to its end, or to its own."""
        house = House(store, clock, self._stand_ins)
        house.answer_with(self._answers, people=True)
        ended = False
        await house.__aenter__()
        try:
            ended = await self._told(house, store)
        except _Crash:
            pass
        finally:
            await house.die()
        return ended, Counter(named(house.called))

    async def _told(self, house: House, store: _Mortal) -> bool:
        await house.adopt()
        status: Any = await house.start(self._call, key=_KEY)
        for _ in range(_TURNS):
            await house.settle()
            if store.dead:
                raise _Crash
            status = await house.status(status.session_id)
            if isinstance(status, Finished) and not await house.sessions(state=("running", "paused")):
                return True
            if not await self._moved(house):
                self._open = [describe(query.query) for query in await house.inbox()]
                return False
        raise AssertionError(f"{self._call!r} does not come to an end in {_TURNS} turns")

    async def _moved(self, house: House) -> bool:
        """Do one thing that the sessions wait for; False if there is nothing."""
        for query in await house.inbox():
            if query.kind is Kind.CALL:
                await house.answer(query, {"rerun": True})  # somebody looked, and it had not happened
                return True
            if query.kind is Kind.SIGNAL and query.name in self._signals:
                await house.signal(query.session_id, query.name, self._signals[query.name])
                return True
        due = await house.store.next_due()
        if due is None:
            return False
        house.still.advance(max(due - house.still.now(), 0) + AFTER)
        return True


class _Told(msgspec.Struct):
    """A session without numbers and times: what was asked where, what was answered, and how it ended."""

    asked: dict[str, str]
    answers: dict[str, JSON]
    unknown: list[str]
    outcome: Any

    @classmethod
    def of(cls, record: Record) -> _Told:
        queries = {query.q: query for delivery in record.deliveries for query in delivery.asked}
        given = [answer for delivery in record.deliveries for answer in delivery.answers]
        notes = record.deliveries[-1].notes if record.deliveries else None
        outcome = None if notes is None else notes.outcome
        if isinstance(outcome, Raised):
            outcome = Raised(outcome.error, outcome.kind)
        return cls(
            {query.key: describe(query) for query in queries.values()},
            {queries[answer.q].key: _said(answer) for answer in given},
            [named([queries[answer.q]])[0] for answer in given if _is_unknown(answer)],
            outcome,
        )


def _said(answer: Answer) -> JSON:
    return answer.value if answer.error is None else {"error": answer.error}


def _is_unknown(answer: Answer) -> bool:
    return answer.error is not None and answer.error.get("code") == OutcomeUnknown.code


async def _records(store: MemoryStore) -> list[tuple[str, Record]]:
    from everhold.ports.store import Filter

    rows = await store.list(Filter(limit=10_000))
    return [(row.birth.id, await store.load(row.birth.id)) for row in sorted(rows, key=lambda row: row.birth.id)]


def _differences(expected: dict[str, _Told], told: dict[str, _Told]) -> list[str]:
    found = [f"session {name} is missing" for name in expected if name not in told]
    found += [f"session {name} is one too many" for name in told if name not in expected]
    for name in expected.keys() & told.keys():
        found += _differ(expected[name], told[name])
    return found


def _differ(was: _Told, now: _Told) -> list[str]:
    found = []
    for what, old, new in (("asked", was.asked, now.asked), ("answered", was.answers, now.answers)):
        for place in dict.fromkeys([*old, *new]):
            a, b = old.get(place, "nothing"), new.get(place, "nothing")
            if a != b:
                found.append(f"{what} at {place}: {a!r}; after the crash {b!r}")
    if was.outcome != now.outcome:
        found.append(f"it ended with {was.outcome!r}; after the crash with {now.outcome!r}")
    return found


def _silent_about_crashes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), _Crash):
        loop.default_exception_handler(context)


def _where(points: list[Point], name: str, field: str) -> str:
    places = [str(point) for point in points if name in getattr(point, field)]
    return ", ".join(places[:4]) + (f" and at {len(places) - 4} more" if len(places) > 4 else "")


def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Do something async on a loop of its own, also where one is running."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="everhold-crashes")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
