"""The tools for packages, over `packages/lua`.

They run in a thread, because they read files and fetch repositories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from everhold import packages
from everhold.core.codec import JSON
from everhold.mcp.algocline.alc_wire import AlcTool, ProjectRoot
from everhold.packages.lua.listing import DEFAULT_LIMIT, DEFAULT_SORT
from everhold.packages.settings import PACKAGES_FOLDER, settings

PackageName = Annotated[str, Meta(description="The package's name.")]


class ProjectArgs(msgspec.Struct):
    project_root: ProjectRoot = None


class LinkPackageArgs(msgspec.Struct):
    path: Annotated[
        str,
        Meta(description="Folder of a package (with an init.lua), or of a collection of packages."),
    ]
    name: Annotated[str | None, Meta(description="Another name; of a single package only.")] = None
    force: Annotated[bool, Meta(description="Replace a folder that is in the way.")] = False
    scope: Annotated[
        str | None,
        Meta(
            description="global: a link for this user (default); variant: an entry in the"
            " project's alc.local.toml."
        ),
    ] = None
    project_root: ProjectRoot = None


class PackageArgs(msgspec.Struct):
    name: PackageName


class ListPackagesArgs(msgspec.Struct):
    project_root: ProjectRoot = None
    limit: Annotated[int | None, Meta(description="How many; default 50, 0 or less: all.")] = None
    sort: Annotated[
        str | None,
        Meta(description="Fields to sort by, - before one for descending; -active,-installed_at."),
    ] = None
    filter: Annotated[
        Any,
        Meta(
            description="Fields and the values they must have.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    fields: Annotated[list[str] | None, Meta(description="Exactly these fields of each.")] = None
    verbose: Annotated[
        str | None, Meta(description='How much of each: "summary" (default) or "full".')
    ] = None


class InstallPackageArgs(msgspec.Struct):
    url: Annotated[
        str, Meta(description="Absolute path of a folder, or address of a git repository.")
    ]
    name: Annotated[str | None, Meta(description="Another name; of a single package only.")] = None


class RemovePackageArgs(msgspec.Struct):
    name: PackageName
    project_root: ProjectRoot = None
    version: Annotated[str | None, Meta(description="Only this version.")] = None
    scope: Annotated[
        str | None,
        Meta(description="project (default), global: what this user installed, or all."),
    ] = None


class OptionalPackageArgs(msgspec.Struct):
    name: Annotated[str | None, Meta(description="Only this package.")] = None
    project_root: ProjectRoot = None


class ScaffoldPackageArgs(msgspec.Struct):
    name: Annotated[str, Meta(description="Name of the new package: a-z, then a-z, 0-9 and _.")]
    target_dir: Annotated[
        str | None, Meta(description="Where to make its folder; default the current one.")
    ] = None
    category: Annotated[str | None, Meta(description="What sort of strategy it is.")] = None
    description: Annotated[str | None, Meta(description="What it does.")] = None


PACKAGE_TOOLS: Final = (
    AlcTool(
        "alc_init", "Make an alc.toml in a project.", ProjectArgs, destroys=False, repeats=True
    ),
    AlcTool("alc_update", "Resolve what alc.toml names, and write alc.lock.", ProjectArgs),
    AlcTool("alc_migrate", "Turn an alc.lock from before alc.toml into both.", ProjectArgs),
    AlcTool(
        "alc_pkg_link",
        "Use packages where they are: a link for this user, or an entry in the project's"
        " alc.local.toml.",
        LinkPackageArgs,
        destroys=False,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_unlink",
        "Take away the link to a package; its files stay.",
        PackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_list",
        "List packages, with where each is found and which of a name is active.",
        ListPackagesArgs,
        reads=True,
    ),
    AlcTool(
        "alc_pkg_install",
        "Install a package, or a collection of packages, from a folder or a git repository."
        " Nothing of it is run.",
        InstallPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_remove",
        "Remove a package from the project, from this user, or from both.",
        RemovePackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_repair",
        "Mend packages that are missing or broken, from where they came.",
        OptionalPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_doctor",
        "Say which packages are whole and what is wrong with others.",
        OptionalPackageArgs,
        reads=True,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_scaffold",
        "Make the skeleton of a new package.",
        ScaffoldPackageArgs,
        destroys=False,
    ),
)


def list_settings_folders() -> list[tuple[Path, str]]:
    """Folders of packages that our own settings name, if they are there, and who names them."""
    found = settings()
    return [
        (path, "settings")
        for path in (*found.packages_path, found.root / PACKAGES_FOLDER)
        if path.is_dir()
    ]


def _list(given: ListPackagesArgs) -> dict[str, JSON]:
    return packages.list_packages(
        given.project_root,
        limit=DEFAULT_LIMIT if given.limit is None else given.limit,
        sort=DEFAULT_SORT if given.sort is None else given.sort,
        filter=given.filter,
        fields=given.fields,
        verbose=given.verbose,
        more=list_settings_folders(),
    )


def _link(given: LinkPackageArgs) -> dict[str, JSON]:
    scope = given.scope or "global"
    return packages.link(
        given.path, given.name, force=given.force, scope=scope, project=given.project_root
    )


def _remove(given: RemovePackageArgs) -> dict[str, JSON]:
    scope = given.scope or "project"
    return packages.remove(
        given.name, scope=scope, version=given.version, project=given.project_root
    )


def _scaffold(given: ScaffoldPackageArgs) -> dict[str, JSON]:
    about = {"category": given.category, "description": given.description}
    return packages.scaffold(
        given.name, given.target_dir or ".", **{key: text for key, text in about.items() if text}
    )


_VERBS: Final[dict[str, Callable[[Any], dict[str, JSON]]]] = {
    "init": lambda given: packages.init(given.project_root),
    "update": lambda given: packages.update(given.project_root),
    "migrate": lambda given: packages.migrate(given.project_root),
    "pkg_link": _link,
    "pkg_unlink": lambda given: packages.unlink(given.name),
    "pkg_list": _list,
    "pkg_install": lambda given: packages.install(given.url, given.name),
    "pkg_remove": _remove,
    "pkg_repair": lambda given: packages.repair(given.name, given.project_root),
    "pkg_doctor": lambda given: packages.doctor(given.name, given.project_root),
    "pkg_scaffold": _scaffold,
}


def is_package_verb(verb: str) -> bool:
    return verb in _VERBS


async def run_package_verb(verb: str, given: Any) -> dict[str, JSON]:
    """Do it, and say what was done; raises `BadPackage`, `BadPackageFile` and the like."""
    return await asyncio.to_thread(_VERBS[verb], given)
