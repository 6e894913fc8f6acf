"""installed.json in the home: what was installed for the user, from where, and when.

    {"packages": {"panel": {"version": null, "source": {…}, "installed_at": …, "updated_at": …}}}

Keys that we do not know are kept as they are. Sources of old files are bare texts; see `source.py`.
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
from everhold.packages.lua.atomic_file import hold_file_lock, read_text_file, write_atomically
from everhold.packages.lua.fetch import UNKNOWN_SOURCE, PackageSource, dump_source, parse_source
from everhold.packages.lua.paths import AlcHome
from everhold.packages.settings import format_size, read_lua_options, settings


class InstalledPackage(msgspec.Struct, frozen=True):
    """One package that was installed."""

    source: PackageSource
    version: str | None = None
    installed_at: str = ""
    updated_at: str = ""


def load_installed(home: AlcHome) -> dict[str, InstalledPackage]:
    """What was installed, by name; nothing if there is no such file."""
    return {
        name: _entry(home.installed, name, value)
        for name, value in _packages(_read(home.installed)).items()
    }


@contextmanager
def change_installed(home: AlcHome) -> Iterator[InstalledChanges]:
    """While packages of the user are put in, replaced or taken away; what was noted is written at
    the end.
    """
    with hold_file_lock(home.installed.with_name("installed.json.lock")):
        read = _read(home.installed)
        load_installed(home)  # whether all of it can be understood, before anything is done
        changes = InstalledChanges(_packages(read))
        yield changes
        if changes.are_many:
            read["packages"] = dict(sorted(changes.packages.items()))
            write_atomically(home.installed, json.dumps(read, indent=2, ensure_ascii=False) + "\n")


class InstalledChanges:
    """What happens to packages, noted down to be written."""

    def __init__(self, packages: dict[str, Any]) -> None:
        self.packages = packages
        self.are_many = False

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
        self.are_many = True

    def drop(self, name: str) -> None:
        del self.packages[name]
        self.are_many = True


def _read(file: Path) -> dict[str, Any]:
    text = read_text_file(file)
    try:
        read = {"packages": {}} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadPackageFile(str(file), f"it is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise BadPackageFile(str(file), "it should be an object")
    _packages_of(file, read)
    return read


def _packages_of(file: Path, read: dict[str, Any]) -> None:
    packages = read.setdefault("packages", {})
    if not isinstance(packages, dict) or not all(
        isinstance(one, dict) for one in packages.values()
    ):
        raise BadPackageFile(str(file), "packages should be an object of objects")


def _packages(read: dict[str, Any]) -> dict[str, Any]:
    packages: dict[str, Any] = read["packages"]
    return packages


def _entry(file: Path, name: str, value: dict[str, Any]) -> InstalledPackage:
    try:
        told = {
            key: value[key]
            for key in ("version", "installed_at", "updated_at")
            if value.get(key) is not None
        }
        return msgspec.convert(
            {
                **told,
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
