"""Which packages there are, where each is, and which of them a name means.

The order is that of `roots.py`: the first package of a name is *active* and overrides the others.
Nothing is run; a file of the project that cannot be read becomes a warning, and the rest is listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackageFile
from everhold.packages import settings
from everhold.packages.lua import copy_tree
from everhold.packages.lua.installed import Entry, entries
from everhold.packages.lua.listing_query import Row, picked
from everhold.packages.lua.meta import fields, meta
from everhold.packages.lua.paths import Home, home, is_strict, packages_path, project_root
from everhold.packages.lua.project import ByGit, ByPath, Locked, Need, Project, is_name
from everhold.packages.lua.roots import pinned
from everhold.packages.lua.source import Bundled, Folder, kind
from everhold.programs.lua.search_path import MAIN

SUMMARY: Final = (
    "name",
    "scope",
    "version",
    "active",
    "resolved_source_path",
    "resolved_source_kind",
)
FULL: Final = (
    *SUMMARY,
    *(
        "install_source",
        "installed_at",
        "updated_at",
        "override_paths",
        "overrides",
        "linked",
        "link_target",
    ),
    *("broken", "path", "source", "source_type", "meta", "error", "description", "category"),
)
USUAL: Final = 50
SORT: Final = "-active,-installed_at"


@dataclass(slots=True)
class _Found:
    """What was collected on the way."""

    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def list_packages(
    project: str | Path | None = None,
    *,
    limit: int | None = USUAL,
    sort: str = SORT,
    filter: Any = None,
    fields: Sequence[str] | None = None,
    verbose: str | None = None,
    more: Iterable[tuple[Path, str]] = (),
) -> dict[str, Any]:
    """Every package that can be found from a project, or without one; `more` are nearer folders,
    and who names them.
    """
    at = home()
    root = project_root(project)
    found = _Found()
    paths: dict[Path, str] = {}
    for path, who in (
        *more,
        *((path, "env") for path in packages_path()),
        (at.packages, "default"),
        ours(),
    ):
        paths.setdefault(path, who)
    if root is not None:
        _of_project(Project(root), at, found)
    known = _known(at, found)
    for path in paths:
        found.rows += _of_folder(path, known if path == at.packages else {})
    _rule(found.rows)
    told: dict[str, Any] = {
        "packages": picked(
            found.rows,
            summary=SUMMARY,
            full=FULL,
            limit=limit,
            sort=sort,
            filter=filter,
            fields=fields,
            verbose=verbose,
        ),
        "search_paths": [{"path": str(path), "source": source} for path, source in paths.items()],
    }
    if root is not None:
        told |= {"project_root": str(root), "lockfile_path": str(Project(root).lock)}
    return told | ({"warnings": found.warnings} if found.warnings else {})


def ours() -> tuple[Path, str]:
    """The folder of packages of everhold itself, which is looked through last."""
    return settings.home() / settings.PACKAGES, "everhold"


def _known(at: Home, found: _Found) -> dict[str, Entry]:
    try:
        return entries(at)
    except BadPackageFile as error:
        found.warnings.append(str(error))
        return {}


# ---- the project


def _of_project(project: Project, at: Home, found: _Found) -> None:
    locked: dict[str, Locked] = {}
    try:
        found.rows += [_variant(name, folder) for name, folder in project.variants().items()]
    except BadPackageFile as error:
        found.warnings.append(str(error))
    try:
        locked = {one.name: one for one in project.locked()}
    except BadPackageFile as error:
        found.warnings.append(str(error))
    try:
        needs = project.needs()
    except BadPackageFile as error:
        found.warnings.append(str(error))
        return
    for name, need in needs.items():
        found.rows.append(_needed(name, need, locked.get(name), project, at))
    for name, one in locked.items():
        if name not in needs and isinstance(one.source, Folder):
            found.rows.append(_needed(name, ByPath(one.source.path, one.version), one, project, at))


def _variant(name: str, folder: Path) -> Row:
    return _row(name, "variant", folder, "variant") | {"path": str(folder), "source_type": "path"}


def _needed(name: str, need: Need, locked: Locked | None, project: Project, at: Home) -> Row:
    of = (
        kind(locked.source)
        if locked is not None
        else "git"
        if isinstance(need, ByGit)
        else "installed"
    )
    if isinstance(need, ByPath):
        folder = project.place(need.path)
        row = _row(name, "project", folder, "local_path") | {
            "path": str(folder),
            "source_type": "path",
        }
    else:
        copy = None if locked is None else pinned(locked, project, at)
        is_bundled = locked is not None and isinstance(locked.source, Bundled)
        where = "pinned" if copy is not None else "bundled" if is_bundled else "installed"
        row = _row(name, "project", copy or at.packages / name, where) | {"source_type": of}
    if locked is not None and locked.version is not None:
        row["version"] = locked.version
    if locked is None:
        row.setdefault("error", "not in alc.lock; run alc_update")
    return row


# ---- folders


def _of_folder(folder: Path, known: dict[str, Entry]) -> Iterator[Row]:
    try:
        places = sorted(folder.iterdir())
    except OSError:
        return
    for place in places:
        is_broken = place.is_symlink() and not place.exists()
        if not is_name(place.name) or not (is_broken or copy_tree.is_package(place)):
            continue
        entry = known.get(place.name)
        where = "linked" if place.is_symlink() else "installed"
        if entry is not None and isinstance(entry.source, Bundled):
            where = "bundled"
        row = _row(place.name, "global", place, where) | {"source": str(folder)}
        if place.is_symlink():
            row |= {"linked": True, "link_target": str(place.readlink()), "broken": is_broken}
            if is_broken or (is_strict() and not place.resolve().is_relative_to(folder.resolve())):
                row["active"] = False  # nobody finds it
        yield row | (_dates(entry) if entry is not None else {})


def _dates(entry: Entry) -> Row:
    told = {
        "installed_at": entry.installed_at,
        "updated_at": entry.updated_at,
        "install_source": entry.source.shown,
    }
    return {key: value for key, value in told.items() if value} | {
        "source_type": kind(entry.source)
    }


def _row(name: str, scope: str, folder: Path, where: str) -> Row:
    """What a package says of itself never hides what we know of it."""
    row: Row = {"name": name, "scope": scope, "resolved_source_kind": where}
    if not copy_tree.is_package(folder):
        return row | {"error": f"no init.lua in {folder}"}
    said = fields(folder / MAIN)
    said["description"] = meta(folder / MAIN).description
    row |= {"resolved_source_path": str(folder.resolve()), "meta": said}
    return {
        key: value
        for key, value in said.items()
        if key not in FULL or key in ("version", "description", "category")
    } | row


def _rule(rows: list[Row]) -> None:
    """The first package of a name is the one that is meant."""
    first: dict[str, Row] = {}
    for row in rows:
        if "active" in row:
            continue
        winner = first.setdefault(row["name"], row)
        row["active"] = winner is row
        if winner is not row and row.get("resolved_source_path") != winner.get(
            "resolved_source_path"
        ):
            winner.setdefault("overrides", []).append(row.get("source", row["scope"]))
            if "resolved_source_path" in row:
                winner.setdefault("override_paths", []).append(row["resolved_source_path"])
