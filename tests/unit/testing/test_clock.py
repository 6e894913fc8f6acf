"""The clock that stands still until a test moves it."""

import asyncio
import threading

from everhold.testing.clock import ManualClock


async def turns():
    """Let everybody who can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def sleeper(clock, seconds, woken):
    async def sleep():
        await clock.sleep(seconds)
        woken.append(seconds)

    return asyncio.create_task(sleep())


async def test_time_is_what_one_says():
    """`now` begins where it was set and moves by what it is advanced."""
    clock = ManualClock(100.0)
    clock.advance(2.5)

    assert clock.now() == 102.5


async def test_sleepers_wake_when_their_time_has_come():
    """A sleeper wakes at its moment, not before; the earliest wakes first."""
    clock, woken = ManualClock(), []
    tasks = [sleeper(clock, seconds, woken) for seconds in (3, 1, 2, 9)]
    await turns()

    clock.advance(0.5)
    await turns()
    assert woken == []
    clock.advance(2.5)
    await turns()

    assert woken == [1, 2, 3]
    assert clock.waiting == [clock.now() + 6]
    tasks[3].cancel()


async def test_no_time_is_one_turn():
    """Sleeping for nothing, or less, lets others go first and goes on."""
    clock, order = ManualClock(), []
    task = sleeper(clock, 0, order)
    other = sleeper(clock, -1, order)
    order.append("here")
    await asyncio.gather(task, other)

    assert order == ["here", 0, -1]


async def test_a_clock_set_back_wakes_nobody():
    """Time that goes backwards lets nobody's moment come."""
    clock, woken = ManualClock(), []
    task = sleeper(clock, 1, woken)
    await turns()

    clock.advance(-5)
    clock.advance(5)
    await turns()
    assert woken == []
    clock.advance(1)
    await task

    assert woken == [1]


async def test_who_gave_up_is_not_woken():
    """A sleeper that was cancelled is gone, before and after its moment."""
    clock, woken = ManualClock(), []
    early, late = sleeper(clock, 1, woken), sleeper(clock, 2, woken)
    await turns()

    early.cancel()
    await turns()
    assert clock.waiting == [clock.now() + 2]
    clock.advance(5)
    late.cancel()
    await turns()

    assert woken == []


async def test_another_thread_may_move_it():
    """A test outside the loop wakes sleepers inside it."""
    clock, woken = ManualClock(), []
    task = sleeper(clock, 1, woken)
    await turns()

    thread = threading.Thread(target=clock.advance, args=(1,))
    thread.start()
    await task
    thread.join()

    assert woken == [1]
