"""Links: a folder that is being worked on, used as a package where it is.

global    a link in the user's folder of packages; every project sees it
variant   an entry in alc.local.toml; this project sees it, on this machine
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage
from everhold.packages.lua import copy_tree
from everhold.packages.lua.installed import change_installed
from everhold.packages.lua.paths import find_project_root, get_alc_home
from everhold.packages.lua.project import Project, check_package_name

LINK_SCOPES: Final = ("global", "variant")


def link(
    path: str | Path,
    name: str | None = None,
    *,
    force: bool = False,
    scope: str = "global",
    project: str | Path | None = None,
) -> dict[str, Any]:
    """Use a folder as a package, or each package in it; a real folder of that name is replaced by
    force alone.
    """
    folder = Path(path).expanduser().absolute()
    if scope not in LINK_SCOPES:
        raise BadPackage(f"invalid scope '{scope}': expected one of global, variant")
    if not folder.is_dir():
        raise BadPackage(f"Path is not a directory: {folder}")
    places = _places(folder, name)
    mode = "single" if copy_tree.is_package(folder) else "collection"
    told: dict[str, Any] = {"mode": mode, "scope": scope}
    if scope == "variant":
        if force:
            raise BadPackage("force is not supported with scope 'variant'", "It replaces nothing.")
        return told | _as_variants(places, project)
    _as_links(places, force)
    return told | _named(places)


def unlink(name: str, *, project: str | Path | None = None) -> dict[str, Any]:
    """Take a link away; the folder that it leads to stays."""
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
            f"Package '{name}' is not a symlink. Use pkg_remove to remove it.",
            f"everhold pkg remove {name} --global",
        )
    raise BadPackage(f"Package '{name}' is not installed")


def _places(folder: Path, name: str | None) -> dict[str, Path]:
    if copy_tree.is_package(folder):
        return {check_package_name(folder.name if name is None else name): folder}
    found = copy_tree.list_collection(folder)
    if not found:
        raise BadPackage(f"No init.lua found in {folder} or any of its subdirectories")
    if name is not None:
        raise BadPackage(
            "The 'name' parameter is only supported for a single package (init.lua at root)."
        )
    return found


def _as_links(places: dict[str, Path], force: bool) -> None:
    packages = get_alc_home().packages
    real = [
        packages / name
        for name in places
        if (packages / name).is_dir() and not (packages / name).is_symlink()
    ]
    if real and not force:
        raise BadPackage(
            f"Destination '{real[0]}' is a real directory. Use force=true to overwrite.",
            "Nothing was changed; --force",
        )
    with change_installed(get_alc_home()) as changes:
        packages.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, folder in places.items():
            if copy_tree.remove_package_folder(packages / name) and name in changes.packages:
                changes.drop(name)
            fresh = packages / f".link-{name}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(folder)
            fresh.replace(packages / name)


def _as_variants(places: dict[str, Path], given: str | Path | None) -> dict[str, Any]:
    root = find_project_root(given)
    if root is None:
        raise BadPackage(
            "alc.toml not found: scope 'variant' needs a project root.", "everhold pkg init"
        )
    project = Project(root)
    with project.guarded():
        known = project.variants()
        fresh = {name: folder for name, folder in places.items() if name not in known}
        project.add_variants({name: str(folder) for name, folder in fresh.items()})
    return {**_named(fresh), "alc_local_toml": str(project.local)}


def _named(places: dict[str, Path]) -> dict[str, Any]:
    return {
        "linked": sorted(places),
        "targets": {name: str(folder) for name, folder in sorted(places.items())},
    }
