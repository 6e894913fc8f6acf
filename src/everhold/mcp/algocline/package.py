"""The tools for packages: verbs of `packages/lua`, in a thread, for they read files and fetch
repositories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from everhold.core.codec import JSON
from everhold.mcp.algocline import tools
from everhold.packages.lua import api
from everhold.packages.lua.listing import DEFAULT_LIMIT, DEFAULT_SORT
from everhold.packages.settings import PACKAGES_FOLDER, settings


def list_settings_folders() -> list[tuple[Path, str]]:
    """Folders of packages that our own settings name, if they are there, and who names them."""
    found = settings()
    return [
        (path, "settings")
        for path in (*found.packages_path, found.root / PACKAGES_FOLDER)
        if path.is_dir()
    ]


def _list(given: tools.ListPackagesArgs) -> dict[str, JSON]:
    return api.list_packages(
        given.project_root,
        limit=DEFAULT_LIMIT if given.limit is None else given.limit,
        sort=DEFAULT_SORT if given.sort is None else given.sort,
        filter=given.filter,
        fields=given.fields,
        verbose=given.verbose,
        more=list_settings_folders(),
    )


def _link(given: tools.LinkPackageArgs) -> dict[str, JSON]:
    scope = given.scope or "global"
    return api.link(
        given.path, given.name, force=given.force, scope=scope, project=given.project_root
    )


def _remove(given: tools.RemovePackageArgs) -> dict[str, JSON]:
    scope = given.scope or "project"
    return api.remove(given.name, scope=scope, version=given.version, project=given.project_root)


def _scaffold(given: tools.ScaffoldPackageArgs) -> dict[str, JSON]:
    about = {"category": given.category, "description": given.description}
    return api.scaffold(
        given.name, given.target_dir or ".", **{key: text for key, text in about.items() if text}
    )


_VERBS: Final[dict[str, Callable[[Any], dict[str, JSON]]]] = {
    "init": lambda given: api.init(given.project_root),
    "update": lambda given: api.update(given.project_root),
    "migrate": lambda given: api.migrate(given.project_root),
    "pkg_link": _link,
    "pkg_unlink": lambda given: api.unlink(given.name),
    "pkg_list": _list,
    "pkg_install": lambda given: api.install(given.url, given.name),
    "pkg_remove": _remove,
    "pkg_repair": lambda given: api.repair(given.name, given.project_root),
    "pkg_doctor": lambda given: api.doctor(given.name, given.project_root),
    "pkg_scaffold": _scaffold,
}


def is_package_verb(verb: str) -> bool:
    return verb in _VERBS


async def run_package_verb(verb: str, given: Any) -> dict[str, JSON]:
    """Do it, and say what was done; raises `BadPackage`, `BadPackageFile` and the like."""
    return await asyncio.to_thread(_VERBS[verb], given)
