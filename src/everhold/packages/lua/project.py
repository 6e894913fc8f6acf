"""A project's package files, and the search order of packages.

    alc.toml         requirements: name = "*", "1.2.3", { path, version? } or { git, rev? }
    alc.lock         resolved packages; written by `update`, read by `require`
    alc.local.toml   packages that this machine takes from other folders; not shared

Packages are found in this order:

    1. alc.local.toml of the project
    2. alc.lock of the project: a path, a version, a revision
    3. the folders of ALC_PACKAGES_PATH
    4. packages/ in the home

Rules
  1. An unreadable or malformed file raises `BadPackageFile` and is not changed.
  2. An edit keeps comments and order, and holds the project's lock.
  3. Relative paths start from the project's folder.
  4. Entries of 1 and 2 are single packages, named by their key and not by their folder. If a pinned
     package is missing, no other version takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackageFile
from everhold.packages.lua.atomic_file import hold_file_lock, read_text_file, write_atomically
from everhold.packages.lua.fetch import (
    FolderSource,
    GitSource,
    InstalledSource,
    PackageSource,
    dump_source,
    parse_source,
)
from everhold.packages.lua.folder import is_package_name
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import (
    PROJECT_FILE,
    AlcHome,
    Env,
    expand_path,
    find_project_root,
    get_alc_home,
    is_strict,
    is_version,
    read_packages_path,
)
from everhold.packages.toml import (
    BadToml,
    drop_toml_value,
    format_toml_pairs,
    parse_toml,
    put_toml_value,
)
from everhold.programs.lua.search_path import INIT_FILE, SearchRoot

LOCK: Final = "alc.lock"
LOCAL: Final = "alc.local.toml"
INSTALL_LOCK_FILE: Final = ".alc-install.lock"
LOCK_VERSION: Final = 1  # of alc.lock
LEGACY_SOURCE: Final = "local_dir"  # the source type in locks from before alc.toml existed


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


class Project(msgspec.Struct, frozen=True):
    """A folder with an alc.toml, or a folder where `init` may create one."""

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
        """The absolute path for a path in one of the files."""
        return expand_path(path, self.root)

    def guarded(self) -> AbstractContextManager[None]:
        """Hold the lock for edits of the project's files."""
        return hold_file_lock(self.root / INSTALL_LOCK_FILE)

    # ---- alc.toml

    def needs(self) -> dict[str, PackageNeed]:
        """The requirements of alc.toml, in order; empty without the file."""
        table = _table(self.toml, "packages")
        return {name: _need(self.toml, name, value) for name, value in table.items()}

    def add(self, names: Iterable[str]) -> None:
        """Add packages to alc.toml with any version; existing entries stay."""

        def edit(text: str) -> str:
            there = parse_toml(text).get("packages", {})
            for name in names:
                text = text if name in there else put_toml_value(text, ("packages", name), "*")
            return text

        _edit(self.toml, edit)

    def forget(self, name: str) -> None:
        _edit(self.toml, lambda text: drop_toml_value(text, ("packages", name)))

    # ---- alc.lock

    def locked(self) -> list[LockedPackage]:
        """The packages of alc.lock; empty without the file."""
        text = read_text_file(self.lock)
        if text is None:
            return []
        read = _read(self.lock, text)
        if read.get("version") != LOCK_VERSION:
            raise BadPackageFile(
                str(self.lock), f"unsupported alc.lock version {read.get('version')}; 1 is read"
            )
        value = read.get("package", [])
        if not isinstance(value, list):
            raise BadPackageFile(
                str(self.lock), "package should be an array of tables, [[package]]"
            )
        return [_locked(self.lock, one) for one in value]

    def write_lock(self, packages: Iterable[LockedPackage]) -> None:
        text = f"version = {LOCK_VERSION}\n"
        for one in packages:
            facts = format_toml_pairs(_without_none({"name": one.name, "version": one.version}))
            source = format_toml_pairs(_without_none(dump_source(one.source)))
            text += f"\n[[package]]\n{facts}\n[package.source]\n{source}"
        write_atomically(self.lock, text, mode=0o644)

    # ---- alc.local.toml

    def variants(self) -> dict[str, Path]:
        """The packages of alc.local.toml, with their folders."""
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
        """Add packages to alc.local.toml; existing entries stay."""

        def edit(text: str) -> str:
            there = parse_toml(text).get("packages", {})
            for name, path in places.items():
                text = (
                    text
                    if name in there
                    else put_toml_value(text, ("packages", name), {"path": path})
                )
            return text

        _edit(self.local, edit)

    def forget_variant(self, name: str) -> None:
        _edit(self.local, lambda text: drop_toml_value(text, ("packages", name)))


# ---- reading


def _read(file: Path, text: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except BadToml as error:
        raise BadPackageFile(str(file), f"it is not TOML: {error}") from None


def _table(file: Path, name: str) -> dict[str, Any]:
    text = read_text_file(file)
    table = {} if text is None else _read(file, text).get(name, {})
    if not isinstance(table, dict):
        raise BadPackageFile(str(file), f"{name} should be a table")
    return table


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
            raise TypeError("it has an old form; `everhold pkg migrate` converts it to an alc.toml")
        source = parse_source(value["source"])
        for text in (version, source.rev if isinstance(source, GitSource) else None):
            if text is not None and not is_version(text):
                raise TypeError(f"{text[:100]!r} is not a version")
        return LockedPackage(name, source, version)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        raise BadPackageFile(str(file), f"a [[package]] cannot be read: {error}") from None


def _checked_name(file: Path, name: str) -> None:
    if not is_package_name(name):
        raise BadPackageFile(str(file), f"{name!r} is not a valid package name")


# ---- writing


def _edit(file: Path, edit: Callable[[str], str]) -> None:
    text = read_text_file(file) or ""
    try:
        edited = edit(text)
    except BadToml as error:
        raise BadPackageFile(str(file), str(error)) from None
    if edited != text:
        write_atomically(file, edited, mode=0o644)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


# ---- where packages are found

SHORT_REVISION = 12  # characters of a revision in the name of its folder


class PackageRoots(msgspec.Struct, frozen=True):
    """The folders that are searched for packages, with or without a project."""

    pinned: tuple[SearchRoot, ...]
    path: tuple[SearchRoot, ...]
    home: SearchRoot

    @property
    def all(self) -> tuple[SearchRoot, ...]:
        return (*self.pinned, *self.path, self.home)


def find_package_roots(
    project: str | Path | None = None, *, start: Path | None = None, env: Env | None = None
) -> PackageRoots:
    """The search order for a project: `project`, else that of `start` or of the current folder.

    Raises `BadPackageFile` for an unreadable file of the project.
    """
    root = find_project_root(project, start=start, env=env)
    at = get_alc_home(env)
    strict = is_strict(env)
    chosen = dict[str, Path]()
    if root is not None:
        for name, folder in _chosen_folders(Project(root), at):
            chosen.setdefault(name, folder)
    return PackageRoots(
        tuple(SearchRoot(folder, name, strict) for name, folder in chosen.items()),
        tuple(SearchRoot(folder, strict=strict) for folder in read_packages_path(env)),
        SearchRoot(at.packages, strict=strict),
    )


def _chosen_folders(project: Project, at: AlcHome) -> Iterator[tuple[str, Path]]:
    yield from project.variants().items()
    for one in project.locked():
        folder = find_pinned_folder(one, project, at)
        if folder is not None:
            yield one.name, folder


def find_pinned_folder(one: LockedPackage, project: Project, at: AlcHome) -> Path | None:
    """The folder of a package of alc.lock; None if any installed version may be used."""
    match one.source:
        case FolderSource(path):
            return project.place(path)
        case GitSource(_, rev) if rev is not None:
            return at.pinned(one.name, rev[:SHORT_REVISION])
        case InstalledSource() if one.version is not None:
            copy = at.pinned(one.name, one.version)
            usual = at.packages / one.name
            is_usual = (
                not copy.exists() and read_package_meta(usual / INIT_FILE).version == one.version
            )
            return usual if is_usual else copy
    return None
