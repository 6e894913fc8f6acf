"""Files that are not what they should be: refused with a sentence, and left as they were."""

import asyncio
import ctypes
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import everhold
from everhold.core.intake import IntakeItem, ItemKind
from everhold.core.lease import LeaseOwner
from everhold.core.session import SessionState
from everhold.errors import (
    BadArguments,
    BadValue,
    EverholdError,
    ReadOnlyStore,
    StoreDamaged,
    StoreNewer,
    StoreUnavailable,
    UsageError,
)
from everhold.ports.store import Change, Duty, SessionRecord, WorkerRecord
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, database
from everhold.stores.sqlite.database import connect_file, load_migrations, prepare_database
from everhold.testing.conformance.attachment import make_attachment
from everhold.testing.conformance.factories import commit_start, make_query, make_start, make_step
from everhold.testing.conformance.harness import dump_store
from everhold.testing.faults import CRASHED, Nursery, die
from tests.fault import house
from tests.fault.victim import ladder

PRESENT = len(load_migrations())
SECOND = "ALTER TABLE head_2 RENAME TO head_3;\nCREATE TABLE extra (x);\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "house.db"


async def refused(path: Path) -> EverholdError:
    """What opening the file raises."""
    with pytest.raises(EverholdError) as found:
        async with Runtime(SQLiteStore(path)):
            pass
    return found.value


# ---- somebody else's, a folder, no rights


async def test_a_database_of_another_program(tmp_path: Path) -> None:
    """Another program's database is refused before a byte of it is changed."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
    before = path.read_bytes()
    error = await refused(path)
    assert isinstance(error, StoreUnavailable) and "another program" in str(error) and error.hint
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """A text file is told to be damaged, and left alone."""
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    assert isinstance(await refused(path), StoreDamaged)
    assert path.read_text().startswith("dear diary")


async def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    """A folder is refused with a sentence."""
    assert isinstance(await refused(tmp_path), StoreUnavailable)


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A path below a file is refused with a sentence."""
    (tmp_path / "file").touch()
    assert isinstance(await refused(tmp_path / "file" / "db"), StoreUnavailable)


def unprivileged() -> None:
    """Give up the right of an administrator to write what is read-only."""
    if os.geteuid() == 0:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()) != 0:
            raise OSError(ctypes.get_errno(), "capset")


async def write(path: str) -> None:
    """In a process without rights: open, and answer; prints what it is told."""
    unprivileged()
    try:
        async with Runtime(SQLiteStore(path), recover=False) as runtime:
            await runtime.start(ladder(rungs=2))
    except EverholdError as error:
        os.write(1, f"{type(error).__name__}: {error} {error.hint}\n".encode())


@pytest.mark.parametrize("what", ["file", "folder", "new file"])
async def test_no_right_to_write(tmp_path: Path, what: str) -> None:
    """A read-only file or folder is a typed refusal with a hint, and what is in it is as it was."""
    folder = tmp_path / "kept"
    folder.mkdir()
    path = folder / "house.db"
    if what != "new file":
        await house.furnish(path)
        before = path.read_bytes()
    (path if what == "file" else folder).chmod(0o400 if what == "file" else 0o500)
    with Nursery("tests.fault.test_file") as nursery:
        code, lines = nursery.run("write", path=str(path))
    (path if what == "file" else folder).chmod(0o700)
    assert code == 0
    [line] = lines
    assert line.startswith((ReadOnlyStore.__name__, StoreUnavailable.__name__)), line
    assert what == "new file" or path.read_bytes() == before


# ---- other formats


async def test_a_newer_database(path: Path) -> None:
    """A file of a later format is refused, names both formats, says what to do, and is left
    alone.
    """
    await house.furnish(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {PRESENT + 1}")
    before = path.read_bytes()
    error = await refused(path)
    assert (
        isinstance(error, StoreNewer)
        and f"format {PRESENT + 1}" in str(error)
        and "Upgrade" in error.hint
    )
    assert path.read_bytes() == before


async def test_a_database_upgraded_under_an_open_process(path: Path) -> None:
    """A process that has the file open while another upgrades it is told so, whether it reads or
    writes.
    """
    async with Runtime(SQLiteStore(path), recover=False) as runtime:
        status = await runtime.start(ladder(rungs=3))
        migrated(path, [*load_migrations(), SECOND])
        for act in (
            lambda: runtime.answer(status.queries[0], "late"),
            lambda: runtime.status(status.session_id),
            lambda: runtime.start(ladder(rungs=1)),
            lambda: runtime.inbox(),
            lambda: runtime.sessions(),
        ):
            with pytest.raises(StoreNewer) as found:
                await act()
            assert f"format {PRESENT + 1}" in str(found.value)


def migrated(path: Path, steps: list[str]) -> None:
    with closing(connect_file(path)) as connection:
        prepare_database(connection, path, steps)


async def test_a_migration_makes_a_copy_first_and_goes_forward(path: Path) -> None:
    """A migration leaves a copy of the old format beside the file, runs once, and is never
    undone.
    """
    await house.furnish(path)
    before = await house.contents(path)
    steps = [*load_migrations(), SECOND]
    migrated(path, steps)
    migrated(path, steps)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (PRESENT + 1,)
        assert connection.execute("SELECT count(*) FROM head_3").fetchone()[0] > 5
        assert connection.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    copy = path.with_name(f"house.db.format-{PRESENT}")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert await house.contents(copy) == before
    assert await house.verdict(copy) == ""
    assert isinstance(await refused(path), StoreNewer)


async def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    """A migration with an error leaves the file as it was, usable by the old version."""
    await house.furnish(path)
    before = await house.contents(path)
    with pytest.raises(EverholdError):
        migrated(path, [*load_migrations(), "CREATE TABLE extra (x);\nDROP TABLE nonsense;\n"])
    assert await house.contents(path) == before
    assert await house.verdict(path) == ""


def migrate(path: str, second: str) -> None:
    """In a process of its own; SQL may call die()."""
    with closing(connect_file(Path(path))) as connection:
        connection.create_function("die", 0, die)
        prepare_database(connection, Path(path), [*load_migrations(), second])


async def test_a_crash_in_the_middle_of_a_migration(path: Path) -> None:
    """A process that dies half way through leaves the old format, whole; the next one migrates."""
    await house.furnish(path)
    before = await house.contents(path)
    with Nursery("tests.fault.test_file") as nursery:
        for second in (SECOND + "SELECT die();\n", "SELECT die();\n"):
            assert nursery.run("migrate", path=str(path), second=second)[0] == CRASHED
            assert await house.contents(path) == before
            assert await house.verdict(path) == ""
        assert nursery.run("migrate", path=str(path), second=SECOND)[0] == 0
    assert isinstance(await refused(path), StoreNewer)


async def test_a_copy_that_comes_after_the_migration_is_not_kept(tmp_path: Path) -> None:
    """Who was slower than another process does not put the new format in the place of the old
    one.
    """
    path = tmp_path / "house.db"
    await house.furnish(path)
    with closing(sqlite3.connect(path)) as connection:
        database._copy(connection, path, PRESENT - 1)
    assert list(tmp_path.glob("*.format-*")) == []


async def test_processes_migrate_at_once(tmp_path: Path) -> None:
    """Four processes that migrate together migrate once, and none of them fails."""
    await house.furnish(tmp_path / "old.db")
    with Nursery("tests.fault.test_file") as nursery:
        for n in range(5):
            path = tmp_path / f"{n}.db"
            shutil.copy(tmp_path / "old.db", path)
            children = [nursery.start("migrate", path=str(path), second=SECOND) for _ in range(4)]
            assert [child.wait() for child in children] == [0] * 4
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA user_version").fetchone() == (PRESENT + 1,)
            copy = path.with_name(f"{n}.db.format-{PRESENT}")
            assert await house.verdict(copy) == ""
            assert not list(tmp_path.glob(f"{n}.db.format-{PRESENT}.*"))


@everhold.program
async def asks(ctx: everhold.Context) -> bool:
    return await ctx.approval("Go?")


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_database_that_is_gone_while_it_is_open(tmp_path: Path, how: str) -> None:
    """Nobody's answer is taken into a file that nobody will ever read; put back, everything goes
    on.
    """
    path, aside = tmp_path / "app.db", tmp_path / "aside.db"
    async with everhold.open(f"sqlite:///{path}") as runtime:
        status = await runtime.start(asks())
        path.rename(aside)
        if how == "replaced":
            path.write_bytes(b"")
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await runtime.answer(status.session_id, True)
        aside.rename(path)
        assert (await runtime.answer(status.session_id, True)).state == "completed"


class Gone:
    """A store whose file is moved aside, and put back."""

    def __init__(self, store: SQLiteStore, record: SessionRecord) -> None:
        self.store, self.record = store, record
        self.item = IntakeItem("i-1", ItemKind.INPUT, {"content": "x"}, "k-1")

    def step(self) -> Change:
        return make_step(self.record, answers={0: "a"}, asked=[make_query(1)])

    async def together(self) -> None:
        """More commits than one in a turn of the loop: they share a transaction."""
        light = msgspec.structs.replace(self.step(), light=True)
        refused = await asyncio.gather(
            *(
                self.store.commit(one, fence)
                for one, fence in ((light, 1), (make_start("s-8"), 0), (make_start("s-9"), 0))
            ),
            return_exceptions=True,
        )
        assert {type(one) for one in refused} == {StoreUnavailable}
        raise refused[0]

    def writes(self) -> dict[str, Callable[[], Awaitable[object]]]:
        store, owner = self.store, LeaseOwner("w-1", "1")
        return {
            "light commit": lambda: store.commit(
                msgspec.structs.replace(self.step(), light=True), 1
            ),
            "commit": lambda: store.commit(self.step(), 1),
            "durable commit": lambda: store.commit(
                msgspec.structs.replace(self.step(), durable=True), 1
            ),
            "birth": lambda: store.commit(make_start("s-2"), 0),
            "together": self.together,
            "intake": lambda: store.intake(
                "s-1", lambda intake: intake.enqueue(self.item), named=["k-1"]
            ),
            "lease": lambda: store.intake("s-1", lambda intake: intake.take(owner, "t-1", 10.0)),
            "undertake": lambda: store.undertake([Duty("n", "d-1", {})]),
            "beat": lambda: store.beat(WorkerRecord("w-1", "host", 1)),
            "release": lambda: store.release("w-0"),
            "keep": lambda: store.keep(owner, 10.0),
            "leave": lambda: store.leave(owner),
            "attach": lambda: store.attach("s-1", make_attachment(b"new"), b"new", 1.0),
            "delete": lambda: store.delete("s-1", 1),
            "reclaim": lambda: store.maintenance.reclaim(),
        }


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_no_write_is_acknowledged_into_a_file_that_is_gone(
    path: Path, how: str, durability: str
) -> None:
    """Every verb that writes is refused, and nothing of it is in the file; put back, everything
    resumes.
    """
    store, aside = SQLiteStore(path, durability=durability), path.with_name("aside.db")
    await store.open()
    gone = Gone(store, await commit_start(store, "s-1", make_query(0), state=SessionState.PAUSED))
    await store.beat(WorkerRecord("w-0", "host", 1))
    before = [await dump_store(store), ["w-0"]]
    path.rename(aside)
    if how == "replaced":
        shutil.copy(aside, path)
    for name, write in gone.writes().items():
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            await write()
            raise AssertionError(name)
    aside.replace(path)
    assert [await dump_store(store), [one.id for one in await store.workers()]] == before
    for name in ("commit", "intake", "beat"):
        await gone.writes()[name]()
    assert (await store.load("s-1")).head.n == 1
    await store.close()


async def test_a_file_is_where_it_was_though_the_process_went_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the folder in which the database was opened, whatever the working
    directory is later.
    """
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with everhold.open("app.db") as runtime:
        monkeypatch.chdir(tmp_path / "elsewhere")
        status = await runtime.start(ladder(rungs=2))
        assert (await runtime.status(status.session_id)).state == "paused"
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_checkpoint_makes_no_new_database(path: Path) -> None:
    """The thread that moves the write-ahead log leaves a path alone at which the file is no
    more.
    """
    store = SQLiteStore(path)
    await store.open()
    store._checkpoints.move()
    path.rename(path.with_name("aside.db"))
    store._checkpoints.move()
    assert not path.exists()
    path.write_bytes(b"somebody else's")
    store._checkpoints.move()
    assert path.read_bytes() == b"somebody else's"
    await store.close()


# ---- not the file's fault


@pytest.mark.parametrize("verb", ["sessions", "inbox", "status", "start", "answer"])
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "not opened"])
async def test_a_store_that_is_not_open(path: Path, verb: str, closed: bool) -> None:
    """Whoever forgets `async with`, or comes too late, is told so; the file is not called
    damaged.
    """
    runtime = everhold.open(path)
    if closed:
        async with runtime:
            await runtime.start(ladder(rungs=2))
    given = {"status": ["s-x"], "answer": ["s-x", "y"], "start": [ladder(rungs=2)]}.get(verb, [])
    with pytest.raises(StoreUnavailable, match="never opened") as refused:
        await getattr(runtime, verb)(*given)
    assert "async with" in refused.value.hint


@pytest.mark.parametrize(
    "wrong", [["s-x"], {"a": 1}, object(), 2**70], ids=["list", "dict", "object", "large"]
)
async def test_what_is_asked_for_is_no_text(path: Path, wrong: object) -> None:
    """It is the question that is wrong, not the file."""
    async with everhold.open(path) as runtime:
        for ask in (
            lambda: runtime.status(wrong),
            lambda: runtime.inbox(to=wrong),
            lambda: runtime.delete(wrong),
        ):
            with pytest.raises(UsageError) as refused:
                await ask()
            assert isinstance(refused.value, BadValue | BadArguments)
        for ask in (lambda: runtime.sessions(limit="all"), lambda: runtime.sessions(labels="all")):
            with pytest.raises(UsageError):
                await ask()
        assert await runtime.sessions() == []


async def test_a_runtime_that_is_used_from_another_thread(path: Path) -> None:
    """It is refused there, before it gets into the transactions of its own thread, which goes
    on.
    """
    async with everhold.open(path) as runtime:
        status = await runtime.start(ladder(rungs=2))
        for verb, given in (
            ("status", [status.session_id]),
            ("start", [ladder(rungs=1)]),
            ("sessions", []),
        ):
            with pytest.raises(StoreUnavailable, match="another thread") as refused:
                await asyncio.to_thread(asyncio.run, getattr(runtime, verb)(*given))
            assert "open_blocking" in refused.value.hint
        assert await runtime.status(status.session_id) == status
        assert len(await runtime.sessions()) == 1
