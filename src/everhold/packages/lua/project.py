"""What a project says of its packages.

    alc.toml         what it needs: name = "*", "1.2.3", { path, version? } or { git, rev? }
    alc.lock         what that was resolved to; written by `update`, read by `require`
    alc.local.toml   packages that this one machine takes from somewhere else; not shared

Rules
  1. A file that cannot be read, or says something else than it may, raises `BadPackageFile` and is
     left as it is.
  2. An edit keeps comments and order. Whoever edits holds the lock of the project.
  3. Relative paths start from the project's folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.lua import toml_edit
from everhold.packages.lua.atomic_file import hold_file_lock, read_text_file, write_atomically
from everhold.packages.lua.fetch import PackageSource, dump_source, parse_source
from everhold.packages.lua.paths import PROJECT_FILE

LOCK: Final = "alc.lock"
LOCAL: Final = "alc.local.toml"
INSTALL_LOCK_FILE: Final = ".alc-install.lock"
LOCK_VERSION: Final = 1  # of alc.lock
LEGACY_SOURCE: Final = (
    "local_dir"  # the source of packages in locks from before there was an alc.toml
)

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class VersionNeed(msgspec.Struct, frozen=True):
    """Any installed version (`*`), or exactly this one."""

    version: str


class PathNeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    version: str | None = None


class GitNeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    git: str
    rev: str | None = None


PackageNeed = VersionNeed | PathNeed | GitNeed


class LockedPackage(msgspec.Struct, frozen=True):
    """One package of alc.lock."""

    name: str
    source: PackageSource
    version: str | None = None


def is_package_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_package_name(name: str) -> str:
    """The name, if a package may have it."""
    if not is_package_name(name):
        raise BadPackage(
            f"Invalid package name '{name}'",
            "A name begins with a letter; then letters, digits, _ and - may follow.",
        )
    return name


class Project(msgspec.Struct, frozen=True):
    """A folder with an alc.toml, or one that may get one."""

    root: Path

    @property
    def toml(self) -> Path:
        return self.root / PROJECT_FILE

    @property
    def lock(self) -> Path:
        return self.root / LOCK

    @property
    def local(self) -> Path:
        return self.root / LOCAL

    def place(self, path: str) -> Path:
        """A path of one of its files."""
        return (self.root / Path(path).expanduser()).absolute()

    def guarded(self) -> AbstractContextManager[None]:
        """While its files are edited."""
        return hold_file_lock(self.root / INSTALL_LOCK_FILE)

    # ---- alc.toml

    def needs(self) -> dict[str, PackageNeed]:
        """What alc.toml names, in its order; nothing if there is none."""
        table = _table(self.toml, "packages")
        return {name: _need(self.toml, name, value) for name, value in table.items()}

    def add(self, names: Iterable[str]) -> None:
        """Name packages in alc.toml that are not named there, in any version."""

        def edit(text: str) -> str:
            there = toml_edit.parse_toml(text).get("packages", {})
            for name in names:
                text = (
                    text
                    if name in there
                    else toml_edit.put_toml_value(text, ("packages", name), "*")
                )
            return text

        _edit(self.toml, edit)

    def forget(self, name: str) -> None:
        _edit(self.toml, lambda text: toml_edit.drop_toml_value(text, ("packages", name)))

    # ---- alc.lock

    def locked(self) -> list[LockedPackage]:
        """The packages of alc.lock; none if there is no such file."""
        text = read_text_file(self.lock)
        if text is None:
            return []
        read = _read(self.lock, text)
        if read.get("version") != LOCK_VERSION:
            raise BadPackageFile(
                str(self.lock), f"unsupported alc.lock version {read.get('version')}: expected 1"
            )
        return [_locked(self.lock, one) for one in _list(self.lock, read.get("package", []))]

    def write_lock(self, packages: Iterable[LockedPackage]) -> None:
        lines = [f"version = {LOCK_VERSION}"]
        for one in packages:
            facts = {"name": one.name, "version": one.version}
            lines += ["", "[[package]]", *toml_edit.format_toml_pairs(_said(facts))]
            lines += [
                "",
                "[package.source]",
                *toml_edit.format_toml_pairs(_said(dump_source(one.source))),
            ]
        write_atomically(self.lock, "\n".join([*lines, ""]), mode=0o644)

    # ---- alc.local.toml

    def variants(self) -> dict[str, Path]:
        """The packages that this machine takes from elsewhere, and from where."""
        found: dict[str, Path] = {}
        for name, value in _table(self.local, "packages").items():
            if not isinstance(value, dict) or not isinstance(value.get("path"), str):
                raise BadPackageFile(
                    str(self.local), f"packages.{name} should be a table with a path"
                )
            _checked_name(self.local, name)
            found[name] = self.place(value["path"])
        return found

    def add_variants(self, places: dict[str, str]) -> None:
        """Take packages from elsewhere on this machine; what is named there already stays."""

        def edit(text: str) -> str:
            there = toml_edit.parse_toml(text).get("packages", {})
            for name, path in places.items():
                text = (
                    text
                    if name in there
                    else toml_edit.put_toml_value(text, ("packages", name), {"path": path})
                )
            return text

        _edit(self.local, edit)

    def forget_variant(self, name: str) -> None:
        _edit(self.local, lambda text: toml_edit.drop_toml_value(text, ("packages", name)))


# ---- reading


def _read(file: Path, text: str) -> dict[str, Any]:
    try:
        return toml_edit.parse_toml(text)
    except ValueError as error:
        raise BadPackageFile(str(file), f"it is not TOML: {error}") from None


def _table(file: Path, name: str) -> dict[str, Any]:
    text = read_text_file(file)
    table = {} if text is None else _read(file, text).get(name, {})
    if not isinstance(table, dict):
        raise BadPackageFile(str(file), f"{name} should be a table")
    return table


def _list(file: Path, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadPackageFile(str(file), "package should be an array of tables, [[package]]")
    return value


def _need(file: Path, name: str, value: Any) -> PackageNeed:
    _checked_name(file, name)
    if isinstance(value, str) and value:
        return VersionNeed(value)
    if isinstance(value, dict):
        kind: type[PathNeed | GitNeed] = PathNeed if "path" in value else GitNeed
        with suppress(msgspec.ValidationError):
            return msgspec.convert(value, kind)
    raise BadPackageFile(
        str(file),
        f'packages.{name} should be "*", a version, {{ path, version? }} or {{ git, rev? }}',
    )


def _locked(file: Path, value: Any) -> LockedPackage:
    try:
        name = value["name"]
        version = value.get("version")
        if not isinstance(name, str) or not isinstance(version, str | None):
            raise TypeError("name and version should be strings")
        _checked_name(file, name)
        if value["source"].get("type") == LEGACY_SOURCE:
            raise TypeError(
                "it has a form that is no longer used; `everhold pkg migrate` makes an alc.toml"
                " of it"
            )
        return LockedPackage(name, parse_source(value["source"]), version)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise BadPackageFile(str(file), f"a [[package]] cannot be read: {error}") from None


def _checked_name(file: Path, name: str) -> None:
    if not is_package_name(name):
        raise BadPackageFile(str(file), f"{name!r} is not the name of a package")


# ---- writing


def _edit(file: Path, edit: Callable[[str], str]) -> None:
    text = read_text_file(file) or ""
    try:
        edited = edit(text)
    except ValueError as error:
        raise BadPackageFile(str(file), str(error)) from None
    if edited != text:
        write_atomically(file, edited, mode=0o644)


def _said(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
