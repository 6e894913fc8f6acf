"""A root: a place in which `require` looks. A folder of packages, or one package under a name that
was chosen for it.

    /home/ana/packages         `a.b` is a/b.lua or a/b/init.lua in this folder
    panel=/home/ana/src/p2     `panel` is init.lua in this folder, `panel.b` is b.lua or b/init.lua
    !/home/ana/packages        as the first, but no link may lead out of it

Rules
  1. A root is a line of text, so that it can be handed to another process.
  2. A name that was chosen for a package means this package alone: if a part of it is missing, it
     is not looked for elsewhere, where it would be another version.
  3. In a folder the first name may be a link: whoever put it there meant it. Below that nothing may
     leave the folder it is in, so that a package cannot carry links to other files. With `!` the
     first name may not leave either.

By what a change of a file is seen without reading it: what the file system says of it.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from everhold.portability import CLOSE_ON_EXEC
from everhold.programs.lua.vm import compile_lua

FileFingerprint = tuple[int, ...]

#: Nanoseconds in which a file may change twice and look the same: so fresh a one is not remembered.
TICK: Final = 100_000_000

#: How many paths are remembered.
_MAX_CACHED_PATHS: Final = 1000
_resolved_by_stat: dict[str, tuple[FileFingerprint, str]] = {}


def make_file_fingerprint(found: os.stat_result) -> FileFingerprint:
    """What a file looks like. The last number cannot be chosen by anybody."""
    return (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def resolve_cached_path(path: str, seen: FileFingerprint) -> str:
    """Where a path really leads. It is followed again if what is there is another, or has
    changed.
    """
    known = _resolved_by_stat.get(path)
    if known is None or known[0] != seen:
        if len(_resolved_by_stat) >= _MAX_CACHED_PATHS:
            _resolved_by_stat.clear()
        known = _resolved_by_stat[path] = seen, os.path.realpath(path)
    return known[1]


def is_settled(seen: FileFingerprint, now: int) -> bool:
    """Whether the file had changed long enough ago that every change from now on is seen."""
    return now - seen[-1] > TICK


INIT_FILE: Final = "init.lua"
#: What a package may be called.
PACKAGE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_TEXT: Final = re.compile(
    rf"(?P<strict>!?)(?:(?P<name>{PACKAGE_NAME.pattern})=)?(?P<folder>/.*)", re.DOTALL
)


class ModuleLocation(msgspec.Struct, frozen=True):
    """Where a module may be."""

    file: Path
    title: str  # what programs are told of it
    package: Path  # the folder, or the only file, of its package


class SearchRoot(msgspec.Struct, frozen=True):
    folder: Path
    name: str = ""  # chosen for the package that this folder is; empty for a folder of packages
    strict: bool = False

    @classmethod
    def of(cls, given: SearchRoot | Path | str) -> SearchRoot:
        """The root that somebody named; a text that is no root's is a folder."""
        if isinstance(given, SearchRoot):
            return given
        return (
            parse_search_root(given)
            if isinstance(given, str) and _TEXT.fullmatch(given)
            else cls(Path(given))
        )

    def __str__(self) -> str:
        return f"{'!' * self.strict}{self.name and self.name + '='}{self.folder}"

    def settled(self) -> SearchRoot:
        """The same with an absolute folder. A package's own folder stays the link that it may
        be.
        """
        folder = self.folder.expanduser()
        real = folder.parent.resolve() / folder.name if self.name else folder.resolve()
        return SearchRoot(real, self.name, self.strict)

    def places(self, module: str) -> tuple[ModuleLocation, ...]:
        """Where the module of this name may be, the likeliest first."""
        return _places(self, module)

    def ends(self, module: str) -> bool:
        """Whether this module is looked for no further."""
        return self.name != "" and self.name == module.partition(".")[0]

    def keeps(self, place: ModuleLocation) -> bool:
        """Whether the file is where it seems to be."""
        if self.strict:
            home = (
                self.folder.parent.resolve() / self.folder.name
                if self.name
                else self.folder.resolve()
            )
            return _followed(place.file).startswith(f"{home}/")
        return place.package == place.file or _followed(place.file).startswith(
            f"{_followed(place.package)}/"
        )


def _followed(path: Path) -> str:
    return resolve_cached_path(str(path), make_file_fingerprint(os.stat(path)))


@lru_cache(maxsize=1000)
def _places(root: SearchRoot, module: str) -> tuple[ModuleLocation, ...]:
    first, *rest = module.split(".")
    inside = module.replace(".", "/")
    folder = root.folder
    if not root.name:
        titles = (f"{inside}.lua", f"{inside}/{INIT_FILE}")
        return tuple(
            ModuleLocation(folder / title, title, folder / title.partition("/")[0])
            for title in titles
        )
    if root.name != first:
        return ()
    names = [f"{'/'.join(rest)}.lua", f"{'/'.join(rest)}/{INIT_FILE}"] if rest else [INIT_FILE]
    return tuple(ModuleLocation(folder / name, f"{first}/{name}", folder) for name in names)


@lru_cache(maxsize=1000)
def parse_search_root(text: str) -> SearchRoot:
    """The root that a line of text means; raises `ValueError` if it means none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no root")
    return SearchRoot(Path(found["folder"]), found["name"] or "", bool(found["strict"]))


#: The largest file that is read, in bytes.
MAX_SOURCE_BYTES: Final = 4 * 2**20

_TOO_LARGE: Final = b"error('this file is too large to be loaded', 0)"

#: How many texts are remembered, and how long one of them may be, in bytes.
_MAX_CACHED_SOURCES = 256
_MAX_CACHED_SOURCE_BYTES = 64 * 2**10
_sources: dict[tuple[str, str], tuple[FileFingerprint, LuaSource]] = {}

_MODULE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")


class LuaSource(msgspec.Struct):
    """A file as Lua loads it."""

    title: str
    code: bytes
    # "t" for text, "b" for what was compiled; None for text that was not compiled yet
    mode: bytes | None = None


def find_lua_module(
    name: str, roots: tuple[str, ...], allowed: Callable[[Path], object] | None = None
) -> LuaSource | None:
    """The source of a module; its title is its name in its root.

    Raises `PermissionError` if its package is not `allowed`, where somebody has to allow it.
    """
    if _MODULE_NAME.fullmatch(name) is None:
        return None
    name = name.replace("/", ".")  # some write the path
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.file.is_file() and root.keeps(place):
                if allowed is not None and not allowed(place.package):
                    raise PermissionError(
                        errno.EACCES, "its package is not trusted; see `everhold pkg trust`"
                    )
                return load_lua_source(place.file, place.title)
        if root.ends(name):
            return None
    return None


def load_lua_source(path: Path, title: str) -> LuaSource:
    """A file under the name that errors in it tell."""
    place = str(path)
    seen = make_file_fingerprint(os.stat(place))
    known = _sources.get((place, title))
    if known is None or known[0] != seen:
        return _read_source(place, title, seen)
    found = known[1]
    if found.mode is None:
        code = compile_lua(found.code, f"@{title}".encode())
        found.code, found.mode = (found.code, b"t") if code is None else (code, b"b")
    return found


def _read_source(place: str, title: str, seen: FileFingerprint) -> LuaSource:
    now = time.time_ns()
    text = _read_bytes(place)
    code = clean_lua_source(text) if len(text) <= MAX_SOURCE_BYTES else _TOO_LARGE
    found = LuaSource(title, code)
    if len(found.code) <= _MAX_CACHED_SOURCE_BYTES and is_settled(seen, now):
        if len(_sources) >= _MAX_CACHED_SOURCES:
            _sources.clear()
        _sources[place, title] = seen, found
    return found


def clean_lua_source(text: bytes) -> bytes:
    """A text without a byte order mark, and with a first line for the shell made a comment."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    return b"--" + text if text.startswith(b"#") else text


def _read_bytes(path: str) -> bytes:
    """What is in a file, as far as it may be read and a byte more. A file object would cost more
    than the reading.
    """
    file = os.open(path, os.O_RDONLY | CLOSE_ON_EXEC)
    try:
        found = b""
        rest = min(os.fstat(file).st_size, MAX_SOURCE_BYTES) + 1
        while rest and (more := os.read(file, rest)):
            found = found + more
            rest = rest - len(more)
        return found
    finally:
        os.close(file)
