"""Cancels the callers of a program at every await, and compares with an undisturbed run.

    report = cancel_everywhere(refund(order="7"), answers={"*reason*": "It broke.", "Refund*": True})
    assert not report.repeated      # no call ran twice

A caller is cancelled by `asyncio.timeout`, or because a web client disconnects. Each verb that the
program needs from outside (`start`, `answer`, `answer_many`, `signal`) is cancelled in two ways: at
its first suspension, its second and so on; and after 0, 1, 2 … turns of the event loop, because one
suspension may last many turns. After that the caller repeats the call, with the same key or the
same answer. A signal has no key, so it is sent again only if the program still waits for it.

The end, the questions and the answers must equal those of the undisturbed run, and `verify` must
find nothing. No call may stay marked as running without a task, and no call with `rerun="never"` or
`"ask"` may run twice or have an unknown outcome. Otherwise `cancel_everywhere` raises `NotSame` and
lists each place.

The clock advances by itself when the program waits for time.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import functools
import itertools
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from everhold.core.codec import JSON
from everhold.core.journal import describe_query
from everhold.core.query import SCRIPTED_KINDS, Kind, Query, Rerun
from everhold.core.session import Birth
from everhold.core.status import Finished, OpenQuery, Returned
from everhold.engine.journal_reader import index_queries
from everhold.errors import BadSetting
from everhold.ports.answerer import Answer
from everhold.ports.program import Call
from everhold.ports.store import SessionRecord, Store
from everhold.stores.registry import create_store as store_at
from everhold.testing.answers import Answers, StandIns, make_test_answerer
from everhold.testing.compare import (
    NotSame,
    RememberingAnswerer,
    SessionTrace,
    find_differences,
    load_records,
    run_in_own_loop,
)
from everhold.testing.faults import SlowStore
from everhold.testing.runtime import AFTER, RuntimeForTests, StillClock, list_call_names

#: An "await" is a suspension of the verb, counted from 1; a "turn" is one of the event loop,
#: counted from 0.
When = Literal["await", "turn"]
#: The result of a cancelled call: its caller was cancelled ("left"), it had returned before, or it
#: continued although it was cancelled ("stayed").
Left = Literal["left", "returned", "stayed"]

_KEY: Final = "cancel-everywhere"
_TURNS: Final = 1000  # answers and timers before a program counts as endless


class CancelPoint(msgspec.Struct, frozen=True):
    """A place at which a caller was cancelled, and the result."""

    verb: str  # with its purpose: "answer llm 'Why?'"
    call: int  # its number among the calls of the undisturbed run, from 1
    when: When
    at: int
    differences: list[str] = []
    repeated: list[str] = []  # calls of functions that ran more often than in the undisturbed run

    def __str__(self) -> str:
        where = f"at await {self.at}" if self.when == "await" else f"after {self.at} turns"
        return f"call {self.call}, {self.verb}, cancelled {where}"


class CancelReport(msgspec.Struct, frozen=True):
    """The result of cancelling the callers of a program everywhere."""

    program: str
    verbs: list[str]  # the calls that the undisturbed run needed, in order
    points: list[CancelPoint]
    result: JSON

    @property
    def repeated(self) -> list[str]:
        """Functions that ran more than once because a caller was cancelled."""
        return sorted({name for point in self.points for name in point.repeated})

    def __str__(self) -> str:
        wrong = [point for point in self.points if point.differences]
        lines = [
            f"{self.program}: {len(self.points)} cancelled callers of {len(self.verbs)} calls,"
            f" {len(wrong)} changed something"
        ]
        for point in wrong:
            lines += [f"  {point}:", *(f"    {words}" for words in point.differences)]
        lines += [f"  {name} ran more than once" for name in self.repeated]
        return "\n".join(lines)


def cancel_everywhere(
    call: Call[Any],
    *,
    answers: Answers | None = None,
    calls: Mapping[str, Any] | None = None,
    signals: Mapping[str, JSON] | None = None,
    store: str | Callable[[], Store] = "memory://",
) -> CancelReport:
    """Run a program, then cancel each of its callers at every await, and compare; raises `NotSame`.

    `answers` also answer people's questions. `calls` replace the functions that the program calls,
    by name. `signals` are sent when the program waits for them, by name. With these the program
    must reach its end. `store` is `"memory://"`, `"sqlite://"` (a new file for each run), or a
    function that returns an empty store each time it is called.
    """
    with _stores(store) as make:
        return run_in_own_loop(
            _Cancellations(call, answers, dict(calls or {}), dict(signals or {}), make).report()
        )


async def cancel_caller_at(verb: Coroutine[Any, Any, Any], when: When, at: int) -> Left:
    """Call a verb and cancel its caller: at its suspension number `at`, or after `at` turns of the
    event loop.

    Waits for the end of the caller, not for work that continues after it. Raises what the verb
    raises.
    """
    asked: list[bool] = []
    if when == "await":
        task = asyncio.create_task(_cancelled_at(verb, at, asked))
    else:
        task = asyncio.create_task(verb)
        for _ in range(at):
            if task.done():
                break
            await asyncio.sleep(0)
        if task.cancel():
            asked.append(True)
    await asyncio.wait([task])
    if task.cancelled():
        return "left"
    task.result()
    return "stayed" if asked else "returned"


async def _cancelled_at(verb: Coroutine[Any, Any, Any], at: int, asked: list[bool]) -> Any:
    """Run a coroutine, and cancel its task at suspension number `at`."""
    # from Python 3.12 on, a task takes no coroutine made by a decorator
    return await _stepped(verb, at, asked)


@types.coroutine
def _stepped(
    verb: Coroutine[Any, Any, Any], at: int, asked: list[bool]
) -> Generator[Any, Any, Any]:
    step = functools.partial(verb.send, None)
    suspensions = 0
    while True:
        try:
            waits_for = step()
        except StopIteration as done:
            return done.value
        suspensions += 1
        if suspensions == at:
            asked.append(True)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            given = yield waits_for
        except BaseException as error:
            step = functools.partial(verb.throw, error)
        else:
            step = functools.partial(verb.send, given)


@contextmanager
def _stores(given: str | Callable[[], Store]) -> Iterator[Callable[[], Store]]:
    """Yield a function that makes an empty store for each run."""
    if callable(given):
        yield given
        return
    scheme, _, path = given.partition("://")
    if scheme == "memory":
        yield lambda: store_at(given)
    elif scheme == "sqlite":
        with tempfile.TemporaryDirectory(
            prefix="everhold-", dir=Path(path[1:]).parent if path else None
        ) as folder:
            numbers = itertools.count(1)
            yield lambda: store_at(f"sqlite:///{folder}/{next(numbers)}.db")
    else:
        raise BadSetting(
            "store",
            f"each run needs an empty store: give a function that returns one, not {given!r}",
        )


class _Caller(RuntimeForTests):
    """A runtime whose sessions get the same random numbers, however often their start is
    repeated.
    """

    def __init__(self, store: Store, stand_ins: StandIns) -> None:
        super().__init__(store, StillClock(), stand_ins)
        self._seeds: dict[str, Any] = {}

    def _birth(self, call: Call[Any], *more: Any) -> Birth:
        birth = super()._birth(call, *more)
        if birth.key is None:
            return birth
        return msgspec.structs.replace(birth, seeds=self._seeds.setdefault(birth.key, birth.seeds))

    async def abandoned(self) -> list[str]:
        """List calls that this process marked as running without a task. Call it when nothing is in
        progress.
        """
        found = []
        for record in await load_records(self.store):
            queries = index_queries(record.deliveries)
            for effect in record.effects:
                if effect.worker == self.engine.presence.worker:
                    found.append(
                        f"{describe_query(queries[effect.q])} is marked as running, but no task"
                        " runs it"
                    )
        return found


class _Run:
    """One run of the program, from its start to its end, with one cancelled caller or none."""

    def __init__(
        self, story: _Cancellations, store: Store, cancels: tuple[int, When, int] | None
    ) -> None:
        self._story = story
        self._cancels = cancels
        self.runtime = _Caller(SlowStore(store), story.stand_ins)
        self.verbs: list[str] = []
        self.left: Left = "returned"
        self.wrong: list[str] = []
        self.traces: dict[str, SessionTrace] = {}
        self.called: list[Query] = []
        self.result: JSON = None

    async def play(self) -> None:
        runtime = self.runtime
        async with runtime:
            await self._call(
                "start", lambda: runtime.start(self._story.call, key=_KEY), repeat=True
            )
            root = await runtime.store.find(_KEY)
            assert root is not None
            for _ in range(_TURNS):
                await runtime.settle()
                status = await runtime.status(root)
                if isinstance(status, Finished) and not await runtime.sessions(
                    state=("running", "paused")
                ):
                    self.result = (
                        status.outcome.value if isinstance(status.outcome, Returned) else None
                    )
                    break
                if not await self._supply_one(root):
                    self.wrong.append(
                        f"it does not reach its end: it waits for {await self._describe_open()}"
                    )
                    break
            else:
                self.wrong.append(f"it does not reach its end in {_TURNS} turns")
            self.wrong += await runtime.abandoned()
            self.wrong += [
                str(problem) for problem in await runtime.archive.verify() if not problem.warning
            ]
            self.traces = _trace_by_name(await load_records(runtime.store), root)
        self.called = runtime.called

    async def _call(
        self, words: str, verb: Callable[[], Coroutine[Any, Any, Any]], *, repeat: bool
    ) -> None:
        """Call a verb. If this is the call to cancel, cancel its caller and repeat the call.

        A caller that was cancelled at an await repeats at once, while the first call may still run.
        One that was cancelled after some turns repeats when the first call has ended.
        """
        self.verbs.append(words)
        if self._cancels is None or len(self.verbs) != self._cancels[0]:
            await verb()
            return
        _, when, at = self._cancels
        self.left = await cancel_caller_at(verb(), when, at)
        if self.left == "stayed":
            self.wrong.append("it continued although it was cancelled")
        if when == "turn" or not repeat:
            await self.runtime.rest()
            self.wrong += await self.runtime.abandoned()
        if repeat and self.left == "left":
            await verb()
            await self.runtime.rest()
            self.wrong += await self.runtime.abandoned()

    async def _supply_one(self, root: str) -> bool:
        """Supply one thing that the sessions wait for; False if there is nothing to supply."""
        runtime = self.runtime
        story = self._story
        inbox = await runtime.inbox(limit=10_000)
        for query in inbox:
            asked = describe_query(query.query)
            if query.kind is Kind.CALL:
                self.wrong.append(f"the outcome of {asked} is unknown")
                await runtime.answer(query, {"rerun": True})
                return True
            if query.kind in SCRIPTED_KINDS and story.answers is not None:
                together = [
                    each
                    for each in inbox
                    if each.session_id == query.session_id and each.kind in SCRIPTED_KINDS
                ]
                answered: dict[str, Any] = {
                    each.id: await self._prepare_answer(each, root) for each in together
                }
                if len(together) > 1:
                    many = functools.partial(runtime.answer_many, query.session_id, answered)
                    await self._call(f"answer_many to {len(answered)} questions", many, repeat=True)
                else:
                    one = functools.partial(_answer, runtime, query, answered[query.id])
                    await self._call(f"answer {asked}", one, repeat=True)
                return True
        for query in await runtime.inbox(kind=Kind.SIGNAL, limit=10_000):
            if query.name in story.signals:
                signal = functools.partial(
                    runtime.signal, query.session_id, query.name, story.signals[query.name]
                )
                await self._call(f"signal {query.name!r}", signal, repeat=False)
                return True
        due = await runtime.store.next_due()
        if due is None:
            return False
        runtime.still.advance(max(due - runtime.still.now(), 0) + AFTER)
        return True

    async def _prepare_answer(self, query: OpenQuery, root: str) -> Any:
        """The prepared answer, or the error in its place."""
        assert self._story.answers is not None
        # the id of the first session differs between runs
        name = "" if query.session_id == root else query.session_id
        try:
            return await self._story.answers.answer(query.query, name)
        except Exception as error:
            return error

    async def _describe_open(self) -> str:
        waits = [*await self.runtime.inbox(), *await self.runtime.inbox(kind=Kind.SIGNAL)]
        return "; ".join(describe_query(one.query) for one in waits) or "nothing that can happen"


async def _answer(runtime: RuntimeForTests, query: OpenQuery, answered: Any) -> None:
    if isinstance(answered, Exception):
        await runtime.answer(query, error=str(answered) or type(answered).__name__)
    elif isinstance(answered, Answer):
        await runtime.answer(query, answered.value, usage=answered.usage)
    else:
        await runtime.answer(query, answered)


class _Cancellations:
    def __init__(
        self,
        call: Call[Any],
        answers: Answers | None,
        calls: dict[str, Any],
        signals: dict[str, JSON],
        make: Callable[[], Store],
    ) -> None:
        self.call = call
        self.signals = signals
        self._make = make
        self.answers = (
            None
            if answers is None
            else RememberingAnswerer(make_test_answerer(answers), "cancel_everywhere")
        )
        self.stand_ins = StandIns()
        self.stand_ins.add(calls)

    async def report(self) -> CancelReport:
        baseline = await self._play(None)
        if baseline.wrong:
            raise AssertionError(f"{self.call!r}, undisturbed: {'; '.join(baseline.wrong)}")
        points = []
        for number, verb in enumerate(baseline.verbs, 1):
            for when, first in (("await", 1), ("turn", 0)):
                for at in itertools.count(first):
                    run = await self._play((number, when, at))  # type: ignore[arg-type]
                    if run.left == "returned":
                        break
                    points.append(_compare_runs(verb, number, when, at, baseline, run))  # type: ignore[arg-type]
        report = CancelReport(self.call.program.ref, baseline.verbs, points, baseline.result)
        if any(point.differences for point in points):
            raise NotSame(str(report))
        return report

    async def _play(self, cancels: tuple[int, When, int] | None) -> _Run:
        if self.answers is not None:
            self.answers.begin_run()
        run = _Run(self, self._make(), cancels)
        await run.play()
        return run


def _compare_runs(
    verb: str, number: int, when: When, at: int, baseline: _Run, run: _Run
) -> CancelPoint:
    """Compare a run with a cancelled caller with the undisturbed run."""
    wrong = list(dict.fromkeys(run.wrong))
    calls = Counter(list_call_names(baseline.called))
    repeated = [
        name for name, times in Counter(list_call_names(run.called)).items() if times > calls[name]
    ]
    unsafe = set(list_call_names([query for query in run.called if query.rerun is not Rerun.SAFE]))
    wrong += [f"{name} ran twice" for name in repeated if name in unsafe]
    wrong += [
        f"the outcome of {name} is unknown" for one in run.traces.values() for name in one.unknown
    ]
    wrong += find_differences(baseline.traces, run.traces, "the cancellation")
    return CancelPoint(verb, number, when, at, wrong, repeated)


def _trace_by_name(found: list[SessionRecord], root: str) -> dict[str, SessionTrace]:
    """The traces of all sessions, by a name that is the same in each run.

    The id of the first session is removed from all texts.
    """
    traces = {}
    for record in found:
        text = msgspec.json.encode(SessionTrace.of(record)).decode().replace(root, "")
        name = (record.birth.key or record.birth.id).replace(root, "").replace(_KEY, "")
        traces[name] = msgspec.json.decode(text, type=SessionTrace)
    return traces


__all__ = ["CancelPoint", "CancelReport", "cancel_caller_at", "cancel_everywhere"]
