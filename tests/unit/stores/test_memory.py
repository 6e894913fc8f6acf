"""What the memory store does beyond the contract: `verify` on damage, burying, and what it
costs.
"""

import pytest

from everhold.core.query import Kind
from everhold.core.status import Returned
from everhold.errors import Overtaken
from everhold.ports.store import Effect, Letter, StoreProblem, ValueWrite
from everhold.stores.memory import MemoryStore
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    make_notice,
    make_query,
)

ANSWERS = {0: "a"}


async def forked(store):
    """A session with deliveries 0 to 3, and a fork of it at 2."""
    record = await commit_start(store, "s-1", make_query(0))
    for q in range(3):
        record = await commit_step(store, record, answers={q: q}, asked=[make_query(q + 1)])
    return record, await commit_fork(store, record, "s-2", 2)


def kept(store):
    return sorted(store._sessions), sorted(store._buried), store.maintenance.stats()["deliveries"]


async def test_what_is_kept_is_text():
    """The journal holds no object that a caller could reach."""
    store = MemoryStore()
    await commit_start(store, "s-1", make_query(0))

    ((n, at, answers, asked, notes),) = store._sessions["s-1"].rows

    assert (n, at, answers, notes) == (0, 1000.0, b"[]", None)
    assert asked == b'[{"q":0,"key":"0:0","prompt":"question 0"}]'


async def test_a_fork_holds_nothing_of_its_own():
    """A fork costs no deliveries until it differs."""
    store = MemoryStore()
    await forked(store)

    assert store._sessions["s-2"].rows == []
    assert store.maintenance.stats()["deliveries"] == 4


async def test_a_change_that_is_refused_at_its_end_has_taken_nothing():
    """D10: what was to be read and closed is still there when a later part of the same change is
    overtaken.
    """
    store = MemoryStore()
    record = await commit_touch(
        store,
        await commit_start(store, "s-1", make_query(0)),
        letters=[Letter("signal", 1, 1.0)],
        tip={"mail": 1},
    )
    record = await commit_touch(store, record, effects=[Effect(0, "ada", 1.0)])
    read = [letter.id for letter in record.letters]

    with pytest.raises(Overtaken):
        await commit_touch(
            store,
            record,
            read=read,
            closed=[0],
            tip={"mail": 0},
            writes=[ValueWrite("n", "k", [1], 7)],
        )

    assert await store.load("s-1") == record
    assert len(record.letters) == len(record.effects) == 1


async def test_the_buried_stay_as_long_as_they_are_needed():
    """A deleted origin keeps what its fork reads, and goes with the fork."""
    store = MemoryStore()
    origin, fork = await forked(store)

    await store.delete("s-1", origin.head.revision)
    assert kept(store) == (["s-2"], ["s-1"], 3)
    await store.delete("s-2", fork.head.revision)

    assert kept(store) == ([], [], 0)


async def test_burying_reaches_through_a_chain():
    """When a buried link needs less, what is before it is kept for less too."""
    store = MemoryStore()
    origin, fork = await forked(store)
    fork = await commit_step(store, fork, answers={2: 2}, asked=[make_query(3)])
    low, high = await commit_fork(store, fork, "s-3", 0), await commit_fork(store, fork, "s-4", 3)
    await store.delete("s-1", origin.head.revision)
    assert kept(store) == (["s-2", "s-3", "s-4"], ["s-1"], 4)

    await store.delete("s-2", fork.head.revision)
    assert kept(store) == (["s-3", "s-4"], ["s-1", "s-2"], 4)
    assert (await store.load("s-4")) == high
    await store.delete("s-4", high.head.revision)

    assert kept(store) == (["s-3"], ["s-1"], 1)
    assert (await store.load("s-3")) == low
    await store.delete("s-3", low.head.revision)

    assert kept(store) == ([], [], 0)


async def test_a_fork_that_contributes_nothing_is_not_kept():
    """A fork of a fork reads from the session that has the deliveries; the one in between can
    go.
    """
    store = MemoryStore()
    origin, fork = await forked(store)
    leaf = await commit_fork(store, fork, "s-3", 0)
    await store.delete("s-1", origin.head.revision)
    assert kept(store) == (["s-2", "s-3"], ["s-1"], 3)

    assert await store.delete("s-2", fork.head.revision) == 0
    assert kept(store) == (["s-3"], ["s-1"], 1)
    assert (await store.load("s-3")) == leaf
    await store.delete("s-3", leaf.head.revision)

    assert kept(store) == ([], [], 0)


async def test_the_dead_do_not_hold_each_other():
    """A fork deleted before its origin leaves nothing behind."""
    store = MemoryStore()
    origin, fork = await forked(store)

    await store.delete("s-2", fork.head.revision)

    assert kept(store) == (["s-1"], [], 4)
    assert await store.delete("s-1", origin.head.revision) == 0


async def test_an_id_of_the_buried_is_not_free():
    """What is hidden is still there: its id cannot be taken."""
    store = MemoryStore()
    origin, _ = await forked(store)
    await store.delete("s-1", origin.head.revision)

    with pytest.raises(Exception, match="moved past revision 0"):
        await commit_start(store, "s-1")


async def test_a_letter_of_ones_own_may_come_with_the_end():
    """A session that ends keeps what it was told last; a retry may read it."""
    store = MemoryStore()
    record = await commit_start(store, "s-1", make_query(0))

    ended = await commit_step(
        store, record, outcome=Returned(1), letters=[Letter("signal", 1, 1.0)], tip={"mail": 1}
    )

    assert [one.body for one in ended.letters] == [1]


async def damaged(spoil):
    """What `verify` says after `spoil` has had its way with a sound session."""
    store = MemoryStore()
    record = await commit_start(
        store, "s-1", make_query(0), make_query(1, Kind.APPROVAL), make_query(2, Kind.CALL)
    )
    record = await commit_touch(store, record, effects=[Effect(2, "w", 1.0)])
    record = await commit_step(store, record, answers=ANSWERS, asked=[make_query(3)])
    await commit_fork(store, record, "s-2", 1)
    assert await store.maintenance.verify() == []
    spoil(store, store._sessions["s-1"])
    return await store.maintenance.verify()


async def test_a_missing_end_is_found():
    """The head may not stand beyond the journal."""
    assert await damaged(lambda store, session: session.rows.pop()) == [
        StoreProblem("s-1", "head", "the head is at delivery 1, the journal at 0")
    ]


async def test_a_gap_is_found():
    """A missing delivery is a gap in the journal, and in that of every fork that shares it."""
    found = await damaged(lambda store, session: session.rows.pop(0))

    gaps = [problem for problem in found if problem.code == "gap"]
    assert gaps == [
        StoreProblem(id, "gap", "the journal has 1 deliveries up to number 1")
        for id in ("s-1", "s-2")
    ]


async def test_a_dangling_origin_is_found():
    """A fork of what is gone is reported."""
    found = await damaged(lambda store, session: store._sessions.pop("s-1"))

    assert found == [StoreProblem("s-2", "origin", "forked from 's-1', which is not here")]


async def test_a_wrong_count_of_letters_is_found():
    """The head and the intake must agree."""
    found = await damaged(lambda store, session: setattr(session.head, "mail", 3))

    assert found == [StoreProblem("s-1", "mail", "the head counts 3 letters, the intake has 0")]


async def test_marks_without_a_query_are_found():
    """Inbox rows and effects of queries that are not open are reported."""

    def spoil(store, session):
        session.effects[0] = Effect(0, "w", 1.0)
        session.notices[9] = session.notices[1]

    assert await damaged(spoil) == [
        StoreProblem("s-1", "notice", "q-9 is not open"),
        StoreProblem("s-1", "effect", "q-0 is not open"),
    ]


async def test_a_notice_of_what_nobody_answers_is_not_shown():
    """A clock's query is not a question to anybody, even if somebody noted it."""
    store = MemoryStore()
    record = await commit_start(store, "s-1", make_query(0, Kind.TIMER))

    await commit_touch(store, record, notices=[make_notice(make_query(0, Kind.TIMER))])

    assert await store.inbox(kind=None, to=None, limit=9) == []


async def test_a_closed_store_forgets_nothing():
    """Closing is for stores that hold something open."""
    store = MemoryStore()
    await store.open()
    record = await commit_start(store, "s-1")
    await commit_end(store, record)

    await store.close()

    assert store.maintenance.stats() == {
        "where": "memory",
        "kind": "memory",
        "format": 1,
        "sessions": 1,
        "deliveries": 2,
        "durability": "none",
    }
