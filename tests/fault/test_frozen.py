"""Old data opens: every database that was ever frozen can be read, answered, finished and verified.

The files in tests/data were made by `tools/freeze.py` when their format was the present one.
"""

import asyncio
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from everhold.core.intake import IntakeItem, ItemKind
from everhold.core.lease import LeaseOwner
from everhold.core.query import Kind
from everhold.ports.attachment import Attachment
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.stores.sqlite.database import load_migrations
from everhold.testing.clock import ManualClock
from everhold.testing.conformance.harness import list_ready
from tests.fault import house

DATA = Path(__file__).resolve().parents[1] / "data"
FROZEN = sorted(DATA.glob("format-*.db"))

STATES = {
    "tree-0": "running",  # an answer and a signal wait in its intake
    "tree-1": "running",
    "tree-2": "paused",
    "tree-3": "paused",
    "tree-4": "paused",
    "tree-5": "completed",
    "fork": "paused",
    "brittle": "failed",
    "sleeper": "paused",
    "stump": "cancelled",
}
#: The formats without failed attempts.
BEFORE_ATTEMPTS = tuple(f"format-{n}" for n in range(1, 6))


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path))


def test_the_present_format_is_frozen() -> None:
    """There is a frozen database of every format up to the present one, each under 300 KB."""
    assert [path.stem for path in FROZEN] == [
        f"format-{n}" for n in range(1, len(load_migrations()) + 1)
    ]
    assert all(path.stat().st_size <= 300_000 for path in FROZEN)


async def test_a_frozen_database_is_sound_and_reads_as_it_was_written(frozen: Path) -> None:
    """Nothing is wrong with it, every session replays, and states, values and letters are what they
    were.
    """
    assert await house.verdict(frozen) == ""
    found = await house.contents(frozen)
    sessions = [entry for entry in found.values() if isinstance(entry, tuple) and len(entry) == 3]
    states = STATES if frozen.stem in BEFORE_ATTEMPTS else {**STATES, "climber": "paused"}
    assert {birth.key: str(head.state) for birth, head, _ in sessions if birth.key} == states
    letters = {
        birth.key: [letter.kind for letter in record.letters] for birth, _, record in sessions
    }
    assert (letters["tree-0"], letters["tree-1"]) == (["answer"], ["answer", "signal"])
    assert found["words", "oak 5"] == ([{"first": "bark 5"}], 1)
    [[_, _, finished]] = [entry for entry in sessions if entry[0].key == "tree-5"]
    outcome = finished.deliveries[-1].notes.outcome.value
    assert outcome["said"] == ["bark 5", "root 5", "green 5"]
    assert (outcome["n"][1], outcome["approved"], outcome["signal"]) == (42, True, {"force": 5})


async def test_attachments_of_a_frozen_database_are_read(frozen: Path) -> None:
    """From format 2 on there is one; what was made before can keep some too."""
    store = SQLiteStore(frozen)
    await store.open()
    try:
        session_id = await store.find("tree-5")
        found = [
            (await store.attachment(session_id, made.id))[1]
            for made in await store.attachments(session_id)
        ]
        assert found == ([] if frozen.stem == "format-1" else [b"a leaf"])
        made = Attachment(sha256(b"new").hexdigest(), 3, "text/plain")
        await store.attach(session_id, made, b"new", house.DAWN)
        assert await store.attachment(session_id, made.id) == (made, b"new")
    finally:
        await store.close()


async def test_what_waits_in_a_frozen_database_still_waits(frozen: Path) -> None:
    """From format 3 on there are intakes and duties; what was made before can have some too."""
    store = SQLiteStore(frozen)
    store.use_clock(lambda: house.DAWN + 100)
    await store.open()
    try:
        session_id = await store.find("tree-2")
        old = frozen.stem in ("format-1", "format-2")
        found = await store.intake(session_id, lambda intake: [*intake.items.values()], whole=True)
        states = (
            []
            if old
            else [("rain-1", "waiting", 1), ("rain-2", "waiting", 0), ("rain-3", "cancelled", 0)]
        )
        assert [(item.key, item.state, item.fence) for item in found] == states
        assert await store.duties("weather") == ([] if old else [house.DUTY])
        assert await list_ready(store, 10) == ([] if old else [session_id])
        taken = await store.intake(
            session_id, lambda intake: intake.take(LeaseOwner("w-2", "1"), "t-2", 10.0)
        )
        assert taken.lease.generation == (1 if old else 2)
        item = IntakeItem("i-9", ItemKind.INPUT, {"content": "new"}, "rain-9")
        assert (
            await store.intake(session_id, lambda intake: intake.enqueue(item), named=["rain-9"])
        ).new
        assert await store.maintenance.verify() == []
    finally:
        await store.close()


@pytest.mark.parametrize(
    "path", [one for one in FROZEN if one.stem not in BEFORE_ATTEMPTS], ids=lambda path: path.stem
)
async def test_a_failed_attempt_in_a_frozen_database_is_read(path: Path, tmp_path: Path) -> None:
    """A call that waits for its next attempt makes it, though it may not be repeated."""
    clock = ManualClock(house.DAWN + 60)  # half a minute before the next attempt
    async with Runtime(SQLiteStore(Path(shutil.copy(path, tmp_path))), clock=clock) as runtime:
        assert "attempt 1 of 3 failed" in (await runtime.explain("climber")).because[0]
        clock.advance(60)
        assert (await runtime.wait("climber")).result == "up"


async def test_a_frozen_database_can_be_answered_and_finished(frozen: Path) -> None:
    """Every session in it goes on to its end, timers and kept letters included, and the file stays
    sound.
    """
    clock = ManualClock(house.DAWN + 100)
    async with Runtime(SQLiteStore(frozen), clock=clock) as runtime:
        for _ in range(2000):
            await asyncio.sleep(0.01)
            asked = [query for query in await runtime.inbox() if query.kind is not Kind.INPUT]
            for query in asked:
                await runtime.answer(query, True if query.kind is Kind.APPROVAL else "at last")
            signals = await runtime.inbox(kind="signal")
            for query in signals:
                await runtime.signal(query, query.name, "at last")
            if not asked and not signals and not await runtime.sessions(state="running"):
                break
        clock.advance(4000)
        for _ in range(5000):
            if not await runtime.sessions(state=["running", "paused"]):
                break
            await asyncio.sleep(0.01)
        assert (await runtime.status(await runtime.store.find("sleeper"))).result == "too late"
        fork = await runtime.status(await runtime.store.find("fork"))
        assert fork.result["said"] == ["other bark", "other root", "at last"]
        kept = await runtime.status(await runtime.store.find("tree-1"))
        assert (kept.result["said"][1], kept.result["signal"]) == ("kept for tree-1", "early")
        assert await runtime.archive.verify() == []


def test_the_views_of_a_frozen_database(frozen: Path) -> None:
    """The documented views can be read by anybody's SQLite."""
    with closing(sqlite3.connect(frozen)) as connection:
        counts = {
            view: connection.execute(f"SELECT count(*) FROM {view}").fetchone()[0]
            for view in ("sessions_v", "queries_v", "answers_v", "usage_v")
        }
        completed = connection.execute(
            "SELECT result FROM sessions_v WHERE key = 'tree-5'"
        ).fetchone()
    sessions = 15 if frozen.stem in BEFORE_ATTEMPTS else 16
    assert counts["sessions_v"] == counts["usage_v"] == sessions
    assert counts["queries_v"] > counts["answers_v"] > 20
    assert "green 5" in completed[0]
