"""An agent without a model: its questions wait, in full, for whoever answers."""

import asyncio
import json

import everhold
from everhold.core.tool import Confirm
from everhold.engine.session_view import is_stored_by_reference
from everhold.runtime import Runtime
from everhold.wire import query_json
from tests.scenario.harness import opened, store

PAID = []


@everhold.tool
def refund(order: str) -> str:
    """Give the money of an order back."""
    PAID.append(order)
    return f"refunded {order}"


def careful(wanted):
    return Confirm("it moves money")


helper = everhold.Agent(
    instructions="Help the customer.", tools=[refund], policy=careful, max_tokens=500, name="helper"
)
plain = everhold.Agent(name="plain")


async def asked(runtime, session):
    return (await runtime.status(session.id)).queries[-1]


def is_whole(query):
    assert query.kind == "llm"
    assert query.system == "Help the customer."
    assert query.messages == [
        {"role": "user", "content": [{"type": "text", "text": "Order 7 broke."}]}
    ]
    assert [tool["name"] for tool in query.options["tools"]] == ["refund"]
    assert "[user]\nOrder 7 broke." in query.prompt
    assert "- refund: Give the money of an order back. Input: {" in query.prompt
    assert '{"text": "…", "tool_calls": [{"name": "…", "input": {…}}]}' in query.prompt


async def test_the_question_is_shown_in_full_where_the_program_is():
    """By the turn, by status, by the inbox, by a snapshot, and on the wire."""
    async with opened() as runtime:
        session = await runtime.session(helper, "chat")
        turn = await session.send("Order 7 broke.")
        is_whole(turn.queries[0])
        assert turn.queries[0].max_tokens == 500
        is_whole(await asked(runtime, session))
        is_whole((await runtime.inbox(kind="llm"))[0])
        shown = await runtime.snapshot(session.id, pending_filter="full")
        assert "Order 7 broke." in next(
            one["prompt"] for one in shown["pending"] if "kind" not in one
        )
        wire = json.loads(json.dumps(query_json(turn.queries[0])))
        assert wire["messages"] and wire["system"] and wire["options"]["tools"]


async def test_the_question_is_shown_in_full_where_the_program_is_not(tmp_path):
    """A process that only has the database reads it from the journal."""
    async with opened(tmp_path) as runtime:
        session = await runtime.session(helper, "chat")
        await session.send("Order 7 broke.")
        elsewhere = Runtime(store(tmp_path), clock=runtime.clock, recover=False)
        async with elsewhere:
            is_whole(await asked(elsewhere, session))
            is_whole((await elsewhere.inbox(kind="llm"))[0])


async def test_the_journal_has_it_by_reference_only():
    async with opened() as runtime:
        session = await runtime.session(plain, "chat")
        await session.send("words that are stored once")
        deliveries = (await runtime.store.load(session.id)).deliveries
        (query,) = [
            query for delivery in deliveries for query in delivery.asked if query.kind == "llm"
        ]
        assert is_stored_by_reference(query)
        assert (query.prompt, query.messages) == ("", None)


async def test_whoever_answers_may_call_tools_and_speak_in_either_form():
    """JSON text calls a tool; a person approves it; the result is part of the next question; words
    end the turn.
    """
    PAID.clear()
    async with opened() as runtime:
        session = await runtime.session(helper, "chat")
        turn = await session.send("Order 7 broke.", id="i")
        calls = (
            '{"text": "One moment.", "tool_calls": [{"name": "refund", "input": {"order": "7"}}]}'
        )
        await runtime.answer(turn.queries[0], calls)
        turn = await session.turn("i")
        assert [query.kind for query in turn.queries] == ["approval"]
        assert PAID == []
        await runtime.answer(turn.queries[0], True, by={"user": "ada"})
        turn = await session.turn("i")
        assert PAID == ["7"]
        assert '(calls refund with {"order":"7"})' in turn.queries[0].prompt
        assert "(result: refunded 7)" in turn.queries[0].prompt
        await runtime.answer(turn.queries[0], "It is done.")
        assert (await session.turn("i")).text == "It is done."


async def test_nothing_is_said_while_a_person_is_asked():
    """The refusal says what to do; afterwards the conversation goes on."""
    async with opened() as runtime:
        session = await runtime.session(helper, "chat")
        turn = await session.send("Order 7 broke.", id="i")
        await runtime.answer(
            turn.queries[0], {"tool_calls": [{"name": "refund", "input": {"order": "8"}}]}
        )
        turn = await session.turn("i")
        for refused in (session.send("And?"), session.branch(None), session.compact()):
            try:
                await refused
            except everhold.EverholdError as error:
                assert error.code == "turn_waiting"
                assert "everhold inbox" in error.hint and "cancel_turn" in error.hint
            else:
                raise AssertionError("it was not refused")
        waiting = asyncio.ensure_future(session.turn("i"))
        await runtime.answer(turn.queries[0], False)
        await waiting
        turn = await session.turn("i")
        assert turn.queries[0].kind == "llm"


async def test_a_task_is_done_without_a_model():
    """`run` with a task: the questions wait, the last answer is the result."""
    async with opened() as runtime:
        status = await runtime.start(plain(task="Name a colour."))
        assert "[user]\nName a colour." in status.queries[0].prompt
        assert "Answer with plain words" in status.queries[0].prompt
        assert (await runtime.answer(status.queries[0], "Blue.")).result == "Blue."
