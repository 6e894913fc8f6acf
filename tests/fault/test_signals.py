"""Signals under upheaval: what is acknowledged is received, once, and in the order of each sender.

Several senders, with the program and without it, send to sessions that movers drive, while movers
leave, die and come.
"""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.errors import StoreUnavailable
from everhold.stores.memory import MemoryStore
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.conformance.mover_fleet import Fleet, FleetRuntime, LocalFleet, WorkerFleet
from everhold.testing.conformance.mover_programs import collects, reset_effect_log
from tests.fault import fleet as processes
from tests.postgres import fresh

ON_POSTGRES = pytest.mark.xdist_group("postgres")


def sent_value(sender: int, number: int) -> list[int]:
    """What a sender sends as its signal of this number: each value twice."""
    return [sender, number // 2]


class Letters:
    """What senders sent to one session, and what was acknowledged."""

    def __init__(self) -> None:
        self.tried: Counter[tuple[int, int]] = Counter()
        self.kept: Counter[tuple[int, int]] = Counter()

    def judge(self, received: list[list[int]]) -> None:
        """As many were received as were acknowledged, or at most tried; and each sender's in its
        order.
        """
        found = Counter((sender, value) for sender, value in received)
        assert {
            each: (self.kept[each], found[each])
            for each in self.kept
            if found[each] < self.kept[each]
        } == {}
        assert {
            each: (found[each], self.tried[each])
            for each in found
            if found[each] > self.tried[each]
        } == {}
        for one in {sender for sender, _ in received}:
            values = [value for sender, value in received if sender == one]
            assert values == sorted(values), f"out of the order of sender {one}"


# ---- in one process


def fleet_of(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Fleet:
    if kind == "memory":
        store = MemoryStore()
        return LocalFleet(lambda: store)
    if kind == "postgres":
        url = fresh(request.getfixturevalue("postgres"), "signals")
        return WorkerFleet(lambda: PostgresStore(url))
    return {"sqlite": LocalFleet, "workers": WorkerFleet}[kind](
        lambda: SQLiteStore(tmp_path / "signals.db")
    )


class Upheaval:
    """Movers that come, leave and die, as dice say, while others send."""

    def __init__(self, fleet: Fleet, dice: random.Random) -> None:
        self.fleet, self._dice = fleet, dice
        self._movers: list[FleetRuntime] = []

    async def __call__(self, done: Callable[[], bool]) -> None:
        while not done():
            await getattr(self, self._dice.choice(["_come", "_leave", "_die", "_rest", "_rest"]))()
        if not self._movers:
            await self._come()

    async def _come(self) -> None:
        if len(self._movers) < 3:
            self._movers.append(await self.fleet.mover())

    async def _leave(self) -> None:
        if self._movers:
            await self.fleet.leave(self._movers.pop(self._dice.randrange(len(self._movers))))

    async def _die(self) -> None:
        if self._movers:
            await self.fleet.kill(self._movers.pop(self._dice.randrange(len(self._movers))))

    async def _rest(self) -> None:
        await asyncio.sleep(self._dice.random() * 0.05)

    def mover(self) -> FleetRuntime | None:
        return self._dice.choice(self._movers) if self._movers else None


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "kind", ["memory", "sqlite", "workers", pytest.param("postgres", marks=ON_POSTGRES)]
)
async def test_signals_while_movers_come_and_go(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    seed: int,
) -> None:
    """From two fronts with the program, two without it, and from movers that may die meanwhile."""
    # dice may kill three in a row: that is no poison
    monkeypatch.setattr("everhold.engine.effects.DEATHS", 1000)
    reset_effect_log()
    dice, count = random.Random(seed), 30
    async with fleet_of(request, kind, tmp_path) as fleet:
        sessions = {
            await fleet.begin(collects(name=f"n{number}")): Letters() for number in range(3)
        }
        fronts = [await fleet.front(programs=number % 2 == 0, cache=100) for number in range(4)]
        upheaval = Upheaval(fleet, dice)

        async def send(sender: int, place: Callable[[], FleetRuntime | None]) -> None:
            for number in range(count):
                session = dice.choice(list(sessions))
                value, letters = sent_value(sender, number), sessions[session]
                while (at := place()) is None:
                    await asyncio.sleep(0.01)
                letters.tried[sender, number // 2] += 1
                try:
                    await at.signal(session, "news", value, wait=0)
                except (StoreUnavailable, asyncio.CancelledError):
                    continue  # that mover was killed, and its verbs with it
                letters.kept[sender, number // 2] += 1
                await asyncio.sleep(dice.random() * 0.01)

        places: list[Callable[[], FleetRuntime | None]] = [
            *((lambda front=front: front) for front in fronts),
            upheaval.mover,
        ]
        sending = asyncio.gather(*(send(sender, place) for sender, place in enumerate(places)))
        await upheaval(sending.done)
        await sending
        for session in sessions:
            await fronts[1].signal(session, "news", "stop")
        for session, letters in sessions.items():
            letters.judge((await fleet.finish(session, tick=1.0)).result)
        assert sum(letters.kept.total() for letters in sessions.values()) >= count * len(fronts)


# ---- with processes that are killed


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=ON_POSTGRES)])
def test_signals_while_workers_are_killed(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Six sending processes, half of them without the program; a worker is killed every half a
    second, twenty times.
    """
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'signals.db'}"
    else:
        url = fresh(request.getfixturevalue("postgres"), "signals")
    keys, senders, count, dice = [f"k{n}" for n in range(8)], 6, 200, random.Random()
    with processes.Fleet(tmp_path, url, "tests.fault.signals_victim") as fleet:
        code, _ = fleet._nursery.run("accept", path=url, keys=keys)
        assert code == 0
        workers = [fleet.start(concurrency=4) for _ in range(3)]
        sending = [
            fleet._nursery.start(
                "send", path=url, keys=keys, sender=n, count=count, program=n % 2 == 0
            )
            for n in range(senders)
        ]
        for number in range(20):
            time.sleep(0.5)
            doomed = workers.pop(dice.randrange(len(workers)))
            if number % 4 == 3:
                fleet.leave(doomed)
            else:
                doomed.kill()
            assert doomed.wait() in (0, -signal.SIGKILL)
            workers.append(fleet.start(concurrency=4))
        sent = {key: Letters() for key in keys}
        for child in sending:
            for line in child.lines():
                key, sender, number = json.loads(line)
                sent[key].kept[sender, number // 2] += 1
                sent[key].tried[sender, number // 2] += 1
            assert child.wait() == 0
            child.close()
        assert sum(letters.kept.total() for letters in sent.values()) == senders * count
        code, _ = fleet._nursery.run("stop", path=url, keys=keys)
        assert code == 0
        for key in keys:
            received: Any = fleet.result(key)
            sent[key].judge(received)
            assert len(received) == sent[key].kept.total()
