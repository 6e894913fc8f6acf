"""A process that is killed at any moment loses no answer that it acknowledged."""

import random
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.core.journal import find_open_queries
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.faults import ChildProcess, Nursery

LADDERS = 40


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("tests.fault.victim") as found:
        yield found


class Toll:
    """What was heard from all the dead."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[str, str], str] = {}
        self.kills = 0
        self.landed = 0  # kills of a process that was acknowledging answers
        self.in_flight = 0  # kills that came between an answer and its acknowledgement

    def hear(self, lines: list[str]) -> None:
        """Take down one life; nothing that was acknowledged in an earlier one may be asked
        again.
        """
        for line in lines:
            word, *facts = line.split(" ")
            if word == "ask":
                assert (facts[0], facts[1]) not in self.acknowledged, f"asked again: {line}"
            elif word == "ack":
                self.acknowledged[(facts[0], facts[1])] = facts[2]
            else:
                assert word in ("up", "rest"), line

    def count(self, lines: list[str]) -> None:
        self.kills += 1
        words = [line.split(" ")[0] for line in lines]
        if "ack" in words and "rest" not in words:
            self.landed += 1
            self.in_flight += words.count("ask") > words.count("ack")


def killed(child: ChildProcess, dice: random.Random, *, early: bool) -> list[str]:
    """Kill a process: a few milliseconds after its first acknowledgement, or (`early`) after its
    start.
    """
    lines: list[str] = []
    while not early and not any(line.startswith("ack") for line in lines):
        ready, _, _ = select.select([child.output], [], [], 60)
        assert ready, "it never acknowledged anything"
        heard = child.heard()
        assert heard or lines, "it ended before it was killed"
        lines += heard
    time.sleep(dice.uniform(0, 0.04))
    child.kill()
    assert child.wait() == -9
    lines += child.lines()
    child.close()
    return lines


async def slaughter(nursery: Nursery, path: Path, seed: int, *, kills: int, rungs: int) -> Toll:
    """Kill one process after another at random moments, then let one live to the end."""
    dice, toll = random.Random(seed), Toll()
    for life in range(kills):
        some = dice.sample(range(LADDERS), 10)
        child = nursery.start(
            "climb", path=str(path), life=life, ladders=some, rungs=rungs, pace=0.001
        )
        lines = killed(child, dice, early=life % 12 == 11)
        toll.count(lines)
        toll.hear(lines)
        if life % 20 == 0:
            await sound(path)
    code, lines = nursery.run(
        "climb", path=str(path), life=kills, ladders=list(range(LADDERS)), rungs=rungs
    )
    assert (code, lines[-1]) == (0, "rest")
    toll.hear(lines)
    return toll


async def sound(path: Path) -> list[SessionRecord]:
    """Every session, from a database without a problem."""
    store = SQLiteStore(path)
    await store.open()
    assert await store.maintenance.verify() == []
    found = [
        await store.load(each.birth.id) for each in await store.list(SessionFilter(limit=1000))
    ]
    await store.close()
    return found


def checked(record: SessionRecord, toll: Toll) -> int:
    """One session that has ended: each question asked once and answered once, with what was
    acknowledged.
    """
    asked = [query.id for delivery in record.deliveries for query in delivery.asked]
    answers = [answer for delivery in record.deliveries for answer in delivery.answers]
    assert len(asked) == len(set(asked)) == len(answers) == len({answer.id for answer in answers})
    assert record.head.state == "completed" and find_open_queries(record.deliveries) == {}
    kept = {answer.id: answer.value for answer in answers}
    mine = {
        q: value
        for (session_id, q), value in toll.acknowledged.items()
        if session_id == record.birth.id
    }
    assert {q: kept[q] for q in mine} == mine
    return len(mine)


async def test_kill_9_while_answers_are_acknowledged(nursery: Nursery, tmp_path: Path) -> None:
    """Over 100 kills, most of them while answers were acknowledged: all those are there, and none
    was asked again.
    """
    path = tmp_path / "kills.db"
    toll = await slaughter(nursery, path, random.randrange(2**32), kills=110, rungs=200)
    assert toll.kills >= 100
    assert toll.landed >= 50, toll.landed
    records = await sound(path)
    assert len(records) == LADDERS
    assert sum(checked(record, toll) for record in records) == len(toll.acknowledged)
    print(
        f"{toll.kills} kills, {toll.landed} landed, {toll.in_flight} in flight,"
        f" {len(toll.acknowledged)} kept"
    )


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
async def test_kill_9_for_minutes(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """The same, four hundred kills a seed, on longer ladders."""
    path = tmp_path / "kills.db"
    toll = await slaughter(nursery, path, seed, kills=400, rungs=500)
    assert toll.landed >= 200, toll.landed
    assert sum(checked(record, toll) for record in await sound(path)) == len(toll.acknowledged)
