"""ctx.state: durable values shared between sessions."""

import asyncio

import pytest

import everhold
from tests.scenario.harness import opened, rows


@everhold.program
async def verbs(ctx):
    state = ctx.state("verbs")
    seen = [await state.get("a"), await state.get("a", "none"), await state.has("a")]
    await state.set("a", {"n": [1]})
    seen += [await state.get("a"), await state.has("a"), await state.keys()]
    seen += [await state.set_nx("a", 2), await state.set_nx("b", 3), await state.keys()]
    seen += [
        await state.incr("count"),
        await state.incr("count", 4),
        await state.incr("half", 0.5, default=1),
    ]
    seen += [
        await state.update("b", lambda old: old + 1),
        await state.update("new", lambda old: [old], "x"),
    ]
    seen += [
        await state.delete("a"),
        await state.delete("a"),
        await state.has("a"),
        await state.keys(),
    ]
    await state.set("none", None)
    seen += [await state.has("none"), await state.get("none", "default")]
    return seen


async def test_every_verb():
    """get, set, delete, keys, has, set_nx, incr and update, in one breath of the program."""
    async with opened() as runtime:
        status = await runtime.start(verbs())
        assert status.result == [
            *[None, "none", False],
            *[{"n": [1]}, True, ["a"]],
            *[False, True, ["a", "b"]],
            *[1, 5, 1.5],
            *[4, ["x"]],
            *[True, False, False, ["b", "count", "half", "new"]],
            *[True, None],
        ]


@everhold.program
async def remembers(ctx):
    before = await ctx.state.get("n", 0)
    await ctx.state.set("n", before + 1)
    await ctx.llm("go on?")
    return [before, await ctx.state.get("n")]


async def test_reads_are_journaled(tmp_path):
    """After a rebuild the program sees what it read then; what it reads now is of now."""
    async with opened(tmp_path) as runtime:
        first = await runtime.start(remembers())
        await runtime.start(remembers())
    async with opened(tmp_path) as runtime:
        assert (await runtime.answer(first.session_id, "x")).result == [0, 2]


@everhold.program
async def counts(ctx, times: int):
    for _ in range(times):
        await ctx.state("shared").incr("n")


@everhold.program
async def counted(ctx):
    return await ctx.state("shared").get("n")


@everhold.program
async def one_by_one(ctx, times: int):
    for _ in range(times):
        await ctx.state("shared").update("n", lambda old: old + 1, 0)
        await ctx.llm("next")


async def test_incr_is_atomic_between_two_processes(tmp_path):
    """Two runtimes on one file, 200 each: the total is exact."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:

        async def many(runtime):
            for _ in range(200):
                await runtime.run(counts(times=1))

        await asyncio.gather(many(one), many(two))
        assert await one.run(counted()) == 400


async def test_update_is_atomic_between_two_processes(tmp_path):
    """A read and a write of one step land together or are done again."""
    async with (
        opened(tmp_path, llm=lambda query: "ok") as one,
        opened(tmp_path, llm=lambda query: "ok") as two,
    ):
        await asyncio.gather(
            *(runtime.run(one_by_one(times=20)) for runtime in (one, two) for _ in range(2))
        )
        assert await one.run(counted()) == 80


async def test_what_a_refused_step_wrote_is_not_there():
    """A program that fails keeps its writes up to its last commit: the one that tells of the
    failure.
    """

    @everhold.program
    async def fails(ctx):
        await ctx.state("shared").set("n", 5)
        raise ValueError("after the write")

    async with opened() as runtime:
        await runtime.start(fails())
        assert await runtime.run(counted()) == 5


async def test_incr_of_what_is_no_number():
    """The program sees an error, and the value stays."""

    @everhold.program
    async def wrong(ctx):
        await ctx.state("shared").set("n", "text")
        try:
            await ctx.state("shared").incr("n")
        except everhold.AnswerFailed as error:
            return error.kind

    async with opened() as runtime:
        assert await runtime.run(wrong()) == "bad_value"
        assert await runtime.run(counted()) == "text"


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\0b"])
async def test_a_namespace_that_is_none(name):
    """Names that could be taken for a path are refused."""

    @everhold.program
    async def wrong(ctx):
        await ctx.state(name).set("k", 1)

    async with opened() as runtime:
        assert "Invalid namespace" in (await runtime.start(wrong())).error


async def test_reads_and_writes_of_one_breath_are_one_commit():
    """Their deliveries are in the journal, and one revision holds them all."""
    async with opened() as runtime:
        status = await runtime.start(remembers())
        record = await runtime.store.load(status.session_id)
        assert record.head.revision == 1
        assert [len(row.asked) for row in await rows(runtime, status.session_id)] == [1, 1, 1]


@everhold.program
async def beside(ctx):
    async def one(name):
        await ctx.state("beside").set(name, name)
        return await ctx.state("beside").incr("n")

    return sorted(await asyncio.gather(*(one(name) for name in "abc")))


async def test_tasks_beside_each_other():
    """Each sees what the others wrote before it."""
    async with opened() as runtime:
        assert await runtime.run(beside()) == [1, 2, 3]


async def test_a_program_that_reads_for_ever():
    """It is refused as spinning; nothing was started."""

    @everhold.program
    async def forever(ctx):
        while True:
            await ctx.state.get("x")

    async with opened() as runtime:
        with pytest.raises(everhold.EverholdError) as refused:
            await runtime.start(forever())
        assert refused.value.code == "spinning"
        assert await runtime.sessions() == []
