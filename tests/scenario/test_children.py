"""Programs that start others: inline with ctx.run, as sessions of their own with ctx.spawn."""

import asyncio

import pytest

import everhold
from everhold.errors import StillNeeded
from everhold.testing.clock import ManualClock
from tests.scenario.harness import opened, prompts


@everhold.program
async def child(ctx, name: str) -> str:
    answer = await ctx.llm(f"{name}?")
    if answer == "fail":
        raise ValueError("the child failed")
    return f"{name} {answer}"


@everhold.program
async def parent(ctx, names: list[str]):
    children = [ctx.spawn(child(name=name), title=name) for name in names]
    try:
        return await asyncio.gather(*children)
    except everhold.ChildFailed as error:
        return f"{error.state}: {error.error}"


async def children_of(runtime, session_id):
    """The first questions of the children, when all have asked."""
    while True:
        infos = await runtime.sessions(parent=session_id)
        states = [await runtime.status(info.session_id) for info in infos]
        if infos and all(state.state == "paused" for state in states):
            return {info.title: state.queries[0] for info, state in zip(infos, states, strict=True)}
        await asyncio.sleep(0.001)


async def test_a_childs_result():
    """The parent waits; the children are sessions of their own, and know their parent."""
    async with opened() as runtime:
        status = await runtime.start(parent(names=["a", "b"]))
        assert status.state == "paused" and "child session" in status.waiting_for[0]
        asked = await children_of(runtime, status.session_id)
        await runtime.answer(asked["b"], "2")
        await runtime.answer(asked["a"], "1")
        assert (await runtime.wait(status.session_id, 60)).result == ["a 1", "b 2"]


async def test_a_child_that_fails():
    """The parent sees ChildFailed with its words."""
    async with opened() as runtime:
        status = await runtime.start(parent(names=["a"]))
        asked = await children_of(runtime, status.session_id)
        await runtime.answer(asked["a"], "fail")
        assert (
            await runtime.wait(status.session_id, 60)
        ).result == "failed: ValueError: the child failed"


async def test_a_child_that_is_cancelled():
    """The parent sees that too."""
    async with opened() as runtime:
        status = await runtime.start(parent(names=["a"]))
        asked = await children_of(runtime, status.session_id)
        await runtime.cancel(asked["a"].session_id, "not wanted")
        assert (await runtime.wait(status.session_id, 60)).result == "was cancelled: not wanted"


async def test_cancelling_a_parent_reaches_its_children():
    """And their children."""

    @everhold.program
    async def grandparent(ctx):
        return await ctx.spawn(parent(names=["a", "b"]))

    async with opened() as runtime:
        status = await runtime.start(grandparent())
        while not (middle := await runtime.sessions(parent=status.session_id)):
            await asyncio.sleep(0.001)
        await children_of(runtime, middle[0].session_id)
        await runtime.cancel(status.session_id)
        while {info.state for info in await runtime.sessions()} != {"cancelled"}:
            await asyncio.sleep(0.001)
        assert await runtime.inbox() == []


async def test_a_child_survives_a_restart(tmp_path):
    """Parent and child go on in another process."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(parent(names=["a"]))
        asked = await children_of(runtime, status.session_id)
    async with opened(tmp_path) as runtime:
        await runtime.answer(asked["a"], "1")
        assert (await runtime.wait(status.session_id, 60)).result == ["a 1"]


async def test_a_child_whose_parent_was_not_in_memory(tmp_path):
    """A child's end waits for its parent, who takes it when somebody opens the file."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(parent(names=["a"]))
        asked = await children_of(runtime, status.session_id)
    async with opened(tmp_path, recover=False) as runtime:
        await runtime.answer(asked["a"], "1")
    async with opened(tmp_path) as runtime:
        assert (await runtime.wait(status.session_id, 60)).result == ["a 1"]


async def test_a_child_is_started_at_once(monkeypatch):
    """It does not wait until somebody looks around."""
    monkeypatch.setattr("everhold.stores.memory.LOOK_EVERY", 600)
    async with opened() as runtime:
        status = await runtime.start(parent(names=["a"]))
        async with asyncio.timeout(60):
            await children_of(runtime, status.session_id)


async def test_an_inline_child():
    """ctx.run is part of the same session: one journal, keys with a segment of their own."""

    @everhold.program
    async def whole(ctx):
        return [await ctx.run(child(name="x")), await ctx.run(child(name="y"))]

    async with opened() as runtime:
        first = await runtime.start(whole())
        second = await runtime.answer(first.queries[0], "1")
        assert [first.queries[0].key, second.queries[0].key] == ["0/0:0", "0/1:0"]
        assert (await runtime.answer(second.queries[0], "2")).result == ["x 1", "y 2"]
        assert len(await runtime.sessions()) == 1


@everhold.program
async def impatient(ctx):
    try:
        async with asyncio.timeout(60):
            return await ctx.spawn(child(name="slow"))
    except TimeoutError:
        return await ctx.llm("It took too long. Why?")


async def test_a_child_that_is_no_longer_waited_for():
    """The parent goes on after its timeout; the child stays a session of its own."""
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(impatient())
        await children_of(runtime, status.session_id)
        clock.advance(61)
        status = await runtime.wait(status.session_id, 60)
        assert prompts(status) == ["It took too long. Why?"]


async def test_a_child_that_is_no_longer_waited_for_is_cancelled_with_its_parent():
    """A cancel stops a session and its children, and a child stays one when its parent gives up
    waiting.
    """
    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        status = await runtime.start(impatient())
        await children_of(runtime, status.session_id)
        clock.advance(61)
        await runtime.wait(status.session_id, 60)
        await runtime.cancel(status.session_id)
        async with asyncio.timeout(60):
            while await runtime.sessions(state=("running", "paused")):
                await asyncio.sleep(0.001)
        assert await runtime.inbox() == []


async def test_a_child_that_its_parent_waits_for_cannot_be_deleted():
    """It would leave the parent waiting for ever: cancel it first."""
    async with opened() as runtime:
        status = await runtime.start(parent(names=["a"]))
        asked = await children_of(runtime, status.session_id)
        with pytest.raises(StillNeeded):
            await runtime.delete(asked["a"].session_id)


async def test_many_children():
    """A hundred side by side; their results come in the order they were started."""
    names = [str(number) for number in range(100)]
    async with opened(llm=lambda query: "ok") as runtime:
        assert await runtime.run(parent(names=names)) == [f"{name} ok" for name in names]


async def test_a_childs_result_is_read_as_its_program_says():
    """A dataclass that a child returns is one to its parent."""
    async with opened() as runtime:
        assert await runtime.run(asks_for_point()) == 3


from dataclasses import dataclass  # noqa: E402


@dataclass
class Point:
    x: int
    y: int


@everhold.program
async def point(ctx) -> Point:
    return Point(1, 2)


@everhold.program
async def asks_for_point(ctx) -> int:
    found = await ctx.spawn(point())
    return found.x + found.y


@everhold.program
async def races(ctx):
    helping = asyncio.ensure_future(ctx.delegate(child(name="helper"), title="helper"))
    await ctx.llm("quicker?")
    helping.cancel()
    await ctx.llm("and now?")


async def test_a_child_given_up_in_a_plain_step_is_cancelled(tmp_path):
    """An answer of a model that withdraws a child and leads to the next question also tells the
    child.
    """
    async with opened(tmp_path) as runtime:
        status = await runtime.start(races())
        (helper,) = (await children_of(runtime, status.session_id)).values()
        quicker = next(query for query in status.queries if query.prompt == "quicker?")
        assert prompts(await runtime.answer(quicker, "yes")) == ["and now?"]
        assert (await runtime.wait(helper.session_id, 60)).state == "cancelled"
