"""Installs, links and removes packages of the user and of projects.

Rules
  1. Nothing of a package is run. Its source is recorded, with the commit.
  2. A single package replaces an installed package of its name. A package of a collection replaces
     one from the same repository; others are skipped. A folder that was copied there by hand is
     replaced from a local folder, or with `force`. A link is never replaced.
  3. A package above the size limit is installed only if the user accepts it.
  4. In a project, packages are also added to alc.toml and alc.lock. These files are checked before
     anything is installed.
  5. Removing deletes the installed copy and its record. It keeps the source, and copies that
     projects pin, unless their version is named. With `keep_files` it deletes only records.

A collection may also bring cards and scenarios. Existing files stay.

    <package>/cards/*.toml, *.samples.jsonl   to cards/<package>/ in the home
    scenarios/*.lua                           to scenarios/ in the home

Links use a folder in place, as a package:

    global    a link in the user's folder of packages; every project sees it
    variant   an entry in alc.local.toml; this project sees it, on this machine
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage, BadPackageFile, StoreBusy
from everhold.packages.lua import scaffold
from everhold.packages.lua.card_files import UNREADABLE, read_card
from everhold.packages.lua.fetch import (
    INSTALLED_SOURCE,
    FetchedFolder,
    GitSource,
    fetch_packages,
    parse_source,
)
from everhold.packages.lua.folder import check_package_name, is_package, list_collection
from everhold.packages.lua.installed import (
    AcceptSize,
    InstalledChanges,
    change_installed,
    check_size_limit,
    copy_package,
    remove_package_folder,
)
from everhold.packages.lua.meta import read_package_meta
from everhold.packages.lua.paths import AlcHome, expand_path, find_project_root, get_alc_home
from everhold.packages.lua.project import LockedPackage, Project
from everhold.packages.lua.scenario_files import SCENARIOS_FOLDER, copy_scenarios, list_lua_files
from everhold.packages.toml import check_toml_editor
from everhold.programs.lua.search_path import INIT_FILE
from everhold.shell_command import format_command


def import_bundle(folder: Path, packages: dict[str, Path], to: AlcHome) -> dict[str, Any]:
    """Copy cards and scenarios to the home; returns them as keys of an installation's result."""
    problems: list[str] = []
    cards = [
        card
        for name, place in packages.items()
        for card in _cards(place / "cards", to.cards / name, problems)
    ]
    scenarios = copy_scenarios(list_lua_files(folder / SCENARIOS_FOLDER), to.scenarios)
    copied = {
        "cards_installed": cards,
        "cards_failures": problems,
        "scenarios_installed": scenarios.installed,
        "scenarios_failures": scenarios.failures,
    }
    return {key: value for key, value in copied.items() if value}


def list_bundle_folders(folder: Path) -> list[Path]:
    """The folders beside the packages that are copied, too."""
    scenarios = folder / SCENARIOS_FOLDER
    return [scenarios] if scenarios.is_dir() and not scenarios.is_symlink() else []


def _cards(source: Path, target: Path, problems: list[str]) -> Iterator[str]:
    """Copy the cards of a package that are not in the home yet; yields their ids."""
    for file in _list_card_files(source):
        if (target / file.name).exists() or file.name.startswith("_"):
            continue
        try:
            read_card(file)
        except UNREADABLE as error:
            problems.append(f"{file.parent.parent.name}/{file.stem}: {error}")
            continue
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        samples = file.with_suffix(".samples.jsonl")
        if samples.is_file() and not samples.is_symlink() and not (target / samples.name).exists():
            shutil.copyfile(samples, target / samples.name)
        shutil.copyfile(file, target / file.name)
        yield file.stem


def _list_card_files(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(
        file for file in folder.glob("*.toml") if file.is_file() and not file.is_symlink()
    )


@dataclass(slots=True)
class _Done:
    """The outcome for each package of an installation."""

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
    accept: AcceptSize | None = None,
) -> dict[str, Any]:
    """Install a package, or all of a collection, from an absolute path or a git repository.

    Packages larger than `limit` bytes (default: the settings) need the consent of `accept`;
    otherwise `PackageTooLarge` is raised.
    """
    if name is not None:
        check_package_name(name)
    to = get_alc_home()
    into = _find_editable_project(project)
    with fetch_packages(url, rev) as offer:
        packages = _packages(offer, name)
        check_size_limit(
            offer.source.shown,
            [*packages.values(), *list_bundle_folders(offer.folder)],
            limit=limit,
            accept=accept,
        )
        done = _Done()
        with change_installed(to) as changes:
            for package, folder in packages.items():
                _install_one(offer, package, folder, to=to, changes=changes, done=done, force=force)
            report = _report(offer, done)
            report |= import_bundle(
                offer.folder, {package: packages[package] for package in done.here}, to
            )
    report |= scaffold.write_stubs(to)
    if isinstance(offer.source, GitSource):
        from everhold.packages.hub.sources import register_source

        try:
            register_source(to, offer.source.url, "pkg_install")
        except (BadPackageFile, StoreBusy) as error:  # the packages are installed anyway
            report["storage_warnings"] = [str(error)]
    if into is not None and (warnings := _add_to_project(into, done.here)):
        report["project_files_warnings"] = warnings
    return report


def _find_editable_project(given: str | Path | None) -> Project | None:
    """The project whose files name the packages; raises if they cannot be read or edited."""
    root = find_project_root(given)
    if root is None:
        return None
    project = Project(root)
    project.needs()
    project.locked()
    if not project.toml.is_file():
        return None
    check_toml_editor("lua", f"editing {project.toml}")  # before anything is installed
    return project


def _packages(offer: FetchedFolder, name: str | None) -> dict[str, Path]:
    if is_package(offer.folder):
        return {check_package_name(name or offer.name): offer.folder}
    packages = list_collection(offer.folder)
    if not packages:
        is_python = (offer.folder / "pyproject.toml").is_file()
        hint = (
            "It is a Python package. If you trust it:"
            f" {format_command('pkg', 'install', '--python', offer.source.shown)}"
            if is_python
            else ""
        )
        raise BadPackage(
            f"No packages found: neither {offer.name} nor a folder in it has an init.lua",
            hint,
        )
    if name is not None:
        raise BadPackage(
            "'name' renames one package, and this is a collection",
            "Leave out the name.",
        )
    return packages


def _install_one(
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
            raise BadPackage(
                f"'{name}' is not replaced: {target} is a symlink", f"everhold pkg unlink {name}"
            )
        done.skipped_symlinks.append(name)
        return
    is_there = target.exists()
    if is_there and not (
        force or offer.is_local or _is_replaceable(changes.packages.get(name), offer, is_alone)
    ):
        if is_alone:
            hint = "It was not installed by everhold. Move it, choose another name, or use --force."
            raise BadPackage(f"Package '{name}' already exists: {target}", hint)
        done.skipped.append(name)
        return
    done.left_out += [f"{name}/{path}" for path in copy_package(folder, target)]
    changes.put(name, offer.source, read_package_meta(target / INIT_FILE).version or None)
    (done.updated if is_there else done.installed).append(name)


def _is_replaceable(entry: Any, offer: FetchedFolder, is_alone: bool) -> bool:
    """Whether the existing package was installed, and the offered one may replace it."""
    if entry is None:
        return False
    before = parse_source(entry.get("source") or "")
    return is_alone or (
        isinstance(before, GitSource)
        and isinstance(offer.source, GitSource)
        and before.url == offer.source.url
    )


#: Keys that the result for a collection has also if they are empty.
_ALWAYS_REPORTED: Final = {
    "local_collection": ("updated", "cards_installed"),
    "collection": (
        "skipped",
        "skipped_symlinks",
        "cards_installed",
        "scenarios_installed",
        "scenarios_failures",
    ),
}


def _report(offer: FetchedFolder, done: _Done) -> dict[str, Any]:
    """The result of an installation, without cards and scenarios; the keys are algocline's.

    A single package is always listed as installed; `replaced` says that it was there before.
    """
    is_single = is_package(offer.folder)
    kind = "single" if is_single else "collection"
    mode = f"local_{kind}" if offer.is_local else kind
    report: dict[str, Any] = {"installed": done.here if is_single else done.installed, "mode": mode}
    for key in _ALWAYS_REPORTED.get(mode, ()):
        report[key] = []
    if is_single and done.updated:
        report["replaced"] = done.updated
    elif done.updated:
        report["updated"] = done.updated
    for key in ("skipped", "skipped_symlinks", "left_out"):
        if found := getattr(done, key):
            report[key] = found
    if isinstance(offer.source, GitSource):
        report["rev"] = offer.source.rev
    return report


def _add_to_project(project: Project, names: list[str]) -> list[str]:
    """Add packages to the project's files; returns warnings, because they stay installed anyway."""
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


# ---- links

LINK_SCOPES: Final = ("global", "variant")


def link(
    path: str | Path,
    name: str | None = None,
    *,
    force: bool = False,
    scope: str = "global",
    project: str | Path | None = None,
) -> dict[str, Any]:
    """Link a folder as a package, or each package in it.

    A real folder of the same name is replaced only with `force`.
    """
    folder = expand_path(path)
    if scope not in LINK_SCOPES:
        raise BadPackage(f"invalid scope '{scope}': it is global or variant")
    if not folder.is_dir():
        raise BadPackage(f"{folder} is not a directory")
    if is_package(folder):
        places = {check_package_name(folder.name if name is None else name): folder}
    else:
        places = list_collection(folder)
        if not places:
            raise BadPackage(f"No init.lua found: {folder} is neither a package nor a collection")
        if name is not None:
            raise BadPackage(
                f"'name' renames one package, and {folder} is a collection", "Leave out the name."
            )
    mode = "single" if is_package(folder) else "collection"
    report: dict[str, Any] = {"mode": mode, "scope": scope}
    if scope == "variant":
        if force:
            raise BadPackage(
                "scope 'variant' takes no force", "An entry in alc.local.toml replaces no folder."
            )
        return report | _link_variants(places, project)
    _link_globally(places, force)
    return report | _report_links(places)


def unlink(name: str, *, project: str | Path | None = None) -> dict[str, Any]:
    """Remove a link; the folder it points to stays."""
    check_package_name(name)
    at = get_alc_home().packages / name
    if at.is_symlink():
        with change_installed(get_alc_home()):
            at.unlink()
        return {"unlinked": name}
    root = find_project_root(project)
    if root is not None and name in Project(root).variants():
        with Project(root).guarded():
            Project(root).forget_variant(name)
        return {"unlinked": name, "scope": "variant", "alc_local_toml": str(Project(root).local)}
    if at.exists():
        raise BadPackage(
            f"Package '{name}' is not a symlink; pkg_remove removes installed ones",
            f"everhold pkg remove {name} --global",
        )
    raise BadPackage(f"'{name}' is not installed, so there is no link to remove")


def _link_globally(places: dict[str, Path], force: bool) -> None:
    packages = get_alc_home().packages
    real = [
        packages / name
        for name in places
        if (packages / name).is_dir() and not (packages / name).is_symlink()
    ]
    if real and not force:
        raise BadPackage(
            f"{real[0]} is a real directory; only force=true replaces it by a link",
            "Nothing was changed. To replace it, use --force.",
        )
    with change_installed(get_alc_home()) as changes:
        packages.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, folder in places.items():
            if remove_package_folder(packages / name) and name in changes.packages:
                changes.drop(name)
            fresh = packages / f".link-{name}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(folder)
            fresh.replace(packages / name)


def _link_variants(places: dict[str, Path], given: str | Path | None) -> dict[str, Any]:
    root = find_project_root(given)
    if root is None:
        raise BadPackage("alc.toml not found: only a project has variants", "everhold pkg init")
    project = Project(root)
    with project.guarded():
        known = project.variants()
        fresh = {name: folder for name, folder in places.items() if name not in known}
        project.add_variants({name: str(folder) for name, folder in fresh.items()})
    # entries of the user stay as they are; the targets say which folder each name means now
    report = _report_links(places | {name: known[name] for name in places if name in known})
    return {**report, "linked": sorted(fresh), "alc_local_toml": str(project.local)}


def _report_links(places: dict[str, Path]) -> dict[str, Any]:
    return {
        "linked": sorted(places),
        "targets": {name: str(folder) for name, folder in sorted(places.items())},
    }


# ---- removing

REMOVE_SCOPES: Final = ("project", "global", "all")


def remove(
    name: str,
    *,
    project: str | Path | None = None,
    version: str | None = None,
    scope: str = "project",
    keep_files: bool = False,
) -> dict[str, Any]:
    """Remove a package, or only one version of it: its entry in alc.lock, or its pinned copy.

    With `keep_files`, no folder is deleted, and `version` counts for the project only.
    """
    if scope not in REMOVE_SCOPES:
        raise BadPackage(f"invalid scope '{scope}': it is project, global or all")
    check_package_name(name)
    if scope == "all":
        return _from_all(name, project, version, keep_files)
    if scope == "project":
        return _from_project(name, project, version)
    return _forget_in_home(name) if keep_files else _from_home(name, version)


def _from_project(name: str, given: str | Path | None, version: str | None) -> dict[str, Any]:
    root = find_project_root(given)
    if root is None:
        raise BadPackage(
            f"alc.toml not found, so there is no project to remove '{name}' from",
            "Run it in the project's folder, use --project, or remove it for the user: --global",
        )
    project = Project(root)
    if not project.toml.is_file() and not project.lock.is_file():
        raise BadPackage(f"alc.toml not found in {root}", "everhold pkg init")
    with project.guarded():
        needs = project.needs()
        locked = project.locked()
        kept = [
            one
            for one in locked
            if one.name != name or (version is not None and one.version != version)
        ]
        if kept == locked and (version is not None or name not in needs):
            raise BadPackage(f"Package '{name}' not found in {project.lock}")
        if name in needs and name not in {one.name for one in kept}:
            project.forget(name)
        if kept != locked:
            project.write_lock(kept)
    return {
        "removed": name,
        "scope": "project",
        "alc_toml": str(project.toml),
        "alc_lock": str(project.lock),
    }


def _from_home(name: str, version: str | None) -> dict[str, Any]:
    at = get_alc_home()
    folder = at.packages / name if version is None else at.pinned(name, version)
    with change_installed(at) as changes:
        if version is not None:
            if not remove_package_folder(folder):
                raise BadPackage(
                    f"Package '{name}' has no copy of version {version} in {at.packages}"
                )
        else:
            _check_recorded(name, changes, at)
            remove_package_folder(folder)
            changes.drop(name)
    return {
        "removed": name,
        "scope": "global",
        "installed_json": str(at.installed),
        "deleted": str(folder),
    }


def _forget_in_home(name: str) -> dict[str, Any]:
    """Remove the record of a package; its folder stays, and is still found."""
    at = get_alc_home()
    with change_installed(at) as changes:
        _check_recorded(name, changes, at)
        changes.drop(name)
    folder = at.packages / name
    return {
        "removed": name,
        "scope": "global",
        "installed_json": str(at.installed),
        **({"kept": str(folder)} if folder.exists() else {}),
    }


def _check_recorded(name: str, changes: InstalledChanges, at: AlcHome) -> None:
    if name not in changes.packages:
        hint = f"everhold pkg unlink {name}" if (at.packages / name).is_symlink() else ""
        raise BadPackage(f"Package '{name}' not found in {at.installed}", hint)


def _from_all(
    name: str, given: str | Path | None, version: str | None, keep_files: bool
) -> dict[str, Any]:
    notes: list[str | None] = []
    for scope in ("project", "global"):
        try:
            remove(name, project=given, version=version, scope=scope, keep_files=keep_files)
            notes.append(None)
        except BadPackage as error:
            notes.append(str(error))
    of_project, of_home = notes
    if of_project is not None and of_home is not None:
        raise BadPackage(
            f"Package '{name}' not found in a project or among the installed ones: {of_project};"
            f" {of_home}"
        )
    return {
        "removed": name,
        "scope": "all",
        "project_removed": of_project is None,
        "global_removed": of_home is None,
        "project_note": of_project,
        "global_note": of_home,
    }
