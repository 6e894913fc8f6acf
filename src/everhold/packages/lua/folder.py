"""Lua packages in folders: a folder with an init.lua in it is a package, and its name is the
folder's.

Rules
  1. Folders are a search path: the first that has a package of a name hides it in those that come
     after, for `run` as for `require`. A root that is one package under a chosen name
     (`search_path.py`) is that package or none.
  2. Nothing is remembered: a package that was installed a moment ago is found.
  3. Nothing is run. What a package says of itself is read as text (`meta.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everhold.packages.lua.meta import meta
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.search_path import MAIN, NAME, Root

__all__ = ["MAIN", "Folders", "home_of", "package", "packages"]


class Folders(msgspec.Struct, frozen=True):
    """Where Lua packages are looked for, in this order."""

    # the project's: pinned packages, packages_path, packages/ beside the settings
    own: tuple[Path | Root, ...] = ()
    installed: tuple[Path | Root, ...] = ()  # the user's

    @property
    def all(self) -> tuple[Path | Root, ...]:
        return (*self.own, *self.installed)

    @property
    def plain(self) -> list[list[str]]:
        """For another process; `read` takes it there."""
        return [[str(root) for root in part] for part in (self.own, self.installed)]

    @classmethod
    def read(cls, plain: list[list[str]]) -> Folders:
        own, installed = (tuple(Root.of(root) for root in part) for part in plain)
        return cls(own, installed)


def package(
    name: str, folders: Iterable[Path | Root], roots: Sequence[Path | Root]
) -> LuaProgram | None:
    """The package of this name in the first folder that has one; it finds what it requires in
    `roots`.

    Raises `UnknownProgram` if the name was chosen for a package that is not there.
    """
    if NAME.fullmatch(name) is None:
        return None
    for root in map(Root.of, folders):
        if root.name == name or (not root.name and _is_package(root, name)):
            return _program(root, name, roots)
    return None


def packages(folders: Iterable[Path | Root], roots: Sequence[Path | Root]) -> list[LuaProgram]:
    """Every package that can be found by its name, with what it says of itself as its
    documentation.
    """
    found: dict[str, LuaProgram] = {}
    taken: set[str] = set()  # also by packages that are not there
    for root in map(Root.of, folders):
        for name in [root.name] if root.name else _names(root.folder):
            if name in taken:
                continue
            if root.name:
                taken.add(name)
            if _is_package(root, name):
                taken.add(name)
                found[name] = _program(root, name, roots)
                found[name].__doc__ = meta(home_of(root, name) / MAIN).description
    return [found[name] for name in sorted(found)]


def home_of(root: Root, name: str) -> Path:
    """The folder that a package of this name has in a root."""
    return root.settled().folder if root.name else root.settled().folder / name


def _program(root: Root, name: str, roots: Sequence[Path | Root]) -> LuaProgram:
    return LuaProgram.found(f"{home_of(root, name) / MAIN}:{name}", roots=roots)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if NAME.fullmatch(path.name))
    except OSError:  # it is not there (yet), is no folder, or is somebody else's
        return []


def _is_package(root: Root, name: str) -> bool:
    try:
        return any(
            place.file.name == MAIN and place.file.is_file() and root.keeps(place)
            for place in root.places(name)
        )
    except OSError:
        return False
