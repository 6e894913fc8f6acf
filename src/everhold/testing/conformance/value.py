"""Tests of durable values: they land with the step, and versions are never reused."""

from __future__ import annotations

import pytest

from everhold.errors import Overtaken
from everhold.ports.store import Store, ValueWrite
from everhold.testing.conformance.factories import (
    commit_start,
    commit_step,
    commit_touch,
    make_query,
    make_step,
)
from everhold.testing.conformance.harness import StoreContractBase


class ValueContract(StoreContractBase):
    """`value`, `keys`, and the writes of a change."""

    async def test_nothing_was_written(self, store: Store) -> None:
        """A value that was never written is None, with version 0."""
        assert await store.value("n", "k") == (None, 0)
        assert await store.keys("n") == []

    async def test_each_write_raises_the_version(self, store: Store) -> None:
        """Versions count the writes of a value, deletion included."""
        record = await commit_start(store, "s-1")
        seen = []
        for version, value in enumerate([["one"], ["two"], None, ["four"]]):
            record = await commit_touch(
                store, record, writes=[ValueWrite("n", "k", value, version)]
            )
            seen.append(await store.value("n", "k"))

        assert seen == [(["one"], 1), (["two"], 2), (None, 3), (["four"], 4)]

    async def test_null_is_a_value(self, store: Store) -> None:
        """A stored null differs from a missing value."""
        await commit_touch(
            store, await commit_start(store, "s-1"), writes=[ValueWrite("n", "k", [None], 0)]
        )

        assert await store.value("n", "k") == ([None], 1)
        assert await store.keys("n") == ["k"]

    async def test_what_never_was_can_be_deleted(self, store: Store) -> None:
        """Deleting a missing value is a write too."""
        await commit_touch(
            store, await commit_start(store, "s-1"), writes=[ValueWrite("n", "k", None, 0)]
        )

        assert await store.value("n", "k") == (None, 1)
        assert await store.keys("n") == []

    async def test_keys_are_in_order(self, store: Store) -> None:
        """The keys of one namespace in character order, without deleted ones."""
        writes = [
            ValueWrite("n", key, [1], 0)
            for key in ("b", "a", "é", "B", "a\0", "z", "🦉", "", "\uffff")
        ]

        await commit_touch(
            store,
            await commit_start(store, "s-1"),
            writes=[*writes, ValueWrite("n", "z", None, 1), ValueWrite("m", "c", [1], 0)],
        )

        assert await store.keys("n") == ["", "B", "a", "a\0", "b", "é", "\uffff", "🦉"]

    async def test_namespaces_are_apart(self, store: Store) -> None:
        """The same key in two namespaces names two values."""
        writes = [ValueWrite("m", "k", ["m"], 0), ValueWrite("n", "k", ["n"], 0)]

        await commit_touch(store, await commit_start(store, "s-1"), writes=writes)

        assert (await store.value("m", "k"), await store.value("n", "k")) == (
            (["m"], 1),
            (["n"], 1),
        )

    async def test_sessions_share_values(self, store: Store) -> None:
        """A session can read and overwrite a value that another has written."""
        one, two = await commit_start(store, "s-1"), await commit_start(store, "s-2")
        await commit_touch(store, one, writes=[ValueWrite("n", "k", [1], 0)])

        await commit_touch(store, two, writes=[ValueWrite("n", "k", [2], 1)])

        assert await store.value("n", "k") == ([2], 2)

    @pytest.mark.parametrize("version", [0, 1, 3])
    async def test_another_version_is_overtaken(self, store: Store, version: int) -> None:
        """A write computed from another version raises `Overtaken`, and its whole change is
        refused.
        """
        record = await commit_start(store, "s-1", make_query(0))
        other = await commit_touch(
            store, await commit_start(store, "s-2"), writes=[ValueWrite("n", "k", [1], 0)]
        )
        await commit_touch(store, other, writes=[ValueWrite("n", "k", [2], 1)])
        writes = [ValueWrite("n", "first", [9], 0), ValueWrite("n", "k", [9], version)]

        with pytest.raises(Overtaken):
            await store.commit(make_step(record, answers={0: "a"}, writes=writes), 1)

        assert await store.load("s-1") == record
        assert await store.keys("n") == ["k"]
        assert await store.value("n", "k") == ([2], 2)

    async def test_a_deleted_value_is_remembered(self, store: Store) -> None:
        """A writer that missed a deleted value is overtaken: the version does not restart at 0."""
        record = await commit_touch(
            store, await commit_start(store, "s-1"), writes=[ValueWrite("n", "k", [1], 0)]
        )
        record = await commit_touch(store, record, writes=[ValueWrite("n", "k", None, 1)])

        with pytest.raises(Overtaken):
            await commit_touch(store, record, writes=[ValueWrite("n", "k", [9], 0)])

        assert await store.value("n", "k") == (None, 2)

    async def test_values_land_with_the_step(self, store: Store) -> None:
        """A step and its writes become visible together."""
        record = await commit_start(store, "s-1", make_query(0))

        await commit_step(store, record, answers={0: "a"}, writes=[ValueWrite("n", "k", ["a"], 0)])

        assert (await store.load("s-1")).head.n == 1
        assert await store.value("n", "k") == (["a"], 1)
