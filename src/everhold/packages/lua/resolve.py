"""Resolves the requirements of alc.toml into alc.lock, and keeps the copies that it pins.

Copies are `packages/<name>@<version>` and `packages/<name>@<first characters of the commit>` in the
home. A copy never changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everhold.errors import BadPackage, PackageTooLarge
from everhold.packages.lua import scaffold
from everhold.packages.lua.fetch import (
    INSTALLED_SOURCE,
    FetchedFolder,
    FolderSource,
    GitSource,
    fetch_packages,
    hide_credentials,
    normalize_git_url,
)
from everhold.packages.lua.folder import is_package
from everhold.packages.lua.installed import (
    change_installed,
    check_size_limit,
    copy_package,
    load_installed,
)
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome, find_project_root, get_alc_home
from everhold.packages.lua.project import (
    SHORT_REVISION,
    GitNeed,
    LockedPackage,
    PackageNeed,
    PathNeed,
    Project,
)
from everhold.packages.toml import check_toml_editor
from everhold.programs.lua.search_path import INIT_FILE


def update(project: str | Path | None = None) -> dict[str, Any]:
    """Resolve alc.toml and write alc.lock.

    A package that cannot be resolved keeps its entry, and its error is in the result.
    """
    root = find_project_root(project)
    if root is None or not Project(root).toml.is_file():
        raise BadPackage("No alc.toml found; alc_init creates one", "everhold pkg init")
    one = Project(root)
    at = get_alc_home()
    check_toml_editor("lua", f"writing {one.lock}")  # before anything is fetched
    needs = one.needs()
    before = {entry.name: entry for entry in one.locked()}
    resolved: list[LockedPackage] = []
    kept: list[LockedPackage] = []
    errors: list[str] = []
    for name, need in needs.items():
        try:
            resolved.append(_resolve(name, need, one, at))
        except (BadPackage, PackageTooLarge) as error:
            problem = str(error)
            errors.append(problem if problem.startswith(f"'{name}") else f"'{name}': {problem}")
            kept += [before[name]] if name in before else []
    with one.guarded():
        order = list(one.needs())
        # entries that another process added while packages were fetched
        fresh = [entry for entry in one.locked() if entry.name not in needs]
        entries = [entry for entry in (*resolved, *kept, *fresh) if entry.name in order]
        one.write_lock(sorted(entries, key=lambda entry: order.index(entry.name)))
    report = {"resolved": len(resolved), "errors": errors, "alc_lock": str(one.lock)}
    return report | scaffold.write_stubs(at)


def _resolve(name: str, need: PackageNeed, project: Project, at: AlcHome) -> LockedPackage:
    match need:
        case PathNeed(path, version):
            if not is_package(project.place(path)):
                raise BadPackage(f"no init.lua in {project.place(path)}")
            return LockedPackage(name, FolderSource(path), version)
        case GitNeed():
            return pin_by_git(name, need, at)
    if need.version != "*":
        return pin_by_version(name, need.version, at)
    if not (at.packages / name).is_dir():
        raise BadPackage(f"not installed: {at.packages / name} not found")
    return LockedPackage(name, INSTALLED_SOURCE)


# ---- pinned copies

_COMMIT = 40  # characters of a whole commit id


def pin_by_git(name: str, need: GitNeed, at: AlcHome) -> LockedPackage:
    """Pin a package at a revision, or at the newest one; fetches it if there is no copy."""
    url = hide_credentials(normalize_git_url(need.git))
    if (
        need.rev is not None
        and len(need.rev) == _COMMIT
        and is_package(at.pinned(name, need.rev[:SHORT_REVISION]))
    ):
        return LockedPackage(
            name, GitSource(url, need.rev), _version(at.pinned(name, need.rev[:SHORT_REVISION]))
        )
    with fetch_packages(normalize_git_url(need.git), need.rev) as offer:
        assert isinstance(offer.source, GitSource) and offer.source.rev is not None
        folder = at.pinned(name, offer.source.rev[:SHORT_REVISION])
        if not is_package(folder):
            check_size_limit(offer.source.shown, [find_in_fetched(offer, name)])
        _copy_once(find_in_fetched(offer, name), folder, at)
        return LockedPackage(name, offer.source, _version(folder))


def pin_by_version(name: str, version: str, at: AlcHome) -> LockedPackage:
    """Pin a version: a copy, the installed package, or a tag of the repository it came from."""
    folder = at.pinned(name, version)
    usual = _version(at.packages / name)
    if is_package(folder):
        return LockedPackage(name, INSTALLED_SOURCE, version)
    if usual == version:
        _copy_once(at.packages / name, folder, at)
        return LockedPackage(name, INSTALLED_SOURCE, version)
    entry = load_installed(at).get(name)
    if entry is None or not isinstance(entry.source, GitSource):
        other = f"; installed is {usual}" if usual else ""
        raise BadPackage(
            f"'{name}@{version}': not found in {at.packages}, and no repository to get it from"
            f" is recorded{other}"
        )
    _copy_tag(name, version, entry.source.url, at)
    return LockedPackage(name, INSTALLED_SOURCE, version)


def find_in_fetched(offer: FetchedFolder, name: str) -> Path:
    """The package of this name in a fetched folder: the folder itself, or one of a collection."""
    if is_package(offer.folder):
        return offer.folder
    if not is_package(offer.folder / name):
        raise BadPackage(f"'{name}': no init.lua in {offer.source.shown} or in its folder {name}/")
    return offer.folder / name


def _copy_tag(name: str, version: str, url: str, at: AlcHome) -> None:
    problem: BadPackage | None = None
    for tag in (f"v{version}", version):
        try:
            with fetch_packages(url, tag) as offer:
                folder = find_in_fetched(offer, name)
                if _version(folder) not in (None, version):
                    raise BadPackage(
                        f"'{name}@{version}': tag {tag} of {url} has version {_version(folder)}"
                    )
                check_size_limit(offer.source.shown, [folder])
                return _copy_once(folder, at.pinned(name, version), at)
        except BadPackage as error:
            problem = error
    raise BadPackage(f"'{name}@{version}': {problem}")


def _copy_once(source: Path, folder: Path, at: AlcHome) -> None:
    with change_installed(at):
        if not is_package(folder):
            copy_package(source, folder)


def _version(folder: Path) -> str | None:
    return read_package_meta(folder / INIT_FILE).version or None
