"""Finds problems with installed packages, and repairs them.

    installed_missing   installed.json lists it, and its folder is missing; or alc.toml does, and it is not installed
    incomplete_pkg      its files require modules of its own that do not exist
    symlink_dangling    its link points to a missing folder
    path_missing        its path in alc.toml or alc.local.toml does not exist
    pin_missing         its copy that alc.lock pins is missing

`doctor` changes nothing. `repair` fetches a package again from its recorded source, and lists the
others with a suggestion.
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage, PackageTooLarge
from everhold.packages.lua.fetch import (
    UNKNOWN_SOURCE,
    BundledSource,
    FolderSource,
    GitSource,
    InstalledSource,
    PackageSource,
    fetch_packages,
)
from everhold.packages.lua.folder import is_package, is_package_name
from everhold.packages.lua.installed import (
    change_installed,
    check_size_limit,
    copy_package,
    load_installed,
)
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome, find_project_root, get_alc_home, read_packages_path
from everhold.packages.lua.project import (
    GitNeed,
    LockedPackage,
    PathNeed,
    Project,
    find_pinned_folder,
)
from everhold.packages.lua.resolve import find_in_fetched, pin_by_git
from everhold.programs.lua.search_path import INIT_FILE

_MAX_FILES: Final = 1000  # files of a package that are searched


@dataclass(frozen=True, slots=True)
class PackageFinding:
    """One package and its problem."""

    name: str
    kind: str = ""  # empty for a healthy package
    reason: str = ""
    suggestion: str = ""
    scope: str = ""
    missing: tuple[str, ...] = ()
    source: PackageSource = UNKNOWN_SOURCE
    pin: LockedPackage | None = None

    def plain(self, *keys: str) -> dict[str, Any]:
        """The finding as JSON, with these keys."""
        row: dict[str, Any] = {key: getattr(self, key) for key in ("name", *keys)}
        return row | ({"scope": self.scope} if self.scope and keys else {})


def doctor(name: str | None = None, project: str | Path | None = None) -> dict[str, Any]:
    """Check all packages, or one; changes nothing."""
    found = _find_problems(name, project)

    def of(kind: str) -> list[dict[str, Any]]:
        return [one.plain("kind", "reason", "suggestion") for one in found if one.kind == kind]

    incomplete = [
        one.plain("kind", "suggestion") | {"missing_subs": list(one.missing)}
        for one in found
        if one.kind == "incomplete_pkg"
    ]
    return {
        "healthy": [one.plain() for one in found if not one.kind],
        "incomplete_pkg": incomplete,
        "installed_missing": of("installed_missing"),
        "symlink_dangling": of("symlink_dangling"),
        "path_missing": [*of("path_missing"), *of("pin_missing")],
    }


def repair(name: str | None = None, project: str | Path | None = None) -> dict[str, Any]:
    """Fetch missing and incomplete packages again from their recorded source."""
    report: dict[str, Any] = {"repaired": [], "skipped": [], "unrepairable": [], "failed": []}
    at = get_alc_home()
    for one in _find_problems(name, project):
        act = _plan_repair(one, at)
        if not one.kind:
            report["skipped"].append(one.plain() | {"reason": "healthy"})
        elif act is None:
            row = one.plain("kind", "reason", "suggestion")
            if isinstance(one.source, FolderSource):
                row["reason"] = f"{one.reason}; its source is missing too: {one.source.path}"
            report["unrepairable"].append(row)
        else:
            try:
                act()
                report["repaired"].append(
                    one.plain("kind") | {"action": "reinstall", "source": one.source.shown}
                )
            except (BadPackage, PackageTooLarge) as error:
                report["failed"].append(one.plain("kind") | {"reason": str(error)})
    return report


# ---- checking


def _find_problems(name: str | None, given: str | Path | None) -> list[PackageFinding]:
    at = get_alc_home()
    root = find_project_root(given)
    found = list(_check_home(at))
    if root is not None:
        found += _check_project(Project(root), at)
    found = list(dict.fromkeys(found))  # a package that is healthy in two places is listed once
    if name is None:
        return found
    one = [finding for finding in found if finding.name == name]
    if not one:
        raise BadPackage(
            f"Package '{name}' not found in installed.json, among the folders in {at.packages}, or"
            " in the files of a project"
        )
    return one


def _check_home(at: AlcHome) -> Iterator[PackageFinding]:
    known = load_installed(at)
    for name, entry in known.items():
        yield _installed(name, at.packages / name, entry.source)
    for path in sorted(at.packages.glob("*")) if at.packages.is_dir() else []:
        if path.name in known:
            continue
        if path.is_symlink() and not path.exists():
            yield _dangling(path.name, path)
        elif is_package_name(path.name) and is_package(path):  # a link, or put there by hand
            yield _installed(path.name, path, UNKNOWN_SOURCE)


def _installed(name: str, folder: Path, source: PackageSource) -> PackageFinding:
    if folder.is_symlink() and not folder.exists():
        return _dangling(name, folder)
    if not folder.exists():
        reason = f"its folder is missing: {folder}"
        return PackageFinding(
            name, "installed_missing", reason, _suggestion(name, source), source=source
        )
    if missing := tuple(_missing(name, folder)):
        advice = _suggestion(name, source)
        return PackageFinding(
            name,
            "incomplete_pkg",
            _incomplete(name, missing),
            advice,
            missing=missing,
            source=source,
        )
    return PackageFinding(name)


def _dangling(name: str, link: Path) -> PackageFinding:
    reason = f"it links to a missing folder: {link.readlink()}"
    return PackageFinding(
        name,
        "symlink_dangling",
        reason,
        f'alc_pkg_unlink("{name}"), and alc_pkg_link with the folder where it is now',
    )


def _missing(name: str, folder: Path) -> Iterator[str]:
    """The modules of its own that a package's files require and that do not exist.

    They are named without the package.
    """
    if not is_package(folder):
        yield "init"
        return
    wanted = re.compile(
        rf"""\brequire\b\s*+(?:\(\s*+)?["']{re.escape(name)}\.([A-Za-z0-9_.-]+)["']"""
    )
    found: set[str] = set()
    for file in sorted(folder.rglob("*.lua"))[:_MAX_FILES]:
        text = re.sub(r"--[^\n]*", "", _text(file))
        found |= {match[1] for match in wanted.finditer(text)}
    for module in sorted(found):
        inside = folder / module.replace(".", "/")
        if (
            not inside.with_name(f"{inside.name}.lua").is_file()
            and not (inside / INIT_FILE).is_file()
        ):
            yield module


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _check_project(project: Project, at: AlcHome) -> Iterator[PackageFinding]:
    variants = project.variants()
    locked = project.locked()
    known = {
        *load_installed(at),
        *variants,
        *(one.name for one in locked if find_pinned_folder(one, project, at) is not None),
    }
    for name, need in project.needs().items():
        if isinstance(need, PathNeed):
            yield _used(name, project.place(need.path), "project", "alc.toml")
        elif name not in known and not any(
            is_package(folder / name) for folder in (*read_packages_path(), at.packages)
        ):
            advice = (
                "alc_update" if isinstance(need, GitNeed) else _suggestion(name, UNKNOWN_SOURCE)
            )
            yield PackageFinding(
                name, "installed_missing", "named in alc.toml, not installed", advice, "project"
            )
    for name, folder in variants.items():
        yield _used(name, folder, "variant", "alc.local.toml")
    for one in locked:
        copy = find_pinned_folder(one, project, at)
        if copy is None or isinstance(one.source, FolderSource):
            continue
        if is_package(copy):
            yield PackageFinding(one.name)
        else:
            reason = f"pinned copy missing: {copy}"
            yield PackageFinding(
                one.name, "pin_missing", reason, "alc_update", "project", source=one.source, pin=one
            )


def _used(name: str, folder: Path, scope: str, file: str) -> PackageFinding:
    """Check a package that a project uses in place."""
    advice = f"restore the folder, or edit {file}"
    if not folder.exists():
        return PackageFinding(name, "path_missing", f"path missing: {folder}", advice, scope)
    if missing := tuple(_missing(name, folder)):
        return PackageFinding(
            name, "incomplete_pkg", _incomplete(name, missing), advice, scope, missing=missing
        )
    return PackageFinding(name)


def _incomplete(name: str, missing: tuple[str, ...]) -> str:
    return f"required files missing: {', '.join(f'{name}.{module}' for module in missing)}"


def _suggestion(name: str, source: PackageSource) -> str:
    match source:
        case FolderSource(path=path) if not _is_offered(name, Path(path)):
            return f"alc_pkg_install from another source: {path} has no package '{name}'"
        case FolderSource() | GitSource():
            return f'alc_pkg_install("{source.shown}")'
        case BundledSource():
            return "alc_pkg_install with the source of the collection that it came with"
    return f'alc_pkg_install with a source; none was recorded for "{name}"'


# ---- repairing


def _plan_repair(one: PackageFinding, at: AlcHome) -> Callable[[], None] | None:
    """A function that repairs the package; None if its source is unknown."""
    if one.pin is not None and isinstance(one.source, GitSource):
        return lambda: _pin_again(one.pin, at)
    if one.kind not in ("installed_missing", "incomplete_pkg") or isinstance(
        one.source, BundledSource | InstalledSource
    ):
        return None
    if isinstance(one.source, FolderSource) and not _is_offered(one.name, Path(one.source.path)):
        return None
    return (
        None if one.source == UNKNOWN_SOURCE else lambda: _install_again(one.name, one.source, at)
    )


def _is_offered(name: str, folder: Path) -> bool:
    return is_package(folder) or is_package(folder / name)


def _install_again(name: str, source: PackageSource, at: AlcHome) -> None:
    rev = source.rev if isinstance(source, GitSource) else None
    with fetch_packages(source.shown, rev) as offer, change_installed(at) as changes:
        folder = find_in_fetched(offer, name)
        check_size_limit(offer.source.shown, [folder])
        copy_package(folder, at.packages / name)
        changes.put(name, offer.source, read_package_meta(folder / INIT_FILE).version or None)


def _pin_again(pin: LockedPackage | None, at: AlcHome) -> None:
    assert pin is not None and isinstance(pin.source, GitSource)
    pin_by_git(pin.name, GitNeed(pin.source.url, pin.source.rev), at)
