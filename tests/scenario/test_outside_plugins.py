"""Plugins through the public API: what they decide, observe, keep, and reach."""

import json

import pytest

from everhold import Agent, Answer, Plugin, Usage, program, tool
from everhold.agents import TurnAborted, TurnAnswered, extract_text
from everhold.errors import BadArguments, UnknownPlugin
from everhold.hooks import (
    SLOTS,
    Abort,
    AddMessages,
    Ask,
    Confirm,
    Contribute,
    Deny,
    Finish,
    ReplaceInput,
    ReplaceResult,
    Reply,
    SetOptions,
    Show,
)
from tests.scenario.talk import told, use, uses

USED = Usage(prompt_tokens=10, completion_tokens=2, model="m")
RAN = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    RAN.append(what)
    return f"{what}: found"


@program
async def digest(ctx, words: str):
    """Wait for a person."""
    return await ctx.input(f"Digest {words}?")


def made(name="probe", **methods):
    """A plugin with these methods and attributes."""
    return type("Probe", (Plugin,), {"name": name, **methods})()


class Speaking:
    """A model that says its lines, and remembers what it was shown."""

    def __init__(self, *lines):
        self.lines, self.queries = list(lines), []

    async def __call__(self, query):
        self.queries.append(query)
        return Answer(self.lines.pop(0) if self.lines else "Done.", USED)

    def words(self, n):
        return [extract_text(message["content"]) for message in self.queries[n].messages]


def talk(everhold, plugins, *lines, said=("Hello.",), **options):
    """A conversation with plugins; returns its session, last turn and model."""
    model = Speaking(*lines)
    everhold.answers(model.__call__)
    agent = Agent(tools=[look], plugins=plugins, name="<locals>.probed", **options)
    session = everhold.runtime.session(agent, "chat")
    for one in said:
        turn = session.send(one)
    return session, turn, model


# ---- hooks that decide


def test_before_session_is_called_once_in_the_life_of_a_session(everhold):
    calls = []

    def before_session(self, moment):
        calls.append((moment.root, moment.turn))
        return SetOptions({"seed": 7})

    session, _, _ = talk(everhold, [made(before_session=before_session)], said=("1", "2"))
    everhold.restart()
    session.send("3")
    assert calls == [(True, 0)] and session.options() == {"seed": 7}


def test_before_turn_adds_to_the_prompt_and_to_the_conversation(everhold):
    def before_turn(self, moment):
        return [Contribute("guidance", "Stay calm."), AddMessages(["By the way."])]

    _, _, model = talk(everhold, [made(before_turn=before_turn)], instructions="Be kind.")
    assert model.queries[0].system == "Be kind.\n\nStay calm."
    assert model.words(0) == ["Hello.", "By the way."]


def test_contributions_are_ordered_by_slot_and_priority_once_each_and_gated_by_tools(everhold):
    assert SLOTS == ("intro", "execution", "guidance", "project", "context", "environment")

    def before_turn(self, moment):
        return [
            Contribute("environment", "last"),
            Contribute("guidance", "low", priority=1),
            Contribute("guidance", "high", priority=9),
            Contribute("guidance", "high", priority=9),
            Contribute("project", "with look", tools=["look"]),
            Contribute("project", "with fly", tools=["fly"]),
        ]

    _, _, model = talk(everhold, [made(before_turn=before_turn)])
    assert model.queries[0].system.split("\n\n") == ["low", "high", "with look", "last"]


def test_before_checkpoint_is_heard_once_and_knows_whether_the_turn_is_about_to_end(everhold):
    seen = []

    def before_checkpoint(self, moment):
        seen.append(moment.completing)
        return None if moment.completing else AddMessages(["Mind the gap."])

    _, _, model = talk(everhold, [made(before_checkpoint=before_checkpoint)], use("look", what="x"))
    assert seen == [False, True] and model.words(1)[-1] == "Mind the gap."


def test_before_model_call_changes_what_is_shown_and_not_what_is_kept(everhold):
    def before_model_call(self, moment):
        return Show(skip=2, extra=["(a note)"]) if moment.turn == 2 else None

    session, _, model = talk(
        everhold, [made(before_model_call=before_model_call)], "One.", "Two.", said=("1", "2")
    )
    assert model.words(1) == ["2", "(a note)"]
    assert [extract_text(node.content) for node in session.history()] == ["1", "One.", "2", "Two."]


def test_before_model_call_replies_or_sets_options_for_the_call(everhold):
    def before_model_call(self, moment):
        return Reply("Cached.") if moment.turn == 1 else SetOptions({"seed": 3})

    session, _, model = talk(everhold, [made(before_model_call=before_model_call)], said=("1", "2"))
    assert extract_text(session.history()[1].content) == "Cached." and len(model.queries) == 1
    assert model.queries[0].options["seed"] == 3 and session.options() == {}


def test_before_tool_call_changes_replies_denies_or_confirms(everhold):
    decided = {
        "a": ReplaceInput({"what": "A"}),
        "b": Reply("known"),
        "c": Deny("not yours"),
        "d": Confirm("it costs money"),
    }
    plugin = made(before_tool_call=lambda self, moment, call: decided.get(call.input["what"]))
    calls = uses(*(("look", {"what": what}) for what in "abcde"))
    session, turn, _ = talk(everhold, [plugin], calls)
    (query,) = turn.queries
    assert "it costs money" in query.prompt
    everhold.runtime.answer(query, False)
    assert session.turn(turn.input_id).text == "Done."
    results = told(session.history())
    assert results[:3] == ["A: found", "known", "Error: denied by probe: not yours"]
    assert results[3].startswith("Error: ") and results[4] == "e: found"
    assert sorted(RAN) == ["A", "e"]


def test_before_result_changes_what_the_model_sees(everhold):
    plugin = made(before_result=lambda self, moment, call, content: ReplaceResult(content.upper()))
    session, _, _ = talk(everhold, [plugin], use("look", what="x"))
    assert told(session.history()) == ["X: FOUND"]


def test_before_store_changes_what_is_stored(everhold):
    plugin = made(
        before_store=lambda self, value: json.loads(json.dumps(value).replace("hush", "***"))
    )
    session, _, _ = talk(everhold, [plugin], "hush, words", said=("hush, an input",))
    kept = session.stored(fresh=True).json().decode()
    assert "hush" not in kept and kept.count("***") >= 2


@pytest.mark.parametrize(
    "hook", ["before_turn", "before_checkpoint", "before_model_call", "before_tool_call"]
)
def test_a_plugin_aborts_a_turn_and_the_outcome_names_it(everhold, hook):
    plugin = made(**{hook: lambda self, moment, *more: Abort("not today")})
    session, turn, _ = talk(everhold, [plugin], use("look", what="x"))
    assert turn.outcome == TurnAborted("probe", "not today")
    assert len(session.turns()) == 1


def test_a_plugin_finishes_a_turn_with_a_value(everhold):
    _, turn, model = talk(everhold, [made(before_turn=lambda self, moment: Finish({"n": 1}))])
    assert (turn.outcome, turn.value, model.queries) == (TurnAnswered({"n": 1}), {"n": 1}, [])


@pytest.mark.parametrize(
    ("hook", "directive"),
    [
        ("before_session", Abort("x")),
        ("before_turn", ReplaceInput({})),
        ("before_checkpoint", Reply("x")),
        ("before_model_call", AddMessages(["x"])),
        ("before_tool_call", AddMessages(["x"])),
        ("before_result", Confirm("x")),
    ],
)
def test_a_directive_that_a_hook_does_not_allow_fails_the_turn(everhold, hook, directive):
    plugin = made(**{hook: lambda self, moment, *more: directive})
    _, turn, _ = talk(everhold, [plugin], use("look", what="x"))
    assert turn.outcome.code == "bad_directive" and hook in turn.outcome.error


def test_a_plugin_that_fails_stops_its_turn_alone(everhold):
    def before_turn(self, moment):
        if moment.turn == 1:
            raise RuntimeError("boom")

    session, turn, _ = talk(everhold, [made(before_turn=before_turn)])
    assert turn.outcome.code == "plugin_failed" and "boom" in turn.outcome.error
    assert session.send("Again.").text == "Done."


def test_a_plugin_asks_a_model_under_a_source_of_its_own(everhold):
    def before_turn(self, moment):
        if not moment.said:
            return Ask("Which tone?", "tone", system="You judge.")
        return Contribute("guidance", f"Tone: {moment.said[0]}.")

    session, _, model = talk(everhold, [made(before_turn=before_turn)], "warm", "Hi.")
    assert [query.system for query in model.queries] == ["You judge.", "Tone: warm."]
    assert {
        name: cost["total"] for name, cost in session.usage().report()["by_source"].items()
    } == {
        "tone": 12,
        "turn": 12,
    }


def test_a_plugin_adds_tools(everhold):
    @tool(read_only=True)
    def listen() -> str:
        """Listen."""
        return "heard"

    session, _, _ = talk(everhold, [made(tools=(listen,))], use("listen"))
    assert told(session.history()) == ["heard"]


# ---- hooks that observe


def test_observers_are_told_what_happened_once(everhold):
    log = []

    def hear(hook):
        return lambda self, moment, *more: log.append((hook, *more))

    names = ("after_turn", "after_model_call", "after_tool_call", "after_restore")
    plugin = made(**{name: hear(name) for name in names})
    session, _, _ = talk(everhold, [plugin], use("look", _id="k", what="x"))
    everhold.skip(seconds=1)
    assert [entry[0] for entry in log] == [
        "after_model_call",
        "after_tool_call",
        "after_model_call",
        "after_turn",
    ]
    assert log[0][1] == USED and (log[1][1].id, log[1][2]) == ("k", "x: found")
    assert log[3][1] == session.turns()[0]
    everhold.restart()
    session.send("Again.")
    assert [entry[0] for entry in log].count("after_restore") == 1


def test_an_observer_is_told_of_a_question_for_a_person(everhold):
    asked = []
    plugin = made(
        before_tool_call=lambda self, moment, call: Confirm("sure?"),
        after_query=lambda self, moment, query: asked.append(query.kind),
    )
    talk(everhold, [plugin], use("look", what="x"))
    assert asked == ["approval"]


def test_an_observer_that_fails_breaks_nothing(everhold, caplog):
    heard = []

    def after_turn(self, moment, settled):
        raise RuntimeError("boom")

    other = made("other", after_turn=lambda self, moment, settled: heard.append(settled.turn))
    _, turn, _ = talk(everhold, [made(after_turn=after_turn), other])
    assert turn.text == "Done." and heard == [1]
    assert "'probe' failed in after_turn" in caplog.text


# ---- what a plugin keeps


class Counter(Plugin):
    """Counts turns."""

    name = "counter"
    fails = False

    def restore(self, state):
        self.turns = self.revision = state or 0

    def snapshot(self):
        if Counter.fails:
            raise RuntimeError("no snapshot")
        return self.turns

    def before_turn(self, moment):
        self.turns = self.revision = self.turns + 1
        return Contribute("context", f"turn {self.turns}")


def kept(session):
    plugins = session.stored(fresh=True).plugins
    return plugins["plugins"]["counter"]["state"], plugins["fingerprint"]


def test_what_a_plugin_keeps_is_restored(everhold):
    """Of each conversation its own; a reset begins anew."""
    session, _, model = talk(everhold, [Counter()], said=("1", "2"))
    everhold.restart()
    session.send("3")
    assert [query.system for query in model.queries] == ["turn 1", "turn 2", "turn 3"]
    assert kept(session)[0] == 3
    session.reset()
    session.send("4")
    assert model.queries[-1].system == "turn 1"


def test_the_fingerprint_changes_with_the_revision_and_only_then(everhold):
    session, _, _ = talk(everhold, [Counter()])
    state, first = kept(session)
    session.configure({"seed": 1})
    assert kept(session) == (state, first)
    session.send("2")
    assert kept(session)[0] == 2 and kept(session)[1] != first


def test_a_snapshot_that_failed_keeps_the_old_one_and_its_fingerprint(everhold, monkeypatch):
    session, _, _ = talk(everhold, [Counter()])
    before = kept(session)
    monkeypatch.setattr(Counter, "fails", True)
    everhold.checks = False
    assert session.send("2").text == "Done."
    assert kept(session) == before
    monkeypatch.setattr(Counter, "fails", False)
    session.send("3")
    assert kept(session)[0] == 3


def test_what_plugins_keep_goes_along_with_a_stored_conversation(everhold):
    session, _, _ = talk(everhold, [Counter()], said=("1", "2"))
    fresh = everhold.runtime.session(session.agent, "fresh")
    fresh.apply(session.stored())
    assert fresh.stored().plugins == session.stored().plugins


def test_two_plugins_of_one_name_and_unknown_ones_are_refused():
    with pytest.raises(BadArguments, match="counter"):
        Agent(plugins=[Counter(), Counter()], name="<locals>.twice")
    with pytest.raises(UnknownPlugin):
        Agent(plugins=["nobody-has-this"], name="<locals>.unknown")


# ---- what a plugin reaches


def test_a_hook_sees_where_the_conversation_stands(everhold):
    seen = []

    def before_model_call(self, moment):
        assert moment.session_id and moment.now >= moment.started >= moment.began
        seen.append((moment.turn, moment.round, moment.frame.id, len(moment.messages)))
        seen.append((moment.options, moment.usage.total.total, moment.turn_usage.total.total))
        seen.append(moment.context)

    talk(everhold, [made(before_model_call=before_model_call)], said=("a", "b"))
    assert seen[:3] == [(1, 1, "initial", 1), ({}, 0, 0), 0]
    assert seen[3:] == [(2, 1, "initial", 3), ({}, 12, 0), 10]


def test_a_hook_writes_values_and_begins_sessions_once(everhold):
    async def before_turn(self, moment):
        counts = moment.state("outside")
        counts.incr("turns")
        if await counts.get("turns") == 2:
            begun = await moment.sessions.begin(digest(words="all"), title="a digest")
            return AddMessages([f"{begun} was begun."])
        return Contribute("context", f"so far {await counts.get('turns')}")

    plugin = made(before_turn=before_turn)
    session, _, model = talk(everhold, [plugin], said=("1", "2"))
    (begun,) = everhold.runtime.sessions(labels={"begun_by": session.id})
    assert begun.title == "a digest" and f"{begun.session_id} was begun." in model.words(1)
    assert model.queries[0].system == "so far 1"
