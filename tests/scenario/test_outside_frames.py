"""Branches, forks and frames, and the options that hold in them, through the public API."""

from typing import ClassVar

import pytest

from everhold import Agent, Answer, Plugin, Usage, program
from everhold.agents import FrameOpened, NodeKind, OptionsConfigured, extract_text
from everhold.errors import BadArguments, UnknownNode
from everhold.hooks import AddMessages, ContinueAs, NewFrame, SetOptions
from tests.scenario.talk import Scripted

USED = Usage(prompt_tokens=10, completion_tokens=5, model="m")


class Short(Plugin):
    """Begins a smaller frame."""

    name = "short"

    def before_compact(self, moment):
        if not moment.messages:
            return None
        return NewFrame([f"In short: hello. {moment.instructions}".strip()], keep=1)


class Onward(Plugin):
    """Goes on in another frame."""

    name = "onward"

    def before_checkpoint(self, moment):
        last = extract_text(moment.messages[-1]["content"])
        return ContinueAs("second", "Do the second part.") if last == "First part done." else None


class Born(Plugin):
    """Sets options when a session begins."""

    name = "born"

    def before_session(self, moment):
        return SetOptions({"temperature": 0.1 if moment.root else 0.9})


class Opening(Plugin):
    """Remembers the frames that were opened."""

    name = "opening"
    opened: ClassVar = []

    def after_frame(self, moment, frame):
        Opening.opened.append((frame.id, frame.reason, frame.previous))


bare = Agent(name="outside_bare", top_p=0.5)
short = Agent(plugins=[Short(), Opening()], name="outside_short")
onward = Agent(plugins=[Onward()], name="outside_onward")
born = Agent(plugins=[Born()], name="outside_born")


@program
async def parent(ctx):
    """Runs a child."""
    return await ctx.spawn(born(task="Go."))


def words(messages):
    return [extract_text(message["content"]) for message in messages]


def said(nodes):
    return [extract_text(node.content) for node in nodes]


class Noting(Scripted):
    """A model that remembers its options."""

    def __init__(self, *lines):
        super().__init__(*lines)
        self.options = []

    async def __call__(self, query):
        options = query.options or {}
        self.options.append({name: value for name, value in options.items() if name != "tools"})
        return Answer(await super().__call__(query), USED)


def begin(everhold, agent, *lines, name="chat"):
    model = Noting(*lines)
    everhold.answers(model.__call__)
    return everhold.runtime.session(agent, name), model


# ---- the graph


def test_going_back_hides_what_came_after_and_deletes_nothing(everhold):
    """The leaf is moved; the path follows it, and the branch that was left can be read and gone
    back to.
    """
    session, model = begin(everhold, bare, "1", "2", "3")
    first = session.send("one").settled.leaf
    left = session.send("two").settled.leaf
    session.branch(first)
    assert said(session.history()) == ["one", "1"]
    session.send("three")
    assert words(model.shown[-1]) == ["one", "1", "three"]
    assert said([session.node(left)]) == ["2"]
    assert {node.id for node in session.snapshot().nodes} >= {first, left}
    session.branch(left)
    assert said(session.history()) == ["one", "1", "two", "2"]
    with pytest.raises(UnknownNode):
        session.branch("9.9")


def test_a_fork_shares_the_turns_before_it_and_goes_its_own_way(everhold):
    session, _ = begin(everhold, bare, "1", "2", "3")
    session.send("one")
    session.send("two")
    fork = session.fork(1)
    fork.send("other")
    assert said(fork.history()) == ["one", "1", "other", "3"]
    assert said(session.history()) == ["one", "1", "two", "2"]
    with pytest.raises(BadArguments, match="there is no turn 9"):
        session.fork(9)


def test_nodes_are_linked_and_named_by_where_they_stand(everhold):
    """Ids are derived: two conversations that go alike have the same ones."""
    found = []
    for name in ("a", "b"):
        session, _ = begin(everhold, bare, "1", name=name)
        session.send("one")
        nodes = session.history()
        assert nodes[1].parent is not None and nodes[0].kind is NodeKind.MESSAGE
        found.append([(node.id, node.parent, node.role) for node in nodes])
    assert found[0] == found[1]


def test_a_plugin_adds_messages_to_the_graph(everhold):
    class Adding(Plugin):
        name = "adding"

        def before_turn(self, moment):
            return AddMessages(["By the way.", {"role": "system", "content": "Mind the gap."}])

    agent = Agent(plugins=[Adding()], name="<locals>.adding")
    session, _model = begin(everhold, agent, "ok")
    session.send("one")
    assert [(node.role, extract_text(node.content)) for node in session.history()] == [
        ("user", "one"),
        ("user", "By the way."),
        ("system", "Mind the gap."),
        ("assistant", "ok"),
    ]


# ---- frames


def test_compaction_opens_a_frame_and_keeps_the_one_before(everhold):
    """One frame is current, what came before is readable, and the model sees the beginning only."""
    session, model = begin(everhold, short, "Hi.", "Bye.")
    session.send("Hello.")
    assert session.compact("Quickly.").frame
    frames = session.frames()
    assert [(one.reason, one.previous) for one in frames] == [
        ("initial", None),
        ("compaction", "initial"),
    ]
    assert words(session.messages()) == ["In short: hello. Quickly.", "Hi."]
    assert words(session.messages("initial")) == ["Hello.", "Hi."]
    session.send("And?")
    assert words(model.shown[-1]) == ["In short: hello. Quickly.", "Hi.", "And?"]


def test_without_anybody_who_compacts_nothing_changes(everhold):
    session, _ = begin(everhold, bare, "Hi.")
    session.send("Hello.")
    opened = session.compact()
    assert isinstance(opened, FrameOpened) and opened.frame is None and "no plugin" in opened.why
    assert [frame.id for frame in session.frames()] == ["initial"]
    assert session.turns()[1].outcome == opened


def test_the_first_compactor_by_priority_wins(everhold):
    asked = []

    def compactor(label, rank, beginning):
        def before_compact(self, moment):
            asked.append(label)
            return None if beginning is None else NewFrame([beginning])

        more = {"name": label, "priority": rank, "before_compact": before_compact}
        return type(label, (Plugin,), more)()

    plugins = [
        compactor("low", 1, "Low."),
        compactor("none", 9, None),
        compactor("high", 5, "High."),
    ]
    session, _ = begin(everhold, Agent(plugins=plugins, name="<locals>.ranked"), "Hi.")
    session.send("Hello.")
    assert session.compact().frame
    assert words(session.messages()) == ["High."] and asked == ["none", "high"]


def test_the_id_of_a_frame_is_where_it_was_opened(everhold):
    found = []
    for name in ("one", "two"):
        session, _ = begin(everhold, short, "Hi.", name=name)
        session.send("Hello.")
        session.compact()
        found.append([frame.id for frame in session.frames()])
    assert found[0] == found[1] == ["initial", "2.0"]


def test_a_frame_is_opened_by_name_with_messages(everhold):
    session, model = begin(everhold, bare, "Hi.", "Plan.")
    session.send("Hello.")
    turn = session.continue_as("work", ["Begin."])
    assert turn.outcome == FrameOpened("continue_as", turn.outcome.frame)
    assert words(session.messages()) == ["Begin."]
    session.send("Go.")
    assert words(model.shown[-1]) == ["Begin.", "Go."]
    assert said(session.history())[:2] == ["Hello.", "Hi."]


def test_a_frame_of_no_name_or_the_same_is_not_opened(everhold):
    session, _ = begin(everhold, bare, "Hi.")
    first = session.continue_as("work", ["Begin."])
    for name in ("", "  ", "work", first.outcome.frame):
        assert session.continue_as(name, ["Again."]).outcome.frame is None
    assert len(session.frames()) == 2 and words(session.messages()) == ["Begin."]


def test_a_turn_may_go_on_in_another_frame(everhold):
    session, model = begin(everhold, onward, "First part done.", "Second part done.")
    turn = session.send("Do it.")
    assert (turn.text, turn.settled.rounds) == ("Second part done.", 2)
    assert words(model.shown[1]) == ["Do the second part."]
    assert [frame.reason for frame in session.frames()] == ["initial", "continue_as"]


def test_a_turn_does_not_change_frames_for_ever(everhold):
    class Restless(Plugin):
        name = "restless"

        def before_checkpoint(self, moment):
            return ContinueAs(f"part {moment.round}", "Go on.")

    agent = Agent(plugins=[Restless()], max_turns=30, name="<locals>.restless")
    session, _ = begin(everhold, agent, *["On."] * 30)
    assert session.send("Go.").outcome.code == "bad_arguments"
    assert len(session.frames()) == 17


def test_reset_begins_from_nothing_and_loses_nothing(everhold):
    """The model sees nothing of before; history, usage and options stay."""
    session, model = begin(everhold, bare, "Hi.", "New.")
    session.configure({"temperature": 0.3})
    session.send("Hello.")
    spent = session.usage().total
    session.reset()
    assert session.messages() == [] and said(session.history()) == ["Hello.", "Hi."]
    assert session.usage().total == spent and session.options()["temperature"] == 0.3
    session.send("Who am I?")
    assert words(model.shown[-1]) == ["Who am I?"]


def test_observers_are_told_of_a_frame(everhold):
    Opening.opened.clear()
    session, _ = begin(everhold, short, "Hi.")
    session.send("Hello.")
    session.compact()
    assert Opening.opened == [("2.0", "compaction", "initial")]


# ---- options


def test_options_hold_in_the_current_frame_and_in_those_after(everhold):
    session, model = begin(everhold, bare, "1", "2")
    session.configure({"temperature": 0.3, "model": "m:x"})
    session.send("Hello.")
    session.continue_as("next", ["Begin."])
    session.send("Hello.")
    assert model.options == [{"top_p": 0.5, "temperature": 0.3, "model": "m:x"}] * 2
    session.configure({"temperature": 0.7, "model": None})
    assert session.options() == {"top_p": 0.5, "temperature": 0.7}
    assert session.options("initial") == {"top_p": 0.5, "temperature": 0.3, "model": "m:x"}


def test_options_may_be_set_in_all_frames(everhold):
    session, _ = begin(everhold, bare)
    session.configure({"temperature": 0.3})
    session.continue_as("next", ["Begin."])
    session.configure({"temperature": 0.7}, everywhere=True)
    assert session.options("initial")["temperature"] == session.options()["temperature"] == 0.7
    outcome = session.turns()[-1].outcome
    assert isinstance(outcome, OptionsConfigured) and outcome.everywhere


def test_what_is_given_for_one_turn_is_gone_with_it(everhold):
    """Merged name by name over the options of the frame, and not kept."""
    session, model = begin(everhold, bare, "1", "2")
    session.configure({"temperature": 0.3})
    session.send("Hello.", options={"temperature": 1.0, "seed": 7})
    session.send("Hello.")
    assert model.options == [
        {"top_p": 0.5, "temperature": 1.0, "seed": 7},
        {"top_p": 0.5, "temperature": 0.3},
    ]
    assert session.options() == {"top_p": 0.5, "temperature": 0.3}


def test_a_plugin_sets_options_when_a_root_session_begins(everhold):
    session, model = begin(everhold, born, "1", "2")
    session.send("Hello.")
    everhold.restart()
    everhold.runtime.session(born, "chat").send("Hello.")
    assert [options["temperature"] for options in model.options] == [0.1, 0.1]


def test_a_plugin_tells_a_child_from_a_root_when_it_begins(everhold):
    model = Noting("From the child.")
    everhold.answers(model.__call__)
    assert everhold.run(parent()) == "From the child."
    assert model.options[0]["temperature"] == 0.9


@pytest.mark.parametrize(
    "wrong", [{"max_turns": 0}, {"model": 3}, {"prompt": {"add": {"nowhere": "x"}}}]
)
def test_options_that_make_no_sense_are_refused(everhold, wrong):
    session, _ = begin(everhold, bare)
    with pytest.raises(BadArguments):
        session.configure(wrong)
    assert session.turns() == []


def test_plugins_change_options_in_a_chain_and_one_that_fails_is_skipped(everhold):
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

    agent = Agent(plugins=[Doubling(), Failing(), Adding()], name="<locals>.chain")
    session, _ = begin(everhold, agent)
    assert session.configure({"seed": 3}) == {"seed": 7} == session.options()


def test_observers_are_told_of_options_only_if_they_changed(everhold):
    """One that fails changes nothing."""
    told = []

    class Failing(Plugin):
        name = "failing"

        def after_config(self, moment, before, now):
            raise RuntimeError("no")

    class Watching(Plugin):
        name = "watching"

        def after_config(self, moment, before, now):
            told.append((before, now))

    agent = Agent(plugins=[Failing(), Watching()], name="<locals>.watched")
    session, _ = begin(everhold, agent)
    session.configure({"seed": 3})
    session.configure({"seed": 3})
    assert told == [({}, {"seed": 3})] and session.options() == {"seed": 3}
