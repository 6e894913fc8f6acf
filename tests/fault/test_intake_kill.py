"""Inputs that were accepted come to one end each, whoever is killed while they wait, claim and hand
over.
"""

import json
import random
import select
import time

import pytest

from everhold.testing.faults import Nursery
from tests.fault.intake_victim import INPUTS
from tests.postgres import fresh

KILLS = 14


@pytest.fixture(scope="module")
def nursery():
    with Nursery("tests.fault.intake_victim") as found:
        yield found


def begun(nursery, address, who, noted):
    """A process that has begun to put inputs there."""
    child = nursery.start("feed", path=address, who=who, noted=noted)
    ready, _, _ = select.select([child.output], [], [], 60)
    assert ready, "it never came up"
    return child


def ended(child):
    """What it said to its end, and how it ended."""
    said = list(child.lines())
    code = child.wait()
    child.close()
    return said, code


def disturbed(nursery, address, noted, dice):
    """Two processes at a time put inputs into one conversation; one of them is killed, again and
    again.
    """
    said, landed = [], 0
    children = {who: begun(nursery, address, who, noted) for who in "ab"}
    for _ in range(KILLS):
        # time for a step: three deaths over one call end a session
        time.sleep(dice.uniform(0.05, 0.25))
        who = dice.choice("ab")
        children[who].kill()
        lines, code = ended(children[who])
        said, landed = said + lines, landed + (code == -9)
        children[who] = begun(nursery, address, who, noted)
    for child in children.values():
        lines, code = ended(child)
        assert code == 0, lines[-5:]
        said += lines
    return said, landed


def accounted(nursery, address, tmp_path, said):
    """Each input that was acknowledged is in one turn, or was taken back; each command was done
    once.
    """
    told = tmp_path / "told.json"
    code, lines = nursery.run("told", path=address, told=str(told))
    assert (code, lines) == (0, ["told"])
    facts = json.loads(told.read_text())
    kept = {line.split()[1] for line in said if line.startswith("kept ")}
    gone = {line.split()[1] for line in said if line.startswith("gone ")}
    assert kept == {f"{who}-{number}" for who in "ab" for number in range(INPUTS)}
    entered = [name for name in facts["inputs"] if not name.startswith("command:")]
    assert len(entered) == len(set(entered)), "an input was said twice"
    assert (
        set(entered) | {name for name, state in facts["states"].items() if state == "cancelled"}
        >= kept
    )
    assert not set(entered) & gone, "what was taken back was said"
    assert set(facts["states"].values()) <= {"completed", "cancelled"}
    commands = [name for name in facts["inputs"] if name.startswith("command:")]
    assert sorted(commands) == sorted({*commands}) and len(commands) == 2 * (INPUTS // 8)


@pytest.mark.timeout(300)
def test_accepted_inputs_end_once_though_processes_are_killed(nursery, tmp_path):
    """Two processes, one file, kills at random moments: none is lost, none is said twice, no
    command is done twice.
    """
    address = f"sqlite:///{tmp_path / 'rough.db'}"
    said, landed = disturbed(nursery, address, str(tmp_path / "noted"), random.Random(7))
    assert landed >= 5, "nearly all kills came too late"
    accounted(nursery, address, tmp_path, said)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("postgres")
def test_accepted_inputs_end_once_on_postgres(nursery, tmp_path, postgres):
    """The same on a server."""
    address = fresh(postgres, "intake")
    said, landed = disturbed(nursery, address, str(tmp_path / "noted"), random.Random(11))
    assert landed >= 5, "nearly all kills came too late"
    accounted(nursery, address, tmp_path, said)
