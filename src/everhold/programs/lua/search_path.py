"""Where `require` finds its files: search roots, module names, and cached sources.

A root is a folder of packages, or one package under a chosen name:

    /home/ana/packages         `a.b` is a/b.lua or a/b/init.lua in this folder
    panel=/home/ana/src/p2     `panel` is init.lua in this folder, `panel.b` is b.lua or b/init.lua
    !/home/ana/packages        like the first, but no symbolic link may lead out of it

Rules
  1. A root is a line of text, so that it can be passed to another process.
  2. A chosen name belongs to this package alone: a missing part of it is not searched in other
     roots, where it would be another version.
  3. A package in a folder may be a symbolic link, because the folder's owner made it. Inside a
     package no link may lead out, so a package cannot contain links to other files. With `!` the
     package itself must not be such a link either.
  4. `alc_shapes` and `evalframe` are packages of everhold itself, unless a root has a package of
     that name.
  5. Files are read again when they have changed, in a live run and on replay: the file on disk is
     the program, as for Python. Programs see names relative to the root, never absolute paths.
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
from everhold.shell_command import format_command

FileFingerprint = tuple[int, ...]

#: Nanoseconds in which a file can change twice with equal timestamps. A younger file is not cached.
TICK: Final = 100_000_000

#: How many paths are remembered.
_MAX_CACHED_PATHS: Final = 1000
_resolved_by_stat: dict[str, tuple[FileFingerprint, str]] = {}


def make_file_fingerprint(found: os.stat_result) -> FileFingerprint:
    """What changes when a file changes. The last value, ctime, cannot be set by a user."""
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
    """The real path of a path; cached until its file changes."""
    known = _resolved_by_stat.get(path)
    if known is None or known[0] != seen:
        if len(_resolved_by_stat) >= _MAX_CACHED_PATHS:
            _resolved_by_stat.clear()
        known = _resolved_by_stat[path] = seen, os.path.realpath(path)
    return known[1]


def is_settled(seen: FileFingerprint, now: int) -> bool:
    """Whether the last change is old enough that the next one changes the fingerprint."""
    return now - seen[-1] > TICK


INIT_FILE: Final = "init.lua"
#: Valid names of packages.
PACKAGE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_TEXT: Final = re.compile(
    rf"(?P<strict>!?)(?:(?P<name>{PACKAGE_NAME.pattern})=)?(?P<folder>/.*)", re.DOTALL
)


class ModuleLocation(msgspec.Struct, frozen=True):
    """A place where a module may be."""

    file: Path
    title: str  # the name that programs see in errors
    package: Path  # the folder, or the single file, of its package


class SearchRoot(msgspec.Struct, frozen=True):
    folder: Path
    name: str = ""  # the chosen name if the folder is one package; empty for a folder of packages
    strict: bool = False

    @classmethod
    def of(cls, given: SearchRoot | Path | str) -> SearchRoot:
        """Make a root of a path or a line of text."""
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
        """The same root with an absolute folder; a link that is the package stays unresolved."""
        folder = os.path.expanduser(self.folder)
        if self.name:
            above, own = os.path.split(folder)
            real = os.path.join(os.path.realpath(above), own)
        else:
            real = os.path.realpath(folder)
        return SearchRoot(Path(real), self.name, self.strict)

    def places(self, module: str) -> tuple[ModuleLocation, ...]:
        """The places where a module may be, in the order of the search."""
        return _places(self, module)

    def ends(self, module: str) -> bool:
        """Whether the search for this module ends here (rule 2)."""
        return self.name != "" and self.name == module.partition(".")[0]

    def keeps(self, place: ModuleLocation) -> bool:
        """Whether the file is inside the root or package, after resolving links (rule 3)."""
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
    """Parse a root from a line of text; raises `ValueError`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a search root")
    return SearchRoot(Path(found["folder"]), found["name"] or "", bool(found["strict"]))


#: The largest source file, in bytes.
MAX_SOURCE_BYTES: Final = 4 * 2**20

_TOO_LARGE: Final = b"error('this file is too large to be loaded', 0)"

#: Sources in the cache, and the largest one that is cached, in bytes.
_MAX_CACHED_SOURCES = 256
_MAX_CACHED_SOURCE_BYTES = 64 * 2**10
_sources: dict[tuple[str, str], tuple[FileFingerprint, LuaSource]] = {}

#: Packages that come with everhold, in folders beside this file.
OWN_FOLDER: Final = Path(__file__).parent
OWN_PACKAGES: Final = frozenset({"alc_shapes", "evalframe"})
#: The name of the root that holds scenarios.
SCENARIOS_ROOT: Final = "scenarios"

_MODULE_NAME: Final = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")


class LuaSource(msgspec.Struct):
    """A source file for Lua's `load`."""

    title: str
    code: bytes
    mode: bytes | None = None  # b"t" text, b"b" compiled; None: text, compiled on its second use


def find_lua_module(
    name: str, roots: tuple[str, ...], allowed: Callable[[Path], object] | None = None
) -> LuaSource | None:
    """Find and load a module; None if no root has it.

    Raises `PermissionError` if `allowed` is given and refuses the module's package.
    """
    if _MODULE_NAME.fullmatch(name) is None:
        return _find_scenario(name, roots) if name.endswith(".lua") else None
    name = name.replace("/", ".")  # require("a/b") is common too
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.file.is_file() and root.keeps(place):
                if allowed is not None and not allowed(place.package):
                    command = format_command("pkg", "trust", place.package.name)
                    raise PermissionError(
                        errno.EACCES, f"its package is not trusted; run `{command}`"
                    )
                return load_lua_source(place.file, place.title)
        if root.ends(name):
            return None
    return _find_own_module(name, roots)


def _find_own_module(name: str, roots: tuple[str, ...]) -> LuaSource | None:
    """A module of everhold itself; a package of the roots replaces all of it."""
    first = name.partition(".")[0]
    if first not in OWN_PACKAGES or any(
        place.file.is_file() for root in map(SearchRoot.of, roots) for place in root.places(first)
    ):
        return None
    for place in SearchRoot(OWN_FOLDER / first, first).places(name):
        if place.file.is_file():
            return load_lua_source(place.file, place.title)
    return None


def _find_scenario(path: str, roots: tuple[str, ...]) -> LuaSource | None:
    """A file in a folder of scenarios by its full path, which users pass to `alc.eval`."""
    folder, _, file = path.rpartition("/")
    for root in map(SearchRoot.of, roots):
        if root.name == SCENARIOS_ROOT and folder and os.path.realpath(folder) == str(root.folder):
            return find_lua_module(f"{SCENARIOS_ROOT}.{file.removesuffix('.lua')}", (str(root),))
    return None


def load_lua_source(path: Path, title: str) -> LuaSource:
    """Load a file from the cache or the disk; errors in it show the title."""
    place = str(path)
    seen = make_file_fingerprint(os.stat(place))
    known = _sources.get((place, title))
    if known is None or known[0] != seen:
        now = time.time_ns()
        text = _read_bytes(place)
        cleaned = clean_lua_source(text) if len(text) <= MAX_SOURCE_BYTES else _TOO_LARGE
        source = LuaSource(title, cleaned)
        if len(source.code) <= _MAX_CACHED_SOURCE_BYTES and is_settled(seen, now):
            if len(_sources) >= _MAX_CACHED_SOURCES:
                _sources.clear()
            _sources[place, title] = seen, source
        return source
    found = known[1]
    if found.mode is None:
        code = compile_lua(found.code, f"@{title}".encode())
        found.code, found.mode = (found.code, b"t") if code is None else (code, b"b")
    return found


def clean_lua_source(text: bytes) -> bytes:
    """Remove a byte order mark, and turn a `#!` line into a comment."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    return b"--" + text if text.startswith(b"#") else text


def _read_bytes(path: str) -> bytes:
    """Read a file, up to the limit and one byte more; a file object would cost more than this."""
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
