"""Callers that leave: a program is run once undisturbed, and then its callers are cancelled at
every await.

    report = cancel_everywhere(refund(order="7"), answers={"*reason*": "It broke.", "Refund*": True})
    assert not report.repeated      # no call ran twice

A caller is cancelled by `asyncio.timeout`, or because a web client disconnects. Each verb that the
program needs from outside (`start`, `answer`, `answer_many`, `signal`) is cancelled in two ways: at
its first suspension, its second and so on; and after 0, 1, 2 … turns of the event loop, because one
suspension may last many turns. After that the caller repeats the call, with the same key or the
same answer. A signal has no key, so it is sent again only if the program still waits for it.

The end, the questions and the answers must be those of the undisturbed run, `verify` must find
nothing, no call may be left marked as running here while no task runs it, and no call with
`rerun="never"` or `"ask"` may run twice or have an unknown outcome. Else `cancel_everywhere` raises
`NotSame` with each place.

Time passes by itself where the program waits for it.
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
#: What came of a call: its caller left; it returned before that; or it went on although it was
#: cancelled.
Left = Literal["left", "returned", "stayed"]

_KEY: Final = "cancel-everywhere"
_TURNS: Final = 1000  # answers and timers before a program counts as endless


class CancelPoint(msgspec.Struct, frozen=True):
    """A place at which a caller was cancelled, and what came of it."""

    verb: str  # with what it was called for: "answer llm 'Why?'"
    call: int  # which of the calls of the undisturbed run it is, counted from 1
    when: When
    at: int
    differences: list[str] = []
    repeated: list[str] = []  # calls of functions that ran more often than in the undisturbed run

    def __str__(self) -> str:
        where = f"at await {self.at}" if self.when == "await" else f"after {self.at} turns"
        return f"call {self.call}, {self.verb}, cancelled {where}"


class CancelReport(msgspec.Struct, frozen=True):
    """What came of a program whose callers were cancelled everywhere."""

    program: str
    verbs: list[str]  # the calls that the undisturbed run needed, in order
    points: list[CancelPoint]
    result: JSON

    @property
    def repeated(self) -> list[str]:
        """Functions that were called more than once because a caller left."""
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

    `answers` are for people's questions too; `calls` stand in for the functions that it calls, by
    name; `signals` are sent when it waits for them, by name. It must come to its end with what is
    given. `store` is `"memory://"`, `"sqlite://"` (a new file for each run), or a function that
    returns an empty store each time it is called.
    """
    with _stores(store) as make:
        return run_in_own_loop(
            _Cancellations(call, answers, dict(calls or {}), dict(signals or {}), make).report()
        )


async def cancel_caller_at(verb: Coroutine[Any, Any, Any], when: When, at: int) -> Left:
    """Call a verb and cancel its caller: at its suspension number `at`, or after so many turns of
    the event loop.

    Waits for the caller's end, not for what it leaves behind. Raises what the verb raises.
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
    """Run a coroutine, and cancel its task as it suspends for the time number `at`."""
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
    """What makes an empty store for each run."""
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
    """A runtime whose sessions draw the same numbers, however often their start is repeated."""

    def __init__(self, store: Store, stand_ins: StandIns) -> None:
        super().__init__(store, StillClock(), stand_ins)
        self._seeds: dict[str, Any] = {}

    def _birth(self, call: Call[Any], *more: Any) -> Birth:
        birth = super()._birth(call, *more)
        if birth.key is None:
            return birth
        return msgspec.structs.replace(birth, seeds=self._seeds.setdefault(birth.key, birth.seeds))

    async def abandoned(self) -> list[str]:
        """Marks of this process that no task works on. Asked while nothing is in progress, so there
        should be none.
        """
        found = []
        for record in await load_records(self.store):
            queries = index_queries(record.deliveries)
            for effect in record.effects:
                if effect.worker == self.engine.presence.worker:
                    found.append(
                        f"{describe_query(queries[effect.q])} is marked as running, and no task"
                        " runs it"
                    )
        return found


class _Run:
    """The program's story told once, from its start to its end, with one caller cancelled or
    none.
    """

    def __init__(
        self, story: _Cancellations, store: Store, leaves: tuple[int, When, int] | None
    ) -> None:
        self._story = story
        self._leaves = leaves
        self.house = _Caller(SlowStore(store), story.stand_ins)
        self.verbs: list[str] = []
        self.left: Left = "returned"
        self.wrong: list[str] = []
        self.told: dict[str, SessionTrace] = {}
        self.called: list[Query] = []
        self.result: JSON = None

    async def tell(self) -> None:
        house = self.house
        async with house:
            await self._call("start", lambda: house.start(self._story.call, key=_KEY), repeat=True)
            root = await house.store.find(_KEY)
            assert root is not None
            for _ in range(_TURNS):
                await house.settle()
                status = await house.status(root)
                if isinstance(status, Finished) and not await house.sessions(
                    state=("running", "paused")
                ):
                    self.result = (
                        status.outcome.value if isinstance(status.outcome, Returned) else None
                    )
                    break
                if not await self._moved(root):
                    self.wrong.append(
                        f"it does not come to an end: it waits for {await self._open()}"
                    )
                    break
            else:
                self.wrong.append(f"it does not come to an end in {_TURNS} turns")
            self.wrong += await house.abandoned()
            self.wrong += [
                str(problem) for problem in await house.archive.verify() if not problem.warning
            ]
            self.told = _named(await load_records(house.store), root)
        self.called = house.called

    async def _call(
        self, words: str, verb: Callable[[], Coroutine[Any, Any, Any]], *, repeat: bool
    ) -> None:
        """Call a verb. If it is the one whose caller leaves, that caller repeats it where this can
        do no harm.

        One that was cancelled at an await repeats it at once, beside what it left behind. One that
        was cancelled after some turns comes later, when all of that has come to its end.
        """
        self.verbs.append(words)
        if self._leaves is None or len(self.verbs) != self._leaves[0]:
            await verb()
            return
        _, when, at = self._leaves
        self.left = await cancel_caller_at(verb(), when, at)
        if self.left == "stayed":
            self.wrong.append("it went on although it was cancelled")
        if when == "turn" or not repeat:
            await self.house.rest()
            self.wrong += await self.house.abandoned()
        if repeat and self.left == "left":
            await verb()
            await self.house.rest()
            self.wrong += await self.house.abandoned()

    async def _moved(self, root: str) -> bool:
        """Do one thing that the sessions wait for; False if there is nothing."""
        house = self.house
        story = self._story
        inbox = await house.inbox(limit=10_000)
        for query in inbox:
            asked = describe_query(query.query)
            if query.kind is Kind.CALL:
                self.wrong.append(f"the outcome of {asked} is in doubt")
                await house.answer(query, {"rerun": True})
                return True
            if query.kind is Kind.SIGNAL and query.name in story.signals:
                signal = functools.partial(
                    house.signal, query.session_id, query.name, story.signals[query.name]
                )
                await self._call(f"signal {query.name!r}", signal, repeat=False)
                return True
            if query.kind in SCRIPTED_KINDS and story.answers is not None:
                beside = [
                    each
                    for each in inbox
                    if each.session_id == query.session_id and each.kind in SCRIPTED_KINDS
                ]
                said: dict[str, Any] = {each.id: await self._said(each, root) for each in beside}
                if len(beside) > 1:
                    many = functools.partial(house.answer_many, query.session_id, said)
                    await self._call(f"answer_many to {len(said)} questions", many, repeat=True)
                else:
                    one = functools.partial(_answer, house, query, said[query.id])
                    await self._call(f"answer {asked}", one, repeat=True)
                return True
        due = await house.store.next_due()
        if due is None:
            return False
        house.still.advance(max(due - house.still.now(), 0) + AFTER)
        return True

    async def _said(self, query: OpenQuery, root: str) -> Any:
        """What is answered, or the error that is."""
        assert self._story.answers is not None
        # the first one's id is another in each run
        name = "" if query.session_id == root else query.session_id
        try:
            return await self._story.answers.answer(query.query, name)
        except Exception as error:
            return error

    async def _open(self) -> str:
        return (
            "; ".join(describe_query(query.query) for query in await self.house.inbox())
            or "something that never comes"
        )


async def _answer(house: RuntimeForTests, query: OpenQuery, said: Any) -> None:
    if isinstance(said, Exception):
        await house.answer(query, error=str(said) or type(said).__name__)
    elif isinstance(said, Answer):
        await house.answer(query, said.value, usage=said.usage)
    else:
        await house.answer(query, said)


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
        usual = await self._told(None)
        if usual.wrong:
            raise AssertionError(f"{self.call!r}, undisturbed: {'; '.join(usual.wrong)}")
        points = []
        for number, verb in enumerate(usual.verbs, 1):
            for when, first in (("await", 1), ("turn", 0)):
                for at in itertools.count(first):
                    run = await self._told((number, when, at))  # type: ignore[arg-type]
                    if run.left == "returned":
                        break
                    points.append(_place(verb, number, when, at, usual, run))  # type: ignore[arg-type]
        report = CancelReport(self.call.program.ref, usual.verbs, points, usual.result)
        if any(point.differences for point in points):
            raise NotSame(str(report))
        return report

    async def _told(self, leaves: tuple[int, When, int] | None) -> _Run:
        run = _Run(self, self._make(), leaves)
        await run.tell()
        return run


def _place(verb: str, number: int, when: When, at: int, usual: _Run, run: _Run) -> CancelPoint:
    """Compare a run in which a caller left with the undisturbed one."""
    wrong = list(dict.fromkeys(run.wrong))
    calls = Counter(list_call_names(usual.called))
    repeated = [
        name for name, times in Counter(list_call_names(run.called)).items() if times > calls[name]
    ]
    doubtful = set(
        list_call_names([query for query in run.called if query.rerun is not Rerun.SAFE])
    )
    wrong += [f"{name} ran twice" for name in repeated if name in doubtful]
    wrong += [
        f"the outcome of {name} is unknown" for one in run.told.values() for name in one.unknown
    ]
    wrong += find_differences(usual.told, run.told, "its caller left")
    return CancelPoint(verb, number, when, at, wrong, repeated)


def _named(found: list[SessionRecord], root: str) -> dict[str, SessionTrace]:
    """Sessions by what is the same in each run: the first one is nameless, and its id is left out
    of all texts.
    """
    told = {}
    for record in found:
        text = msgspec.json.encode(SessionTrace.of(record)).decode().replace(root, "")
        name = (record.birth.key or record.birth.id).replace(root, "").replace(_KEY, "")
        told[name] = msgspec.json.decode(text, type=SessionTrace)
    return told


__all__ = ["CancelPoint", "CancelReport", "cancel_caller_at", "cancel_everywhere"]
