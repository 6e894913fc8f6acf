"""A conversation as a value: views, snapshots, stored states, residency, refreshing, and what it
cost.
"""

import asyncio

import msgspec
import pytest

import everhold
from everhold.agents.conversation_reader import Stored
from everhold.core.graph import extract_text
from everhold.core.turn import TurnFailed
from everhold.errors import BadSetting, DamagedGraph, StoreFull, UnknownNode
from everhold.stores.memory import MemoryStore
from tests.scenario.harness import opened

USED = everhold.Usage(prompt_tokens=10, completion_tokens=2, model="m")

echo = everhold.Agent(instructions="Be brief.", name="echo", temperature=0.5)
CALLED = []


@everhold.tool(rerun="safe")
def ring(times: int) -> str:
    """Ring a bell."""
    CALLED.append(times)
    return "it rang"


ringer = everhold.Agent(tools=[ring], name="ringer")


class Counting(everhold.Plugin):
    """Counts turns."""

    name = "counting"

    def restore(self, state):
        self.turns = self.revision = state or 0

    def snapshot(self):
        return self.turns

    def before_turn(self, moment):
        self.turns = self.revision = self.turns + 1


counted = everhold.Agent(tools=[ring], plugins=[Counting()], name="counted")


def echoes(query):
    return everhold.Answer(f"You said: {extract_text(query.messages[-1]['content'])}", usage=USED)


def rings(query):
    if query.messages[-1]["role"] == "tool":
        return "Rung."
    return {"tool_calls": [{"name": "ring", "input": {"times": 1}}]}


def words(nodes):
    return [extract_text(node.content) for node in nodes]


async def test_every_look_has_an_answer_before_anything_was_said():
    """Row 1: a conversation that was only begun has an empty history, no turns, no cost; what is
    not there is typed.
    """
    async with opened() as runtime:
        session = await runtime.session(echo, "chat")
        view = await session.view()
        assert (view.messages, view.pending, view.turns, view.last, view.leaf) == (
            [],
            [],
            0,
            None,
            None,
        )
        assert view.usage["total"] == 0
        assert (await session.snapshot()).nodes == []
        assert (await session.stored()).leaf is None
        assert await session.history() == []
        assert await session.turns() == []
        assert len(await session.usage()) == 0
        assert [frame.id for frame in await session.frames()] == ["initial"]
        assert await session.cancel_turn() is None
        with pytest.raises(UnknownNode):
            await session.node("1.0")


async def test_a_view_has_what_was_said_and_no_references():
    """Row 5: the read view."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        view = msgspec.to_builtins(await session.view())
        assert [extract_text(message["content"]) for message in view["messages"]] == [
            "one",
            "You said: one",
        ]
        assert view["options"] == {"temperature": 0.5}
        assert view["usage"]["total"] == 12
        assert (view["turns"], view["last"]["outcome"]["type"]) == (1, "answered")
        assert not {"nodes", "ledger", "revision"} & view.keys()


async def test_a_snapshot_has_every_node_and_no_words():
    """Row 5: the snapshot omits bodies and the revision, and has all branches and the ledger's
    rows.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        await session.branch(None)
        await session.send("two")
        shown = await session.snapshot()
        assert [node.parent for node in shown.nodes if node.role == "user"] == [None, None]
        assert b"You said" not in msgspec.json.encode(shown)
        assert [(row["source"], row["model"], row["total"]) for row in shown.ledger] == [
            ("turn", "m", 24)
        ]
        assert "revision" not in shown.__struct_fields__


async def test_what_is_stored_comes_back_as_it_was():
    """Row 5: the persistence state round-trips, and read anew from the store it is the same."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        kept = await session.stored()
        assert Stored.read(kept.json()) == kept
        assert await session.stored(fresh=True) == kept
        assert words(kept.path())[-1] == "You said: one"


async def test_what_is_stored_has_the_tools_and_what_plugins_keep():
    """Row 5: read anew, both are what they are by now. A tool that a turn hides is still a tool of
    the session, and plugins go along.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(counted, "chat")
        await session.send("one")
        before = await session.stored(fresh=True)
        await session.send("two", options={"tools": {"hidden": ["ring"]}})
        after = await session.stored(fresh=True)
        assert [(one.manifest.name, one.source) for one in before.tools.entries] == [
            ("ring", "agent")
        ]
        assert before.tools == after.tools
        assert before.tools.generation == 1
        assert [kept.plugins["plugins"]["counting"]["state"] for kept in (before, after)] == [1, 2]
        assert before.plugins["fingerprint"] != after.plugins["fingerprint"]
        assert Stored.read(after.json()) == after
        fresh = await runtime.session(counted, "fresh")
        await fresh.apply(before)
        adopted = await fresh.stored()
        assert (adopted.tools, adopted.plugins) == (before.tools, before.plugins)


async def test_a_stored_conversation_is_applied_to_another_session():
    """Row 5 and 6: what both share stays, the rest is added; applying it again changes nothing;
    usage stays its own.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        for said in ("one", "two"):
            await session.send(said)
        kept = await session.stored()
        fork = await session.fork(1)
        await fork.send("other")
        turn = await fork.apply(kept)
        assert turn.text == "You said: two"
        assert words(await fork.history()) == words(await session.history())
        assert "other" in words((await fork.conversation()).graph.hidden())
        assert (await fork.usage()).total.total == 24
        assert await fork.apply(kept) is None
        assert (await fork.send("three")).text == "You said: three"
        fresh = await runtime.session(echo, "fresh")
        await fresh.apply(kept)
        assert words(await fresh.history()) == words(await session.history())
        assert len(await fresh.usage()) == 0


async def test_a_stored_conversation_may_be_one_that_ended_earlier():
    """Row 6: applying an earlier state moves the leaf back to what both share."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        kept = await session.stored()
        await session.send("two")
        await session.apply(kept)
        assert words(await session.history()) == ["one", "You said: one"]
        await session.send("three")
        assert words(await session.history())[2] == "three"


async def test_what_is_no_conversation_is_not_applied():
    """A damaged state is refused before anything is said; a signal that claims to be one settles as
    failed.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        kept = await session.stored()
        with pytest.raises(DamagedGraph):
            await session.apply(msgspec.structs.replace(kept, leaf="9.9"))
        bad = {
            "do": "apply",
            "id": "x",
            "to": None,
            "nodes": [{"id": "9.0", "kind": "frame", "content": {}}],
        }
        await runtime.signal(session.id, "input", bad)
        turn = await session.turn("x")
        assert isinstance(turn.outcome, TurnFailed)
        assert words(await session.history()) == ["one", "You said: one"]
        assert (await session.send("two")).text == "You said: two"


async def test_only_the_active_path_is_kept_in_memory():
    """Row 8: what was left is read from the store when it is asked for; another scope is
    refused.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat", residency="path")
        left = (await session.send("one")).settled.leaf
        await session.branch(None)
        await session.send("two")
        nodes = session._reading.told.graph.nodes
        assert left not in nodes
        assert words(await session.history()) == ["two", "You said: two"]
        assert words([await session.node(left)]) == ["You said: one"]
        await session.branch(left)
        await session.send("three")
        assert words(await session.history()) == [
            "one",
            "You said: one",
            "three",
            "You said: three",
        ]
        assert len((await session.stored()).nodes) > len(session._reading.told.graph.nodes)
        with pytest.raises(UnknownNode):
            await session.node("9.9")
        with pytest.raises(BadSetting, match="residency"):
            await runtime.session(echo, "chat", residency="some")


class Watched(MemoryStore):
    """Counts the deliveries that are read."""

    read = 0

    async def load(self, session_id, since=0):
        record = await super().load(session_id, since)
        self.read += len(record.deliveries)
        return record


async def test_a_refresh_that_finds_nothing_changes_nothing():
    """Row 9 and D5: only what is new is read; what another handle did is adopted; the live agent
    stays as it is.
    """
    store = Watched()
    async with opened(on=store, llm=echoes) as runtime:
        session, other = [await runtime.session(echo, "chat") for _ in range(2)]
        assert await session.refresh()
        await other.send("one")
        assert await session.refresh()
        before = session._reading.told
        graph, turns = before.graph, list(before.turns)
        store.read = 0
        assert not await session.refresh()
        assert store.read == 0
        assert session._reading.told is before
        assert (before.graph, before.turns) == (graph, turns)
        await other.branch(None)  # another leaf
        assert await session.refresh()
        assert (await session.view()).leaf is None
        assert session.agent is echo


async def test_live_options_survive_a_refresh():
    """Row 9 and D4: what was set for the session holds, whatever other handles say meanwhile."""
    async with opened(llm=echoes) as runtime:
        session, other = [await runtime.session(echo, "chat") for _ in range(2)]
        await session.configure({"model": "test:small"}, everywhere=True)
        await other.send("one")
        await session.refresh()
        assert (await session.options())["model"] == "test:small"


async def test_usage_includes_a_turn_under_way_and_never_decreases():
    """Row 10 and D9: also a turn that was cancelled stays paid for."""
    asked, hold = asyncio.Event(), asyncio.Event()

    async def slow(query):
        if query.messages[-1]["role"] == "tool":
            asked.set()
            await hold.wait()
        return everhold.Answer(
            {"tool_calls": [{"name": "ring", "input": {"times": 2}}]}, usage=USED
        )

    async with opened(llm=slow) as runtime:
        session = await runtime.session(ringer, "chat")
        sending = asyncio.ensure_future(session.send("go"))
        await asked.wait()
        under_way = await session.usage()
        assert under_way.total.total == 12
        assert len((await session.conversation()).ledger) == 0
        await session.cancel_turn()
        await sending
        after = await session.usage()
        assert after.since(under_way).total.total == 0
        assert after.report()["by_source"]["turn"]["total"] == 12
        assert (await session.conversation()).ledger.total.total == 12


async def test_a_turn_that_settled_is_never_done_again():
    """Row 12 and D12: another runtime on the same store asks nothing, calls nothing, and has the
    same receipt.
    """
    CALLED.clear()
    store = MemoryStore()
    async with opened(on=store, llm=rings) as runtime:
        first = await (await runtime.session(ringer, "chat")).send("go", id="i")

    def refuses(query):
        raise AssertionError("it was asked again")

    async with opened(on=store, llm=refuses) as runtime:
        session = await runtime.session(ringer, "chat")
        assert await session.send("go", id="i") == first
        assert first.settled.leaf == (await session.history())[-1].id  # derived, not minted
    assert CALLED == [1]


async def test_an_input_that_could_not_be_kept_is_not_said_to_be():
    """D11: a store that fails is an error for whoever sent it, and there is no trace of the
    input.
    """

    class Full(MemoryStore):
        full = False

        async def commit(self, change, fence):
            if self.full:
                raise StoreFull("memory://")
            return await super().commit(change, fence)

    store = Full()
    async with opened(on=store, llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        store.full = True
        with pytest.raises(everhold.EverholdError, match="no space"):
            await session.send("two", id="i")
        store.full = False
        assert len(await session.turns()) == 1
        assert (await session.send("two", id="i")).text == "You said: two"


researcher = everhold.Agent(instructions="Look it up.", name="researcher")
chief = everhold.Agent(instructions="Delegate.", subagents=[researcher], name="chief")


async def test_a_child_knows_its_parent_and_its_agent():
    """Row 31: a subagent is a session of its own: born by one query of its parent, and where it
    stands is kept.
    """

    def model(query):
        if query.system.startswith("Look"):
            return "It is blue."
        if query.messages[-1]["role"] == "tool":
            return f"They say: {query.messages[-1]['content'][0]['content']}"
        name = query.options["tools"][0]["name"]
        return {
            "tool_calls": [
                {"name": name, "input": {"agent": "researcher", "prompt": "Which colour?"}}
            ]
        }

    async with opened(llm=model) as runtime:
        session = await runtime.session(chief, "chat")
        turn = await session.send("Which colour is the sky?")
        assert "It is blue." in turn.text
        (child,) = await runtime.sessions(parent=session.id)
        birth = (await runtime.store.load(child.session_id)).birth
        asked = [query for step in await runtime.steps(session.id) for query in step.asked]
        assert [query.q for query in asked if query.kind == "session"] == [birth.parent_query]
        assert (birth.parent, birth.program) == (session.id, chief.ref)
        assert birth.args["within"]["path"] == ["researcher"]


async def test_history_is_in_the_order_in_which_it_was_said():
    """Row 32: oldest first, without what was left; the nodes that are handed out cannot be
    changed.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        for said in ("one", "two", "three"):
            await session.send(said)
        history = await session.history()
        assert words(history)[::2] == ["one", "two", "three"]
        with pytest.raises(AttributeError):
            history[0].content = "something else"
        history.clear()
        assert len(await session.history()) == 6


async def test_options_that_could_not_be_replayed_are_refused():
    """Row 32: what is not JSON never enters a turn."""
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        with pytest.raises(everhold.EverholdError) as refused:
            await session.send("one", options={"callback": print})
        assert refused.value.code == "bad_value"
        assert await session.turns() == []
