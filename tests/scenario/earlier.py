"""Agents whose plugins disagreed when the last directive stood; tests/data/plugins-1.json has
journals of theirs.

The journals were written by the version before directives were folded. They must replay as they
are.
"""

from everhold.agents.agent import Agent
from everhold.core.tool import Confirm, Deny
from everhold.hooks import (
    Abort,
    AddMessages,
    Ask,
    Contribute,
    Finish,
    Plugin,
    ReplaceInput,
    ReplaceResult,
    Reply,
)
from everhold.ports.tool import tool
from everhold.programs.lua.code_executor import Lua
from tests.scenario.talk import use, uses


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


def says(name, hook, said):
    """A plugin that returns the same from one hook; what is callable is called with what the hook
    is given.
    """

    def decide(self, *given):
        return said(*given) if callable(said) else said

    return type(name.title(), (Plugin,), {"name": name, hook: decide})()


def of(moment, call):
    """What each sort of call is told, by its input."""
    return {"deny": Deny("no"), "reply": Reply("known"), "a": ReplaceInput({"what": "A"})}.get(
        call.input["what"]
    )


def again(moment, call):
    return {
        "reply": Confirm("sure?"),
        "deny": Reply("late"),
        "a": ReplaceInput({"what": "AA"}),
    }.get(call.input["what"])


confirms = Agent(
    tools=[look],
    plugins=[
        says("one", "before_tool_call", Confirm("one?", to="ann")),
        says("two", "before_tool_call", Confirm("two?")),
    ],
    name="earlier_confirms",
)
calls = Agent(
    tools=[look],
    plugins=[says("one", "before_tool_call", of), says("two", "before_tool_call", again)],
    name="earlier_calls",
)
replied = Agent(
    tools=[look],
    plugins=[
        says("one", "before_tool_call", Confirm("sure?")),
        says("two", "before_tool_call", Reply("known")),
    ],
    name="earlier_replied",
)
models = Agent(
    plugins=[
        says("one", "before_model_call", Reply("cached")),
        says("two", "before_model_call", Abort("no")),
    ],
    name="earlier_models",
)
results = Agent(
    tools=[look],
    plugins=[
        says("one", "before_result", ReplaceResult("one")),
        says("two", "before_result", ReplaceResult("two")),
    ],
    name="earlier_results",
)
turns = Agent(
    plugins=[
        says("one", "before_turn", [AddMessages(["Well."]), Finish("one")]),
        says("two", "before_turn", Abort("two")),
    ],
    name="earlier_turns",
)


def asks(name):
    def before_turn(moment):
        return (
            Contribute("guidance", f"{name}: {moment.said!r}")
            if moment.said
            else Ask(f"{name}?", name)
        )

    return says(name, "before_turn", before_turn)


asking = Agent(plugins=[asks("one"), asks("two")], name="earlier_asking")
programs = Agent(
    tools=[look],
    code=Lua(),
    plugins=[says("one", "before_result", lambda moment, call, content: ReplaceResult("hidden"))],
    name="earlier_programs",
)

#: By name: the agent, what its model says, and what people answer in turn.
STORIES = {
    "confirms": (confirms, [use("look", what="x"), "Done."], [True]),
    "paused": (confirms, [use("look", what="x"), "Done."], []),
    "calls": (
        calls,
        [uses(*(("look", {"what": what}) for what in ("deny", "reply", "a", "b"))), "Done."],
        [],
    ),
    "replied": (replied, [use("look", what="x"), "Done."], []),
    "models": (models, [], []),
    "results": (results, [use("look", what="x"), "Done."], []),
    "turns": (turns, [], []),
    "asking": (asking, ["first", "second", "Done."], []),
    "programs": (programs, [use("lua", code='return tool("look", {what = "x"})'), "Done."], []),
}
