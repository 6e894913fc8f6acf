"""What running work may reach: events, signals, messages and nodes that land with its result, the
environment of what it starts, and extensions of plugins.
"""

import asyncio
import sys

import pytest

import everhold
from everhold import Usage
from everhold.agents import (
    Lua,
    Message,
    NodeKind,
    ProcessEnvironment,
    Role,
    Text,
    ToolContext,
    assistant,
    subagent,
    system,
    tool,
)
from everhold.errors import BadArguments, NotAllowed, UnknownExtension
from everhold.hooks import AddMessages, Plugin
from everhold.models import subscribe
from everhold.stores import MemoryStore
from everhold.testing import CrashingStore, ManualClock
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, told, use, uses

seen = []


@pytest.fixture(autouse=True)
def fresh():
    seen.clear()


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path


@everhold.program
async def ship(ctx, order: str):
    """What the trigger starts."""
    return f"shipped {order}"


@everhold.program
async def counts(ctx, many: int = 1):
    """Receives signals."""
    return [await ctx.receive("paid") for _ in range(many)]


@tool(rerun="safe")
async def sell(context: ToolContext, order: str, counter: str = "") -> str:
    """Sell, and tell everybody."""
    context.emit("order.sold", {"order": order})
    if counter:
        await context.sessions.signal(counter, "paid", order)
    context.append("sale", {"order": order})
    context.say("Mind the stock.", "system")
    context.state("shop").incr("sold")
    return f"sold {order}"


@tool
async def fails(context: ToolContext) -> str:
    """Asks for everything, and fails."""
    context.emit("order.sold", {"order": "none"})
    context.append("sale", {"order": "none"})
    context.say("never", "system")
    raise ValueError("no")


seller = everhold.Agent("local:seller", tools=[sell, fails])


async def ended(runtime, session):
    """The status of a session that ends by itself."""
    for _ in range(10_000):
        status = await runtime.status(session)
        if isinstance(status, everhold.Finished):
            return status
        await asyncio.sleep(0)
    raise TimeoutError(f"{session} is {status.state}")


async def shipped(runtime):
    rows = await runtime.sessions(program=ship.ref)
    return sorted([(await ended(runtime, row.session_id)).result for row in rows])


async def test_what_a_tool_asks_for_lands_with_its_result(place):
    """Row 11: triggers. The event starts what it has to, the signal arrives, the node and the
    message are in the conversation, and the outcome of the turn says what the triggers did.
    """
    model = Scripted(use("sell", order="7", counter="count"), "Done.")
    async with opened(place, llm=model) as runtime:
        await runtime.triggers.add("order.sold", ship)
        await runtime.start(counts(), key="count", wait=0)
        session = await runtime.session(seller, "s")
        turn = await session.send("Sell it.")
        assert turn.text == "Done."
        (event,) = turn.settled.events
        (handover,) = event.handovers
        assert (event.event, handover.state, handover.error) == ("order.sold", "started", "")
        assert (await ended(runtime, handover.session_id)).result == "shipped 7"
        assert (await ended(runtime, "count")).result == ["7"]
        (node,) = await session.nodes("sale")
        assert node.kind is NodeKind.CUSTOM and node.content["body"] == {"order": "7"}
        assert await session.nodes("other") == [] and await session.nodes() == [node]
        said = [(one["role"], one["content"][0].get("text")) for one in await session.messages()]
        assert said[-2:] == [("system", "Mind the stock."), ("assistant", "Done.")]
        events = []
        async for one in session.events():
            events.append((one.kind, one.name))
            if one.kind == "settled":
                break
        assert ("node", "sale") in events
    assert model.shown[-1][-1] == {
        "role": "system",
        "content": [{"type": "text", "text": "Mind the stock."}],
    }


async def test_a_call_that_fails_asks_for_nothing(place):
    """Nothing lands without its result."""
    model = Scripted(uses(("fails", {}), ("sell", {"order": "1"})), "Oh.")
    async with opened(place, llm=model) as runtime:
        await runtime.triggers.add("order.sold", ship)
        session = await runtime.session(seller, "s")
        turn = await session.send("Go.")
        assert [one.event for one in turn.settled.events] == ["order.sold"]
        assert [node.content["body"] for node in await session.nodes()] == [{"order": "1"}]
        assert "never" not in str(await session.messages())


async def test_a_turn_that_is_cancelled_keeps_what_its_tools_have_asked_for(place):
    """The result is recorded, so the event is sent, and the node and the message are there."""
    reached = asyncio.Event()

    async def model(query):
        if query.messages[-1]["role"] == "user":
            return use("sell", order="7")
        reached.set()
        await asyncio.sleep(60)

    async with opened(place, llm=model) as runtime:
        await runtime.triggers.add("order.sold", ship)
        session = await runtime.session(seller, "s")
        going = asyncio.ensure_future(session.send("Go."))
        await reached.wait()
        turn = await session.cancel_turn("enough")
        await going
        assert [one.handovers[0].state for one in turn.settled.events] == ["started"]
        assert len(await session.nodes("sale")) == 1


class Dead(BaseException):
    """The end of a process."""


class Dying(CrashingStore):
    """Refuses everything once its process has died."""

    def __init__(self, store, at=0, when="before"):
        super().__init__(store, at=at, when=when, die=self._end)
        self.dead = False
        self.died = asyncio.Event()

    def _end(self):
        self.dead = True
        self.died.set()
        raise Dead

    async def commit(self, change, fence):
        if self.dead:
            raise Dead
        await super().commit(change, fence)


class Model:
    """Sells twice at once, then says that it is done."""

    async def __call__(self, query):
        if all(message["role"] != "tool" for message in query.messages):
            return uses(
                ("sell", {"order": "1", "counter": "count"}),
                ("sell", {"order": "2", "counter": "count"}),
            )
        return "Done."


class Herald(Plugin):
    """Asks for everything with a decision."""

    name = "herald"
    roles = ("user", "system", "assistant")

    async def before_turn(self, moment):
        moment.emit("turn.begun", {"turn": moment.turn})
        moment.append("turn", moment.turn)
        moment.set_turn_value("mood", "calm")
        await moment.sessions.signal("count", "paid", "plugin")
        return AddMessages([{"role": "assistant", "content": "I am ready."}])


busy = everhold.Agent("local:busy", tools=[sell], plugins=[Herald()])


async def story(store, clock):
    """One process: everything up to the settled turn, or its death."""
    runtime = everhold.Runtime(store, clock=clock, llm=Model())
    await runtime.__aenter__()
    playing = asyncio.ensure_future(play(runtime))
    dying = asyncio.ensure_future(store.died.wait())
    await asyncio.wait([playing, dying], return_when=asyncio.FIRST_COMPLETED)
    for task in (playing, dying):
        task.cancel()
    await asyncio.gather(playing, dying, return_exceptions=True)
    await runtime.close(0)
    return None if playing.cancelled() or store.dead else playing.result()


async def play(runtime):
    await runtime.triggers.add("order.sold", ship)
    await runtime.start(counts(many=3), key="count", wait=0)
    session = await runtime.session(busy, "s")
    turn = await session.send("Sell.", id="one")
    return {
        "text": turn.text,
        "events": sorted(
            [one.event, *[each.state for each in one.handovers], one.error]
            for one in turn.settled.events
        ),
        "nodes": [node.content for node in await session.nodes()],
        "counted": sorted((await ended(runtime, "count")).result),
        "shipped": await shipped(runtime),
        "sold": await runtime.store.value("shop", "sold"),
        "messages": await session.messages(),
    }


def without_states(found):
    """A handover may be found started, or left to its next try, after a crash."""
    events = [
        [one for one in event if one not in ("started", "already", "waiting")]
        for event in found["events"]
    ]
    return {**found, "events": events}


async def test_what_is_asked_for_lands_once_wherever_the_process_dies():
    """Row 11: crashed before and after every commit, each event, signal, node and message is there
    once.
    """
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    first = Dying(MemoryStore())
    expected = await story(first, ManualClock())
    assert expected["shipped"] == ["shipped 1", "shipped 2"]
    assert expected["counted"] == ["1", "2", "plugin"] and len(expected["nodes"]) == 3
    assert first.commits > 10
    for at in range(1, first.commits + 1):
        for when in ("before", "after"):
            memory = MemoryStore()
            clock = ManualClock()
            dying = Dying(memory, at, when)
            found = await story(dying, clock)
            assert dying.dead, (at, when)
            clock.advance(100)
            if found is None:
                found = await story(Dying(memory), clock)
            assert without_states(found) == without_states(expected), (at, when)


# ---- what plugins do with a turn


class Mood(Plugin):
    """Sets a value for a turn, which the hooks of others and tools see."""

    name = "mood"

    def before_turn(self, moment):
        seen.append(("before", dict(moment.turn_values)))
        moment.set_turn_value("mood", moment.messages[-1]["content"][0]["text"])

    def before_checkpoint(self, moment):
        seen.append(("checkpoint", moment.turn_values))

    def after_turn(self, moment, settled):
        seen.append(("after", moment.turn_values))
        with pytest.raises(NotAllowed):
            moment.set_turn_value("mood", "late")
        with pytest.raises(NotAllowed):
            moment.emit("late")


class Second(Plugin):
    name = "second"

    def before_turn(self, moment):
        seen.append(("second", moment.turn_values))


@tool(read_only=True)
async def mood(context: ToolContext) -> str:
    """Tell the mood."""
    return str(context.moment.turn_values["mood"])


moody = everhold.Agent("local:moody", tools=[mood], plugins=[Mood(), Second()])


async def test_a_value_of_a_turn_is_seen_by_its_hooks_and_tools(place):
    """Row 9: a turn extension. It ends with the turn, and a replay has it again."""
    async with opened(place, llm=Scripted(use("mood"), "Good.", "Bye.")) as runtime:
        session = await runtime.session(moody, "s")
        await session.send("calm")
        assert told(await session.history()) == ["calm"]
        await session.send("wild")
        await asyncio.sleep(0)
    assert seen[0] == ("before", {}) and seen[1] == ("second", {"mood": "calm"})
    assert set(map(str, seen[2:5])) == {
        "('checkpoint', {'mood': 'calm'})",
        "('after', {'mood': 'calm'})",
    }
    assert ("before", {}) in seen[5:] and seen[-1] == ("after", {"mood": "wild"})


class Speaker(Plugin):
    """Adds a message with a role."""

    name = "speaker"

    def __init__(self, role, roles=None):
        self.role = role
        if roles is not None:
            self.roles = roles

    def before_turn(self, moment):
        return AddMessages([{"role": self.role, "content": "As I said."}])


async def test_a_plugin_adds_messages_with_the_roles_that_it_has():
    """Row 26: any role that it is allowed to give; the results of tools are a tool's alone."""
    async with opened(llm=Scripted("A."), replay=False) as runtime:
        allowed = everhold.Agent(
            plugins=[Speaker("assistant", ("assistant",))], name="<locals>.yes"
        )
        session = await runtime.session(allowed, "yes")
        assert (await session.send("Hi.")).text == "A."
        assert [one["role"] for one in await session.messages()] == [
            "user",
            "assistant",
            "assistant",
        ]
        refused = everhold.Agent(plugins=[Speaker("assistant")], name="<locals>.no")
        turn = await (await runtime.session(refused, "no")).send("Hi.")
        assert turn.outcome.code == "bad_directive" and "role assistant" in turn.outcome.error
    with pytest.raises(BadArguments, match="role 'tool'"):
        everhold.Agent(plugins=[Speaker("tool", ("tool",))])


# ---- environment and extensions


class Warehouse:
    """What a plugin offers to tools."""

    def __init__(self, name):
        self.name = name


class Stocked(Plugin):
    name = "stocked"

    def __init__(self):
        self.extensions = [Warehouse("north")]

    def before_turn(self, moment):
        seen.append(moment.extension(Warehouse).name)


@tool(read_only=True)
async def look(context: ToolContext) -> list:
    """Look at what there is."""
    with pytest.raises(UnknownExtension, match="no plugin offers a int") as error:
        context.extension(int)
    assert "Warehouse" in error.value.hint
    given = context.environment
    return [context.extension(Warehouse).name, given.folder, given.variables, given.timeout]


below = everhold.Agent(
    tools=[look],
    environment=ProcessEnvironment(variables={"B": "2", "A": None}, timeout=100),
)
above = everhold.Agent(
    "local:above",
    tools=[look],
    plugins=[Stocked()],
    subagents=[subagent(below, name="below")],
    environment=ProcessEnvironment(folder="/srv", variables={"A": "1"}, timeout=30),
)


class Looks:
    """Looks, and lets a subagent look."""

    async def __call__(self, query):
        if query.messages[-1]["role"] == "tool":
            return str(query.messages[-1]["content"][0]["content"])
        if "look" in str(query.messages[0]):
            return use("look")
        return use("task", agent="below", prompt="look")


async def test_tools_get_the_environment_of_their_agent_session_and_parent(place):
    """Row 31: a subagent inherits its parent's, has its own over it, and no wider limits. Tools and
    hooks find what a plugin offers by its type.
    """
    async with opened(place, llm=Looks()) as runtime:
        session = await runtime.session(above, "s")
        assert (await session.send("look")).text == "['north', '/srv', {'A': '1'}, 30]"
        await session.configure({"environment": {"folder": "/tmp", "variables": {"C": "3"}}})
        turn = await session.send("look", options={"environment": {"timeout": 5}})
        assert turn.text == "['north', '/srv', {'A': '1'}, 5.0]"
        other = await runtime.session(above, "other")
        await other.configure({"environment": {"folder": "/tmp", "variables": {"C": "3"}}})
        turn = await other.send("Ask the other.")
        assert turn.text == str(["north", "/tmp", {"A": None, "C": "3", "B": "2"}, 30])
        with pytest.raises(BadArguments, match="environment"):
            await session.configure({"environment": {"cwd": "/"}})
    assert seen[0] == "north"


@pytest.mark.process
async def test_a_process_runs_in_its_environment(tmp_path):
    """Folder, variables and limits hold for what a tool starts; at its limit it is killed."""
    code = "import os, sys; print(os.getcwd(), os.environ['X'], sys.stdin.read())"
    given = ProcessEnvironment(folder=str(tmp_path), variables={"X": "1"}, max_output=10_000)
    done = await given.run(sys.executable, "-c", code, stdin="in")
    assert (done.code, done.output.split(), done.errors) == (0, [str(tmp_path), "1", "in"], "")
    small = await ProcessEnvironment(max_output=5).run(sys.executable, "-c", "print('x' * 99)")
    assert (small.output, small.truncated) == ("xxxxx", True)
    slow = ProcessEnvironment(timeout=0.5)
    late = await slow.run(sys.executable, "-c", "import time; time.sleep(60)")
    assert late.code is None
    bare = ProcessEnvironment(inherit=False, variables={"X": "1"}).start_options()
    assert bare == {"cwd": None, "env": {"X": "1"}}


# ---- other sessions


@tool(rerun="safe")
async def hire(context: ToolContext) -> list:
    """Start a session, tell it something, and wait for it."""
    begun = await context.sessions.begin(ship(order="9"))
    status = await context.sessions.wait(begun, 30)
    return [status.state, status.result]


@tool
async def shout(context: ToolContext, to: str, name: str) -> str:
    """Send a signal."""
    await context.sessions.signal(to, name)
    return "sent"


@tool(rerun="safe")
async def spy(context: ToolContext, on: str) -> str:
    """Wait for a session of somebody else."""
    return str((await context.sessions.wait(on)).state)


boss = everhold.Agent("local:boss", tools=[hire, shout, spy])


async def test_a_tool_waits_for_sessions_that_it_started_and_signals_any(place):
    """Row 11: process. Names of everhold's own signals are refused, and sessions that are not there
    are too.
    """
    lines = []

    async def model(query):
        return lines.pop(0) if lines else "Done."

    async with opened(place, llm=model) as runtime:
        session = await runtime.session(boss, "s")
        await runtime.start(counts(), key="count", wait=0)
        lines.append(
            uses(
                ("hire", {}),
                ("shout", {"to": "count", "name": "input"}),
                ("shout", {"to": "nobody", "name": "paid"}),
                ("spy", {"on": session.id}),
            )
        )
        await session.send("Go.")
        hired, own, nobody, other = told(await session.history())
    assert hired == ["completed", "shipped 9"]
    assert "everhold uses itself" in own and "no session 'nobody'" in nobody
    assert "was not started by" in other


# ---- roles of messages that a host sends


async def test_a_host_sends_messages_with_a_role(place):
    """Row 26: as a turn of its own, into the running turn, and queued. A tool's role is refused."""
    reached, finish = asyncio.Event(), asyncio.Event()
    shown = []

    async def model(query):
        shown.append([one["role"] for one in query.messages])
        if len(shown) == 2:
            reached.set()
            await finish.wait()
        return f"{len(shown)}."

    async with opened(place, llm=model) as runtime:
        session = await runtime.session(moody, "s")
        await session.send(system("Be brief."), id="one")
        assert shown == [["system"]]
        assert (await session.send(system("Be brief."), id="one")).text == "1."
        going = asyncio.ensure_future(session.send("Hi."))
        await reached.wait()
        await session.steer(assistant("I meant no."))
        first = await session.enqueue(system("Now."))
        second = await session.enqueue("And this.")
        finish.set()
        await going
        assert (await session.turn(second.item.id)).text == "5."
        assert (await session.turn(first.item.id)).text == "4."
        roles = [one["role"] for one in await session.messages()]
        with pytest.raises(BadArguments, match="role tool"):
            await session.send(Message(Role.TOOL, (Text("x"),)))
    assert roles == [
        *("system", "assistant", "user", "assistant", "assistant", "assistant"),
        *("system", "assistant", "user", "assistant"),
    ]


# ---- what subagents use


deep = everhold.Agent("local:deep")
middle = everhold.Agent("local:middle", subagents=[subagent(deep, name="deep")])
top = everhold.Agent("local:top", subagents=[subagent(middle, name="middle")])


async def test_the_usage_of_subagents_is_told_while_they_run(place):
    """Row 13: by events of all sessions above, and in their ledgers; once, also when they end."""
    usage = Usage(prompt_tokens=10, completion_tokens=1)
    reached, finish = asyncio.Event(), asyncio.Event()

    async def model(query):
        if query.messages[-1]["role"] == "tool":
            if "Deep." in str(query.messages[-1]) and "Middle." not in str(query.messages):
                reached.set()
                await finish.wait()
                return everhold.Answer("Middle.", usage)
            return everhold.Answer("Top.", usage)
        match query.messages[0]["content"][0]["text"]:
            case "Go.":
                return everhold.Answer(use("task", agent="middle", prompt="on"), usage)
            case "on":
                return everhold.Answer(use("task", agent="deep", prompt="down"), usage)
        return everhold.Answer("Deep.", usage)

    async with opened(place, llm=model) as runtime:
        session = await runtime.session(top, "s")
        heard = []

        async def watch():
            async for event in session.events():
                if event.kind == "usage":
                    heard.append((event.name, event.usage.prompt_tokens))
                if len(heard) == 3:
                    return

        watching = asyncio.ensure_future(watch())
        going = asyncio.ensure_future(session.send("Go."))
        await reached.wait()
        while len(heard) < 2:  # before any turn above has ended
            await asyncio.sleep(0)
        running = (await session.usage()).report()["by_source"]
        assert (running["turn"]["input"], running["subagent:middle"]["input"]) == (10, 20)
        finish.set()
        turn = await going
        assert turn.text == "Top."
        ended_usage = (await session.usage()).report()["by_source"]
        assert (ended_usage["turn"]["input"], ended_usage["subagent:middle"]["input"]) == (20, 30)
        await watching
    assert heard == [
        ("subagent:middle", 10),
        ("subagent:middle/deep", 10),
        ("subagent:middle", 10),
    ]


# ---- the end of a stream of output

printing = everhold.Agent("local:printing", code=Lua())


@pytest.mark.process
@pytest.mark.parametrize("code", ["print('a') print('b')", "print('a') error('no')"])
async def test_a_reader_of_a_programs_output_ends_with_the_program(code):
    """Row 30: also where the program fails; the deltas before the end are read first."""
    model = Scripted({"tool_calls": [{"id": "c1", "name": "lua", "input": {"code": code}}]})
    async with opened(llm=model) as runtime:
        session = await runtime.session(printing, "s")
        with subscribe(session.id, call="c1") as output:
            heard = asyncio.ensure_future(_read_all(output))
            await session.send("Go.")
            kinds = await asyncio.wait_for(heard, 30)
    assert kinds[-1] == "end" and set(kinds[:-1]) == {"output"}


async def _read_all(output):
    return [str(delta.kind) async for _, delta in output]
