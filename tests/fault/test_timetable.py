"""Processes that keep schedules and emit events are killed at any moment: nothing is lost, and
nothing comes twice.
"""

import asyncio
import random
import select
import time
from collections import Counter
from itertools import pairwise

import pytest

import everhold
from everhold.testing.faults import ChildProcess, Nursery
from tests.postgres import fresh

KILLS = 12


async def killed_again_and_again(url: str, seed: int) -> set[str]:
    """Three processes at a time, one of which is killed and followed by another; returns the events
    acknowledged.
    """
    dice, acknowledged = random.Random(seed), set()
    with Nursery("tests.fault.timetable_victim") as nursery:

        def begin(life: int) -> ChildProcess:
            return nursery.start("work", url=url, life=life, orders=40)

        living = [begin(life) for life in range(3)]
        for life in range(3, 3 + KILLS):
            doomed = living.pop(0)
            said = up(doomed)
            await asyncio.sleep(dice.uniform(0.0, 0.4))
            doomed.kill()
            acknowledged |= heard(doomed, said)
            living.append(begin(life))
        for child in living:
            said = up(child)
            child.kill()
            acknowledged |= heard(child, said)
    return acknowledged


def up(child: ChildProcess) -> list[str]:
    """Wait until a process is at work; returns what it said so far."""
    lines: list[str] = []
    while "up" not in lines:
        ready, _, _ = select.select([child.output], [], [], 60)
        assert ready, "it never came up"
        lines += child.heard()
    return lines


def heard(child: ChildProcess, said: list[str]) -> set[str]:
    """The events that a process acknowledged in its life."""
    lines = [*said, *child.lines()]
    child.close()
    return {line.partition(" ")[2] for line in lines if line.startswith("ack ")}


async def judged(url: str, acknowledged: set[str]) -> None:
    """Let one process finish what the dead have left; then look at what came of it."""
    async with everhold.open(url) as runtime:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            waiting = [one for one in await runtime.triggers.handovers() if one.state == "waiting"]
            living = await runtime.sessions(state=("running", "paused"), limit=1)
            ticks = await runtime.sessions(labels={"schedule": "ticks"}, limit=2)
            # who died at a tick holds up the next for ten seconds
            if not waiting and not living and len(ticks) == 2:
                break
            await asyncio.sleep(0.2)
        await runtime.schedules.pause("ticks")
        await asyncio.sleep(1.0)
        assert waiting == []
        handovers = await runtime.triggers.handovers()
        assert {one.state for one in handovers} <= {"started", "already"}
        sessions = await runtime.sessions(limit=100_000)
        orders = Counter(
            (info.labels["trigger"], info.key.rpartition(":")[2])
            for info in sessions
            if "event" in info.labels
        )
        kept = {key for _, key in orders}
        assert acknowledged <= kept
        assert set(orders.values()) == {1}
        assert set(orders) == {(name, key) for name in ("ship", "book") for key in kept}
        ticks = sorted(
            float(info.key.rpartition(":")[2]) for info in sessions if "schedule" in info.labels
        )
        assert len(ticks) >= 2
        assert {round(later - earlier, 3) for earlier, later in pairwise(ticks)} == {1.0}
        assert {info.state for info in sessions} == {"completed"}
        assert await runtime.archive.verify() == []


@pytest.mark.timeout(300)
async def test_keepers_of_schedules_and_emitters_are_killed(tmp_path):
    """On one SQLite file: each acknowledged event has one session for each trigger, each second one
    tick.
    """
    url = f"sqlite:///{tmp_path / 'app.db'}"
    await judged(url, await killed_again_and_again(url, 7))


@pytest.mark.timeout(300)
@pytest.mark.xdist_group("postgres")
async def test_keepers_of_schedules_and_emitters_are_killed_on_postgres(postgres):
    url = fresh(postgres)
    await judged(url, await killed_again_and_again(url, 11))
