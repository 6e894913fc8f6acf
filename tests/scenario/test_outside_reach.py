"""What running work reaches through the public API: values, sessions, children, processes."""

import pytest

from everhold import Agent, Answer, Usage, open_blocking, program, subagent, tool
from everhold.agents import ToolContext, TurnCancelled
from everhold.testing import ManualClock, crash_everywhere
from tests.scenario.talk import told, use, uses

USED = Usage(prompt_tokens=10, completion_tokens=1, model="m")


@program
async def digest(ctx, words: str, ask: bool = False):
    """A program that tools begin and hand on to."""
    if ask and not await ctx.approval(f"Digest {words}?"):
        raise ValueError("not digested")
    return {"digest": words}


@program
async def listens(ctx):
    """Wait for a signal."""
    return await ctx.receive("word")


@tool(rerun="safe")
async def count(context: ToolContext, key: str) -> int:
    """Count something."""
    shop = context.state("outside")
    shop.incr(key)
    return int(await shop.get(key))


@tool
async def fails(context: ToolContext) -> str:
    """Writes, and fails."""
    context.state("outside").set("last", "lost")
    raise ValueError("no")


@tool
async def read(context: ToolContext, key: str) -> str:
    """Read a value."""
    return str(await context.state("outside").get(key))


@tool(read_only=True)
def where(context: ToolContext) -> dict:
    """Where the conversation stands."""
    moment = context.moment
    return {
        "turn": moment.turn,
        "messages": len(moment.messages),
        "frame": moment.frame.id,
        "root": moment.root,
        "mine": context.session_id == moment.session_id,
        "keyed": len(context.idempotency_key) > 8 and bool(context.call_id),
        "cancelled": context.cancelled,
    }


@tool(rerun="safe")
async def begin(context: ToolContext) -> str:
    """Begin a session that goes on by itself."""
    begun = await context.sessions.begin(listens(), title="a listener")
    assert await context.sessions.all() == [begun]
    return str((await context.sessions.status(begun)).state)


@tool
async def stop(context: ToolContext) -> str:
    """Stop it."""
    (begun,) = await context.sessions.all()
    return str((await context.sessions.cancel(begun, "enough")).state)


@tool
def summarise(words: str, ask: bool = False):
    """Have something digested."""
    return digest(words=words, ask=ask)


class Cast:
    """A model for all agents: each says its own lines, by its instructions."""

    def __init__(self, **lines):
        self.lines = {role: list(said) for role, said in lines.items()}
        self.shown = []

    async def __call__(self, query):
        role = next(name for name in self.lines if (query.system or "boss").startswith(name))
        self.shown.append((role, query.messages, (query.options or {}).get("model")))
        return Answer(self.lines[role].pop(0) if self.lines[role] else "Done.", USED)


clerk = Agent(
    instructions="boss",
    tools=[count, fails, read, where, begin, stop, summarise],
    name="outside_clerk",
)
finder = Agent(instructions="finder", name="outside_finder")
boss = Agent(
    "local:boss",
    instructions="boss",
    subagents=[subagent(finder, name="finder", description="Finds things.")],
    name="outside_boss",
)
keeper = Agent(instructions="boss", background=[listens], name="outside_keeper")


class House:
    """A runtime and its model."""

    def __init__(self, runtime, cast):
        self.runtime = runtime
        self.cast = cast


@pytest.fixture
def house():
    cast = Cast(boss=[])
    with open_blocking("memory://", llm=cast, clock=ManualClock()) as runtime:
        yield House(runtime, cast)


def talk(house, agent, *lines, **roles):
    house.cast.lines = {"boss": list(lines), **{role: list(said) for role, said in roles.items()}}
    session = house.runtime.session(agent, "chat")
    return session, session.send("Go."), house.cast


# ---- state and graph


def test_what_a_tool_writes_lands_with_its_result_and_counts_once(house):
    calls = uses(("count", {"key": "a"}), ("count", {"key": "a"}))
    session, _, _ = talk(house, clerk, calls, use("read", key="a"))
    assert told(session.history())[2] == "2"


def test_what_a_call_that_fails_has_written_is_not_kept(house):
    session, _, _ = talk(house, clerk, use("fails"), use("read", key="last"))
    assert told(session.history()) == ["Error: ValueError: no", "None"]


def test_a_tool_sees_where_the_conversation_stands(house):
    session, _, _ = talk(house, clerk, use("where"))
    assert told(session.history()) == [
        {
            "turn": 1,
            "messages": 2,  # with the call itself
            "frame": "initial",
            "root": True,
            "mine": True,
            "keyed": True,
            "cancelled": False,
        }
    ]


# ---- sessions and processes


def test_a_tool_begins_looks_at_and_cancels_sessions(house):
    session, _, _ = talk(house, clerk, use("begin"), use("stop"))
    assert told(session.history()) in (["paused", "cancelled"], ["running", "cancelled"])
    (begun,) = house.runtime.sessions(labels={"begun_by": session.id})
    assert (begun.title, begun.state) == ("a listener", "cancelled")


def test_a_tool_hands_on_to_a_program_which_is_a_child(house):
    """Its result is the tool's, and what it asks is the turn's question."""
    session, turn, _ = talk(house, clerk, use("summarise", words="x", ask=True))
    (query,) = turn.queries
    assert query.prompt == "Digest x?" and query.session_id != session.id
    house.runtime.answer(query, True)
    assert session.turn(turn.input_id).text == "Done."
    assert told(session.history()) == [{"digest": "x"}]
    (child,) = house.runtime.sessions(parent=session.id)
    assert child.state == "completed"


def test_a_model_starts_lists_signals_awaits_and_cancels_processes(house):
    """They outlive the turn, and their end wakes the conversation."""
    session, _, cast = talk(house, keeper, use("process_start", program="listens"), "Begun.")
    (started,) = told(session.history())
    name = started["id"]
    cast.lines["boss"] = [
        use("process_list"),
        uses(("process_signal", {"id": name, "name": "word", "value": "hello"})),
        use("process_wait", id=name),
        use("process_cancel", id=name),
        "All of it.",
    ]
    assert session.send("Handle it.").text == "All of it."
    listed, _, ended, late = told(session.history())[1:5]
    assert name in str(listed) and "hello" in str(ended)
    assert house.runtime.status(name).state == "completed" and late is not None


@program
async def manager(ctx):
    """Begins two, and hears of both."""
    process = await ctx.background(listens(), title="the listener")
    other = await ctx.background(listens())
    assert await process.signal("word", "hello")
    first = await process.wait()
    assert await other.cancel("enough")
    return [
        first["state"],
        first["value"],
        (await other.wait())["state"],
        len(await ctx.processes()),
    ]


def test_a_program_begins_signals_awaits_and_cancels_processes(everhold):
    assert everhold.run(manager()) == ["completed", "hello", "cancelled", 2]


# ---- subagents


def test_a_task_is_done_in_a_session_of_its_own(house):
    """It knows its instructions and the prompt, and not the conversation above."""
    lines = [use("task", agent="finder", prompt="Find y."), "Here."]
    session, turn, cast = talk(house, boss, *lines, finder=["y is there."])
    assert turn.text == "Here." and told(session.history()) == ["y is there."]
    role, messages, model = cast.shown[1]
    assert (role, model) == ("finder", "local:boss")
    assert "Find y." in str(messages) and "Go." not in str(messages)
    (child,) = house.runtime.sessions(parent=session.id)
    assert child.state == "completed"


def test_what_children_spend_is_entered_under_their_own_source(house):
    lines = [use("task", agent="finder", prompt="Find y."), "Here."]
    session, _, _ = talk(house, boss, *lines, finder=["y."])
    by_source = session.usage().report()["by_source"]
    assert {name: cost["input"] for name, cost in by_source.items()} == {
        "turn": 20,
        "subagent:finder": 10,
    }


def test_an_unknown_subagent_is_an_error_that_the_model_sees(house):
    session, turn, _ = talk(house, boss, use("task", agent="nobody", prompt="x"))
    assert "subagent not declared" in told(session.history())[0] and turn.text == "Done."
    assert house.runtime.sessions(parent=session.id) == []


def test_cancelling_a_turn_cancels_its_children(everhold):
    leader = Agent(subagents=[subagent(finder, name="finder")], name="<locals>.leader")
    session = everhold.runtime.session(leader, "chat")
    turn = session.send("Go.", wait=0)
    everhold.runtime.answer(turn.queries[0], use("task", agent="finder", prompt="x"))
    (child,) = everhold.runtime.sessions(parent=session.id)
    assert session.cancel_turn("enough").outcome == TurnCancelled("enough")
    everhold.skip(seconds=1)
    assert everhold.runtime.status(child.session_id).state == "cancelled"


# ---- durable


thorough = Agent("local:x", tools=[count, summarise], name="outside_thorough")


@program
async def whole(ctx):
    """A turn that writes and hands on, and what was counted."""
    said = await ctx.spawn(thorough(task="Go."))
    return [said, await ctx.state("outside").get("calls")]


def test_a_turn_that_writes_and_hands_on_is_crashed_at_every_commit():
    """Whatever dies, each value is written once and the program runs once."""
    lines = iter(
        [
            uses(("count", {"key": "calls"}), ("summarise", {"words": "x"})),
            use("count", key="calls"),
            "Done.",
        ]
    )

    async def model(query):
        return next(lines)

    report = crash_everywhere(whole(), answers=model)
    assert report.result == ["Done.", 2] and report.commits >= 6


@pytest.mark.parametrize("words", ["x", "y"])
def test_the_same_work_begins_the_same_sessions(house, words):
    session, _, _ = talk(house, clerk, use("summarise", words=words))
    assert session.send("And?").text == "Done."
    assert len(house.runtime.sessions(parent=session.id)) == 1
