"""When sessions are moved: timers of a mover."""

import asyncio

from everhold.movers import local as module
from everhold.movers.local import MoveTimers
from everhold.testing.clock import ManualClock


class Times:
    """Timers on a manual clock; `fired` are the sessions whose time came, in order."""

    def __init__(self) -> None:
        self.clock, self.fired = ManualClock(0.0), []
        self.timers = MoveTimers(self.clock, self.fired.append)

    async def at(self, moment: float) -> list[str]:
        """What has fired at that time."""
        self.clock.advance(moment - self.clock.now())
        for _ in range(5):
            await asyncio.sleep(0)
        return self.fired


async def test_each_fires_when_its_time_has_come_and_once():
    times = Times()
    for name, at in (("b", 20.0), ("a", 10.0), ("c", 30.0)):
        times.timers.set(name, at)
    assert await times.at(9.9) == []
    assert await times.at(10.1) == ["a"]
    assert await times.at(30.1) == ["a", "b", "c"]
    assert await times.at(100.0) == ["a", "b", "c"]


async def test_a_time_that_is_over_fires_at_once():
    times = Times()
    times.timers.set("a", -1.0)
    assert await times.at(0.0) == ["a"]


async def test_the_earliest_time_counts():
    """A later one changes nothing: who is moved then says when to move it again."""
    times = Times()
    for at in (20.0, 10.0, 30.0):
        times.timers.set("a", at)
    assert await times.at(10.1) == ["a"]
    assert await times.at(100.0) == ["a"]


async def test_an_earlier_time_is_not_slept_over():
    """The sleep until the first one is cut short."""
    times = Times()
    times.timers.set("late", 100.0)
    assert await times.at(1.0) == []
    times.timers.set("soon", 2.0)
    assert await times.at(2.1) == ["soon"]
    assert await times.at(100.1) == ["soon", "late"]


async def test_it_can_be_set_again_after_it_fired():
    times = Times()
    times.timers.set("a", 1.0)
    await times.at(1.1)
    times.timers.set("a", 2.0)
    assert await times.at(2.1) == ["a", "a"]


async def test_it_can_be_set_again_while_it_fires():
    """A move that is made at once may name the next time before the others have fired."""
    clock, fired = ManualClock(0.0), []

    def fire(session_id):
        fired.append((clock.now(), session_id))
        if len(fired) < 4:
            timers.set(session_id, clock.now() + 1)

    timers = MoveTimers(clock, fire)
    timers.set("a", 0.5)
    timers.set("b", 0.5)
    for _ in range(6):
        clock.advance(1.1)
        for _ in range(5):
            await asyncio.sleep(0)
    assert [name for _, name in fired] == ["a", "b", "a", "b", "a"]
    await timers.stop()


async def test_a_clock_that_is_set_back_only_delays():
    times = Times()
    times.timers.set("a", 10.0)
    await times.at(5.0)
    await times.at(-100.0)
    assert await times.at(9.0) == []
    assert await times.at(10.1) == ["a"]


async def test_stopping_forgets_all():
    times = Times()
    times.timers.set("a", 1.0)
    await times.at(0.5)
    await times.timers.stop()
    assert await times.at(10.0) == []
    assert times.clock.waiting == []
    await times.timers.stop()
    times.timers.set("b", 11.0)  # they may be used again
    assert await times.at(12.0) == ["b"]


async def test_memory_is_bounded_and_the_nearest_are_kept(monkeypatch):
    """What has to be moved soon is not refused because of what comes in a year."""
    monkeypatch.setattr(module, "MAX_TIMERS", 10)
    times = Times()
    for n in range(50):
        times.timers.set(f"far-{n}", 1000.0 - n)
    times.timers.set("near", 1.0)
    assert len(times.timers._due) <= 20 and len(times.timers._heap) <= 20
    assert await times.at(1.1) == ["near"]
    assert len(await times.at(2000.0)) >= 10
    assert "far-49" in times.fired


async def test_times_that_do_not_count_any_more_do_not_pile_up(monkeypatch):
    """A session with an expiry in a year and something to do each second."""
    monkeypatch.setattr(module, "MAX_TIMERS", 10)
    times = Times()
    for second in range(1, 200):
        times.timers.set("a", 1e6)
        times.timers.set("a", float(second))
        await times.at(second + 0.1)
    assert times.fired == ["a"] * 199
    assert len(times.timers._heap) <= 20
    await times.timers.stop()
