"""The mover of one process by itself."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from everhold.errors import StoreUnavailable
from everhold.movers.local import (
    FAILED_MOVE_DELAY,
    MAX_CONCURRENT_MOVES,
    STORE_RETRY_DELAY,
    LocalMover,
)
from everhold.ports.mover import Next
from everhold.testing.clock import ManualClock


class House:
    """A mover, and moves that take until they are let go."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0)
        self.mover = LocalMover(self.clock)
        self.begun: list[str] = []  # the moves, in the order in which they began
        self.running: list[str] = []
        self.most = 0  # moves that ran at the same time
        self.gates: dict[str, asyncio.Event] = {}
        self.says: dict[str, list[object]] = {}  # what the next moves of a session return or raise

    def hold(self, session_id: str) -> asyncio.Event:
        """Let the moves of a session wait."""
        return self.gates.setdefault(session_id, asyncio.Event())

    async def move(self, session_id: str) -> Next:
        assert session_id not in self.running, "two moves of one session side by side"
        self.begun.append(session_id)
        self.running.append(session_id)
        self.most = max(self.most, len(self.running))
        try:
            await asyncio.sleep(0)
            if session_id in self.gates:
                await self.gates[session_id].wait()
            said = self.says.get(session_id)
            found = said.pop(0) if said else Next()
            if isinstance(found, BaseException):
                raise found
            return found
        finally:
            self.running.remove(session_id)

    async def at(self, moment: float) -> list[str]:
        """The moves that have begun at that time."""
        self.clock.advance(moment - self.clock.now())
        await turns()
        return self.begun


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving():
    house = House()
    served = asyncio.create_task(house.mover.serve(house.move))
    await asyncio.sleep(0)
    try:
        yield house
    finally:
        for gate in house.gates.values():
            gate.set()
        await house.mover.leave(60)
        await asyncio.wait_for(served, 60)


async def test_what_is_requested_is_moved_in_order():
    async with serving() as house:
        for name in ("a", "b", "c"):
            house.mover.send(name)
        assert house.begun == []  # a request returns at once
        await house.mover.rest()
        assert house.begun == ["a", "b", "c"]


async def test_requests_for_one_session_are_one_until_it_is_moved():
    async with serving() as house:
        for _ in range(50):
            house.mover.send("a")
        await house.mover.rest()
        assert house.begun == ["a"]


async def test_a_request_during_a_move_moves_once_more():
    """However many come: they came after the move had looked, and the next one sees them all."""
    async with serving() as house:
        gate = house.hold("a")
        house.mover.send("a")
        await turns()
        for _ in range(50):
            house.mover.send("a")
        await turns()
        assert house.begun == ["a"]  # never side by side
        gate.set()
        await house.mover.rest()
        assert house.begun == ["a", "a"]


async def test_a_few_sessions_are_moved_at_a_time():
    async with serving() as house:
        gates = {f"s-{n}": house.hold(f"s-{n}") for n in range(3 * MAX_CONCURRENT_MOVES)}
        for name in gates:
            house.mover.send(name)
        await turns()
        assert house.running == list(gates)[:MAX_CONCURRENT_MOVES]
        gates["s-3"].set()
        await turns()
        assert (
            house.begun[-1] == f"s-{MAX_CONCURRENT_MOVES}"
            and len(house.running) == MAX_CONCURRENT_MOVES
        )
        for gate in gates.values():
            gate.set()
        await house.mover.rest()
        assert sorted(house.begun) == sorted(gates) and house.most == MAX_CONCURRENT_MOVES


async def test_a_session_that_is_moved_keeps_no_place_for_its_next_request():
    """Eight sessions are requested again while they are moved; others that came later get free
    places first.
    """
    async with serving() as house:
        gates = [house.hold(f"s-{n}") for n in range(MAX_CONCURRENT_MOVES - 1)]
        for n in range(MAX_CONCURRENT_MOVES - 1):
            house.mover.send(f"s-{n}")
        await turns()
        for n in range(MAX_CONCURRENT_MOVES - 1):
            house.mover.send(f"s-{n}")
        house.mover.send("new")
        await turns()
        assert house.begun[-1] == "new"
        for gate in gates:
            gate.set()


async def test_requests_are_lost_while_it_does_not_serve():
    """Nothing moves that was not asked for; reconciliation finds it where somebody serves."""
    house = House()
    house.mover.send("a")
    house.mover.send("b", at=-1.0)
    served = asyncio.create_task(house.mover.serve(house.move))
    await turns()
    assert house.begun == []
    await house.mover.leave(0)
    await asyncio.wait_for(served, 60)
    house.mover.send("a")
    house.mover.send("b", at=-1.0)
    await turns()
    assert house.begun == []
    await asyncio.wait_for(house.mover.rest(), 60)


async def test_a_request_for_a_time_waits_until_then():
    async with serving() as house:
        house.mover.send("a", at=10.0)
        house.mover.send("a", at=5.0)
        house.mover.send("b", at=7.0)
        assert await house.at(4.9) == []
        assert await house.at(5.1) == ["a"]
        assert await house.at(100.0) == ["a", "b"]


async def test_a_move_says_when_to_move_again():
    async with serving() as house:
        house.says["a"] = [Next(at=10.0), Next(at=20.0)]
        house.mover.send("a")
        assert await house.at(0.0) == ["a"]
        assert await house.at(10.1) == ["a"] * 2
        assert await house.at(20.1) == ["a"] * 3
        assert await house.at(100.0) == ["a"] * 3


async def test_a_program_that_is_not_here_is_not_asked_for_again():
    async with serving() as house:
        house.says["a"] = [Next(absent="no such program")]
        house.mover.send("a")
        assert await house.at(1000.0) == ["a"]


@pytest.mark.parametrize(
    ("error", "after", "words"),
    [
        (
            StoreUnavailable("memory", "away"),
            STORE_RETRY_DELAY,
            "could not move session a; retrying",
        ),
        (OSError("away"), FAILED_MOVE_DELAY, "could not move session a"),
    ],
    ids=["store", "unknown"],
)
async def test_a_move_that_fails_is_tried_again(error, after, words, caplog):
    """Its request was the only one: a look does not repeat it. Its neighbours are not held up."""
    async with serving() as house:
        house.says["a"] = [error]
        house.mover.send("a")
        house.mover.send("b")
        assert await house.at(0.0) == ["a", "b"]
        assert await house.at(after * 0.9) == ["a", "b"]
        assert await house.at(after * 1.1) == ["a", "b", "a"]
        assert await house.at(after * 10) == ["a", "b", "a"]
    assert caplog.text.count(words) == 1


async def test_rest_waits_for_what_was_requested():
    """Also for what is requested by a move that runs meanwhile."""
    async with serving() as house:
        gate = house.hold("a")
        house.mover.send("a")
        resting = asyncio.create_task(house.mover.rest())
        await turns()
        assert not resting.done()
        house.mover.send("b")
        gate.set()
        await asyncio.wait_for(resting, 60)
        assert house.begun == ["a", "b"] and house.running == []


async def test_leaving_begins_nothing_and_waits_for_what_runs():
    async with serving() as house:
        gate = house.hold("a")
        house.says["a"] = [Next(at=1.0)]
        house.mover.send("a")
        await turns()
        house.mover.send("a")  # which has to wait for its first move
        house.mover.send("b", at=5.0)
        leaving = asyncio.create_task(house.mover.leave(60))
        await turns()
        house.mover.send("c")
        await turns()
        assert not leaving.done()
        gate.set()
        await asyncio.wait_for(leaving, 60)
        assert await house.at(100.0) == ["a"]
        assert house.clock.waiting == []


@pytest.mark.parametrize("grace", [0, 0.01])
async def test_leaving_does_not_wait_longer_than_its_grace(grace):
    """A move that is cancelled is made again by whoever finds the session."""
    async with serving() as house:
        house.hold("a")
        house.mover.send("a")
        await turns()
        await asyncio.wait_for(house.mover.leave(grace), 60)
        assert house.running == []
