"""Pinned packages: copies in the user's folder that projects name by version or by revision.

`packages/<name>@<version>` and `packages/<name>@<first letters of the commit>`; a copy never
changes once it is there.
"""

from __future__ import annotations

from pathlib import Path

from everhold.errors import BadPackage
from everhold.packages.lua import copy_tree
from everhold.packages.lua.fetch import (
    INSTALLED_SOURCE,
    FetchedFolder,
    GitSource,
    fetch_packages,
    hide_credentials,
    normalize_git_url,
)
from everhold.packages.lua.installed import change_installed, load_installed
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import GitNeed, LockedPackage
from everhold.packages.lua.roots import SHORT_REVISION
from everhold.programs.lua.search_path import INIT_FILE

_COMMIT = 40  # letters of a whole commit id


def pin_by_git(name: str, need: GitNeed, at: AlcHome) -> LockedPackage:
    """Fetch a package at a revision, or at the newest one, if it is not here."""
    url = hide_credentials(normalize_git_url(need.git))
    if (
        need.rev is not None
        and len(need.rev) == _COMMIT
        and copy_tree.is_package(at.pinned(name, need.rev[:SHORT_REVISION]))
    ):
        return LockedPackage(
            name, GitSource(url, need.rev), _version(at.pinned(name, need.rev[:SHORT_REVISION]))
        )
    with fetch_packages(normalize_git_url(need.git), need.rev) as offer:
        assert isinstance(offer.source, GitSource) and offer.source.rev is not None
        folder = at.pinned(name, offer.source.rev[:SHORT_REVISION])
        if not copy_tree.is_package(folder):
            copy_tree.check_size_limit(offer.source.shown, [find_in_fetched(offer, name)])
        _keep(find_in_fetched(offer, name), folder, at)
        return LockedPackage(name, offer.source, _version(folder))


def pin_by_version(name: str, version: str, at: AlcHome) -> LockedPackage:
    """Find a version: a copy, what is installed, or a tag of the repository that it was installed
    from.
    """
    folder = at.pinned(name, version)
    usual = _version(at.packages / name)
    if copy_tree.is_package(folder):
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
    if copy_tree.is_package(offer.folder):
        return offer.folder
    if not copy_tree.is_package(offer.folder / name):
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
                copy_tree.check_size_limit(offer.source.shown, [folder])
                return _keep(folder, at.pinned(name, version), at)
        except BadPackage as error:
            problem = error
    raise BadPackage(f"'{name}@{version}': {problem}")


def _keep(source: Path, folder: Path, at: AlcHome) -> None:
    with change_installed(at):
        if not copy_tree.is_package(folder):
            copy_tree.copy_package(source, folder)


def _version(folder: Path) -> str | None:
    return read_package_meta(folder / INIT_FILE).version or None
