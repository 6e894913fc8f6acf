"""Removing packages: from the project's files, from the user's folder, or from both.

What was installed is deleted with its entry. What it was copied from stays, and so do the copies
that projects pin, unless their version is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage
from everhold.packages.lua import copy_tree
from everhold.packages.lua.installed import change_installed
from everhold.packages.lua.paths import find_project_root, get_alc_home
from everhold.packages.lua.project import Project, check_package_name

REMOVE_SCOPES: Final = ("project", "global", "all")


def remove(
    name: str,
    *,
    project: str | Path | None = None,
    version: str | None = None,
    scope: str = "project",
) -> dict[str, Any]:
    """Remove a package; with a version only this version's entry in alc.lock, or its copy in the
    home.
    """
    if scope not in REMOVE_SCOPES:
        raise BadPackage(f"invalid scope '{scope}': expected one of project, global, all")
    check_package_name(name)
    if scope == "all":
        return _from_all(name, project, version)
    return (
        _from_project(name, project, version) if scope == "project" else _from_home(name, version)
    )


def _from_project(name: str, given: str | Path | None, version: str | None) -> dict[str, Any]:
    root = find_project_root(given)
    if root is None:
        raise BadPackage(
            f"alc.toml not found: cannot remove '{name}' without a project root.",
            "Go into the project, name it, or remove the package from the user's folder: --global",
        )
    project = Project(root)
    with project.guarded():
        needs = project.needs()
        locked = project.locked()
        kept = [
            one
            for one in locked
            if one.name != name or (version is not None and one.version != version)
        ]
        if kept == locked and (version is not None or name not in needs):
            raise BadPackage(f"Package '{name}' not found in alc.lock at {project.lock}")
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
            if not copy_tree.remove_package_folder(folder):
                raise BadPackage(
                    f"Package '{name}' has no copy of version {version} in {at.packages}"
                )
        elif name not in changes.packages:
            hint = f"everhold pkg unlink {name}" if folder.is_symlink() else ""
            raise BadPackage(
                f"Package '{name}' not found in global manifest ({at.installed})", hint
            )
        else:
            copy_tree.remove_package_folder(folder)
            changes.drop(name)
    return {
        "removed": name,
        "scope": "global",
        "installed_json": str(at.installed),
        "deleted": str(folder),
    }


def _from_all(name: str, given: str | Path | None, version: str | None) -> dict[str, Any]:
    notes: list[str | None] = []
    for scope in ("project", "global"):
        try:
            remove(name, project=given, version=version, scope=scope)
            notes.append(None)
        except BadPackage as error:
            notes.append(str(error))
    of_project, of_home = notes
    if of_project is not None and of_home is not None:
        raise BadPackage(
            f"Package '{name}' not found in any scope:\n  project: {of_project}\n  global:"
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
