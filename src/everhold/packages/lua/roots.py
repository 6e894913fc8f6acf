"""Where packages are found, in this order:

    1. those that this machine takes from elsewhere    alc.local.toml of the project
    2. those that the project pins                      alc.lock: a path, a version, a revision
    3. the folders of ALC_PACKAGES_PATH
    4. the folder of the user                           packages/ in the home

The first two are single packages, each under its own name whatever its folder is called. A pinned
package that is not there is not found elsewhere: another version is never taken in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from everhold.packages.lua.fetch import FolderSource, GitSource, InstalledSource
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import (
    AlcHome,
    Env,
    find_project_root,
    get_alc_home,
    is_strict,
    read_packages_path,
)
from everhold.packages.lua.project import LockedPackage, Project
from everhold.programs.lua.search_path import INIT_FILE, SearchRoot

SHORT_REVISION = 12  # letters of a revision in the name of its folder


class PackageRoots(msgspec.Struct, frozen=True):
    """What is looked through for a project, or for none."""

    pinned: tuple[SearchRoot, ...]
    path: tuple[SearchRoot, ...]
    home: SearchRoot

    @property
    def all(self) -> tuple[SearchRoot, ...]:
        return (*self.pinned, *self.path, self.home)


def find_package_roots(
    project: str | Path | None = None, *, start: Path | None = None, env: Env | None = None
) -> PackageRoots:
    """Where packages are found for a project: the one named, else the one of `start` or of the
    current folder.

    Raises `BadPackageFile` if a file of the project cannot be read.
    """
    root = find_project_root(project, start=start, env=env)
    at = get_alc_home(env)
    strict = is_strict(env)
    chosen = dict[str, Path]()
    if root is not None:
        for name, folder in _chosen(Project(root), at):
            chosen.setdefault(name, folder)
    return PackageRoots(
        tuple(SearchRoot(folder, name, strict) for name, folder in chosen.items()),
        tuple(SearchRoot(folder, strict=strict) for folder in read_packages_path(env)),
        SearchRoot(at.packages, strict=strict),
    )


def _chosen(project: Project, at: AlcHome) -> Iterator[tuple[str, Path]]:
    yield from project.variants().items()
    for one in project.locked():
        folder = find_pinned_folder(one, project, at)
        if folder is not None:
            yield one.name, folder


def find_pinned_folder(one: LockedPackage, project: Project, at: AlcHome) -> Path | None:
    """The folder that alc.lock means; None if any installed version will do."""
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
