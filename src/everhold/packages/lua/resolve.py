"""Pinned packages: copies in the user's folder that projects name by version or by revision.

`packages/<name>@<version>` and `packages/<name>@<first letters of the commit>`; a copy never
changes once it is there.
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
    """Resolve what alc.toml needs and write alc.lock. What cannot be resolved stays as it was, and
    is told.
    """
    root = find_project_root(project)
    if root is None or not Project(root).toml.is_file():
        raise BadPackage("No alc.toml found. Run alc_init first.", "everhold pkg init")
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
            resolved.append(_resolved(name, need, one, at))
        except (BadPackage, PackageTooLarge) as error:
            errors.append(_of(name, str(error)))
            kept += [before[name]] if name in before else []
    with one.guarded():
        order = list(one.needs())
        # somebody was here meanwhile
        fresh = [entry for entry in one.locked() if entry.name not in needs]
        entries = [entry for entry in (*resolved, *kept, *fresh) if entry.name in order]
        one.write_lock(sorted(entries, key=lambda entry: order.index(entry.name)))
    told = {"resolved": len(resolved), "errors": errors, "alc_lock": str(one.lock)}
    return told | scaffold.write_stubs(at)


def _resolved(name: str, need: PackageNeed, project: Project, at: AlcHome) -> LockedPackage:
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
        raise BadPackage("not installed (not found in packages_dir)")
    return LockedPackage(name, INSTALLED_SOURCE)


def _of(name: str, problem: str) -> str:
    return problem if problem.startswith(f"'{name}") else f"'{name}': {problem}"


# ---- pinned copies

_COMMIT = 40  # letters of a whole commit id


def pin_by_git(name: str, need: GitNeed, at: AlcHome) -> LockedPackage:
    """Fetch a package at a revision, or at the newest one, if it is not here."""
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
        _keep(find_in_fetched(offer, name), folder, at)
        return LockedPackage(name, offer.source, _version(folder))


def pin_by_version(name: str, version: str, at: AlcHome) -> LockedPackage:
    """Find a version: a copy, what is installed, or a tag of the repository that it was installed
    from.
    """
    folder = at.pinned(name, version)
    usual = _version(at.packages / name)
    if is_package(folder):
        return LockedPackage(name, INSTALLED_SOURCE, version)
    if usual == version:
        _keep(at.packages / name, folder, at)
        return LockedPackage(name, INSTALLED_SOURCE, version)
    entry = load_installed(at).get(name)
    if entry is None or not isinstance(entry.source, GitSource):
        there = f"; installed is {usual}" if usual else ""
        raise BadPackage(
            f"'{name}@{version}': not found in packages_dir (neither versioned nor base dir){there}"
        )
    _keep_tag(name, version, entry.source.url, at)
    return LockedPackage(name, INSTALLED_SOURCE, version)


def find_in_fetched(offer: FetchedFolder, name: str) -> Path:
    """The package of this name in what is offered: all of it, or one of a collection."""
    if is_package(offer.folder):
        return offer.folder
    if not is_package(offer.folder / name):
        raise BadPackage(f"'{name}': no init.lua in {offer.source.shown}, nor in {name}/ there")
    return offer.folder / name


def _keep_tag(name: str, version: str, url: str, at: AlcHome) -> None:
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
                return _keep(folder, at.pinned(name, version), at)
        except BadPackage as error:
            problem = error
    raise BadPackage(f"'{name}@{version}': {problem}")


def _keep(source: Path, folder: Path, at: AlcHome) -> None:
    with change_installed(at):
        if not is_package(folder):
            copy_package(source, folder)


def _version(folder: Path) -> str | None:
    return read_package_meta(folder / INIT_FILE).version or None
