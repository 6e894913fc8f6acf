"""Keys, dice, clocks and versions: the same on replay, whoever answered first."""

import asyncio
import datetime
from typing import Any

import pytest

import everhold
from everhold.core.query import QueryAnswer
from everhold.core.session import Seed
from tests.unit.programs.driving import SEED, Life, birth, result, said


def test_a_key_is_the_path_of_the_task_and_the_ordinal_in_it() -> None:
    async def program(ctx: Any) -> None:
        async def pair(name: str) -> None:
            await ctx.llm(name)
            await asyncio.gather(ctx.llm(name * 2), ctx.llm(name * 3))

        await ctx.llm("x")
        await asyncio.gather(pair("a"), pair("b"))
        await ctx.llm("y")

    life = Life(program)
    life.finish()
    assert life.asked == [
        "0:0 x",
        "0.1:0 a",
        "0.2:0 b",
        "0.1.1:0 aa",
        "0.1.2:0 aaa",
        "0.2.1:0 bb",
        "0.2.2:0 bbb",
        "0:1 y",
    ]


def test_keys_do_not_depend_on_who_was_answered_first() -> None:
    async def program(ctx: Any) -> None:
        async def pair(name: str) -> None:
            await ctx.llm(name)
            await ctx.llm(name * 2)

        await asyncio.gather(*(pair(name) for name in "abc"))

    first, last = Life(program), Life(program)
    first.finish(min)
    last.finish(max)
    assert first.asked != last.asked
    assert sorted(first.asked) == sorted(last.asked)


def test_a_program_run_inline_asks_below_its_place() -> None:
    @everhold.program
    async def inner(ctx: everhold.Context, name: str) -> str:
        one = await ctx.llm(name)
        return one + await asyncio.create_task(ctx.llm(name * 2))

    async def program(ctx: Any) -> list[str]:
        await ctx.llm("x")
        found = [await ctx.run(inner(name)) for name in "ab"]
        await ctx.llm("y")
        return found

    life = Life(program)
    assert life.finish() == ["AAA", "BBB"]
    assert life.keys == ["0:0", "0/1:0", "0/1.1:0", "0/2:0", "0/2.1:0", "0:3"]


def test_query_ids_never_repeat() -> None:
    async def program(ctx: Any) -> None:
        for _ in range(3):
            await asyncio.gather(ctx.llm("a"), ctx.llm("b"))

    life = Life(program)
    life.finish()
    assert [query.id for step in life.journal for query in step.asked] == [
        f"q-{number}" for number in range(6)
    ]


def test_answers_handed_over_together_are_replayed_together() -> None:
    """Three branches race; what each saw depends on which answers came in one delivery."""

    async def program(ctx: Any) -> list[str]:
        seen: list[str] = []

        async def one(name: str) -> None:
            seen.append(await ctx.llm(name))
            await asyncio.sleep(0)
            await ctx.llm(f"{name} saw {','.join(seen)}")

        await asyncio.gather(*(one(name) for name in "abc"))
        return seen

    together, apart = Life(program), Life(program)
    together.go()
    together.go(QueryAnswer(2, "C"), QueryAnswer(0, "A"))
    apart.go()
    apart.go(QueryAnswer(2, "C"))
    apart.go(QueryAnswer(0, "A"))
    together.finish()
    apart.finish()
    assert together.asked[3:5] == ["0.3:1 c saw C,A", "0.1:1 a saw C,A"]
    assert apart.asked[3:5] == ["0.3:1 c saw C", "0.1:1 a saw C,A"]
    for life in (together, apart):
        assert said(life.again()) == said(life)


def test_the_loser_of_a_race_is_withdrawn_in_the_same_breath() -> None:
    async def program(ctx: Any) -> None:
        tasks = [asyncio.create_task(ctx.llm(name)) for name in "ab"]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await ctx.llm("next")

    life = Life(program)
    life.go()
    reply = life.answer("b")
    assert (reply.withdrawn, [query.prompt for query in reply.asked]) == ([0], ["next"])


def test_what_is_asked_and_withdrawn_in_one_breath_was_never_asked() -> None:
    async def program(ctx: Any) -> None:
        task = asyncio.create_task(ctx.llm("a"))
        await asyncio.sleep(0)
        task.cancel()
        await ctx.llm("b")

    reply = Life(program).go()
    assert ([query.prompt for query in reply.asked], reply.withdrawn) == (["b"], [])


def test_time_stands_still_between_deliveries() -> None:
    async def program(ctx: Any) -> list[str]:
        times = [ctx.now(), ctx.now()]
        await ctx.llm("a")
        times.append(ctx.now())
        return [time.isoformat() for time in times]

    life = Life(program)
    life.go()
    life.at = 1000.0 + 3600
    epoch = datetime.datetime.fromtimestamp(1000, datetime.UTC)
    assert result(life.answer("a")) == [
        epoch.isoformat(),
        epoch.isoformat(),
        (epoch + datetime.timedelta(hours=1)).isoformat(),
    ]


async def dice(ctx: Any) -> list[Any]:
    async def throw() -> list[Any]:
        return [ctx.random(), str(ctx.uuid()), ctx.rng().random()]

    first = await throw()
    await ctx.llm("a")
    return [first, await throw(), *await asyncio.gather(throw(), throw())]


def test_dice_fall_the_same_on_replay_and_differ_by_place() -> None:
    life = Life(dice)
    thrown = life.finish()
    assert said(life.again()) == said(life)
    flat = [value for throw in thrown for value in throw]
    assert len(set(flat)) == len(flat)


def test_dice_fall_by_session_and_not_by_delivery_order() -> None:
    assert Life(dice).finish() == Life(dice).finish()
    assert Life(dice, birth({}, Seed(0, "07e4"))).finish() != Life(dice).finish()


def test_a_fork_has_other_dice_from_its_fork_point_on() -> None:
    """Before it, everything is as it was."""
    origin, fork = Life(dice), Life(dice, birth({}, Seed(0, SEED), Seed(1, "f0f0")))
    one, other = origin.finish(), fork.finish()
    assert one[0] == other[0]
    assert [a == b for a, b in zip(one[1:], other[1:], strict=True)] == [False, False, False]


@pytest.mark.parametrize("number", [2, 3])
def test_a_version_is_what_it_was_when_it_was_first_passed(number: int) -> None:
    """A session that passed before there was one gets 1; one that passed with 2 keeps 2."""

    def made(present: int | None) -> Any:
        async def program(ctx: Any) -> list[int]:
            seen = [] if present is None else [ctx.version("change", present)]
            await ctx.llm("a")
            return seen + ([] if present is None else [ctx.version("change", present)])

        return program

    old = Life(made(None))
    old.go()
    old.program = Life(made(number)).program
    late = old.again()
    assert result(late.answer("a")) == [1, 1]
    new = Life(made(2))
    new.go()
    new.program = Life(made(number)).program
    assert result(new.again().answer("a")) == [2, 2]


def test_log_progress_and_record_are_silent_on_replay() -> None:
    async def program(ctx: Any) -> None:
        ctx.log("hello")
        ctx.progress(1, 2)
        ctx.record("cost", 3)
        await ctx.llm("a")

    life = Life(program)
    first = life.go()
    assert first.notes is not None
    assert ([entry.message for entry in first.notes.log], first.notes.record) == (
        ["hello"],
        {"cost": 3},
    )
    assert first.notes.progress is not None
    again = life.again().journal[0].notes
    assert again is not None
    assert (again.log, again.progress, again.record) == ([], None, {})


@pytest.mark.parametrize(
    "made",
    [
        lambda tasks: asyncio.wait(tasks),
        lambda tasks: asyncio.wait([asyncio.gather(task) for task in tasks]),
    ],
    ids=["tasks", "gathers"],
)
def test_a_set_of_tasks_has_one_order(made: Any) -> None:
    """Whatever else lives in the process, and wherever the objects are in memory."""

    async def program(ctx: Any) -> None:
        tasks = [asyncio.create_task(asyncio.sleep(0, name)) for name in "abcdefghij"]
        done, _ = await made(tasks)
        await ctx.llm(str([each.result() for each in done]))

    lives = []
    for _ in range(5):
        life = Life(program)
        life.go()
        lives.append(life)
    assert len({life.asked[0] for life in lives}) == 1


@pytest.mark.parametrize("seed", [f"{number:x}" for number in range(1, 9)])
def test_all_tasks_is_filled_in_the_order_of_creation(seed: str) -> None:
    """Otherwise its order would depend on how many tasks of other sessions live in the process."""

    async def neighbour(ctx: Any) -> None:
        await asyncio.gather(*(ctx.llm("x") for _ in range(300)))

    async def program(ctx: Any) -> bool:
        loop, filled = asyncio.get_running_loop(), {asyncio.current_task()}
        for _ in range(12):
            filled.add(asyncio.create_task(asyncio.sleep(9)))
            # so that the tasks want the same place in a set
            [loop.create_future() for _ in range(63)]
        return [*asyncio.all_tasks()] == [*filled]

    other = Life(neighbour, birth({}, Seed(0, "a")))
    other.go()
    assert result(Life(program, birth({}, Seed(0, seed))).go())
    other.drop()


def test_a_failed_task_does_not_spoil_the_list_of_tasks() -> None:
    """What is not a coroutine makes no task."""

    async def program(ctx: Any) -> str:
        try:
            asyncio.get_running_loop().create_task(1)
        except TypeError:
            await asyncio.Event().wait()
        return ""

    assert "Stuck" in str(Life(program).go().outcome)


def test_ctx_belongs_to_the_tasks_of_its_own_program() -> None:
    kept = []

    async def first(ctx: Any) -> None:
        kept.append(ctx)
        await ctx.llm("a")

    async def second(ctx: Any) -> str:
        try:
            await kept[0].llm("b")
        except everhold.EverholdError as error:
            return error.code
        return ""

    life = Life(first)
    life.go()
    assert result(Life(second).go()) == "foreign_call"
    assert life.asked == ["0:0 a"]
    life.drop()


async def test_ctx_cannot_be_used_from_the_loop_outside() -> None:
    kept = []

    async def program(ctx: Any) -> None:
        kept.append(ctx)
        await ctx.llm("a")

    life = Life(program)
    life.go()
    with pytest.raises(everhold.EverholdError, match="ctx cannot be used outside its own program"):
        await kept[0].llm("b")
    life.drop()


async def test_a_race_through_the_runtime_has_the_same_winner_after_a_restart() -> None:
    """b is answered first; the session is dropped from memory, rebuilt and goes on with
    winner=b.
    """

    @everhold.program
    async def race(ctx: everhold.Context) -> str:
        async def one(name: str) -> str:
            await ctx.llm(name)
            return name

        tasks = [asyncio.create_task(one(name)) for name in "ab"]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = done.pop().result()
        return winner + await ctx.llm(f"winner={winner}")

    async with everhold.open("memory://") as runtime:
        status = await runtime.start(race())
        status = await runtime.answer(status.queries[1], "B")
        assert [query.prompt for query in status.queries] == ["a", "winner=b"]
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        status = await runtime.answer(status.queries[1], "!")
        assert status.outcome.value == "b!"
