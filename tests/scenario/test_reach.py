"""What tools and plugins may do with their session beside their result: values, sessions, a look at
what was said.
"""

import asyncio

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.core.query import Usage
from everhold.core.tool import Window
from everhold.core.turn import TurnAnswered
from everhold.errors import BadArguments, BadValue, ForeignCall, KeyConflict, NotAllowed
from everhold.hooks import AddMessages, Plugin
from everhold.models import Answerer
from everhold.ports.answerer import Answer
from everhold.ports.tool import ToolContext, tool
from everhold.ports.tool_services import ToolSessions, ToolValues
from everhold.testing.clock import ManualClock
from everhold.testing.crash import crash_everywhere
from tests.scenario.harness import die, dying, opened
from tests.scenario.talk import Scripted, told, use, uses

seen = []


@pytest.fixture(autouse=True)
def fresh():
    seen.clear()


@everhold.program
async def digest(ctx, words: str, ask: bool = False):
    """A program that tools hand on to."""
    found = await ctx.llm(f"Digest {words}.")
    if ask and not await ctx.approval(f"Keep {found}?"):
        raise ValueError("not kept")
    return {"digest": found}


# ---- state


@tool(rerun="safe")
async def count(context: ToolContext, key: str) -> int:
    """Count something."""
    shop = context.state("shop")
    shop.incr(key)
    shop.set("last", key)
    seen.append([await shop.get(key), await shop.get("last"), await shop.get("none", 7)])
    return int(await shop.get(key))


@tool
def forget(context: ToolContext, key: str) -> str:
    """Forget something; in a thread."""
    shop = context.state("shop")
    shop.delete(key)
    seen.append([context.wait(shop.get(key)), context.wait(shop.keys())])
    return "forgotten"


@tool
async def fails(context: ToolContext) -> str:
    """Writes, and fails."""
    context.state("shop").set("last", "lost")
    raise ValueError("no")


@tool
async def misfits(context: ToolContext) -> str:
    """Counts what is no number."""
    context.state("shop").set("b", 1)
    context.state("shop").incr("last")
    return "counted"


clerk = Agent(tools=[count, forget, fails, misfits])


async def value(runtime, key):
    found, _ = await runtime.store.value("shop", key)
    return None if found is None else found[0]


async def test_what_a_tool_writes_lands_with_its_result():
    """Row 11: state. Two calls side by side lose nothing; what was written is seen at once by who
    wrote it.
    """
    model = Scripted(
        uses(("count", {"key": "a"}), ("count", {"key": "a"})), use("forget", key="none")
    )
    async with opened(llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        assert (await session.send("Count.")).text == "Done."
        assert (await value(runtime, "a"), await value(runtime, "last")) == (2, "a")
    assert seen[2] == [None, ["a", "last"]] and seen[0][1:] == ["a", 7]


async def test_what_a_call_that_fails_has_written_is_not_kept():
    """Row 11: state. Nothing lands without its result; what does not fit is an error that the model
    sees.
    """
    model = Scripted(use("count", key="a"), uses(("fails", {}), ("misfits", {})), "Oh.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        assert isinstance((await session.send("Go.")).outcome, TurnAnswered)
        assert (await value(runtime, "last"), await value(runtime, "b")) == ("a", None)
    assert model.results[0] == "Error: ValueError: no"
    assert "misfits was run, but nothing was written: state 'last'" in model.results[1]


async def test_a_call_that_is_run_again_has_written_once(tmp_path):
    """Row 11: state. Killed between the work and its result, it is run again and counts once."""
    clock, reached = ManualClock(), asyncio.Event()

    async def stops(context: ToolContext, key: str) -> str:
        """Count something, and stop."""
        context.state("shop").incr(key)
        if not seen:
            seen.append("once")
            reached.set()
            await asyncio.sleep(60)
        return "counted"

    agent = Agent(tools=[tool(rerun="safe")(stops)], name="<locals>.stopping")
    runtime = await dying(tmp_path, clock, llm=Scripted(use("stops", key="a")))
    session = await runtime.session(agent, "s")
    going = asyncio.ensure_future(session.send("Go.", id="one"))
    await reached.wait()
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock, llm=Scripted("Done."), replay=False) as runtime:
        session = await runtime.session(agent, "s")
        assert (await session.turn("one")).text == "Done."
        assert await value(runtime, "a") == 1


async def test_what_cannot_be_written_is_refused_at_once():
    """A namespace that is a path, what is no JSON, no number, and where no result comes of it."""
    values = ToolValues([])
    with pytest.raises(BadArguments, match="Invalid namespace"):
        values("../x")
    with pytest.raises(BadValue):
        values.set("a", {1, 2})
    with pytest.raises(BadValue):
        values.incr("a", "1")
    with pytest.raises(NotAllowed, match="no result"):
        ToolValues(None).set("a", 1)
    with pytest.raises(ForeignCall):
        await values.get("a")
    with pytest.raises(ForeignCall):
        await ToolSessions().all()


class Tally(Plugin):
    """Counts turns in a durable value of all conversations, and begins a digest of the second."""

    name = "tally"

    async def before_turn(self, moment):
        turns = moment.state("tally")
        turns.incr("turns")
        if await turns.get("turns") == 2:
            begun = await moment.sessions.begin(digest(words="all"), title="a digest")
            return AddMessages([f"{begun} was begun."])
        return None

    def after_turn(self, moment, settled):
        with pytest.raises(NotAllowed):
            moment.state.set("turns", 0)
        seen.append(settled.turn)

    def before_config(self, moment, options):
        moment.state("tally").set("options", len(options))


tallied = Agent(plugins=[Tally()])


async def test_what_a_plugin_does_is_done_once():
    """Row 11: state and lifecycle, from hooks: written with the decision, and silent on replay."""
    async with opened(llm=Scripted("A.", "B.", "C.")) as runtime:
        session = await runtime.session(tallied, "s")
        await session.send("1")
        await session.send("2")
        await session.configure({"temperature": 0})
        assert (await runtime.store.value("tally", "turns"))[0] == [2]
        assert (await runtime.store.value("tally", "options"))[0] == [1]
        (begun,) = await runtime.sessions(labels={"begun_by": session.id})
        assert begun.title == "a digest" and begun.program.endswith(":digest")
        assert f"{begun.session_id} was begun." in str(await session.messages())
        await asyncio.sleep(0)
    assert seen == [1, 2, 3]


# ---- the conversation


@tool(read_only=True)
async def recall(context: ToolContext) -> dict:
    """What is known of the conversation."""
    moment = context.moment
    words = [
        block["text"]
        for one in moment.messages
        for block in one["content"]
        if block["type"] == "text"
    ]
    return {
        "said": words,
        "turn": moment.turn,
        "spent": moment.turn_usage.total.input,
        "frame": moment.frame.id,
    }


recalling = Agent(tools=[recall])


async def test_a_tool_sees_where_the_conversation_stands():
    """Row 11: graph. The messages of its frame, its turn, and what was spent so far."""
    usage = Usage(prompt_tokens=10, completion_tokens=1)
    lines = [Answer("One."), Answer(use("recall"), usage), Answer("Two.")]

    async def model(query):
        return lines.pop(0)

    async with opened(llm=model) as runtime:
        session = await runtime.session(recalling, "s")
        await session.send("First.")
        await session.send("Second.")
        (result,) = told(await session.history())
    assert result == {
        "said": ["First.", "One.", "Second."],
        "turn": 2,
        "spent": 10,
        "frame": "initial",
    }


# ---- sessions


@tool(rerun="safe")
async def begin(context: ToolContext, words: str) -> str:
    """Begin a digest, and look at it."""
    session_id = await context.sessions.begin(digest(words=words))
    named = await context.sessions.begin(digest(words=words), key="named")
    assert {named, session_id} == set(await context.sessions.all())
    seen.append((await context.sessions.status(session_id)).state)
    return session_id


@tool
async def stop(context: ToolContext, session_id: str) -> str:
    """Stop a session."""
    return str((await context.sessions.cancel(session_id, "enough")).state)


starter = Agent("local:starter", tools=[begin, stop])


class Cast(Answerer):
    """Says its lines to the agent; what programs ask stays open, or is answered with `other`."""

    def __init__(self, *lines, other=None):
        self.lines, self.other, self.shown = list(lines), other, []

    def takes(self, query):
        return query.args is not None or self.other is not None

    async def answer(self, query, session_id):
        if query.args is None:
            return Answer(self.other, Usage(prompt_tokens=100, completion_tokens=10))
        self.shown.append(query.messages)
        return self.lines.pop(0)

    @property
    def results(self):
        return [block["content"] for block in self.shown[-1][-1]["content"]]


async def test_a_tool_begins_sessions_that_go_on_by_themselves():
    """Row 11: lifecycle and process. They are looked at and cancelled by who began them, and by
    nobody else.
    """
    cast = Cast(use("begin", words="x"), "Begun.")
    async with opened(llm=cast) as runtime:
        session = await runtime.session(starter, "s")
        await session.send("Begin.")
        (one,) = told(await session.history())
        assert (await runtime.status(one)).state == "paused" and seen == ["paused"]
        cast.lines = [use("stop", session_id=one), "Stopped."]
        await session.send("Stop it.")
        assert cast.results == ["cancelled"]
        assert (await runtime.status(one)).state == "cancelled"
        for foreign, why in (
            (session.id, "was not started by"),
            ("s-nobody", "no session 's-nobody'"),
        ):
            cast.lines = [use("stop", session_id=foreign), "Oh."]
            await session.send("And that one.")
            assert cast.results[0].startswith("Error: ") and why in cast.results[0]
        other = await runtime.session(starter, "other")
        (named,) = [
            row.session_id
            for row in await runtime.sessions(state="paused")
            if row.program.endswith("digest")
        ]
        cast.lines = [use("stop", session_id=named), "Oh."]
        await other.send("Stop it.")
        assert "was not started by" in cast.results[0]


async def test_work_that_is_run_again_finds_what_it_began(tmp_path):
    """Row 11: lifecycle. By its order in the work; other arguments under the same name are a
    conflict.
    """
    clock, reached = ManualClock(), asyncio.Event()
    words = ["x"]

    async def twice(context: ToolContext) -> str:
        """Begin, and stop."""
        session_id = await context.sessions.begin(digest(words=words[0]))
        if not seen:
            seen.append(session_id)
            reached.set()
            await asyncio.sleep(60)
        words[0] = "y"
        with pytest.raises(KeyConflict):
            await context.sessions.begin(digest(words="y"), key="0")
        return session_id

    agent = Agent("local:a", tools=[tool(rerun="safe")(twice)], name="<locals>.twice")
    runtime = await dying(tmp_path, clock, llm=Cast(use("twice")))
    session = await runtime.session(agent, "s")
    going = asyncio.ensure_future(session.send("Go.", id="one"))
    await reached.wait()
    going.cancel()
    await asyncio.gather(going, return_exceptions=True)
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock, llm=Cast("Done."), replay=False) as runtime:
        session = await runtime.session(agent, "s")
        assert (await session.turn("one")).text == "Done."
        assert told(await session.history()) == seen
        assert len(await runtime.sessions(labels={"begun_by": session.id})) == 1


# ---- handing on


@tool
def summarise(words: str, ask: bool = False):
    """Have something digested."""
    return digest(words=words, ask=ask)


@tool(output=Window(lines=1, size=10))
def much(words: str):
    """Much of it."""
    return digest(words=words)


hander = Agent("local:hander", tools=[summarise, much])


async def test_a_tool_that_returns_a_call_hands_its_own_on():
    """Row 11: the program is a child session, its result the tool's, and what it costs is relayed
    to the turn.
    """
    cast = Cast(use("summarise", words="x"), "Done.", other="short")
    async with opened(llm=cast) as runtime:
        session = await runtime.session(hander, "s")
        turn = await session.send("Go.")
        assert (turn.text, told(await session.history())) == ("Done.", [{"digest": "short"}])
        (child,) = await runtime.sessions(parent=session.id)
        assert (child.title, child.state) == ("summarise", "completed")
        spent = (await session.usage()).report()["by_source"]
        assert spent["tool:summarise"]["input"] == 100
        kinds = [event.kind async for event in _until_settled(session)]
    assert kinds.count("tool_finished") == 0 and kinds.count("tool_started") == 1


async def test_what_is_handed_on_may_be_long():
    """All of it is kept, however long: a program cannot begin with half of its arguments."""
    cast = Cast(use("summarise", words="long " * 10_000), "Done.", other="short")
    async with opened(llm=cast) as runtime:
        session = await runtime.session(hander, "s")
        assert (await session.send("Go.")).text == "Done."
        (child,) = await runtime.sessions(parent=session.id)
        assert len((await runtime.store.load(child.session_id)).birth.args["words"]) == 50_000


async def _until_settled(session):
    async for event in session.events():
        yield event
        if event.kind == "settled":
            return


async def test_what_a_program_asks_that_a_tool_handed_on_to_is_the_turns_question():
    """It waits for a person with the turn, which takes nothing else meanwhile; its failure is an
    error that is seen.
    """
    cast = Cast(use("summarise", words="x", ask=True), "Oh.", other="short")
    async with opened(llm=cast) as runtime:
        session = await runtime.session(hander, "s")
        turn = await session.send("Go.")
        (question,) = turn.queries
        assert question.prompt == "Keep short?" and question.session_id != session.id
        with pytest.raises(everhold.EverholdError, match="wait"):
            await session.send("More.")
        await runtime.answer(question, False)
        assert (await session.turn(turn.input_id)).text == "Oh."
    assert cast.results == ["Error: summarise failed: ValueError: not kept"]


async def test_a_long_result_of_a_program_is_shown_in_part():
    """As any other result: all of it is kept beside the conversation."""
    cast = Cast(use("much", words="x"), "Done.", other="word " * 100)
    async with opened(llm=cast) as runtime:
        session = await runtime.session(hander, "s")
        await session.send("Go.")
        (kept,) = await runtime.attachments(session.id)
    assert f"The whole result is attachment {kept.id}" in cast.results[0]


@tool(rerun="safe")
async def tally(context: ToolContext) -> int:
    """Count."""
    context.state("tally").incr("calls")
    return 1


thorough = Agent("local:thorough", tools=[tally, summarise], plugins=[Tally()])


@everhold.program
async def whole(ctx):
    """Does a task, and tells what was counted meanwhile."""
    await ctx.state("tally").set("calls", 0)
    said = await ctx.spawn(thorough(task="Go."))
    counts = ctx.state("tally")
    return [said, await counts.get("calls"), await counts.get("turns")]


def test_a_turn_that_writes_and_hands_on_is_crashed_at_every_commit():
    """Row 11: whatever dies, each value is written once, and the program that was handed on to runs
    once.
    """
    lines = iter([uses(("tally", {}), ("summarise", {"words": "x"}), ("tally", {})), "Done."])

    async def model(query):
        return "short" if query.args is None else next(lines)

    report = crash_everywhere(whole(), answers=model)
    assert report.result == ["Done.", 2, 1] and report.commits >= 7
