"""What of asyncio works in a program: every row of the table, live, again, and in another
process.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.core.session import Seed
from tests.unit.programs.driving import Life, birth, said
from tests.unit.programs.table import OUTSIDE, ROWS, Row

ROOT = Path(__file__).resolve().parents[3]
IDS = [row.body.__name__ for row in ROWS]


def lived(row: Row) -> Life:
    life = Life(row.body)
    life.value = life.finish(row.pick)
    return life


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_it_returns_what_people_expect(row: Row) -> None:
    """A row's program gives the value that is written beside it."""
    assert lived(row).value == row.returns


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.asks], ids=[row.body.__name__ for row in ROWS if row.asks]
)
def test_it_asks_under_the_same_keys_on_every_python(row: Row) -> None:
    """The keys are written by hand in the table, and this test runs on every Python there is."""
    assert lived(row).keys == row.asks


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_it_asks_the_same_again(row: Row) -> None:
    """Handed the same deliveries, a new life asks and withdraws the same in the same order and ends
    the same.
    """
    life = lived(row)
    assert said(life.again()) == said(life)


@pytest.mark.parametrize("row", ROWS, ids=IDS)
async def test_it_works_inside_a_running_loop(row: Row) -> None:
    """The loop outside, its task and its context variables are neither seen nor changed."""
    task, loop, hooks = asyncio.current_task(), asyncio.get_running_loop(), sys.get_asyncgen_hooks()
    OUTSIDE.set("seen")
    assert lived(row).value == row.returns
    assert (asyncio.current_task(), asyncio.get_running_loop(), sys.get_asyncgen_hooks()) == (
        task,
        loop,
        hooks,
    )


TELL = """
import json
from tests.unit.programs.driving import Life
from tests.unit.programs.table import ROWS
told = {}
for row in ROWS:
    life = Life(row.body)
    life.finish(row.pick)
    told[row.body.__name__] = life.asked
print(json.dumps(told))
"""


@pytest.mark.process
@pytest.mark.parametrize("seed", ["1", "4242"])
def test_a_fresh_process_with_another_hash_seed_asks_the_same(seed: str) -> None:
    """Order of sets, addresses and the hash of text differ there; what is asked does not."""
    done = subprocess.run(
        [sys.executable, "-c", TELL],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {row.body.__name__: lived(row).asked for row in ROWS}


async def _hashes(ctx: Any) -> list[int]:
    """The hashes of tasks and futures, which say where they are in a set."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(50)]
    found = [
        asyncio.current_task(),
        *tasks,
        *(loop.create_future() for _ in range(50)),
        asyncio.gather(*tasks),
    ]
    await asyncio.gather(*tasks)
    return [hash(one) for one in found]


def _of_seed(seed: str) -> list[int]:
    life = Life(_hashes, msgspec.structs.replace(birth({}), seeds=[Seed(0, seed)]))
    return list(life.finish())


def test_tasks_of_two_sessions_have_no_hash_in_common() -> None:
    """asyncio keeps the tasks of all sessions in one set: those of equal creation numbers must not
    collide there.
    """
    seeds = ["0123456789abcdef01234567", "fedcba9876543210fedcba98", "5eed0f1a57ab1e0000000000"]
    found = [_of_seed(seed) for seed in seeds]
    assert len({one for some in found for one in some}) == sum(map(len, found)) == 3 * 102


def test_tasks_of_one_session_have_the_same_hashes_in_every_life() -> None:
    assert _of_seed("0123456789abcdef01234567") == _of_seed("0123456789abcdef01234567")
