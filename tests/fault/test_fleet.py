"""A fleet at work while something goes wrong all the time: workers die every second, the server
restarts, lines break.

Whatever happens: nothing that was accepted is lost, nothing that may not be repeated is, every
input and every session comes to one end, and all of them do.
"""

import asyncio
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everhold.testing.faults import ChildProcess
from tests.fault.fleet import Fleet
from tests.fault.wire import Wire
from tests.postgres import fresh
from tools.postgres import Pooler

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("postgres")]

ERRANDS, INPUTS = 4, 2
WORKERS = 4
PACE = 0.6  # seconds that an errand takes, so that whoever is killed has some under way


def database(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'town.db'}"
    return fresh(request.getfixturevalue("postgres"), "town")


class Town(Fleet):
    """So many programs with errands, and as many conversations whose tool does one for each
    input.
    """

    def __init__(self, folder: Path, url: str, pairs: int) -> None:
        super().__init__(folder, url, "tests.fault.town_victim")
        self._pairs, self._hired = pairs, 0
        self.programs = [f"p{n}" for n in range(pairs)]
        self.inputs = {f"c{n}-{k}" for n in range(pairs) for k in range(INPUTS)}
        self.kept: set[str] = set()
        self.begin(
            *(
                {"key": key, "name": key, "count": ERRANDS, "seconds": PACE, "rerun": "never"}
                for key in self.programs
            )
        )

    def hire(self) -> ChildProcess:
        """One more worker, not waited for; every second one is on a machine of its own."""
        self._hired += 1
        where = {"host": f"far-{self._hired}", "ttl": 5.0} if self._hired % 2 else {}
        child = self._nursery.start("work", path=self.url, log=str(self.log), pace=PACE, **where)
        self._children.append(child)
        return child

    def speaker(self) -> ChildProcess:
        """A process that puts all inputs, those too that are there already."""
        return self._nursery.start(
            "speak", path=self.url, conversations=self._pairs, inputs=INPUTS, pause=0.1
        )

    def hear(self, speaker: ChildProcess) -> str:
        """Take down what a speaker said until its end; returns its last word."""
        lines = list(speaker.lines())
        speaker.close()
        self.kept |= {line.split(" ")[1] for line in lines if line.startswith("kept ")}
        return lines[-1] if lines else ""

    def settled(self) -> dict[str, Any]:
        """How the inputs stand, once none waits any more."""

        def found() -> dict[str, Any] | None:
            facts = self.folder / "facts.json"
            code, _ = self._nursery.run(
                "told", path=self.url, conversations=self._pairs, facts=str(facts)
            )
            assert code == 0
            told: dict[str, Any] = json.loads(facts.read_text())
            whole = (
                set(told["states"].values()) == {"completed"} and set(told["turns"]) >= self.inputs
            )
            return told if whole else None

        told: dict[str, Any] = self.until(found, 300.0)
        return told


def upheaval(town: Town, kills: int, dice: random.Random) -> None:
    """Kill a worker and start another every second, and now and then who speaks; then let all come
    to its end.
    """
    workers, speaker = [town.hire() for _ in range(WORKERS)], town.speaker()
    for number in range(kills):
        time.sleep(1.0)
        doomed = workers.pop(dice.randrange(WORKERS))
        doomed.kill()
        assert doomed.wait() == -9
        workers.append(town.hire())
        if number % 4 == 2:
            speaker.kill()
            town.hear(speaker)
            speaker = town.speaker()
    assert town.hear(speaker) == "rest"


def judged(town: Town) -> Counter[str]:
    """Look at all that came of it; returns how many errands had which fate."""
    results = {
        key: one.result for key, one in zip(town.programs, town.finish(town.programs), strict=True)
    }
    told = town.settled()
    begun = Counter(name for what, name, _ in town.noted() if what == "begin")
    ended = {name: pid for what, name, pid in town.noted() if what == "end"}

    assert town.kept == town.inputs, "an input was not acknowledged"
    assert {name: told["turns"].count(name) for name in town.inputs} == dict.fromkeys(
        town.inputs, 1
    )
    assert set(told["outcomes"]) == {"TurnAnswered"}
    assert set(begun.values()) == {1}, "something was done twice"
    said = {f"{key}-{n}": pid for key, result in results.items() for n, pid in enumerate(result)}
    assert len(said) == len(town.programs) * ERRANDS
    done = {name: pid for name, pid in said.items() if pid}
    assert done == {name: ended.get(name) for name in done}, (
        "an errand is said to be done, and was not"
    )
    assert set(begun) <= set(said) | town.inputs
    return Counter(
        done=len(done),
        unknown=len(said) - len(done),
        cut=len(begun) - len(ended),
        stamps=len(ended),
    )


@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.soak), "postgres"])
def test_a_worker_dies_every_second(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Four workers, 60 sessions, eight kills: no input is lost, no errand is done twice, each input
    ends once.
    """
    with Town(tmp_path, database(request, kind, tmp_path), 30) as town:
        upheaval(town, 8, random.Random())
        fates = judged(town)
    assert fates["cut"] >= 1, "nobody was killed at work"
    assert fates["done"] > fates["unknown"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_worker_dies_every_second_for_a_minute(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """The same with 500 sessions and sixty kills."""
    began = time.monotonic()
    with Town(tmp_path, database(request, kind, tmp_path), 250) as town:
        upheaval(town, 60, random.Random())
        fates = judged(town)
    assert fates["cut"] >= 10, "few were killed at work"
    assert fates["done"] > fates["unknown"]
    print(f"{kind}: 60 kills in {time.monotonic() - began:.0f} s, {dict(fates)}")


def few(count: int) -> list[dict[str, Any]]:
    return [
        {"key": f"k{n}", "name": f"e{n}", "count": 5, "seconds": 0.1, "rerun": "never"}
        for n in range(count)
    ]


def all_done_once(fleet: Fleet, count: int) -> None:
    """Every session has ended, and every errand of it was done by whom it says, once."""
    ended = fleet.finish([f"k{n}" for n in range(count)])
    results = {f"e{n}-{k}": pid for n, one in enumerate(ended) for k, pid in enumerate(one.result)}
    assert len(results) == 5 * count
    assert {(name, pid) for what, name, pid in fleet.noted() if what == "end"} == set(
        results.items()
    )
    assert Counter(name for what, name, _ in fleet.noted() if what == "begin") == dict.fromkeys(
        results, 1
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_the_server_restarts_under_workers(
    postgres: Any, tmp_path: Path, how: signal.Signals
) -> None:
    """Twice, in good order or as after a crash: the same workers go on, every errand is done once,
    none is unknown.
    """
    with Fleet(tmp_path, fresh(postgres, "town")) as fleet:
        fleet.begin(*few(16))
        for _ in range(2):
            fleet.start(concurrency=4, ttl=60.0)
        for after in (20, 60):
            fleet.until(lambda after=after: len(fleet.noted()) > after)
            postgres.restart(how)
        all_done_once(fleet, 16)


async def test_lines_break_under_workers(postgres: Any, tmp_path: Path) -> None:
    """Every line is cut twenty times while they work: every errand is done once, none is
    unknown.
    """
    url = fresh(postgres, "town")
    async with Wire(postgres.port) as wire:
        through = f"postgresql://postgres@127.0.0.1:{wire.port}/postgres?schema=town"
        with await asyncio.to_thread(Fleet, tmp_path, through) as fleet:
            await asyncio.to_thread(fleet.begin, *few(16))
            for _ in range(2):
                await asyncio.to_thread(fleet.start, concurrency=4, ttl=60.0)
            for _ in range(20):
                wire.cut()
                await asyncio.sleep(0.1)
            fleet.url = url
            await asyncio.to_thread(all_done_once, fleet, 16)


def test_workers_behind_a_pooler(postgres: Any, tmp_path: Path) -> None:
    """Through pgbouncer in transaction mode, one of three is killed: the others hear by looking,
    and all ends.
    """
    fresh(postgres)
    with Pooler(postgres) as pooler, Fleet(tmp_path, pooler.url) as fleet:
        fleet.begin(*few(12))
        doomed, *_ = [fleet.start(concurrency=4, ttl=60.0) for _ in range(3)]
        fleet.until(lambda: len(fleet.noted()) > 20)
        doomed.kill()
        doomed.wait()
        ended = fleet.finish([f"k{n}" for n in range(12)])
    assert [one.state for one in ended] == ["completed"] * 12
    assert set(Counter(name for what, name, _ in fleet.noted() if what == "begin").values()) == {1}
