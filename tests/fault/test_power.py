"""The power is cut: what was acknowledged as durable at its level is there, and the database is
sound.

A process does its work under a recorder (`power.py`). Then the power is cut at moments of that
record, and of what was not synced by then nothing is there, or everything, or any part of it.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, database
from tests.fault.power import ROOT, SHARED, Disk, Event, compiled, is_memory, recorded
from tests.fault.power_victim import finished

LEVELS = ("process", "mixed", "power")
#: What lasts when it is acknowledged, by level. What came before it lasts with it. An effect that
#: must not be repeated is marked before it begins, at each level.
LASTING = {
    "process": {"closed", "never"},
    "mixed": {"closed", "never", "safe", "effect", "person"},
    "power": {"closed", "never", "safe", "effect", "person", "model"},
}
DATABASE = "new/deep/app.db"


class Told(NamedTuple):
    """One line of the process: `ack`, `did` or `closed`; what it is about; the session's key; the
    word.
    """

    what: str
    about: str
    name: str
    word: str


class Tape(NamedTuple):
    """A life of a process at one level, as it was recorded."""

    root: Path
    events: list[Event]
    inode: str


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A folder on a disk: what is recorded is what SQLite does there."""
    (ROOT / "build").mkdir(exist_ok=True)
    places = [place for place in (ROOT / "build", Path("/var/tmp"), Path("/tmp")) if place.is_dir()]
    place = next((place for place in places if not is_memory(place)), None)
    assert place is not None, (
        f"none of {', '.join(map(str, places))} is on a disk: mount one of them on a disk"
    )
    folder = Path(tempfile.mkdtemp(prefix="power-", dir=place))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def library(disk: Path) -> Path:
    return compiled(disk)


@pytest.fixture(scope="module")
def tapes(disk: Path, library: Path) -> dict[str, Tape]:
    made = {}
    for level in LEVELS:
        root = disk / level
        root.mkdir()
        events = recorded(library, root, "tests.fault.power_victim", str(root / DATABASE), level)
        made[level] = Tape(root, events, str((root / DATABASE).stat().st_ino))
    return made


def told(event: Event) -> Told:
    what, *more = event.data.decode().split()
    return Told(what, *more)


def needed(said: list[Told], level: str) -> list[Told]:
    """What has to be there: the last that lasts by its level, and all that came before it."""
    ends = [
        n
        for n, one in enumerate(said)
        if (one.what if one.what == "closed" else one.about) in LASTING[level]
    ]
    return [one for one in said[: ends[-1] + 1] if one.what != "closed"] if ends else []


def cuts(events: list[Event], dice: random.Random, more: int) -> list[int]:
    """After how many events the power goes: when something was said, around each sync, and at other
    moments.
    """
    found = {n for n, event in enumerate(events) if event.kind in "AS"}
    found |= {n + 1 for n in found}
    return sorted(found | {dice.randrange(len(events)) for _ in range(more)})


def images(disk: Disk, dice: random.Random, ways: int) -> Iterator[dict[str, bytes]]:
    """What may be left after a cut."""
    yield disk.left(None, data=0, names=0)
    yield disk.left(None, data=0, names=1)
    yield disk.left(None, data=1, names=0)
    yield disk.left(None, data=1, names=1)
    for _ in range(ways):
        share = dice.choice((0.1, 0.5, 0.9))
        yield disk.left(dice, data=share, names=dice.choice((0.5, 1.0)))


def laid(image: dict[str, bytes], folder: Path) -> Path:
    """Put the files of an image into an empty folder; the path of the database, which may not be
    there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in image.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / DATABASE


async def found(path: Path) -> set[str]:
    """The words that are in a database, and `mark NAME` for each effect that has begun; it is
    sound.
    """
    if not path.exists():
        return set()
    store = SQLiteStore(path)
    await store.open()
    try:
        assert await store.maintenance.verify() == []
    finally:
        await store.close()
    with closing(sqlite3.connect(path)) as connection:
        run = connection.execute
        kept = run(
            "SELECT birth FROM session UNION ALL SELECT answers FROM journal UNION ALL SELECT"
            " body FROM letter"
            " UNION ALL SELECT body FROM item"
        )
        words = {word for (text,) in kept for word in re.findall(r"word\d{4}(?:-done)?", str(text))}
        marks = run("SELECT s.key FROM effect e JOIN session s ON s.ref = e.session").fetchall()
    return words | {f"mark {key}" for (key,) in marks}


def missing(need: list[Told], there: set[str]) -> list[Told]:
    """What is needed and is not there. An effect that began has its mark, or its outcome."""
    return [
        one
        for one in need
        if one.word not in there
        or (one.what == "did" and not {f"mark {one.name}", f"{one.word}-done"} & there)
    ]


async def cut(tape: Tape, level: str, seed: int, folder: Path, *, more: int, ways: int) -> int:
    """Cut the power again and again; how many different disks were looked at."""
    dice, disk, said, done = random.Random(seed), Disk(tape.root), list[Told](), 0
    seen: dict[int, set[str]] = {}
    for n in cuts(tape.events, dice, more):
        for event in tape.events[done:n]:
            disk.do(event)
            if event.kind == "A":
                said.append(told(event))
        done = n
        for image in images(disk, dice, ways):
            id = hash(frozenset(image.items()))
            if id not in seen:
                seen[id] = await found(laid(image, folder))
            assert missing(needed(said, level), seen[id]) == [], (
                f"power lost after event {n}, seed {seed}"
            )
    return len(seen)


@pytest.fixture
def one_inode(tapes: dict[str, Tape], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A file is not another one because the power was away; here its image is."""
    inodes = {level: tape.inode for level, tape in tapes.items()}
    monkeypatch.setattr(
        database, "_inode", lambda path: next(inodes[part] for part in path.parts if part in inodes)
    )
    yield


@pytest.mark.parametrize("level", LEVELS)
async def test_what_was_acknowledged_survives_power_loss(
    tapes: dict[str, Tape], one_inode: None, tmp_path: Path, level: str
) -> None:
    """Whenever the power goes and whatever of the unsynced reached the disk: what lasts at this
    level is there.
    """
    looked = await cut(
        tapes[level], level, random.randrange(2**32), tmp_path / level, more=20, ways=1
    )
    assert looked >= 100, looked


@pytest.mark.soak
@pytest.mark.parametrize("level", LEVELS)
async def test_power_loss_at_every_moment(
    tapes: dict[str, Tape], one_inode: None, tmp_path: Path, level: str
) -> None:
    """The same after each event, with more of the ways in which unsynced writes are lost."""
    tape = tapes[level]
    await cut(
        tape, level, random.randrange(2**32), tmp_path / level, more=20 * len(tape.events), ways=6
    )


@pytest.mark.parametrize("level", LEVELS)
async def test_sessions_resume_after_power_loss(
    tapes: dict[str, Tape], one_inode: None, tmp_path: Path, level: str
) -> None:
    """At any moment, with nothing of what was not synced: all that is there can be answered and
    comes to its end.
    """
    tape, dice, disk, done = tapes[level], random.Random(), Disk(tapes[level].root), 0
    for n in sorted({len(tape.events), *(dice.randrange(len(tape.events)) for _ in range(4))}):
        for event in tape.events[done:n]:
            disk.do(event)
        done = n
        path = laid(disk.left(None, data=0, names=0), tmp_path / level)
        async with Runtime(SQLiteStore(path)) as runtime:
            ended = await finished(runtime)
            assert await runtime.archive.verify() == []
    assert ended == 10 or level != "power", ended


@pytest.mark.parametrize("level", LEVELS)
def test_the_record_is_complete(tapes: dict[str, Tape], level: str) -> None:
    """Repeated to its end without a cut, it is what is in the files: nothing the process wrote was
    missed.
    """
    tape = tapes[level]
    disk = Disk(tape.root)
    for event in tape.events:
        disk.do(event)
    there = {
        path: data
        for path, data in disk.left(None, data=1, names=1).items()
        if not path.endswith(SHARED)
    }
    real = {
        str(path.relative_to(tape.root)): path for path in tape.root.rglob("*") if path.is_file()
    }
    assert there == {
        name: path.read_bytes() for name, path in real.items() if not name.endswith(SHARED)
    }
    assert set(there) == {DATABASE, f"{DATABASE}-wal"}


@pytest.mark.parametrize(("level", "costs"), [("process", 0), ("mixed", 0), ("power", 1)])
def test_a_models_answer_waits_for_the_disk_at_power_alone(
    tapes: dict[str, Tape], level: str, costs: int
) -> None:
    """Two answers of a model, one after the other, have a sync between them at "power", and none at
    the others.
    """
    syncs, between, last = 0, [], Told("", "", "", "")
    for event in tapes[level].events:
        if event.kind == "S":
            syncs += 1
        elif event.kind == "A":
            line = told(event)
            if line[:3] == last[:3] == ("ack", "model", "first-alone"):
                between.append(syncs)
            last, syncs = line, 0
    assert len(between) == 3
    assert [min(n, 1) for n in between] == [costs] * 3, between


def test_a_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    """The simulated disk itself: names, bytes and sectors last from their sync on, and not
    before.
    """
    disk = Disk(tmp_path)
    at = str(tmp_path).encode()
    disk.do(Event("O", 3, 1, at + b"/a"))
    disk.do(Event("W", 3, 0, b"old" * 400))
    disk.do(Event("S", 3, 0, b""))
    assert disk.left(None, data=1, names=0) == {}
    disk.do(Event("O", 4, 0, at + b"/"))
    disk.do(Event("S", 4, 0, b""))
    disk.do(Event("W", 3, 0, b"new" * 400))
    disk.do(Event("T", 3, 600, b""))
    disk.do(Event("U", -1, 0, at + b"/a"))
    assert disk.left(None, data=0, names=0) == {"a": b"old" * 400}
    assert disk.left(None, data=1, names=0) == {"a": (b"new" * 400)[:600]}
    assert disk.left(None, data=1, names=1) == {}
    ways = {disk.left(random.Random(seed), data=0.5, names=0)["a"] for seed in range(200)}
    old, new = b"old" * 400, b"new" * 400
    assert {old[:512] + new[512:600], new[:512] + old[512:], new, old} <= ways
