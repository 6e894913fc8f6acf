"""What a model is offered and what comes of its calls, through the public API."""

import msgspec
import pytest

from everhold import Agent, Answer, Plugin, Retry, Usage, tool
from everhold.agents import (
    Attachment,
    Image,
    ImageData,
    Later,
    OfferedTool,
    Text,
    ToolContext,
    ToolState,
    TurnFailed,
    Window,
    extract_text,
    read_attachment,
)
from everhold.errors import BadArguments, StaleTools, ToolClash, UnknownAttachment
from everhold.hooks import Confirm, Deny, SetOptions
from tests.scenario.talk import told, use, uses

RAN = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    RAN.append(what)
    return f"{what}: found"


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


@tool
def fails() -> str:
    """Fails."""
    raise LookupError("nothing there")


@tool(rerun="safe", retry=Retry(3))
def flaky() -> str:
    """Works the third time."""
    RAN.append("flaky")
    if len(RAN) < 3:
        raise OSError("away")
    return "worked"


@tool
def order(what: str) -> str:
    """Order something; the result comes later."""
    raise Later(f"When will {what} come?")


@tool(read_only=True)
def drawing():
    """A picture with words."""
    return [Text("a dot"), Image(ImageData("image/png", b"\x89PNG"))]


@tool(read_only=True, output=Window(lines=3))
def long() -> str:
    """A long text."""
    return "".join(f"line {n}\n" for n in range(100))


@tool
async def draw(context: ToolContext) -> str:
    """Draw something, and keep it."""
    made = await context.attach(b"\x89PNG", "image/png")
    again, data = await context.attachment(made.id)
    assert isinstance(again, Attachment) and data == b"\x89PNG"
    return made.id


@tool
def knock(context: ToolContext) -> str:
    """Says something beside its result."""
    context.say("Somebody is at the door.")
    context.progress("knocking", 1, 2)
    return "knocked"


@tool(rerun="safe")
async def ask(context: ToolContext, what: str) -> str:
    """Ask a model."""
    return await context.llm(f"What is {what}?", system="You know.", model="local:small")


@tool(read_only=True)
def shout() -> str:
    """Shout."""
    return "hey"


digger = Agent(tools=[look, dig], extra_tools=[fly, dig_deep], name="outside_digger")
worker = Agent(
    tools=[look, fails, flaky, order, drawing, long, draw, knock, ask, read_attachment],
    concurrency=2,
    name="outside_worker",
)


class Watching:
    """A model that says its lines, and remembers what it was shown."""

    def __init__(self, *lines):
        self.lines, self.tools, self.systems, self.shown, self.options = list(lines), [], [], [], []

    async def __call__(self, query):
        if query.prompt:  # a tool asks
            return Answer("a drink", Usage(prompt_tokens=7, completion_tokens=1, model="small"))
        options = dict(query.options or {})
        self.tools.append({one["name"]: one for one in options.pop("tools", [])})
        self.options.append(options)
        self.systems.append(query.system)
        self.shown.append(query.messages)
        return self.lines.pop(0) if self.lines else "Done."


def talk(everhold, agent, *lines, name="chat", **more):
    model = Watching(*lines)
    everhold.answers(model.__call__)
    session = everhold.runtime.session(agent, name)
    turn = session.send("Go.", **more)
    return session, turn, model


# ---- what is offered


def test_the_model_is_offered_the_tools_with_name_description_and_schema(everhold):
    _, _, model = talk(everhold, digger)
    assert list(model.tools[0]) == ["look", "dig"]
    shown = model.tools[0]["look"]
    assert shown["description"] == "Look something up."
    assert shown["input_schema"]["required"] == ["what"]


def test_an_agent_without_tools_offers_none(everhold):
    _, turn, model = talk(everhold, Agent(name="<locals>.none"))
    assert (model.tools, turn.text) == ([{}], "Done.")


def test_what_is_offered_is_kept_with_a_generation_for_each_change(everhold):
    """The generation counts changes of the tools; prompts and options of a turn are none."""
    session, _, _ = talk(everhold, digger)
    before = session.stored(fresh=True).tools
    session.send("Again.", options={"tools": {"hidden": ["dig"]}})
    assert session.stored(fresh=True).tools == before
    view = session.change_tools(hide=["dig"], generation=before.generation)
    after = session.stored(fresh=True).tools
    assert (before.generation, after.generation, view.generation) == (1, 2, 2)
    assert {one.manifest.name for one in after.entries} >= {"look", "dig"}


def test_the_tools_are_shown_as_json_for_user_interfaces(everhold):
    """Each with its schemas, its source, whether it is offered, and why not."""
    _, _, _ = talk(everhold, digger, name="other")
    session = everhold.runtime.session(digger, "chat")
    view = session.tools()
    assert (view.names, view.generation, view.orphans) == (["look", "dig"], 1, [])
    assert [(one.name, one.tools) for one in view.sources] == [("agent", 2), ("extra", 2)]
    shown = msgspec.json.decode(view.json())["tools"]
    assert (shown[0]["name"], shown[0]["description"]) == ("look", "Look something up.")
    assert shown[0]["input_schema"]["required"] == ["what"] and shown[0]["state"] == "offered"
    session.change_tools(hide=["look"])
    hidden = session.tools().tool("look")
    assert hidden.state is ToolState.HIDDEN and hidden.why == "the host hides it"
    assert session.tools().fingerprint != view.fingerprint


def test_tools_are_added_replaced_hidden_removed_and_restored_at_run_time(everhold):
    """Also ones that the agent does not declare; in every process, and in forks."""
    session, _, model = talk(everhold, digger)
    session.change_tools(add=[shout])
    session.send("Shout.")
    assert list(model.tools[-1]) == ["look", "dig", "shout"]
    session.change_tools(replace=[dig_deep], remove=["look"])
    model.lines = [use("dig"), use("shout"), "Done."]
    session.send("Dig.")
    assert told(session.history()) == ["dug deep", "hey"]
    everhold.restart()
    assert session.fork().tools().names == session.tools().names == ["dig", "shout"]
    session.change_tools(restore=["look", "dig"])
    session.send("As before.")
    assert list(model.tools[-1]) == ["look", "dig", "shout"]
    with pytest.raises(BadArguments, match="there is no tool 'nobody'"):
        session.change_tools(hide=["nobody"])


def test_a_change_of_tools_is_refused_if_another_was_quicker(everhold):
    session, _, _ = talk(everhold, digger)
    seen = session.tools().generation
    session.change_tools(hide=["dig"], generation=seen)
    with pytest.raises(StaleTools) as refused:
        session.change_tools(hide=["look"], generation=seen)
    assert (refused.value.seen, refused.value.present) == (1, 2)
    assert session.tools().names == ["look"]


def test_an_overlay_adds_texts_to_the_prompt_and_events_that_may_be_told(everhold):
    """For a turn, or until it is changed; what was added can be read back."""
    texts = {"contributions": [{"slot": "guidance", "content": "Dig gently."}], "events": ["rain"]}
    session, _, model = talk(everhold, digger, options={"tools": texts})
    assert "Dig gently." in model.systems[0] and "rain" in model.systems[0]
    session.send("Again.")
    assert "Dig gently." not in (model.systems[1] or "")
    session.configure({"tools": texts})
    session.send("Once more.")
    assert "Dig gently." in model.systems[2]
    assert session.options()["tools"]["contributions"][0]["content"] == "Dig gently."


def test_a_plugin_changes_the_tools_of_one_model_call(everhold):
    class Hiding(Plugin):
        name = "hiding"

        def before_model_call(self, moment):
            return SetOptions({"tools": {"hidden": ["dig"]}}) if moment.round == 1 else None

    agent = Agent(tools=[look, dig], plugins=[Hiding()], name="<locals>.hiding")
    _, _, model = talk(everhold, agent, use("look", what="x"))
    assert [list(one) for one in model.tools] == [["look"], ["look", "dig"]]


def test_what_a_source_no_longer_offers_is_an_orphan(everhold):
    everhold.checks = False  # the source is another one afterwards
    source = Source("one", "two")
    session, _, _ = talk(everhold, Agent(tools=[source], name="<locals>.orphans"))
    source.names = ("one",)
    session.send("Again.")
    view = session.tools()
    assert (view.names, view.orphans) == (["one"], ["two"])


def test_a_hidden_tool_is_simply_absent(everhold):
    """A call of it is told that there is none, and nothing runs."""
    hidden = {"tools": {"hidden": ["look"]}}
    session, _, model = talk(everhold, digger, use("look", what="x"), options=hidden)
    assert list(model.tools[0]) == ["dig"] and RAN == []
    assert told(session.history()) == ["Error: there is no tool 'look'; the tools are: dig"]


def test_tools_are_laid_over_the_others_for_a_turn(everhold):
    """Added, alone, or in the place of one of the same name; afterwards all is as before."""
    session, _, model = talk(everhold, digger, use("dig"), options={"tools": {"extra": ["dig"]}})
    session.send("Fly.", options={"tools": {"extra": ["fly"], "only_extra": True}})
    session.send("Go on.")
    assert told(session.history()) == ["dug deep"]
    assert [list(one) for one in model.tools[::1]] == [
        ["look", "dig"],
        ["look", "dig"],
        ["fly"],
        ["look", "dig"],
    ]


@pytest.mark.parametrize("given", [{"extra": ["swim"]}, {"hiden": []}, 3], ids=repr)
def test_an_overlay_that_makes_no_sense_fails_its_turn_alone(everhold, given):
    session, turn, model = talk(everhold, digger, options={"tools": given})
    assert isinstance(turn.outcome, TurnFailed) and turn.outcome.code == "bad_arguments"
    assert session.send("Go on.").text == "Done." and list(model.tools[0]) == ["look", "dig"]


class Source:
    """Offers tools that change."""

    name = "changing"

    def __init__(self, *names):
        self.names, self.asked = names, 0

    async def offered(self):
        self.asked += 1
        return [OfferedTool(name, name) for name in self.names]

    def tool(self, offer):
        return tool(lambda: offer.name, name=offer.name, description="It.", read_only=True)


def test_a_source_is_asked_once_a_turn_and_its_changes_are_seen(everhold):
    """Also where the overlay of the turn is the same as before."""
    everhold.checks = False  # the source is another one afterwards
    source = Source("one")
    agent = Agent(tools=[source, look], name="<locals>.sourced")
    session, _, model = talk(everhold, agent, use("look", what="x"))
    assert source.asked == 1 and list(model.tools[1]) == ["look", "one"]
    source.names = ("two",)
    session.send("Again.")
    assert list(model.tools[-1]) == ["look", "two"] and source.asked == 2
    source.names = ("one", "two")
    session.send("Again.")
    assert list(model.tools[-1]) == ["look", "one", "two"]  # it is bound again


def test_two_tools_of_one_name_are_refused(everhold):
    with pytest.raises((BadArguments, ToolClash)):
        Agent(tools=[dig, dig_deep], name="<locals>.clash")


def test_a_prompt_that_did_not_change_is_stored_once(everhold):
    session, _, _ = talk(everhold, digger)
    session.send("Again.")
    prompts = [node for node in session.stored(fresh=True).nodes if node.kind == "prompt"]
    assert len(prompts) == 1
    session.send("Hide.", options={"tools": {"hidden": ["dig"]}})
    prompts = [node for node in session.stored(fresh=True).nodes if node.kind == "prompt"]
    assert len(prompts) == 2


# ---- what comes of calls


def test_results_are_in_the_order_of_the_calls(everhold):
    calls = uses(("look", {"what": "a"}), ("fails", {}), ("look", {"what": "b"}))
    session, turn, _ = talk(everhold, worker, calls)
    assert told(session.history()) == ["a: found", "Error: LookupError: nothing there", "b: found"]
    assert turn.text == "Done."


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (use("nobody"), "there is no tool 'nobody'"),
        (use("look"), "what"),
        (use("look", what=7), "input.what should be a string, got 7"),
    ],
    ids=["unknown", "missing", "wrong"],
)
def test_a_call_that_does_not_fit_is_an_error_that_the_model_sees(everhold, call, words):
    session, turn, _ = talk(everhold, worker, call)
    (result,) = told(session.history())
    assert result.startswith("Error: ") and words in result and RAN == []
    assert turn.text == "Done."


def test_a_tool_is_retried_only_if_it_says_so(everhold):
    session, _, _ = talk(everhold, worker, use("flaky"))
    while session.view().pending:
        everhold.skip(seconds=30)
    assert told(session.history()) == ["worked"] and len(RAN) == 3


def test_a_result_may_come_later(everhold):
    """The turn waits for it, as long as it takes, and resumes with it."""
    session, turn, _ = talk(everhold, worker, use("order", what="tea"))
    (query,) = turn.queries
    assert query.prompt == "When will tea come?"
    everhold.restart()
    everhold.runtime.answer(query, "tomorrow")
    assert session.turn(turn.input_id).text == "Done."
    assert told(session.history()) == ["tomorrow"]


def test_policies_deny_and_confirm(everhold):
    verdicts = {"a": Deny("not yours"), "b": Confirm("it costs money")}
    agent = Agent(
        tools=[look], policy=lambda wanted: verdicts[wanted.input["what"]], name="<locals>.guarded"
    )
    calls = uses(("look", {"what": "a"}), ("look", {"what": "b"}))
    session, turn, _ = talk(everhold, agent, calls)
    (query,) = turn.queries
    assert query.kind == "approval" and "it costs money" in query.prompt and RAN == []
    everhold.runtime.answer(query, True)
    assert session.turn(turn.input_id).text == "Done."
    first, second = told(session.history())
    assert "not yours" in first and second == "b: found" and RAN == ["b"]


def test_a_long_result_is_shown_in_part_and_kept_whole(everhold):
    session, _, _model = talk(everhold, worker, use("long"))
    (shown,) = told(session.history())
    (kept,) = everhold.runtime.attachments(session.id)
    assert shown.startswith("line 0\nline 1\nline 2\n[Truncated to the first")
    assert f"The whole result is attachment {kept.id}" in shown
    assert everhold.runtime.attachment(session.id, kept.id).endswith(b"line 99\n")


def test_attachments_belong_to_their_session(everhold):
    session, _, _ = talk(everhold, worker, use("draw"))
    (name,) = told(session.history())
    assert everhold.runtime.attachment(session.id, name) == b"\x89PNG"
    other = everhold.runtime.session(worker, "other")
    with pytest.raises(UnknownAttachment):
        everhold.runtime.attachment(other.id, name)


def test_a_picture_is_a_part_of_a_result(everhold):
    _, _, model = talk(everhold, worker, use("drawing"))
    (result,) = model.shown[-1][-1]["content"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]


def test_what_a_tool_says_beside_its_result_is_heard_once_at_the_next_checkpoint(everhold):
    session, _, model = talk(everhold, worker, use("knock"))
    said = [extract_text(message["content"]) for message in model.shown[1]]
    assert said[-1] == "Somebody is at the door."
    session.send("And?")
    assert str(session.messages()).count("Somebody is at the door.") == 1


def test_a_tool_asks_a_model_and_its_cost_has_a_source_of_its_own(everhold):
    session, _, _ = talk(everhold, worker, use("ask", what="tea"))
    assert told(session.history()) == ["a drink"]
    assert session.usage().report()["by_source"]["tool:ask"]["total"] == 8
    everhold.restart()
    assert session.usage().report()["by_source"]["tool:ask"]["total"] == 8


def test_instructions_and_layers_make_the_prompt(everhold):
    """Core, then session, then turn: a layer adds, replaces or clears."""
    agent = Agent(instructions="You are kind.", name="<locals>.layered")
    session, _, model = talk(everhold, agent)
    session.configure({"prompt": {"add": {"guidance": "Be brief."}}})
    session.send("2")
    session.send("3", options={"prompt": {"replace": {"intro": "You are stern."}}})
    session.send("4")
    assert model.systems == [
        "You are kind.",
        "You are kind.\n\nBe brief.",
        "You are stern.\n\nBe brief.",
        "You are kind.\n\nBe brief.",
    ]
