"""A project's own files: beginning one, resolving what it needs, and taking over an old lock."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from everhold.errors import BadPackage, BadPackageFile, PackageTooLarge
from everhold.packages.lua import copy_tree, scaffold, toml_edit
from everhold.packages.lua.atomic_file import read_text_file, write_atomically
from everhold.packages.lua.fetch import INSTALLED_SOURCE, FolderSource
from everhold.packages.lua.paths import AlcHome, find_project_root, get_alc_home
from everhold.packages.lua.pins import pin_by_git, pin_by_version
from everhold.packages.lua.project import (
    INSTALL_LOCK_FILE,
    LEGACY_SOURCE,
    LOCAL,
    GitNeed,
    LockedPackage,
    PackageNeed,
    PathNeed,
    Project,
    is_package_name,
)

IGNORED_FILES: Final = (LOCAL, INSTALL_LOCK_FILE)
NOTHING_TO_MIGRATE: Final = "nothing to migrate"


def init(project: str | Path | None = None) -> dict[str, Any]:
    """Begin a project: an empty alc.toml, and a .gitignore that names what is of this machine
    alone.
    """
    one = Project(find_project_root(project) or Path.cwd())
    with one.guarded():
        if one.toml.exists():
            raise BadPackage(f"alc.toml already exists at {one.toml}", "It is left as it is.")
        ignore = one.root / ".gitignore"
        text = read_text_file(ignore) or ""
        missing = [name for name in IGNORED_FILES if name not in text.split()]
        if missing:
            gap = "\n" if text and not text.endswith("\n") else ""
            write_atomically(ignore, text + gap + "\n".join([*missing, ""]), mode=0o644)
        write_atomically(one.toml, "[packages]\n", mode=0o644)
    told = {
        "created": str(one.toml),
        "gitignore_path": str(ignore),
        "gitignore_updated": bool(missing),
    }
    return told | scaffold.write_stubs(get_alc_home())


def update(project: str | Path | None = None) -> dict[str, Any]:
    """Resolve what alc.toml needs and write alc.lock. What cannot be resolved stays as it was, and
    is told.
    """
    root = find_project_root(project)
    if root is None or not Project(root).toml.is_file():
        raise BadPackage("No alc.toml found. Run alc_init first.", "everhold pkg init")
    one = Project(root)
    at = get_alc_home()
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
            if not copy_tree.is_package(project.place(path)):
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


def migrate(project: str | Path | None = None) -> dict[str, Any]:
    """Make an alc.toml of an old alc.lock, which is kept as alc.lock.bak."""
    one = Project(find_project_root(project) or Path.cwd())
    text = read_text_file(one.lock)
    if text is None:
        return {"status": NOTHING_TO_MIGRATE, "reason": "alc.lock not found"}
    old = _old(one.lock, text)
    if not old:
        return {
            "status": NOTHING_TO_MIGRATE,
            "reason": "already new format or no local_dir entries",
        }
    if one.toml.exists():
        raise BadPackage(
            f"alc.toml already exists at {one.toml}. Remove it first or migrate manually."
        )
    backup = one.lock.with_name("alc.lock.bak")
    lines = [
        "[packages]",
        *(f"{name} = {toml_edit.format_toml_value({'path': path})}" for name, path in old.items()),
        "",
    ]
    with one.guarded():
        write_atomically(one.toml, "\n".join(lines), mode=0o644)
        os.replace(one.lock, backup)
    note = "Run alc_update to generate new alc.lock"
    return {"migrated": True, "alc_toml": str(one.toml), "backup": str(backup), "note": note}


def _old(file: Path, text: str) -> dict[str, str]:
    """The folders of an old lock, by package; none if it is not old."""
    try:
        packages = toml_edit.parse_toml(text).get("package", [])
        found = {
            one["name"]: one["source"]["path"]
            for one in packages
            if one.get("source", {}).get("type") == LEGACY_SOURCE or "linked_at" in one
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadPackageFile(str(file), f"it cannot be read: {error}") from None
    if not all(is_package_name(name) and isinstance(path, str) for name, path in found.items()):
        raise BadPackageFile(str(file), "a [[package]] has no name or path that can be used")
    return found
