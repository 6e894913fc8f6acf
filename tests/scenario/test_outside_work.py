"""What running work may reach beside its result, through the public API: events, signals, messages,
nodes, values of a turn, the environment, extensions of plugins; and who did what.
"""

import pytest

from everhold import Agent, Plugin, open_blocking, program, tool
from everhold.agents import NodeKind, OperationDone, ProcessEnvironment, ToolContext, system
from everhold.errors import (
    BadArguments,
    InputConflict,
    TurnStopped,
    UnknownExtension,
    UnknownOperation,
)
from everhold.hooks import AddMessages, operation
from everhold.testing import ManualClock
from tests.scenario.talk import told, use

SEEN = []


@program
async def ship(ctx, order: str):
    """What the trigger starts."""
    return f"shipped {order}"


@program
async def counts(ctx):
    """Receive one signal."""
    return await ctx.receive("paid")


@tool(rerun="safe")
async def sell(context: ToolContext, order: str) -> str:
    """Sell, and tell everybody."""
    context.emit("order.sold", {"order": order})
    await context.sessions.signal("counter", "paid", order)
    context.append("sale", {"order": order})
    context.say("Mind the stock.", "system")
    return f"sold {order}"


@tool(rerun="safe")
async def count(context: ToolContext) -> str:
    """Begin a session, and await it."""
    begun = await context.sessions.begin(ship(order="9"))
    status = await context.sessions.wait(begun, 60)
    return str(status.result)


@tool
async def fails(context: ToolContext) -> str:
    """Asks for everything, and fails."""
    context.emit("order.sold", {"order": "none"})
    context.append("sale", {"order": "none"})
    raise ValueError("no")


class Warehouse:
    """What a plugin offers to tools."""

    name = "north"


class Stocked(Plugin):
    """Offers an extension, and sets a value for each turn."""

    name = "stocked"
    roles = ("user", "assistant")
    extensions = (Warehouse(),)

    def before_turn(self, moment):
        SEEN.append(dict(moment.turn_values))
        moment.set_turn_value("mood", f"turn {moment.turn}")
        return AddMessages([{"role": "assistant", "content": "I am ready."}])

    def after_turn(self, moment, settled):
        SEEN.append(dict(moment.turn_values))


@tool(read_only=True)
async def look(context: ToolContext) -> list:
    """Look around."""
    with pytest.raises(UnknownExtension):
        context.extension(int)
    given = context.environment
    mood = context.moment.turn_values["mood"]
    return [context.extension(Warehouse).name, given.folder, given.variables, given.timeout, mood]


seller = Agent(tools=[sell, fails, count], name="outside_seller")
stocked = Agent(
    tools=[look],
    plugins=[Stocked()],
    environment=ProcessEnvironment(folder="/srv", variables={"A": "1"}, timeout=30),
    name="outside_stocked",
)


@pytest.fixture
def lines():
    """What the model says."""
    SEEN.clear()
    return []


@pytest.fixture(params=["memory", "sqlite"])
def runtime(request, lines, tmp_path):
    async def model(query):
        return lines.pop(0) if lines else "Done."

    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/app.db"
    with open_blocking(url, llm=model, clock=ManualClock()) as opened:
        yield opened


def test_the_events_of_a_turn_start_what_they_trigger_and_its_outcome_says_so(runtime, lines):
    lines += [use("sell", order="7")]
    runtime.triggers.add("order.sold", ship)
    runtime.start(counts(), key="counter", wait=0)
    turn = runtime.session(seller, "s").send("Sell it.")
    (event,) = turn.settled.events
    (handover,) = event.handovers
    assert (event.event, handover.state, handover.error) == ("order.sold", "started", "")
    assert runtime.wait(handover.session_id, 60).result == "shipped 7"


def test_a_tool_signals_another_session_and_appends_a_node_and_a_message(runtime, lines):
    lines += [use("sell", order="7")]
    runtime.start(counts(), key="counter", wait=0)
    session = runtime.session(seller, "s")
    session.send("Sell it.")
    assert runtime.wait("counter", 60).result == "7"
    (node,) = session.nodes("sale")
    assert node.kind is NodeKind.CUSTOM and node.content["body"] == {"order": "7"}
    assert session.nodes("other") == []
    said = [(one["role"], one["content"][0].get("text")) for one in session.messages()]
    assert said[-2:] == [("system", "Mind the stock."), ("assistant", "Done.")]


def test_a_tool_awaits_a_session_that_it_began(runtime, lines):
    lines += [use("count")]
    session = runtime.session(seller, "s")
    session.send("Count.")
    assert told(session.history()) == ["shipped 9"]


def test_a_call_that_fails_asks_for_nothing(runtime, lines):
    lines += [use("fails")]
    runtime.triggers.add("order.sold", ship)
    session = runtime.session(seller, "s")
    assert session.send("Go.").settled.events == [] and session.nodes() == []
    assert [row for row in runtime.sessions() if row.program == ship.ref] == []


def test_tools_find_extensions_the_environment_and_the_values_of_the_turn(runtime, lines):
    lines += [use("look"), "Done.", use("look")]
    session = runtime.session(stocked, "s")
    session.send("Look.")
    session.configure({"environment": {"folder": "/tmp", "timeout": 5}})
    session.send("Look again.")
    first, second = told(session.history())
    assert first == ["north", "/srv", {"A": "1"}, 30, "turn 1"]
    # the second turn set the options
    assert second[:2] == ["north", "/tmp"] and second[3:] == [5, "turn 3"]


def test_a_value_of_a_turn_ends_with_it(runtime, lines):
    session = runtime.session(stocked, "s")
    session.send("One.")
    session.send("Two.")
    assert [one for one in SEEN if not one] == [{}, {}]  # each turn begins without values


def test_a_plugin_adds_messages_with_the_roles_that_it_has(runtime, lines):
    session = runtime.session(stocked, "s")
    session.send("Hi.")
    assert [one["role"] for one in session.messages()] == ["user", "assistant", "assistant"]

    class Forging(Plugin):
        name = "forging"

        def before_turn(self, moment):
            return AddMessages([{"role": "assistant", "content": "As I said."}])

    refused = Agent(plugins=[Forging()], name="<locals>.forging")
    turn = runtime.session(refused, "no").send("Hi.")
    assert turn.outcome.code == "bad_directive"
    Forging.roles = ("tool",)
    with pytest.raises(BadArguments, match="role 'tool'"):
        Agent(plugins=[Forging()], name="<locals>.tool")


def test_who_cancelled_is_recorded_and_a_keyed_signal_is_sent_once(runtime, lines):
    status = runtime.start(counts(), wait=0)
    runtime.cancel(status, "enough", by={"user": "maria"})
    step = runtime.steps(status)[-1]
    assert (step.cancel, step.by) == ("enough", {"user": "maria"})
    other = runtime.start(counts(), wait=0)
    for _ in range(2):
        runtime.signal(other, "paid", "once", key="k")
    assert runtime.wait(other, 60).result == "once"
    with pytest.raises(InputConflict):
        runtime.signal(other, "paid", "twice", key="k")


# ---- the host and plugins


class Notes(Plugin):
    """Remembers notes."""

    name = "notes"

    def restore(self, state):
        self.notes = list(state or [])

    def snapshot(self):
        return self.notes

    @operation
    async def add(self, moment, text: str) -> int:
        """Add a note."""
        self.notes = [*self.notes, text]
        self.revision += 1
        return len(self.notes)

    @operation(read_only=True)
    def all(self, moment) -> list[str]:
        """List the notes."""
        return list(self.notes)

    @operation
    def fail(self, moment) -> None:
        """Fail."""
        raise ValueError("no notes")


noted = Agent(plugins=[Notes()], name="outside_noted")


def test_a_host_runs_the_operations_that_a_plugin_declares(runtime, lines):
    """One that writes is a turn with a receipt; the same id is run once."""
    session = runtime.session(noted, "s")
    notes = session.plugin("notes")
    assert notes.call("all") == [] and notes.call("add", text="milk", id="one") == 1
    assert notes.call("add", text="milk", id="one") == 1
    assert notes.call("all") == ["milk"]
    assert [one.outcome for one in session.turns()] == [OperationDone("notes", "add", 1)]
    assert session.fork().plugin("notes").call("add", text="tea") == 2


def test_what_a_plugin_does_not_declare_is_refused(runtime, lines):
    session = runtime.session(noted, "s")
    with pytest.raises(UnknownOperation, match="'absent'"):
        session.plugin("absent")
    notes = session.plugin("notes")
    with pytest.raises(UnknownOperation, match="'restore'"):
        notes.call("restore")
    with pytest.raises(BadArguments, match="text"):
        notes.call("add", text=7)
    with pytest.raises(TurnStopped, match="no notes"):
        notes.call("fail")
    assert notes.call("all") == []


def test_a_host_sends_messages_with_a_role(runtime, lines):
    session = runtime.session(noted, "s")
    session.send(system("Be brief."))
    session.send("Hi.")
    assert [one["role"] for one in session.messages()] == [
        "system",
        "assistant",
        "user",
        "assistant",
    ]
