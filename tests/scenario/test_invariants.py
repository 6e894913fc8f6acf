"""What others promise of their stores and queues, in the form it has here; see
docs/reference/invariants.md.

A docstring begins with the ids of the invariants that its test shows.
"""

import asyncio

import msgspec
import pytest

import everhold
from everhold.core.codec import FORMAT
from everhold.core.graph import extract_text
from everhold.core.intake import CancelOutcome, ItemState
from everhold.core.turn import TurnCancelled, TurnFailed
from everhold.errors import AnswerConflict, DamagedGraph, InputConflict, KeyConflict
from everhold.ports.store import SessionFilter
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore, schema
from everhold.stores.sqlite import SQLiteStore, database
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.harness import list_due, list_orphans, list_ready
from tests.postgres import fresh
from tests.scenario.harness import opened
from tests.scenario.talk import Scripted, use

KINDS = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.xdist_group("postgres")))
USED = everhold.Usage(prompt_tokens=10, completion_tokens=2, model="m")


@everhold.program
async def pair(ctx):
    return await asyncio.gather(ctx.llm("a?"), ctx.llm("b?"))


@everhold.program
async def ladder(ctx, rungs: int):
    for n in range(rungs):
        await ctx.llm(f"Rung {n}?")


@everhold.tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


echo = everhold.Agent(instructions="Be brief.", name="invariants_echo")
looker = everhold.Agent(tools=[look], name="invariants_looker")


def echoes(query):
    return everhold.Answer(f"You said: {extract_text(query.messages[-1]['content'])}", usage=USED)


@pytest.fixture(params=KINDS)
def again(request, tmp_path):
    """The same store, opened once more."""
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: memory
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "app.db")
    url = fresh(request.getfixturevalue("postgres"))
    return lambda: PostgresStore(url)


def picture(data):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


async def under_way(runtime, name="chat", agent=looker):
    """A conversation whose turn waits for its model."""
    session = await runtime.session(agent, name)
    await session.send("Go.", id="first")
    await runtime.mover.rest()
    return session


async def answered(runtime, session, *lines):
    """Answer the model's open question with each line; what is given as an exception is an
    error.
    """
    for line in lines:
        (query, *_) = [
            query for query in (await runtime.status(session.id)).queries if query.kind == "llm"
        ]
        await runtime.answer_many(session.id, {query.id: line})
        await runtime.mover.rest()


async def test_each_step_is_one_revision(again):
    """SC1: A session begins at revision 1, each step adds one, and its frames are there after
    opening again.
    """
    clock = ManualClock()
    async with opened(on=again(), clock=clock, llm=None) as runtime:
        status = await runtime.start(ladder(rungs=3))
        revisions = [(await runtime.store.load(status.session_id)).head.revision]
        for _ in range(3):
            status = await runtime.answer(status.queries[0], "up")
            revisions.append((await runtime.store.load(status.session_id)).head.revision)
        assert revisions == [1, 2, 3, 4]
    async with opened(on=again(), clock=clock, llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("one")
        await session.reset()
        await session.continue_as("planner", "Plan.")
        frames = (await session.conversation()).graph.frames
        assert len(frames) == 3
    async with opened(on=again(), clock=clock, llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        assert (await session.conversation()).graph.frames == frames


async def test_what_an_answer_cost_is_told_once(again):
    """SC41: The same answer with other costs is the first one; what it cost then is counted, once,
    from then on.
    """
    clock = ManualClock()
    async with opened(on=again(), clock=clock) as runtime:
        status = await runtime.start(pair(), key="k")
        for used in (everhold.Usage(3, 4), everhold.Usage(30, 40)):
            await runtime.answer(status.queries[0], "A", usage=used)
    async with opened(on=again(), clock=clock) as runtime:
        await runtime.answer(status.queries[0], "A", usage=everhold.Usage(300, 400))
        ended = await runtime.answer(status.queries[1], "B", usage=everhold.Usage(1, 1))
        assert ended.metrics["auto"]["total_tokens"] == {"tokens": 9, "source": "provided"}


async def test_counts_are_exact_however_large(again):
    """SC42: Costs that are reasoning alone are entered; no sum is too large to be told, kept and
    read again.
    """
    clock, huge = ManualClock(), 2**63 - 1
    lines = [
        everhold.Usage(huge, huge, model="m"),
        everhold.Usage(huge, 1),
        everhold.Usage(reasoning_tokens=7, model="r"),
    ]

    def model(query):
        return everhold.Answer("Yes.", usage=lines.pop(0))

    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(echo, "chat")
        for _ in range(3):
            await session.send("Well?")
        spent = await session.usage()
    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(echo, "chat")
        assert [*await session.usage()] == [*spent]
        assert (spent.total.input, spent.total.output, spent.total.reasoning) == (
            2 * huge,
            huge + 1,
            7,
        )
        assert {model for _, model, _ in spent} == {"", "m", "r"}
        assert await runtime.store.verify() == []


@pytest.mark.parametrize(
    ("layer", "system"),
    [
        ({"replace": {"intro": ""}}, None),
        ({"clear": ["intro"]}, None),
        ({}, "Be brief."),
        (None, "Be brief."),
    ],
)
async def test_a_layer_that_says_nothing_is_not_no_layer(again, layer, system):
    """SC43: A prompt that was made empty stays empty, and one that was never touched is the
    agent's, opened again.
    """
    clock, seen = ManualClock(), []

    def model(query):
        seen.append(query.system)
        return "ok"

    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(echo, "chat")
        await session.send("1")
        await session.configure({"prompt": layer})
    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(echo, "chat")
        assert (await session.options()).get("prompt") == layer
        await session.send("2")
    assert seen == ["Be brief.", system]


async def test_moving_leaves_behind_what_is_not_on_the_way():
    """SC39: What is said hides nothing; a move hides what came after where it goes, and nothing
    else.
    """
    async with opened(llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        one = (await session.send("one")).settled.leaf
        await session.send("two")
        graph = (await session.conversation()).graph
        assert graph.hidden() == []
        later = {node.id for node in graph.path(graph.leaf)} - {node.id for node in graph.path(one)}
        await session.branch(one)
        graph = (await session.conversation()).graph
        assert ({node.id for node in graph.hidden()}, graph.leaf) == (later, one)
        assert len(later) == 2


@pytest.mark.parametrize("how", ["leaf", "missing", "twice", "cycle"])
async def test_a_graph_that_cannot_be_is_refused(how):
    """SC26, SC44: A leaf or parent that is not there, a node that is there twice or above itself:
    by its name.
    """
    async with opened(llm=echoes) as runtime:
        session, other = await runtime.session(echo, "chat"), await runtime.session(echo, "other")
        await session.send("one")
        kept = await session.stored()
        first, *rest = kept.nodes
        wrong = {
            "leaf": {"leaf": "9.9"},
            "missing": {"nodes": rest},
            "twice": {"nodes": [first, first, *rest]},
            "cycle": {"nodes": [msgspec.structs.replace(first, parent=kept.leaf), *rest]},
        }[how]
        bad = msgspec.json.decode(msgspec.structs.replace(kept, **wrong).json(), type=type(kept))
        named = {"leaf": "9.9", "cycle": kept.leaf}.get(how, first.id)
        for look_at in (bad.path, None):
            with pytest.raises(DamagedGraph, match=f"'{named}'"):
                look_at() if look_at else await other.apply(bad)
        assert await other.history() == [] and await other.turns() == []
        assert (await other.apply(kept)) is not None


async def test_pictures_wait_as_they_were_sent(again):
    """S1, S2, S3, S4, S5: Under one key the same is the first, and other bytes a conflict; none of
    300 KiB is lost.
    """
    clock, data = ManualClock(), "iVBORw0KGgo" * 28_000
    async with opened(on=again(), clock=clock) as runtime:
        session = await under_way(runtime)
        said = [{"type": "text", "text": "What is this?"}, picture(data)]
        first = await session.enqueue(said, key="k")
        second = await session.enqueue(said, key="k")
        assert (first.new, second.new, second.item) == (True, False, first.item)
        with pytest.raises(InputConflict):
            await session.enqueue([said[0], picture(data[:-1] + "p")], key="k")
        assert [item.id for item in await session.intake()] == ["k"]
    async with opened(on=again(), clock=clock) as runtime:
        session = await runtime.session(looker, "chat")
        assert await session.intake() == [first.item]
        await answered(runtime, session, "Done.")
        (asked,) = (
            query for query in (await runtime.status(session.id)).queries if query.kind == "llm"
        )
        assert asked.messages[-1]["content"] == said


async def test_pictures_are_said_as_they_were_sent(again):
    """S6, S7: What is sent to an idle conversation is as whole; other bytes under its id are a
    conflict.
    """
    clock, data = ManualClock(), "iVBORw0KGgo" * 28_000
    model = Scripted("A cat.")
    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(looker, "chat")
        first = await session.send([picture(data)], id="k")
        assert model.shown[0][-1]["content"] == [picture(data)]
    async with opened(on=again(), clock=clock, llm=model) as runtime:
        session = await runtime.session(looker, "chat")
        assert await session.send([picture(data)], id="k") == first
        with pytest.raises(KeyConflict):
            await session.send([picture(data[:-1] + "p")], id="k")
        assert len(model.shown) == 1


async def test_taking_back_concerns_one_session():
    """S21, S22: What waits elsewhere under the same names stays, whether one or all that follow are
    taken back.
    """
    async with opened() as runtime:
        one, two = await under_way(runtime, "one"), await under_way(runtime, "two")
        for session in (one, two):
            for key in "abc":
                await session.enqueue(key, key=key)
        assert [cancelled.outcome for cancelled in await one.cancel("a")] == [
            CancelOutcome.CANCELLED
        ]
        assert [cancelled.name for cancelled in await one.cancel_from("b")] == ["b", "c"]
        assert await one.intake() == []
        assert [item.id for item in await two.intake()] == ["a", "b", "c"]


async def test_an_end_comes_with_the_end():
    """S18: While an input waits or its turn runs it has no end; afterwards it has, and the receipt
    of its turn.
    """
    async with opened() as runtime:
        session = await under_way(runtime)
        await session.enqueue("And then?", key="k")
        for stage in ("waiting", "in_turn"):
            where = await session.input("k")
            assert (where.stage, where.settled) == (stage, None)
            assert stage == "in_turn" or (where.item.state, where.item.end) == (
                ItemState.WAITING,
                None,
            )
            await answered(runtime, session, "Done.")
        where = await session.input("k")
        assert (where.stage, where.settled.input, where.item.state) == (
            "settled",
            "k",
            ItemState.COMPLETED,
        )
        assert where.item.end is not None


async def test_a_fork_has_cost_what_its_own_way_has_cost(again):
    """FA6: What it shares counts for it too, what either does afterwards is its own; also opened
    again.
    """
    clock, told = ManualClock(), {}
    async with opened(on=again(), clock=clock, llm=echoes) as runtime:
        session = await runtime.session(echo, "chat")
        for said in ("one", "two", "three"):
            await session.send(said)
        fork = await session.fork(1, key="fork")
        await fork.send("other")
        for each in (session, fork):
            told[each.id] = (await each.usage()).total.total
        assert [*told.values()] == [36, 24]
        await runtime.delete(session.id)
    async with opened(on=again(), clock=clock, llm=echoes) as runtime:
        fork = await runtime.session(echo, "fork")
        assert (await fork.usage()).total.total == told[fork.id]


async def test_taking_back_where_nothing_waits():
    """S20, S24, S25: What waits is over at once when it is taken back; what has ended stays;
    nothing is nothing.
    """
    async with opened(llm=Scripted("Hello.")) as runtime:
        session = await runtime.session(looker, "chat")
        assert await session.intake(all=True) == []
        await session.enqueue("Hi.", key="k")
        await session.turn("k")
        before = await session.intake(all=True)
        assert [one.outcome for one in await session.cancel("k", "nobody")] == [
            CancelOutcome.COMPLETED,
            CancelOutcome.UNKNOWN,
        ]
        assert [one.outcome for one in await session.cancel_from("k")] == [CancelOutcome.COMPLETED]
        assert await session.intake(all=True) == before
        await session.enqueue("Later.", key="l", available_at=runtime.clock.now() + 60)
        await session.cancel("l")
        assert [item.state for item in await session.intake(all=True)] == [
            ItemState.COMPLETED,
            ItemState.CANCELLED,
        ]


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_who_entered_a_turn_shares_its_end(how):
    """S59, S65, S66, S68: Whoever was heard in a turn has its outcome; who only waited is heard
    afterwards.
    """
    async with opened() as runtime:
        session = await under_way(runtime)
        await session.enqueue("And this.", key="joined", at="after_work")
        await runtime.mover.rest()
        await answered(runtime, session, use("look", what="x"))
        await session.enqueue("And then?", key="later")
        if how == "failed":
            await answered(runtime, session, RuntimeError("the model is away"))
        else:
            await session.command("cancel_turn", key="c", reason="enough")
            await runtime.mover.rest()
        (settled,) = await session.turns()
        assert isinstance(settled.outcome, TurnFailed if how == "failed" else TurnCancelled)
        assert (settled.input, settled.taken) == ("first", ["joined"])
        for name in ("first", "joined"):
            assert (await session.turn(name)).outcome == settled.outcome
        await answered(runtime, session, "That.")
        assert (await session.turn("later")).text == "That."


async def test_a_new_store_is_empty_and_of_the_present_format(again):
    """S54, S69, S71: Nothing waits in it, nobody has to be seen to, and its format is the one of
    the last migration.
    """
    store = again()
    await store.open()
    formats = {
        "MemoryStore": FORMAT,
        "SQLiteStore": len(database.load_migrations()),
        "PostgresStore": len(schema.load_migrations()),
    }
    assert store.stats()["format"] == formats[type(store).__name__]
    assert (
        await store.list(SessionFilter())
        == await list_ready(store, 9)
        == await list_due(store, 1e12, 9)
        == []
    )
    assert (await store.next_due(), await store.next_duty(), await list_orphans(store, set())) == (
        None,
        None,
        [],
    )
    assert await store.inbox(kind=None, to=None, limit=9) == await store.verify() == []
    await store.close()


async def test_a_large_answer_again(again):
    """C8, C9, C10: Three megabytes are kept; said again they are the same; with one other sign they
    are a conflict.
    """
    clock, large = ManualClock(), "0123456789abcdé" * 200_000
    async with opened(on=again(), clock=clock) as runtime:
        status = await runtime.start(pair(), key="k")
        await runtime.answer(status.queries[0], large)
    async with opened(on=again(), clock=clock) as runtime:
        before = (await runtime.store.load(status.session_id)).head.revision
        await runtime.answer(status.queries[0], large)
        with pytest.raises(AnswerConflict):
            await runtime.answer(status.queries[0], f"{large[:-1]}e")
        assert (await runtime.store.load(status.session_id)).head.revision == before
        assert (await runtime.answer(status.queries[1], "B")).result == [large, "B"]
