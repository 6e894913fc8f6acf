"""Whoever could not get through to the store gives others the time to be heard again."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from everhold.core.errors import Overtaken, StoreFull
from everhold.ports.store import Worker
from everhold.stores import stall
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.stall import Stall


def test_what_comes_through_in_time_changes_nothing():
    found = Stall()
    with found.watched():
        pass
    with pytest.raises(Overtaken), found.watched():
        raise Overtaken("s-1", 1)
    assert found.age(60.0) == 60.0


def test_what_took_long_means_that_nobody_was_heard(monkeypatch):
    monkeypatch.setattr(stall, "LONG", -1.0)
    found = Stall()
    with found.watched():
        pass
    assert found.age(3600.0) < 3600.0
    assert found.age(0.0) == 0.0


def test_so_does_a_disk_that_is_full():
    found = Stall()
    with pytest.raises(StoreFull), found.watched():
        raise StoreFull("app.db")
    assert found.age(3600.0) < 3600.0


async def test_a_file_that_was_locked_makes_nobody_dead(tmp_path, monkeypatch):
    """Somebody held the write lock for so long that no worker could say that it lives."""
    monkeypatch.setattr(stall, "LONG", 0.05)
    store, now = SQLiteStore(tmp_path / "app.db"), 1000.0
    store.time = lambda: now
    await store.open()
    try:
        await store.beat(Worker("w-1", "elsewhere", 1))
        now += 60.0
        assert [worker.expired for worker in await store.workers()] == [True]
        with closing(sqlite3.connect(tmp_path / "app.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            beat = asyncio.create_task(store.beat(Worker("w-2", "here", 2)))
            await asyncio.sleep(0.1)
            other.rollback()
        await beat
        assert [worker.expired for worker in await store.workers()] == [False, False]
    finally:
        await store.close()
