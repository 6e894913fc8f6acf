"""Conversations as values, through the public API: what holds, frames by name, copies, and states
that are carried over.
"""

import msgspec
import pytest

import everhold
from everhold.agents import Stored
from everhold.errors import NotAnAgent, UnknownFrame, UnknownSession

bot = everhold.Agent(instructions="Be brief.", name="values_bot", top_p=0.5)


@everhold.program
async def no_agent(ctx):
    return await ctx.input("Well?")


async def model(query):
    return f"answer {len(query.messages)}"


@pytest.fixture(params=["memory", "sqlite"])
def where(request, tmp_path):
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/values.db"


def texts(messages):
    return [block["text"] for message in messages for block in message["content"]]


async def test_views_show_the_options_and_the_model_that_hold(where):
    """view, snapshot and stored: the session's options over the agent's, of the current frame."""
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(bot, "one")
        await session.configure({"temperature": 0.25, "model": "openai:gpt-5"})
        for seen in (await session.view(), await session.snapshot(), await session.stored()):
            assert seen.model == "openai:gpt-5"
            assert seen.options == await session.options()
            assert seen.options == {"top_p": 0.5, "temperature": 0.25, "model": "openai:gpt-5"}


async def test_a_frame_is_found_by_its_name(where):
    """List, messages, options: by name or id; the newest of a name; an unknown one is an error."""
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(bot, "one")
        await session.send("x")
        await session.configure({"temperature": 0.1})
        opened = await session.continue_as("planner", "Plan.")
        await session.configure({"temperature": 0.9})
        assert [frame.name for frame in await session.frames()] == ["initial", "planner"]
        assert (await session.view()).frame_name == "planner"
        assert [frame["name"] for frame in (await session.snapshot()).frames][-1] == "planner"
        for named in ("planner", opened.outcome.frame):
            assert texts(await session.messages(named)) == ["Plan."]
            assert (await session.options(named))["temperature"] == 0.9
        assert (await session.options("initial"))["temperature"] == 0.1
        await session.continue_as("worker", ["Work.", {"role": "system", "content": "Hard."}])
        await session.continue_as("planner", {"role": "user", "content": "Plan again."})
        assert texts(await session.messages("planner")) == ["Plan again."]
        assert texts(await session.messages("worker")) == ["Work.", "Hard."]
        for verb in (session.messages, session.options):
            with pytest.raises(UnknownFrame, match=r"no frame 'nonsense'.*'worker'") as refused:
                await verb("nonsense")
            assert refused.value.code == "unknown_frame"


async def test_compact_says_why_it_did_nothing(where):
    """False, with the reason; the receipt has it too."""
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(bot, "one")
        done = await session.compact()
        assert not done
        assert done.why == "the agent has no plugin that compacts, such as Compaction"
        assert (await session.turns())[-1].outcome == done
        same = (await session.continue_as("initial", "x")).outcome
        assert (same.frame, same.why) == (None, "'initial' is the current frame")


async def test_what_a_model_is_given_changes_no_conversation():
    """A function that answers for the model gets copies of the messages."""
    seen = []

    def careless(query):
        seen.append([message["content"][0]["text"] for message in query.messages])
        for message in query.messages:
            message["content"][0]["text"] = "FORGED"
        next(reversed(query.messages))["content"][0]["text"] = "FORGED"
        query.messages.pop()["role"] = "FORGED"
        return "Said."

    agent = everhold.Agent(name="values_careless")
    async with everhold.open("memory://", llm=careless) as runtime:
        session = await runtime.session(agent, "one")
        await session.send("One.")
        await session.send("Two.")
    assert seen == [["One."], ["One.", "Said.", "Two."]]


async def test_what_a_host_is_given_changes_no_session(where):
    """messages, history, node, turns, options, view, stored and a turn's value are copies."""
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(bot, "one")
        turn = await session.send([{"type": "text", "text": "true"}])
        await session.configure({"prompt": {"add": {"guidance": "calm"}}})
        before = (await session.stored()).json()

        def forge(value):
            if isinstance(value, dict):
                for name in list(value):
                    forge(value[name])
                    value[name] = "FORGED"
                value["forged"] = True
            elif isinstance(value, list):
                for part in value:
                    forge(part)
                value.append("FORGED")

        stored = await session.stored()
        view = await session.view()
        forge(await session.messages())
        forge([node.content for node in await session.history()])
        forge((await session.node(turn.settled.leaf)).content)
        forge(await session.options())
        forge([view.messages, view.options, view.last.outcome.options])
        forge([stored.options, stored.frame_options, *(node.content for node in stored.nodes)])
        (await session.turns())[0].taken.append("forged")
        (await session.conversation()).graph.nodes.clear()
        turn.settled.taken.append("forged")
        assert (await session.stored()).json() == before
        assert "FORGED" not in str(await session.messages())


async def test_a_stored_state_carries_the_options_of_its_frames(where):
    """stored and apply: options of the session and of each frame, once, also after a replay."""
    async with everhold.open(where, llm=model) as runtime:
        one = await runtime.session(bot, "one")
        await one.send("x")
        await one.configure({"temperature": 0.25})
        await one.continue_as("planner", "Plan.")
        await one.configure({"temperature": 0.75, "model": "m:x"})
        kept = Stored.read((await one.stored()).json())
        assert kept.frame_options == [{"temperature": 0.25}, {"temperature": 0.75, "model": "m:x"}]
        two = await runtime.session(bot, "two")
        turn = await two.apply(kept, by={"user": "maria"})
        assert await two.options() == await one.options()
        assert await two.options("initial") == await one.options("initial")
        assert (turn.outcome.source, turn.outcome.by) == (one.id, {"user": "maria"})
        assert turn.outcome.verified
        assert await two.apply(kept) is None
        await one.configure({"temperature": 0.5})  # the options alone differ
        assert (await two.apply(await one.stored())).outcome.nodes == 0
        fork = await two.fork()
        assert await fork.options() == await two.options() == await one.options()
        session_id = two.id
    if where != "memory://":
        async with everhold.open(where, llm=model) as runtime:
            two = await runtime.session(bot, session_id)
            await two.send("y")
            assert (await two.options())["temperature"] == 0.5


async def test_a_forged_state_is_marked(where):
    """A state that this store does not have is applied as what it is: not verified, and by whom."""
    async with everhold.open(where, llm=model) as runtime:
        one, two = await runtime.session(bot, "one"), await runtime.session(bot, "two")
        await one.send("x")
        kept = await one.stored()
        nodes = [
            msgspec.structs.replace(node, content="forged") if node.kind == "message" else node
            for node in kept.nodes
        ]
        forged = msgspec.structs.replace(kept, nodes=nodes)
        turn = await two.apply(forged, by={"user": "eve"})
        assert (turn.outcome.verified, turn.outcome.by) == (False, {"user": "eve"})
        unknown = msgspec.structs.replace(kept, session_id="s-unknown")
        assert not (await two.apply(unknown)).outcome.verified
        assert (await two.turns())[0].outcome.by == {"user": "eve"}
        broken = [msgspec.structs.replace(node, content="no prompt") for node in kept.nodes]
        refused = await two.apply(msgspec.structs.replace(kept, nodes=broken))
        assert refused.outcome.code == "damaged_graph"


async def test_a_conversation_is_read_without_its_agent(where):
    """It begins nothing; an unknown name and a plain program are typed errors."""
    async with everhold.open(where, llm=model) as runtime:
        for name in ("nobody", "s-0000000000000000-000000000000000000000000"):
            with pytest.raises(UnknownSession):
                await runtime.conversation(name)
        assert await runtime.sessions() == []
        status = await runtime.start(no_agent())
        with pytest.raises(NotAnAgent):
            await runtime.conversation(status.session_id)
        session = await runtime.session(bot, "one")
        await session.send("x")
        await session.configure({"temperature": 0.25, "model": "m:x"})
        seen = await runtime.conversation("one")
        assert texts(await seen.messages()) == texts(await session.messages())
        view = await seen.view()
        assert (view.agent, view.model) == (bot.ref, "m:x")
        assert view.options == {"temperature": 0.25, "model": "m:x"}
        assert (await seen.snapshot()).nodes == (await session.snapshot()).nodes
        await session.enqueue("later", key="k", available_at=9e9)
        assert [item.id for item in await seen.intake()] == ["k"]
        assert [one.outcome for one in await seen.cancel("k")] == ["cancelled"]
        before = await seen.revision()
        await session.send("y")
        assert await seen.revision() > before
        assert len(await seen.history()) == 4
