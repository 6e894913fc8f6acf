"""The coding agent of `examples/` ends as an undisturbed one, however often it is killed or
cancelled.
"""

import asyncio
import json
import random
import time

import pytest

from everhold.testing.faults import Nursery
from tests.fault import coding_victim

KILLS = CANCELS = 20


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.fault.coding_victim") as found:
        yield found


def finished(nursery, folder):
    """Let one process live to the end, and read what an outsider sees."""
    code, lines = nursery.run("play", path=str(folder))
    assert (code, lines[-1]) == (0, "rest"), lines
    code, lines = nursery.run("told", path=str(folder))
    assert (code, lines[-1]) == (0, "told"), lines
    return json.loads(folder.with_name(f"{folder.name}.json").read_text())


@pytest.fixture(scope="module")
def calm(nursery, tmp_path_factory):
    return finished(nursery, tmp_path_factory.mktemp("calm") / "shop")


def test_the_undisturbed_run_does_what_the_example_says(calm):
    inputs = [turn[0] for turn in calm["turns"] if turn[1] == "TurnAnswered"]
    assert inputs == ["bug", "release", "write"]
    assert calm["options"]["temperature"] == 0.2
    assert len(calm["frames"]) == 2
    assert calm["files"]["deployed.log"] == ["1.1"]
    assert "/ 100" in calm["files"]["price.py"]


def killed(nursery, folder, dice):
    """Kill a process a moment after it asked its model; returns whether it had more to do."""
    child = nursery.start("play", path=str(folder))
    for line in child.lines():  # three deaths without a step between them are poison
        if line == "asked":
            break
    time.sleep(dice.uniform(0, 0.05))
    child.kill()
    landed = child.wait() == -9
    child.close()
    return landed


@pytest.mark.timeout(600)
def test_killed_twenty_times_conversations_end_the_same(nursery, calm, tmp_path):
    """As many conversations as twenty kills take; each is killed until it has ended."""
    dice, landed, number = random.Random(18), 0, 0
    while landed < KILLS:
        folder, number = tmp_path / str(number) / "shop", number + 1
        folder.parent.mkdir()
        while killed(nursery, folder, dice):
            landed += 1
        assert finished(nursery, folder) == calm
    assert number < KILLS // 2, "nearly all kills came too late"


async def cancel_after(turns, task):
    """Cancel a task after so many turns of the event loop; returns whether it was running."""
    for _ in range(turns):
        if task.done():
            return False
        await asyncio.sleep(0)
    return task.cancel()


@pytest.mark.timeout(600)
def test_cancelled_twenty_times_it_ends_the_same(nursery, calm, tmp_path, capsys):
    """Each time the caller of the example leaves after some turns of its event loop."""
    dice, landed = random.Random(18), 0

    async def disturbed(turns):
        task = asyncio.ensure_future(coding_victim.play(str(tmp_path / "shop")))
        cancelled = await cancel_after(turns, task)
        try:
            await task
        except asyncio.CancelledError:
            return cancelled
        return False

    for number in range(CANCELS):
        landed += asyncio.run(disturbed(dice.randrange(40 * (number + 1))))
    assert landed >= CANCELS // 2, "nearly all cancels came too late"
    assert finished(nursery, tmp_path / "shop") == calm
