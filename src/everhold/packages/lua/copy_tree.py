"""Folders of packages on the disk: copied whole, put in their place at once, taken away.

A package that replaces another is copied beside it first. Then two renames follow; whoever dies
between them leaves an `.old-` folder, which the next one who changes something puts back.

How large an installation may be before the user is asked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from everhold.errors import BadPackage, PackageTooLarge
from everhold.packages.lua.lua_settings import format_size, read_lua_options
from everhold.packages.lua.project import is_package_name
from everhold.packages.settings import settings
from everhold.programs.lua.search_path import INIT_FILE

_NEW: Final = ".new-"
_OLD: Final = ".old-"


def is_package(folder: Path) -> bool:
    return (folder / INIT_FILE).is_file()


def list_collection(folder: Path) -> dict[str, Path]:
    """The packages that stand in a folder side by side, by name."""
    found = sorted(
        path for path in folder.iterdir() if is_package_name(path.name) and is_package(path)
    )
    return {path.name: path for path in found}


def copy_package(source: Path, target: Path) -> list[str]:
    """Make `target` a copy of a package; returns what was left out of it.

    Links that lead out of the package are left out, and so is what is neither a file nor a folder,
    and `.git`.
    """
    if target.is_relative_to(source) and target != source:
        raise BadPackage(
            f"{target} is inside of {source}", "Name the folder of the package itself."
        )
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        recover_packages_folder(target.parent)
        fresh = target.with_name(_NEW + target.name)
        old = target.with_name(_OLD + target.name)
        left = list(_copied(source, fresh))
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise BadPackage(f"Failed to copy package: {error}", "Nothing was changed.") from None
    return left


def measure_package(folder: Path) -> int:
    """Bytes of the files that `copy_package` would copy."""
    return sum(path.stat().st_size for path, _, fits in _parts(folder) if fits and path.is_file())


def recover_packages_folder(packages: Path) -> None:
    """Put back what somebody who died left on the way, and clear away the rest."""
    for path in packages.glob(f"{_OLD}*"):
        target = path.with_name(path.name.removeprefix(_OLD))
        if target.exists():
            shutil.rmtree(path)
        else:
            path.rename(target)
    for path in packages.glob(f"{_NEW}*"):
        shutil.rmtree(path)


def remove_package_folder(folder: Path) -> bool:
    """Take a package away; returns whether there was one."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    gone = folder.with_name(_NEW + folder.name)
    try:
        recover_packages_folder(folder.parent)
        folder.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        raise BadPackage(
            f"Failed to remove package: {error}", "Look at the rights of the folder."
        ) from None
    return True


def _copied(source: Path, target: Path) -> Iterator[str]:
    target.mkdir(mode=0o700)
    for path, here, fits in _parts(source):
        if not fits:
            yield str(here)
        elif path.is_dir():
            (target / here).mkdir(mode=0o700)
        else:
            shutil.copyfile(path, target / here)


def _parts(source: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Each folder and file of a package, where it is in it, and whether it belongs to a copy;
    folders come first.
    """
    real = source.resolve()
    for place, folders, names in os.walk(source):
        here = Path(place).relative_to(source)
        linked = [name for name in folders if Path(place, name).is_symlink()]
        folders[:] = sorted(name for name in folders if name != ".git" and name not in linked)
        yield from ((Path(place, name), here / name, False) for name in linked)
        yield from ((Path(place, name), here / name, True) for name in folders)
        for name in sorted(names):
            path = Path(place, name)
            if name != ".git":
                yield path, here / name, path.is_file() and path.resolve().is_relative_to(real)


#: Says whether so many bytes are wanted, given the limit.
AcceptSize = Callable[[int, int], bool]


def check_size_limit(
    source: str,
    folders: Iterable[Path],
    *,
    limit: int | None = None,
    accept: AcceptSize | None = None,
) -> None:
    """Raise `PackageTooLarge` if these folders are larger than the limit, unless whoever is asked
    accepts it.

    Without a `limit`, that of the settings counts. Nothing is written here.
    """
    largest = read_lua_options(settings()).max_package if limit is None else limit
    size = sum(measure_package(folder) for folder in folders)
    if size > largest and not (accept is not None and accept(size, largest)):
        raise PackageTooLarge(source, format_size(size), format_size(largest))
