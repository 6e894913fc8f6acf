"""The shortest way through a journal comes to the same as the usual one, at every step of every
program.
"""

import asyncio
import contextvars
import functools
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer
from everhold.core.session import Birth, Head, SessionState
from everhold.engine.live_session import rebuild_session
from everhold.engine.replay import replay_session
from everhold.errors import AnswerFailed, Diverged
from everhold.ports.program import Program
from everhold.ports.store import SessionRecord
from everhold.programs.python import determinism_guard, event_loop
from everhold.programs.python.execution import PythonExecution
from tests.unit.programs.driving import Life, birth, said

STEPS = 6
HELD: contextvars.ContextVar[Any] = contextvars.ContextVar("HELD", default=None)
WORD: contextvars.ContextVar[str] = contextvars.ContextVar("WORD", default="")


class Host:
    def __init__(self, body: Any) -> None:
        self.program: Program[Any, Any] = Program(body, name="program", version=1, strict=False)

    def begin(self, born: Birth, meter: Metrics) -> PythonExecution:
        return PythonExecution(self.program, born, meter)


def record(journal: list[Delivery]) -> SessionRecord:
    """As a store holds it: what has nothing to note has no notes."""
    kept = [Delivery(one.n, one.at, one.answers, one.asked, one.notes) for one in journal]
    for one in kept:
        if one.notes == DeliveryNotes():
            one.notes = None
    return SessionRecord(
        birth(),
        Head(1, 1, SessionState.PAUSED, len(kept) - 1, 0, None, kept[-1].at, Metrics()),
        kept,
        [],
        [],
    )


def played(body: Any, steps: int = STEPS) -> Life:
    """A program that was given so many answers, the oldest question first; the third answer is an
    error.
    """
    life = Life(body)
    life.go()
    for step in range(steps):
        life.at += 1
        q = min(life.open)
        error = {"code": "no", "message": "said no"}
        life.go(QueryAnswer(q, error=error) if step == 2 else QueryAnswer(q, f"answer {step}"))
    assert life.last.outcome is None
    return life


# ---- programs: each asks more than six questions, and what it was told shows in what it asks


async def words(ctx: Any, prompt: str) -> str:
    try:
        return str(await ctx.llm(prompt))
    except AnswerFailed as error:
        return str(error)


async def chain(ctx: Any) -> None:
    told = ""
    for n in range(20):
        told = await words(ctx, f"{n} after {told} at {ctx.now()} with {ctx.random()}")


async def polite(ctx: Any) -> None:
    """Gives its loop a turn now and then."""
    told = ""
    for n in range(20):
        told = await words(ctx, f"{n} after {told}")
        for _ in range(n % 3):
            await asyncio.sleep(0)


class Watched:
    """Awaits something, and notes each pause and how it went on."""

    def __init__(self, inner: Any, seen: list[str], *, hears: bool) -> None:
        self.inner, self.seen, self.hears = inner, seen, hears

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.inner.__await__()
        go_on: Callable[[], Any] = functools.partial(steps.send, None)
        while True:
            try:
                pause = go_on()
            except StopIteration as end:
                return end.value
            if self.hears:
                pause.add_done_callback(lambda _: self.seen.append("heard"))
            try:
                yield pause
                self.seen.append("sent")
                go_on = functools.partial(steps.send, None)
            except AnswerFailed as error:
                self.seen.append("thrown")
                go_on = functools.partial(steps.throw, error)


async def watching(ctx: Any) -> None:
    """Whoever steps through an awaitable by hand sees each pause, is told of its end, and goes on,
    in this order.
    """
    seen: list[str] = []
    for n in range(20):
        await Watched(words(ctx, f"{n} {seen}"), seen, hears=True)


async def looking_on(ctx: Any) -> None:
    """The same without being told: an answer is sent in, an error is thrown in."""
    seen: list[str] = []
    for n in range(20):
        await Watched(words(ctx, f"{n} {seen}"), seen, hears=False)


async def stepping(ctx: Any) -> None:
    """The same by hand, in the program's own lines, and without being told."""
    seen: list[str] = []
    for n in range(20):
        steps = words(ctx, f"{n} {seen}")
        pause: Any = steps.send(None)
        pause._asyncio_future_blocking = False  # it is not this pause that its task waits for
        try:
            await pause
            seen.append("sent")
        except AnswerFailed:
            seen.append("thrown")
        try:
            steps.send(None)
        except StopIteration as end:
            seen.append(end.value)


async def crosswise(ctx: Any) -> None:
    """Asks one question while it waits for the answer to the one before."""
    begun: list[Any] = []

    def begin(prompt: str) -> Any:
        begun.append(ctx.llm(prompt))
        pause = begun[-1].send(None)
        pause._asyncio_future_blocking = False
        return pause

    pauses = [begin("first"), begin("second")]
    for n in range(20):
        try:
            told = await pauses.pop(0)
        except AnswerFailed as error:
            told = str(error)
        pauses.append(begin(f"{n} after {told}"))


async def busy(ctx: Any) -> None:
    """Something else is still to be done when it asks."""
    done: list[int] = []

    async def work(n: int) -> None:
        for _ in range(n % 3):
            await asyncio.sleep(0)
        done.append(n)

    for n in range(20):
        task = asyncio.create_task(work(n))
        await words(ctx, f"{n} {done}")
        await words(ctx, f"{n} {done} {task.done()}")


async def besides(ctx: Any) -> None:
    """A task of its own waits beside the program."""
    other = asyncio.create_task(words(ctx, "beside"))
    for n in range(20):
        await words(ctx, f"{n} {other.done()}")


async def together(ctx: Any) -> None:
    told: list[str] = []
    for n in range(20):
        told = await asyncio.gather(*(words(ctx, f"{n}.{k} {told}") for k in range(n % 3 + 1)))


async def in_a_task(ctx: Any) -> None:
    for n in range(20):
        await asyncio.create_task(words(ctx, str(n)))


async def batches(ctx: Any) -> None:
    await words(ctx, "first")
    for n in range(20):
        try:
            await ctx.llm_batch([f"{n}.{k}" for k in range(n % 2 + 1)])
        except AnswerFailed:
            pass


async def in_time(ctx: Any) -> None:
    for n in range(20):
        async with asyncio.timeout(60):
            await words(ctx, str(n))


async def giving_up(ctx: Any) -> None:
    """Cancels itself, and is told so at the next question, which nobody hears."""
    for n in range(20):
        if n % 2:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            try:
                await ctx.llm("unheard")
            except asyncio.CancelledError:
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
        await words(ctx, str(n))


async def variables(ctx: Any) -> None:
    for n in range(20):
        WORD.set(f"{WORD.get()[-20:]}+{n}")
        await words(ctx, WORD.get())


async def known_to_itself(ctx: Any) -> None:
    """What its task says of itself is the same on replay."""
    for _ in range(20):
        task: Any = asyncio.current_task()
        await words(ctx, f"{task!r} {task.get_coro().__qualname__}")


async def telling(ctx: Any) -> None:
    for n in range(20):
        await words(ctx, str(n))
        if n % 3 == 1:
            ctx.log(f"{n} was answered")
            ctx.record("n", n)


async def typed(ctx: Any) -> None:
    for n in range(20):
        try:
            told = await ctx.llm(str(n), returns=dict[str, int])
        except AnswerFailed as error:
            told = str(error)
        except Exception as error:
            told = type(error).__name__
        await words(ctx, str(told))


async def left_by_an_error(ctx: Any) -> None:
    """An async generator goes when the error goes in whose frames it is held, and asks on
    leaving.
    """

    async def numbers(n: int) -> AsyncGenerator[int, None]:
        try:
            yield n
        except GeneratorExit:
            await words(ctx, f"left at {n}")

    async def ask(n: int) -> None:
        held = numbers(n)
        await anext(held)
        await ctx.llm(str(n))
        await anext(held, None)

    for n in range(20):
        with suppress(AnswerFailed):
            await ask(n)


async def left_with_a_timer(ctx: Any) -> None:
    """An async generator is held by nothing but the variables of a timer, and goes when that is
    cancelled.
    """

    async def numbers(n: int) -> AsyncGenerator[int, None]:
        try:
            yield n
        finally:
            await words(ctx, f"left at {n}")

    for n in range(20):
        if n == 1:
            before = HELD.set(numbers(n))
            await anext(HELD.get())
            timer = asyncio.get_running_loop().call_later(1000, print)
            HELD.reset(before)
            timer.cancel()
            del before, timer
        await words(ctx, str(n))


PROGRAMS = [
    chain, polite, watching, looking_on, stepping, crosswise, busy, besides, together, in_a_task, batches,  # noqa: E501
    in_time, giving_up, variables, known_to_itself, telling, typed,
    left_by_an_error, left_with_a_timer,
]  # fmt: skip


@pytest.mark.parametrize("body", PROGRAMS)
@pytest.mark.parametrize("steps", range(STEPS + 1))
async def test_a_replay_leads_where_the_life_before_had_come(body: Any, steps: int) -> None:
    """What is open, what comes next and what is asked then are those of a program that was never
    dropped.
    """
    life = played(body, steps)
    live = await rebuild_session(record(life.journal), Host(body))
    try:
        assert {q: entry.query for q, entry in live.opened.items()} == life.open
        assert {q: entry.n for q, entry in live.opened.items()} == {
            query.q: one.n for one in life.journal for query in one.asked if query.q in life.open
        }
        assert (live.timer, live.reworded) == (life.due, [])
        again = Life(body)
        again.execution, again.open, again.at = live.execution, dict(life.open), life.at  # type: ignore[assignment]
        again.journal = list(life.journal)
        for one in (life, again):
            for step in range(3):
                one.at += 1
                one.go(QueryAnswer(min(one.open), f"more {step}"))
        assert said(again) == said(life)
    finally:
        live.drop()
        life.drop()


def test_a_chain_is_followed_to_its_end() -> None:
    """Where nothing else is to be done, one handing over leads from the first answer to the
    last.
    """
    life = played(chain)
    execution = Host(chain).begin(birth(), Metrics())
    with execution.entered():
        execution.replaying = True
        kept = record(life.journal).deliveries
        assert execution.follow(kept, 0, STEPS)[0] == 0
        place, reply = execution.follow(kept, 1, STEPS)
    assert (place, reply.asked) == (STEPS, life.last.asked)
    execution.drop()


# ---- programs that have changed


def changed(at: int, how: Callable[[Any], Any]) -> Any:
    """The chain, which does something else instead of its question number `at`."""

    async def program(ctx: Any) -> None:
        told = ""
        for n in range(20):
            if n == at:
                await how(ctx)
            told = await words(ctx, f"{n} after {told} at {ctx.now()} with {ctx.random()}")

    return program


async def ends(ctx: Any) -> None:
    raise SystemExit(1)


async def asks_a_person(ctx: Any) -> None:
    await ctx.input("?")


async def asks_twice(ctx: Any) -> None:
    await ctx.llm_batch(["one", "other"])


async def asks_in_a_task(ctx: Any) -> None:
    await asyncio.create_task(ctx.llm("?"))


async def asks_for_a_number(ctx: Any) -> None:
    await ctx.llm("?", returns=int)


async def waits(ctx: Any) -> None:
    await asyncio.sleep(5)


async def gives_up(ctx: Any) -> None:
    asyncio.current_task().cancel()  # type: ignore[union-attr]


@pytest.mark.parametrize("at", range(STEPS + 1))
@pytest.mark.parametrize(
    "how", [ends, asks_a_person, asks_twice, asks_in_a_task, asks_for_a_number, waits, gives_up]
)
async def test_a_changed_program_is_found_out_at_the_same_record(at: int, how: Any) -> None:
    """Both ways name the same step, what is recorded there and what is asked now."""
    kept, host = record(played(chain).journal), Host(changed(at, how))
    with pytest.raises(Diverged) as usual:
        list(replay_session(kept, host))
    with pytest.raises(Diverged) as short:
        await rebuild_session(kept, host)
    assert (
        (short.value.step, str(short.value))
        == (usual.value.step, str(usual.value))
        == (at, str(usual.value))
    )


async def test_other_words_are_noted_and_the_answers_stand() -> None:
    """A change of wording is no reason to stop, and is known for each question."""

    async def louder(ctx: Any) -> None:
        told = ""
        for n in range(20):
            mark = "!" if n in (1, 4) else ""
            told = await words(ctx, f"{n} after {told} at {ctx.now()} with {ctx.random()}{mark}")

    live = await rebuild_session(record(played(chain).journal), Host(louder))
    assert (live.reworded, list(live.opened)) == ([1, 4], [STEPS])
    live.drop()


# ---- limits: each advance has its own, as it had when it was not replayed


async def test_turns_are_counted_for_each_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What turned a hundred times for each answer has not turned too often when all of them come at
    once.
    """

    async def turning(ctx: Any) -> None:
        for n in range(20):
            await words(ctx, str(n))
            for _ in range(100):
                await asyncio.sleep(0)

    kept = record(played(turning).journal)
    monkeypatch.setattr(event_loop, "HANDLES", 150)
    live = await rebuild_session(kept, Host(turning))
    assert list(live.opened) == [STEPS]
    live.drop()


async def test_time_is_counted_for_each_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a replay takes as a whole, only an advance that takes too long by itself is
    stopped.
    """
    looks = 0

    async def slow(ctx: Any) -> None:
        nonlocal looks
        for n in range(20):
            await words(ctx, str(n))
            determinism_guard._check_advances(time.monotonic() + looks)
            looks += 1

    monkeypatch.setattr(determinism_guard, "_read_cpu_time", lambda place: looks)
    kept = record(played(slow).journal)
    before, looks = determinism_guard._settings.limit, 0
    determinism_guard.configure_guard(limit=3.0)
    try:
        live = await rebuild_session(kept, Host(slow))
        assert (list(live.opened), looks) == ([STEPS], STEPS)
        live.drop()
    finally:
        determinism_guard.configure_guard(limit=before)


async def test_an_advance_that_hangs_on_replay_is_stopped() -> None:
    """The watch sees that it is still at the same delivery."""

    async def hanging(ctx: Any) -> None:
        for n in range(20):
            await words(ctx, str(n))
            while n == 3 and hangs:
                pass

    hangs = False
    kept = record(played(hanging).journal)
    before, hangs = determinism_guard._settings.limit, True
    determinism_guard.configure_guard(limit=0.3)
    try:
        with pytest.raises(Diverged) as found:
            await rebuild_session(kept, Host(hanging))
        assert found.value.step == 4
    finally:
        determinism_guard.configure_guard(limit=before)


async def test_a_query_of_another_kind_is_followed_too() -> None:
    """Whatever is asked and answered alone: a person's words, a message, a durable value."""

    async def asking(ctx: Any) -> None:
        for n in range(20):
            await words(ctx, str(n))
            await ctx.input(f"{n}?")

    life = Life(asking)
    life.go()
    for n in range(STEPS):
        life.go(QueryAnswer(n, f"answer {n}"))
    live = await rebuild_session(record(life.journal), Host(asking))
    assert [entry.query for entry in live.opened.values()] == [Query(STEPS, f"0:{STEPS}", "3")]
    live.drop()
