"""Trust marks of Lua packages. A trusted package runs in this process, others in a worker process.

A mark holds the real path of a package and a fingerprint of all its files. A changed, added or
removed file invalidates the mark until the package is trusted again.

Rules
  1. Marks are in `trust.json` in the user's data folder. The file is written whole, and only the
     user can read and write it.
  2. In doubt nothing is trusted: a damaged file of marks, or one that others may write, is ignored.
  3. Hidden files are not part of a package, because `require` cannot name them.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from everhold.errors import BadSetting, NotAllowed, UnknownProgram
from everhold.packages.lua.atomic_file import hold_file_lock
from everhold.packages.settings import get_data_folder
from everhold.portability import may_others_write
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.requirements import find_trust_gaps
from everhold.programs.lua.search_path import (
    FileFingerprint,
    SearchRoot,
    is_settled,
    make_file_fingerprint,
    resolve_cached_path,
)

log = logging.getLogger("everhold")

TRUST_FILE: Final = "trust.json"

# caches, valid while the fingerprint that `stat` gives stays the same
_read_marks: dict[str, tuple[FileFingerprint, TrustMarks]] = {}
_fingerprints: dict[str, tuple[FileFingerprint | dict[str, FileFingerprint], str]] = {}


#: The fingerprints of trusted packages, by path.
TrustMarks = dict[str, str]


class TrustMark(msgspec.Struct, frozen=True):
    """A trusted package: its path, and the fingerprint of its files when it was trusted."""

    path: str
    digest: str


class _Marks(msgspec.Struct):
    packages: list[TrustMark] = []
    format: int = 1


def get_trusted_fingerprint(package: str | Path, marked: str | None = None) -> str:
    """The fingerprint of a package, if it is trusted as it is now, else "".

    `package` is a folder or a single file. `marked` is the file of marks, if the caller knows it.
    """
    try:
        found = _read(marked or get_marks_file())
    except (BadSetting, OSError) as error:
        log.warning("no Lua package is trusted: %s", error)
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
    """Trust a package as it is now.

    Raises `UnknownProgram` if it is not a package, `NotAllowed` for a link that leaves it.
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


def trust_required_packages(
    package: Path, roots: Iterable[str | Path | SearchRoot]
) -> list[TrustMark]:
    """Trust all packages that a package requires, and those that they require, as they are now."""
    make = LuaProgram.package if package.is_dir() else LuaProgram.file
    program = make(package, roots=roots)
    gaps = list(find_trust_gaps(program.home, program.roots, get_trusted_fingerprint))
    return [trust_package(gap.package) for gap in gaps if gap.may_be_trusted]


def untrust_package(package: Path) -> bool:
    """Remove a mark; returns whether it existed."""
    path = str(package.resolve())
    with _changing() as marks:
        return marks.pop(path, None) is not None


def list_trust_marks() -> list[tuple[TrustMark, bool]]:
    """All marks by path, each with whether the package still matches it."""
    return [
        (TrustMark(path, digest), get_trusted_fingerprint(path) != "")
        for path, digest in sorted(_read(get_marks_file()).items())
    ]


def fingerprint_package(path: str, status: FileFingerprint | None = None) -> str:
    """The fingerprint of all files of a package; raises `NotAllowed` for links that leave it.

    `status` is the file fingerprint of `path`, if the caller has it.
    """
    status = status or make_file_fingerprint(os.stat(path))
    seen = dict(_files(path, path, "")) if stat.S_ISDIR(status[2]) else status
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
                if not Path(entry.path).resolve().is_relative_to(package):
                    raise NotAllowed(
                        f"{entry.path} leads out of the package", "Replace the link with a copy."
                    )
                if not entry.is_file():
                    raise NotAllowed(
                        f"{entry.path} is a link to a folder", "Replace the link with a copy."
                    )
            if entry.is_dir(follow_symlinks=False):
                yield from _files(package, entry.path, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield prefix + entry.name, make_file_fingerprint(entry.stat())


# ---- the file


def get_marks_file() -> str:
    """The path of the file of marks; it may not exist."""
    return _marks_file_in(get_data_folder())


@lru_cache(maxsize=8)
def _marks_file_in(folder: Path) -> str:
    return str(folder / TRUST_FILE)


def _read(place: str) -> TrustMarks:
    """The marks in a file; raises `BadSetting` if the file cannot be trusted."""
    known = _read_marks.get(place)
    try:
        if known is not None and known[0] == make_file_fingerprint(os.stat(place)):
            return known[1]
        now = time.time_ns()
        with open(place, "rb") as source:
            found = os.fstat(source.fileno())
            seen = make_file_fingerprint(found)
            text = source.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(place, f"it cannot be read: {error.strerror}") from None
    if may_others_write(found):
        raise BadSetting(place, f"others may write it; check its content, then chmod 600 {place}")
    marks = _decoded(place, text)
    if is_settled(seen, now):
        _read_marks[place] = seen, marks
    return marks


def _decoded(place: str, text: bytes) -> TrustMarks:
    try:
        marks = msgspec.json.decode(text, type=_Marks)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadSetting(
            place, f"it is damaged ({error}); delete it and trust your packages again"
        ) from None
    if marks.format != 1:
        raise BadSetting(place, f"it has format {marks.format}, written by a newer everhold")
    return {mark.path: mark.digest for mark in marks.packages}


@contextmanager
def _changing() -> Iterator[TrustMarks]:
    """Lock the marks for a change in place; they are written back at the end."""
    file = Path(get_marks_file())
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with hold_file_lock(file.parent / f".{TRUST_FILE}.lock"):
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
