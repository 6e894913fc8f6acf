"""The tools for packages: parameters, descriptions and handlers.

The handlers run in a thread, because they read files and fetch repositories.
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
from everhold.mcp.algocline.eval_tools import SCENARIO_VERBS
from everhold.packages.lua.listing import DEFAULT_LIMIT, DEFAULT_SORT
from everhold.packages.settings import PACKAGES_FOLDER, settings

PackageName = Annotated[str, Meta(description="The package's name.")]


class ProjectArgs(msgspec.Struct):
    project_root: ProjectRoot = None


class LinkPackageArgs(msgspec.Struct):
    path: Annotated[
        str,
        Meta(description="Folder of a package (with an init.lua) or of a collection of packages."),
    ]
    name: Annotated[str | None, Meta(description="Another name, for a single package only.")] = None
    force: Annotated[bool, Meta(description="Replace an existing folder of that name.")] = False
    scope: Annotated[
        str | None,
        Meta(
            description="global: a link for this user (default); variant: an entry in the"
            " project's alc.local.toml.",
            extra_json_schema={"enum": ["global", "variant"]},
        ),
    ] = None
    project_root: ProjectRoot = None


class PackageArgs(msgspec.Struct):
    name: PackageName


class ListPackagesArgs(msgspec.Struct):
    project_root: ProjectRoot = None
    limit: Annotated[
        int | None, Meta(description="How many packages to list. Default 50; 0 or less: all.")
    ] = None
    sort: Annotated[
        str | None,
        Meta(
            description="Fields to sort by, with - for descending. Default: -active,-installed_at."
        ),
    ] = None
    filter: Annotated[
        Any,
        Meta(
            description="Fields and their required values.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    fields: Annotated[list[str] | None, Meta(description="Show exactly these fields.")] = None
    verbose: Annotated[
        str | None, Meta(description='Level of detail: "summary" (default) or "full".')
    ] = None


class InstallPackageArgs(msgspec.Struct):
    url: Annotated[str, Meta(description="Absolute path of a folder, or URL of a git repository.")]
    name: Annotated[str | None, Meta(description="Another name, for a single package only.")] = None


class RemovePackageArgs(msgspec.Struct):
    name: PackageName
    project_root: ProjectRoot = None
    version: Annotated[str | None, Meta(description="Only this version.")] = None
    scope: Annotated[
        str | None,
        Meta(
            description="project (default), global (installed packages of this user) or all.",
            extra_json_schema={"enum": ["project", "global", "all"]},
        ),
    ] = None


class OptionalPackageArgs(msgspec.Struct):
    name: Annotated[str | None, Meta(description="Only this package.")] = None
    project_root: ProjectRoot = None


class ScaffoldPackageArgs(msgspec.Struct):
    name: Annotated[
        str, Meta(description="Name of the new package: a letter a-z, then a-z, 0-9 and _.")
    ]
    target_dir: Annotated[
        str | None, Meta(description="Where to create its folder. Default: the current folder.")
    ] = None
    category: Annotated[str | None, Meta(description="The category of the strategy.")] = None
    description: Annotated[str | None, Meta(description="What it does.")] = None


PACKAGE_TOOLS: Final = (
    AlcTool(
        "alc_init", "Create an alc.toml in a project.", ProjectArgs, destroys=False, repeats=True
    ),
    AlcTool("alc_update", "Resolve the packages of alc.toml, and write alc.lock.", ProjectArgs),
    AlcTool(
        "alc_migrate",
        "Convert an alc.lock from before alc.toml into alc.toml and a new alc.lock.",
        ProjectArgs,
    ),
    AlcTool(
        "alc_pkg_link",
        "Use packages in their own folder, without a copy: by a link for this user, or by an entry"
        " in the project's alc.local.toml.",
        LinkPackageArgs,
        destroys=False,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_unlink",
        "Remove the link to a package. Its files stay.",
        PackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_list",
        "List packages with their folders, and which package of a name is active.",
        ListPackagesArgs,
        reads=True,
    ),
    AlcTool(
        "alc_pkg_install",
        "Install a package, or a collection of packages, from a folder or a git repository."
        " No code of it is run.",
        InstallPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_remove",
        "Remove a package from the files of the project, from the list of installed packages, or"
        " from both. No folder is deleted.",
        RemovePackageArgs,
        destroys=True,
    ),
    AlcTool(
        "alc_pkg_repair",
        "Repair packages that are missing or broken, from their source.",
        OptionalPackageArgs,
        destroys=True,
        world=True,
    ),
    AlcTool(
        "alc_pkg_doctor",
        "Check packages, and report what is wrong with them.",
        OptionalPackageArgs,
        reads=True,
        repeats=True,
    ),
    AlcTool(
        "alc_pkg_scaffold",
        "Create the skeleton of a new package.",
        ScaffoldPackageArgs,
        destroys=False,
    ),
)


def list_settings_folders() -> list[tuple[Path, str]]:
    """The existing package folders of everhold's own settings, each with its source."""
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
        given.name,
        scope=scope,
        version=given.version,
        project=given.project_root,
        keep_files=True,  # a model calls this; only its user deletes files
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
    **SCENARIO_VERBS,
}


def is_package_verb(verb: str) -> bool:
    return verb in _VERBS


async def run_package_verb(verb: str, given: Any) -> dict[str, JSON]:
    """Run a verb in a thread and return its result; raises its errors, such as `BadPackage`."""
    return await asyncio.to_thread(_VERBS[verb], given)
