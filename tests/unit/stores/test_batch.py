"""Asking once for many: what is wanted while an asking is under way is asked for together in the
next.
"""

import asyncio

import pytest

from everhold.stores.postgres.connection import BATCH_LIMIT, BatchLoader


class House:
    """Says the double of each number, once its door is open; notes what it was asked for
    together.
    """

    def __init__(self):
        self.asked = []
        self.door = asyncio.Event()
        self.door.set()

    async def ask(self, numbers):
        self.asked.append(numbers)
        await self.door.wait()
        if 13 in numbers:
            raise ValueError("13")
        return [number * 2 for number in numbers]


async def test_what_is_wanted_at_the_same_moment_is_asked_for_once():
    house = House()
    doubled = BatchLoader(house.ask)
    assert await asyncio.gather(*map(doubled, range(5))) == [0, 2, 4, 6, 8]
    assert house.asked == [[0, 1, 2, 3, 4]]


async def test_what_comes_meanwhile_is_asked_for_afterwards():
    """Nobody hears what was so before he asked."""
    house = House()
    doubled = BatchLoader(house.ask)
    house.door.clear()
    first = asyncio.create_task(doubled(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(doubled(n)) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    house.door.set()
    assert [await one for one in (first, *later)] == [2, 2, 4, 6]
    assert house.asked == [[1], [1, 2, 3]]


async def test_no_more_than_so_many_in_one_go():
    house = House()
    await asyncio.gather(*map(BatchLoader(house.ask), range(100, 100 + BATCH_LIMIT + 1)))
    assert [len(asked) for asked in house.asked] == [BATCH_LIMIT, 1]


async def test_an_error_is_told_to_those_who_were_asked_for_together_and_to_nobody_else():
    house = House()
    doubled = BatchLoader(house.ask)
    said = await asyncio.gather(doubled(13), doubled(2), return_exceptions=True)
    assert [str(error) for error in said] == ["13", "13"]
    assert await doubled(2) == 4


async def test_who_gives_up_waiting_keeps_nobody_else_from_hearing():
    house = House()
    doubled = BatchLoader(house.ask)
    house.door.clear()
    tasks = [asyncio.create_task(doubled(n)) for n in (1, 2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    house.door.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert await tasks[1] == 4


async def test_who_gave_up_before_is_not_asked_for():
    house = House()
    doubled = BatchLoader(house.ask)
    house.door.clear()
    tasks = [asyncio.create_task(doubled(1))]
    await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(doubled(n)) for n in (2, 3)]
    await asyncio.sleep(0.01)
    tasks[1].cancel()
    await asyncio.sleep(0)
    house.door.set()
    assert [await tasks[0], await tasks[2]] == [2, 6]
    assert house.asked == [[1], [3]]


async def test_several_at_once_if_it_may():
    """A long asking does not keep the next one waiting."""
    house = House()
    doubled = BatchLoader(house.ask, at_once=2)
    house.door.clear()
    tasks = [asyncio.create_task(doubled(1))]
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(doubled(2)))
    await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(doubled(3)))
    await asyncio.sleep(0.01)
    assert house.asked == [[1], [2]]
    house.door.set()
    assert [await one for one in tasks] == [2, 4, 6]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_who_asks_again_at_once_is_answered(at_once):
    """He comes when the asking before is over, and its task not yet forgotten."""
    house = House()
    doubled = BatchLoader(house.ask, at_once=at_once)

    async def insist():
        return [await doubled(number) for number in range(10)]

    async with asyncio.timeout(10):
        assert (
            await asyncio.gather(*(insist() for _ in range(at_once)))
            == [list(range(0, 20, 2))] * at_once
        )
