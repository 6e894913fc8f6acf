"""A conversation of forty turns, killed at random moments, ends as one does that nobody
disturbed.
"""

import json
import random
import select
import time

import pytest

from everhold.testing.faults import Nursery

KILLS = 25


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.fault.agent_victim") as found:
        yield found


def finished(nursery, path, paid):
    """Let one process live to the end, and read what is left."""
    code, lines = nursery.run("converse", path=str(path), paid=str(paid))
    assert (code, lines[-1]) == (0, "rest"), lines
    code, lines = nursery.run("told", path=str(path))
    assert (code, lines[-1]) == (0, "told"), lines
    return {
        key: json.loads((path.parent / f"{path.name}.{key}.json").read_text())
        for key in ("chat", "fork")
    }


def payments(paid):
    return [json.loads(line) for line in paid.read_text().splitlines()]


def killed(nursery, path, paid, dice):
    """Kill a process a few moments after it has begun to speak; returns whether it had more to
    say.
    """
    child = nursery.start("converse", path=str(path), paid=str(paid))
    ready, _, _ = select.select([child.output], [], [], 60)
    assert ready, "it never came up"
    lines = child.heard()
    time.sleep(dice.uniform(0, 0.12))
    child.kill()
    code = child.wait()
    lines += child.lines()
    child.close()
    return code == -9 and "rest" not in lines


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1])
def test_a_conversation_that_is_killed_again_and_again_ends_as_an_undisturbed_one(
    nursery, tmp_path, seed
):
    """The same words under the same ids, the same frames, receipts and ledger; nobody is paid under
    two keys.

    Row 12 and 17: what was recorded is not done again, and every turn has one receipt.
    """
    dice = random.Random(seed)
    calm = finished(nursery, tmp_path / "calm.db", tmp_path / "calm.paid")
    path, paid = tmp_path / "rough.db", tmp_path / "rough.paid"
    landed = sum(killed(nursery, path, paid, dice) for _ in range(KILLS))
    rough = finished(nursery, path, paid)
    assert landed >= 2, "nearly all kills came too late"
    assert len(calm["chat"]["frames"]) > 2, "there was no compaction"
    assert sum(turn[2] == "TurnAnswered" for turn in calm["chat"]["turns"]) == 40
    assert rough == calm
    once = {tuple(payment) for payment in payments(paid)}
    assert sorted(number for _, number in once) == sorted(
        number for _, number in payments(tmp_path / "calm.paid")
    )
