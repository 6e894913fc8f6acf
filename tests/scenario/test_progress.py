"""Whoever waits for long work hears how far it is, up to the end."""

import sqlite3
from pathlib import Path

import pytest

import everhold
from everhold.stores.sqlite.database import copy_database


@everhold.program
async def asks(ctx: everhold.Context) -> str:
    return await ctx.llm("Anything?")


@everhold.program
async def parent(ctx: everhold.Context) -> str:
    return await ctx.spawn(asks())


class Heard(list[tuple[int, int]]):
    """What was told of some work."""

    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))

    def rises_to_the_end(self, *, within: float = 0.0) -> bool:
        parts = [done / total for done, total in self]
        return parts == sorted(parts) and 1.0 - within <= parts[-1] <= 1.0


@pytest.fixture
def heard() -> Heard:
    return Heard()


async def test_export_counts_sessions_and_the_children_it_meets(
    tmp_path: Path, heard: Heard
) -> None:
    async with everhold.open("memory://") as runtime:
        parents = [(await runtime.start(parent(), wait=0)).session_id for _ in range(2)]
        await runtime.archive.export(tmp_path / "out.jsonl", parents, progress=heard)
    assert heard == [(1, 3), (2, 3), (3, 4), (4, 4)]


async def test_import_counts_both_its_looks_at_the_file(tmp_path: Path, heard: Heard) -> None:
    async with everhold.open("memory://", llm=["a"] * 5) as runtime:
        for _ in range(5):
            await runtime.run(asks())
        await runtime.archive.export(tmp_path / "out.jsonl")
    async with everhold.open("memory://") as there:
        await there.archive.import_(tmp_path / "out.jsonl", progress=heard)
    assert len(heard) == 10
    assert heard.rises_to_the_end(within=0.05)  # the last line of the file belongs to no session


@pytest.mark.process
async def test_check_tells_of_each_session_of_a_database_and_of_a_file(
    tmp_path: Path, heard: Heard
) -> None:
    async with everhold.open(tmp_path / "app.db") as runtime:
        for _ in range(3):
            await runtime.start(asks())
        await runtime.archive.check(progress=heard)
        assert heard == [(0, 3), (1, 3), (2, 3)]
        heard.clear()
        await runtime.archive.export(tmp_path / "out.jsonl")
        await runtime.archive.check(file=tmp_path / "out.jsonl", progress=heard)
    assert len(heard) == 3
    assert heard.rises_to_the_end(within=0.05)


async def test_sweep_and_verify_tell_of_each_session(heard: Heard) -> None:
    async with everhold.open("memory://", llm=["a", "b"]) as runtime:
        for _ in range(2):
            await runtime.run(asks())
        await runtime.archive.verify(progress=heard)
        assert heard == [(1, 2), (2, 2)]
        heard.clear()
        assert len((await runtime.archive.gc(keep_last=0, progress=heard)).deleted) == 2
    assert heard == [(0, 2), (1, 2)]


def test_a_copy_is_of_one_moment_though_others_write_meanwhile(
    tmp_path: Path, heard: Heard
) -> None:
    """Each time it tells how far it is, somebody writes; it ends, and has nothing of that."""
    source = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    source.execute("PRAGMA journal_mode = WAL")
    source.execute("CREATE TABLE t (x)")
    source.execute("INSERT INTO t SELECT hex(zeroblob(500000)) FROM (VALUES (1), (2), (3), (4))")

    def told(done: int, total: int) -> None:
        heard(done, total)
        source.execute("INSERT INTO t VALUES ('later')")

    copy_database(tmp_path / "app.db", tmp_path / "copy.db", told)
    source.close()
    copied = sqlite3.connect(tmp_path / "copy.db")
    assert copied.execute("SELECT count(*) FROM t").fetchone() == (4,)
    copied.close()
    assert len(heard) > 1
    assert heard.rises_to_the_end()
