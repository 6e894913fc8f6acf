"""Which Lua packages the user vouches for: those run in this process, all others in one that can be killed.

A mark names a package by its real path and by a fingerprint of all its files. When a file is changed, added or taken
away, the mark no longer fits, and the package is as strange as any other until it is trusted again.

Rules
  1. Marks are in `trust.json` in the user's data folder, written whole, readable and writable by the user alone.
  2. In doubt nothing is trusted: a file of marks that is damaged, or that others may write, counts for nothing.
  3. Hidden files do not belong to a package: `require` cannot name them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from everhold.core.errors import BadSetting, NotAllowed, UnknownProgram
from everhold.packages.settings import home

log = logging.getLogger("everhold")

FILE: Final = "trust.json"
_Signature = tuple[tuple[str, int, int, int], ...]
_seen: dict[
    Path, tuple[_Signature, str]
] = {}  # fingerprints of this process, by what the file system says of the files


class Mark(msgspec.Struct, frozen=True):
    """One package that is trusted as it was."""

    path: str
    digest: str


class _Marks(msgspec.Struct):
    packages: list[Mark] = []
    format: int = 1


def trusted(package: Path) -> bool:
    """Whether the user vouched for this package (its folder, or its only file) as it is now."""
    try:
        found = {mark.path: mark.digest for mark in _read(_file())}
    except (BadSetting, OSError) as error:
        log.warning("no package is trusted: %s", error)
        return False
    path = package.resolve()
    wanted = found.get(str(path))
    try:
        return wanted is not None and fingerprint(path) == wanted
    except (NotAllowed, OSError):
        return False


def trust(package: Path) -> Mark:
    """Vouch for a package as it is now; raises `UnknownProgram` if it is none, `NotAllowed` if it cannot be."""
    path = package.resolve()
    if not (path / "init.lua").is_file() and not (path.suffix == ".lua" and path.is_file()):
        raise UnknownProgram(str(package), "it is neither a folder with an init.lua nor a .lua file")
    mark = Mark(str(path), fingerprint(path))
    with _changing() as marks:
        marks[:] = [*(other for other in marks if other.path != mark.path), mark]
    return mark


def untrust(package: Path) -> bool:
    """Vouch no longer; returns whether there was a mark."""
    path = str(package.resolve())
    with _changing() as marks:
        before = len(marks)
        marks[:] = [mark for mark in marks if mark.path != path]
        return len(marks) < before


def marks() -> list[tuple[Mark, bool]]:
    """All marks by path, each with whether it still fits its files."""
    return [(mark, trusted(Path(mark.path))) for mark in sorted(_read(_file()), key=lambda mark: mark.path)]


def fingerprint(path: Path) -> str:
    """One fingerprint of all files of a package; raises `NotAllowed` for links that leave it."""
    files = [path] if path.is_file() else sorted(_files(path))
    root = path.parent if path.is_file() else path
    signature = tuple(_identity(file, root) for file in files)
    known = _seen.get(path)
    if known is not None and known[0] == signature:
        return known[1]
    whole = sha256()
    for file in files:
        text = file.read_bytes()
        whole.update(f"{file.relative_to(root).as_posix()}\0{len(text)}\0".encode() + text)
    _seen[path] = signature, whole.hexdigest()
    return _seen[path][1]


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in (*folders, *(name for name in names if not name.startswith("."))):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(folder):
                raise NotAllowed(f"{path} leads out of the package", "Put a copy there instead of the link.")
            if path.is_file():
                yield path
            elif path.is_symlink():
                raise NotAllowed(f"{path} is a link to a folder", "Put a copy there instead of the link.")


def _identity(file: Path, root: Path) -> tuple[str, int, int, int]:
    found = file.stat()
    return file.relative_to(root).as_posix(), found.st_size, found.st_mtime_ns, found.st_ctime_ns


# ---- the file


def _file() -> Path:
    return home() / FILE


def _read(file: Path) -> list[Mark]:
    """The marks in it; raises `BadSetting` if it cannot be relied on."""
    try:
        with file.open("rb") as source:
            found = os.fstat(source.fileno())
            text = source.read()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadSetting(str(file), f"it cannot be read: {error.strerror}") from None
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (os.getuid(), 0):
        raise BadSetting(str(file), f"others may write it; look at it, then chmod 600 {file}")
    try:
        marks = msgspec.json.decode(text, type=_Marks)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadSetting(str(file), f"it is damaged ({error}); remove it and trust your packages again") from None
    if marks.format != 1:
        raise BadSetting(str(file), f"it has format {marks.format}, which a newer everhold wrote")
    return marks.packages


@contextmanager
def _changing() -> Iterator[list[Mark]]:
    """The marks, to be changed in place and written back; nobody else changes them meanwhile."""
    file = _file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(file.parent / f".{FILE}.lock", os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _read(file)
        yield found
        fresh = file.with_name(f".{FILE}.new")
        text = json.dumps({"format": 1, "packages": msgspec.to_builtins(found)}, indent=1, ensure_ascii=False)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as target:
            target.write(text + "\n")
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(file)
