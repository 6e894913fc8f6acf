"""Watching a conversation through the public API: facts, live words, cursors, gaps, AG-UI."""

import asyncio

import pytest

import everhold
from everhold import Agent, program, tool
from everhold.agents import EventKind, extract_text
from everhold.agui import AgUi
from everhold.errors import BadArguments
from everhold.hooks import Confirm
from tests.scenario.talk import use

TURN = [
    "input",
    "message",
    "model_asked",
    "model_answered",
    "message",
    "tool_started",
    "tool_finished",
    "message",
    "model_asked",
    "model_answered",
    "message",
    "settled",
]


@tool(read_only=True)
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


watcher = Agent(tools=[weather], name="outside_watcher")
careful = Agent(
    tools=[weather], policy=lambda wanted: Confirm("it is metered"), name="outside_careful"
)


@program
async def told_once(ctx):
    """A program that is watched, too."""
    return await ctx.llm("Paris?")


def forecasts(query):
    if query.messages[-1]["role"] == "tool":
        return "Take a coat."
    return {"text": "I look.", **use("weather", _id="c1", city="Paris")}


def kinds(events):
    return [str(event.kind) for event in events]


def taken(events, count):
    return [event for event, _ in zip(events, range(count), strict=False)]


def test_a_turn_is_told_fact_by_fact(everhold):
    everhold.answers(forecasts)
    session = everhold.runtime.session(watcher, "chat")
    live = list(session.stream("How is Paris?", id="i"))
    assert kinds(live) == TURN
    said = [extract_text(event.node.content) for event in live if event.kind == "message"]
    assert said == ["How is Paris?", "I look.", "", "Take a coat."]
    assert (live[5].name, live[5].call, live[5].value) == ("weather", "c1", {"city": "Paris"})
    assert (live[6].call, live[6].value) == ("c1", "rain in Paris")
    assert live[-1].settled == session.turns()[0]


def test_a_stream_of_what_was_said_before_is_its_receipt(everhold):
    everhold.answers(forecasts)
    session = everhold.runtime.session(watcher, "chat")
    first = session.send("How is Paris?", id="i")
    (event,) = session.stream("How is Paris?", id="i")
    assert event.settled == first.settled and event.kind is EventKind.SETTLED


async def test_after_any_fact_the_rest_follows_exactly_once_in_any_process(tmp_path):
    url = f"sqlite:///{tmp_path}/app.db"
    async with everhold.open(url, llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        whole = [event async for event in session.stream("How is Paris?")]
    async with everhold.open(url, llm=None) as runtime:
        session = await runtime.session(watcher, "chat")
        for index in (0, 5, 10):
            rest = []
            async for event in session.events(whole[index].cursor):
                rest.append(event)
                if event.kind == "settled":
                    break
            assert rest == whole[index + 1 :]


async def test_a_cursor_that_makes_no_sense_or_is_of_another_session_is_refused():
    async with everhold.open("memory://", llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        whole = [event async for event in session.stream("How is Paris?")]
        cursor = whole[0].cursor
        other = await runtime.session(watcher, "other")
        for handle, wrong in ((session, "nonsense"), (other, cursor)):
            with pytest.raises(BadArguments):
                await anext(handle.events(wrong))


async def test_a_question_for_a_person_ends_a_stream_and_the_rest_is_followed():
    async with everhold.open("memory://", llm=forecasts) as runtime:
        session = await runtime.session(careful, "chat")
        events = [event async for event in session.stream("How is Paris?", id="i")]
        assert events[-1].kind == "asked" and "metered" in events[-1].text
        (query,) = (await session.turn("i")).queries
        await runtime.answer(query, True)
        rest = [event async for event in session.follow("i", events[-1].cursor)]
        assert kinds(rest)[0] == "replied" and kinds(rest)[-1] == "settled"


def test_a_conversation_is_told_in_the_words_of_ag_ui(everhold):
    everhold.answers(forecasts)
    session = everhold.runtime.session(watcher, "chat")
    agui = AgUi(session.id)
    lines = [line for event in session.stream("How is Paris?") for line in agui.of(event)]
    assert lines[0]["type"] == "RUN_STARTED" and lines[-1]["type"] == "RUN_FINISHED"
    assert {"TOOL_CALL_START", "TOOL_CALL_RESULT", "TEXT_MESSAGE_CONTENT"} <= {
        line["type"] for line in lines
    }


def test_steps_and_a_transcript_are_read_of_any_session(everhold):
    everhold.answers(["Rain."])
    everhold.run(told_once())
    (session,) = everhold.runtime.sessions()
    steps = everhold.runtime.steps(session.session_id)
    assert [query.prompt for step in steps for query in step.asked] == ["Paris?"]
    assert "Rain." in str(everhold.runtime.transcript(session.session_id))


async def test_words_of_tools_are_live():
    """Progress is heard while a tool runs, and is not kept."""
    from everhold.agents import ToolContext

    go = asyncio.Event()

    @tool
    async def slow(context: ToolContext) -> str:
        """Takes a moment."""
        context.progress("halfway", 1, 2)
        await go.wait()
        return "done"

    agent = Agent(tools=[slow], name="<locals>.slow")
    lines = [use("slow"), "Done."]
    async with everhold.open("memory://", llm=lambda query: lines.pop(0)) as runtime:
        session = await runtime.session(agent, "chat")
        heard = []
        async for event in session.stream("Go."):
            heard.append(event)
            if event.kind == "progress":
                go.set()
        assert [event.text for event in heard if event.kind == "progress"] == ["halfway (1/2)"]
        again = [event async for event in session.follow(heard[-1].settled.input)]
        assert "progress" not in kinds(again)
