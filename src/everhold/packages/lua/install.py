"""Installing packages for the user, from a folder or from a git repository at one revision.

Rules
  1. Nothing of a package is run. Where it came from is written down, with the commit.
  2. One package replaces what was installed under its name. Those of a collection replace what came
     from the same repository; others are skipped. What somebody put there by hand is replaced from
     a folder, or if one insists. A link that somebody made always stays.
  3. What is larger than the settings allow is installed only if the user accepts it.
  4. In a project the packages are named in its alc.toml and alc.lock, too. Whether these can be
     read is known before anything is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.lua import bundle, copy_tree, size_limit, stubs
from everhold.packages.lua.fetch import FetchedFolder, fetch_packages
from everhold.packages.lua.installed import InstalledChanges, change_installed
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome, find_project_root, get_alc_home
from everhold.packages.lua.project import LockedPackage, Project, check_package_name
from everhold.packages.lua.source import INSTALLED_SOURCE, GitSource, parse_source
from everhold.programs.lua.search_path import INIT_FILE


@dataclass(slots=True)
class _Done:
    """What became of the packages that were offered."""

    installed: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    skipped_symlinks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def here(self) -> list[str]:
        return sorted([*self.installed, *self.updated])


def install(
    url: str,
    name: str | None = None,
    *,
    rev: str | None = None,
    force: bool = False,
    project: str | Path | None = None,
    limit: int | None = None,
    accept: size_limit.AcceptSize | None = None,
) -> dict[str, Any]:
    """Install what is at an absolute path or in a git repository: one package, or each of a
    collection.

    What takes more bytes than `limit`, or than the settings say, is installed only if `accept` says
    so; without it, it is refused with `PackageTooLarge`.
    """
    if name is not None:
        check_package_name(name)
    to = get_alc_home()
    into = _project(project)
    with fetch_packages(url, rev) as offer:
        packages = _packages(offer, name)
        size_limit.check_size_limit(
            offer.source.shown,
            [*packages.values(), *bundle.list_bundle_folders(offer.folder)],
            limit=limit,
            accept=accept,
        )
        done = _Done()
        with change_installed(to) as changes:
            for each, folder in packages.items():
                _one(offer, each, folder, to=to, changes=changes, done=done, force=force)
            told = _told(offer, done)
            told |= bundle.import_bundle(
                offer.folder, {each: packages[each] for each in done.here}, to
            )
    told |= stubs.write_stubs(to)
    if into is not None and (warnings := _named_in(into, done.here)):
        told["project_files_warnings"] = warnings
    return told


def _project(given: str | Path | None) -> Project | None:
    """The project that is concerned; its files can be read."""
    root = find_project_root(given)
    if root is None:
        return None
    project = Project(root)
    project.needs()
    project.locked()
    return project if project.toml.is_file() else None


def _packages(offer: FetchedFolder, name: str | None) -> dict[str, Path]:
    if copy_tree.is_package(offer.folder):
        return {check_package_name(name or offer.name): offer.folder}
    packages = copy_tree.list_collection(offer.folder)
    if not packages:
        is_python = (offer.folder / "pyproject.toml").is_file()
        hint = (
            "It is a Python package; if you trust it: everhold pkg install --python …"
            if is_python
            else ""
        )
        raise BadPackage(
            "No packages found. Expected init.lua at root (single) or */init.lua (collection).",
            hint,
        )
    if name is not None:
        raise BadPackage(
            "The 'name' parameter is only supported for single-package repos (init.lua at root).",
            "This is a collection; its packages keep their names.",
        )
    return packages


def _one(
    offer: FetchedFolder,
    name: str,
    folder: Path,
    *,
    to: AlcHome,
    changes: InstalledChanges,
    done: _Done,
    force: bool,
) -> None:
    target = to.packages / name
    is_alone = folder == offer.folder
    if target.is_symlink():
        if is_alone:
            raise BadPackage(f"Destination '{target}' is a symlink.", f"everhold pkg unlink {name}")
        done.skipped_symlinks.append(name)
        return
    is_there = target.exists()
    if is_there and not (
        force or offer.is_local or _came_alike(changes.packages.get(name), offer, is_alone)
    ):
        if is_alone:
            hint = "Nobody installed it. Move it away, choose another name, or insist: --force."
            raise BadPackage(f"Package '{name}' already exists at {target}.", hint)
        done.skipped.append(name)
        return
    done.left_out += [f"{name}/{path}" for path in copy_tree.copy_package(folder, target)]
    changes.put(name, offer.source, read_package_meta(target / INIT_FILE).version or None)
    (done.updated if is_there else done.installed).append(name)


def _came_alike(entry: Any, offer: FetchedFolder, is_alone: bool) -> bool:
    """Whether what is there was installed, and so may be replaced by this."""
    if entry is None:
        return False
    before = parse_source(entry.get("source") or "")
    return is_alone or (
        isinstance(before, GitSource)
        and isinstance(offer.source, GitSource)
        and before.url == offer.source.url
    )


def _told(offer: FetchedFolder, done: _Done) -> dict[str, Any]:
    kind = "single" if copy_tree.is_package(offer.folder) else "collection"
    told: dict[str, Any] = {
        "installed": done.installed,
        "mode": f"local_{kind}" if offer.is_local else kind,
    }
    for key in ("updated", "skipped", "skipped_symlinks", "left_out"):
        if found := getattr(done, key):
            told[key] = found
    if isinstance(offer.source, GitSource):
        told["rev"] = offer.source.rev
    return told


def _named_in(project: Project, names: list[str]) -> list[str]:
    """Name packages in the project's files; returns what went wrong, for they are installed all the
    same.
    """
    try:
        with project.guarded():
            project.add(names)
            locked = project.locked()
            known = {one.name for one in locked}
            fresh = [LockedPackage(name, INSTALLED_SOURCE) for name in names if name not in known]
            if fresh:
                project.write_lock([*locked, *fresh])
    except BadPackageFile as error:
        return [str(error)]
    return []
