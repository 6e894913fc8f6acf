"""installed.json in the home: what was installed for the user, from where, and when.

    {"packages": {"panel": {"version": null, "source": {…}, "installed_at": …, "updated_at": …}}}

Keys that we do not know are kept as they are. Sources of old files are bare texts; see `source.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from everhold.errors import BadPackageFile
from everhold.packages.lua.atomic_file import hold_file_lock, read_text_file, write_atomically
from everhold.packages.lua.fetch import UNKNOWN_SOURCE, PackageSource, dump_source, parse_source
from everhold.packages.lua.paths import AlcHome


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
