"""Lua packages in folders: a folder with an init.lua in it is a package, and its name is the folder's.

Rules
  1. Folders are a search path: the first that has a package of a name hides it in those that come after, for `run` as
     for `require`.
  2. Nothing is remembered: a package that was installed a moment ago is found.
  3. Nothing is run. What a package says of itself is read as text (`meta.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.packages.meta import meta
from everhold.programs.lua.program import LuaProgram

MAIN: Final = "init.lua"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Folders:
    """Where Lua packages are looked for, in this order."""

    own: tuple[Path, ...] = ()  # the project's: those of the setting packages_path, then packages/ beside the settings
    installed: tuple[Path, ...] = ()  # the user's

    @property
    def all(self) -> tuple[Path, ...]:
        return (*self.own, *self.installed)

    @property
    def plain(self) -> list[list[str]]:
        """For another process; `read` takes it there."""
        return [[str(folder) for folder in part] for part in (self.own, self.installed)]

    @classmethod
    def read(cls, plain: list[list[str]]) -> Folders:
        own, installed = (tuple(Path(folder) for folder in part) for part in plain)
        return cls(own, installed)


def package(name: str, folders: Iterable[Path], roots: Sequence[Path]) -> LuaProgram | None:
    """The package of this name in the first folder that has one; it finds what it requires in `roots`."""
    if _NAME.fullmatch(name) is None:
        return None
    for folder in folders:
        if _is_package(folder / name):
            return _program(folder, name, roots)
    return None


def packages(folders: Iterable[Path], roots: Sequence[Path]) -> list[LuaProgram]:
    """Every package that can be found by its name, with what it says of itself as its documentation."""
    found: dict[str, LuaProgram] = {}
    for folder in folders:
        for name in _names(folder):
            if name not in found and _is_package(folder / name):
                found[name] = _program(folder, name, roots)
                found[name].__doc__ = meta(folder / name / MAIN).description
    return [found[name] for name in sorted(found)]


def _program(folder: Path, name: str, roots: Sequence[Path]) -> LuaProgram:
    return LuaProgram.found(f"{folder.resolve() / name / MAIN}:{name}", roots=roots)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    except OSError:  # it is not there (yet), is no folder, or is somebody else's
        return []


def _is_package(folder: Path) -> bool:
    try:
        return (folder / MAIN).is_file()
    except OSError:
        return False
