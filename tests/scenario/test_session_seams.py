"""Where the verbs of a session meet: tools beside approvals, inputs after a node, states that
differ in their tools, and wrong arguments.
"""

import asyncio

import pytest

import everhold
from everhold.agents import Agent, Allow, Confirm, FrameOpened, Stored, ToolContext, tool
from everhold.blocking import open_blocking
from everhold.core.message import Message, Role
from everhold.errors import (
    BadArguments,
    BadSetting,
    KeyConflict,
    Outdated,
    ProviderMismatch,
    ProviderUnavailable,
    StaleTools,
    TurnWaiting,
    UnknownSession,
)
from everhold.stores import SQLiteStore
from tests.scenario.harness import opened
from tests.scenario.session_tool_shelf import paint
from tests.scenario.talk import Scripted, told, use
from tests.scenario.test_intake_crash import dies
from tests.scenario.test_session_tools import changes, paints_and_looks


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "looked"


@tool
def risk() -> str:
    """Risk it."""
    return "risked"


@tool(read_only=True)
def jot(context: ToolContext) -> str:
    """Jot it down."""
    context.append("note", {"milk": 1})
    return "jotted"


def guard(wanted):
    return Confirm("sure?") if wanted.tool == "risk" else Allow()


agent = Agent(tools=[look, risk], policy=guard, name="session_seams")


def sings(words):
    @tool(name="sing", read_only=True)
    def sing() -> str:
        """Sing."""
        return words

    return sing


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path


# ---- tools


async def test_a_change_that_is_refused_changes_no_code(place):
    """While a person is asked, `replace` is refused, and the tool runs the code it had."""
    model = Scripted(use("risk"), "Done.", use("sing"), "Done.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[sings("one")])
        turn = await session.send("Risk it.")
        with pytest.raises(TurnWaiting):
            await session.change_tools(replace=[sings("two")])
        await runtime.answer(turn.queries[0], True)
        await session.turn(turn.input_id)
        await session.send("Sing.")
        assert told(await session.history()) == ["risked", "one"]


async def test_a_change_that_was_made_keeps_its_code(place):
    """The same id with other code changes nothing."""
    async with opened(place, llm=Scripted(use("sing"), "Done.")) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[sings("one")], id="it")
        view = await session.change_tools(add=[sings("two")], id="it")
        assert view.generation == 2
        await session.send("Sing.")
        assert told(await session.history()) == ["one"]


async def test_a_state_that_differs_only_in_its_tools_is_applied(place):
    """Its tools come back; the generation grows, so that a host that saw another one is refused."""
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Hi.")
        before = Stored.read((await session.stored()).json())
        hidden = await session.change_tools(hide=["look"])
        await session.change_tools(hide=["risk"])
        assert await session.apply(before, id="back") is not None
        view = await session.tools()
        assert view.names == ["look", "risk"]
        assert view.generation > hidden.generation + 1
        with pytest.raises(StaleTools):
            await session.change_tools(add=[paint], generation=hidden.generation)
        assert await session.apply(before, id="again") is None


async def test_an_envelope_says_that_it_has_neither_added_tools_nor_nodes(place):
    async with opened(place, llm=Scripted(use("jot"), "Done.")) as runtime:
        session = await runtime.session(agent, "chat")
        assert (await session.envelope()).left_out == ("the tools of the agent: look, risk",)
        await session.change_tools(add=[jot, paint])
        await session.send("Jot.")
        left_out = (await session.envelope()).left_out
        assert "the tools added to the session: jot, paint" in left_out
        assert "1 nodes of tools and plugins" in left_out


# ---- inputs


async def test_an_input_after_a_node_keeps_its_role(place):
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        said = Message(Role.SYSTEM, [{"type": "text", "text": "Be kind."}])
        await session.send(said, after=None)
        assert [node.role for node in await session.history()] == ["system", "assistant"]


async def test_the_same_input_after_a_node_is_one_turn(place):
    """Also if both calls are made at the same time; another one is refused."""
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        both = [session.send("Hi.", id="it", after=None) for _ in range(2)]
        one, two = await asyncio.gather(*both)
        assert one.settled == two.settled and len(await session.turns()) == 1
        with pytest.raises(Outdated):
            await session.send("Hi.", id="other", after=None)


# ---- options


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("anthropic:claude", ProviderMismatch),
        ("no-colon", BadSetting),
        ("openai:", BadSetting),
        (7, BadArguments),
    ],
)
async def test_a_session_does_not_begin_with_a_model_that_is_refused(place, name, error):
    model = everhold.Model("openai:x", api_key="k", only=["openai"])
    async with opened(place, llm=model) as runtime:
        with pytest.raises(error):
            await runtime.session(agent, "chat", options={"model": name})
        with pytest.raises(UnknownSession):
            await runtime.find("chat")


async def test_a_session_does_not_begin_with_an_unknown_provider(place):
    async with opened(place, llm=everhold.Model("openai:x", api_key="k")) as runtime:
        with pytest.raises(ProviderUnavailable):
            await runtime.session(agent, "chat", options={"model": "nonsense:x"})
        with pytest.raises(UnknownSession):
            await runtime.find("chat")


async def test_a_session_begins_with_tools_in_its_options(place):
    """As `configure` takes them: objects and references."""
    options = {"tools": {"extra": [sings("la"), "tests.scenario.session_tool_shelf:paint"]}}
    model = Scripted(use("sing"), use("paint", colour="red"), "Done.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat", options=options)
        assert (await session.tools()).names == ["look", "risk", "sing", "paint"]
        await session.send("Sing.")
        assert told(await session.history()) == ["la", "painted red"]
        assert (await runtime.session(agent, "chat", options=options)).id == session.id


# ---- arguments


@pytest.mark.parametrize(
    "given",
    [
        {"add": None},
        {"add": look},
        {"replace": 3},
        {"remove": None},
        {"hide": 3},
        {"hide": ["look"], "generation": "1"},
        {"hide": ["look"], "generation": True},
        {"hide": ["look"], "generation": 1.0},
        {"hide": ["look"], "id": 3},
        {"hide": ["look"], "id": " "},
    ],
)
async def test_wrong_changes_are_refused_and_nothing_is_written(given):
    async with opened(llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        before = await session.revision()
        async with asyncio.timeout(10):
            with pytest.raises(BadArguments):
                await session.change_tools(**given)
        assert await session.revision() == before


async def test_wrong_frames_and_ids_are_refused_and_nothing_is_written(place):
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        stored, before = await session.stored(), await session.revision()
        async with asyncio.timeout(10):
            for call in (
                session.continue_as(3, "x"),
                session.continue_as("x", 3),
                session.continue_as("x", None),
                session.continue_as("x", "y", id=3),
                session.configure({}, id=3),
                session.compact(id=3),
                session.reset(id=" "),
                session.apply(stored, id=3),
                session.steer("x", id=3),
                session.send("x", id=3),
            ):
                with pytest.raises(BadArguments):
                    await call
        assert await session.revision() == before


async def test_the_id_of_an_input_is_no_id_of_a_command(place):
    """Otherwise the command would seem to have run."""
    async with opened(place, llm=Scripted()) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Hi.", id="it")
        for call in (
            session.change_tools(hide=["look"], id="it"),
            session.configure({"max_turns": 3}, id="it"),
            session.continue_as("x", "y", id="it"),
            session.reset(id="it"),
        ):
            with pytest.raises(KeyConflict):
                await call
        assert len(await session.turns()) == 1
        assert isinstance((await session.reset(id="other")).outcome, FrameOpened)


def test_a_blocking_session_takes_tools_in_its_options(tmp_path):
    with open_blocking(f"sqlite:///{tmp_path}/app.db", llm=["Hi."]) as runtime:
        session = runtime.session(agent, "chat", options={"tools": {"extra": [sings("la")]}})
        assert "sing" in session.tools().names
        assert session.send("Hi.", after=None).text == "Hi."


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_commit_keeps_the_tools_on_sqlite(when, tmp_path):
    """Row 22: the story of `test_session_tools`, in a file."""
    at = 0
    while True:
        at += 1
        folder = tmp_path / str(at)
        folder.mkdir()
        writes, clock = await dies(
            SQLiteStore(folder / "app.db"), at, when, changes, paints_and_looks
        )
        async with opened(folder, clock=clock, llm=paints_and_looks) as runtime:
            session = await changes(runtime)
            view = await session.tools()
            assert (view.names, view.generation) == (["look", "paint"], 3), at
            assert told(await session.history()) == ["painted red", "looked closely"], at
        if writes < at:
            break
    assert at > 8
