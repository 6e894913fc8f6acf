"""The plugins of one conversation: fingerprints, snapshots, decisions as data."""

import logging
from hashlib import sha256

import pytest

from everhold.agents.frames import find_nth_message, normalize_message
from everhold.agents.plugin_host import (
    PluginHost,
    call_hook,
    decode_directive,
    encode_directive,
    fingerprint_plugins,
)
from everhold.core.graph import Graph, Node
from everhold.core.message import Role
from everhold.core.tool import Confirm, Deny
from everhold.errors import BadArguments, BadDirective, UnknownNode
from everhold.hooks import (
    ALLOWED_DIRECTIVES,
    HOOKS,
    Abort,
    AddMessages,
    Ask,
    Compact,
    ContinueAs,
    Contribute,
    Directive,
    Finish,
    NewFrame,
    Plugin,
    ReplaceInput,
    ReplaceResult,
    Reply,
    SetOptions,
    Show,
    overrides_hook,
)
from tests.failures import collect_failures


class Counter(Plugin):
    name = "counter"
    broken = False

    def restore(self, state):
        self.count = 0 if state is None else state["count"]

    def snapshot(self):
        if self.broken:
            raise RuntimeError("cannot")
        return {"count": self.count}

    def counted(self):
        self.count += 1
        self.revision += 1


class Other(Plugin):
    name = "other"


def test_a_fingerprint_is_made_of_name_version_and_revision():
    """Row 3: the first eight bytes, little endian, of a SHA-256 over all plugins in their order."""
    one = Counter()
    one.revision = 258
    told = b"counter\x001\x00" + bytes([2, 1, 0, 0, 0, 0, 0, 0]) + b"\xff"
    expected = sha256(told).digest()[:8][::-1].hex()
    assert fingerprint_plugins([one]) == expected


@pytest.mark.parametrize("change", [{"name": "x"}, {"version": "2"}, {"revision": 1}])
def test_a_fingerprint_changes_with_each_of_them(change):
    """Row 3: and with nothing else."""
    before, after = Counter(), Counter()
    after.elsewhere = "x"
    assert fingerprint_plugins([before]) == fingerprint_plugins([after])
    for name, value in change.items():
        setattr(after, name, value)
    assert fingerprint_plugins([before]) != fingerprint_plugins([after])
    assert fingerprint_plugins([before, Other()]) != fingerprint_plugins([Other(), before])


def test_each_conversation_has_a_copy():
    """Row 3: what one counts the other does not know."""
    given = Counter()
    one, two = PluginHost([given]), PluginHost([given])
    one.plugins[0].counted()
    assert (one.plugins[0].count, two.plugins[0].count) == (1, 0)


def test_nothing_is_captured_while_no_revision_changes():
    plugged = PluginHost([Counter()])
    plugged.plugins[0].count = 5
    assert plugged.capture() is None and plugged.unkept() is None
    plugged.plugins[0].revision += 1
    assert plugged.capture()["plugins"]["counter"]["state"] == {"count": 5}
    assert plugged.capture() is None
    assert plugged.unkept()["plugins"]["counter"]["revision"] == 1


def test_a_failed_capture_keeps_the_old_snapshot_and_the_old_fingerprint(caplog):
    """Row 3: else the stale snapshot would pass for a fresh one (D13)."""
    plugged = PluginHost([Counter()])
    plugin = plugged.plugins[0]
    plugin.counted()
    plugged.capture()
    before = plugged.fingerprint, plugged.kept
    plugin.counted()
    plugin.broken = True
    with caplog.at_level(logging.ERROR, "everhold"):
        assert plugged.capture() is None
    assert (plugged.fingerprint, plugged.kept) == before
    plugin.broken = False
    assert plugged.capture()["plugins"]["counter"]["state"] == {"count": 2}


def test_restoring_without_an_entry_resets_the_plugin():
    """Row 3: a snapshot that knows nothing of a plugin makes it begin anew."""
    plugged = PluginHost([Counter(), Other()])
    plugged.plugins[0].counted()
    plugged.adopt(
        {"fingerprint": "", "plugins": {"other": {"version": "1", "revision": 4, "state": None}}},
        whole=True,
    )
    assert (plugged.plugins[0].count, plugged.plugins[0].revision, plugged.plugins[1].revision) == (
        0,
        0,
        4,
    )
    plugged.plugins[0].counted()
    plugged.adopt(None, whole=True)
    assert plugged.plugins[0].count == 0


def test_what_a_plugin_already_knows_is_not_taken_from_it():
    """A decision's snapshot never overwrites a newer one."""
    plugged = PluginHost([Counter()])
    plugged.plugins[0].counted()
    old = plugged.capture()
    plugged.plugins[0].counted()
    plugged.adopt_if({"state": old})
    assert plugged.plugins[0].count == 2
    assert plugged.unkept()["plugins"]["counter"] == {
        "version": "1",
        "revision": 2,
        "state": {"count": 2},
    }
    plugged.adopt_if({})
    fresh = PluginHost([Counter()])
    fresh.adopt(old)
    assert (fresh.plugins[0].count, fresh.plugins[0].revision) == (1, 1)


def test_decisions_that_come_in_another_order_leave_the_latest():
    """Two that were made beside each other: what is kept is that of the later one, whichever comes
    last.
    """
    plugged = PluginHost([Counter()])
    plugged.plugins[0].counted()
    first = plugged.capture()
    plugged.plugins[0].counted()
    second = plugged.capture()
    for state in (second, first):
        plugged.adopt_if({"state": state})
    assert plugged.unkept() == second


@pytest.mark.parametrize(
    "directive", [Ask("x", "y"), NewFrame(["a"], 2), ContinueAs("f", "t"), Deny("no"), Confirm("?")]
)
def test_directives_are_data(directive):
    """What was decided is read back from the journal as it was."""
    assert decode_directive(encode_directive(directive)) == directive


def test_every_directive_makes_sense_somewhere():
    """And every hook that decides says which do."""
    everywhere = {kind for kinds in ALLOWED_DIRECTIVES.values() for kind in kinds}
    assert everywhere == {*Directive.__subclasses__(), Deny, Confirm}
    assert set(ALLOWED_DIRECTIVES) == {hook for hook in HOOKS if hook.startswith("before_")} - {
        "before_store"
    }


EVERY = [
    Abort("x"),
    AddMessages(["x"]),
    SetOptions({"a": 1}),
    Contribute("intro", "x"),
    Show(1),
    Reply("x"),
    ReplaceInput({}),
    ReplaceResult("x"),
    Ask("x", "y"),
    Compact(),
    NewFrame(["x"]),
    ContinueAs("f", "t"),
    Finish(1),
    Deny("x"),
    Confirm("x"),
]


async def test_each_hook_takes_what_makes_sense_there_and_refuses_the_rest():
    """Typed, and with what would have made sense."""
    with collect_failures() as row:
        for hook in ALLOWED_DIRECTIVES:
            for directive in EVERY:
                with row(hook, type(directive).__name__):
                    await check_directive(hook, directive)


async def check_directive(hook, directive):
    plugin = type("Probe", (Plugin,), {"name": "probe", hook: lambda self, *given: [directive]})()
    if type(directive) in ALLOWED_DIRECTIVES[hook]:
        assert await call_hook(plugin, hook, None, ()) == [directive]
        return
    with pytest.raises(BadDirective) as error:
        await call_hook(plugin, hook, None, ())
    assert type(directive).__name__ in str(error.value)
    assert ALLOWED_DIRECTIVES[hook][0].__name__ in error.value.hint


async def test_what_is_no_directive_is_refused():
    plugin = type(
        "Probe", (Plugin,), {"name": "probe", "before_turn": lambda self, moment: "stop"}
    )()
    with pytest.raises(BadDirective, match="'stop'"):
        await call_hook(plugin, "before_turn", None, ())


def test_a_plugin_that_does_nothing_is_asked_nothing():
    assert PluginHost([Other()]).hooks == []
    assert not any(overrides_hook(Other(), hook) for hook in HOOKS)


# ---- messages and frames


def test_messages_are_words_or_objects():
    assert normalize_message("Hi.") == {
        "role": "user",
        "content": [{"type": "text", "text": "Hi."}],
    }
    assert normalize_message({"role": "system", "content": "Be kind."})["content"] == [
        {"type": "text", "text": "Be kind."}
    ]


@pytest.mark.parametrize(
    "wrong", [3, {"role": "tool", "content": "x"}, {"role": "user"}, {"content": "x"}]
)
def test_what_is_no_message_is_refused(wrong):
    with pytest.raises(BadArguments):
        normalize_message(wrong)


def test_the_nth_message_of_a_frame():
    graph = Graph()
    graph.add(Node("1.0", None, role=Role.USER, content="a"))
    graph.add(Node("1.1", "1.0", role=Role.ASSISTANT, content="b"))
    assert (find_nth_message(graph, 1), find_nth_message(graph, 2)) == ("1.0", "1.1")
    with pytest.raises(UnknownNode):
        find_nth_message(graph, 3)
