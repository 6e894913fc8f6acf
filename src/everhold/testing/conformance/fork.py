"""What forks share, and what `delete` keeps for them."""

from __future__ import annotations

from random import Random

import pytest

from everhold.core.query import Kind
from everhold.core.session import SessionId, State
from everhold.errors import Overtaken, StillNeeded, UnknownSession
from everhold.ports.store import (
    DELETED_KEYS,
    Effect,
    Filter,
    Letter,
    Reclaimed,
    Record,
    Store,
    Write,
)
from everhold.testing.conformance.attachment import made
from everhold.testing.conformance.factories import ask, begin, branch, end, fork, ids, mark, move
from everhold.testing.conformance.harness import Room, due, orphans


async def grown(store: Store, record: Record, to: int, word: str = "a") -> Record:
    """The session with deliveries up to `to`; delivery n answers query n - 1 and asks query n."""
    for n in range(record.head.n + 1, to + 1):
        record = await move(store, record, answers={n - 1: f"{word}{n}"}, asked=[ask(n)])
    return record


def words(record: Record) -> list[str]:
    """The answers of a journal in order."""
    return [answer.value for one in record.deliveries for answer in one.answers]


class ForkRoom(Room):
    """A fork is a session whose first deliveries are another's."""

    async def test_a_fork_reads_what_it_shares(self, store: Store) -> None:
        """FA6: A fork's journal is its origin's up to the fork point, then its own."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 4)

        branched = await branch(store, origin, "s-2", 2)
        moved = await grown(store, branched, 3, "b")

        assert branched.deliveries == origin.deliveries[:3]
        assert words(moved) == ["a1", "a2", "b3"]

    async def test_each_goes_its_own_way(self, store: Store) -> None:
        """What the origin does after the fork point is not seen by the fork, nor the other way
        round.
        """
        origin = await grown(store, await begin(store, "s-1", ask(0)), 2)
        branched = await branch(store, origin, "s-2", 1)

        await grown(store, origin, 4)
        await grown(store, branched, 3, "b")

        assert words(await store.load("s-1")) == ["a1", "a2", "a3", "a4"]
        assert words(await store.load("s-2")) == ["a1", "b2", "b3"]

    async def test_a_fork_of_a_fork(self, store: Store) -> None:
        """A journal may be shared through several forks, each up to its own point."""
        first = await grown(store, await begin(store, "s-1", ask(0)), 3)
        second = await grown(store, await branch(store, first, "s-2", 2), 4, "b")
        third = await grown(store, await branch(store, second, "s-3", 3), 5, "c")

        assert words(third) == ["a1", "a2", "b3", "c4", "c5"]

    async def test_a_fork_of_a_fork_before_it_differed(self, store: Store) -> None:
        """Forking a fork at a step that it shares takes that step from the first origin."""
        first = await grown(store, await begin(store, "s-1", ask(0)), 3)
        second = await grown(store, await branch(store, first, "s-2", 2), 4, "b")
        third = await grown(store, await branch(store, second, "s-3", 1), 2, "c")

        assert words(third) == ["a1", "c2"]

    async def test_a_long_chain(self, store: Store) -> None:
        """Thirty forks, each of the one before, read as one journal."""
        record = await begin(store, "s-00", ask(0))
        for n in range(1, 30):
            record = await grown(store, await branch(store, record, f"s-{n:02}", n - 1), n, "w")

        assert words(record) == [f"w{n}" for n in range(1, 30)]

    async def test_forks_of_forks_that_add_nothing(self, store: Store) -> None:
        """However many forks of forks lie in between, the last one reads, tells its origin, and
        keeps none of them.
        """
        record = origin = await grown(store, await begin(store, "s-000", ask(0)), 3)
        for n in range(1, 60):
            record = await branch(store, record, f"s-{n:03}", 2)

        assert (record.birth.origin, record.birth.origin_n, words(record)) == (
            "s-058",
            2,
            ["a1", "a2"],
        )
        assert [await store.delete(f"s-{n:03}", 1) for n in range(1, 59)] == [0] * 58
        assert await store.delete("s-000", origin.head.revision) == 3
        assert await store.load("s-059") == record
        assert await store.verify() == []

    async def test_forks_of_forks_with_other_answers(self, store: Store) -> None:
        """Each forks the last one before its own answer, and gives another: none reads the answer
        of another.
        """
        record = await grown(store, await begin(store, "s-00", ask(0)), 3)
        for n in range(1, 20):
            record = await grown(store, await branch(store, record, f"s-{n:02}", 2), 3, f"w{n}-")

        for n in range(1, 20):
            assert words(await store.load(f"s-{n:02}")) == ["a1", "a2", f"w{n}-3"]
        assert await store.verify() == []

    @pytest.mark.parametrize(
        ("since", "numbers"), [(1, [1, 2, 3, 4]), (2, [2, 3, 4]), (3, [3, 4]), (5, [])]
    )
    async def test_since_inside_what_is_shared(
        self, store: Store, since: int, numbers: list[int]
    ) -> None:
        """`since` counts through the fork point."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 4)
        await grown(store, await branch(store, origin, "s-2", 2), 4, "b")

        assert [one.n for one in (await store.load("s-2", since)).deliveries] == numbers

    async def test_an_open_query_that_is_shared(self, store: Store) -> None:
        """What was open at the fork point is open in the fork, answered there or not."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 2)
        await branch(store, origin, "s-2", 1)
        await move(store, origin, answers={2: "a"})

        record = await store.load("s-2", -1)
        inbox = await store.inbox(kind=None, to=None, limit=9)

        assert [query.q for one in record.deliveries for query in one.asked] == [1]
        assert [(birth.id, query.q) for birth, query, _ in inbox] == [("s-2", 1)]

    async def test_a_fork_costs_nothing(self, store: Store) -> None:
        """A fork copies no delivery: the origin's own rows are what stays when the origin goes."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 50)
        for n in range(10):
            await store.commit(fork(origin, f"f-{n}", 40), 0)

        assert await store.delete("s-1", origin.head.revision) == 41


class DeleteRoom(Room):
    """MUSTs of `delete`."""

    async def test_a_deleted_session_is_gone(self, store: Store) -> None:
        """Nothing shows a deleted session any more, and nothing is left over."""
        record = await begin(
            store, "s-1", ask(0, Kind.INPUT), ask(1), ask(2, Kind.CALL), key="mine"
        )
        letter = Letter("signal", 1, 1.0)
        tip = {"due_at": 5.0, "mail": 1, "state": State.PAUSED}
        await mark(store, record, effects=[Effect(2, "w", 1.0)], letters=[letter], tip=tip)

        assert await store.delete("s-1", 2) == 0

        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        assert await store.list(Filter()) == []
        assert await store.inbox(kind=None, to=None, limit=9) == []
        assert (await due(store, 1e12, 9), await store.next_due(), await orphans(store, set())) == (
            [],
            None,
            [],
        )
        assert await store.verify() == []

    async def test_a_key_is_free_again(self, store: Store) -> None:
        """The key of a deleted session can be given to another."""
        await begin(store, "s-1", key="mine")
        await store.delete("s-1", 1)

        await begin(store, "s-2", key="mine")

        assert await store.find("mine") == "s-2"

    async def test_a_deleted_key_is_remembered(self, store: Store) -> None:
        """With the id of the last session that had it; a session without a key leaves nothing
        behind.
        """
        await begin(store, "s-0")
        await store.delete("s-0", 1)
        assert await store.keys(DELETED_KEYS) == []

        for version, id in enumerate(["s-1", "s-2"], 1):
            await begin(store, id, key="mine \0 \u00e9")
            assert (await store.value(DELETED_KEYS, "mine \0 \u00e9"))[1] == version - 1
            await store.delete(id, 1)
            assert await store.value(DELETED_KEYS, "mine \0 \u00e9") == ([id], version)

        assert await store.keys(DELETED_KEYS) == ["mine \0 \u00e9"]
        assert await store.verify() == []

    async def test_a_key_is_remembered_only_if_its_session_is_deleted(self, store: Store) -> None:
        """A refused deletion notes nothing."""
        record = await begin(store, "s-1", key="mine")
        await mark(store, record)
        with pytest.raises(Overtaken):
            await store.delete("s-1", 1)
        assert await store.value(DELETED_KEYS, "mine") == (None, 0)

    async def test_a_late_delete_is_overtaken(self, store: Store) -> None:
        """Who read the session before it moved cannot delete it."""
        record = await move(store, await begin(store, "s-1", ask(0)), answers={0: "a"})

        with pytest.raises(Overtaken):
            await store.delete("s-1", 1)

        assert await store.load("s-1") == record

    async def test_a_running_session_stays(self, store: Store) -> None:
        """A session that somebody works for raises `StillNeeded`."""
        record = await begin(store, "s-1", ask(0), state=State.RUNNING)

        with pytest.raises(StillNeeded):
            await store.delete("s-1", 1)

        assert await store.load("s-1") == record

    async def test_a_session_is_deleted_once(self, store: Store) -> None:
        """A session is deleted once; then it is unknown, whether a fork shares it or not."""
        for id in ("s-1", "s-2"):
            await begin(store, id, ask(0))
        await branch(store, await store.load("s-2"), "s-3", 0)

        for id in ("s-1", "s-2"):
            await store.delete(id, 1)
            with pytest.raises(UnknownSession):
                await store.delete(id, 1)

    async def test_what_a_fork_shares_is_kept(self, store: Store) -> None:
        """FA6: The shared deliveries stay and are counted; the origin itself is hidden."""
        origin = await grown(store, await begin(store, "s-1", ask(0), key="mine"), 5)
        branched = await branch(store, origin, "s-2", 3)

        assert await store.delete("s-1", origin.head.revision) == 4

        assert await store.load("s-2") == branched
        with pytest.raises(UnknownSession):
            await store.load("s-1")
        assert await store.find("mine") is None
        assert ids(await store.list(Filter())) == ["s-2"]
        assert ids(await store.inbox(kind=None, to=None, limit=9)) == ["s-2"]
        assert await store.verify() == []

    async def test_a_fork_moves_on_without_its_origin(self, store: Store) -> None:
        """A fork whose origin was deleted lives like any session, and can be forked."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 3)
        branched = await branch(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        moved = await grown(store, branched, 4, "b")
        again = await branch(store, moved, "s-3", 3)

        assert words(again) == ["a1", "a2", "b3"]

    async def test_a_hidden_session_cannot_be_forked(self, store: Store) -> None:
        """Who read a session before it was deleted cannot fork it, even while another fork keeps
        it.
        """
        origin = await grown(store, await begin(store, "s-1", ask(0)), 3)
        await branch(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        with pytest.raises(UnknownSession):
            await store.commit(fork(origin, "s-3", 3), 0)

        assert ids(await store.list(Filter())) == ["s-2"]

    async def test_the_last_fork_takes_all_with_it(self, store: Store) -> None:
        """When the last fork goes, nothing is kept."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 3)
        branched = await branch(store, origin, "s-2", 2)
        await store.delete("s-1", origin.head.revision)

        assert await store.delete("s-2", branched.head.revision) == 0

        assert await store.verify() == []

    @pytest.mark.parametrize("order", [("s-1", "s-2"), ("s-2", "s-1")])
    async def test_a_chain_without_its_middle(self, store: Store, order: tuple[str, str]) -> None:
        """A fork of a fork keeps reading when both before it are deleted, in any order."""
        first = await grown(store, await begin(store, "s-1", ask(0)), 5)
        second = await grown(store, await branch(store, first, "s-2", 3), 6, "b")
        third = await branch(store, second, "s-3", 5)

        kept = {id: await store.delete(id, (await store.load(id)).head.revision) for id in order}

        assert kept == {"s-1": 4, "s-2": 2}
        assert await store.load("s-3") == third
        assert words(third) == ["a1", "a2", "a3", "b4", "b5"]
        assert await store.verify() == []

    async def test_only_what_is_needed_is_kept(self, store: Store) -> None:
        """Deliveries that no living fork reads are not kept for a deleted one."""
        first = await grown(store, await begin(store, "s-1", ask(0)), 5)
        second = await branch(store, first, "s-2", 4)
        third = await branch(store, second, "s-3", 1)
        await store.delete("s-2", second.head.revision)

        assert await store.delete("s-1", first.head.revision) == 2

        assert await store.load("s-3") == third

    @pytest.mark.parametrize("seed", range(4))
    async def test_a_tree_of_forks_is_deleted_in_any_order(self, store: Store, seed: int) -> None:
        """What is left reads as before after each deletion, attachments included; in the end
        nothing is left.
        """
        dice = Random(seed)
        tree = [await grown(store, await begin(store, "s-00", ask(0)), 4)]
        for n in range(1, 16):
            origin = tree[dice.randrange(len(tree))]
            at = dice.randrange(origin.head.n + 1)
            fork = await grown(
                store,
                await branch(store, origin, f"s-{n:02}", at),
                at + dice.randrange(3),
                f"w{n}-",
            )
            data = f"of {n}".encode()
            await store.attach(fork.birth.id, made(data), data, float(n))
            tree.append(fork)
        left = {one.birth.id: (one, await store.attachments(one.birth.id)) for one in tree}

        for one in dice.sample(tree, len(tree)):
            await store.delete(one.birth.id, one.head.revision)
            del left[one.birth.id]
            for id, (record, attached) in left.items():
                assert (await store.load(id), await store.attachments(id)) == (record, attached)
        assert await store.verify() == []
        assert (await store.list(Filter()), await store.reclaim()) == ([], Reclaimed())

    async def test_values_outlive_sessions(self, store: Store) -> None:
        """What a session wrote for all stays when it goes."""
        record = await mark(store, await begin(store, "s-1"), writes=[Write("n", "k", [1], 0)])

        await store.delete("s-1", record.head.revision)

        assert await store.value("n", "k") == ([1], 1)

    async def test_ended_sessions_go_too(self, store: Store) -> None:
        """A session that has ended can be deleted, and forks of it stay."""
        origin = await grown(store, await begin(store, "s-1", ask(0)), 2)
        branched = await branch(store, origin, "s-2", 1)
        ended = await end(store, origin)

        assert await store.delete("s-1", ended.head.revision) == 2

        assert await store.load("s-2") == branched

    async def test_a_letter_to_a_deleted_session_is_dropped(self, store: Store) -> None:
        """Who writes to a session that is gone is not refused."""
        await begin(store, "s-1", ask(0))
        await branch(store, await store.load("s-1"), "s-2", 0)
        await store.delete("s-1", 1)
        letter = Letter("signal", 1, 1.0, to=SessionId("s-1"))

        record = await mark(store, await begin(store, "s-3"), letters=[letter])

        assert record.head.revision == 2
        assert await due(store, 1e12, 9) == []
