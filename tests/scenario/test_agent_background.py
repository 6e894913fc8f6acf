"""Agents with processes: the model starts programs in the background, goes on, and is woken by
them.
"""

import asyncio

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.agents.builtin_tools import MAX_ALIVE
from everhold.core.graph import extract_text
from everhold.core.intake import ItemState
from everhold.core.session import SessionState
from everhold.engine.children import make_wake_item
from everhold.errors import BadArguments
from everhold.schedules import Feed
from everhold.testing.clock import ManualClock
from tests.scenario.harness import die, dying, opened
from tests.scenario.talk import Scripted, told, use, uses


@everhold.program
async def bake(ctx, what: str, minutes: float = 0):
    """Bake something."""
    if minutes:
        await ctx.sleep(minutes * 60)
    return f"{what} is done"


@everhold.program
async def oven(ctx):
    """Waits to be told what to bake."""
    return await ctx.receive("what")


@everhold.program
async def chatty(ctx):
    await ctx.tell("half way")
    return "there"


cook = Agent(instructions="You cook.", background=[bake, oven, chatty], name="cook")
busy_cook = Agent(background=[oven], max_turns=MAX_ALIVE + 5, name="busy_cook")


async def turns(session, count):
    """The turns of a conversation once there are so many."""
    for _ in range(6000):
        found = await session.turns()
        if len(found) >= count:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError(found)


async def asleep(runtime, parent):
    """The one process of a conversation, once it waits for its timer."""
    for _ in range(6000):
        (child,) = await runtime.sessions(parent=parent)
        if child.due_at is not None:
            return child
        await asyncio.sleep(0.01)
    raise AssertionError(child)


def words(nodes):
    return [extract_text(node.content) for node in nodes if node.role in ("user", "assistant")]


async def test_a_process_goes_on_after_its_turn_and_wakes_the_conversation():
    """Row 34: the turn ends at once; an hour later there is another one, which nobody asked for."""
    clock = ManualClock()
    model = Scripted(
        use("process_start", program="bake", arguments={"what": "bread", "minutes": 60}),
        "Baking.",
        "Ah!",
    )
    async with opened(llm=model, clock=clock) as runtime:
        session = await runtime.session(cook, "kitchen")
        assert (await session.send("Bake bread.")).text == "Baking."
        child = await asleep(runtime, session.id)
        clock.advance(3601)
        found = await turns(session, 2)
        assert found[1].input == f"process:{child.session_id}:event:end"
        assert words(await session.history())[-2:] == [
            f"[from process {child.session_id}] bake completed: bread is done",
            "Ah!",
        ]
        (item,) = await session.intake(all=True)
        assert (item.kind, item.state) == ("wake", ItemState.COMPLETED)


async def test_the_model_waits_for_a_process():
    """Row 34: what was waited for does not wake the conversation once more."""
    clock = ManualClock()
    model = Scripted(
        use(
            "process_start",
            program="bake",
            arguments={"what": "bread", "minutes": 1},
            title="the bread",
        )
    )
    async with opened(llm=model, clock=clock) as runtime:
        session = await runtime.session(cook, "kitchen")
        await session.send("Bake.")
        child = await asleep(runtime, session.id)
        assert child.title == "the bread"
        model.lines = [use("process_wait", id=child.session_id, seconds=600), "Done."]
        waiting = asyncio.ensure_future(session.send("Wait for it."))
        for _ in range(600):
            await asyncio.sleep(0.01)
            if any(
                q.name == f"process:{child.session_id}"
                for q in (await runtime.status(session.id)).queries
            ):
                break
        clock.advance(61)
        await turns(session, 2)
        await waiting
        results = told(await session.history())
        assert results[-1] == {
            "id": child.session_id,
            "state": "completed",
            "value": "bread is done",
        }
        assert len(await session.turns()) == 2
        assert await session.intake(all=True) == []


async def test_the_model_lists_signals_and_cancels():
    """Row 34: it knows its processes by their ids."""
    model = Scripted(
        uses(("process_start", {"program": "oven"}), ("process_start", {"program": "oven"})),
        "Two ovens.",
    )
    async with opened(llm=model) as runtime:
        session = await runtime.session(cook, "kitchen")
        await session.send("Heat.")
        one, two = sorted(info.session_id for info in await runtime.sessions(parent=session.id))
        model.lines = [
            use("process_list"),
            uses(("process_signal", {"id": one, "name": "what", "value": "cake"})),
            use("process_cancel", id=two, reason="cold"),
            "Thanks.",
        ]
        await session.send("Look.")
        for _ in range(600):
            states = {
                info.session_id: info.state for info in await runtime.sessions(parent=session.id)
            }
            if states == {one: SessionState.COMPLETED, two: SessionState.CANCELLED}:
                break
            await asyncio.sleep(0.01)
        assert states == {one: SessionState.COMPLETED, two: SessionState.CANCELLED}
        results = told(await session.history())
        assert {each["id"] for each in results[2]} == {one, two}
        assert {each["state"] for each in results[2]} <= {"paused", "running"}
        assert results[3:5] == [{"sent": True}, {"cancelled": True}]


async def test_what_a_process_says_wakes_too():
    model = Scripted(use("process_start", program="chatty"), "Off it goes.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(cook, "kitchen")
        await session.send("Chat.")
        for _ in range(6000):
            heard = [line for line in words(await session.history()) if "chatty" in line]
            if len(heard) >= 1 and "there" in " ".join(heard):
                break
            await asyncio.sleep(0.01)
        said = " ".join(heard)
        assert said.index("chatty says: half way") < said.index("chatty completed: there")
        assert said.count("half way") == said.count("there") == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            use("process_start", program="bake", arguments={"wrong": 1}),
            "there is no argument 'wrong'",
        ),
        (use("process_start", program="bake", arguments={"what": 7}), "should be"),
        (use("process_wait", id="s-1"), "not a process of this session"),
        (use("process_cancel", id="s-1"), "not a process of this session"),
        (uses(("process_signal", {"id": "s-1", "name": "x"})), "not a process of this session"),
    ],
)
async def test_what_the_model_does_wrong_is_told_to_it(call, words):
    async with opened(llm=Scripted(call, "Sorry.")) as runtime:
        session = await runtime.session(cook, "kitchen")
        turn = await session.send("Go.")
        assert turn.text == "Sorry."
        (result,) = told(await session.history())
        assert words in str(result)
        assert await runtime.sessions(parent=session.id) == []


async def test_there_are_only_so_many_processes_at_a_time():
    starts = [("process_start", {"program": "oven"})] * (MAX_ALIVE + 1)
    model = Scripted(*(use(name, **given) for name, given in starts), "Enough.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(busy_cook, "kitchen")
        await session.send("Heat everything.")
        assert len(await runtime.sessions(parent=session.id, limit=1000)) == MAX_ALIVE
        assert "which is the limit" in str(told(await session.history())[-1])


async def test_cancelling_the_conversation_cancels_its_processes():
    """Row 34: nothing goes on that nobody wants any more."""
    model = Scripted(use("process_start", program="oven"), "Hot.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(cook, "kitchen")
        await session.send("Heat.")
        await runtime.cancel(session.id)
        (child,) = await runtime.sessions(parent=session.id)
        for _ in range(600):
            if (await runtime.status(child.session_id)).state == "cancelled":
                break
            await asyncio.sleep(0.01)
        assert (await runtime.status(child.session_id)).state == "cancelled"


async def test_the_parent_is_woken_once_although_its_process_died_between(tmp_path):
    """Row 34: the child ends where nobody looks after the parent; whoever comes next wakes it,
    once.
    """
    clock = ManualClock()
    model = Scripted(
        use("process_start", program="bake", arguments={"what": "bread", "minutes": 60}), "Baking."
    )
    first = await dying(tmp_path, clock, llm=model)
    session = await first.session(cook, "kitchen")
    await session.send("Bake bread.")
    await asleep(first, session.id)
    await die(first, clock)
    clock.advance(3700)
    second = await dying(tmp_path, clock, llm=Scripted("Never said."), recover=False)
    (child,) = await second.sessions(parent=session.id)
    await second.engine.moves.move(child.session_id)  # the child has ended; its parent has a letter
    assert (await second.status(child.session_id)).state == "completed"
    await die(second, clock)
    third = Scripted("Ah!", "Again?")
    async with opened(tmp_path, clock=clock, llm=third) as runtime:
        session = await runtime.session(cook, "kitchen")
        await turns(session, 2)
        assert words(await session.history())[-1] == "Ah!"
        assert await runtime.archive.verify() == []
    async with opened(tmp_path, clock=clock, llm=Scripted("Again?")) as runtime:
        session = await runtime.session(cook, "kitchen")
        assert len(await session.turns()) == 2


async def test_a_schedule_says_something_to_a_conversation():
    """Once for each moment; while nobody is there, it waits in the intake."""
    clock = ManualClock(1_700_000_000.0)
    async with opened(llm=Scripted("Hello.", "Morning!"), clock=clock) as runtime:
        session = await runtime.session(cook, "kitchen")
        await session.send("Hi.")
        await runtime.schedules.add("morning", "0 7 * * *", Feed("kitchen", value="Good morning."))
        clock.advance(86_400)
        await turns(session, 2)
        assert words(await session.history())[-2:] == ["Good morning.", "Morning!"]


async def test_what_is_no_program_cannot_be_started():
    with pytest.raises(BadArguments, match="not a program"):
        Agent(background=["bake"])
    with pytest.raises(BadArguments, match="have the name"):
        Agent(background=[bake, bake])


def test_a_long_end_is_cut():
    news = {
        "process": "s-1",
        "title": "novel",
        "event": "end",
        "state": "completed",
        "value": "x" * 10_000,
    }
    content = make_wake_item(news).body["content"]
    assert content.endswith("(cut: it has 10000 characters)")
    assert len(content) < 8_100


@everhold.program
async def waiter(ctx):
    return await ctx.approval("More soup?")


waiting_cook = Agent(instructions="You cook.", background=[waiter], name="waiting_cook")


async def test_a_turn_does_not_wait_for_what_a_process_asks_a_person():
    """The process asks by itself; whoever follows the conversation is told of its turns as ever."""
    model = Scripted(use("process_start", program="waiter"), "Served.", "Anything else?")
    async with opened(llm=model) as runtime:
        session = await runtime.session(waiting_cook, "kitchen")
        assert (await session.send("Serve.")).text == "Served."
        for _ in range(6000):
            questions = await runtime.inbox(kind="approval")
            if questions:
                break
            await asyncio.sleep(0.01)
        assert [question.prompt for question in questions] == ["More soup?"]
        assert (await session.send("And now?")).text == "Anything else?"
