"""A disk whose power can be cut at any moment, made from a record of what a process did to its
files.

`recorded` runs a process under `recorder.c` and returns its events in order. `Disk` repeats them
and knows what `fsync` has made lasting. What was not synced when the power goes may be there or
not: each write by itself and in sectors, each name in a folder by itself, in any combination.
`Disk.left` picks one combination.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tools.postgres import installed

HEADER: Final = struct.Struct("=IiQQ")
SECTOR: Final = 512
#: Not of the disk: SQLite keeps it in shared memory, and makes it anew after a cut. Garbage stands
#: in for it.
SHARED: Final = "-shm"
HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]


class Event(NamedTuple):
    """One thing a process did: kind, descriptor, place or flags, and data or path."""

    kind: str
    fd: int
    at: int
    data: bytes


def is_memory(folder: Path) -> bool:
    """Whether a folder is in memory (tmpfs, ramfs)."""
    found = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True
    )
    return found.stdout.strip() in ("tmpfs", "ramfs")


def compiled(folder: Path) -> Path:
    """The recorder as a library. A compiler is installed if there is none and we may; else this
    says what to do.
    """
    library = folder / "recorder.so"
    cc = installed("cc", "gcc libc6-dev")
    command = [str(cc), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(HERE / "recorder.c"), "-ldl"], check=True)
    return library


def recorded(library: Path, root: Path, module: str, *arguments: str) -> list[Event]:
    """Run a module in a process and return what it did below `root`, and what it said, in order."""
    log = library.with_name(f"{root.name}.log")
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "RECORDER_ROOT": str(root),
        "RECORDER_LOG": str(log),
    }
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return list(_events(log.read_bytes()))


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        kind, fd, where, length = HEADER.unpack_from(data, at)
        at += HEADER.size
        yield Event(chr(kind), fd, where, data[at : at + length])
        at += length


Write = tuple[int, bytes | None]  # where and what; None cuts the file off there


class File:
    """The bytes of a file: those that last, and what was done to them since."""

    def __init__(self) -> None:
        self.lasting = b""
        self.since: list[Write] = []

    def sync(self) -> None:
        self.lasting, self.since = _applied(self.lasting, self.since), []


class Folder:
    """The names in a folder: those that last, and what was done to them since. None takes a name
    away.
    """

    def __init__(self) -> None:
        self.lasting: dict[str, File | Folder] = {}
        self.since: list[tuple[str, File | Folder | None]] = []

    def sync(self) -> None:
        self.lasting, self.since = self.named(self.since), []

    def named(self, since: Sequence[tuple[str, File | Folder | None]]) -> dict[str, File | Folder]:
        names = dict(self.lasting)
        for name, what in since:
            if what is None:
                names.pop(name, None)
            else:
                names[name] = what
        return names


class Disk:
    """What is below one folder, which itself lasts."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._top = Folder()
        self._open: dict[int, File | Folder] = {}
        self.syncs = 0

    def do(self, event: Event) -> None:
        match event:
            case Event("O", fd, flags, path):
                self._open[fd] = self._opened(
                    path.decode(), made=bool(flags & 1), emptied=bool(flags & 2)
                )
            case Event("C", fd):
                del self._open[fd]
            case Event("W", fd, at, data):
                self._file(fd).since.append((at, data))
            case Event("T", fd, at):
                self._file(fd).since.append((at, None))
            case Event("S", fd):
                self.syncs += 1
                self._open[fd].sync()
            case Event("M", _, _, path):
                folder, name = self._placed(path.decode())
                folder.since.append((name, Folder()))
            case Event("U", _, _, path):
                folder, name = self._placed(path.decode())
                folder.since.append((name, None))
            case _:
                assert event.kind == "A", event

    def left(self, dice: random.Random | None, *, data: float, names: float) -> dict[str, bytes]:
        """The files after a cut, by path below the root: of what was not synced, these parts are
        there.

        0 is nothing, 1 everything; in between, dice decide for each name and each sector.
        """
        return dict(_left(self._top, "", dice, data, names))

    def _file(self, fd: int) -> File:
        found = self._open[fd]
        assert isinstance(found, File)
        return found

    def _placed(self, path: str) -> tuple[Folder, str]:
        *folders, name = path.removeprefix(self._root).strip("/").split("/")
        at = self._top
        for folder in folders:
            below = at.named(at.since)[folder]
            assert isinstance(below, Folder)
            at = below
        return at, name

    def _opened(self, path: str, *, made: bool, emptied: bool) -> File | Folder:
        folder, name = self._placed(path)
        if not name:
            return self._top
        if made:
            folder.since.append((name, File()))
        found = folder.named(folder.since)[name]
        if emptied and isinstance(found, File):
            found.since.append((0, None))
        return found


def _left(
    folder: Folder, path: str, dice: random.Random | None, data: float, names: float
) -> Iterator[tuple[str, bytes]]:
    kept = [one for one in folder.since if _falls(dice, names)]
    for name, what in folder.named(kept).items():
        if isinstance(what, Folder):
            yield from _left(what, f"{path}{name}/", dice, data, names)
        elif name.endswith(SHARED):
            yield path + name, b"\xa5" * 32768
        else:
            yield path + name, _applied(what.lasting, _torn(what.since, dice, data))


def _torn(since: Sequence[Write], dice: random.Random | None, share: float) -> list[Write]:
    """The parts of these writes that reached the disk: a write is there whole, not at all, or some
    of its sectors.
    """
    kept: list[Write] = []
    for at, written in since:
        if share in (0.0, 1.0) or written is None or dice is None or dice.random() < 0.5:
            kept += [(at, written)] if _falls(dice, share) else []
            continue
        first = at
        while first < at + len(written):
            end = min((first // SECTOR + 1) * SECTOR, at + len(written))
            kept += [(first, written[first - at : end - at])] if _falls(dice, share) else []
            first = end
    return kept


def _falls(dice: random.Random | None, share: float) -> bool:
    return share == 1.0 or (share > 0.0 and dice is not None and dice.random() < share)


def _applied(lasting: bytes, since: Sequence[Write]) -> bytes:
    data = bytearray(lasting)
    for at, written in since:
        if len(data) < at:
            data += bytes(at - len(data))
        if written is None:
            del data[at:]
        else:
            data[at : at + len(written)] = written
    return bytes(data)
