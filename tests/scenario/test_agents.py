"""Talking to an agent: inputs, receipts, waiting, steering, cancelling, branches and forks."""

import asyncio

import pytest

import everhold
from everhold.core.graph import extract_text
from everhold.core.message import user
from everhold.core.turn import TurnAnswered, TurnCancelled
from everhold.errors import BadArguments, KeyConflict, SessionEnded, UnknownNode
from everhold.stores.memory import MemoryStore
from tests.scenario.harness import die, dying, opened

CALLS = []


@everhold.tool(read_only=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    CALLS.append((a, b))
    return a + b


echo = everhold.Agent(instructions="Be brief.", name="echo")
adder = everhold.Agent(instructions="Add.", tools=[add], name="adder")


def last(query):
    """The words that were said last."""
    return extract_text(query.messages[-1]["content"])


def echoes(query):
    return f"You said: {last(query)}"


def sums(query):
    """Calls the tool for "2+3", then says what came of it."""
    said = query.messages[-1]
    if said["role"] == "tool":
        return f"It is {said['content'][0]['content']}."
    a, b = (int(number) for number in last(query).split("+"))
    return {"text": "Let me see.", "tool_calls": [{"name": "add", "input": {"a": a, "b": b}}]}


def words(nodes):
    return [extract_text(node.content) for node in nodes]


async def test_what_is_said_and_answered():
    """A turn: the input, the tool, the answer; asked for again with its id it is the same
    receipt.
    """
    CALLS.clear()
    async with opened(llm=sums) as runtime:
        session = await runtime.session(adder, "chat")
        turn = await session.send("2+3", id="first")
        assert (turn.text, turn.waiting, turn.value) == ("It is 5.", False, None)
        assert isinstance(turn.outcome, TurnAnswered)
        assert words(await session.history()) == ["2+3", "Let me see.", "", "It is 5."]
        assert [settled.input for settled in await session.turns()] == ["first"]
        assert await session.send("2+3", id="first") == turn
        assert CALLS == [(2, 3)]


@pytest.mark.parametrize(
    "content",
    ["Hello?", [{"type": "text", "text": "Hello?"}], user("Hello?")],
    ids=["text", "parts", "message"],
)
async def test_words_parts_and_messages_can_be_said(content):
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        assert (await session.send(content)).text == "You said: Hello?"


@pytest.mark.parametrize(
    "content",
    [
        "",
        [],
        [{"type": "text", "text": ""}],
        ["Hello?"],
        [{"text": "x"}],
        None,
        5,
        [{"type": "text", "text": 5}],
    ],
)
async def test_what_says_nothing_is_refused(content):
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        with pytest.raises(BadArguments):
            await session.send(content)
        assert await session.history() == []


async def test_a_session_is_of_one_agent():
    """What is no agent is refused, and so is another agent's session."""

    @everhold.program
    async def other(ctx):
        return 1

    async with opened(llm=echoes, replay=False) as runtime:
        session = await runtime.session(echo, "chat")
        with pytest.raises(BadArguments, match="not an Agent"):
            await runtime.session(other, "x")
        with pytest.raises(KeyConflict):
            await runtime.session(adder, "chat")
        with pytest.raises(BadArguments, match="is a session of"):
            await runtime.session(adder, session.id)
        assert (await runtime.session(echo, session.id)).id == session.id


async def test_other_words_under_the_same_id_are_a_conflict():
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one", id="i")
        with pytest.raises(KeyConflict):
            await session.send("two", id="i")
        with pytest.raises(BadArguments):
            await session.send("two", id="")
        assert len(await session.turns()) == 1


async def test_an_id_means_the_same_turn_while_the_first_still_runs():
    """Two handles say the same at once: one turn, one model call, one receipt for both; other words
    are refused.
    """
    asked, answer = asyncio.Event(), asyncio.Event()
    seen = []

    async def slow(query):
        seen.append(last(query))
        asked.set()
        await answer.wait()
        return "Done."

    async with opened(llm=slow) as runtime:
        one, two = [await runtime.session(echo, "chat") for _ in range(2)]
        first = asyncio.ensure_future(one.send("work", id="i"))
        await asked.wait()
        second = asyncio.ensure_future(two.send("work", id="i"))
        with pytest.raises(KeyConflict):
            await two.send("other work", id="i")
        answer.set()
        assert await first == await second
        assert seen == ["work"]
        assert len(await one.turns()) == 1


async def test_an_id_means_the_same_turn_in_another_process(tmp_path):
    """Both send before either has heard of the other; the conversation takes the input once, and
    both go on (D7).
    """
    async with opened(tmp_path, llm=echoes) as here:
        session = await here.session(echo, "chat")
        async with opened(tmp_path, clock=here.clock, llm=echoes, replay=False) as there:
            other = await there.session(echo, "chat")
            turns = await asyncio.gather(session.send("work", id="i"), other.send("work", id="i"))
            await other.send("more")
        assert turns[0] == turns[1]
        assert (await session.send("last")).text == "You said: last"
        assert words(await session.history())[::2] == ["work", "more", "last"]


async def test_the_same_input_said_twice_to_the_program_is_one_turn():
    """Also where two processes said it at the same moment: what comes second is ignored."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one", id="i")
        await runtime.signal(session.id, "input", {"id": "i", "content": "one"})
        await session.send("two")
        assert len(await session.turns()) == 2
        assert words(await session.history())[::2] == ["one", "two"]


async def test_inputs_that_come_during_a_turn_are_turns_of_their_own():
    async with opened(llm=sums) as runtime:
        session = await runtime.session(adder, "chat")
        turns = await asyncio.gather(*(session.send(f"1+{n}") for n in range(4)))
        assert [turn.text for turn in turns] == [f"It is {1 + n}." for n in range(4)]
        assert [settled.turn for settled in await session.turns()] == [1, 2, 3, 4]


async def test_what_was_said_survives_the_process(tmp_path):
    """A turn that was under way when the process died goes on in the next one, with the same id."""
    from everhold.testing.clock import ManualClock

    clock, asked = ManualClock(), asyncio.Event()

    async def never(query):
        asked.set()
        await asyncio.Event().wait()

    dead = await dying(tmp_path, clock, llm=never)
    session = await dead.session(echo, "chat")
    sending = asyncio.ensure_future(session.send("still there?", id="i"))
    await asked.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await die(dead, clock)
    async with opened(tmp_path, clock=clock, llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        assert (await session.send("still there?", id="i")).text == "You said: still there?"
        assert len(await session.turns()) == 1


async def test_a_turn_is_cancelled_and_the_conversation_goes_on():
    asked = asyncio.Event()

    async def slow(query):
        if last(query) == "slow":
            asked.set()
            await asyncio.Event().wait()
        return "Here."

    async with opened(llm=slow) as runtime:
        session = await runtime.session(echo, "chat")
        assert await session.cancel_turn() is None
        sending = asyncio.ensure_future(session.send("slow"))
        await asked.wait()
        cancelled = await session.cancel_turn("enough")
        assert (await sending) == cancelled
        assert cancelled.outcome == TurnCancelled("enough")
        assert (await session.send("quick")).text == "Here."
        assert words(await session.history()) == ["slow", "quick", "Here."]


async def test_whoever_cancels_a_turn_of_a_session_that_ends_meanwhile_is_told():
    """He does not wait for a turn that will never settle."""
    asked = asyncio.Event()

    async def slow(query):
        asked.set()
        await asyncio.Event().wait()

    async with opened(llm=slow) as runtime:
        session = await runtime.session(echo, "chat")
        sending = asyncio.ensure_future(session.send("slow"))
        await asked.wait()

        async def ended(said):
            await runtime.cancel(session, "over")

        session._command = ended
        for waiting in (session.cancel_turn("enough"), sending):
            with pytest.raises(SessionEnded):
                await asyncio.wait_for(waiting, 60)


async def test_going_back_hides_what_came_after_and_deletes_nothing():
    """Row 6: a branch hides its siblings; they can still be read."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        two = (await session.send("two")).settled.leaf
        await session.branch("1.1" if "1.1" in {n.id for n in await session.history()} else "1.2")
        await session.send("three")
        assert words(await session.history()) == [
            "one",
            "You said: one",
            "three",
            "You said: three",
        ]
        assert extract_text((await session.node(two)).content) == "You said: two"
        await session.branch(None)
        assert await session.history() == []
        with pytest.raises(UnknownNode):
            await session.branch("9.9")


async def test_a_fork_shares_the_turns_before_it():
    """Row 6: what both say afterwards is their own; what they share is there once."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        for said in ("one", "two"):
            await session.send(said)
        fork = await session.fork(1)
        whole = await session.fork(key="whole")
        nothing = await session.fork(0)
        await fork.send("other")
        assert words(await fork.history())[::2] == ["one", "other"]
        assert words(await whole.history())[::2] == ["one", "two"]
        assert await nothing.history() == []
        assert words(await session.history())[::2] == ["one", "two"]
        for wrong in (3, -1, "1", True):
            with pytest.raises(BadArguments, match=f"no turn {wrong}"):
                await session.fork(wrong)


async def test_a_fork_during_a_turn_is_one_of_the_turns_before():
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(query):
        if last(query) == "slow":
            asked.set()
            await answer.wait()
        return "Here."

    async with opened(llm=slow) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("quick")
        sending = asyncio.ensure_future(session.send("slow"))
        await asked.wait()
        fork = await session.fork()
        with pytest.raises(BadArguments, match="a turn is running"):
            await session.branch(None)
        answer.set()
        await sending
        assert words(await fork.history()) == ["quick", "Here."]
        assert (await fork.send("mine")).text == "Here."


async def test_send_waits_as_long_as_it_is_told():
    """Who says something need not wait for the turn, and what was said is kept (D8)."""
    answer = asyncio.Event()

    async def slow(query):
        await answer.wait()
        return "Here."

    async with opened(llm=slow) as runtime:
        session = await runtime.session(echo, "chat")
        turn = await session.send("slow", id="i", wait=0.01)
        assert turn.waiting
        assert turn.queries == ()
        answer.set()
        assert (await session.turn("i")).text == "Here."


asks = everhold.Agent(name="asks")


async def test_a_turn_that_waits_goes_on_when_it_is_answered():
    """Where no model is asked, the turn waits for whoever answers; `turn` waits for it to go on."""
    async with opened() as runtime:
        session = await runtime.session(asks, "chat")
        turn = await session.send("Hello?", id="i")
        assert turn.waiting
        waiting = asyncio.ensure_future(session.turn("i"))
        await runtime.answer(turn.queries[0], "Hello.")
        await asyncio.wait_for(waiting, 30)
        assert (await session.turn("i")).text == "Hello."


async def test_a_turn_that_another_process_cancels_is_not_waited_for(monkeypatch):
    """Whoever waits for a turn of this process looks now and then whether others have moved it."""
    monkeypatch.setattr("everhold.agents.session.CHILD_POLL_SECONDS", 0.05)
    store, asked = MemoryStore(), asyncio.Event()

    async def silent(query):
        asked.set()
        await asyncio.Event().wait()

    async with opened(on=store, llm=silent, recover=False) as here:
        waiting = asyncio.ensure_future((await here.session(echo, "chat")).send("Hello?"))
        await asked.wait()
        async with opened(on=store, recover=False) as there:
            await (await there.session(echo, "chat")).cancel_turn("enough")
        turn = await asyncio.wait_for(waiting, 30)
        assert turn.outcome == TurnCancelled("enough")
        await here.close(grace=0)


def test_a_conversation_without_async(tmp_path):
    """The blocking handle has the verbs of the async one."""
    with everhold.open_blocking(tmp_path / "app.db", llm=echoes) as runtime:
        session = runtime.session(echo, "chat")
        assert session.send("one").text == "You said: one"
        kinds = [event.kind for event in session.stream("two")]
        assert (kinds[0], kinds[-1]) == ("input", "settled")
        assert words(session.history())[::2] == ["one", "two"]
        assert words(session.fork(1).history())[::2] == ["one"]
        assert session.cancel_turn() is None
        first = next(session.events())
        assert first.kind == "input"
        assert session.agent is echo


def test_the_blocking_handle_has_every_verb():
    import inspect

    from everhold.blocking import BlockingSession

    def public(kind):
        members = inspect.getmembers(kind, callable)
        return {
            name: inspect.signature(one).parameters
            for name, one in members
            if not name.startswith("_")
        }

    mine, its = public(BlockingSession), public(everhold.AgentSession)
    assert mine.keys() == its.keys()
    assert {name for name in its if [*mine[name]] != [*its[name]]} == set()
