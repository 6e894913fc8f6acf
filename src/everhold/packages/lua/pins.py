"""Pinned packages: copies in the user's folder that projects name by version or by revision.

`packages/<name>@<version>` and `packages/<name>@<first letters of the commit>`; a copy never
changes once it is there.
"""

from __future__ import annotations

from pathlib import Path

from everhold.errors import BadPackage
from everhold.packages.lua import copy_tree, size_limit
from everhold.packages.lua.fetch import Offer, address, hidden, offered
from everhold.packages.lua.installed import changing, entries
from everhold.packages.lua.meta import meta
from everhold.packages.lua.paths import Home
from everhold.packages.lua.project import ByGit, Locked
from everhold.packages.lua.roots import SHORT
from everhold.packages.lua.source import INSTALLED, Git
from everhold.programs.lua.search_path import MAIN

_COMMIT = 40  # letters of a whole commit id


def by_git(name: str, need: ByGit, at: Home) -> Locked:
    """Fetch a package at a revision, or at the newest one, if it is not here."""
    url = hidden(address(need.git))
    if (
        need.rev is not None
        and len(need.rev) == _COMMIT
        and copy_tree.is_package(at.pinned(name, need.rev[:SHORT]))
    ):
        return Locked(name, Git(url, need.rev), _version(at.pinned(name, need.rev[:SHORT])))
    with offered(address(need.git), need.rev) as offer:
        assert isinstance(offer.source, Git) and offer.source.rev is not None
        folder = at.pinned(name, offer.source.rev[:SHORT])
        if not copy_tree.is_package(folder):
            size_limit.checked(offer.source.shown, [within(offer, name)])
        _keep(within(offer, name), folder, at)
        return Locked(name, offer.source, _version(folder))


def by_version(name: str, version: str, at: Home) -> Locked:
    """Find a version: a copy, what is installed, or a tag of the repository that it was installed
    from.
    """
    folder = at.pinned(name, version)
    usual = _version(at.packages / name)
    if copy_tree.is_package(folder):
        return Locked(name, INSTALLED, version)
    if usual == version:
        _keep(at.packages / name, folder, at)
        return Locked(name, INSTALLED, version)
    entry = entries(at).get(name)
    if entry is None or not isinstance(entry.source, Git):
        there = f"; installed is {usual}" if usual else ""
        raise BadPackage(
            f"'{name}@{version}': not found in packages_dir (neither versioned nor base dir){there}"
        )
    _keep_tag(name, version, entry.source.url, at)
    return Locked(name, INSTALLED, version)


def within(offer: Offer, name: str) -> Path:
    """The package of this name in what is offered: all of it, or one of a collection."""
    if copy_tree.is_package(offer.folder):
        return offer.folder
    if not copy_tree.is_package(offer.folder / name):
        raise BadPackage(f"'{name}': no init.lua in {offer.source.shown}, nor in {name}/ there")
    return offer.folder / name


def _keep_tag(name: str, version: str, url: str, at: Home) -> None:
    problem: BadPackage | None = None
    for tag in (f"v{version}", version):
        try:
            with offered(url, tag) as offer:
                folder = within(offer, name)
                if _version(folder) not in (None, version):
                    raise BadPackage(
                        f"'{name}@{version}': tag {tag} of {url} has version {_version(folder)}"
                    )
                size_limit.checked(offer.source.shown, [folder])
                return _keep(folder, at.pinned(name, version), at)
        except BadPackage as error:
            problem = error
    raise BadPackage(f"'{name}@{version}': {problem}")


def _keep(source: Path, folder: Path, at: Home) -> None:
    with changing(at):
        if not copy_tree.is_package(folder):
            copy_tree.put(source, folder)


def _version(folder: Path) -> str | None:
    return meta(folder / MAIN).version or None
