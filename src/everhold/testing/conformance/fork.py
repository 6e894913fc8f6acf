"""Tests of forks and of `delete`: what forks share, and what stays for them."""

from __future__ import annotations

from random import Random

import pytest

from everhold.core.query import Kind
from everhold.core.session import SessionId, SessionState
from everhold.errors import Overtaken, StillNeeded, UnknownSession
from everhold.ports.store import (
    DELETED_BY,
    DELETED_KEYS,
    Effect,
    Letter,
    ReclaimResult,
    SessionFilter,
    SessionRecord,
    Store,
    ValueWrite,
)
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import (
    commit_end,
    commit_fork,
    commit_start,
    commit_step,
    commit_touch,
    list_session_ids,
    make_fork,
    make_query,
)
from everhold.testing.conformance.harness import (
    StoreContractBase,
    find_problems,
    list_due,
    list_orphans,
    reclaim_leftovers,
)


async def grow_session(
    store: Store, record: SessionRecord, to: int, word: str = "a"
) -> SessionRecord:
    """The session with deliveries up to `to`; delivery n answers query n - 1 and asks query n."""
    for n in range(record.head.n + 1, to + 1):
        record = await commit_step(
            store, record, answers={n - 1: f"{word}{n}"}, asked=[make_query(n)]
        )
    return record


def list_answers(record: SessionRecord) -> list[str]:
    """The answers of a journal in order."""
    return [answer.value for one in record.deliveries for answer in one.answers]


class ForkContract(StoreContractBase):
    """A fork is a session whose first deliveries are another's."""

    async def test_a_fork_reads_what_it_shares(self, store: Store) -> None:
        """FA6: A fork's journal is its origin's up to the fork point, then its own."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 4)

        branched = await commit_fork(store, origin, "s-2", 2)
        moved = await grow_session(store, branched, 3, "b")

        assert branched.deliveries == origin.deliveries[:3]
        assert list_answers(moved) == ["a1", "a2", "b3"]

    async def test_each_goes_its_own_way(self, store: Store) -> None:
        """Steps after the fork point are not shared, in either direction."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 2)
        branched = await commit_fork(store, origin, "s-2", 1)

        await grow_session(store, origin, 4)
        await grow_session(store, branched, 3, "b")

        assert list_answers(await store.load("s-1")) == ["a1", "a2", "a3", "a4"]
        assert list_answers(await store.load("s-2")) == ["a1", "b2", "b3"]

    async def test_a_fork_of_a_fork(self, store: Store) -> None:
        """A journal may be shared through several forks, each up to its own point."""
        first = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 3)
        second = await grow_session(store, await commit_fork(store, first, "s-2", 2), 4, "b")
        third = await grow_session(store, await commit_fork(store, second, "s-3", 3), 5, "c")

        assert list_answers(third) == ["a1", "a2", "b3", "c4", "c5"]

    async def test_a_fork_of_a_fork_before_it_differed(self, store: Store) -> None:
        """Forking a fork at a step that it shares takes that step from the first origin."""
        first = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 3)
        second = await grow_session(store, await commit_fork(store, first, "s-2", 2), 4, "b")
        third = await grow_session(store, await commit_fork(store, second, "s-3", 1), 2, "c")

        assert list_answers(third) == ["a1", "c2"]

    async def test_a_long_chain(self, store: Store) -> None:
        """Thirty forks, each of the one before, read as one journal."""
        record = await commit_start(store, "s-00", make_query(0))
        for n in range(1, 30):
            record = await grow_session(
                store, await commit_fork(store, record, f"s-{n:02}", n - 1), n, "w"
            )

        assert list_answers(record) == [f"w{n}" for n in range(1, 30)]

    async def test_forks_of_forks_that_add_nothing(self, store: Store) -> None:
        """Through any number of empty forks, the last one reads the journal, knows its origin, and
        stores none of them.
        """
        record = origin = await grow_session(
            store, await commit_start(store, "s-000", make_query(0)), 3
        )
        for n in range(1, 60):
            record = await commit_fork(store, record, f"s-{n:03}", 2)

        assert (record.birth.origin, record.birth.origin_n, list_answers(record)) == (
            "s-058",
            2,
            ["a1", "a2"],
        )
        assert [await store.delete(f"s-{n:03}", 1) for n in range(1, 59)] == [0] * 58
        assert await store.delete("s-000", origin.head.revision) == 3
        assert await store.load("s-059") == record
        assert await find_problems(store) == []

    async def test_forks_of_forks_with_other_answers(self, store: Store) -> None:
        """Each fork gives another answer at the last step: none reads the answer of another."""
        record = await grow_session(store, await commit_start(store, "s-00", make_query(0)), 3)
        for n in range(1, 20):
            record = await grow_session(
                store, await commit_fork(store, record, f"s-{n:02}", 2), 3, f"w{n}-"
            )

        for n in range(1, 20):
            assert list_answers(await store.load(f"s-{n:02}")) == ["a1", "a2", f"w{n}-3"]
        assert await find_problems(store) == []

    @pytest.mark.parametrize(
        ("since", "numbers"), [(1, [1, 2, 3, 4]), (2, [2, 3, 4]), (3, [3, 4]), (5, [])]
    )
    async def test_since_inside_what_is_shared(
        self, store: Store, since: int, numbers: list[int]
    ) -> None:
        """`since` counts through the fork point."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 4)
        await grow_session(store, await commit_fork(store, origin, "s-2", 2), 4, "b")

        assert [one.n for one in (await store.load("s-2", since)).deliveries] == numbers

    async def test_an_open_query_that_is_shared(self, store: Store) -> None:
        """A query that was open at the fork point is open in the fork, whether the origin answered
        it or not.
        """
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 2)
        await commit_fork(store, origin, "s-2", 1)
        await commit_step(store, origin, answers={2: "a"})

        record = await store.load("s-2", -1)
        inbox = await store.inbox(kind=None, to=None, limit=9)

        assert [query.q for one in record.deliveries for query in one.asked] == [1]
        assert [(birth.id, query.q) for birth, query, _ in inbox] == [("s-2", 1)]

    async def test_a_fork_costs_nothing(self, store: Store) -> None:
        """A fork copies no delivery: the rows of the origin stay when the origin is deleted."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 50)
        for n in range(10):
            await store.commit(make_fork(origin, f"f-{n}", 40), 0)

        assert await store.delete("s-1", origin.head.revision) == 41


class DeleteContract(StoreContractBase):
    """MUSTs of `delete`."""

    async def test_a_deleted_session_is_gone(self, store: Store) -> None:
        """No verb shows a deleted session, and no row is left."""
        record = await commit_start(
            store,
            "s-1",
            make_query(0, Kind.INPUT),
            make_query(1),
            make_query(2, Kind.CALL),
            key="mine",
        )
        letter = Letter("signal", 1, 1.0)
        tip = {"due_at": 5.0, "mail": 1, "state": SessionState.PAUSED}
        await commit_touch(store, record, effects=[Effect(2, "w", 1.0)], letters=[letter], tip=tip)

        assert await store.delete("s-1", 2) == 0

        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        assert await store.list(SessionFilter()) == []
        assert await store.inbox(kind=None, to=None, limit=9) == []
        assert (
            await list_due(store, 1e12, 9),
            await store.next_due(),
            await list_orphans(store, set()),
        ) == (
            [],
            None,
            [],
        )
        assert await find_problems(store) == []

    async def test_a_key_is_free_again(self, store: Store) -> None:
        """Another session can use the key of a deleted one."""
        await commit_start(store, "s-1", key="mine")
        await store.delete("s-1", 1)

        await commit_start(store, "s-2", key="mine")

        assert await store.find("mine") == "s-2"

    async def test_a_deleted_key_is_remembered(self, store: Store) -> None:
        """With the id of the last session that had it; a session without a key leaves nothing
        behind.
        """
        await commit_start(store, "s-0")
        await store.delete("s-0", 1)
        assert await store.keys(DELETED_KEYS) == []

        for version, id in enumerate(["s-1", "s-2"], 1):
            await commit_start(store, id, key="mine \0 \u00e9")
            assert (await store.value(DELETED_KEYS, "mine \0 \u00e9"))[1] == version - 1
            await store.delete(id, 1)
            assert await store.value(DELETED_KEYS, "mine \0 \u00e9") == ([id], version)

        assert await store.keys(DELETED_KEYS) == ["mine \0 \u00e9"]
        assert await find_problems(store) == []

    async def test_a_key_is_remembered_only_if_its_session_is_deleted(self, store: Store) -> None:
        """A refused deletion records nothing."""
        record = await commit_start(store, "s-1", key="mine")
        await commit_touch(store, record)
        with pytest.raises(Overtaken):
            await store.delete("s-1", 1)
        assert await store.value(DELETED_KEYS, "mine") == (None, 0)

    async def test_who_deleted_a_session_is_remembered(self, store: Store) -> None:
        """Under its id, if it was said; a refused deletion records nothing."""
        await commit_start(store, "s-1")
        with pytest.raises(Overtaken):
            await store.delete("s-1", 9, by={"user": "maria"})
        assert await store.value(DELETED_BY, "s-1") == (None, 0)
        await store.delete("s-1", 1, by={"user": "maria"})
        await commit_start(store, "s-2")
        await store.delete("s-2", 1)
        assert (await store.value(DELETED_BY, "s-1"))[0] == [{"user": "maria"}]
        assert await store.keys(DELETED_BY) == ["s-1"]
        assert await find_problems(store) == []

    async def test_a_late_delete_is_overtaken(self, store: Store) -> None:
        """A delete from an old revision is refused."""
        record = await commit_step(
            store, await commit_start(store, "s-1", make_query(0)), answers={0: "a"}
        )

        with pytest.raises(Overtaken):
            await store.delete("s-1", 1)

        assert await store.load("s-1") == record

    async def test_a_running_session_stays(self, store: Store) -> None:
        """A session with a running effect raises `StillNeeded`."""
        record = await commit_start(store, "s-1", make_query(0), state=SessionState.RUNNING)

        with pytest.raises(StillNeeded):
            await store.delete("s-1", 1)

        assert await store.load("s-1") == record

    async def test_a_session_is_deleted_once(self, store: Store) -> None:
        """A second delete finds an unknown session, whether a fork shares it or not."""
        for id in ("s-1", "s-2"):
            await commit_start(store, id, make_query(0))
        await commit_fork(store, await store.load("s-2"), "s-3", 0)

        for id in ("s-1", "s-2"):
            await store.delete(id, 1)
            with pytest.raises(UnknownSession):
                await store.delete(id, 1)

    async def test_what_a_fork_shares_is_kept(self, store: Store) -> None:
        """FA6: The shared deliveries stay and are counted; the origin itself is hidden."""
        origin = await grow_session(
            store, await commit_start(store, "s-1", make_query(0), key="mine"), 5
        )
        branched = await commit_fork(store, origin, "s-2", 3)

        assert await store.delete("s-1", origin.head.revision) == 4

        assert await store.load("s-2") == branched
        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        assert list_session_ids(await store.list(SessionFilter())) == ["s-2"]
        assert list_session_ids(await store.inbox(kind=None, to=None, limit=9)) == ["s-2"]
        assert await find_problems(store) == []

    async def test_a_fork_moves_on_without_its_origin(self, store: Store) -> None:
        """A fork whose origin was deleted works like any session, and can be forked."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 3)
        branched = await commit_fork(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        moved = await grow_session(store, branched, 4, "b")
        again = await commit_fork(store, moved, "s-3", 3)

        assert list_answers(again) == ["a1", "a2", "b3"]

    async def test_a_hidden_session_cannot_be_forked(self, store: Store) -> None:
        """A deleted session cannot be forked, even while another fork keeps its steps."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 3)
        await commit_fork(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        with pytest.raises(UnknownSession):
            await store.commit(make_fork(origin, "s-3", 3), 0)

        assert list_session_ids(await store.list(SessionFilter())) == ["s-2"]

    async def test_the_last_fork_takes_all_with_it(self, store: Store) -> None:
        """When the last fork is deleted, nothing stays."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 3)
        branched = await commit_fork(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        assert await store.delete("s-2", branched.head.revision) == 0

        assert await find_problems(store) == []

    @pytest.mark.parametrize("order", [("s-1", "s-2"), ("s-2", "s-1")])
    async def test_a_chain_without_its_middle(self, store: Store, order: tuple[str, str]) -> None:
        """A fork of a fork keeps reading when both before it are deleted, in any order."""
        first = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 5)
        second = await grow_session(store, await commit_fork(store, first, "s-2", 3), 6, "b")
        third = await commit_fork(store, second, "s-3", 5)

        kept = {id: await store.delete(id, (await store.load(id)).head.revision) for id in order}

        assert kept == {"s-1": 4, "s-2": 2}
        assert await store.load("s-3") == third
        assert list_answers(third) == ["a1", "a2", "a3", "b4", "b5"]
        assert await find_problems(store) == []

    async def test_only_what_is_needed_is_kept(self, store: Store) -> None:
        """Deliveries of a deleted session that no living fork reads are deleted."""
        first = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 5)
        second = await commit_fork(store, first, "s-2", 4)
        third = await commit_fork(store, second, "s-3", 1)
        await store.delete("s-2", second.head.revision)

        assert await store.delete("s-1", first.head.revision) == 2

        assert await store.load("s-3") == third

    @pytest.mark.parametrize("seed", range(4))
    async def test_a_tree_of_forks_is_deleted_in_any_order(self, store: Store, seed: int) -> None:
        """After each deletion the others read as before, attachments included; at the end nothing
        is left.
        """
        dice = Random(seed)
        tree = [await grow_session(store, await commit_start(store, "s-00", make_query(0)), 4)]
        for n in range(1, 16):
            origin = tree[dice.randrange(len(tree))]
            at = dice.randrange(origin.head.n + 1)
            fork = await grow_session(
                store,
                await commit_fork(store, origin, f"s-{n:02}", at),
                at + dice.randrange(3),
                f"w{n}-",
            )
            data = f"of {n}".encode()
            await store.attach(fork.birth.id, make_attachment(data), data, float(n))
            tree.append(fork)
        left = {one.birth.id: (one, await store.attachments(one.birth.id)) for one in tree}

        for one in dice.sample(tree, len(tree)):
            await store.delete(one.birth.id, one.head.revision)
            del left[one.birth.id]
            for id, (record, attached) in left.items():
                assert (await store.load(id), await store.attachments(id)) == (record, attached)
        assert await find_problems(store) == []
        assert (await store.list(SessionFilter()), await reclaim_leftovers(store)) == (
            [],
            ReclaimResult(),
        )

    async def test_values_outlive_sessions(self, store: Store) -> None:
        """Durable values of a session stay when it is deleted."""
        record = await commit_touch(
            store, await commit_start(store, "s-1"), writes=[ValueWrite("n", "k", [1], 0)]
        )

        await store.delete("s-1", record.head.revision)

        assert await store.value("n", "k") == ([1], 1)

    async def test_ended_sessions_go_too(self, store: Store) -> None:
        """A session that has ended can be deleted, and forks of it stay."""
        origin = await grow_session(store, await commit_start(store, "s-1", make_query(0)), 2)
        branched = await commit_fork(store, origin, "s-2", 1)
        ended = await commit_end(store, origin)

        assert await store.delete("s-1", ended.head.revision) == 2

        assert await store.load("s-2") == branched

    async def test_a_letter_to_a_deleted_session_is_dropped(self, store: Store) -> None:
        """A letter to a deleted session is not refused."""
        await commit_start(store, "s-1", make_query(0))
        await commit_fork(store, await store.load("s-1"), "s-2", 0)
        await store.delete("s-1", 1)
        letter = Letter("signal", 1, 1.0, to=SessionId("s-1"))

        record = await commit_touch(store, await commit_start(store, "s-3"), letters=[letter])

        assert record.head.revision == 2
        assert await list_due(store, 1e12, 9) == []
