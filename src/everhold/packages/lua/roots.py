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

from everhold.packages.lua.meta import meta
from everhold.packages.lua.paths import Env, Home, home, is_strict, packages_path, project_root
from everhold.packages.lua.project import Locked, Project
from everhold.packages.lua.source import Folder, Git, Installed
from everhold.programs.lua.search_path import MAIN, Root

SHORT = 12  # letters of a revision in the name of its folder


class Roots(msgspec.Struct, frozen=True):
    """What is looked through for a project, or for none."""

    pinned: tuple[Root, ...]
    path: tuple[Root, ...]
    home: Root

    @property
    def all(self) -> tuple[Root, ...]:
        return (*self.pinned, *self.path, self.home)


def roots(
    project: str | Path | None = None, *, start: Path | None = None, env: Env | None = None
) -> Roots:
    """Where packages are found for a project: the one named, else the one of `start` or of the
    current folder.

    Raises `BadPackageFile` if a file of the project cannot be read.
    """
    root = project_root(project, start=start, env=env)
    at = home(env)
    strict = is_strict(env)
    chosen = dict[str, Path]()
    if root is not None:
        for name, folder in _chosen(Project(root), at):
            chosen.setdefault(name, folder)
    return Roots(
        tuple(Root(folder, name, strict) for name, folder in chosen.items()),
        tuple(Root(folder, strict=strict) for folder in packages_path(env)),
        Root(at.packages, strict=strict),
    )


def _chosen(project: Project, at: Home) -> Iterator[tuple[str, Path]]:
    yield from project.variants().items()
    for one in project.locked():
        folder = pinned(one, project, at)
        if folder is not None:
            yield one.name, folder


def pinned(one: Locked, project: Project, at: Home) -> Path | None:
    """The folder that alc.lock means; None if any installed version will do."""
    match one.source:
        case Folder(path):
            return project.place(path)
        case Git(_, rev) if rev is not None:
            return at.pinned(one.name, rev[:SHORT])
        case Installed() if one.version is not None:
            copy = at.pinned(one.name, one.version)
            usual = at.packages / one.name
            is_usual = not copy.exists() and meta(usual / MAIN).version == one.version
            return usual if is_usual else copy
    return None
