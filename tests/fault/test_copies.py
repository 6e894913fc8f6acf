"""Copies of a database file: one that was made without its write-ahead log is told apart from all
others.
"""

import os
import sqlite3
import subprocess
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

import everhold
from everhold.ports.store import StoreProblem
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, database
from everhold.stores.sqlite.database import copy_database, load_migrations
from everhold.testing.faults import Nursery
from tests.fault.test_file import unprivileged
from tests.fault.victim import ladder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@asynccontextmanager
async def in_use(path: Path):
    """A database with a session, of which the process that has it open has moved nothing into the
    file yet.
    """
    async with Runtime(SQLiteStore(path), recover=False) as runtime:
        await runtime.start(ladder(rungs=2))
        assert path.with_name("app.db-wal").stat().st_size > 0
        yield


def cp(source: Path, target: Path, *, logged: bool) -> None:
    """Copy as people do it: by a process of its own, with the write-ahead log or without."""
    for end in ("", "-wal") if logged else ("",):
        subprocess.run(["cp", f"{source}{end}", f"{target}{end}"], check=True)


async def verified(path: Path) -> tuple[list[StoreProblem], int]:
    """What `verify` says, and how many sessions there are."""
    async with Runtime(SQLiteStore(path), recover=False) as runtime:
        return await runtime.archive.verify(), len(await runtime.sessions())


async def test_a_copy_without_its_log_is_warned_of(path: Path, tmp_path: Path) -> None:
    """Steps that were only in the log are missing: `verify` says so, each time, and what to do
    instead.
    """
    target = tmp_path / "copy.db"
    async with in_use(path):
        cp(path, target, logged=False)

    for _ in range(2):
        (warning,), sessions = await verified(target)
        assert (warning.code, warning.warning, sessions) == ("copied_without_log", True, 0)
        assert "everhold db copy" in warning.detail
    assert await verified(path) == ([], 1)


async def test_the_warning_stays_while_the_copy_is_in_use(path: Path, tmp_path: Path) -> None:
    """Whoever verifies later, when the copy has a log of its own, is told what the first one
    found.
    """
    target = tmp_path / "copy.db"
    async with in_use(path):
        cp(path, target, logged=False)

    async with everhold.open(target, recover=False) as runtime:
        await runtime.start(ladder(rungs=2))
        assert [one.code for one in (await verified(target))[0]] == ["copied_without_log"]


async def test_a_copy_with_its_log_is_sound(path: Path, tmp_path: Path) -> None:
    """It has everything, and is not warned of, then or later."""
    target = tmp_path / "copy.db"
    async with in_use(path):
        cp(path, target, logged=True)

    for _ in range(2):
        assert await verified(target) == ([], 1)


async def test_a_file_that_was_moved_is_the_same_file(path: Path, tmp_path: Path) -> None:
    """`mv` is not a copy."""
    async with in_use(path):
        pass
    path.rename(tmp_path / "moved.db")

    assert await verified(tmp_path / "moved.db") == ([], 1)


@pytest.mark.parametrize("suspect", [False, True], ids=["sound", "warned of"])
async def test_our_own_copy_is_sound(path: Path, tmp_path: Path, suspect: bool) -> None:
    """`everhold db copy` makes a file that knows itself; so it also settles a warning."""
    source, target = path, tmp_path / "copy.db"
    async with in_use(path):
        if suspect:
            source = tmp_path / "suspect.db"
            cp(path, source, logged=False)
            assert len((await verified(source))[0]) == 1
        copy_database(source, target)

    assert await verified(target) == ([], 0 if suspect else 1)


async def test_the_copy_that_a_migration_makes_is_sound(path: Path) -> None:
    """The file as it was before, kept beside, is not warned of."""
    async with in_use(path):
        pass
    with closing(database.connect_file(path)) as connection:
        database.prepare_database(
            connection, path, [*load_migrations(), "CREATE TABLE extra (x);\n"]
        )

    assert await verified(path.with_name(f"app.db.format-{len(load_migrations())}")) == ([], 1)


async def test_a_migration_forgets_no_warning(path: Path, tmp_path: Path) -> None:
    """A copy that misses something still does in a later format."""
    target = tmp_path / "copy.db"
    async with in_use(path):
        cp(path, target, logged=False)
    await verified(target)
    with closing(database.connect_file(target)) as connection:
        database.prepare_database(
            connection, target, [*load_migrations(), "CREATE TABLE extra (x);\n"]
        )
        assert database.is_copied_alone(connection, target, logged=True)


async def test_a_new_file_alone_has_the_tables(path: Path, tmp_path: Path) -> None:
    """A copy without the log is a database of ours, though an empty one: it is not made anew
    without a word.
    """
    async with in_use(path):
        cp(path, tmp_path / "copy.db", logged=False)

    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(load_migrations()),)
        assert connection.execute("SELECT alone FROM file").fetchall() == [(0,)]


async def test_a_database_without_an_identity_is_made_to_be_copied(
    path: Path, tmp_path: Path
) -> None:
    """Such as those that our tests keep."""
    async with in_use(path):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM file")
        connection.commit()
    cp(path, tmp_path / "copy.db", logged=False)

    assert await verified(tmp_path / "copy.db") == ([], 1)


async def look(path: str) -> None:
    """In a process without rights: print what `verify` says."""
    unprivileged()
    problems, sessions = await verified(Path(path))
    os.write(1, f"{[one.code for one in problems]} {sessions}\n".encode())


async def test_a_read_only_copy_is_read_and_warned_of(path: Path, tmp_path: Path) -> None:
    """What was found cannot be written down there, and is told all the same."""
    target = tmp_path / "copy.db"
    async with in_use(path):
        cp(path, target, logged=False)
    target.chmod(0o400)

    with Nursery("tests.fault.test_copies") as nursery:
        assert nursery.run("look", path=str(target)) == (0, ["['copied_without_log'] 0"])
