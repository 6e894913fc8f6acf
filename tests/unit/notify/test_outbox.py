"""An asking is told once by the outbox, at least once on the wire; what fails is tried again, and
then given up.
"""

import asyncio
import json

import pytest

from everhold.core.query import Kind
from everhold.core.session import SessionId
from everhold.errors import StoreBusy
from everhold.notify import outbox as module
from everhold.notify.outbox import (
    NotificationFailed,
    Outbox,
    OutboxState,
    list_entries,
    notify_retry_delay,
)
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    make_query,
)

DAY = 86400.0


class Told:
    """A teller that remembers; it fails with what `fails` holds, one after another."""

    def __init__(self, name="desk", *, fails=(), kinds=(), to=(), timeout=5.0, max_age=3600.0):
        self.name, self.kinds, self.to = name, kinds, to
        self.timeout, self.max_age = timeout, max_age
        self.fails = list(fails)
        self.heard = []
        self.gate = None

    async def tell(self, id, message, now):
        self.heard.append((id, json.loads(message)))
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            failure = self.fails.pop(0)
            if failure is not None:
                raise failure

    @property
    def ids(self):
        return [id for id, _ in self.heard]


class House:
    """An outbox on a store, and its clock."""

    def __init__(self, store, *tellers, clock=None):
        self.store, self.tellers = store, tellers
        self.clock = clock or ManualClock()
        self.poked = 0
        self.outbox = Outbox(store, self.clock, tellers, in_full=self._whole, poke=self._poke)

    async def _whole(self, session_id, query):
        return query

    def _poke(self):
        self.poked += 1

    async def look(self):
        """What reconciliation does at one moment, and what comes of it."""
        while await self.outbox.see_to(self.clock.now()):
            pass
        while tasks := self.outbox._tasks():
            await asyncio.wait(tasks)

    async def states(self):
        return [
            (entry.query_id, entry.teller, entry.state.value)
            for entry, _ in await list_entries(self.store)
        ]

    async def one(self):
        ((entry, _),) = await list_entries(self.store)
        return entry


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "app.db")


async def opened(store, *tellers, **options):
    await store.open()
    return House(store, *tellers, **options)


async def test_an_asking_is_told_once(store):
    """However often one looks, and whoever looks."""
    house = await opened(store, Told())
    record = await commit_start(
        store,
        "s-1",
        make_query(0, Kind.APPROVAL, to="ada"),
        make_query(1),
        labels={"a": "b"},
        key="k",
    )
    other = House(store, Told(), clock=house.clock)
    for each in (house, other, house, other):
        await each.look()

    ((id, message),) = house.tellers[0].heard
    assert id == f"s-1/q-0/{int(record.birth.created_at * 1000)}" == message["id"]
    assert (message["session_id"], message["key"], message["query_id"]) == ("s-1", "k", "q-0")
    assert (message["kind"], message["to"], message["prompt"]) == ("approval", "ada", "question 0")
    assert (message["labels"], message["answer"]) == ({"a": "b"}, "everhold answer k --query q-0")
    assert other.tellers[0].heard == []
    assert await house.states() == [("q-0", "desk", "told")]
    await store.close()


async def test_every_teller_tells_of_what_it_is_for(store):
    """By kind and by addressee; one that fails is nothing to the others."""
    broken = Told("broken", fails=[NotificationFailed("no")])
    bosses = Told("bosses", to=("boss",))
    inputs = Told("inputs", kinds=(Kind.INPUT,))
    house = await opened(store, broken, bosses, inputs)
    await commit_start(
        store, "s-1", make_query(0, Kind.INPUT), make_query(1, Kind.APPROVAL, to="boss")
    )
    await house.look()

    assert [id.split("/")[1] for id in broken.ids] == ["q-0", "q-1"]
    assert [id.split("/")[1] for id in bosses.ids] == ["q-1"]
    assert [id.split("/")[1] for id in inputs.ids] == ["q-0"]
    assert await house.states() == [
        ("q-0", "broken", "waiting"),
        ("q-0", "inputs", "told"),
        ("q-1", "bosses", "told"),
        ("q-1", "broken", "told"),
    ]
    await store.close()


async def test_what_fails_is_tried_again_later_and_later(store):
    """Under the same id."""
    house = await opened(store, Told(fails=[NotificationFailed(str(n)) for n in range(4)]))
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    pauses = []
    await house.look()
    while (entry := await house.one()).state is OutboxState.WAITING:
        pauses.append(round(entry.due_at - house.clock.now(), 6))
        house.clock.advance(entry.due_at - house.clock.now() - 0.01)
        await house.look()
        house.clock.advance(0.0101)
        await house.look()

    assert pauses == [0.05, 0.1, 0.2, 0.4]
    assert len(set(house.tellers[0].ids)) == 1
    assert ((await house.one()).state, (await house.one()).tries, (await house.one()).error) == (
        "told",
        5,
        "",
    )
    await store.close()


def test_a_pause_is_five_minutes_at_most():
    assert [notify_retry_delay(tries) for tries in (1, 2, 13, 14, 1000)] == [
        0.05,
        0.1,
        204.8,
        300.0,
        300.0,
    ]


async def test_a_receiver_says_when_it_wants_to_be_asked_again(store):
    """For five minutes at most."""
    house = await opened(
        store,
        Told(fails=[NotificationFailed("busy", after=7.0), NotificationFailed("busy", after=1e9)]),
    )
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    for wanted in (7.0, 300.0):
        await house.look()
        entry = await house.one()
        assert round(entry.due_at - house.clock.now(), 6) == wanted
        house.clock.advance(wanted)
    await store.close()


async def test_what_is_too_old_is_given_up_and_stays_to_be_seen(store, caplog):
    """With what went wrong last; a receiver that is gone for good is given up at once."""
    house = await opened(store, Told(fails=[NotificationFailed("no")] * 99, max_age=10.0))
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    for _ in range(12):
        await house.look()
        house.clock.advance(1.0)
    entry = await house.one()
    assert (entry.state, entry.error) == ("given_up", "no")
    heard = len(house.tellers[0].heard)
    house.clock.advance(60)
    await house.look()
    assert len(house.tellers[0].heard) == heard
    assert "gave up" in caplog.text

    gone = House(
        store, Told("gone", fails=[NotificationFailed("gone", final=True)]), clock=house.clock
    )
    await gone.look()
    assert ("q-0", "gone", "given_up") in await gone.states()
    await store.close()


async def test_a_try_has_its_time(store):
    """One that takes too long has failed."""
    slow = Told(timeout=0.05)
    slow.gate = asyncio.Event()
    house = await opened(store, slow)
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()

    assert ((await house.one()).state, (await house.one()).error) == (
        "waiting",
        "timeout after 0.05 s",
    )
    await store.close()


async def test_a_teller_that_breaks_has_failed_and_its_words_are_not_kept(store):
    """Somebody's own teller may raise anything, with anything in it."""
    house = await opened(store, Told(fails=[ValueError("hush")]))
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()

    assert (await house.one()).error == "the notifier raised ValueError"
    await store.close()


@pytest.mark.parametrize("how", ["answered", "withdrawn", "ended", "accepted"])
async def test_what_is_not_asked_any_more_is_not_told_any_more(store, how):
    """Its entry goes."""
    from everhold.ports.store import Letter

    house = await opened(store, Told(fails=[NotificationFailed("no")] * 9))
    record = await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()
    match how:
        case "answered":
            await commit_step(store, record, answers={0: "x"})
        case "withdrawn":
            await commit_step(store, record, withdrawn=[0])
        case "ended":
            await commit_end(store, record)
        case "accepted":
            await commit_touch(
                store,
                record,
                letters=[Letter("answer", {"q": 0, "value": 1}, 1.0)],
                tip={"mail": 1},
            )
    house.clock.advance(1.0)
    await house.look()

    assert len(house.tellers[0].heard) == 1
    assert await house.states() == []
    await store.close()


async def test_a_fork_asks_for_itself(store):
    """It is another session, and its question another."""
    house = await opened(store, Told())
    record = await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()
    await commit_fork(store, record, "s-2", 0)
    await house.look()

    assert [id.split("/")[0] for id in house.tellers[0].ids] == ["s-1", "s-2"]
    await store.close()


async def test_what_was_told_is_forgotten_with_its_question(store):
    """A day after it was told, and every day, one looks whether it is still open."""
    house = await opened(store, Told())
    record = await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()
    house.clock.advance(DAY + 1)
    await house.look()
    assert await house.states() == [("q-0", "desk", "told")]

    await commit_step(store, record, answers={0: "x"})
    house.clock.advance(DAY + 1)
    await house.look()
    assert await house.states() == []
    assert len(house.tellers[0].heard) == 1
    await store.close()


async def test_a_claim_that_died_is_taken_again(store):
    """Not before it should have ended, and under the same id."""
    stuck = Told()
    stuck.gate = asyncio.Event()
    house = await opened(store, stuck)
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.outbox.see_to(house.clock.now())
    while not stuck.heard:
        await asyncio.sleep(0)
    heir = House(store, Told(), clock=house.clock)
    await heir.look()
    assert heir.tellers[0].heard == []

    house.clock.advance(stuck.timeout + module.ABANDONED_SECONDS + 1)
    await heir.look()
    assert heir.tellers[0].ids == stuck.ids

    stuck.gate.set()  # it was only slow: what it says now changes nothing
    await house.look()
    assert await heir.states() == [("q-0", "desk", "told")]
    assert (await heir.one()).tries == 2
    await store.close()


async def test_few_are_sent_at_a_time_and_all_are_sent(store):
    """A receiver that hangs holds up no other teller."""
    slow, quick = Told("slow", timeout=600.0), Told("quick", timeout=600.0)
    slow.gate = asyncio.Event()
    house = await opened(store, slow, quick)
    await commit_start(store, "s-1", *(make_query(q, Kind.INPUT) for q in range(150)))
    for _ in range(100):
        await house.outbox.see_to(house.clock.now())
        await asyncio.sleep(0.001)
        if len(quick.heard) == 150:
            break
    assert (len(slow.heard), len(quick.heard)) == (module.MAX_CONCURRENT, 150)

    slow.gate.set()
    for _ in range(100):
        await house.look()
        if len(slow.heard) == 150:
            break
    assert len(set(slow.ids)) == len(slow.heard) == 150
    await store.close()


async def test_an_end_of_sending_wakes_the_reconciler(store):
    """So that what waits behind it is not left until the next look."""
    house = await opened(store, Told())
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await house.look()
    assert house.poked == 1
    await store.close()


async def test_closing_sends_what_is_due_and_gives_the_rest_back(store):
    """Whoever opens next need not wait until a claim has run out."""
    house = await opened(store, Told())
    await commit_start(store, "s-1", *(make_query(q, Kind.INPUT) for q in range(9)))
    await house.outbox.close(60.0)
    assert len(house.tellers[0].heard) == 9

    stuck = Told("stuck")
    stuck.gate = asyncio.Event()
    house = House(store, stuck, clock=house.clock)
    await house.outbox.see_to(house.clock.now())
    while len(stuck.heard) < module.MAX_CONCURRENT:
        await asyncio.sleep(0.01)
    await house.outbox.close(0.05)
    assert len(stuck.heard) == module.MAX_CONCURRENT
    heir = House(store, Told("stuck"), clock=house.clock)
    for _ in range(3):
        await heir.look()
    assert len(heir.tellers[0].heard) == 9
    await store.close()


async def test_a_store_that_is_busy_harms_nobody(store):
    """What was sent and could not be said to be is sent again; no task is lost."""
    house = await opened(store, Told())
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    undertake = store.undertake

    async def busy(duties):
        if duties[0].body is not None and duties[0].body.get("state") == "told":
            raise StoreBusy("here")
        await undertake(duties)

    store.undertake = busy
    await house.look()
    assert (await house.one()).state == "sending"
    store.undertake = undertake
    house.clock.advance(1000)
    await house.look()
    assert ((await house.one()).state, len(set(house.tellers[0].ids))) == ("told", 1)
    await store.close()


async def test_a_person_puts_entries_back_and_drops_them(store):
    """Those given up are tried as if they were new; those dropped are not, and do not come
    again.
    """
    house = await opened(store, Told(fails=[NotificationFailed("gone", final=True)] * 2))
    await commit_start(store, "s-1", make_query(0, Kind.INPUT))
    await commit_start(store, "s-2", make_query(0, Kind.INPUT), created_at=1001.0)
    await house.look()
    assert [state for _, _, state in await house.states()] == ["given_up", "given_up"]

    chosen = await list_entries(store, session_id="s-1")
    (again,) = await module.retry_entries(store, chosen, house.clock.now())
    assert (again.state, again.tries, again.session_id) == ("waiting", 0, SessionId("s-1"))
    # others have moved it since
    assert await module.retry_entries(store, chosen, house.clock.now()) == []
    (dropped,) = await module.drop_entries(
        store, await list_entries(store, session_id="s-2"), house.clock.now()
    )
    assert dropped.state == "dropped"
    await house.look()
    await house.look()

    assert [state for _, _, state in await house.states()] == ["told", "dropped"]
    assert len(house.tellers[0].heard) == 3
    assert await module.drop_entries(store, await list_entries(store), house.clock.now()) == []
    await store.close()


async def test_entries_of_closed_questions_are_forgotten_when_asked(store):
    """Those of open ones stay."""
    house = await opened(store, Told())
    record = await commit_start(store, "s-1", make_query(0, Kind.INPUT), make_query(1, Kind.INPUT))
    await house.look()
    assert await module.forget_closed_entries(store) == 0
    await commit_step(store, record, answers={0: "x"})

    assert await module.forget_closed_entries(store) == 1
    assert await house.states() == [("q-1", "desk", "told")]
    await store.close()
