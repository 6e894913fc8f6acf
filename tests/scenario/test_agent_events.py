"""Watching a conversation: facts, words while they are said, cursors, gaps, and the same in the
words of AG-UI.
"""

import asyncio

import msgspec
import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter

import everhold
from everhold.agents.events import LIVE_BUFFER_SIZE, Event, EventKind
from everhold.agui import AgUi
from everhold.core.graph import extract_text
from everhold.core.tool import Confirm
from everhold.errors import BadArguments
from everhold.models import Answerer
from everhold.ports.stream import Delta, DeltaKind, publish_delta
from tests.scenario.harness import opened

CHECKED = TypeAdapter(AgUiEvent)
LIVE = {
    EventKind.TEXT,
    EventKind.THINKING,
    EventKind.TOOL_CALL,
    EventKind.RESET,
    EventKind.PROGRESS,
}


@everhold.tool(read_only=True)
def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


@everhold.tool
def refund(order: str) -> str:
    """Give the money back."""
    return f"refunded {order}"


def careful(wanted):
    return Confirm("it moves money")


echo = everhold.Agent(name="echo")
watcher = everhold.Agent(tools=[weather], name="watcher")
payer = everhold.Agent(tools=[refund], policy=careful, name="payer")


class Speaker(Answerer):
    """A model that speaks word by word, and waits before its last word until it may go on."""

    def __init__(self, sentence="It rains in Paris"):
        self.words, self.go, self.spoken = sentence.split(), asyncio.Event(), asyncio.Event()

    async def answer(self, query, session_id):
        for word in self.words[:-1]:
            publish_delta(session_id, query.id, Delta(DeltaKind.TEXT, f"{word} "))
        self.spoken.set()
        await self.go.wait()
        publish_delta(session_id, query.id, Delta(DeltaKind.TEXT, self.words[-1]))
        publish_delta(session_id, query.id, Delta(DeltaKind.END))
        return " ".join(self.words)


async def taken(events, count=None, until=None):
    """The next so many events, or those up to the first of a kind."""
    found = []
    async for event in events:
        found.append(event)
        if len(found) == count or event.kind == until:
            return found
    return found


async def here(runtime, session):
    """The cursor after all that has happened."""
    watch = session._watch()
    await watch.here()
    return watch.cursor


def kinds(events):
    return [str(event.kind) for event in events]


def forecasts(query):
    if query.messages[-1]["role"] == "tool":
        return "Take a coat."
    return {
        "text": "I look.",
        "tool_calls": [{"id": "c1", "name": "weather", "input": {"city": "Paris"}}],
    }


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


async def test_a_turn_is_told_fact_by_fact():
    """From the beginning, whoever asks and whenever; each with the words it stands for."""
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        live = [event async for event in session.stream("How is Paris?", id="i")]
        assert kinds(live) == TURN
        assert await taken(session.events(), until="settled") == live
        assert live[0].text == "i"
        said = [extract_text(event.node.content) for event in live if event.kind == "message"]
        assert said == ["How is Paris?", "I look.", "", "Take a coat."]
        started, finished = live[5], live[6]
        assert (started.name, started.call, started.value) == ("weather", "c1", {"city": "Paris"})
        assert (finished.name, finished.call, finished.value) == ("weather", "c1", "rain in Paris")
        assert live[-1].settled.input == "i"


async def test_a_stream_begins_with_its_own_input():
    """Also after turns that came thick and fast."""
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        await asyncio.gather(*(session.send(f"How is {n}?") for n in range(3)))
        for _ in range(3):
            assert kinds([event async for event in session.stream("And now?")]) == TURN


async def test_a_stream_of_what_was_said_before_is_its_receipt():
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        first = await session.send("How is Paris?", id="i")
        (event,) = [event async for event in session.stream("How is Paris?", id="i")]
        assert event.settled == first.settled


async def test_after_any_fact_the_rest_follows_exactly_once(tmp_path):
    """Row 12 and §9: also in another process, which has only the database."""
    async with opened(tmp_path, llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        for said in ("How is Paris?", "And Rome?"):
            await session.send(said)
        whole = await taken(session.events(), 24)
        cursors = [event.cursor for event in whole]
        assert len(set(cursors)) == 24
    async with opened(tmp_path, llm=forecasts, replay=False) as runtime:
        session = await runtime.session(watcher, "chat")
        for index in (0, 1, 3, 7, 11, 12, 20, 22):
            assert await taken(session.events(cursors[index]), 23 - index) == whole[index + 1 :]


async def test_words_are_heard_while_they_are_said():
    """Live words come before the fact that settles them; a watcher who comes later hears the fact
    alone.
    """
    speaker = Speaker()
    async with opened(llm=speaker) as runtime:
        session = await runtime.session(echo, "chat")
        cursor = await here(runtime, session)
        sending = asyncio.ensure_future(session.send("Well?"))
        heard = session.events(cursor)
        before = await taken(heard, 6)
        assert kinds(before) == ["input", "message", "model_asked", "text", "text", "text"]
        speaker.go.set()
        after = await taken(heard, until="settled")
        said = "".join(event.text for event in (*before, *after) if event.kind == "text")
        assert said == "It rains in Paris"
        assert kinds(after)[-3:] == ["model_answered", "message", "settled"]
        await sending
        late = await taken(session.events(), until="settled")
        assert not LIVE & {event.kind for event in late}


async def test_live_words_are_told_again_to_one_who_comes_back():
    """After the cursor of a live word, the words that follow it come exactly once."""
    speaker = Speaker()
    async with opened(llm=speaker) as runtime:
        session = await runtime.session(echo, "chat")
        cursor = await here(runtime, session)
        sending = asyncio.ensure_future(session.send("Well?"))
        first = await taken(session.events(cursor), 4)  # up to the first word, then the line breaks
        await speaker.spoken.wait()
        again = await taken(session.events(first[-1].cursor), 2)
        assert [event.text for event in (first[-1], *again)] == ["It ", "rains ", "in "]
        speaker.go.set()
        rest = await taken(session.events(again[-1].cursor), until="settled")
        assert "gap" not in kinds(rest)
        await sending


@pytest.mark.parametrize(
    ("lost", "reason"), [("trimmed", "trimmed"), ("another process", "unavailable")]
)
async def test_live_words_that_are_lost_are_a_gap_and_then_a_view(lost, reason):
    speaker = Speaker()
    async with opened(llm=speaker) as runtime:
        session = await runtime.session(echo, "chat")
        cursor = await here(runtime, session)
        sending = asyncio.ensure_future(session.send("Well?"))
        word = (await taken(session.events(cursor), 4))[-1]
        if lost == "trimmed":
            for _ in range(LIVE_BUFFER_SIZE + 5):
                publish_delta(session.id, word.query, Delta(DeltaKind.TEXT, "blah "))
        else:
            runtime._conversations.close()
        events = session.events(word.cursor)
        gap, view = await taken(events, 2)
        assert (gap.kind, gap.text, gap.cursor) == ("gap", reason, word.cursor)
        assert view.kind == "view"
        assert [extract_text(message["content"]) for message in view.value["pending"]] == ["Well?"]
        speaker.go.set()
        rest = [event for event in await taken(events, until="settled") if event.kind not in LIVE]
        assert kinds(rest) == ["model_answered", "message", "settled"]
        assert await taken(session.events(view.cursor), 3) == rest
        await sending


async def test_a_watcher_who_is_too_slow_hears_the_newest():
    speaker = Speaker()
    async with opened(llm=speaker) as runtime:
        session = await runtime.session(echo, "chat")
        events = session.events(await here(runtime, session))
        sending = asyncio.ensure_future(session.send("Well?"))
        asked = (await taken(events, until="model_asked"))[-1]
        await speaker.spoken.wait()
        for number in range(LIVE_BUFFER_SIZE * 2):
            publish_delta(session.id, asked.query, Delta(DeltaKind.TEXT, str(number)))
        heard = await taken(events, LIVE_BUFFER_SIZE + 3)  # three words of the speaker came in time
        assert heard[-1].text == str(LIVE_BUFFER_SIZE * 2 - 1)
        speaker.go.set()
        await sending
        await events.aclose()


@pytest.mark.parametrize(
    "cursor", ["", "e1", "e1.s.x.y", "e2.s.1.1", "e1.s-other.1.1", "e1.s.1.1.1", 7]
)
async def test_a_cursor_that_makes_no_sense_is_refused(cursor):
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        with pytest.raises(BadArguments, match="cursor"):
            await anext(session.events(cursor))


async def test_a_question_for_a_person_ends_the_stream_and_its_answer_is_a_fact():
    def pays(query):
        if query.messages[-1]["role"] == "tool":
            return "Done."
        return {"tool_calls": [{"id": "c1", "name": "refund", "input": {"order": "7"}}]}

    async with opened(llm=pays) as runtime:
        session = await runtime.session(payer, "chat")
        before = [event async for event in session.stream("Refund 7.", id="i")]
        assert (before[-1].kind, before[-1].name) == ("asked", "approval")
        assert "refund" in before[-1].text
        await runtime.answer(session.id, True, query_id=before[-1].query)
        after = await taken(session.events(before[-1].cursor), until="settled")
        assert after[0].kind == "replied"
        assert (after[0].query, after[0].value) == (before[-1].query, True)


async def test_the_end_of_a_session_is_the_last_event():
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        await runtime.cancel(session.id, "enough")
        assert kinds([event async for event in session.events()]) == ["ended"]


async def test_what_is_moved_and_framed_is_told():
    async with opened(llm=lambda query: "x") as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        await session.branch(None)
        await session.reset()
        assert kinds(await taken(session.events(), 9))[6:] == ["moved", "frame", "settled"]


# The same in the words of AG-UI


def told(session, events):
    """Each event of AG-UI, checked by its own library."""
    teller = AgUi(session.id)
    lines = [line for event in events for line in teller.of(event)]
    for line in lines:
        CHECKED.validate_python(line)
    return lines


def types(lines):
    return [line["type"] for line in lines]


async def test_a_turn_in_the_words_of_ag_ui():
    async with opened(llm=forecasts) as runtime:
        session = await runtime.session(watcher, "chat")
        lines = told(session, [event async for event in session.stream("How is Paris?")])
        assert types(lines) == [
            "RUN_STARTED",
            "STEP_STARTED",
            "STEP_FINISHED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
            "TOOL_CALL_RESULT",
            "STEP_STARTED",
            "STEP_FINISHED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
        assert lines[9]["content"] == "rain in Paris"
        assert lines[0] == {
            "type": "RUN_STARTED",
            "threadId": session.id,
            "runId": "turn-1",
            "timestamp": 1700000000000,
        }


async def test_streamed_words_are_told_once_in_the_words_of_ag_ui():
    """Text, thinking and a tool call are parts that begin and end; a reset retracts them."""

    class Model(Answerer):
        async def answer(self, query, session_id):
            say = [
                Delta(DeltaKind.THINKING, "Hm.", 0),
                Delta(DeltaKind.TEXT, "Wro", 1),
                Delta(DeltaKind.RESET),
                Delta(DeltaKind.TEXT, "Right", 0),
                Delta(DeltaKind.TEXT, ".", 0),
                Delta(DeltaKind.TOOL, "", 1, "c1", "weather"),
                Delta(DeltaKind.TOOL, '{"city":', 1, "c1"),
                Delta(DeltaKind.END),
            ]
            for delta in say if query.messages[-1]["role"] == "user" else ():
                publish_delta(session_id, query.id, delta)
            await asyncio.sleep(0.05)
            if query.messages[-1]["role"] == "tool":
                return "Bye."
            call = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}}
            return {"content": [{"type": "text", "text": "Right."}, call]}

    async with opened(llm=Model()) as runtime:
        session = await runtime.session(watcher, "chat")
        lines = told(session, [event async for event in session.stream("How is Rome?")])
        assert types(lines)[2:18] == [
            "REASONING_START",
            "REASONING_MESSAGE_START",
            "REASONING_MESSAGE_CONTENT",
            "REASONING_MESSAGE_END",
            "REASONING_END",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "CUSTOM",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "TOOL_CALL_START",
            "TOOL_CALL_ARGS",
            "TOOL_CALL_END",
        ]
        assert [line["delta"] for line in lines if line["type"] == "TEXT_MESSAGE_CONTENT"] == [
            "Wro",
            "Right",
            ".",
            "Bye.",
        ]
        assert lines[10]["name"] == "everhold.reset"


async def test_outcomes_questions_and_views_in_the_words_of_ag_ui():
    """A failure is an error, a cancel an outcome, a question for a person a custom event, a view a
    snapshot.
    """

    def fails(query):
        if query.messages[-1]["role"] == "user" and "fail" in extract_text(
            query.messages[-1]["content"]
        ):
            raise everhold.AnswerFailed("no model today")
        return {"tool_calls": [{"id": "c1", "name": "refund", "input": {"order": "7"}}]}

    async with opened(llm=fails) as runtime:
        session = await runtime.session(payer, "chat")
        failed = told(session, [event async for event in session.stream("fail")])
        assert (failed[-1]["type"], "no model today" in failed[-1]["message"]) == (
            "RUN_ERROR",
            True,
        )
        asked = told(session, [event async for event in session.stream("pay")])
        assert (asked[-1]["type"], asked[-1]["name"]) == ("CUSTOM", "everhold.asked")
        await session.cancel_turn()
        first = await taken(session.events(), until="settled")
        events = [*first, *await taken(session.events(first[-1].cursor), until="settled")]
        assert told(session, events)[-1]["outcome"] == {"type": "cancelled"}
        view = Event(EventKind.VIEW, "", value=msgspec.to_builtins(await session.view()))
        (snapshot,) = told(session, [view])
        assert [message["role"] for message in snapshot["messages"]] == [
            "user",
            "user",
            "assistant",
            "tool",
        ]
        assert snapshot["messages"][2]["toolCalls"][0]["function"] == {
            "name": "refund",
            "arguments": '{"order":"7"}',
        }
