"""Which Lua packages the user vouches for: those run in this process, all others in one that can be
killed.

A mark names a package by its real path and by a fingerprint of all its files. When a file is
changed, added or taken away, the mark no longer fits, and the package is as strange as any other
until it is trusted again.

Rules
  1. Marks are in `trust.json` in the user's data folder, written whole, readable and writable by
     the user alone.
  2. In doubt nothing is trusted: a file of marks that is damaged, or that others may write, counts
     for nothing.
  3. Hidden files do not belong to a package: `require` cannot name them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from everhold.errors import BadSetting, NotAllowed, UnknownProgram
from everhold.packages.settings import get_data_folder
from everhold.programs.lua.search_path import (
    FileFingerprint,
    is_settled,
    make_file_fingerprint,
    resolve_cached_path,
)

log = logging.getLogger("everhold")

TRUST_FILE: Final = "trust.json"

# what was read, by what the file system said of the file
_read_marks: dict[str, tuple[FileFingerprint, TrustMarks]] = {}
_fingerprints: dict[str, tuple[FileFingerprint | dict[str, FileFingerprint], str]] = {}


#: The fingerprints of what is trusted, by path.
TrustMarks = dict[str, str]


class TrustMark(msgspec.Struct, frozen=True):
    """One package that is trusted as it was."""

    path: str
    digest: str


class _Marks(msgspec.Struct):
    packages: list[TrustMark] = []
    format: int = 1


def get_trusted_fingerprint(package: str | Path, marked: str | None = None) -> str:
    """The fingerprint of a package (its folder, or its only file) if the user vouched for it as it
    is now, else "".

    `marked` is the file of marks, where somebody has looked it up already.
    """
    try:
        found = _read(marked or get_marks_file())
    except (BadSetting, OSError) as error:
        log.warning("no package is trusted: %s", error)
        return ""
    place = str(package)
    try:
        seen = make_file_fingerprint(os.stat(place))
        path = resolve_cached_path(place, seen)
        digest = found.get(path)
        return digest if digest is not None and fingerprint_package(path, seen) == digest else ""
    except (NotAllowed, OSError):
        return ""


def trust_package(package: Path) -> TrustMark:
    """Vouch for a package as it is now; raises `UnknownProgram` if it is none, `NotAllowed` if it
    cannot be.
    """
    path = package.resolve()
    if not (path / "init.lua").is_file() and not (path.suffix == ".lua" and path.is_file()):
        raise UnknownProgram(
            str(package), "it is neither a folder with an init.lua nor a .lua file"
        )
    mark = TrustMark(str(path), fingerprint_package(str(path)))
    with _changing() as marks:
        marks.pop(mark.path, None)
        marks[mark.path] = mark.digest
    return mark


def untrust_package(package: Path) -> bool:
    """Vouch no longer; returns whether there was a mark."""
    path = str(package.resolve())
    with _changing() as marks:
        return marks.pop(path, None) is not None


def list_trust_marks() -> list[tuple[TrustMark, bool]]:
    """All marks by path, each with whether it still fits its files."""
    return [
        (TrustMark(path, digest), get_trusted_fingerprint(path) != "")
        for path, digest in sorted(_read(get_marks_file()).items())
    ]


def fingerprint_package(path: str, there: FileFingerprint | None = None) -> str:
    """One fingerprint of all files of a package; raises `NotAllowed` for links that leave it.

    `there` is what the file system says of it, where somebody has asked already.
    """
    there = there or make_file_fingerprint(os.stat(path))
    seen = dict(_files(path, path, "")) if stat.S_ISDIR(there[2]) else there
    known = _fingerprints.get(path)
    if known is not None and known[0] == seen:
        return known[1]
    now = time.time_ns()
    root, files = (
        (path, seen)
        if isinstance(seen, dict)
        else (os.path.dirname(path), {os.path.basename(path): seen})
    )
    whole = sha256()
    for name in sorted(files, key=lambda name: name.split("/")):
        text = Path(root, name).read_bytes()
        whole.update(f"{name}\0{len(text)}\0".encode() + text)
    if all(is_settled(file, now) for file in files.values()):
        _fingerprints[path] = seen, whole.hexdigest()
    return whole.hexdigest()


def _files(package: str, folder: str, prefix: str) -> Iterator[tuple[str, FileFingerprint]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                _refuse_leaving(entry, package)
            if entry.is_dir(follow_symlinks=False):
                yield from _files(package, entry.path, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield prefix + entry.name, make_file_fingerprint(entry.stat())


def _refuse_leaving(link: os.DirEntry[str], package: str) -> None:
    if not Path(link.path).resolve().is_relative_to(package):
        raise NotAllowed(
            f"{link.path} leads out of the package", "Put a copy there instead of the link."
        )
    if not link.is_file():
        raise NotAllowed(
            f"{link.path} is a link to a folder", "Put a copy there instead of the link."
        )


# ---- the file


def get_marks_file() -> str:
    """Where the user's marks are; it need not exist."""
    return _in(get_data_folder())


@lru_cache(maxsize=8)
def _in(folder: Path) -> str:
    return str(folder / TRUST_FILE)


def _read(place: str) -> TrustMarks:
    """The marks in a file; raises `BadSetting` if it cannot be relied on."""
    known = _read_marks.get(place)
    try:
        if known is not None and known[0] == make_file_fingerprint(os.stat(place)):
            return known[1]
        now = time.time_ns()
        with open(place, "rb") as source:
            seen = make_file_fingerprint(os.fstat(source.fileno()))
            text = source.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(place, f"it cannot be read: {error.strerror}") from None
    _, _, mode, owner, *_ = seen
    if mode & (stat.S_IWGRP | stat.S_IWOTH) or owner not in (os.getuid(), 0):
        raise BadSetting(place, f"others may write it; look at it, then chmod 600 {place}")
    marks = _decoded(place, text)
    if is_settled(seen, now):
        _read_marks[place] = seen, marks
    return marks


def _decoded(place: str, text: bytes) -> TrustMarks:
    try:
        marks = msgspec.json.decode(text, type=_Marks)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadSetting(
            place, f"it is damaged ({error}); remove it and trust your packages again"
        ) from None
    if marks.format != 1:
        raise BadSetting(place, f"it has format {marks.format}, which a newer everhold wrote")
    return {mark.path: mark.digest for mark in marks.packages}


@contextmanager
def _changing() -> Iterator[TrustMarks]:
    """The marks, to be changed in place and written back; nobody else changes them meanwhile."""
    file = Path(get_marks_file())
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(
        os.open(file.parent / f".{TRUST_FILE}.lock", os.O_WRONLY | os.O_CREAT, 0o600), "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = dict(_read(str(file)))
        yield found
        fresh = file.with_name(f".{TRUST_FILE}.new")
        packages = [{"path": path, "digest": digest} for path, digest in found.items()]
        text = json.dumps({"format": 1, "packages": packages}, indent=1, ensure_ascii=False)
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as target:
            target.write(text + "\n")
            target.flush()
            os.fsync(target.fileno())
        fresh.replace(file)
