"""A disk that is full refuses by name, keeps what it acknowledged, and works again when there is
space.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import everhold
from everhold.errors import StoreFull, StoreUnavailable
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.faults import Nursery
from tests.fault.victim import ladder

LONG = "x" * 20_000


def mounted(folder: Path, size: str, *options: str) -> bool:
    command = [
        "mount",
        "-t",
        "tmpfs",
        "-o",
        ",".join([f"size={size}", "mode=700", *options]),
        "tmpfs",
        str(folder),
    ]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def small(
    tmp_path: Path,
) -> Iterator[tuple[Path, Callable[[Runtime], None], Callable[[Runtime], None]]]:
    """A place of 1 MB: a file system of its own where we may mount one, else a file that may not
    grow.
    """
    folder = tmp_path / "small"
    folder.mkdir()
    if mounted(folder, "1m"):
        yield (
            folder,
            lambda runtime: None,
            lambda runtime: mounted(folder, "50m", "remount") or pytest.fail("remount"),
        )
        subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        yield folder, lambda runtime: pages(runtime, 100), lambda runtime: pages(runtime, 100_000)


def pages(runtime: Runtime, most: int) -> None:
    runtime.store._connection.execute(f"PRAGMA max_page_count = {most}")


async def filled(runtime: Runtime, session_id: str) -> tuple[int, everhold.EverholdError]:
    """Answer until it is refused; how many answers were acknowledged, and the refusal."""
    for kept in range(1000):
        try:
            await runtime.answer(session_id, f"{kept} {LONG}")
        except everhold.EverholdError as error:
            return kept, error
    raise AssertionError("the disk is never full")


async def climbed(runtime: Runtime, session_id: str) -> list[str]:
    record = await runtime.store.load(session_id)
    return [
        answer.value.split(" ")[0]
        for delivery in record.deliveries
        for answer in delivery.answers
        if answer.value
    ]


@pytest.mark.parametrize("fill", ["the place", "the file"])
async def test_a_full_disk(small: tuple, tmp_path: Path, fill: str) -> None:
    """The answer that does not fit is refused as `store_full`; all before it are kept, and it lands
    later.
    """
    folder, shrink, grow = small
    if fill == "the file":
        folder, shrink, grow = (
            tmp_path,
            lambda runtime: pages(runtime, 100),
            lambda runtime: pages(runtime, 100_000),
        )
    path = folder / "full.db"
    async with Runtime(SQLiteStore(path)) as runtime:
        shrink(runtime)
        status = await runtime.start(ladder(rungs=4), key="full")
        status = await runtime.start(plain(rungs=1000))
        kept, refused = await filled(runtime, status.session_id)
        assert isinstance(refused, StoreFull), refused
        assert kept >= 5
        assert await climbed(runtime, status.session_id) == [str(n) for n in range(kept)]
        assert isinstance(await runtime.status(status.session_id), everhold.Paused)
        grow(runtime)
        await runtime.answer(status.session_id, f"{kept} late")
        assert await runtime.archive.verify() == []
    async with Runtime(SQLiteStore(path)) as runtime:
        assert await climbed(runtime, status.session_id) == [str(n) for n in range(kept + 1)]
        assert isinstance(await runtime.answer(status.session_id, "more"), everhold.Paused)


@everhold.program
async def plain(ctx: everhold.Context, rungs: int) -> None:
    for rung in range(rungs):
        await ctx.llm(f"{rung}")


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A limit on the size of files is refused by name too, and a process without the limit goes
    on.
    """
    path = tmp_path / "limited.db"
    with Nursery("tests.fault.test_disk") as nursery:
        code, lines = nursery.run("limited", path=str(path), size=400_000)
        assert code == 0
        kept = int(lines[0])
        assert kept >= 5
        assert nursery.run("unlimited", path=str(path), kept=kept)[0] == 0


async def limited(path: str, size: int) -> None:
    """In a process of its own: answer until the limit refuses."""
    import resource

    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(plain(rungs=1000), key="limited")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        kept, refused = await filled(runtime, status.session_id)
        assert isinstance(refused, StoreFull | StoreUnavailable), refused
        assert len(await climbed(runtime, status.session_id)) == kept
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.write(1, f"{kept}\n".encode())


async def unlimited(path: str, kept: int) -> None:
    async with Runtime(SQLiteStore(path)) as runtime:
        status = await runtime.start(plain(rungs=1000), key="limited")
        assert len(await climbed(runtime, status.session_id)) == kept
        await runtime.answer(status.session_id, "more")
        assert await runtime.archive.verify() == []


async def test_a_new_file_on_a_full_disk(small: tuple, tmp_path: Path) -> None:
    """Opening a new database where there is no space is a refusal of ours, and leaves nothing half
    made.
    """
    folder, _, _ = small
    if not os.path.ismount(folder):
        pytest.skip("needs a file system of its own")
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    with pytest.raises(everhold.EverholdError) as refused:
        async with Runtime(SQLiteStore(folder / "new.db")):
            pass
    assert refused.value.code in ("store_full", "store_unavailable")
    (folder / "filler").unlink()
    async with Runtime(SQLiteStore(folder / "new.db")) as runtime:
        assert await runtime.archive.verify() == []
