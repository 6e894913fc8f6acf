"""Whoever could not get through to the store gives others the time to be heard again."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from everhold.errors import Overtaken, StoreBusy, StoreFull, StoreUnavailable
from everhold.ports.store import WorkerRecord
from everhold.stores import outage
from everhold.stores.outage import OutageTracker
from everhold.stores.sqlite import SQLiteStore


class Time:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(outage, "time", found)
    return found


def test_what_comes_through_in_time_changes_nothing(time):
    found = OutageTracker()
    with found.watched():
        time.now += 0.5
    with pytest.raises(Overtaken), found.watched():
        raise Overtaken("s-1", 1)
    assert found.age(60.0) == 60.0


def test_the_time_in_which_something_took_long_does_not_count(time):
    found = OutageTracker()
    with found.watched():
        time.now += 7.0
    assert found.age(10.0) == 3.0  # three seconds before, and none since
    assert found.age(5.0) == 0.0
    time.now += 2.0
    assert (found.age(12.0), found.age(1.0)) == (5.0, 1.0)


def test_what_took_long_at_the_same_time_counts_once(time):
    found = OutageTracker()
    with found.watched():
        time.now += 2.0
        with found.watched():
            time.now += 5.0
    assert found.age(10.0) == 3.0


@pytest.mark.parametrize(
    "error", [StoreFull("app.db"), StoreBusy("app.db", 1.0), StoreUnavailable("app.db", "away")]
)
def test_nothing_was_heard_since_something_came_through(time, error):
    """A disk that is full says so at once, again and again; between two tries nobody was heard,
    either.
    """
    found = OutageTracker()
    for _ in range(3):
        time.now += 4.0
        with pytest.raises(type(error)), found.watched():
            raise error
    assert found.age(14.0) == 2.0
    with found.watched():
        pass
    time.now += 4.0
    with pytest.raises(type(error)), found.watched():
        raise error
    assert found.age(18.0) == 2.0


def test_only_the_last_ones_are_remembered(time):
    found = OutageTracker()
    for _ in range(100):
        with found.watched():
            time.now += 2.0
        time.now += 1.0
    assert found.age(30.0) == 10.0
    assert found.age(300.0) == 300.0 - 2.0 * outage.MOST


async def test_a_file_that_was_locked_makes_nobody_dead(tmp_path, monkeypatch):
    """Somebody held the write lock for so long that no worker could say that it lives: that time
    does not count.
    """
    monkeypatch.setattr(outage, "LONG", 0.05)
    store, loop = SQLiteStore(tmp_path / "app.db"), asyncio.get_running_loop()
    await store.open()
    try:
        began = loop.time()
        await store.beat(WorkerRecord("w-1", "elsewhere", 1))
        with closing(sqlite3.connect(tmp_path / "app.db")) as other:
            other.execute("BEGIN IMMEDIATE")
            beat = asyncio.create_task(store.beat(WorkerRecord("w-2", "here", 2)))
            await asyncio.sleep(0.6)
            other.rollback()
        await beat
        first, _ = await store.workers()
        # clock: both sides are times by the clock, and a machine that stalls makes them longer
        # alike.
        assert first.age <= loop.time() - began - 0.5
    finally:
        await store.close()
