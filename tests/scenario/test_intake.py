"""What waits to enter a conversation: lanes, keys, cancelling, busy policies, commands, wakes,
terminal records.
"""

import asyncio
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.agents.inputs import InputStage, enqueue_item, list_intake_items, read_input_status
from everhold.core.graph import extract_text
from everhold.core.intake import (
    Boundary,
    CancelOutcome,
    DeliveryPolicy,
    IntakeItem,
    ItemKind,
    ItemState,
    MergePolicy,
)
from everhold.core.lease import LeaseOwner
from everhold.core.tool import Confirm
from everhold.core.turn import FrameOpened, ToolsRefreshed, TurnAnswered, TurnCancelled
from everhold.engine.reconcile import HEAD_START
from everhold.errors import (
    BadArguments,
    BadValue,
    DamagedGraph,
    InputConflict,
    InputEnded,
    KeyConflict,
    SessionBusy,
    SessionEnded,
    StoreFull,
    TurnWaiting,
    UnknownInput,
    UnknownSession,
    UsageError,
)
from everhold.movers.local import FAILED_MOVE_DELAY
from everhold.ports.store import RemoteChange
from everhold.ports.tool import OfferedTool, tool
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import TTL, die, dying, opened, rows
from tests.scenario.talk import Scripted, use
from tests.scenario.test_absent import Away


@tool(read_only=True)
def look(what: str) -> str:
    """Look something up."""
    return f"{what}: found"


@tool
def pay() -> str:
    """Pay."""
    return "paid"


plain = Agent(tools=[look], name="intake_plain")
asking = Agent(tools=[pay], policy=lambda wanted: Confirm("Pay?"), name="intake_asking")
brief = Agent(tools=[look], max_turns=1, name="intake_brief")


@everhold.program
async def begins(ctx):
    await ctx.llm("and?")


async def settled(runtime, session_id):
    """Wait until nothing is being let in."""
    await runtime.mover.rest()


@contextmanager
def unsent(runtime):
    """No move is requested meanwhile: the requests are lost, as with a process that dies."""
    send = runtime.engine.serving.send
    runtime.engine.serving.send = lambda session_id, at=None: None
    try:
        yield
    finally:
        runtime.engine.serving.send = send


async def held(runtime, name="chat", agent=plain):
    """A conversation with a turn under way, which waits for its model."""
    session = await runtime.session(agent, name)
    turn = await session.send("Go.", id="first")
    await runtime.mover.rest()
    return session, turn.queries[0]


def words(nodes):
    return [extract_text(node.content) for node in nodes]


async def answered(runtime, session, *lines):
    """Answer the model's open question with each line."""
    for line in lines:
        open_now = [
            query for query in (await runtime.status(session.id)).queries if query.kind == "llm"
        ]
        await runtime.answer(open_now[0], line)
        await runtime.mover.rest()


# ---- waiting for the next turn (rows 13 and 20)


async def test_what_is_enqueued_during_a_turn_is_the_next_turn():
    """Row 13: enqueue returns after the durable write; the input enters when the turn has settled,
    by itself.
    """
    async with opened() as runtime:
        session, _ = await held(runtime)
        receipt = await session.enqueue("And then?", key="second")
        assert (receipt.new, receipt.item.state, receipt.item.id) == (
            True,
            ItemState.WAITING,
            "second",
        )
        assert [item.id for item in await session.intake()] == ["second"]
        await answered(runtime, session, "Done.", "That.")
        assert [one.input for one in await session.turns()] == ["first", "second"]
        assert await session.intake() == []
        assert [(item.id, item.state) for item in await session.intake(all=True)] == [
            ("second", ItemState.COMPLETED)
        ]


async def test_what_is_enqueued_on_an_idle_conversation_enters_at_once():
    """Row 13: the next turn begins without anybody calling."""
    async with opened(llm=Scripted("Hello.")) as runtime:
        session = await runtime.session(plain, "idle")
        receipt = await session.enqueue("Hi.")
        turn = await session.turn(receipt.item.id)
        assert (turn.text, turn.outcome) == ("Hello.", TurnAnswered())


async def test_what_waits_together_is_one_turn():
    """Inputs that are claimed together are one turn, in order; any of their ids finds it."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("One.", key="a")
        await session.enqueue(
            [{"type": "text", "text": "Two."}, {"type": "text", "text": "Three."}], key="b"
        )
        await session.enqueue("Four.", key="c", options={"max_tokens": 7})
        await answered(runtime, session, "Done.")
        asked = (await runtime.status(session.id)).queries
        assert [query.max_tokens for query in asked if query.kind == "llm"] == [7]
        await answered(runtime, session, "All of it.")
        turns = await session.turns()
        assert (turns[1].input, turns[1].taken) == ("a", ["b", "c"])
        for name in "abc":
            assert (await session.turn(name)).text == "All of it."
        assert words(await session.history())[2:] == ["One.Two.Three.Four.", "All of it."]
        for key, said in (("a", "One."), ("c", "Four.")):
            assert not (
                await session.enqueue(
                    said, key=key, options={"max_tokens": 7} if key == "c" else None
                )
            ).new


async def test_what_is_sent_during_a_turn_is_a_turn_of_its_own():
    """`send` waits for its own turn; what was enqueued to be alone has one, too."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("One.", key="a")
        await session.enqueue("Two.", key="b", alone=True)
        await session.enqueue("Three.", key="c")
        await answered(runtime, session, "0", "1", "2", "3")
        assert [one.input for one in await session.turns()] == ["first", "a", "b", "c"]


async def test_many_inputs_enter_in_order():
    """Row 13: at most 64 are claimed together; none is lost, none comes twice."""
    async with opened(llm=Scripted()) as runtime:
        session = await runtime.session(plain, "many")
        for n in range(70):
            await session.enqueue(f"{n};")
        await settled(runtime, session.id)
        while await session.intake():
            await asyncio.sleep(0.01)
        last = (await session.intake(all=True))[-1]
        await session.turn(last.id)
        said = "".join(
            extract_text(node.content) for node in await session.history() if node.role == "user"
        )
        assert said == "".join(f"{n};" for n in range(70))


async def test_something_for_later_waits_until_then():
    """An input that becomes available later enters then, and keeps nobody from entering before."""
    clock = ManualClock()
    async with opened(clock=clock, llm=Scripted("Now.", "Later.")) as runtime:
        session = await runtime.session(plain, "later")
        receipt = await session.enqueue("Remember.", available_at=clock.now() + 60)
        assert (await session.send("Hello.")).text == "Now."
        assert (await session.input(receipt.item.id)).stage is InputStage.WAITING
        clock.advance(61)
        assert (await session.turn(receipt.item.id, wait=20)).text == "Later."


async def test_an_error_of_a_move_loses_nothing(caplog):
    """Row 20: a move may fail; what waits still waits, and enters with the next look."""
    async with opened(llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "error")
        await settled(runtime, session.id)
        enter = runtime.engine.moves._enter

        async def broken(live, seen):
            runtime.engine.moves._enter = enter
            raise OSError("the disk is away")

        runtime.engine.moves._enter = broken
        receipt = await session.enqueue("Hi.")
        await settled(runtime, session.id)
        assert "could not move session" in caplog.text
        assert [item.id for item in await session.intake()] == [receipt.item.id]
        await runtime.engine.reconciler.move()
        assert (await session.turn(receipt.item.id)).text == "Here."


async def test_an_error_of_a_move_that_a_look_requested_loses_nothing(caplog):
    """A look requests a move once: the mover tries it again."""
    clock = ManualClock()
    async with opened(clock=clock, llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "error")
        await settled(runtime, session.id)
        with unsent(runtime):
            receipt = await session.enqueue("Hi.")
        enter, failed = runtime.engine.moves._enter, asyncio.Event()

        async def broken(live, seen):
            runtime.engine.moves._enter = enter
            failed.set()
            raise OSError("the disk is away")

        runtime.engine.moves._enter = broken
        runtime.engine.sessions.poke()
        await asyncio.wait_for(failed.wait(), 60)
        await settled(runtime, session.id)
        assert len(await session.intake()) == 1
        clock.advance(FAILED_MOVE_DELAY + 1)
        assert (await session.turn(receipt.item.id)).text == "Here."


async def test_being_woken_often_is_being_woken_once():
    """Row 20: requests to move one session are coalesced."""
    async with opened() as runtime:
        session = await runtime.session(plain, "often")
        await settled(runtime, session.id)
        moved, act = [], runtime.engine.moves._act

        async def counted(asked, live):
            moved.append(live.id)
            return await act(asked, live)

        runtime.engine.moves._act = counted
        await session.enqueue("Hi.")
        for _ in range(50):
            runtime.engine.serving.send(session.id)
        await settled(runtime, session.id)
        assert await session.intake() == []
        assert len(moved) <= 2  # the first may have begun when the others were requested


# ---- keys (row 13)


async def test_the_same_key_is_the_first_receipt_in_the_lane_and_in_the_journal():
    """Row 13: the same content is the same input, wherever it is; other content is a conflict that
    names it.
    """
    async with opened() as runtime:
        session, _ = await held(runtime)
        first = await session.enqueue("Then.", key="k")
        again = await session.enqueue("Then.", key="k")
        assert (again.new, again.item.id) == (False, first.item.id)
        with pytest.raises(InputConflict, match="'k'"):
            await session.enqueue("Otherwise.", key="k")
        with pytest.raises(InputConflict):
            await session.send("Otherwise.", id="k")
        assert (await session.send("Then.", id="k", wait=0)).waiting
        await answered(runtime, session, "Done.", "So.")
        assert not (await session.enqueue("Then.", key="k")).new
        assert (await session.send("Then.", id="k")).text == "So."
        with pytest.raises(KeyConflict):
            await session.enqueue("Otherwise.", key="k")
        assert not (await session.enqueue("Go.", key="first")).new
        with pytest.raises(KeyConflict):
            await session.enqueue("Stop.", key="first")


async def test_a_key_outlives_the_tombstone():
    """A vacuum forgets what has ended; the journal still knows what was said under a key."""
    async with opened(llm=Scripted("One.", "Two.")) as runtime:
        session = await runtime.session(plain, "vacuum")
        await session.enqueue("Hi.", key="k")
        await session.turn("k")
        await session.command("reset", key="r")
        await session.turn("command:reset:r")
        clock = runtime.clock
        assert await runtime.archive.vacuum(session.id, older_than=60) == 0
        clock.advance(61)
        assert await runtime.archive.vacuum(older_than=60) == 2
        assert await runtime.archive.vacuum() == 0
        assert await session.intake(all=True) == []
        assert not (await session.enqueue("Hi.", key="k")).new
        assert not (await session.command("reset", key="r")).new
        assert len(await session.turns()) == 2


async def test_a_key_that_came_both_ways_at_once_is_one_turn():
    """What entered directly while it waited in the lane is not said again; the others of its claim
    are.
    """
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("One.", key="a")
        await session.enqueue("Two.", key="b")
        await session.steer("One.", id="a")
        await answered(runtime, session, "Done.", "More.", "Both.")
        assert [(one.input, one.taken) for one in await session.turns()] == [
            ("first", ["a"]),
            ("b", []),
        ]
        assert words(await session.history()).count("One.") == 1
        assert [item.state for item in await session.intake(all=True)] == [ItemState.COMPLETED] * 2


@pytest.mark.parametrize("key", ["", "  ", 7, "k" * 2501])
async def test_what_is_no_key_is_refused(key):
    async with opened() as runtime:
        session = await runtime.session(plain, "blank")
        with pytest.raises(UsageError):
            await session.enqueue("Hi.", key=key)
        with pytest.raises(UsageError):
            await session.command("reset", key=key)
        assert await session.intake(all=True) == []


async def test_what_cannot_be_kept_is_refused_and_nothing_is_written():
    """Row 13: content that is none, or that JSON would change, never enters the lane."""
    async with opened() as runtime:
        session = await runtime.session(plain, "refused")
        for bad in ("", [], ["words"], [{"type": "text", "text": ""}]):
            with pytest.raises(BadArguments):
                await session.enqueue(bad)
        with pytest.raises(BadValue):
            await session.enqueue([{"type": "live", "value": object()}])
        with pytest.raises(BadArguments, match="soon"):
            await session.enqueue("Hi.", at="soon")
        with pytest.raises(BadArguments, match="seconds since 1970"):
            await session.enqueue("Hi.", available_at="noon")
        with pytest.raises(BadArguments, match="max_turns"):
            await session.enqueue("Hi.", options={"max_turns": 0})
        with pytest.raises(BadArguments, match="perhaps"):
            await session.send("Hi.", busy="perhaps")
        with pytest.raises(UnknownSession):
            await enqueue_item(
                runtime.engine, "s-nobody", IntakeItem("i", ItemKind.INPUT, {"content": "Hi."})
            )
        with pytest.raises(BadArguments):
            await runtime.archive.vacuum(older_than=-1)
        assert await session.intake(all=True) == []


# ---- taking back (rows 13 and 14)


async def test_cancelling_says_what_became_of_each():
    """Outcomes are typed and in the order asked for; what has entered stays."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("A", key="a")
        await session.enqueue("B", key="b")
        found = await session.cancel("b", "nobody", "b", reason="no more")
        assert [one.outcome for one in found] == [
            CancelOutcome.CANCELLED,
            CancelOutcome.UNKNOWN,
            CancelOutcome.ALREADY,
        ]
        where = await session.input("b")
        assert (where.stage, where.reason) == (InputStage.CANCELLED, "no more")
        await answered(runtime, session, "Done.", "A it is.")
        assert [one.outcome for one in await session.cancel("a")] == [CancelOutcome.COMPLETED]
        assert [one.input for one in await session.turns()] == ["first", "a"]
        with pytest.raises(BadArguments):
            await session.cancel()


async def test_whoever_waits_for_an_input_is_told_that_it_was_taken_back():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("B", key="b")
        waiting = asyncio.ensure_future(_turn_later(runtime, session, "b"))
        await session.cancel("b", reason="never mind")
        with pytest.raises(InputEnded, match="never mind"):
            await waiting
        with pytest.raises(InputEnded):
            await session.send("B", id="b")


async def _turn_later(runtime, session, input_id):
    while (turn := await session.turn(input_id)).waiting:
        await asyncio.sleep(0)
    return turn


async def test_a_lane_is_cancelled_from_an_anchor_on():
    async with opened() as runtime:
        session, _ = await held(runtime)
        for name in "abc":
            await session.enqueue(name, key=name)
        await session.command("reset", key="r")
        found = await session.cancel_from("b")
        assert [(one.name, one.outcome) for one in found] == [
            ("b", CancelOutcome.CANCELLED),
            ("c", CancelOutcome.CANCELLED),
        ]
        assert [item.id for item in await session.intake()] == ["a", "command:reset:r"]
        with pytest.raises(UnknownInput):
            await session.cancel_from("nobody")


async def test_what_somebody_lets_in_is_hidden_and_cannot_be_taken_back():
    """Row 14: a claim under a live lease is not listed, and not cancelled."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("A", key="a")

        def claim(intake):
            taken = intake.take(LeaseOwner("elsewhere", "1"), "t", 60)
            return intake.choose(taken.lease.fence, "t")

        await runtime.store.intake(session.id, claim)
        assert await session.intake() == []
        assert [one.outcome for one in await session.cancel("a")] == [CancelOutcome.CLAIMED]
        assert (await session.input("a")).stage is InputStage.WAITING
        await answered(runtime, session, "Done.")
        assert len(await session.turns()) == 1  # somebody else lets it in
        runtime.clock.advance(61)
        await runtime.engine.reconciler.move()
        await answered(runtime, session, "A.")
        assert [one.input for one in await session.turns()] == ["first", "a"]


async def test_a_worker_keeps_its_lease_while_things_are_let_in():
    """What enters under a lease that this process holds leaves the lease as it was."""
    async with opened(llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "kept")
        await runtime.mover.rest()
        fence = await runtime.engine.leases.take(session.id)
        receipt = await session.enqueue("Hi.")
        await runtime.mover.rest()
        assert (await session.turn(receipt.item.id)).text == "Here."
        lease = await runtime.store.intake(session.id, lambda intake: intake.lease)
        assert lease.fence == fence and not lease.released
        await runtime.engine.leases.release(session.id)


async def test_whoever_holds_the_lease_lets_in_what_others_put_there(tmp_path):
    """A turn under way hears what another process kept for it, from the process that works on
    it.
    """
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow(query):
        began.set()
        await gate.wait()
        return "Done."

    clock = ManualClock()
    async with opened(tmp_path, clock=clock, llm=slow, replay=False) as one:
        here = await one.session(plain, "chat")
        sending = asyncio.ensure_future(here.send("Go.", id="first"))
        await began.wait()
        assert await one.engine.leases.take(here.id) is not None
        async with opened(tmp_path, clock=clock, llm=[], recover=False, replay=False) as two:
            there = await two.session(plain, "chat")
            await there.enqueue("Hurry.", key="h", at="after_work")
            while (await there.input("h")).item.state is not ItemState.COMPLETED:
                await asyncio.sleep(0.01)
        gate.set()
        assert (await sending).settled.taken == ["h"]


async def test_the_lease_is_given_up_with_the_commit_that_hands_over():
    """Nobody waits for a lease to run out after things were let in."""
    async with opened(llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "free")
        receipt = await session.enqueue("Hi.")
        await session.turn(receipt.item.id)
        await runtime.mover.rest()
        lease = await runtime.store.intake(session.id, lambda intake: intake.lease)
        assert (lease.generation, lease.released) == (1, True)


@pytest.mark.parametrize("kept", [True, False])
async def test_what_could_not_be_handed_over_is_given_back(kept, caplog):
    """A commit that fails costs nothing: nothing is claimed, and a worker that had the lease keeps
    it.
    """
    async with opened(llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "back")
        await runtime.mover.rest()
        if kept:
            await runtime.engine.leases.take(session.id)
        step = runtime.engine.sessions.step

        async def fails(*given, **more):
            runtime.engine.sessions.step = step
            raise StoreFull("memory")

        runtime.engine.sessions.step = fails
        receipt = await session.enqueue("Hi.")
        await runtime.mover.rest()
        assert "could not move session" in caplog.text
        assert [item.hold for item in await session.intake()] == [None]
        lease = await runtime.store.intake(session.id, lambda intake: intake.lease)
        assert (lease is not None and not lease.released) is kept
        await runtime.engine.reconciler.move()
        runtime.engine.serving.send(session.id)
        assert (await session.turn(receipt.item.id)).text == "Here."


async def test_what_is_sent_goes_behind_what_waits():
    """Also where no turn is under way: nobody overtakes what came before."""
    async with opened(llm=Scripted("One.", "Two.")) as runtime:
        session = await runtime.session(plain, "behind")
        await runtime.mover.rest()
        with unsent(runtime):
            await session.enqueue("First.", key="first")
        assert (await session.send("Second.", id="second")).text == "Two."
        assert [one.input for one in await session.turns()] == ["first", "second"]


async def test_explain_says_what_waits_and_what_keeps_it_out():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("Then?", key="then")
        await session.enqueue("Tomorrow.", key="tomorrow", available_at=runtime.clock.now() + 86400)
        for n in range(5):
            await session.command("reset", key=str(n))
        told = await runtime.explain(session.id)
        waits = [line for line in told.because if "is queued" in line or "are queued" in line]
        assert "'then' is queued" in waits[0] and "a turn is running" in waits[0]
        assert "it becomes available at" in waits[1]
        assert waits[-1] == "2 more are queued behind it."
        assert "List or cancel queued input: everhold intake chat" in told.moves
        await runtime.store.intake(
            session.id, lambda intake: intake.take(LeaseOwner("elsewhere", "1"), "t", 60)
        )
        assert "elsewhere works on the session" in (await runtime.explain(session.id)).because[-6]
        await runtime.cancel(session.id)
        assert "has ended" in (await runtime.explain(session.id)).because[1]


async def test_where_an_input_stands():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("B", key="b")
        await session.steer("Now.", id="now")
        stages = [(await session.input(name)).stage for name in ("first", "now", "b")]
        assert stages == [InputStage.IN_TURN, InputStage.WAITING, InputStage.WAITING]
        assert (await session.input("first")).turn == 1
        await answered(runtime, session, use("look", what="x"))
        assert (await session.input("now")).stage is InputStage.IN_TURN
        await answered(runtime, session, "Done.", "B.")
        where = await session.input("b")
        assert (where.stage, where.turn, where.settled.input) == (InputStage.SETTLED, 2, "b")
        with pytest.raises(UnknownInput):
            await session.input("nobody")


# ---- while a turn is under way


async def test_busy_reject_refuses_and_changes_nothing():
    async with opened() as runtime:
        session, _ = await held(runtime)
        before = await rows(runtime, session.id)
        with pytest.raises(SessionBusy):
            await session.send("Now!", busy="reject")
        assert await rows(runtime, session.id) == before and await session.intake(all=True) == []
        await answered(runtime, session, "Done.")
        assert (await session.send("Now!", busy="reject")).waiting


async def test_busy_steer_is_heard_by_the_turn_under_way():
    """Row 26: it is heard once, with its id; the turn's receipt is its own."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        sending = asyncio.ensure_future(session.send("Hurry.", id="s", busy="steer"))
        assert (await sending).waiting
        await answered(runtime, session, "Done.", "Quick.")
        turn = await session.turn("s")
        assert (turn.settled.input, turn.settled.taken, turn.text) == ("first", ["s"], "Quick.")
        assert words(await session.history()).count("Hurry.") == 1


async def test_busy_fork_says_it_to_a_fork_at_the_last_settled_turn():
    async with opened() as runtime:
        session = await runtime.session(plain, "forked")
        await session.send("One.", id="one")
        await answered(runtime, session, "First.")
        await session.send("Two.", id="two")
        turn = await session.send("Meanwhile.", id="m", busy="fork")
        assert turn.session_id != session.id and turn.waiting
        again = await session.send("Meanwhile.", id="m", busy="fork")
        assert again.session_id == turn.session_id
        await runtime.answer(turn.queries[0], "There.")
        await answered(runtime, session, "Second.")
        done = await session.send("Meanwhile.", id="m", busy="fork")
        assert (done.session_id, done.text) == (turn.session_id, "There.")
        fork = await runtime.session(plain, turn.session_id)
        assert words(await fork.history()) == ["One.", "First.", "Meanwhile.", "There."]
        assert words(await session.history()) == ["One.", "First.", "Two.", "Second."]


async def test_queueing_waits_for_its_turn():
    async with opened() as runtime:
        session, _ = await held(runtime)
        assert (await session.send("Next.", id="n")).queries  # what the turn under way waits for
        assert [item.id for item in await session.intake()] == ["n"]
        await answered(runtime, session, "Done.", "Then.")
        assert (await session.turn("n")).text == "Then."


async def test_nothing_is_sent_while_a_person_is_asked_but_it_can_be_enqueued():
    async with opened(llm=Scripted(use("pay"), "Paid.", "Yes.")) as runtime:
        session = await runtime.session(asking, "asked")
        turn = await session.send("Pay.")
        with pytest.raises(TurnWaiting):
            await session.send("Well?")
        receipt = await session.enqueue("Well?")
        await runtime.answer(turn.queries[0], True)
        assert (await session.turn(receipt.item.id)).text == "Yes."


async def test_streams_wait_in_the_lane_too():
    """What is streamed during a turn is told from its own turn's beginning to its end."""
    model = Scripted("Done.", "Streamed.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(plain, "stream")
        first = asyncio.ensure_future(session.send("Go."))
        events = [event async for event in session.stream("And?", id="s")]
        await first
        assert events[-1].kind == "settled" and events[-1].settled.input == "s"


async def test_a_stream_of_what_is_taken_back_ends_with_an_error():
    gate = asyncio.Event()

    async def slow(query):
        await gate.wait()
        return "Done."

    async with opened(llm=slow) as runtime:
        session = await runtime.session(plain, "stream")
        first = asyncio.ensure_future(session.send("Go."))
        while not (await session.view()).pending:
            await asyncio.sleep(0)
        stream = session.stream("And?", id="s")
        told = asyncio.ensure_future(anext(stream))
        while not await session.intake():
            await asyncio.sleep(0)
        await session.cancel("s")
        with pytest.raises(InputEnded):
            await told
        gate.set()
        await first


# ---- into the turn under way (row 26)


async def test_an_input_for_the_turn_enters_at_its_next_checkpoint():
    """Row 26: it is accepted after the tools of the round, with its id."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        receipt = await session.enqueue("Also this.", key="k", at="after_work")
        assert (receipt.item.turn, receipt.item.boundary) == (1, Boundary.AFTER_WORK)
        await settled(runtime, session.id)
        await answered(runtime, session, use("look", what="x"), "Done.")
        assert [(one.input, one.taken) for one in await session.turns()] == [("first", ["k"])]
        assert words(await session.history())[3] == "Also this."


async def test_an_input_for_the_end_of_the_turn_enters_before_it_ends():
    """Row 26: the checkpoint after the tools does not hear it; the one before completion does."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("One more thing.", key="k", at="before_completion")
        await settled(runtime, session.id)
        await answered(runtime, session, use("look", what="x"), "Done.", "That too.")
        assert [(one.input, one.taken, one.rounds) for one in await session.turns()] == [
            ("first", ["k"], 3)
        ]
        assert words(await session.history()) == [
            "Go.",
            "",
            "",
            "Done.",
            "One more thing.",
            "That too.",
        ]


async def test_what_misses_its_turn_is_the_next_turn_exactly_once():
    """Row 26: the round of grace hears nothing any more."""
    async with opened() as runtime:
        session, _ = await held(runtime, agent=brief)
        await answered(runtime, session, use("look", what="x"))
        await session.enqueue("Too late?", key="late", at="after_work")
        await settled(runtime, session.id)
        await answered(runtime, session, "Done.", "No.")
        assert [one.input for one in await session.turns()] == ["first", "late"]
        assert words(await session.history()).count("Too late?") == 1


async def test_an_input_for_a_turn_that_is_over_is_for_the_next():
    """Row 26: what was kept for a turn while nobody could let it in is deferred, and enters
    once.
    """
    async with opened() as runtime:
        session, _ = await held(runtime)
        with unsent(runtime):
            await session.enqueue("For the first.", key="k", at="after_work")
            await answered(runtime, session, "Done.")
            await session._command({"id": "second", "content": "Second."})
            await runtime.engine.reconciler.move()
            assert [(item.turn, item.deferred) for item in await session.intake()] == [(1, True)]
            await answered(runtime, session, "So.")
            await runtime.engine.reconciler.move()
            await answered(runtime, session, "For the third.")
        assert await _settled_inputs(session) == ["first", "second", "k"]


async def _settled_inputs(session):
    return [name for one in await session.turns() for name in (one.input, *one.taken)]


# ---- commands (row 15)


async def test_commands_are_done_in_order_between_turns():
    """Row 15: a command waits for the turn under way, is done once, and is never said to a
    model.
    """
    async with opened() as runtime:
        session, _ = await held(runtime)
        receipt = await session.command("reset", key="r", reason="a new topic")
        again = await session.command("reset", key="r", reason="said otherwise")
        assert (receipt.new, again.new, again.item.id) == (True, False, receipt.item.id)
        runtime.clock.advance(1)
        await session.enqueue("Hello.", key="h")
        assert len(await session.turns()) == 0
        await answered(runtime, session, "Done.")
        turns = await session.turns()
        assert [one.input for one in turns] == ["first", receipt.item.id]
        assert turns[1].outcome == FrameOpened("reset", "2.0")
        asked = [
            query for query in (await runtime.status(session.id)).queries if query.kind == "llm"
        ]
        assert [extract_text(message["content"]) for message in asked[0].messages] == ["Hello."]
        assert "new topic" not in str(asked[0].messages)
        where = await session.input(receipt.item.id)
        assert (where.stage, where.turn) == (InputStage.SETTLED, 2)


async def test_inputs_that_are_as_old_as_a_command_go_first():
    """Ties go to the input."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.command("reset", key="r")
        await session.enqueue("Hello.", key="h")
        await answered(runtime, session, "Done.", "Hello to you.")
        assert [one.input for one in await session.turns()] == ["first", "h", "command:reset:r"]


async def test_a_turn_is_cancelled_at_once_by_command():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.command("reset", key="before")
        await session.enqueue("Next.", key="n")
        receipt = await session.command("cancel_turn", key="c", reason="enough")
        await settled(runtime, session.id)
        turns = await session.turns()
        assert (turns[0].outcome, turns[0].input) == (TurnCancelled("enough"), "first")
        ended = await session.input(receipt.item.id)
        assert (ended.stage, "step" in ended.item.end) == (InputStage.SETTLED, True)
        await answered(runtime, session, "Yes?")
        assert [one.input for one in await session.turns()] == [
            "first",
            "n",
            "command:reset:before",
        ]


async def test_cancelling_a_turn_that_is_over_cancels_no_other():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await answered(runtime, session, "Done.")
        receipt = await session.command("cancel_turn", key="c")
        await settled(runtime, session.id)
        assert (await session.input(receipt.item.id)).item.end == {"applied": False}
        await session.send("Next.", id="n")
        assert not (await session.command("cancel_turn", key="c")).new
        await answered(runtime, session, "Still here.")
        assert (await session.turn("n")).outcome == TurnAnswered()


async def test_tools_are_refreshed_by_command():
    """Row 15: those who offer tools are asked again, and the journal has what is offered now."""
    source = _Source([OfferedTool("one", "one")])
    agent = Agent(tools=[source, look], name="intake_refresh")
    async with opened(llm=Scripted("Hello."), replay=False) as runtime:
        session = await runtime.session(agent, "refresh")
        await session.send("Hi.")
        source.offers.append(OfferedTool("two", "two"))
        receipt = await session.command("refresh_tools", key="1", reason="a new server")
        turn = await session.turn(receipt.item.id)
        assert isinstance(turn.outcome, ToolsRefreshed) and turn.outcome.tools == [
            "look",
            "one",
            "two",
        ]
        before = len(turn.outcome.fingerprint)
        source.fails = True
        failed = await session.turn((await session.command("refresh_tools", key="2")).item.id)
        assert (failed.outcome.tools, before) == (
            ["look", "one", "two"],
            16,
        ) and failed.outcome.unreached


class _Source:
    """Offers tools that change."""

    name = "changing"

    def __init__(self, offers):
        self.offers, self.fails = offers, False

    async def offered(self):
        if self.fails:
            raise OSError("away")
        return list(self.offers)

    def tool(self, offer):
        return tool(lambda: "done", name=offer.name, description="Something.", read_only=True)


async def test_a_conversation_is_compacted_by_command():
    async with opened(llm=Scripted("Hello.")) as runtime:
        session = await runtime.session(plain, "compact")
        receipt = await session.command("compact", key="c")
        assert (await session.turn(receipt.item.id)).outcome.frame is None


async def test_an_unknown_command_is_refused():
    async with opened() as runtime:
        session = await runtime.session(plain, "unknown")
        with pytest.raises(BadArguments, match="explode"):
            await session.command("explode", key="k")


# ---- wakes and tasks (row 14)


def wake(n, **more):
    body = {"origin": "build-7", "content": f"Step {n} is done."}
    return IntakeItem(f"w-{n}", ItemKind.WAKE, body, f"w-{n}", **more)


async def test_a_wake_is_a_turn_that_says_who_woke():
    async with opened(llm=Scripted("Good.")) as runtime:
        session = await runtime.session(plain, "wake")
        await enqueue_item(runtime.engine, session.id, wake(1))
        assert (await session.turn("w-1")).text == "Good."
        assert words(await session.history()) == ["[from build-7] Step 1 is done.", "Good."]


async def test_an_input_of_the_largest_size_goes_to_the_model_uncut():
    """1 MB enters a turn, and the model is shown all of it. See test_input_size.py for more."""
    model, large = Scripted("Much."), "x" * 1_000_000
    async with opened(llm=model) as runtime:
        session = await runtime.session(plain, "chat")
        receipt = await session.enqueue(large)
        await session.turn(receipt.item.id, wait=60)
        assert [
            extract_text(message["content"])
            for message in model.shown[0]
            if message["role"] == "user"
        ] == [large]


async def test_ids_of_one_moment_differ(tmp_path):
    """TI18: Two processes that let in inputs and start sessions in the same moment give each its
    own id.
    """
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as two:
        await held(one)
        inputs, sessions = [], []
        for runtime in (one, two) * 20:
            session = await runtime.session(plain, "chat")
            inputs.append((await session.enqueue("More.")).item.id)
            sessions.append((await runtime.start(begins())).session_id)

        assert len(set(inputs)) == len(set(sessions)) == 40
        waiting = await one.store.intake(
            (await one.session(plain, "chat")).id, lambda intake: list(intake.items)
        )
        assert set(inputs) <= set(waiting)
        assert {info.session_id for info in await two.sessions()} >= set(sessions)


async def test_wakes_of_one_merge_key_are_one_turn():
    """Row 14: neighbours that join are claimed together, others stand alone."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        for n in (1, 2):
            await enqueue_item(
                runtime.engine,
                session.id,
                wake(n, slot=MergePolicy.JOIN, merge="build", when=DeliveryPolicy.IDLE),
            )
        await enqueue_item(runtime.engine, session.id, wake(3, when=DeliveryPolicy.IDLE))
        await answered(runtime, session, "Done.", "Two.", "One.")
        assert [(one.input, one.taken) for one in await session.turns()][1:] == [
            ("w-1", ["w-2"]),
            ("w-3", []),
        ]


async def test_an_early_wake_enters_the_turn_under_way():
    """Row 14: the delivery policy says whether it waits for the turn to end."""
    async with opened() as runtime:
        session, _ = await held(runtime)
        await enqueue_item(runtime.engine, session.id, wake(1))
        await enqueue_item(runtime.engine, session.id, wake(2, when=DeliveryPolicy.IDLE))
        await settled(runtime, session.id)
        assert [item.id for item in await session.intake()] == ["w-2"]
        await answered(runtime, session, "Done.", "Heard.", "Later.")
        assert [(one.input, one.taken) for one in await session.turns()] == [
            ("first", ["w-1"]),
            ("w-2", []),
        ]


async def test_a_wake_that_is_no_text_is_told_as_json():
    async with opened(llm=Scripted("Good.")) as runtime:
        session = await runtime.session(plain, "json")
        await enqueue_item(runtime.engine, session.id, IntakeItem("t", ItemKind.TASK, {"exit": 3}))
        await session.turn("t")
        assert words(await session.history())[0] == '{"exit":3}'


# ---- terminal records


@pytest.mark.parametrize(
    "item",
    [
        IntakeItem("bad", ItemKind.INPUT, {"words": "no content"}),
        IntakeItem("bad", ItemKind.INPUT, {"content": [{"no": "type"}]}),
        IntakeItem("bad", ItemKind.INPUT, {"content": "x", "options": 7}),
        IntakeItem("bad", ItemKind.COMMAND, {"do": "explode"}),
        IntakeItem("bad", ItemKind.COMMAND, None),
        IntakeItem("bad", ItemKind.WAKE, ""),
    ],
)
async def test_what_cannot_be_said_fails_once_and_the_rest_is_said(item):
    async with opened() as runtime:
        session, _ = await held(runtime)
        await enqueue_item(runtime.engine, session.id, item)
        await session.enqueue("Fine.", key="fine")
        await answered(runtime, session, "Done.", "Yes.")
        where = await session.input("bad")
        assert (where.stage, where.item.end["code"]) == (InputStage.FAILED, "bad_input")
        assert [one.input for one in await session.turns()] == ["first", "fine"]
        with pytest.raises(InputEnded):
            await session.turn("bad")


async def test_conversations_that_nothing_enters_now_hide_no_other(monkeypatch):
    """However many wait for the end of their turn, one that could hear is found by whoever
    looks.
    """
    monkeypatch.setattr("everhold.engine.reconcile.AT_ONCE", 2)
    async with opened(recover=False) as runtime:
        for number in range(5):
            session, _ = await held(runtime, f"chat-{number}")
            await session.enqueue("Later.", key="later")
            await runtime.mover.rest()
        free = await runtime.session(plain, "free")
        item = IntakeItem("now", ItemKind.INPUT, {"content": "Now."})
        # as another process does it
        await runtime.store.intake(free.id, lambda intake: intake.enqueue(item))
        looks = 0
        while await runtime.engine.reconciler.move():
            looks += 1
        assert (await free.input("now")).stage is InputStage.IN_TURN
        assert looks < 10


async def test_a_conversation_that_does_not_replay_is_tried_when_something_has_changed(caplog):
    """Nothing is lost, and nobody replays it again and again; the warning comes once."""
    async with opened(recover=False) as runtime:
        session, _ = await held(runtime)
        tries = []

        async def act(asked, live):
            tries.append(live.id)
            raise DamagedGraph("n-1", "it is gone")

        runtime.engine.moves._act = act
        await session.enqueue("Please.", at="after_work")
        for _ in range(3):
            assert await runtime.engine.reconciler.move() is False
        assert (len(tries), caplog.text.count("cannot be moved here")) == (1, 1)
        del runtime.engine.moves._act
        await session.enqueue("Now.", at="after_work")
        await runtime.engine.reconciler.move()
        assert await session.intake() == []
        assert await session.intake() == []


async def test_what_waits_for_a_session_that_ends_fails():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("Still?", key="s")
        await runtime.cancel(session.id, "over")
        await runtime.engine.reconciler.move()
        where = await session.input("s")
        assert (where.stage, where.item.end["code"]) == (InputStage.FAILED, "session_ended")
        assert (await session.input("first")).stage is InputStage.FAILED
        with pytest.raises(SessionEnded):
            await session.enqueue("Anybody?")
        with pytest.raises(SessionEnded):
            await session.send("Anybody?")


async def test_what_waits_goes_with_a_session_that_is_deleted():
    async with opened() as runtime:
        session, _ = await held(runtime)
        await session.enqueue("Still?", key="s")
        await runtime.delete(session.id)
        runtime.engine.serving.send(session.id)
        await runtime.mover.rest()
        with pytest.raises(UnknownSession):
            await session.intake()


# ---- across processes


async def test_what_was_kept_enters_in_the_next_process(tmp_path):
    """A process that dies with inputs waiting loses none, and none is said twice."""
    clock = ManualClock()
    dead = await dying(tmp_path, clock)
    session, _ = await held(dead)
    await session.enqueue("One.", key="a")
    await session.command("reset", key="r")
    await die(dead, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        session = await runtime.session(plain, "chat")
        await answered(runtime, session, "Done.", "Yes.")
        await runtime.mover.rest()
        assert [one.input for one in await session.turns()] == ["first", "a", "command:reset:r"]


async def test_a_claim_of_a_dead_process_is_taken_over(tmp_path):
    """What was claimed and not handed over is claimed again, together, when its lease has run
    out.
    """
    clock = ManualClock()
    dead = await dying(tmp_path, clock)
    session = await dead.session(plain, "chat")
    await dead.mover.rest()

    with unsent(dead):
        await session.enqueue("One.", key="a")

    def claims(intake):
        lease = intake.take(dead.engine.leases.owner, "t", TTL).lease
        assert intake.choose(lease.fence, "t")

    await dead.store.intake(session.id, claims)
    assert await session.intake() == []  # somebody has claimed it
    await die(dead, clock)
    async with opened(tmp_path, clock=clock, llm=Scripted("Taken over.")) as runtime:
        session = await runtime.session(plain, "chat")
        assert (await session.turn("a", wait=20)).text == "Taken over."
        items = await session.intake(all=True)
        assert [(item.id, item.fence, item.state) for item in items] == [
            ("a", 2, ItemState.COMPLETED)
        ]


async def test_what_is_taken_back_before_the_commit_is_not_said():
    """What was looked at may be gone when it is to be handed over: then nothing lands, and the next
    is heard.
    """
    store = Interrupted()
    async with opened(on=store, llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "gone")
        await runtime.mover.rest()
        store.before = lambda: session.cancel("k")
        await session.enqueue("Hi.", key="k")
        await runtime.mover.rest()
        assert (await session.turns(), store.before) == ([], None)
        assert [(item.id, item.state) for item in await session.intake(all=True)] == [
            ("k", ItemState.CANCELLED)
        ]
        receipt = await session.enqueue("Hello?")
        assert (await session.turn(receipt.item.id)).text == "Here."


class Interrupted(MemoryStore):
    """A store in which something else happens first, once, when somebody hands over what waited."""

    before = None

    async def commit(self, change, fence):
        if change.intake is not None and self.before is not None:
            before, self.before = self.before, None
            await before()
        await super().commit(change, fence)


async def test_who_was_a_worker_keeps_no_lease():
    """What it lets in when it has left is worked on without one: nobody would give it back."""
    leases = []

    async def model(query):
        leases.append(await runtime.store.intake(session.id, lambda intake: intake.lease))
        return "Here."

    async with opened(llm=model) as runtime:
        session = await runtime.session(plain, "left")
        await runtime.workers.worker().once(0)
        receipt = await session.enqueue("Hi.")
        assert (await session.turn(receipt.item.id)).text == "Here."
        assert [lease.released for lease in leases] == [True]
        assert not len(runtime.engine.leases)


@pytest.mark.parametrize("lives", [True, False])
async def test_who_had_a_conversation_last_hears_first_what_comes_for_it(lives):
    """The store says who that was: others leave it to that one for a moment, if it lives, and see
    to it then.
    """
    async with opened(llm=Scripted("Here.")) as runtime:
        session = await runtime.session(plain, "known")
        await settled(runtime, session.id)
        runtime.engine.reconciler.living = frozenset({"w-other"} if lives else ())
        with unsent(runtime):
            await session.enqueue("Hi.", key="k")
        runtime.engine.reconciler._hear(RemoteChange([session.id], first="w-other"))
        await settled(runtime, session.id)
        assert len(await session.intake()) == lives
        await asyncio.sleep(HEAD_START)
        assert (await session.turn("k")).text == "Here."


async def test_a_worker_takes_a_conversation_once_for_a_turn():
    """The lease comes in the commit that hands over what was said, and goes when the turn is
    over.
    """
    leases = []

    async def model(query):
        leases.append(await runtime.store.intake(session.id, lambda intake: intake.lease))
        return "Here."

    async with opened(llm=model, recover=False) as runtime:
        session = await runtime.session(plain, "leased")
        await session.enqueue("Hi.", key="k")
        await runtime.workers.worker().once(60)
        leases.append(await runtime.store.intake(session.id, lambda intake: intake.lease))
        assert [(lease.generation, lease.released) for lease in leases] == [(1, False), (1, True)]
        assert (await session.turn("k")).text == "Here."


async def test_two_processes_let_each_input_in_once(tmp_path):
    """One file, two runtimes: whoever lets things in, each input is one turn's, and all are."""
    async with (
        opened(tmp_path, llm=Scripted(), replay=False) as one,
        opened(tmp_path, llm=Scripted(), replay=False) as two,
    ):
        here, there = await one.session(plain, "chat"), await two.session(plain, "chat")
        await asyncio.gather(*(here.enqueue(f"h{n}", key=f"h{n}") for n in range(8)))
        await asyncio.gather(*(there.enqueue(f"t{n}", key=f"t{n}", alone=True) for n in range(8)))
        names = {f"{who}{n}" for who in "ht" for n in range(8)}
        for name in sorted(names):
            await here.turn(name)
        assert sorted(await _settled_inputs(here)) == sorted(names)


async def test_a_program_that_is_not_here_leaves_things_waiting(tmp_path):
    """What waits for an agent that this process does not have enters where it is."""
    elsewhere = Agent(name="intake_elsewhere")
    clock = ManualClock()
    async with opened(tmp_path, clock=clock, replay=False) as runtime:
        session_id = (await runtime.session(elsewhere, "chat")).id
    with Away(elsewhere):
        async with opened(tmp_path, clock=clock, replay=False) as runtime:
            await enqueue_item(
                runtime.engine, session_id, IntakeItem("i", ItemKind.INPUT, {"content": "Hi."})
            )
            await runtime.mover.rest()
            await runtime.engine.reconciler.move()
            assert [item.id for item in await list_intake_items(runtime.engine, session_id)] == [
                "i"
            ]
            assert (
                await read_input_status(runtime.engine, session_id, "i")
            ).stage is InputStage.WAITING
    async with opened(tmp_path, clock=clock, llm=Scripted("Here."), replay=False) as runtime:
        session = await runtime.session(elsewhere, "chat")
        assert (await session.turn("i", wait=20)).text == "Here."


async def test_a_conversation_that_can_be_told_something_asks_nothing():
    """It is no question in anybody's inbox, however many of them there are; what its turn asks
    is.
    """
    async with opened() as runtime:
        idle = [await runtime.session(plain, f"idle-{n}") for n in range(3)]
        asking = await runtime.session(plain, "asking")
        await asking.enqueue("Hi.")
        async with asyncio.timeout(60):
            while not (found := await runtime.inbox(limit=1)):
                await asyncio.sleep(0.01)
        assert [(query.session_id, query.kind) for query in found] == [(asking.id, "llm")]
        waiting = {query.session_id for query in await runtime.inbox(kind="signal")}
        assert waiting == {session.id for session in (*idle, asking)}


@pytest.mark.parametrize("here", [True, False], ids=["asked", "absent"])
async def test_workers_do_not_pass_on_what_cannot_enter(tmp_path, here):
    """Input that waits for the end of a turn, or for an agent that is not here, is looked at and
    left in peace.
    """
    agent = Agent(instructions="Go.", name=f"intake_stuck_{here}")
    async with opened(tmp_path, llm=None, replay=False) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Go.", id="first")
    with nullcontext() if here else Away(agent):
        async with (
            opened(tmp_path, llm=None, recover=False, replay=False) as one,
            opened(tmp_path, llm=None, recover=False, replay=False) as two,
        ):
            taken = Counter()
            for runtime in (one, two):
                runtime.engine.moves.move = _counted(runtime.engine.moves.move, taken)
            async with one.workers.worker(), two.workers.worker():
                item = IntakeItem("later", ItemKind.INPUT, {"content": "Later."}, "later")
                await enqueue_item(one.engine, session.id, item)
                await asyncio.sleep(1.0)
            assert [each.id for each in await list_intake_items(one, session.id)] == ["later"]
    assert 0 < taken[session.id] < 20


def _counted(move, taken):
    async def counted(session_id, **more):
        taken[session_id] += 1
        return await move(session_id, **more)

    return counted
