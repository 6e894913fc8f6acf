"""Subagents: tasks given to other agents, each in a session of its own."""

import asyncio

import pytest

from everhold.agents import subagents as limits
from everhold.agents.agent import Agent
from everhold.agents.subagents import subagent
from everhold.core.query import Usage
from everhold.core.tool import Allow, Confirm, Deny
from everhold.core.turn import TurnAnswered, TurnCancelled
from everhold.errors import BadArguments, TurnWaiting
from everhold.hooks import Contribute, Plugin
from everhold.plugins.budget import Allowance
from everhold.ports.answerer import Answer
from everhold.ports.tool import tool
from everhold.testing.clock import ManualClock
from tests.scenario.harness import die, dying, opened
from tests.scenario.talk import told, use, uses

done = []


@pytest.fixture(autouse=True)
def fresh():
    done.clear()
    verdicts.clear()


verdicts = {}


def guard(wanted):
    return verdicts.get(wanted.tool, Allow())


@tool
async def look(what: str) -> str:
    """Look something up."""
    done.append(what)
    return f"{what}: found"


finder = Agent(instructions="You find things.", tools=[look])
writer = Agent(
    "local:writer", instructions="You write.", subagents=[subagent(finder, name="finder")]
)
boss = Agent(
    "local:boss",
    instructions="You lead.",
    subagents=[
        subagent(finder, name="finder", description="Finds what you need."),
        subagent(writer, name="writer"),
    ],
    policy=guard,
)
leader = Agent(
    instructions="You lead.",
    subagents=[subagent(Agent(instructions="You find things.", returns=int | None), name="quiet")],
)
deep = Agent(instructions="Deeper.", name="deep")
deep.subagents = limits.collect_subagents([subagent(deep, name="deep")])

thrifty = Agent(
    instructions="You lead.",
    subagents=[subagent(finder, name="finder")],
    plugins=[Allowance(turn_tokens=40)],
)


class Cast:
    """A model for all of them: each says its own lines, by the instructions that it was given."""

    def __init__(self, **lines):
        self.lines = {role: list(said) for role, said in lines.items()}
        self.asked = []

    async def __call__(self, query):
        roles = {
            "You lead.": "boss",
            "You find things.": "finder",
            "You write.": "writer",
            "Deeper.": "deep",
        }
        role = next(role for words, role in roles.items() if query.system.startswith(words))
        self.asked.append((role, (query.options or {}).get("model"), query.messages))
        said = self.lines[role].pop(0)
        if callable(said):
            return await said(query)
        return Answer(said, Usage(prompt_tokens=10, completion_tokens=1, model=role))

    def results(self, role="boss"):
        """What this role was told of its last calls."""
        messages = [messages for who, _, messages in self.asked if who == role][-1]
        return [
            block["content"] for block in messages[-1]["content"] if block["type"] == "tool_result"
        ]


def task(agent, prompt="Find x."):
    return use("task", agent=agent, prompt=prompt)


async def talk(cast, agent=boss, **options):
    async with opened(llm=cast, **options) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.send("Go.")
        return turn, (await session.usage()).report()["by_source"], await session.history()


async def test_a_task():
    """A child does it in a session of its own; its answer is the result of the tool."""
    cast = Cast(boss=[task("finder"), "Here."], finder=[use("look", what="x"), "x is there."])
    turn, _, history = await talk(cast)
    assert turn.text == "Here." and told(history) == ["x is there."]
    assert done == ["x"]


async def test_what_a_child_knows():
    """It has its own instructions and the prompt, nothing of the conversation above, and the model
    above it.
    """
    cast = Cast(boss=[task("finder", "Find y."), "Here."], finder=["y."])
    await talk(cast)
    role, model, messages = cast.asked[1]
    assert (role, model) == ("finder", "local:boss")
    assert [message["role"] for message in messages] == ["user"]
    assert "Find y." in str(messages) and "Go." not in str(messages)


async def test_what_the_model_is_told_of_them():
    """The tool lists names and descriptions, and says where there is none."""
    shown = {}

    async def look_at(query):
        shown.update({one["name"]: one["description"] for one in query.options["tools"]})
        return "Done."

    await talk(Cast(boss=[look_at]))
    assert (
        "- finder: Finds what you need." in shown["task"]
        and "- writer: (no description)" in shown["task"]
    )


async def test_children_side_by_side_have_ledgers_of_their_own():
    """Row 11: what children cost is entered above under who spent it, model by model."""
    both = uses(
        ("task", {"agent": "finder", "prompt": "a"}), ("task", {"agent": "writer", "prompt": "b"})
    )
    cast = Cast(boss=[both, "Done."], finder=["A", "C"], writer=[task("finder", "c"), "B"])
    turn, usage, history = await talk(cast)
    assert turn.text == "Done." and sorted(told(history)) in (["A", "B"], ["B", "C"])
    assert {source: cost["input"] for source, cost in usage.items()} == {
        "turn": 20,
        "subagent:finder": 10,
        "subagent:writer": 30,  # with what its own child cost
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"agent": "finder"}, "prompt"),
        ({"agent": 7, "prompt": "x"}, "input.agent should be a string, got 7"),
        (
            {"agent": "nobody", "prompt": "x"},
            'subagent not declared: "nobody"; declared are finder, writer',
        ),
    ],
)
async def test_calls_that_begin_nothing(given, words):
    """The shape is checked first, then the name; the model is told, and no session is begun."""
    cast = Cast(boss=[use("task", **given), "Sorry."])
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        assert (await session.send("Go.")).text == "Sorry."
        assert len(await runtime.sessions()) == 1
    (result,) = cast.results()
    assert result.startswith("Error: ") and words in result


async def test_a_tree_has_so_many_delegations(monkeypatch):
    """The whole tree shares one budget for a turn of its top; the next turn has a fresh one."""
    monkeypatch.setattr(limits, "MAX_DELEGATIONS", 2)
    cast = Cast(
        boss=[task("writer"), task("finder"), "One.", task("finder"), "Two."],
        writer=[task("finder"), "W"],
        finder=["F", "F2"],
    )
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        assert (await session.send("Go.")).text == "One."
        assert cast.results() == ["Error: delegation budget exhausted: this tree has used 2"]
        assert (await session.send("Again.")).text == "Two."
        assert cast.results() == ["F2"]


async def test_a_tree_is_so_deep():
    """At the fifth level down nothing more is begun, and the refusal gives its place in the budget
    back.
    """
    cast = Cast(deep=[*[task("deep")] * 6, *["End."] * 6])
    turn, _, _ = await talk(cast, deep)
    assert turn.text == "End."
    refused = [messages for _, _, messages in cast.asked if "delegation" in str(messages[-1])]
    assert len(refused) == 1
    assert "Error: delegation depth exceeded: it is 5 here, and max_depth is 5" in str(
        refused[0][-1]
    )


async def test_the_budget_goes_before_the_depth(monkeypatch):
    """Where both are used up, the model hears of the budget."""
    monkeypatch.setattr(limits, "MAX_DELEGATIONS", 5)
    cast = Cast(deep=[*[task("deep")] * 6, *["End."] * 6])
    await talk(cast, deep)
    assert "delegation budget exhausted" in str(cast.asked[6][2][-1])


async def test_a_child_that_fails():
    """Its failure is an error that the model sees, and the turn goes on."""

    async def breaks(query):
        raise ValueError("no such model")

    turn, _, history = await talk(Cast(boss=[task("finder"), "Sorry."], finder=[breaks]))
    assert turn.text == "Sorry."
    (result,) = told(history)
    assert result.startswith("Error: subagent 'finder' failed: ") and "no such model" in result


async def test_a_child_that_came_to_nothing():
    """The model is told that there was nothing."""
    _, _, history = await talk(Cast(boss=[task("quiet"), "Ok."], finder=["null"]), leader)
    assert told(history) == [limits.NO_TEXT_RESULT]


async def test_policies_are_inherited():
    """What is denied above is denied below: nobody escapes by delegating."""
    verdicts["look"] = Deny("not today")
    cast = Cast(boss=[task("finder"), "Ok."], finder=[use("look", what="x"), "Could not."])
    await talk(cast)
    assert done == [] and cast.results("finder") == ["Error: denied by policy: not today"]


class Notes(Plugin):
    """Notes down which sessions it was in, and counts their turns."""

    name = "notes"
    tools = (look,)

    def __init__(self, label):
        self.label, self.turns = label, 0

    def restore(self, state):
        self.turns = state or 0

    def snapshot(self):
        return self.turns

    def before_turn(self, moment):
        self.turns, self.revision = self.turns + 1, self.revision + 1
        noted.append((self.label, moment.root, self.turns))
        return Contribute("guidance", f"Noted by {self.label}.")


noted = []
plugged = Agent(
    instructions="You lead.",
    plugins=[Notes("above")],
    subagents=[
        subagent(Agent(instructions="You find things."), name="finder"),
        subagent(Agent(instructions="You write.", plugins=[Notes("its own")]), name="writer"),
    ],
)


async def test_plugins_are_inherited():
    """Each child has a copy that begins anew, without its tools; a child's own of the same name
    takes its place.
    """
    noted.clear()
    offered = {}

    async def seen(query):
        offered[query.system] = [one["name"] for one in (query.options or {}).get("tools", [])]
        return "Seen."

    cast = Cast(boss=[task("finder"), task("writer"), "Ok."], finder=[seen], writer=[seen])
    turn, _, _ = await talk(cast, plugged)
    assert turn.text == "Ok."
    assert noted == [("above", True, 1), ("above", False, 1), ("its own", False, 1)]
    assert offered == {
        "You find things.\n\nNoted by above.": [],
        "You write.\n\nNoted by its own.": ["look"],
    }


async def test_the_task_itself_may_be_denied_or_confirmed():
    """A policy sees the call of `task` like any other; a person's yes begins the child."""
    verdicts["task"] = Confirm("it costs")
    cast = Cast(boss=[task("finder"), "Ok."], finder=["F"])
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        turn = await session.send("Go.")
        assert turn.waiting and len(await runtime.sessions()) == 1
        await runtime.answer(session.id, True, query_id=turn.queries[0].id)
        assert (await session.turn(turn.input_id)).text == "Ok."
    assert cast.results() == ["F"]


async def test_a_cancelled_turn_ends_its_children():
    """The child is cancelled with the turn that waits for it; the conversation goes on."""
    reached = asyncio.Event()

    async def waits(query):
        reached.set()
        await asyncio.sleep(60)

    cast = Cast(boss=[task("finder"), "Later."], finder=[waits])
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        going = asyncio.ensure_future(session.send("Go."))
        await reached.wait()
        turn = await session.cancel_turn("enough")
        assert isinstance(turn.outcome, TurnCancelled)
        await going
        (child,) = await runtime.sessions(parent=session.id)
        assert (await runtime.wait(child.session_id, 60)).state == "cancelled"
        assert (await session.send("And now?")).text == "Later."


async def test_a_child_goes_on_after_a_crash(tmp_path):
    """Row 31: killed in the middle of a child, both go on from their own journals; nothing is done
    twice.
    """
    reached, clock = asyncio.Event(), ManualClock()

    async def dies(query):
        reached.set()
        await asyncio.sleep(60)

    first = Cast(boss=[task("finder")], finder=[use("look", what="x"), dies])
    runtime = await dying(tmp_path, clock, llm=first)
    session = await runtime.session(boss, "s")
    going = asyncio.ensure_future(session.send("Go.", id="one"))
    await reached.wait()
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    await die(runtime, clock)
    second = Cast(boss=["Here."], finder=["x is there."])
    async with opened(tmp_path, clock=clock, llm=second) as runtime:
        session = await runtime.session(boss, "s")
        turn = await session.turn("one")
        assert isinstance(turn.outcome, TurnAnswered) and turn.text == "Here."
        assert told(await session.history()) == ["x is there."]
        assert len(await runtime.sessions()) == 2
    assert done == ["x"]


def test_names_are_checked():
    """Two of one name, a blank one, what is no agent, and a tool that takes the name of theirs are
    refused.
    """
    with pytest.raises(BadArguments, match="have the name 'a'"):
        Agent(subagents=[subagent(finder, name="a"), subagent(writer, name="a")])
    with pytest.raises(BadArguments, match="1 to 64 printable"):
        subagent(finder, name="")
    with pytest.raises(BadArguments, match="is not an Agent"):
        subagent("finder", name="a")
    with pytest.raises(BadArguments, match="has no name"):
        Agent(subagents=[finder])
    with pytest.raises(BadArguments, match="'task'"):
        Agent(subagents=[subagent(finder, name="a")], tools=[other])


@tool
async def other() -> str:
    """Something else."""
    return ""


other.name = "task"


async def test_what_a_child_spends_counts_against_the_budget_above():
    """Nobody escapes a limit by delegating."""
    cast = Cast(
        boss=[task("finder"), "Too much."],
        finder=[use("look", what="x"), use("look", what="y"), "There."],
    )
    async with opened(llm=cast) as runtime:
        session = await runtime.session(thrifty, "s")
        turn = await session.send("Go.")
    assert "the turn has used 44 of 40 tokens" in str(turn.outcome)


async def test_what_a_child_asks_a_person_is_the_turns_question():
    """The turn waits with the question of the child, takes nothing else meanwhile, and goes on when
    it is answered.
    """
    verdicts["look"] = Confirm("it is private")
    cast = Cast(
        boss=[task("writer"), "Ok."],
        writer=[task("finder"), "W."],
        finder=[use("look", what="x"), "F."],
    )
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        turn = await session.send("Go.")
        (question,) = turn.queries
        assert turn.waiting and question.session_id != session.id and "Run look" in question.prompt
        for refused in (session.send("More."), session.compact(), session.branch(None)):
            with pytest.raises(TurnWaiting) as caught:
                await refused
            assert (caught.value.session_id, caught.value.query_id) == (
                question.session_id,
                question.id,
            )
        await runtime.answer(question, True)
        assert (await session.turn(turn.input_id)).text == "Ok."
        assert len(await session.turns()) == 1
    assert done == ["x"]


async def test_a_stream_ends_where_a_child_asks_a_person():
    """Whoever watches is given the word, as if the conversation itself had asked, and follows on
    after the answer.
    """
    verdicts["look"] = Confirm("it is private")
    cast = Cast(boss=[task("finder"), "Ok."], finder=[use("look", what="x"), "F."])
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        async with asyncio.timeout(60):
            seen = [event async for event in session.stream("Go.", id="one")]
            turn = await session.turn("one", wait=0)
            assert turn.waiting and "Run look" in turn.queries[0].prompt
            await runtime.answer(turn.queries[0], True)
            rest = [event async for event in session.follow("one", seen[-1].cursor)]
    assert [event.kind for event in rest][-1] == "settled" and not any(
        event.kind == "settled" for event in seen
    )


async def test_what_a_child_asks_is_heard_without_looking_again(monkeypatch):
    """In one process nobody polls: the child's step wakes whoever waits above it."""
    monkeypatch.setattr("everhold.agents.session.CHILD_POLL_SECONDS", 3600.0)
    verdicts["look"] = Confirm("it is private")
    reached, go = asyncio.Event(), asyncio.Event()

    async def slowly(query):
        reached.set()
        await go.wait()
        return use("look", what="x")

    cast = Cast(boss=[task("writer"), "Ok."], writer=[task("finder"), "W."], finder=[slowly, "F."])
    async with opened(llm=cast) as runtime:
        session = await runtime.session(boss, "s")
        going = asyncio.ensure_future(session.send("Go."))
        await reached.wait()
        for _ in range(20):  # it waits by now
            await asyncio.sleep(0)
        go.set()
        turn = await asyncio.wait_for(going, 60)
        (question,) = turn.queries
        await runtime.answer(question, True)
        assert (await session.turn(turn.input_id)).text == "Ok."
