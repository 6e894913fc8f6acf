"""The user's installed packages: their record installed.json, and their folders.

    {"packages": {"panel": {"version": null, "source": {…}, "installed_at": …, "updated_at": …}}}

Rules
  1. Unknown keys of installed.json are kept. Sources of old files are strings (`fetch.py`).
  2. A package that replaces another is copied beside it first, then two renames follow. A crash
     between them leaves an `.old-` folder, and the next change puts it back.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage, BadPackageFile, PackageTooLarge
from everhold.packages.lua.atomic_file import (
    hold_file_lock,
    parse_json_file,
    read_text_file,
    write_atomically,
)
from everhold.packages.lua.fetch import UNKNOWN_SOURCE, PackageSource, dump_source, parse_source
from everhold.packages.lua.paths import AlcHome
from everhold.packages.settings import format_size, read_lua_options, settings


class InstalledPackage(msgspec.Struct, frozen=True):
    """One package of installed.json."""

    source: PackageSource
    version: str | None = None
    installed_at: str = ""
    updated_at: str = ""


def load_installed(home: AlcHome) -> dict[str, InstalledPackage]:
    """The installed packages by name; empty without the file."""
    return {
        name: _entry(home.installed, name, value)
        for name, value in _read(home.installed)["packages"].items()
    }


@contextmanager
def change_installed(home: AlcHome) -> Iterator[InstalledChanges]:
    """Lock the user's packages for a change. Noted changes are written to installed.json at the
    end.
    """
    with hold_file_lock(home.installed.with_name("installed.json.lock")):
        read = _read(home.installed)
        load_installed(home)  # raises for a bad entry before anything is changed
        changes = InstalledChanges(read["packages"])
        yield changes
        if changes.is_changed:
            read["packages"] = dict(sorted(changes.packages.items()))
            write_atomically(home.installed, json.dumps(read, indent=2, ensure_ascii=False) + "\n")


class InstalledChanges:
    """Changes of installed.json that are not written yet."""

    def __init__(self, packages: dict[str, Any]) -> None:
        self.packages = packages
        self.is_changed = False

    def put(self, name: str, of: PackageSource, version: str | None = None) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before = self.packages.get(name, {})
        self.packages[name] = {
            **before,
            "version": version,
            "source": dump_source(of),
            "installed_at": before.get("installed_at") or now,
            "updated_at": now,
        }
        self.is_changed = True

    def drop(self, name: str) -> None:
        del self.packages[name]
        self.is_changed = True


def _read(file: Path) -> dict[str, Any]:
    text = read_text_file(file)
    read = {"packages": {}} if text is None else parse_json_file(file, text)
    if not isinstance(read, dict):
        raise BadPackageFile(str(file), "it should be an object")
    packages = read.setdefault("packages", {})
    if not isinstance(packages, dict) or not all(
        isinstance(one, dict) for one in packages.values()
    ):
        raise BadPackageFile(str(file), "packages should be an object of objects")
    return read


def _entry(file: Path, name: str, value: dict[str, Any]) -> InstalledPackage:
    try:
        known = {
            key: value[key]
            for key in ("version", "installed_at", "updated_at")
            if value.get(key) is not None
        }
        return msgspec.convert(
            {
                **known,
                "source": dump_source(
                    parse_source(value.get("source") or dump_source(UNKNOWN_SOURCE))
                ),
            },
            InstalledPackage,
        )
    except (msgspec.ValidationError, TypeError) as error:
        raise BadPackageFile(str(file), f"packages.{name} cannot be read: {error}") from None


# ---- folders of packages

_NEW: Final = ".new-"
_OLD: Final = ".old-"


def copy_package(source: Path, target: Path) -> list[str]:
    """Copy a package to `target`, replacing it in one rename; returns the paths that were left out.

    Left out are links that lead out of the package, and entries that are neither files nor folders.
    `.git` is skipped.
    """
    if target.is_relative_to(source) and target != source:
        raise BadPackage(f"{target} is inside {source}", "Give the folder of the package itself.")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        recover_packages_folder(target.parent)
        fresh = target.with_name(_NEW + target.name)
        old = target.with_name(_OLD + target.name)
        left_out = list(_copy_parts(source, fresh))
        if target.exists():
            target.rename(old)
        fresh.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        words = f"The package cannot be copied to {target}: {error.strerror or error}"
        raise BadPackage(words, "Nothing was changed.") from None
    return left_out


def measure_package(folder: Path) -> int:
    """Bytes of the files that `copy_package` would copy."""
    return sum(path.stat().st_size for path, _, fits in _parts(folder) if fits and path.is_file())


def recover_packages_folder(packages: Path) -> None:
    """Finish or undo changes that a crash interrupted, and remove leftover copies."""
    for path in packages.glob(f"{_OLD}*"):
        target = path.with_name(path.name.removeprefix(_OLD))
        if target.exists():
            shutil.rmtree(path)
        else:
            path.rename(target)
    for path in packages.glob(f"{_NEW}*"):
        shutil.rmtree(path)


def remove_package_folder(folder: Path) -> bool:
    """Remove a package; returns whether it existed."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    trash = folder.with_name(_NEW + folder.name)
    try:
        recover_packages_folder(folder.parent)
        folder.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        raise BadPackage(
            f"The package cannot be removed: {error}", "Check the permissions of the folder."
        ) from None
    return True


def _copy_parts(source: Path, target: Path) -> Iterator[str]:
    target.mkdir(mode=0o700)
    for path, here, fits in _parts(source):
        if not fits:
            yield str(here)
        elif path.is_dir():
            (target / here).mkdir(mode=0o700)
        else:
            shutil.copyfile(path, target / here)


def _parts(source: Path) -> Iterator[tuple[Path, Path, bool]]:
    """Each entry of a package: its path, its path inside the package, and whether it is copied.

    A folder comes before its content.
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


#: Decides whether a package of so many bytes is accepted; called with the size and the limit.
AcceptSize = Callable[[int, int], bool]


def check_size_limit(
    source: str,
    folders: Iterable[Path],
    *,
    limit: int | None = None,
    accept: AcceptSize | None = None,
) -> None:
    """Raise `PackageTooLarge` if these folders are larger than `limit`, unless `accept` agrees.

    Without a `limit`, the setting `max_package` applies.
    """
    largest = read_lua_options(settings()).max_package if limit is None else limit
    size = sum(measure_package(folder) for folder in folders)
    if size > largest and not (accept is not None and accept(size, largest)):
        needed = f"{-(-size // 1_000_000)}MB"  # rounded up
        raise PackageTooLarge(source, format_size(size), format_size(largest), needed)
