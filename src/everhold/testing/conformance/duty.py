"""Tests of duties: versions, due ones first, and groups that land as a whole or not at all."""

from __future__ import annotations

import asyncio
from math import inf

import pytest

from everhold.core.intake import IntakeItem, ItemKind
from everhold.errors import BadValue, Overtaken
from everhold.ports.store import Duty, Store
from everhold.testing.conformance.factories import commit_start
from everhold.testing.conformance.harness import StoreContractBase, collect_refusals, dump_store
from everhold.testing.conformance.lease import StoreClock


class DutyContract(StoreContractBase):
    """`duty`, `duties`, `undertake` and `next_duty`."""

    async def test_there_is_none_at_first(self, store: Store) -> None:
        """A duty that was never written is None, and nothing is due."""
        assert await store.duty("n", "a") is None
        assert await store.duties("n") == []
        assert await store.next_duty() is None

    async def test_a_duty_is_read_as_it_was_written(self, store: Store) -> None:
        """Body, time and names come back with any characters; the version is one higher."""
        given = Duty("n", "a\0\1é🦉", {"text": "\0é", "n": [1, 2.5, None, True]}, 12.5)
        await store.undertake([given, Duty("m", given.id, "other")])

        assert await store.duty("n", given.id) == Duty("n", given.id, given.body, 12.5, 1)
        assert await store.duty("m", given.id) == Duty("m", given.id, "other", None, 1)

    async def test_each_change_is_a_version(self, store: Store) -> None:
        """Versions count up; a removed duty is gone, and may be created again."""
        await store.undertake([Duty("n", "a", 1)])
        await store.undertake([Duty("n", "a", 2, 5.0, 1)])
        assert await store.duty("n", "a") == Duty("n", "a", 2, 5.0, 2)

        await store.undertake([Duty("n", "a", None, None, 2)])
        assert await store.duty("n", "a") is None
        await store.undertake([Duty("n", "a", 3)])
        assert await store.duty("n", "a") == Duty("n", "a", 3, None, 1)

    @pytest.mark.parametrize("body", [9, None])
    @pytest.mark.parametrize("version", [0, 1, 3])
    async def test_another_version_of_a_duty_is_overtaken(
        self, store: Store, version: int, body: int | None
    ) -> None:
        """QW22: A write computed from another version refuses the whole group."""
        await store.undertake([Duty("n", "a", 1), Duty("n", "b", 1, 7.0)])
        await store.undertake([Duty("n", "b", 2, 7.0, 1)])
        before = await dump_store(store)

        with pytest.raises(Overtaken):
            await store.undertake(
                [Duty("n", "a", 9, None, 1), Duty("n", "c", 9), Duty("n", "b", body, None, version)]
            )

        assert await dump_store(store) == before

    async def test_what_never_was_can_be_done_with(self, store: Store) -> None:
        """Removing a missing duty lands; if it exists, the writer is overtaken."""
        await store.undertake([Duty("n", "a", None), Duty("n", "b", 1)])
        assert [one.id for one in await store.duties("n")] == ["b"]

        with pytest.raises(Overtaken):
            await store.undertake([Duty("n", "b", None)])
        assert await store.duty("n", "b") == Duty("n", "b", 1, None, 1)

    async def test_a_group_of_duties_lands_whole(self, store: Store) -> None:
        """QW22: the first duty of a group does not land if the last is refused."""
        await store.undertake([Duty("n", "b", 1)])

        with pytest.raises(Overtaken):
            await store.undertake([Duty("n", "a", 1), Duty("n", "b", 1)])
        assert [one.id for one in await store.duties("n")] == ["b"]

    @pytest.mark.parametrize("body", [9, None])
    async def test_a_duty_that_is_gone_is_overtaken(self, store: Store, body: int | None) -> None:
        """A writer that read a duty which another has removed is refused."""
        with pytest.raises(Overtaken):
            await store.undertake([Duty("n", "a", body, None, 1)])

        assert await store.duties("n") == []

    async def test_one_of_many_does_it(self, store: Store) -> None:
        """QW3: of many concurrent changes of the same version, exactly one lands."""
        await store.undertake([Duty("n", "a", 0)])

        found = await collect_refusals(
            *(store.undertake([Duty("n", "a", n, None, 1)]) for n in range(1, 9))
        )

        won = [n for n, error in enumerate(found, 1) if error is None]
        assert [type(error) for error in found if error is not None] == [Overtaken] * 7
        assert await store.duty("n", "a") == Duty("n", "a", won[0], None, 2)

    async def test_one_of_many_is_done_with_it(self, store: Store) -> None:
        """QW3: of many concurrent removals of the same duty, exactly one lands."""
        await store.undertake([Duty("n", "a", 0)])

        found = await collect_refusals(
            *(store.undertake([Duty("n", "a", None, None, 1)]) for _ in range(8))
        )

        assert sum(error is None for error in found) == 1
        assert await store.duty("n", "a") is None

    async def test_what_is_due(self, store: Store) -> None:
        """QW2, QW8: up to a time and of one kind, the earliest first, then by name; at most the
        given number.
        """
        given = [("d", 3.0), ("c", 1.0), ("b", 1.0), ("a", None), ("e", 3.5)]
        await store.undertake(
            [Duty("n", id, id, at) for id, at in given] + [Duty("m", "x", 0, 0.5)]
        )

        assert [one.id for one in await store.duties("n", due=3.0)] == ["b", "c", "d"]
        assert [one.id for one in await store.duties("n", due=9.0, limit=2)] == ["b", "c"]
        assert await store.duties("n", due=0.9) == []
        assert [one.id for one in await store.duties("n", due=inf, limit=2**62)] == [
            "b",
            "c",
            "d",
            "e",
        ]

    async def test_duties_page_by_page(self, store: Store) -> None:
        """QW2: by name, after a given name, and with a given prefix."""
        names = ["a/1", "a/2", "a/é", "a_1", "A/1", "a/🦉", "b"]
        await store.undertake([Duty("n", id, 0) for id in names])

        assert [one.id for one in await store.duties("n")] == [
            "A/1",
            "a/1",
            "a/2",
            "a/é",
            "a/🦉",
            "a_1",
            "b",
        ]
        assert [one.id for one in await store.duties("n", prefix="a/")] == [
            "a/1",
            "a/2",
            "a/é",
            "a/🦉",
        ]
        assert [one.id for one in await store.duties("n", prefix="a/", after="a/1", limit=2)] == [
            "a/2",
            "a/é",
        ]
        assert await store.duties("n", prefix="a%") == []

    async def test_the_ends_of_what_begins_so(self, store: Store) -> None:
        """Prefixes work also if the last character has no successor, or none that can be
        encoded.
        """
        given = [
            "\ud7ff",
            "\ud7ffz",
            "\ue000",
            "\U0010ffff",
            "\U0010ffff\U0010ffff",
            "a\U0010ffff",
            "a\U0010ffffz",
            "b",
        ]
        await store.undertake([Duty("n", id, id) for id in given])

        for prefix in ("\ud7ff", "\U0010ffff", "a\U0010ffff", "a", ""):
            found = [one.id for one in await store.duties("n", prefix=prefix)]
            assert found == sorted(id for id in given if id.startswith(prefix))

    async def test_the_next_moment_of_a_duty(self, store: Store) -> None:
        """FA7: the earliest of due duties and of items that become available."""
        clock = StoreClock(store)
        await commit_start(store)
        await store.undertake(
            [Duty("n", "a", 0, 1500.0), Duty("m", "b", 0, 1400.0), Duty("m", "c", 0)]
        )
        assert await store.next_duty() == 1400.0

        item = IntakeItem("i-1", ItemKind.TASK, 0, available_at=1300.0)
        await store.intake("s-1", lambda intake: intake.enqueue(item))
        assert await store.next_duty() == 1300.0
        assert [await store.next_duty(after) for after in (1300.0, 1400.0, 1500.0)] == [
            1400.0,
            1500.0,
            None,
        ]

        clock.now = 1300.0
        await store.intake("s-1", lambda intake: intake.cancel(["i-1"]))
        await store.undertake([Duty("m", "b", None, None, 1)])
        assert await store.next_duty() == 1500.0

    @pytest.mark.parametrize("body", [{"x": float("nan")}, {1}, "\ud800"])
    async def test_a_duty_that_no_store_can_keep(self, store: Store, body: object) -> None:
        """It is refused, and its whole group."""
        before = await dump_store(store)

        with pytest.raises(BadValue):
            await store.undertake([Duty("n", "a", 1), Duty("n", "b", body)])
        assert await dump_store(store) == before

    async def test_nothing_undertaken_changes_nothing(self, store: Store) -> None:
        """An empty group lands too."""
        before = await dump_store(store)
        await asyncio.gather(store.undertake([]), store.undertake([]))

        assert await dump_store(store) == before
