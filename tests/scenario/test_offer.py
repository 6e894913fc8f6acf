"""Which tools a model is offered: hidden ones, extra ones, and those it has to look for."""

import pytest

from everhold.agents.agent import Agent
from everhold.agents.tool_selection import ToolSelection
from everhold.core.turn import TurnFailed
from everhold.errors import BadArguments
from everhold.ports.tool import Tool, tool
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, told, use


@tool(read_only=True)
def look() -> str:
    """Look around."""
    return "looked"


@tool(read_only=True)
def dig() -> str:
    """Dig."""
    return "dug"


@tool(read_only=True, name="dig")
def dig_deep() -> str:
    """Dig deeper."""
    return "dug deep"


@tool(read_only=True)
def fly() -> str:
    """Fly."""
    return "flew"


agent = Agent(tools=[look, dig], extra_tools=[fly, dig_deep], name="digger")


class Watching(Scripted):
    """A model that remembers which tools it was offered."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.offered = []

    async def __call__(self, query):
        self.offered.append([spec["name"] for spec in (query.options or {}).get("tools", [])])
        return await super().__call__(query)


async def test_a_hidden_tool_is_simply_absent():
    """Row 22: for the turn that hides it; a call of it is told that there is none."""
    model = Watching(use("dig"), "Done.", use("dig"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Dig.", options={"tools": {"hidden": ["dig"]}})
        await session.send("Dig again.")
        results = told(await session.history())
    assert model.offered == [["look"], ["look"], ["look", "dig"], ["look", "dig"]]
    assert results == ["Error: there is no tool 'dig'; the tools are: look", "dug"]


async def test_extra_tools_are_laid_over_the_others(tmp_path):
    """Row 22: added where an option says so, or offered alone; after a restart it is the same."""
    model = Watching(use("fly"), "Done.", use("fly"), "Done.", use("fly"), "Done.")
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Fly.", options={"tools": {"extra": ["fly"]}})
        await session.send("Fly.", options={"tools": {"extra": ["fly"], "only_extra": True}})
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Fly.")
        results = told(await session.history())
    assert model.offered[::2] == [["look", "dig", "fly"], ["fly"], ["look", "dig"]]
    assert results == ["flew", "flew", "Error: there is no tool 'fly'; the tools are: dig, look"]


async def test_an_extra_tool_takes_the_place_of_one_of_its_name():
    """Row 22: what is laid over wins, as long as it is there."""
    model = Watching(use("dig"), "Done.", use("dig"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Dig.", options={"tools": {"extra": ["dig"]}})
        await session.send("Dig.")
        assert told(await session.history()) == ["dug deep", "dug"]


async def test_an_option_about_tools_is_no_option_of_the_model():
    """Where every tool is hidden, the model is offered none, and is told nothing of the option."""
    seen = []

    async def model(query):
        seen.append(query.options)
        return "Done."

    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Go on.", options={"tools": {"hidden": ["look", "dig"]}})
    assert seen == [None]


@pytest.mark.parametrize(
    "given", [{"extra": ["swim"]}, {"hiden": []}, {"hidden": "dig"}, 3], ids=repr
)
async def test_an_option_that_is_none_fails_its_turn(given):
    """The model is not asked, and the next turn is as before."""
    model = Watching()
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        turn = await session.send("Swim.", options={"tools": given})
        assert isinstance(turn.outcome, TurnFailed)
        assert turn.outcome.code == BadArguments.code
        assert (await session.send("Go on.")).text == "Done."
    assert model.offered == [["look", "dig"]]


def numbered(n):
    return Tool(
        lambda: f"ran {n}", name=f"count_{n}", description=f"Counts to number {n}.", read_only=True
    )


@tool(read_only=True, pinned=True)
def always() -> str:
    """Always there."""
    return "here"


crowd = Agent(tools=[*(numbered(n) for n in range(60)), always], name="crowd")


async def test_many_tools_are_searched(tmp_path):
    """The model is told of a few and of one that finds the others; what it found stays, also after
    a restart.
    """
    model = Watching(
        use("search_tools", words="count number 41"),
        use("count_41"),
        "Done.",
        use("count_41"),
        "Done.",
    )
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(crowd, "chat")
        await session.send("Count.")
        found, ran = told(await session.history())
    assert model.offered[0] == ["search_tools", "always"]
    assert found[0] == {"name": "count_41", "description": "Counts to number 41."}
    assert len(found) == 10
    assert ran == "ran 41"
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(crowd, "chat")
        await session.send("Count again.")
    assert model.offered[3] == model.offered[1]
    assert "count_41" in model.offered[3]
    assert len(model.offered[3]) == 12


async def test_a_search_that_finds_nothing_says_so():
    model = Watching(use("search_tools", words="sing"), use("search_tools"))
    async with opened(llm=model) as runtime:
        session = await runtime.session(crowd, "chat")
        await session.send("Sing.")
        results = told(await session.history())
    assert results == [
        "No tool was found. Try other words.",
        "Error: input should be an object with 'words', got an empty object",
    ]


async def test_where_there_are_few_nothing_is_searched():
    """The tool that finds others is not there then."""
    model = Watching(use("search_tools", words="dig"))
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Dig.")
        assert told(await session.history()) == [
            "Error: there is no tool 'search_tools'; the tools are: dig, look"
        ]


def test_a_catalog_is_of_its_plugins():
    """Row 21: the fingerprint of the plugins is the fourth part of its key; what is known is not
    put together again.
    """
    offer = ToolSelection([])
    first = offer.catalog
    offer.access(None, "fingerprint")
    second = offer.catalog
    offer.access(None)
    assert first is not second and offer.catalog is first
    offer.access(None, "fingerprint")
    offer.also({})
    offer.renew()
    assert offer.catalog is second
