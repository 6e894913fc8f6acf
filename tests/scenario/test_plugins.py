"""Plugins: one test for each hook, under its name; what they keep; what is refused."""

import asyncio
import json
import logging

import pytest
from msgspec import to_builtins

from everhold import Retry, hooks
from everhold.agents.agent import Agent
from everhold.core.graph import INITIAL_FRAME, NodeKind, extract_text
from everhold.core.query import Kind, Usage
from everhold.core.tool import Confirm, Deny, Later
from everhold.core.turn import SettledTurn, TurnAborted, TurnAnswered
from everhold.errors import (
    AnswerConflict,
    BadArguments,
    PluginFailed,
    UnknownPlugin,
    UnknownProgram,
)
from everhold.hooks import (
    Abort,
    AddMessages,
    Ask,
    Contribute,
    Finish,
    NewFrame,
    Plugin,
    ReplaceInput,
    ReplaceResult,
    Reply,
    SetOptions,
    Show,
)
from everhold.ports.answerer import Answer
from everhold.ports.tool import tool
from everhold.programs.python.execution import PythonHost
from everhold.schedules.action import Feed
from everhold.testing.clock import ManualClock
from everhold.testing.crash import crash_everywhere
from tests.scenario.harness import opened, rows
from tests.scenario.talk import Scripted, told, use, uses

RAN = []


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    RAN.append(what)
    return f"{what}: found"


def made(method, function, **more):
    """A plugin with one hook, under the name `probe`."""
    return type("Probe", (Plugin,), {"name": "probe", method: function, **more})()


def held(plugin, *more, **options):
    """An agent with plugins. It lives in its test alone, so its journal is not replayed in another
    process.
    """
    return Agent(tools=[look], plugins=[plugin, *more], name="<locals>.probed", **options)


async def said(agent, *lines, inputs=("Hello.",), usage=None):
    """Hold a conversation; returns its last turn, the model, and its handle's history."""
    model = Scripted(*lines)

    async def counted(query):
        return Answer(await model(query), usage)

    async with opened(llm=counted if usage else model) as runtime:
        session = await runtime.session(agent, "c")
        for words in inputs:
            turn = await session.send(words)
        return turn, model, await session.history()


# ---- before: each hook under its name


async def test_before_session():
    """Row 24: it is called once in the life of a session, not on replay; what it sets lasts."""
    calls = []

    def before_session(self, moment):
        calls.append((moment.root, moment.turn))
        return SetOptions({"seed": 7})

    agent = held(made("before_session", before_session))
    async with opened(llm=Scripted("1", "2")) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Hello.")
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        await session.send("Hello.")
    assert calls == [(True, 0)]


async def test_before_config():
    """Row 19: mutators in a chain, each with what the last one made of it; one that fails is
    skipped.
    """

    class Doubling(Plugin):
        name = "doubling"

        def before_config(self, moment, options):
            return SetOptions({**options, "seed": options["seed"] * 2})

    class Failing(Plugin):
        name = "failing"

        def before_config(self, moment, options):
            raise RuntimeError("no")

    class Adding(Plugin):
        name = "adding"

        def before_config(self, moment, options):
            return SetOptions({**options, "seed": options["seed"] + 1})

    agent = held(Doubling(), Failing(), Adding())
    async with opened() as runtime:
        session = await runtime.session(agent, "c")
        assert await session.configure({"seed": 3}) == {"seed": 7}
        assert await session.options() == {"seed": 7}


async def test_before_turn():
    """It may add to the prompt and to the conversation before the model is asked."""

    def before_turn(self, moment):
        return [Contribute("guidance", "Stay calm."), AddMessages(["By the way."])]

    seen = []

    async def model(query):
        seen.append(
            (query.system, [extract_text(message["content"]) for message in query.messages])
        )
        return "ok"

    async with opened(llm=model) as runtime:
        session = await runtime.session(
            held(made("before_turn", before_turn), instructions="Be kind."), "c"
        )
        await session.send("Hello.")
    assert seen == [("Be kind.\n\nStay calm.", ["Hello.", "By the way."])]


async def test_before_checkpoint():
    """Row 33: what it adds is heard at that checkpoint, once; it knows whether the turn is about to
    end.
    """
    seen = []

    def before_checkpoint(self, moment):
        seen.append(moment.completing)
        return None if moment.completing else AddMessages(["Mind the gap."])

    turn, model, _ = await said(
        held(made("before_checkpoint", before_checkpoint)), use("look", what="x"), "Done."
    )
    assert seen == [False, True] and turn.text == "Done."
    assert extract_text(model.shown[1][-1]["content"]) == "Mind the gap."


async def test_before_model_call():
    """It may show the model less or more, and what it adds is not kept."""

    def before_model_call(self, moment):
        return Show(skip=2, extra=["(a note)"]) if moment.turn == 2 else None

    agent = held(made("before_model_call", before_model_call))
    _, model, history = await said(agent, "One.", "Two.", inputs=("First.", "Second."))
    assert [extract_text(message["content"]) for message in model.shown[1]] == [
        "Second.",
        "(a note)",
    ]
    assert [extract_text(node.content) for node in history] == ["First.", "One.", "Second.", "Two."]


async def test_before_model_call_may_reply():
    """What it replies is what the model said; the model is not asked."""
    turn, model, _ = await said(
        held(made("before_model_call", lambda self, moment: Reply("From a cache."))), "No."
    )
    assert turn.text == "From a cache." and model.shown == []


async def test_before_tool_call():
    """It may change the input, reply for the tool, or deny with a reason that the model sees."""
    RAN.clear()

    def before_tool_call(self, moment, call):
        decided = {"a": ReplaceInput({"what": "A"}), "b": Reply("known"), "c": Deny("not yours")}
        return decided.get(call.input["what"])

    lines = uses(*(("look", {"what": what}) for what in "abcd")), "Done."
    _, _, history = await said(held(made("before_tool_call", before_tool_call)), *lines)
    assert told(history) == ["A: found", "known", "Error: denied by probe: not yours", "d: found"]
    assert sorted(RAN) == ["A", "d"]


async def test_before_tool_call_may_have_a_person_confirm():
    """The question is bound to the input; a no is a result that the model sees, a yes lets exactly
    this call run.
    """
    RAN.clear()
    agent = held(made("before_tool_call", lambda self, moment, call: Confirm("it costs money")))
    async with opened(
        llm=Scripted(uses(("look", {"what": "a"}), ("look", {"what": "b"})), "Done.")
    ) as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send("Go.")
        first, second = turn.queries
        assert {query.kind for query in turn.queries} == {
            Kind.APPROVAL
        } and "costs money" in first.prompt
        await runtime.answer(first, True)
        await runtime.answer(second, False)
        assert (await session.turn(turn.input_id)).text == "Done."
        assert RAN == ["a"]


async def test_before_result():
    """What the model is shown may be something else than what the tool returned; the journal has
    both.
    """
    agent = held(
        made("before_result", lambda self, moment, call, content: ReplaceResult(content.upper()))
    )
    async with opened(llm=Scripted(use("look", what="x"), "Done.")) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Go.")
        assert told(await session.history()) == ["X: FOUND"]
        answers = [
            answer.value
            for delivery in await rows(runtime, session.id)
            for answer in delivery.answers
        ]
        assert "x: found" in answers


async def test_a_result_that_a_plugin_stopped_is_not_shown():
    """It was run, which the model is told; what it came to stays with the plugin that did not want
    it seen.
    """
    agent = held(made("before_result", lambda self, moment, call, content: Abort("secret")))
    turn, _, history = await said(agent, use("look", what="x"))
    assert turn.outcome == TurnAborted("probe", "secret") and RAN[-1] == "x"
    assert told(history) == [
        "Error: the turn was stopped; the tool was run, and its result is not shown"
    ]


async def test_before_compact():
    """Row 18: higher priorities are asked first, and the first that has a new beginning is
    heard.
    """
    asked = []

    def compactor(label, priority, beginning):
        def before_compact(self, moment):
            asked.append(label)
            return None if beginning is None else NewFrame([beginning])

        return type(
            label,
            (Plugin,),
            {"name": label, "priority": priority, "before_compact": before_compact},
        )()

    agent = held(
        compactor("low", 1, "Low."), compactor("none", 9, None), compactor("high", 5, "High.")
    )
    async with opened(llm=Scripted("Hi.")) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Hello.")
        assert await session.compact()
        assert [extract_text(message["content"]) for message in await session.messages()] == [
            "High."
        ]
        assert [extract_text(m["content"]) for m in await session.messages(INITIAL_FRAME)] == [
            "Hello.",
            "Hi.",
        ]
    assert asked == ["none", "high"]


async def test_before_store():
    """Inputs, results and models' words are written down as it returns them."""

    def before_store(self, value):
        return hooks_replace(value, "hush", "***")

    @tool(read_only=True)
    def leak() -> str:
        return "hush, a result"

    agent = Agent(
        tools=[leak], plugins=[made("before_store", before_store)], name="<locals>.storing"
    )
    async with opened(
        llm=Scripted(use("leak"), {"content": [{"type": "text", "text": "hush, words"}]})
    ) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("hush, an input")
        kept = repr(await runtime.store.load(session.id))
        assert "hush" not in kept and kept.count("***") >= 3


@tool
def ordered() -> str:
    """Order something."""
    raise Later("What came of it?")


BREAK = {"type": "text", "text": "break"}


def hush(self, value):
    if value in ("break", [BREAK]):
        raise ValueError("no")
    return hooks_replace(value, "hush", "***")


async def test_before_store_sees_what_people_and_hosts_answer():
    """A model's words from a host, a result that comes later, an error in its place; the same again
    is no conflict.
    """
    agent = Agent(tools=[ordered], plugins=[made("before_store", hush)], name="<locals>.quiet")
    async with opened() as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send("Order.")
        first = turn.queries[0]
        with pytest.raises(PluginFailed, match="before_store"):
            await runtime.answer(first, "break")
        await runtime.answer(
            first, {"text": "hush", "tool_calls": [{"name": "ordered", "input": {}}]}
        )
        turn = await session.turn(turn.input_id)
        await runtime.answer(turn.queries[0], "hush, it came", by={"user": "ann"})
        await runtime.answer(session.id, "hush, it came", query_id=turn.queries[0].id)  # to be sure
        with pytest.raises(AnswerConflict):
            await runtime.answer(session.id, "it did not", query_id=turn.queries[0].id)
        turn = await session.turn(turn.input_id)
        await runtime.answer(turn.queries[0], error="hush, no words")
        turn = await session.turn(turn.input_id)
        assert "hush" not in repr(await runtime.store.load(session.id))
        assert (turn.outcome.error, told(await session.history())) == (
            "***, no words",
            ["***, it came"],
        )


async def test_before_store_sees_what_comes_through_the_intake():
    """Whoever put it there had no agent at hand: a trigger, a process, another front."""
    plugin = made(
        "before_store", lambda self, value: json.loads(json.dumps(value).replace("secret", "***"))
    )
    async with opened(llm=Scripted("Done.")) as runtime:
        session = await runtime.session(held(plugin), "c")
        await runtime.triggers.add("told", Feed("c"))
        await runtime.triggers.emit("told", "a secret", key="1")
        while not await session.turns():
            await asyncio.sleep(0.01)
        assert "secret" not in json.dumps(to_builtins(await rows(runtime, session.id)))
        assert extract_text((await session.history())[0].content) == "a ***"


async def test_before_store_sees_an_answer_that_waited(tmp_path):
    """Given where the program is not, it waits as it was given; what is taken into the journal is
    what is returned.
    """
    agent = Agent(plugins=[made("before_store", hush)], name="<locals>.waiting")
    async with opened(tmp_path, replay=False) as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send("Well?")
    async with opened(tmp_path, recover=False, replay=False) as elsewhere:
        elsewhere.engine.host._python = PythonHost(_nowhere)
        await elsewhere.answer(session.id, "hush, words", query_id=turn.queries[0].id)
    async with opened(tmp_path, replay=False) as runtime:
        session = await runtime.session(agent, "c")
        assert (await session.turn(turn.input_id)).text == "***, words"
        assert "hush" not in repr(await runtime.store.load(session.id))


@pytest.mark.parametrize("way", ["signal", "fed", "absent", "absent and fed"])
async def test_before_store_sees_an_input_that_is_a_bare_signal(way, tmp_path):
    """However it comes: sent, fed by an event, or while the agent is not there."""
    agent, said = (
        Agent(plugins=[made("before_store", hush)], name="<locals>.bare"),
        {"id": "1", "content": "hush, you"},
    )
    async with opened(tmp_path, replay=False) as runtime:
        session = await runtime.session(agent, "c")
        if way == "signal":
            with pytest.raises(PluginFailed, match="before_store"):
                await runtime.signal(session.id, "input", {"id": "0", "content": [BREAK]})
            await runtime.signal(session.id, "input", said)
        elif way == "fed":
            await runtime.triggers.add("told", Feed("c", signal="input"))
            await runtime.triggers.emit("told", said, key="1")
    if way.startswith("absent"):
        async with opened(tmp_path, recover=False, replay=False) as elsewhere:
            elsewhere.engine.host._python = PythonHost(_nowhere)
            if way == "absent":
                await elsewhere.signal(session.id, "input", said)
            else:
                await elsewhere.triggers.add("told", Feed("c", signal="input"))
                await elsewhere.triggers.emit("told", said, key="1")
    async with opened(tmp_path, llm=Scripted("Well."), replay=False) as runtime:
        session = await runtime.session(agent, "c")
        while not await session.turns():
            await asyncio.sleep(0.01)
        assert [extract_text(one.content) for one in await session.history()] == [
            "***, you",
            "Well.",
        ]
        assert "hush" not in repr((await runtime.store.load(session.id)).deliveries)


def _nowhere(ref, version):
    raise UnknownProgram(ref, "it is not here", "")


def hooks_replace(value, old, new):
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [hooks_replace(one, old, new) for one in value]
    if isinstance(value, dict):
        return {name: hooks_replace(one, old, new) for name, one in value.items()}
    return value


# ---- after: each hook under its name


class Heard(Plugin):
    """Hears everything."""

    name = "heard"

    def __init__(self):
        self.log = []


def _hear(hook):
    def heard(self, moment, *arguments):
        self.log.append((hook, *arguments))

    return heard


for _hook in hooks.HOOKS:
    if _hook.startswith("after_"):
        setattr(Heard, _hook, _hear(_hook))


async def listened(*lines, act=None, usage=None):
    plugin = Heard()
    model = Scripted(*lines)

    async def counted(query):
        return Answer(await model(query), usage)

    agent = Agent(tools=[look], plugins=[plugin], name="<locals>.heard")
    async with opened(llm=counted) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Hello.")
        if act is not None:
            await act(runtime, session)
    return plugin.log


async def test_after_turn():
    """It is told the receipt, once, after the commit; the replay at the end tells nothing."""
    log = await listened("Hi.")
    assert [entry[1] for entry in log if entry[0] == "after_turn"] == [
        SettledTurn(1, log[-1][1].input, TurnAnswered(), "1.2", 1)
    ]


async def test_after_model_call():
    """It is told what the call cost."""
    used = Usage(prompt_tokens=10, completion_tokens=2, model="m")
    log = await listened("Hi.", usage=used)
    assert [entry[1] for entry in log if entry[0] == "after_model_call"] == [used]


async def test_after_tool_call():
    """It is told the call and what came of it."""
    log = await listened(use("look", _id="k", what="x"), "Done.")
    ((_, call, content),) = [entry for entry in log if entry[0] == "after_tool_call"]
    assert (call.id, call.name, call.input, content) == ("k", "look", {"what": "x"}, "x: found")


async def test_after_query():
    """It is told that a question waits for a person."""
    heard = []

    class Telling(Plugin):
        name = "telling"

        def before_tool_call(self, moment, call):
            return Confirm("sure?")

        async def after_query(self, moment, query):
            heard.append((query.kind, "sure?" in query.prompt))

    async with opened(llm=Scripted(use("look", what="x"), "Done.")) as runtime:
        session = await runtime.session(held(Telling()), "c")
        turn = await session.send("Go.")
        assert turn.waiting
        await runtime.answer(turn.queries[0], True)
        await session.turn(turn.input_id)
    assert heard == [(Kind.APPROVAL, True)]


async def test_after_frame():
    """It is told the frame that was opened."""

    async def act(runtime, session):
        await session.continue_as("next", ["Begin."])

    log = await listened("Hi.", act=act)
    assert [(entry[1].reason, entry[1].previous) for entry in log if entry[0] == "after_frame"] == [
        ("continue_as", INITIAL_FRAME)
    ]


async def test_after_config():
    """Row 19: it is told what was and what is, and nothing where nothing has changed."""

    async def act(runtime, session):
        await session.configure({"seed": 1})
        await session.configure({"seed": 1})

    log = await listened("Hi.", act=act)
    assert [entry[1:] for entry in log if entry[0] == "after_config"] == [({}, {"seed": 1})]


async def test_after_restore():
    """It is told when a conversation that was held before goes on from its journal."""

    async def act(runtime, session):
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        await session.send("Again.")

    log = await listened("Hi.", "Hi again.", act=act)
    assert [entry[0] for entry in log].count("after_restore") == 1


async def test_what_observes_cannot_break_a_turn(caplog):
    """Row 19: an exception in `after_*` is logged; the turn, and the next plugin, do not notice."""

    def after_turn(self, moment, settled):
        raise RuntimeError("boom")

    other = Heard()
    agent = Agent(plugins=[made("after_turn", after_turn), other], name="<locals>.broken")
    with caplog.at_level(logging.ERROR, "everhold"):
        async with opened(llm=Scripted("Hi.")) as runtime:
            session = await runtime.session(agent, "c")
            assert (await session.send("Hello.")).text == "Hi."
    assert "'probe' failed in after_turn" in caplog.text
    assert [entry[0] for entry in other.log if entry[0] == "after_turn"] == ["after_turn"]


# ---- how it fails


WRONG = {
    "before_session": Abort("x"),
    "before_turn": ReplaceInput({}),
    "before_checkpoint": Reply("x"),
    "before_model_call": AddMessages(["x"]),
    "before_tool_call": AddMessages(["x"]),
    "before_result": Confirm("x"),
}


@pytest.mark.parametrize("hook", [hook for hook in WRONG if hook != "before_session"])
async def test_a_directive_that_makes_no_sense_is_refused(hook):
    """Each hook refuses what it cannot do: the turn fails with a code that says so."""
    agent = held(made(hook, lambda self, moment, *more: WRONG[hook]))
    turn, _, history = await said(agent, use("look", what="x"), "Done.")
    assert turn.outcome.code == "bad_directive"
    assert type(WRONG[hook]).__name__ in turn.outcome.error and hook in turn.outcome.error
    calls = [
        block
        for node in history
        if node.role == "assistant"
        for block in node.content
        if "id" in block
    ]
    assert len(calls) == len(told(history))


async def test_a_session_whose_first_hook_is_wrong_says_so_with_its_first_turn():
    agent = held(made("before_session", lambda self, moment: WRONG["before_session"]))
    turn, _, _ = await said(agent, "Hi.")
    assert (
        turn.outcome.code == "bad_directive"
        and "may not return Abort from before_session" in turn.outcome.error
    )


@pytest.mark.parametrize("configured", [False, True])
async def test_a_plugin_that_fails_as_a_session_begins_is_asked_again_with_each_turn(configured):
    """The session stands, the turn that needs it fails with its name, and when it is mended the
    next one goes on.
    """
    calls = []

    def before_session(self, moment):
        calls.append(moment.turn)
        if len(calls) < 3:
            raise RuntimeError("boom")
        return SetOptions({"seed": 7})

    agent = held(made("before_session", before_session))
    async with opened(llm=Scripted("Hi.", "There.")) as runtime:
        session = await runtime.session(agent, "c")
        if configured:
            await session.configure({"seed": 8})
        failed = await session.send("Hello.")
        assert failed.outcome.code == "plugin_failed"
        assert failed.outcome.error == "plugin 'probe' failed in before_session: RuntimeError: boom"
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        assert [(await session.send("Hello.")).text for _ in range(2)] == ["Hi.", "There."]
        assert (await session.options())["seed"] == (8 if configured else 7)
    assert calls == ([0, 2, 3] if configured else [0, 1, 2])


async def test_a_subagent_whose_plugin_fails_as_it_begins_fails_with_its_name():
    def before_session(self, moment):
        raise RuntimeError("boom")

    agent = held(made("before_session", before_session))
    async with opened(llm=Scripted("Hi.")) as runtime:
        status = await runtime.start(agent("Do it."), wait=60)
        assert "plugin 'probe' failed in before_session: RuntimeError: boom" in status.outcome.error


async def test_a_plugin_that_fails_stops_the_turn():
    """Nothing goes on without a plugin that was asked for; the next turn tries again."""

    def before_turn(self, moment):
        if moment.turn == 1:
            raise RuntimeError("boom")

    agent = held(made("before_turn", before_turn))
    async with opened(llm=Scripted("Hi.")) as runtime:
        session = await runtime.session(agent, "c")
        failed = await session.send("Hello.")
        assert failed.outcome.code == "plugin_failed" and "boom" in failed.outcome.error
        assert (await session.send("Hello.")).text == "Hi."


@pytest.mark.parametrize(
    "hook", ["before_turn", "before_checkpoint", "before_model_call", "before_tool_call"]
)
async def test_a_plugin_may_abort(hook):
    """Row 27: the outcome names the plugin and its reason; what was called has a result."""
    agent = held(made(hook, lambda self, moment, *more: Abort("not today")))
    turn, _, history = await said(agent, use("look", what="x"), "Done.")
    assert turn.outcome == TurnAborted("probe", "not today")
    assert len(told(history)) == sum(node.role == "tool" for node in history)


async def test_a_plugin_may_finish_a_turn():
    """Row 27: its value is the turn's."""
    turn, _, _ = await said(held(made("before_turn", lambda self, moment: Finish({"n": 1}))))
    assert (turn.outcome, turn.value) == (TurnAnswered({"n": 1}), {"n": 1})


async def test_a_plugin_finishes_with_what_the_agent_returns():
    """Row 27: a value that does not fit is no answer, whoever gave it."""
    agent = held(made("before_turn", lambda self, moment: Finish({"n": 1})), returns=int)
    turn, _, _ = await said(agent)
    assert turn.outcome.code == "answer_refused" and "probe finished" in turn.outcome.error
    turn, _, _ = await said(held(made("before_turn", lambda self, moment: Finish(5)), returns=int))
    assert turn.value == 5


# ---- asking a model beside the conversation


async def test_a_plugin_may_ask_a_model():
    """Row 30: a question of a plugin is kept, entered under its own source, and not asked again on
    replay.
    """

    def before_turn(self, moment):
        if not moment.said:
            return Ask("Which tone?", "tone", system="You judge.")
        return Contribute("guidance", f"Tone: {moment.said[0]}.")

    used = Usage(prompt_tokens=10, completion_tokens=2, model="m")
    shown = []

    async def model(query):
        shown.append((query.prompt, query.system))
        return Answer("warm" if query.prompt else "Hi.", used)

    async with opened(llm=model) as runtime:
        session = await runtime.session(held(made("before_turn", before_turn)), "c")
        await session.send("Hello.")
        ledger = await session.usage()
        assert {(source, cost.total) for source, _, cost in ledger} == {("tone", 12), ("turn", 12)}
    assert shown == [("Which tone?", "You judge."), ("", "Tone: warm.")]


async def test_a_hook_sees_where_the_conversation_stands():
    """Row 11: messages, frame, options, usage and time, read-only, without a door to the
    runtime.
    """
    seen = []

    def before_model_call(self, moment):
        seen.append(
            (moment.turn, moment.round, moment.frame.id, moment.options, len(moment.messages))
        )
        assert moment.session_id and moment.now >= moment.started >= moment.began
        seen.append(moment.usage.total.total)

    used = Usage(prompt_tokens=10, completion_tokens=2, model="m")
    await said(
        held(made("before_model_call", before_model_call)), "1", "2", inputs=("a", "b"), usage=used
    )
    assert seen == [(1, 1, INITIAL_FRAME, {}, 1), 0, (2, 1, INITIAL_FRAME, {}, 3), 12]


# ---- what a plugin keeps


class Counter(Plugin):
    """Counts turns, and says so."""

    name = "counter"
    fails = False

    def restore(self, state):
        self.turns = 0 if state is None else state["turns"]

    def snapshot(self):
        if self.fails:
            raise RuntimeError("cannot")
        return {"turns": self.turns}

    def before_turn(self, moment):
        self.turns += 1
        self.revision += 1
        return AddMessages([f"Turn {self.turns}."])


counting = Agent(plugins=[Counter()], name="plugins_counting")


async def test_what_a_plugin_keeps_goes_on_after_a_replay():
    """Row 3: it is restored from the journal, for each conversation by itself."""
    async with opened(llm=Scripted(*"123456")) as runtime:
        one = await runtime.session(counting, "one")
        two = await runtime.session(counting, "two")
        await one.send("Hello.")
        await one.send("Hello.")
        await two.send("Hello.")
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        await one.send("Hello.")
        told_ = [extract_text(node.content) for node in await one.history()]
        assert [words for words in told_ if words.startswith("Turn")] == [
            "Turn 1.",
            "Turn 2.",
            "Turn 3.",
        ]
        assert "Turn 1." in [extract_text(node.content) for node in await two.history()]


async def test_a_snapshot_is_kept_with_the_turn_only_if_the_revision_changed():
    """Row 3: a PLUGIN node for each turn that changed something, and none otherwise."""

    class Once(Counter):
        name = "once"

        def before_turn(self, moment):
            return super().before_turn(moment) if moment.turn == 1 else None

    agent = Agent(plugins=[Once()], name="<locals>.once")
    async with opened(llm=Scripted(*"123")) as runtime:
        session = await runtime.session(agent, "c")
        for _ in range(3):
            await session.send("Hello.")
        graph = (await session.conversation()).graph
        kept = [node for node in graph.path(graph.leaf) if node.kind is NodeKind.PLUGIN]
        assert [node.content["plugins"]["once"]["state"] for node in kept] == [{"turns": 1}]


async def test_a_snapshot_that_cannot_be_taken_keeps_the_old_one(caplog):
    """Row 3: neither the snapshot nor the fingerprint changes, so that the next turn tries again
    (D13).
    """
    agent = Agent(plugins=[Counter()], name="<locals>.failing")
    async with opened(llm=Scripted(*"123"), replay=False) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Hello.")
        Counter.fails = True
        try:
            with caplog.at_level(logging.ERROR, "everhold"):
                await session.send("Hello.")
        finally:
            Counter.fails = False
        graph = (await session.conversation()).graph
        assert graph.last(NodeKind.PLUGIN).content["plugins"]["counter"]["state"] == {"turns": 1}
        await session.send("Hello.")
        graph = (await session.conversation()).graph
        assert graph.last(NodeKind.PLUGIN).content["plugins"]["counter"]["state"] == {"turns": 3}


async def test_going_back_takes_the_plugins_back_too():
    """Row 3: a branch restores what was kept there; where nothing was kept, the plugin begins
    anew.
    """
    async with opened(llm=Scripted(*"12345")) as runtime:
        session = await runtime.session(counting, "back")
        await session.send("Hello.")
        first = (await session.turns())[0].leaf
        await session.send("Hello.")
        await session.branch(first)
        await session.send("Hello.")
        assert "Turn 2." in [extract_text(node.content) for node in await session.history()]
        await session.branch(None)
        await session.send("Hello.")
        assert "Turn 1." in [extract_text(node.content) for node in await session.history()]


async def test_a_plugin_may_come_and_go_between_turns():
    """Row 9: turns that were begun replay with the hooks that they had."""
    agent = Agent(name="<locals>.changing")
    async with opened(llm=Scripted(*"1234"), replay=False) as runtime:
        session = await runtime.session(agent, "c")
        for plugins in ((), (Counter(),), ()):
            agent.plugins = plugins
            for live in runtime.engine.sessions.all():
                runtime.engine.sessions.drop(live)
            assert (await session.send("Hello.")).outcome == TurnAnswered()
        told_ = [extract_text(node.content) for node in await session.history()]
        assert told_ == ["Hello.", "1", "Hello.", "Turn 1.", "2", "Hello.", "3"]


async def test_reset_makes_plugins_begin_anew():
    """Row 3: and going back to before the reset gives them back what they knew (D6)."""
    async with opened(llm=Scripted(*"12345")) as runtime:
        session = await runtime.session(counting, "anew")
        await session.send("Hello.")
        before = (await session.turns())[-1].leaf
        await session.reset()
        after = (await session.turns())[-1].leaf
        await session.send("Hello.")
        assert [extract_text(m["content"]) for m in await session.messages()] == [
            "Hello.",
            "Turn 1.",
            "2",
        ]
        await session.branch(after)
        await session.send("Hello.")
        assert "Turn 1." in [extract_text(m["content"]) for m in await session.messages()]
        await session.branch(before)
        await session.send("Hello.")
        assert "Turn 2." in [extract_text(m["content"]) for m in await session.messages()]


async def test_what_is_observed_is_kept_already():
    """A hook that observes finds the turn in the store."""
    found = []
    async with opened(llm=Scripted("Hi.")) as runtime:

        async def after_turn(self, moment, settled):
            notes = [
                delivery.notes
                for delivery in await rows(runtime, moment.session_id)
                if delivery.notes
            ]
            found.append(settled in [one.settled for one in notes])

        session = await runtime.session(held(made("after_turn", after_turn)), "c")
        await session.send("Hello.")
    assert found == [True]


async def test_messages_of_others_are_refused():
    """A plugin speaks for users and the system, not for the model or a tool."""
    agent = held(
        made("before_turn", lambda self, moment: AddMessages([{"role": "tool", "content": "x"}]))
    )
    turn, model, _ = await said(agent, "Hi.")
    assert turn.outcome.code == "bad_arguments" and model.shown == []


# ---- finding them


def test_a_plugin_is_found_by_its_name(monkeypatch):
    """Installed packages offer plugins under an entry point; an unknown name is refused with those
    that there are.
    """

    class Point:
        name = "counter"
        dist = None

        def load(self):
            return Counter

    monkeypatch.setattr(
        "importlib.metadata.entry_points",
        lambda group: [Point()] if group == "everhold.plugins" else [],
    )
    assert isinstance(hooks.collect_plugins(["counter"])[0], Counter)
    with pytest.raises(UnknownPlugin, match="'absent'") as error:
        hooks.collect_plugins(["absent"])
    assert "counter" in error.value.hint


@pytest.mark.parametrize("wrong", [[object()], [Plugin()], [Counter(), Counter], [3]])
def test_what_is_no_plugin_is_refused(wrong):
    """No name, two of one name, or something else altogether."""
    with pytest.raises(BadArguments):
        Agent(plugins=wrong)


# ---- crashes


class Busy(Plugin):
    name = "busy"

    def before_turn(self, moment):
        return Contribute("guidance", "Hurry.")

    def before_checkpoint(self, moment):
        return None if moment.completing else AddMessages(["Go on."])

    def before_tool_call(self, moment, call):
        return ReplaceInput({"what": call.input["what"] * 2})


busy = Agent(tools=[look], plugins=[Busy(), Counter()], name="plugins_busy")


def test_a_turn_with_plugins_is_crashed_at_every_commit():
    """Row 3: whatever a plugin decided is decided once; the end is the same wherever the process
    died.
    """
    lines = iter(
        [
            uses(("look", {"what": "a"}), ("look", {"what": "b"}), ("look", {"what": "c"})),
            "All three.",
        ]
    )

    async def model(query):
        return next(lines)

    report = crash_everywhere(busy(task="Go."), answers=model)
    assert report.result == "All three." and report.commits >= 8


async def test_a_tool_is_tried_again_also_where_plugins_store():
    """What is written down otherwise was run as always: with its retries; and its last error is
    written so, too.
    """
    tries = []

    @tool(retry=Retry(3), read_only=True)
    async def unsteady() -> str:
        """Fails."""
        tries.append(1)
        raise ConnectionError("no secret")

    clock = ManualClock()
    plugin = made(
        "before_store", lambda self, value: json.loads(json.dumps(value).replace("secret", "***"))
    )
    agent = Agent(tools=[unsteady], plugins=[plugin], name="<locals>.probed")
    async with opened(llm=Scripted(use("unsteady"), "Done."), clock=clock) as runtime:
        session = await runtime.session(agent, "c")
        sending = asyncio.ensure_future(session.send("Go."))
        while not sending.done():
            await asyncio.sleep(0)
            clock.advance(1)
        assert told(await session.history()) == ["Error: ConnectionError: no ***"]
    assert len(tries) == 3


@pytest.mark.parametrize(
    "directive",
    [
        Contribute("nowhere", "x"),
        SetOptions({"prompt": 7}),
        SetOptions({"tools": 7}),
        SetOptions({"max_turns": 0}),
    ],
    ids=["slot", "prompt", "tools", "max_turns"],
)
async def test_a_turn_that_failed_for_what_a_plugin_said_fails_on_replay_too(directive):
    """Whoever rebuilds the conversation comes to the same end; it goes on with the next turn."""
    wrong = [directive]
    agent = held(made("before_turn", lambda self, moment: wrong.pop() if wrong else None))
    async with opened(llm=Scripted("Here.")) as runtime:  # which replays it strictly at the end
        session = await runtime.session(agent, "c")
        assert (await session.send("One.")).outcome.code == "bad_arguments"
        for live in runtime.engine.sessions.all():
            runtime.engine.sessions.drop(live)
        assert (await session.send("Two.")).text == "Here."
