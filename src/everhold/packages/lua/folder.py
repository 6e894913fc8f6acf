"""Finds Lua packages in folders. A folder with an init.lua is a package, named as the folder.

Rules
  1. The folders are a search path: the first package of a name hides later ones, for `run` and for
     `require`. A root that stands for one named package (`search_path.py`) is searched only for it.
  2. Nothing is cached: a package that was installed a moment ago is found.
  3. Nothing is run. Metadata is read as text (`meta.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from everhold.errors import BadPackage
from everhold.packages.lua.meta import read_package_meta
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.search_path import INIT_FILE, PACKAGE_NAME, SearchRoot

__all__ = [
    "INIT_FILE",
    "PackageFolders",
    "check_package_name",
    "find_package",
    "get_package_folder",
    "is_package",
    "is_package_name",
    "list_collection",
    "list_folder_packages",
]


_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")


def is_package_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_package_name(name: str) -> str:
    """The name, if it is valid; raises `BadPackage`."""
    if not is_package_name(name):
        raise BadPackage(
            f"Invalid package name '{name}'",
            "A name begins with a letter, followed by up to 99 letters, digits, _ and -.",
        )
    return name


def is_package(folder: Path) -> bool:
    return (folder / INIT_FILE).is_file()


def list_collection(folder: Path) -> dict[str, Path]:
    """The packages directly inside a folder, by name."""
    found = sorted(
        path for path in folder.iterdir() if is_package_name(path.name) and is_package(path)
    )
    return {path.name: path for path in found}


class PackageFolders(msgspec.Struct, frozen=True):
    """The folders that are searched for Lua packages, in this order."""

    # the project's: pinned packages, packages_path, packages/ beside the settings
    own: tuple[Path | SearchRoot, ...] = ()
    installed: tuple[Path | SearchRoot, ...] = ()  # the user's

    @property
    def all(self) -> tuple[Path | SearchRoot, ...]:
        return (*self.own, *self.installed)

    @property
    def plain(self) -> list[list[str]]:
        """For another process, which restores it with `read`."""
        return [[str(root) for root in part] for part in (self.own, self.installed)]

    @classmethod
    def read(cls, plain: list[list[str]]) -> PackageFolders:
        own, installed = (tuple(SearchRoot.of(root) for root in part) for part in plain)
        return cls(own, installed)


def find_package(
    name: str, folders: Iterable[Path | SearchRoot], roots: Sequence[Path | SearchRoot]
) -> LuaProgram | None:
    """The first package of this name in `folders`; it requires modules from `roots`.

    Raises `UnknownProgram` if a root is reserved for this name and has no package.
    """
    if PACKAGE_NAME.fullmatch(name) is None:
        return None
    for root in map(SearchRoot.of, folders):
        if root.name == name or (not root.name and _is_package(root, name)):
            return _program(root, name, roots)
    return None


def list_folder_packages(
    folders: Iterable[Path | SearchRoot], roots: Sequence[Path | SearchRoot]
) -> list[LuaProgram]:
    """Every package that can be found by name. Its description is its `__doc__`."""
    found: dict[str, LuaProgram] = {}
    taken: set[str] = set()  # also names reserved for missing packages
    for root in map(SearchRoot.of, folders):
        for name in [root.name] if root.name else _names(root.folder):
            if name in taken:
                continue
            if root.name:
                taken.add(name)
            if _is_package(root, name):
                taken.add(name)
                found[name] = _program(root, name, roots)
                found[name].__doc__ = read_package_meta(
                    get_package_folder(root, name) / INIT_FILE
                ).description
    return [found[name] for name in sorted(found)]


def get_package_folder(root: SearchRoot, name: str) -> Path:
    """The folder of a package of this name in a root."""
    return root.settled().folder if root.name else root.settled().folder / name


def _program(root: SearchRoot, name: str, roots: Sequence[Path | SearchRoot]) -> LuaProgram:
    return LuaProgram.found(f"{get_package_folder(root, name) / INIT_FILE}:{name}", roots=roots)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if PACKAGE_NAME.fullmatch(path.name))
    except OSError:  # missing, not a folder, or not readable
        return []


def _is_package(root: SearchRoot, name: str) -> bool:
    try:
        return any(
            place.file.name == INIT_FILE and place.file.is_file() and root.keeps(place)
            for place in root.places(name)
        )
    except OSError:
        return False
