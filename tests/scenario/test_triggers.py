"""Triggers: an event is kept, and starts or feeds what it has to, once; whatever fails, and whoever
dies.
"""

import asyncio

import pytest

import everhold
from everhold.errors import (
    BadArguments,
    BadValue,
    EventConflict,
    NotAProgram,
    Outdated,
    StoreBusy,
    StoreDamaged,
    UnknownHandover,
    UnknownProgram,
    UnknownTrigger,
    UsageError,
)
from everhold.schedules import Feed
from everhold.schedules.action import Start
from everhold.schedules.trigger import EVENT_KEY_SECONDS, MAX_TRIES, TAKEOVER_SECONDS
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.answers import StandIns
from everhold.testing.clock import ManualClock
from everhold.testing.runtime import RuntimeForTests, StillClock
from tests.scenario.harness import opened


@everhold.program
async def ship(ctx, order: str, amount: int = 0):
    return f"shipped {order}"


@everhold.program
async def thank(ctx, paid: dict):
    return f"thanks for {paid['amount']}"


@everhold.program
async def ledger(ctx, entries: int = 2):
    return [await ctx.receive("paid") for _ in range(entries)]


async def house_of(store=None, clock=None):
    house = RuntimeForTests(store or MemoryStore(), clock or StillClock(), StandIns())
    await house.__aenter__()
    return house


async def results(runtime):
    return [
        (await runtime.status(info.session_id)).result
        for info in reversed(await runtime.sessions(limit=1000))
    ]


def states(emitted):
    return [handover.state for handover in emitted.handovers]


async def test_an_event_starts_what_it_triggers():
    """Each trigger has a session of its own; the payload is its arguments, or one of them."""
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.add("order.paid", thank, give="paid")
    done = await house.triggers.emit("order.paid", {"order": "7", "amount": 5}, key="7")
    assert (done.new, states(done)) == (True, ["started", "started"])
    assert sorted(await results(house)) == ["shipped 7", "thanks for 5"]
    (info,) = await house.sessions(labels={"event": "order.paid", "trigger": "ship"})
    assert info.session_id == done.handovers[0].session_id


async def test_the_same_event_again_is_the_first_one():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    first = await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    again = await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    assert (again.new, again.at, again.handovers) == (False, first.at, first.handovers)
    assert await results(house) == ["shipped 7"]


async def test_another_payload_under_the_same_key_is_a_conflict():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    with pytest.raises(EventConflict):
        await house.triggers.emit("order.paid", {"order": "8"}, key="7")
    assert await results(house) == ["shipped 7"]


async def test_events_without_a_key_are_different_ones():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    one, two = [await house.triggers.emit("order.paid", {"order": "7"}) for _ in range(2)]
    assert one.key != two.key
    assert await results(house) == ["shipped 7", "shipped 7"]


async def test_keys_belong_to_their_event():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.add("order.lost", ship)
    await house.triggers.emit("order.paid", {"order": "7"}, key="a/b")
    assert (await house.triggers.emit("order.lost", {"order": "8"}, key="a/b")).new
    assert await results(house) == ["shipped 7", "shipped 8"]


async def test_an_event_that_triggers_nothing_is_kept_all_the_same():
    """A trigger that comes later does not concern it; nor does it one that is emitted again."""
    house = await house_of()
    assert (await house.triggers.emit("order.paid", {"order": "7"}, key="7")).handovers == ()
    await house.triggers.add("order.paid", ship)
    assert (await house.triggers.emit("order.paid", {"order": "7"}, key="7")).new is False
    assert await results(house) == []


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({}, True),
        ({"tier": "gold"}, True),
        ({"tier": "iron"}, False),
        ({"customer.age": 40}, True),
        ({"customer.age": True}, False),
        ({"customer.name": None}, False),
        ({"tier": ["iron", "gold"]}, True),
        ({"tier": []}, False),
        ({"tier": "gold", "missing": 1}, False),
        ({"tier.deeper": 1}, False),
    ],
)
async def test_where_says_which_payloads_fit(where, fits):
    house = await house_of()
    await house.triggers.add("order.paid", ship, where=where, give="order")
    done = await house.triggers.emit("order.paid", {"tier": "gold", "customer": {"age": 40}})
    assert bool(done.handovers) is fits


async def test_a_trigger_that_is_disabled_is_not_triggered():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    assert (await house.triggers.disable("order.paid", "ship")).enabled is False
    await house.triggers.emit("order.paid", {"order": "1"})
    await house.triggers.enable("order.paid", "ship")
    await house.triggers.emit("order.paid", {"order": "2"})
    assert await results(house) == ["shipped 2"]


async def test_a_trigger_made_anew_is_another_one():
    """What the old one has had, the new one may have again: an event is not emitted again for that,
    though.
    """
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    await house.triggers.remove("order.paid", "ship")
    assert await house.triggers.list() == []
    made = await house.triggers.add("order.paid", ship)
    assert made.revision == 1
    assert (await house.triggers.emit("order.paid", {"order": "7"}, key="7")).new is False
    assert len(await results(house)) == 1


async def test_a_trigger_is_changed_by_saying_something_else():
    house = await house_of()
    first = await house.triggers.add("order.paid", ship, revision=0)
    assert await house.triggers.add("order.paid", ship) == first
    assert (await house.triggers.add("order.paid", ship, args={"amount": 3})).revision == 2
    with pytest.raises(Outdated):
        await house.triggers.add("order.paid", ship, args={"amount": 4}, revision=1)
    (found,) = await house.triggers.list("order.paid")
    assert found.do.args == {"amount": 3}


async def test_emitting_does_not_fail_because_a_start_does():
    """The other trigger is served; what failed is tried again until it is mended."""
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.add("order.paid", thank, args={"nonsense": 1}, give="paid")
    done = await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    assert states(done) == ["started", "waiting"]
    assert "there is no argument 'nonsense'" in done.handovers[1].error
    assert await results(house) == ["shipped 7"]


async def test_what_fails_for_good_is_listed_until_somebody_has_seen_to_it():
    """Retried longer and longer; then it waits for a person, and goes on when it is tried again."""
    house = await house_of()
    await house.triggers.add("order.paid", ledger, args={"entries": 1}, give="wrong")
    await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    await house.skip(3600)
    (failed,) = await house.triggers.handovers(state="failed")
    assert (failed.tries, failed.due_at, failed.event, failed.key) == (
        MAX_TRIES,
        None,
        "order.paid",
        "7",
    )
    again = await house.triggers.retry(failed.id)
    assert (again.state, again.tries) == ("waiting", 1)
    await house.triggers.drop(failed.id)
    assert await house.triggers.handovers() == []


async def test_a_handover_that_is_done_is_not_done_again():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    (done,) = (await house.triggers.emit("order.paid", {"order": "7"})).handovers
    assert (await house.triggers.retry(done.id)).session_id == done.session_id
    assert len(await results(house)) == 1


async def test_what_was_reserved_by_a_process_that_died_is_handed_over_by_another(tmp_path):
    """It dies between writing the event down and starting anything; or after starting the first of
    two.
    """
    for name, deaths in (("before", 0), ("between", 1)):
        store, clock = SQLiteStore(tmp_path / f"{name}.db"), StillClock()
        dying = await house_of(store, clock)
        await dying.triggers.add("order.paid", ship)
        await dying.triggers.add("order.paid", thank, give="paid")
        do, count = dying.triggers._actions.do, 0

        async def die(*given, do=do, deaths=deaths):
            nonlocal count
            count += 1
            if count > deaths:
                raise asyncio.CancelledError
            return await do(*given)

        dying.triggers._actions.do = die
        with pytest.raises(asyncio.CancelledError):
            await dying.triggers.emit("order.paid", {"order": "7", "amount": 5}, key="7")
        await dying.die()
        house = RuntimeForTests(store, clock, StandIns())
        house._opened = True
        await house.skip(TAKEOVER_SECONDS + 1)
        assert sorted(await results(house)) == ["shipped 7", "thanks for 5"]
        again = await house.triggers.emit("order.paid", {"order": "7", "amount": 5}, key="7")
        assert (again.new, states(again)) == (False, ["started", "started"])
        await store.close()


async def test_a_process_that_died_after_the_start_is_told_apart():
    """The session is there: the next try finds it, and says so."""
    clock = StillClock()
    house = await house_of(clock=clock)
    await house.triggers.add("order.paid", ship)
    do = house.triggers._actions.do

    async def die(*given):
        await do(*given)
        raise asyncio.CancelledError

    house.triggers._actions.do = die
    with pytest.raises(asyncio.CancelledError):
        await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    house.triggers._actions.do = do
    await house.skip(TAKEOVER_SECONDS + 1)
    assert [one.state for one in await house.triggers.handovers()] == ["already"]
    assert await results(house) == ["shipped 7"]


async def test_trouble_with_the_store_after_the_event_is_kept_is_not_the_callers():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    do = house.triggers._actions.do

    async def busy(*given):
        raise StoreBusy("app.db", 1.0)

    house.triggers._actions.do = busy
    assert states(await house.triggers.emit("order.paid", {"order": "7"})) == ["waiting"]
    house.triggers._actions.do = do
    await house.skip(TAKEOVER_SECONDS + 1)
    assert await results(house) == ["shipped 7"]


listener = everhold.Agent(instructions="Listen.", name="trigger_listener")


@pytest.mark.parametrize("vacuum", ["of one", "of all", "by a sweep"])
@pytest.mark.parametrize("signal", ["paid", ""], ids=["a signal", "words"])
async def test_what_was_fed_is_fed_once_also_if_a_vacuum_follows_a_death(signal, vacuum):
    """Who dies after feeding has not noted it: the next one tries again, and finds that it was
    done.
    """
    house = await house_of()
    if signal:
        session_id = (await house.start(ledger(entries=9), key="books")).session_id
    else:
        session_id = (await house.session(listener, "books")).id
    await house.triggers.add("order.paid", Feed("books", signal=signal))
    undertake = house.store.undertake

    async def dies(duties):
        if duties[0].version:
            raise StoreBusy("app.db", 1.0)
        await undertake(duties)

    house.store.undertake = dies
    assert states(await house.triggers.emit("order.paid", "7 coins", key="7")) == ["waiting"]
    house.store.undertake = undertake
    await house.settle()
    fed = len((await house.store.load(session_id)).deliveries)
    if vacuum == "by a sweep":
        gone = (await house.archive.gc(keep_last=0, intake=0.0)).vacuumed
    else:
        gone = await house.archive.vacuum(session_id if vacuum == "of one" else None)
    await house.skip(TAKEOVER_SECONDS + 1)
    assert ([one.state for one in await house.triggers.handovers()], gone) == (["already"], 0)
    assert len((await house.store.load(session_id)).deliveries) == fed
    assert await house.archive.vacuum() == 1


async def test_processes_emit_one_event_at_once(tmp_path):
    """On one SQLite file: one is new, and each trigger has one session."""
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as two:
        await one.triggers.add("order.paid", ship)
        both = await asyncio.gather(
            *(
                each.triggers.emit("order.paid", {"order": "7"}, key=f"k{number}")
                for number in range(20)
                for each in (one, two)
            )
        )
        assert sum(done.new for done in both) == 20
        assert len(await one.sessions(limit=100)) == 20


async def test_a_process_without_the_program_leaves_it_to_one_that_has_it():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    able = house.triggers._actions.able
    house.triggers._actions.able = lambda deed: False
    assert states(await house.triggers.emit("order.paid", {"order": "7"})) == ["waiting"]
    await house.skip(TAKEOVER_SECONDS + 1)
    house.triggers._actions.able = able
    await house.settle()
    assert await results(house) == ["shipped 7"]


async def test_an_event_feeds_a_session_once():
    """As a signal, in the order emitted; said twice, it is heard once."""
    house = await house_of()
    status = await house.start(ledger(), key="book")
    await house.triggers.add("order.paid", Feed("book", signal="paid"))
    for number in (1, 1, 2):
        await house.triggers.emit("order.paid", number, key=str(number))
    assert (await house.status(status.session_id)).result == [1, 2]


async def test_a_signal_that_nobody_waits_for_yet_is_kept():
    house = await house_of()
    status = await house.start(later(), key="book")
    await house.triggers.add("order.paid", Feed("book", signal="paid", value="yes"))
    assert states(await house.triggers.emit("order.paid")) == ["started"]
    await house.answer(status.session_id, True)
    assert (await house.status(status.session_id)).result == "yes"


@everhold.program
async def later(ctx):
    await ctx.approval("Now?")
    return await ctx.receive("paid")


async def test_a_signal_reaches_a_session_whose_program_is_not_here():
    """It is kept, once, and received where the program is."""
    house = await house_of()
    gone = await house.start(ledger(1), key="book")
    early = await house.start(later(), key="early")
    await house.triggers.add("order.paid", Feed("book", signal="paid"), name="one")
    await house.triggers.add("order.paid", Feed("early", signal="paid"), name="two")
    house.forget()
    begin = house.engine.host.begin

    def absent(birth, meter):
        raise UnknownProgram(birth.program)

    house.engine.host.begin = absent
    assert states(await house.triggers.emit("order.paid", "now", key="7")) == ["started", "started"]
    house.engine.host.begin = begin
    await house.settle()
    assert (await house.status(gone.session_id)).result == ["now"]
    await house.answer(early.session_id, True)
    assert (await house.status(early.session_id)).result == "now"


async def test_feeding_a_session_that_has_ended_fails_for_good_in_the_end():
    house = await house_of()
    status = await house.start(ledger(), key="book")
    await house.cancel(status.session_id)
    await house.triggers.add("order.paid", Feed("book", signal="paid"))
    await house.triggers.emit("order.paid", 1)
    await house.skip(3600)
    (failed,) = await house.triggers.handovers(state="failed")
    assert "session_ended" in failed.error


async def test_what_is_over_is_forgotten_after_a_while():
    """Events that were handed over, and those that triggered nothing; what failed stays."""
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    await house.triggers.add("order.lost", ship, give="wrong")
    await house.triggers.emit("order.paid", {"order": "7"}, key="7")
    await house.triggers.emit("nothing", {"order": "7"}, key="7")
    await house.triggers.emit("order.lost", {"order": "7"}, key="7")
    await house.skip(EVENT_KEY_SECONDS + 60)
    assert [duty.id for duty in await house.store.duties("event")] == ["order.lost/7"]
    assert [one.state for one in await house.triggers.handovers()] == ["failed"]
    assert (await house.triggers.emit("order.paid", {"order": "7"}, key="7")).new is True


@pytest.mark.parametrize("wrong", ["", " ", "a/b", "a\n", None, 7, "x" * 201])
async def test_names_that_make_no_sense_are_refused(wrong):
    house = await house_of()
    with pytest.raises(BadArguments):
        await house.triggers.emit(wrong)
    with pytest.raises(BadArguments):
        await house.triggers.add(wrong, ship)
    if wrong is not None:
        with pytest.raises(BadArguments):
            await house.triggers.add("order.paid", ship, name=wrong)


@pytest.mark.parametrize("wrong", ["", "  ", 7, "a\n", "k" * 801])
async def test_what_is_no_key_is_refused(wrong):
    house = await house_of()
    with pytest.raises(UsageError):
        await house.triggers.emit("order.paid", key=wrong)


async def test_the_longest_names_and_key_begin_a_session():
    house = await house_of()
    await house.triggers.add("😀" * 200, ship, name="😀" * 200)
    done = await house.triggers.emit("😀" * 200, {"order": "7"}, key="😀" * 200)
    assert [one.state for one in done.handovers] == ["started"]


async def test_what_makes_no_sense_is_refused_and_nothing_is_kept():
    house = await house_of()
    with pytest.raises(BadValue):
        await house.triggers.emit("order.paid", {"at": object()})
    with pytest.raises(NotAProgram):
        await house.triggers.add("order.paid", "ship")
    with pytest.raises(BadArguments):
        await house.triggers.add("order.paid", ship, where={1: 2})
    with pytest.raises(BadArguments):
        await house.triggers.add("order.paid", ship, where=["tier"])
    with pytest.raises(UsageError):
        await house.triggers.add("order.paid", ship, title="t" * 1001)
    with pytest.raises(BadArguments):
        await house.triggers.add("order.paid", ship, labels={"tier": 7})
    assert await house.triggers.list() == []
    assert await house.store.duties("event") == []


async def test_what_is_not_there_is_told():
    house = await house_of()
    with pytest.raises(UnknownTrigger):
        await house.triggers.remove("order.paid", "ship")
    with pytest.raises(UnknownTrigger):
        await house.triggers.enable("order.paid", "ship")
    for act in (house.triggers.retry, house.triggers.drop):
        with pytest.raises(UnknownHandover):
            await act("order.paid/ship/7")


async def test_a_payload_without_fields_cannot_be_arguments():
    """The event is kept; what it should have started says why not."""
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    (handover,) = (await house.triggers.emit("order.paid", "seven")).handovers
    assert "the payload is not an object" in handover.error


async def test_many_triggers_of_one_event_are_all_served():
    house = await house_of()
    for number in range(150):
        await house.triggers.add("order.paid", ship, name=f"t{number:03}")
    await house.triggers.add("order.paid2", ship)
    done = await house.triggers.emit("order.paid", {"order": "7"})
    assert len(done.handovers) == 150
    assert set(states(done)) == {"started"}


async def test_fields_that_a_program_does_not_take_are_left_out():
    house = await house_of()
    await house.triggers.add("order.paid", ship)
    done = await house.triggers.emit("order.paid", {"order": "7", "tier": "gold"})
    assert states(done) == ["started"]


async def test_a_session_that_cannot_be_read_holds_up_no_handover():
    """What is meant for it is tried again, and then has failed; other events are handed over
    meanwhile.
    """
    house = await house_of()
    await house.triggers.add("a", Feed("damaged", signal="paid"))
    await house.triggers.add("b", ship)
    do = house.triggers._actions.do

    async def damaged(deed, *given):
        if isinstance(deed, Feed):
            raise StoreDamaged("app.db", "session damaged does not match its seal")
        return await do(deed, *given)

    house.triggers._actions.do = damaged
    assert states(await house.triggers.emit("a")) == ["waiting"]
    able, house.triggers._actions.able = house.triggers._actions.able, lambda deed: False
    await house.triggers.emit("b", {"order": "7"})
    house.triggers._actions.able = able
    await house.skip(3600)
    assert {one.event: one.state for one in await house.triggers.handovers()} == {
        "a": "failed",
        "b": "started",
    }


async def test_a_program_that_cannot_be_loaded_here_is_for_another_process(tmp_path):
    """Emitting does not fail because a module starts sessions when it is imported."""
    (tmp_path / "hasty.py").write_text(
        "import everhold\n\n@everhold.program\nasync def hasty(ctx):\n    return"
        " 1\n\neverhold.run(hasty())\n"
    )
    house = await house_of()
    wanted = Start(f"{tmp_path}/hasty.py:hasty")
    await house.triggers._add("a", "hasty", wanted, {}, None)
    assert states(await house.triggers.emit("a")) == ["waiting"]
