"""A damaged file is found out, or harmless; it is never read as something else."""

import asyncio
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import everhold
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.faults import Nursery
from tests.fault import house


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("furnished") / "house.db"
    asyncio.run(house.furnish(path))
    return path


async def test_the_furnished_database_is_sound(furnished: Path) -> None:
    """What is damaged below is whole before: sessions in every state, a fork, children, letters,
    values.
    """
    found = await house.contents(furnished)
    states = {
        str(entry[1].state)
        for entry in found.values()
        if isinstance(entry, tuple) and len(entry) == 3
    }
    assert states == {"running", "paused", "completed", "failed", "cancelled"}
    assert await house.verdict(furnished) == ""


@pytest.mark.parametrize(
    ("flips", "aimed"), [(500, True), (150, False)], ids=["written", "anywhere"]
)
def test_bit_flips(furnished: Path, tmp_path: Path, flips: int, aimed: bool) -> None:
    """Each of 500 flipped bits is found by `verify`, or everything reads as before; Python survives
    them all.
    """
    seed = random.randrange(2**32)
    with Nursery("tests.fault.house") as nursery:
        code, lines = nursery.run(
            "flip", path=str(furnished), folder=str(tmp_path), flips=flips, seed=seed, aimed=aimed
        )
    assert code == 0, (seed, lines[-1:])
    assert [line for line in lines if not line.startswith(("found", "harmless"))] == [], seed
    assert len(lines) == flips


async def test_a_damaged_entry_of_a_partial_index_is_found(furnished: Path, tmp_path: Path) -> None:
    """SQLite's own check does not read the headers of index entries; `verify` does."""
    whole = furnished.read_bytes()
    with closing(sqlite3.connect(furnished)) as connection:
        indexes = connection.execute(
            "SELECT name, rootpage FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
        ).fetchall()
        [[size]] = connection.execute("PRAGMA page_size")
    unseen = []
    for name, page in indexes:
        start = (page - 1) * size
        entries = int.from_bytes(whole[start + 3 : start + 5])
        for entry in range(entries):
            cell = start + 8 + 2 * entry
            header = start + int.from_bytes(whole[cell : cell + 2]) + 1
            for bit in range(8):
                broken = bytearray(whole)
                broken[header] ^= 1 << bit
                path = tmp_path / "broken.db"
                path.write_bytes(broken)
                if not await house.verdict(path):
                    unseen.append((name, entry, bit))
    assert {"head_mail", "head_parked"} <= {name for name, _ in indexes}
    assert unseen == []


def test_truncation(furnished: Path, tmp_path: Path) -> None:
    """A file cut off anywhere is refused or found by `verify`; an empty one is a new one."""
    with Nursery("tests.fault.house") as nursery:
        code, lines = nursery.run("cut", path=str(furnished), folder=str(tmp_path))
    assert code == 0
    assert [line for line in lines if not line.startswith("found")] == ["0 harmless"]
    assert len(lines) > 60


TABLES = (
    "session",
    "head_2",
    "journal",
    "notice",
    "effect",
    "letter",
    "value",
    "lease",
    "item",
    "duty",
    "label",
)
#: Which row of a table is the last one, where it has no number of its own.
LAST = {
    "item": "seq = (SELECT max(seq) FROM item)",
    "duty": "id = (SELECT max(id) FROM duty)",
    "label": "session = (SELECT max(session) FROM label)",
}


async def test_a_changed_value_is_found(furnished: Path, tmp_path: Path) -> None:
    """Whatever column of whatever row is given another value, `verify` finds it."""
    unseen = []
    marked = tmp_path / "marked.db"
    shutil.copy(furnished, marked)
    await house.mark(marked)
    assert await house.verdict(marked) == ""
    with closing(sqlite3.connect(furnished)) as connection:
        columns = [
            (table, column[1])
            for table in TABLES
            for column in connection.execute(f"PRAGMA table_info({table})")
        ]
    for table, column in columns:
        path = tmp_path / "changed.db"
        shutil.copy(marked, path)
        with closing(sqlite3.connect(path)) as connection:
            change = (
                f"CASE WHEN typeof({column}) = 'text' THEN {column} || '!' ELSE"
                f" coalesce({column}, 0) + 1 END"
            )
            last = LAST.get(table, f"rowid = (SELECT max(rowid) FROM {table})")
            connection.execute(f"UPDATE {table} SET {column} = {change} WHERE {last}")
            connection.commit()
        if not await house.verdict(path):
            unseen.append((table, column))
    # A hint that costs one look; an order that SQLite itself keeps; how long a lease lives, which
    # each renewal says anew.
    assert unseen == [
        ("head_2", "asking"),
        ("letter", "id"),
        ("lease", "expires_at"),
        ("lease", "released"),
    ]


async def test_a_missing_row_is_found(furnished: Path, tmp_path: Path) -> None:
    """A row that is gone from a session's tables leaves a gap or a loose end."""
    for table in ("session", "head_2", "journal", "letter", "lease"):
        path = tmp_path / "missing.db"
        shutil.copy(furnished, path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                f"DELETE FROM {table} WHERE rowid = (SELECT min(rowid) FROM {table})"
            )
            connection.commit()
        assert await house.verdict(path), table


async def test_damage_is_told_to_whoever_reads(furnished: Path, tmp_path: Path) -> None:
    """A session whose journal is damaged is refused as `store_damaged`; its neighbours can be
    read.
    """
    path = tmp_path / "damaged.db"
    shutil.copy(furnished, path)
    with closing(sqlite3.connect(path)) as connection:
        [[victim]] = connection.execute("SELECT id FROM session WHERE key = 'tree-3'")
        connection.execute(
            "UPDATE journal SET answers = replace(answers, 'bark', 'dark')"
            " WHERE session = (SELECT ref FROM session WHERE key = 'tree-3')"
        )
        connection.commit()
    store = SQLiteStore(path)
    await store.open()
    with pytest.raises(everhold.EverholdError) as refused:
        await store.load(victim)
    assert refused.value.code == "store_damaged"
    assert (await store.load(await store.find("tree-4"))).head.n > 0
    await store.close()


@everhold.program
async def thrice(ctx: everhold.Context) -> list[object]:
    return [await ctx.llm("one"), await ctx.llm("two"), await ctx.receive("three")]


@pytest.mark.parametrize(
    "gone", ["1", "n = 0", "n = 1", "n = 2"], ids=["all", "first", "middle", "last"]
)
async def test_a_session_with_a_gap_does_not_begin_again(tmp_path: Path, gone: str) -> None:
    """A page lost from the journal or its index leaves whole rows out: nobody is asked twice,
    nothing is written.
    """
    path = tmp_path / "gap.db"
    async with everhold.open(path) as runtime:
        session_id = (await runtime.start(thrice())).session_id
        for _ in range(2):
            await runtime.answer(session_id, "yes")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DELETE FROM journal WHERE {gone}")
        connection.commit()
        before = connection.execute("SELECT * FROM head_2").fetchall()
    async with everhold.open(path) as runtime:
        for verb, given in (("cancel", []), ("signal", ["three", 3]), ("fork", [])):
            with pytest.raises(everhold.EverholdError) as refused:
                await getattr(runtime, verb)(session_id, *given)
            assert refused.value.code == "store_damaged"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM head_2").fetchall() == before
