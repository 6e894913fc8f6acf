"""A process that dies before or after any commit loses nothing that was acknowledged and repeats
nothing.

The story in `story.py` is told once undisturbed. Then, for each of its commits, by a process that
dies before that commit lands, and by one that dies after it; another process goes on. The end is
compared record by record.

Between one commit and the next nothing is written: `make test` has one side of each in turn, `make
soak` the other.
"""

import copy
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.stores.sqlite import SQLiteStore
from everhold.testing.faults import CRASHED, Nursery
from tests.fault import story

PARTS = 8  # the crash points are dealt out to so many tests, which may run side by side


class Undisturbed:
    """The story without a crash."""

    def __init__(self, nursery: Nursery, folder: Path) -> None:
        path = folder / "story.db"
        code, lines = nursery.run("play", path=str(path), strict=True)
        assert code == 0
        self.nursery = nursery
        self.records = story.records(path)
        self.commits = [json.loads(line) for line in lines]
        self.effects = Path(f"{path}.done").read_text().splitlines()
        [never] = [
            row[0]
            for row in self.records["plan"][2]
            for query in row[2]
            if query.get("rerun") == "never"
        ]
        [self.never] = [query["q"] for query in self.records["plan"][2][never][2]]

    def window(self) -> set[tuple[int, str]]:
        """The crash points between the mark of the call that is never repeated and its outcome."""
        [begun] = [number for number, marks, _, _ in self.commits if self.never in marks]
        [over] = [
            number
            for number, _, closed, _ in self.commits
            if begun < number and self.never in closed
        ][:1]
        inside = {(begun, "after"), (over, "before")}
        return inside | {(n, when) for n in range(begun + 1, over) for when in ("before", "after")}

    def expected(self, *, unknown: bool) -> dict[str, list]:
        """The records as they should be; with `unknown`, nobody learned what became of that one
        call.
        """
        records = copy.deepcopy(self.records)
        if unknown:
            journal = records["plan"][2]
            for row in journal:
                for answer in row[1]:
                    if answer["q"] == self.never:
                        del answer["value"]
                        answer["error"] = {
                            "code": "outcome_unknown",
                            "message": "tests.fault.story:done",
                        }
            journal[-1][3]["outcome"]["value"]["never"] = "unknown"
        return records


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    with Nursery("tests.fault.story") as nursery:
        yield Undisturbed(nursery, tmp_path_factory.mktemp("undisturbed"))


def test_the_story_has_what_it_should(undisturbed: Undisturbed) -> None:
    """The story makes at least 60 commits, ends every session but one branch, and does each effect
    once.
    """
    assert len(undisturbed.commits) >= 60
    states = {
        name: rows[1][0] for name, rows in undisturbed.records.items() if name not in story.TABLES
    }
    assert states == {
        "tally-0": "completed",
        "tally-1": "completed",
        "plan": "completed",
        "child of plan": "completed",
        "branch": "paused",
        "doomed": "cancelled",
        "child of doomed": "cancelled",
        "clumsy": "completed",
    }
    assert sorted(undisturbed.effects) == ["ask", "async", "never", "safe"]
    assert undisturbed.records["value"][1] == ("default", "steps", "[25]", 23)


def test_telling_it_again_changes_nothing(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """A second process that goes through the whole story finds it told, and commits nothing."""
    path = tmp_path / "story.db"
    for expected in (len(undisturbed.commits), 0):
        code, lines = undisturbed.nursery.run("play", path=str(path))
        assert (code, len(lines)) == (0, expected)
        assert story.records(path) == undisturbed.records


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("first", ["before", pytest.param("after", marks=pytest.mark.soak)])
async def test_a_crash_before_and_after_every_commit(
    undisturbed: Undisturbed, tmp_path: Path, first: str, part: int
) -> None:
    """Whichever commit a process dies at, the next one ends with the same records as if nobody had
    died.
    """
    window = undisturbed.window()
    sides = ("before", "after") if first == "before" else ("after", "before")
    points = [(n, sides[place % 2]) for place, (n, *_) in enumerate(undisturbed.commits)]
    for n, when in points[part::PARTS]:
        folder = tmp_path / f"{n}-{when}"
        folder.mkdir()
        await survives(undisturbed, folder / "story.db", n, when, unknown=(n, when) in window)


async def survives(
    undisturbed: Undisturbed, path: Path, n: int, when: str, *, unknown: bool
) -> None:
    point = f"{when} commit {n}"
    assert undisturbed.nursery.run("play", path=str(path), at=n, when=when)[0] == CRASHED, point
    assert undisturbed.nursery.run("play", path=str(path))[0] == 0, point
    assert story.records(path) == undisturbed.expected(unknown=unknown), point
    effects = Path(f"{path}.done").read_text().splitlines()
    assert set(effects) >= {"ask", "async", "safe"}, point
    assert len(effects) <= len(undisturbed.effects) + 1, point
    assert effects.count("never") <= 1 if unknown else effects.count("never") == 1, point
    store = SQLiteStore(path)
    await store.open()
    assert await store.maintenance.verify() == [], point
    await store.close()


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)], ids=["some", "all"])
async def test_a_second_crash_in_the_recovery(
    undisturbed: Undisturbed, tmp_path: Path, every: int
) -> None:
    """A process that dies at its first or second commit after another's death leaves the same
    records too.
    """
    marked = [number for number, marks, _, _ in undisturbed.commits if marks]
    window = undisturbed.window()
    deaths = list(itertools.product(marked, ((1, "before"), (1, "after"), (2, "before"))))
    for n, (again, when) in random.sample(deaths, len(deaths) // every):
        path = tmp_path / f"{n}-{again}-{when}" / "story.db"
        path.parent.mkdir()
        play = undisturbed.nursery.run
        assert play("play", path=str(path), at=n, when="after")[0] == CRASHED
        assert play("play", path=str(path), at=again, when=when)[0] == CRASHED
        assert play("play", path=str(path))[0] == 0
        assert story.records(path) == undisturbed.expected(unknown=(n, "after") in window), (
            n,
            again,
            when,
        )


def test_a_call_that_kills_its_process(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """After three processes died over it a session has failed as poison, and the fourth lives."""
    path = str(tmp_path / "poison.db")
    lives = [undisturbed.nursery.run("take_poison", path=path) for _ in range(4)]
    assert [code for code, _ in lives] == [CRASHED, CRASHED, CRASHED, 0]
    assert lives[3][1] == ["failed 3 processes died while they ran this session"]
