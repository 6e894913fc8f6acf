"""Frames: a context that begins anew, with everything before it still there; and the options that
hold in it.
"""

import pytest

from everhold.agents.agent import Agent
from everhold.core.graph import INITIAL_FRAME, extract_text
from everhold.core.query import Usage
from everhold.core.turn import FrameOpened
from everhold.errors import BadArguments, TurnWaiting
from everhold.hooks import ContinueAs, NewFrame, Plugin, SetOptions
from everhold.ports.answerer import Answer
from everhold.ports.program import program
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted

USED = Usage(prompt_tokens=10, completion_tokens=5, model="m")


class Short(Plugin):
    name = "short"

    def before_compact(self, moment):
        return NewFrame(["In short: hello."], keep=1) if moment.messages else None


class Onward(Plugin):
    name = "onward"

    def before_checkpoint(self, moment):
        last = extract_text(moment.messages[-1]["content"])
        return ContinueAs("second", "Do the second part.") if last == "First part done." else None


class Born(Plugin):
    name = "born"

    def before_session(self, moment):
        return SetOptions({"temperature": 0.1 if moment.root else 0.9})


short = Agent(plugins=[Short()], name="frames_short")
bare = Agent(name="frames_bare", top_p=0.5)
onward = Agent(plugins=[Onward()], name="frames_onward")
born = Agent(plugins=[Born()], name="frames_born")


@program
async def parent(ctx):
    return await ctx.spawn(born(task="Go."))


def words(messages):
    return [extract_text(message["content"]) for message in messages]


class Counting(Scripted):
    """A model that says what was prepared, and which options it was given."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.options = []

    async def __call__(self, query):
        self.options.append(
            {name: value for name, value in (query.options or {}).items() if name != "tools"}
        )
        return Answer(await super().__call__(query), USED)


async def test_compaction_opens_a_frame_and_keeps_the_one_before():
    """Row 7: one frame is current; what came before is readable; the model sees the new beginning
    only.
    """
    model = Counting("Hi.", "Bye.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(short, "compact")
        await session.send("Hello.")
        assert await session.compact()
        frames = await session.frames()
        assert [frame.reason for frame in frames] == [INITIAL_FRAME, "compaction"]
        assert frames[1].previous == INITIAL_FRAME
        assert words(await session.messages()) == ["In short: hello.", "Hi."]
        assert words(await session.messages(INITIAL_FRAME)) == ["Hello.", "Hi."]
        await session.send("And?")
        assert words(model.shown[-1]) == ["In short: hello.", "Hi.", "And?"]


async def test_the_id_of_a_frame_is_where_it_was_opened():
    """Row 18: two sessions that do the same open frames of the same id: no dice (D1)."""
    found = []
    for name in ("one", "two"):
        async with opened(llm=Scripted("Hi.")) as runtime:
            session = await runtime.session(short, name)
            await session.send("Hello.")
            await session.compact()
            found.append([frame.id for frame in await session.frames()])
    assert found[0] == found[1] == [INITIAL_FRAME, "2.0"]


async def test_without_anybody_who_compacts_nothing_changes():
    """Row 18: no plugin with a new beginning: False, and the frame stays."""
    async with opened(llm=Scripted("Hi.")) as runtime:
        session = await runtime.session(bare, "none")
        await session.send("Hello.")
        assert not await session.compact()
        assert [frame.id for frame in await session.frames()] == [INITIAL_FRAME]
        assert [settled.outcome for settled in await session.turns()][1] == FrameOpened(
            "compaction", why="the agent has no plugin that compacts, such as Compaction"
        )


async def test_a_frame_of_no_name_or_the_same_is_not_opened():
    """Row 7: blank, or the name or the id of the current frame: nothing happens."""
    async with opened(llm=Scripted("Hi.")) as runtime:
        session = await runtime.session(bare, "same")
        first = await session.continue_as("work", ["Begin."])
        for name in ("", "  ", "work", first.outcome.frame):
            assert (await session.continue_as(name, ["Again."])).outcome.frame is None
        assert len(await session.frames()) == 2
        assert words(await session.messages()) == ["Begin."]


async def test_a_frame_of_the_initial_name_is_the_initial_frame():
    """Row 7: before any other was opened, `initial` is the current one."""
    async with opened() as runtime:
        session = await runtime.session(bare, "initial")
        assert (await session.continue_as(INITIAL_FRAME)).outcome.frame is None


async def test_a_turn_may_go_on_as_something_else():
    """Row 7: a plugin opens the next frame within a turn; its task is what the model sees."""
    model = Scripted("First part done.", "Second part done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(onward, "onward")
        turn = await session.send("Do it.")
        assert (turn.text, turn.settled.rounds) == ("Second part done.", 2)
        assert words(model.shown[1]) == ["Do the second part."]
        assert [frame.reason for frame in await session.frames()] == [INITIAL_FRAME, "continue_as"]


async def test_a_turn_does_not_go_on_as_something_else_for_ever():
    """Row 7: sixteen frames in one turn are enough; more is a failure with a code."""

    class Restless(Plugin):
        name = "restless"

        def before_checkpoint(self, moment):
            return ContinueAs(f"part {moment.round}", "Go on.")

    agent = Agent(plugins=[Restless()], max_turns=30, name="<locals>.restless")
    async with opened(llm=Scripted(*["On."] * 30)) as runtime:
        session = await runtime.session(agent, "restless")
        assert (await session.send("Go.")).outcome.code == "bad_arguments"
        assert len(await session.frames()) == 17


async def test_reset_begins_from_nothing_and_loses_nothing():
    """Row 7: the model sees nothing of before; history, usage and options stay (D6)."""
    model = Counting("Hi.", "New.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(bare, "reset")
        await session.configure({"temperature": 0.3})
        await session.send("Hello.")
        spent = (await session.usage()).total
        await session.reset()
        assert await session.messages() == []
        assert [extract_text(node.content) for node in await session.history()] == ["Hello.", "Hi."]
        assert (await session.usage()).total == spent
        assert (await session.options())["temperature"] == 0.3
        await session.send("Who am I?")
        assert words(model.shown[-1]) == ["Who am I?"]


async def test_messages_that_are_none_open_no_frame():
    """Bad input is refused before anything is said."""
    async with opened() as runtime:
        session = await runtime.session(bare, "bad")
        with pytest.raises(BadArguments):
            await session.continue_as("x", [{"role": "tool", "content": "no"}])
        assert await session.turns() == []


# ---- options


async def test_options_hold_in_the_current_frame_and_in_those_after():
    """Row 4: the setter of the current frame; a new frame inherits what holds when it is opened."""
    model = Counting("1", "2")
    async with opened(llm=model) as runtime:
        session = await runtime.session(bare, "current")
        await session.configure({"temperature": 0.3, "model": "m:x"})
        await session.send("Hello.")
        await session.continue_as("next", ["Begin."])
        await session.send("Hello.")
        assert model.options == [{"top_p": 0.5, "temperature": 0.3, "model": "m:x"}] * 2
        await session.configure({"temperature": 0.7, "model": None})
        assert await session.options() == {"top_p": 0.5, "temperature": 0.7}
        assert await session.options(INITIAL_FRAME) == {
            "top_p": 0.5,
            "temperature": 0.3,
            "model": "m:x",
        }


async def test_a_command_that_has_run_is_known_by_its_id_while_a_later_turn_waits():
    """A host that is started again repeats what it did, also while a question is open."""
    async with opened() as runtime:
        session = await runtime.session(bare, "chat")
        assert await session.configure({"temperature": 0.2}, id="careful") == {"temperature": 0.2}
        assert (await session.send("Hello?", id="hello", wait=0)).waiting
        assert await session.configure({"temperature": 0.2}, id="careful") == {"temperature": 0.2}
        with pytest.raises(TurnWaiting):
            await session.configure({"temperature": 0.9}, id="bold")


async def test_options_may_be_set_in_all_frames():
    """Row 4: the setter of all frames changes earlier ones too."""
    async with opened() as runtime:
        session = await runtime.session(bare, "all")
        await session.configure({"temperature": 0.3})
        await session.continue_as("next", ["Begin."])
        await session.configure({"temperature": 0.7}, everywhere=True)
        assert (await session.options(INITIAL_FRAME))["temperature"] == 0.7
        assert (await session.options())["temperature"] == 0.7


async def test_what_is_given_for_one_turn_is_gone_with_it():
    """Row 4: the override of a turn is merged name by name and not kept."""
    model = Counting("1", "2")
    async with opened(llm=model) as runtime:
        session = await runtime.session(bare, "turn")
        await session.configure({"temperature": 0.3})
        await session.send("Hello.", options={"temperature": 1.0, "seed": 7})
        await session.send("Hello.")
        assert model.options[0] == {"top_p": 0.5, "temperature": 1.0, "seed": 7}
        assert model.options[1] == {"top_p": 0.5, "temperature": 0.3}
        assert await session.options() == {"top_p": 0.5, "temperature": 0.3}


async def test_a_session_is_given_options_when_it_begins():
    """Row 4: the hook that materialises a session sees whether it is a root, and what it sets
    lasts.
    """
    model = Counting("1", "2")
    async with opened(llm=model) as runtime:
        session = await runtime.session(born, "root")
        await session.send("Hello.")
        await session.send("Hello.")
        assert [options["temperature"] for options in model.options] == [0.1, 0.1]
        assert await session.options() == {"temperature": 0.1}


async def test_a_child_is_told_from_a_root_when_it_begins():
    """Row 4: the same hook materialises a child, and sees that it is one."""
    model = Counting("From the child.")
    async with opened(llm=model) as runtime:
        assert await runtime.run(parent()) == "From the child."
        assert model.options[0]["temperature"] == 0.9


async def test_options_set_in_one_process_hold_in_another(tmp_path):
    """Row 4: what was changed live survives being read anew (D4)."""
    async with opened(tmp_path, replay=False) as runtime:
        session = await runtime.session(bare, "kept")
        await session.configure({"temperature": 0.3})
    model = Counting("1")
    async with opened(tmp_path, llm=model, replay=False) as runtime:
        session = await runtime.session(bare, "kept")
        await session.send("Hello.")
        assert model.options[0]["temperature"] == 0.3


@pytest.mark.parametrize(
    "wrong", [{"max_turns": 0}, {"model": 3}, {"prompt": {"add": {"nowhere": "x"}}}]
)
async def test_options_that_make_no_sense_are_refused(wrong):
    """Nothing is kept of them."""
    async with opened() as runtime:
        session = await runtime.session(bare, "wrong")
        with pytest.raises(BadArguments):
            await session.configure(wrong)
        assert await session.turns() == []


async def test_layers_change_the_prompt_of_a_session_and_of_a_turn():
    """Row 23: core, then session, then turn: a layer adds, replaces or clears."""
    layered = Agent(instructions="You are kind.", name="frames_layered")
    seen = []

    async def model(query):
        seen.append(query.system)
        return "ok"

    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(layered, "layers")
        await session.send("1")
        await session.configure({"prompt": {"add": {"guidance": "Be brief."}}})
        await session.send("2")
        await session.send("3", options={"prompt": {"replace": {"intro": "You are stern."}}})
        await session.send("4")
        assert seen == [
            "You are kind.",
            "You are kind.\n\nBe brief.",
            "You are stern.\n\nBe brief.",
            "You are kind.\n\nBe brief.",
        ]
