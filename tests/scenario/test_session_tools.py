"""The tools of a session as a host sees and changes them while it runs."""

import asyncio

import msgspec
import pytest

import everhold
from everhold.agents import (
    OfferedTool,
    Stored,
    Tool,
    ToolState,
    TurnFailed,
    tool,
)
from everhold.errors import BadArguments, StaleTools, ToolClash, UnknownTool
from everhold.hooks import Plugin, SetOptions
from everhold.stores import MemoryStore
from tests.scenario.harness import opened
from tests.scenario.session_tool_shelf import look_closely, paint, plain
from tests.scenario.talk import Scripted, told, use
from tests.scenario.test_intake_crash import dies


@tool(read_only=True)
def look() -> str:
    """Look around."""
    return "looked"


@tool(read_only=True)
def dig(depth: int = 1) -> dict[str, int]:
    """Dig."""
    return {"depth": depth}


@tool(read_only=True)
def fly() -> str:
    """Fly."""
    return "flew"


agent = everhold.Agent(tools=[look, dig], extra_tools=[fly], name="session_tools_digger")


class Watching(Scripted):
    """A model that remembers which tools and prompts it was offered."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.offered = []
        self.systems = []

    async def __call__(self, query):
        self.offered.append([spec["name"] for spec in (query.options or {}).get("tools", [])])
        self.systems.append(query.system or "")
        return await super().__call__(query)


class Source:
    """A source whose tools change."""

    name = "shed"

    def __init__(self, *names):
        self.names = names

    async def offered(self):
        return [OfferedTool(name, name, f"{name} it") for name in self.names]

    def tool(self, offer):
        return Tool(lambda: f"{offer.name} done", name=offer.name, read_only=True)


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path


async def test_the_catalog_is_shown_before_the_first_turn(place):
    """Row 22: each tool with its schemas, its source, and whether it is offered, as JSON."""
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        view = await session.tools()
        assert (view.names, view.generation, view.orphans) == (["look", "dig"], 1, [])
        assert [(one.name, one.tools) for one in view.sources] == [("agent", 2), ("extra", 1)]
        shown = msgspec.json.decode(view.json())
        assert shown["tools"][1] == {
            "name": "dig",
            "description": "Dig.",
            "input_schema": dig.spec()["input_schema"],
            "output_schema": {"type": "object", "additionalProperties": {"type": "integer"}},
            "source": "agent",
            "state": "offered",
            "why": "",
            "ref": None,
        }
        assert shown["tools"][2]["state"] == "extra" and shown["tools"][2]["why"]
        await session.send("Hi.")
        after = await session.tools()
        assert (after.generation, after.fingerprint) == (1, view.fingerprint)


async def test_a_tool_is_added_and_found_again_in_another_process(tmp_path):
    """Row 22: the journal has its reference; another process offers it and runs it."""
    model = Watching(use("paint", colour="red"), "Done.", use("paint", colour="blue"), "Done.")
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        view = await session.change_tools(add=[paint])
        assert (view.names, view.generation) == (["look", "dig", "paint"], 2)
        assert view.tool("paint").source == "host"
        assert view.tool("paint").ref == "tests.scenario.session_tool_shelf:paint"
        await session.send("Paint.")
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        assert (await session.tools()).generation == 2
        await session.send("Paint again.")
        assert told(await session.history()) == ["painted red", "painted blue"]
    assert model.offered[-1] == ["look", "dig", "paint"]


async def test_tools_are_replaced_hidden_removed_and_restored(place):
    """Row 22: until they are changed again."""
    model = Watching(
        use("look"), "Done.", use("look"), use("dig"), "Done.", use("look"), use("dig"), "Done."
    )
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(replace=[look_closely], hide=["dig"])
        await session.send("Look.")
        view = await session.change_tools(remove=["look"])
        assert view.tool("look").state is ToolState.REMOVED
        assert view.tool("dig").state is ToolState.HIDDEN
        assert view.names == []
        await session.send("Look again.")
        view = await session.change_tools(restore=["look", "dig"])
        assert (view.names, view.tool("look").source) == (["look", "dig"], "agent")
        await session.send("Look now.")
        results = told(await session.history())
    assert results == [
        "looked closely",
        "Error: there is no tool 'look'; the tools are: none",
        "Error: there is no tool 'dig'; the tools are: none",
        "looked",
        {"depth": 1},
    ]


async def test_a_change_is_refused_if_another_was_quicker(place):
    """Row 22: `stale_tools`; and what does not fit is refused as a whole."""
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        other = await runtime.session(agent, "chat")
        seen = (await session.tools()).generation
        await other.change_tools(hide=["dig"], generation=seen)
        with pytest.raises(StaleTools) as stale:
            await session.change_tools(hide=["look"], generation=seen)
        assert (stale.value.seen, stale.value.present) == (seen, seen + 1)
        with pytest.raises(ToolClash):
            await session.change_tools(add=[look_closely])
        with pytest.raises(BadArguments):
            await session.change_tools(remove=["swim"])
        with pytest.raises(BadArguments):
            await session.change_tools(hide="look")
        with pytest.raises(UnknownTool):
            await session.change_tools(add=["tests.scenario.session_tool_shelf:plain"])
        with pytest.raises(UnknownTool):
            await session.change_tools(add=["os:system"])
        assert (await session.tools()).names == ["look"]


async def test_two_changes_at_once_are_one(place):
    """Row 22: the journal decides, not what the handles have read."""
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Hi.")
        said = {"do": "change_tools", "change": {"hide": ["dig"]}, "generation": 1}
        for number in range(2):
            await runtime.signal(session.id, "input", {**said, "id": f"c{number}"})
        outcomes = [(await session.turn(f"c{number}")).outcome for number in range(2)]
        assert outcomes[0].generation == 2
        assert isinstance(outcomes[1], TurnFailed) and outcomes[1].code == "stale_tools"
        await runtime.signal(session.id, "input", {**said, "id": "c2", "change": {"hide": 3}})
        assert (await session.turn("c2")).outcome.code == "bad_arguments"


async def test_of_two_hosts_that_saw_the_same_tools_one_is_refused(place):
    """Row 2: at the same time, from two handles."""
    async with opened(place, llm=Watching()) as runtime:
        handles = [await runtime.session(agent, "chat") for _ in range(2)]
        done = await asyncio.gather(
            *(
                handle.change_tools(hide=[name], generation=1)
                for handle, name in zip(handles, ("look", "dig"), strict=True)
            ),
            return_exceptions=True,
        )
        assert [type(one) is StaleTools for one in done].count(True) == 1
        assert (await handles[0].tools()).generation == 2


KIT = """
from everhold.agents import tool

@tool(read_only=True)
def knit(what: str) -> str:
    "Knit with secret wool."
    return f"knitted {what}"
"""


async def test_a_tool_of_a_file_goes_where_the_session_goes(tmp_path):
    """Row 2: by the path of the file, also after export and import; a redacted file does not
    describe it.
    """
    kit = tmp_path / "kit.py"
    kit.write_text(KIT)
    model = Watching(use("knit", what="a hat"), "Done.", use("knit", what="socks"), "Done.")
    (tmp_path / "there").mkdir()
    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[f"{kit}:knit"])
        await session.send("Knit.")
        await runtime.archive.export(tmp_path / "all.jsonl")
        await runtime.archive.export(tmp_path / "less.jsonl", redact=True)
    assert "secret wool" in (tmp_path / "all.jsonl").read_text()
    assert "secret wool" not in (tmp_path / "less.jsonl").read_text()
    async with opened(tmp_path / "there", llm=model) as runtime:
        await runtime.archive.import_(tmp_path / "all.jsonl")
        session = await runtime.session(agent, "chat")
        assert (await session.tools()).tool("knit").ref == f"{kit}:knit"
        await session.send("Knit again.")
        assert told(await session.history()) == ["knitted a hat", "knitted socks"]


async def test_a_conversation_without_its_agent_shows_its_tools(place):
    """Row 2: all but the extra tools of the agent, which nothing has recorded."""
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[paint])
        view = await (await runtime.conversation(session.id)).tools()
        assert (view.names, view.generation) == (["look", "dig", "paint"], 2)


def test_tools_are_shown_and_changed_without_async(tmp_path):
    with everhold.open_blocking(tmp_path / "app.db", llm=Watching()) as runtime:
        session = runtime.session(agent, "chat")
        assert session.tools().names == ["look", "dig"]
        assert session.change_tools(add=[paint], hide=["dig"]).names == ["look", "paint"]
        session.provide_tools(closure("la"))
        with pytest.raises(StaleTools):
            session.change_tools(restore=["dig"], generation=1)


async def test_a_change_with_an_id_is_made_once(place):
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        first = await session.change_tools(add=[paint], generation=1, id="once")
        again = await session.change_tools(add=[paint], generation=1, id="once")
        assert first.generation == again.generation == 2


async def test_an_extra_tool_becomes_a_tool_of_the_session():
    """By its name, as the agent declares it."""
    model = Watching(use("fly"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=["fly"])
        await session.send("Fly.")
        assert told(await session.history()) == ["flew"]


def closure(words):
    def sing() -> str:
        """Sing."""
        return words

    return Tool(sing, read_only=True)


async def test_code_without_a_reference_is_an_orphan_until_it_is_provided(place):
    """Row 2: a fork that this handle did not make does not have it, nor has another process: the
    tool is not offered, and the view says why.
    """
    model = Watching(use("sing"), "Done.", "No.", use("sing"), "Done.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[closure("la")])
        await session.send("Sing.")
        fork = await runtime.session(agent, (await runtime.fork(session.id)).session_id)
        await fork.send("Can you sing?")
        view = await fork.tools()
        assert (view.orphans, view.names) == (["sing"], ["look", "dig"])
        assert "was given by another process" in view.tool("sing").why
        assert model.offered[-1] == ["look", "dig"]
        await fork.provide_tools(closure("lo"))
        await fork.send("Sing again.")
        assert told(await fork.history()) == ["la", "lo"]
        assert (await fork.tools()).orphans == []
        assert (await session.tools()).names == ["look", "dig", "sing"]


async def test_a_fork_made_here_has_the_code():
    """Row 2: and hiding and showing a tool does not lose it."""
    model = Watching(use("sing"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[closure("la")])
        await session.change_tools(hide=["sing"])
        await session.change_tools(restore=["sing"])
        fork = await session.fork()
        await fork.send("Sing.")
        assert told(await fork.history()) == ["la"]
        await fork.change_tools(remove=["sing"])
        with pytest.raises(BadArguments):
            await fork.change_tools(restore=["sing"])


async def test_an_overlay_and_a_change_agree():
    """Row 22: a tool that the overlay names cannot be removed; as an orphan it is left out."""
    model = Watching("Done.", use("sing"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[closure("la")])
        await session.configure({"tools": {"extra": ["sing"], "only_extra": True}})
        with pytest.raises(BadArguments):
            await session.change_tools(remove=["sing"])
        assert (await session.tools()).names == ["sing"]
        fork = await runtime.session(agent, (await runtime.fork(session.id)).session_id)
        assert (await fork.send("Sing.")).text == "Done."
        await session.send("Sing.")
        assert told(await session.history()) == ["la"]
    assert model.offered == [[], ["sing"], ["sing"]]


async def test_a_call_without_code_has_an_error_as_its_result(place):
    """Row 2: the tool was offered, and its code is not there when it is called."""
    async with opened(place) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[closure("la")])
        turn = await session.send("Sing.", wait=5)
        status = await runtime.fork(session.id)
        fork = await runtime.session(agent, status.session_id)
        await runtime.answer((await runtime.status(fork.id)).queries[-1], use("sing"))
        turn = await fork.turn(turn.input_id)
        await runtime.answer(turn.queries[0], "Done.")
        await fork.turn(turn.input_id)
        (said,) = told(await fork.history())
    assert said.startswith("Error: the code of tool 'sing' was not found")


async def test_what_a_source_no_longer_offers_is_an_orphan(place):
    """Row 2: and back with its source; a refresh shows it at once."""
    shed = Source("saw", "drill")
    workshop = everhold.Agent(tools=[look, shed], name="session_tools_workshop")
    model = Watching()
    async with opened(place, llm=model, replay=False) as runtime:
        session = await runtime.session(workshop, "chat")
        await session.send("Hi.")
        view = await session.tools()
        assert (view.names, view.generation) == (["look", "saw", "drill"], 2)
        await session.change_tools(hide=["saw"])
        shed.names = ("drill",)
        receipt = await session.command("refresh_tools", key="1")
        await session.turn(receipt.item.id)
        stored = await session.stored()
        assert [one.manifest.name for one in stored.tools.entries if one.source is None] == ["saw"]
        assert ((await session.tools()).orphans, stored.tools.generation) == (["saw"], 4)
        shed.names = ("saw", "drill")
        await session.send("Back?")
        view = await session.tools()
        assert (view.tool("saw").state, view.generation) == (ToolState.HIDDEN, 5)
        assert [(one.name, one.tools) for one in view.sources] == [("agent", 1), ("shed", 2)]


async def test_generations_count_changes_of_the_registry_and_not_prompts(place):
    """Row 22: what a turn hides, or says in its prompt, is no change of the tools."""
    async with opened(place, llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("one", options={"tools": {"hidden": ["dig"]}})
        await session.send("two", options={"prompt": "Be brief."})
        await session.configure({"tools": {"extra": ["fly"]}})
        await session.send("three")
        stored = await session.stored()
        assert stored.tools.generation == (await session.tools()).generation == 1


async def test_forks_and_stored_conversations_have_the_tools(place):
    """Row 22: a fork begins with them, and `apply` brings them along."""
    model = Watching(*["Done."] * 3, use("paint", colour="red"), "Done.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[paint], hide=["dig"])
        await session.send("Hi.")
        fork = await session.fork()
        await session.change_tools(restore=["dig"])
        assert (await fork.tools()).names == ["look", "paint"]
        kept = Stored.read((await session.stored()).json())
        other = await runtime.session(agent, "other")
        await other.apply(kept)
        assert (await other.tools()).names == ["look", "dig", "paint"]
        assert (await other.stored()).tools == kept.tools
        await fork.send("Go on.")
        await other.send("Go on.")
        await other.send("Paint.")
        assert told(await other.history()) == ["painted red"]
    assert model.offered[1:3] == [["look", "paint"], ["look", "dig", "paint"]]


async def test_an_overlay_holds_for_a_turn_or_until_it_is_changed(place):
    """Row 22: tools that nobody declared, texts for the prompt, names of events; readable back."""
    model = Watching(use("paint", colour="red"), "Done.", "Done.", use("paint", colour="red"))
    overlay = {
        "extra": [paint],
        "only_extra": True,
        "contributions": [{"slot": "guidance", "content": "Paint well.", "tools": ["paint"]}],
        "events": ["order.paid", "stock.low"],
    }
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Paint.", options={"tools": overlay})
        await session.send("And now?")
        assert (await session.tools()).overlay.extra == []
        await session.configure({"tools": overlay})
        view = await session.tools()
        assert view.names == ["paint"]
        assert view.overlay.contributions[0].content == "Paint well."
        assert view.overlay.events == ["order.paid", "stock.low"]
        assert view.tool("look").why == "the option `tools` offers only extra tools"
        await session.send("Paint.")
        await session.configure({"tools": None})
        assert (await session.tools()).names == ["look", "dig"]
        assert told(await session.history()) == ["painted red", "painted red"]
    assert model.offered[:3] == [["paint"], ["paint"], ["look", "dig"]]
    assert model.systems[0] == (
        "Paint well.\n\nEvents that can trigger something: order.paid, stock.low."
    )
    assert model.systems[2] == ""


@everhold.program
async def ship(ctx: everhold.Context) -> str:
    return "shipped"


async def test_a_model_is_told_the_events_of_all_triggers(place):
    """Row 22: those of the moment, once for a turn; a replay reads no triggers."""
    model = Watching()
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Hi.", options={"tools": {"events": True}})
        await runtime.triggers.add("order.paid", ship())
        await runtime.triggers.add("stock.low", ship())
        await session.configure({"tools": {"events": True}})
        await session.send("Hi.")
        await runtime.triggers.remove("stock.low", "ship")
        await session.send("Hi.")
        await session.send("Hi.", options={"tools": None})
        assert (await session.tools()).overlay.events is True
    told = "Events that can trigger something: {}."
    assert model.systems == [
        "",
        told.format("order.paid, stock.low"),
        told.format("order.paid"),
        "",
    ]


async def test_a_hidden_tool_is_offered_for_a_turn():
    """Row 22: an overlay may name a tool of the session that is hidden."""
    model = Watching(use("paint", colour="red"))
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.change_tools(add=[paint])
        await session.change_tools(hide=["paint"])
        await session.send("Paint.", options={"tools": {"extra": ["paint"]}})
        await session.send("Paint.")
        assert told(await session.history()) == ["painted red"]
    assert model.offered == [["look", "dig", "paint"]] * 2 + [["look", "dig"]]


@pytest.mark.parametrize(
    "given",
    [
        {"contributions": [{"slot": "attic", "content": "x"}]},
        {"contributions": ["x"]},
        {"events": "order"},
    ],
    ids=repr,
)
async def test_an_overlay_that_is_none_fails_its_turn(given):
    async with opened(llm=Watching()) as runtime:
        session = await runtime.session(agent, "chat")
        turn = await session.send("Hi.", options={"tools": given})
        assert turn.outcome.code == "bad_arguments"
        assert (await session.send("Go on.")).text == "Done."


class Narrow(Plugin):
    """Hides a tool for the second model call of a turn."""

    name = "narrow"

    def before_model_call(self, moment):
        if moment.round == 2:
            return SetOptions({"tools": {"hidden": ["dig"]}, "prompt": "Do not dig."})


narrowed = everhold.Agent(tools=[look, dig], plugins=[Narrow()], name="session_tools_narrowed")


async def test_a_plugin_changes_the_tools_of_one_call(place):
    """Row 22: the model is not offered it, a call of it is refused, and then it is there again."""
    model = Watching(use("dig"), use("dig"), use("dig"), "Done.", "Done.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(narrowed, "chat")
        await session.send("Dig.")
        await session.send("Hi.")
        results = told(await session.history())
        assert (await session.tools()).generation == 1
    both = ["look", "dig"]
    assert model.offered == [both, ["look"], both, both, both]
    assert model.systems == ["", "Do not dig.", "", "", ""]
    assert results == [
        {"depth": 1},
        "Error: there is no tool 'dig'; the tools are: look",
        {"depth": 1},
    ]


class Always(Plugin):
    """Hides a tool in every call."""

    name = "always"

    def before_model_call(self, moment):
        return SetOptions({"tools": {"hidden": ["dig"]}})


steady = everhold.Agent(tools=[look, dig], plugins=[Always()], name="session_tools_steady")


async def test_the_same_tools_in_every_call_are_one_prompt():
    """Row 22: the conversation does not grow by a prompt for each call."""
    async with opened(llm=Watching(use("look"), use("look"))) as runtime:
        session = await runtime.session(steady, "chat")
        await session.send("Hi.")
        await session.send("Hi.")
        nodes = (await session.conversation()).graph.nodes.values()
        assert [node.kind for node in nodes].count("prompt") == 2


class Wrong(Plugin):
    """Sets an option that does not exist, once."""

    name = "wrong"

    def before_model_call(self, moment):
        if moment.turn == 1:
            return SetOptions({"tools": {"hiden": []}})


wrong = everhold.Agent(tools=[look], plugins=[Wrong()], name="session_tools_wrong")


async def test_wrong_tools_of_one_call_fail_only_their_turn():
    async with opened(llm=Watching()) as runtime:
        session = await runtime.session(wrong, "chat")
        assert (await session.send("Hi.")).outcome.code == "bad_arguments"
        assert (await session.send("Hi.")).text == "Done."


async def test_a_plain_function_is_provided_and_not_referenced():
    """Row 22: only what @tool makes is loaded by reference."""
    async with opened(llm=Watching(use("plain"))) as runtime:
        session = await runtime.session(agent, "chat")
        view = await session.change_tools(add=[plain])
        assert view.tool("plain").ref == ""
        await session.send("Go on.")
        assert told(await session.history()) == ["plain"]


async def changes(runtime):
    """Adds a tool, uses it, replaces another, uses that, and forks."""
    session = await runtime.session(agent, "chat")
    await session.change_tools(add=[paint], id="add")
    await session.send("Paint.", id="one")
    await session.change_tools(replace=[look_closely], hide=["dig"], id="replace")
    await session.send("Look.", id="two")
    return session


async def paints_and_looks(query):
    """Answers by what was said last, so that it may be asked again."""
    last = query.messages[-1]
    if last["role"] == "tool":
        return "Done."
    said = last["content"][0]["text"]
    return use("paint", colour="red") if said == "Paint." else use("look")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_at_any_commit_keeps_the_tools(when):
    """Row 22: told again in another process, the story ends the same, and each change is one."""
    at = 0
    while True:
        at += 1
        store = MemoryStore()
        writes, clock = await dies(store, at, when, changes, paints_and_looks)
        async with opened(on=store, clock=clock, llm=paints_and_looks) as runtime:
            session = await changes(runtime)
            view = await session.tools()
            assert (view.names, view.generation) == (["look", "paint"], 3), at
            assert told(await session.history()) == ["painted red", "looked closely"], at
        if writes < at:
            break
    assert at > 8
