"""Lists packages with their folders, and marks which package of a name is active.

The order is that of `project.py`: the first package of a name is *active* and overrides the others.
Nothing is run. An unreadable file of the project becomes a warning, and the rest is listed.

Options of a listing, applied in this order:

    filter   an object: rows that have all of its keys with equal values
    sort     "a,-b": ascending by a, then descending by b; rows without the key come last when
             ascending, first when descending
    limit    the maximum number of rows; 0 or less means all
    fields   the keys of a row; default: those of `verbose`, "summary" or "full"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages import settings
from everhold.packages.lua.fetch import BundledSource, FolderSource, get_source_type
from everhold.packages.lua.folder import is_package, is_package_name
from everhold.packages.lua.installed import InstalledPackage, load_installed
from everhold.packages.lua.meta import read_meta_fields, read_package_meta
from everhold.packages.lua.paths import (
    AlcHome,
    find_project_root,
    get_alc_home,
    is_strict,
    read_packages_path,
)
from everhold.packages.lua.project import (
    GitNeed,
    LockedPackage,
    PackageNeed,
    PathNeed,
    Project,
    find_pinned_folder,
)
from everhold.programs.lua.search_path import INIT_FILE

#: The order of values of different types.
_RANKS: Final = {bool: 1, int: 2, float: 2, str: 3, list: 4, dict: 5}

Row = dict[str, Any]


def select_rows(
    rows: Sequence[Row],
    *,
    summary: Sequence[str],
    full: Sequence[str],
    limit: int | None = None,
    sort: str = "",
    filter: Any = None,
    fields: Sequence[str] | None = None,
    verbose: str | None = None,
) -> list[Row]:
    """Apply the options of a listing. A filter that is not an object is ignored."""
    if fields is not None:
        wanted = fields
    else:
        if verbose not in (None, "summary", "full"):
            raise BadPackage(f'invalid verbose value "{verbose}": it is "summary" or "full"')
        wanted = full if verbose == "full" else summary
    keys = []
    for part in sort.split(","):
        field = part.removeprefix("-")
        if not field:
            raise BadPackage(
                f'invalid sort "{sort}": a key is missing',
                'Separate keys with commas: "-active,name"',
            )
        keys.append((field, part.startswith("-")))
    found = [row for row in rows if not isinstance(filter, Mapping) or _matches(row, filter)]
    for key, is_down in reversed(keys):
        found.sort(key=lambda row, key=key: _rank(row.get(key)), reverse=is_down)  # type: ignore[misc]
    most = len(found) if limit is None or limit <= 0 else limit
    return [{key: row[key] for key in wanted if key in row} for row in found[:most]]


def _matches(row: Row, wanted: Mapping[str, Any]) -> bool:
    return all(key in row and _equals(row[key], value) for key, value in wanted.items())


def _equals(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _rank(value: Any) -> tuple[int, int, Any]:
    """A sort key for ascending order; a missing value comes last."""
    if value is None:
        return 1, 0, 0
    rank = _RANKS[type(value)]
    return 0, rank, value if rank < 4 else str(value)


SUMMARY_FIELDS: Final = (
    "name",
    "scope",
    "version",
    "active",
    "resolved_source_path",
    "resolved_source_kind",
)
FULL_FIELDS: Final = (
    *SUMMARY_FIELDS,
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
DEFAULT_LIMIT: Final = 50
DEFAULT_SORT: Final = "-active,-installed_at"


@dataclass(slots=True)
class _Found:
    """The rows and warnings collected so far."""

    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def list_packages(
    project: str | Path | None = None,
    *,
    limit: int | None = DEFAULT_LIMIT,
    sort: str = DEFAULT_SORT,
    filter: Any = None,
    fields: Sequence[str] | None = None,
    verbose: str | None = None,
    more: Iterable[tuple[Path, str]] = (),
) -> dict[str, Any]:
    """Every package that can be found, with or without a project.

    `more` are folders searched first, each with the source that names it.
    """
    at = get_alc_home()
    root = find_project_root(project)
    found = _Found()
    paths: dict[Path, str] = {}
    for path, source in (
        *more,
        *((path, "ALC_PACKAGES_PATH") for path in read_packages_path()),
        (at.packages, "default"),
        get_everhold_packages(),
    ):
        paths.setdefault(path, source)
    if root is not None:
        _add_project_rows(Project(root), at, found)
    known = _load_known(at, found)
    for path in paths:
        found.rows += _list_folder(path, known if path == at.packages else {})
    _mark_active(found.rows)
    listing: dict[str, Any] = {
        "packages": select_rows(
            found.rows,
            summary=SUMMARY_FIELDS,
            full=FULL_FIELDS,
            limit=limit,
            sort=sort,
            filter=filter,
            fields=fields,
            verbose=verbose,
        ),
        "search_paths": [{"path": str(path), "source": source} for path, source in paths.items()],
    }
    if root is not None:
        listing |= {"project_root": str(root), "lockfile_path": str(Project(root).lock)}
    return listing | ({"warnings": found.warnings} if found.warnings else {})


def get_everhold_packages() -> tuple[Path, str]:
    """The folder of packages in everhold's data folder, which is searched last."""
    return settings.get_data_folder() / settings.PACKAGES_FOLDER, "everhold"


def _load_known(at: AlcHome, found: _Found) -> dict[str, InstalledPackage]:
    try:
        return load_installed(at)
    except BadPackageFile as error:
        found.warnings.append(str(error))
        return {}


# ---- the project


def _add_project_rows(project: Project, at: AlcHome, found: _Found) -> None:
    locked: dict[str, LockedPackage] = {}
    try:
        found.rows += [
            _row(name, "variant", folder, "variant") | {"path": str(folder), "source_type": "path"}
            for name, folder in project.variants().items()
        ]
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
        if name not in needs and isinstance(one.source, FolderSource):
            found.rows.append(
                _needed(name, PathNeed(one.source.path, one.version), one, project, at)
            )


def _needed(
    name: str, need: PackageNeed, locked: LockedPackage | None, project: Project, at: AlcHome
) -> Row:
    of = (
        get_source_type(locked.source)
        if locked is not None
        else "git"
        if isinstance(need, GitNeed)
        else "installed"
    )
    if isinstance(need, PathNeed):
        folder = project.place(need.path)
        row = _row(name, "project", folder, "local_path") | {
            "path": str(folder),
            "source_type": "path",
        }
    else:
        copy = None if locked is None else find_pinned_folder(locked, project, at)
        is_bundled = locked is not None and isinstance(locked.source, BundledSource)
        where = "pinned" if copy is not None else "bundled" if is_bundled else "installed"
        row = _row(name, "project", copy or at.packages / name, where) | {"source_type": of}
    if locked is not None and locked.version is not None:
        row["version"] = locked.version
    if locked is None:
        row.setdefault("error", "alc.lock does not have it; alc_update adds it")
    return row


# ---- folders


def _list_folder(folder: Path, known: dict[str, InstalledPackage]) -> Iterator[Row]:
    try:
        places = sorted(folder.iterdir())
    except OSError:
        return
    for place in places:
        is_broken = place.is_symlink() and not place.exists()
        if not is_package_name(place.name) or not (is_broken or is_package(place)):
            continue
        entry = known.get(place.name)
        where = "linked" if place.is_symlink() else "installed"
        if entry is not None and isinstance(entry.source, BundledSource):
            where = "bundled"
        row = _row(place.name, "global", place, where) | {"source": str(folder)}
        if place.is_symlink():
            row |= {"linked": True, "link_target": str(place.readlink()), "broken": is_broken}
            if is_broken or (is_strict() and not place.resolve().is_relative_to(folder.resolve())):
                row["active"] = False  # `require` does not find it
        yield row | (_dates(entry) if entry is not None else {})


def _dates(entry: InstalledPackage) -> Row:
    dates = {
        "installed_at": entry.installed_at,
        "updated_at": entry.updated_at,
        "install_source": entry.source.shown,
    }
    kind = get_source_type(entry.source)
    if isinstance(entry.source, FolderSource):
        kind += f" (from: {entry.source.path})"
    return {key: value for key, value in dates.items() if value} | {"source_type": kind}


def _row(name: str, scope: str, folder: Path, where: str) -> Row:
    row: Row = {"name": name, "scope": scope, "resolved_source_kind": where}
    if not is_package(folder):
        return row | {"error": f"no init.lua in {folder}"}
    meta = read_meta_fields(folder / INIT_FILE)
    meta["description"] = read_package_meta(folder / INIT_FILE).description
    row |= {"resolved_source_path": str(folder.resolve()), "meta": meta}
    # a field of the package's own never replaces one of ours
    return {
        key: value
        for key, value in meta.items()
        if key not in FULL_FIELDS or key in ("version", "description", "category")
    } | row


def _mark_active(rows: list[Row]) -> None:
    """Mark the first package of each name as active; it lists the ones it overrides."""
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
