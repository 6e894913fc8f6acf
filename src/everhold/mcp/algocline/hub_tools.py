"""The tools for the hub: parameters, descriptions and handlers.

The handlers run in a thread, because they read files and fetch indexes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from everhold import packages
from everhold.cards.cards import load_package_cards
from everhold.core.codec import JSON
from everhold.errors import BadPackage, BadPackageFile
from everhold.mcp.algocline.alc_wire import AlcRefused, AlcTool, ProjectRoot, dump_compact
from everhold.packages.lua.card_index import PackageCards
from everhold.runtime import Runtime

#: Evals of a package that are counted at most.
_MAX_EVALS: Final = 10_000

SourceDir = Annotated[
    str,
    Meta(description="Folder of the collection: each package is a folder in it with an init.lua."),
]
OutDir = Annotated[
    str | None, Meta(description="Where to write the documents. Default: docs in source_dir.")
]
Projections = Annotated[
    list[str] | None,
    Meta(
        description="What to make beside pages and lists: hub, context7, devin, luacats, lint; or"
        " lint_only, which writes nothing. narrative and llms are always made."
    ),
]
ConfigPath = Annotated[
    str | None,
    Meta(
        description="A TOML file with the tables [context7] and [devin]. Default: [hub.context7]"
        " and [hub.devin] of alc.toml."
    ),
]
LintStrict = Annotated[
    bool | None, Meta(description="Write nothing if a package violates a rule. Default: false.")
]


class SearchHubArgs(msgspec.Struct):
    query: Annotated[
        str | None,
        Meta(description="Text in the name, description, category or docstring."),
    ] = None
    category: Annotated[str | None, Meta(description="Only this category.")] = None
    installed_only: Annotated[bool | None, Meta(description="Only installed packages.")] = None
    limit: Annotated[
        int | None, Meta(description="How many packages to show. Default 50; 0: all.")
    ] = None
    sort: Annotated[
        str | None,
        Meta(description="Fields to sort by, with - for descending. Default: -installed,name."),
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


class HubInfoArgs(msgspec.Struct):
    pkg: Annotated[str, Meta(description="The package's name.")]


class ReindexHubArgs(msgspec.Struct):
    output_path: Annotated[
        str | None,
        Meta(description="The file to write, such as hub_index.json. Default: only count."),
    ] = None
    source_dir: Annotated[
        str | None,
        Meta(description="Folder of a collection. Default: the installed packages."),
    ] = None


class GendocHubArgs(msgspec.Struct):
    source_dir: SourceDir
    out_dir: OutDir = None
    projections: Projections = None
    config_path: ConfigPath = None
    lint_strict: LintStrict = None


class DistHubArgs(msgspec.Struct):
    source_dir: SourceDir
    output_path: Annotated[
        str | None,
        Meta(description="Where to write the index; mostly hub_index.json in source_dir."),
    ] = None
    out_dir: OutDir = None
    preset: Annotated[
        str | None,
        Meta(
            description="Stands for options: publish (hub and lint), or one of"
            " [hub.dist.presets] in alc.toml."
        ),
    ] = None
    project_root: ProjectRoot = None
    projections: Projections = None
    config_path: ConfigPath = None
    lint_strict: LintStrict = None


HUB_TOOLS: Final = (
    AlcTool(
        "alc_hub_search",
        "Search packages: those in the indexes of the hub, which are fetched from the network, and"
        " those installed here. Install one with alc_pkg_install and the URL of its source.",
        SearchHubArgs,
        reads=True,
        world=True,
    ),
    AlcTool(
        "alc_hub_info",
        "Show one package, installed or not: metadata, cards, aliases, counts and best pass rate.",
        HubInfoArgs,
        reads=True,
        world=True,
    ),
    AlcTool(
        "alc_hub_reindex",
        "Make an index of packages from the text of their init.lua, without running them.",
        ReindexHubArgs,
        destroys=False,
    ),
    AlcTool(
        "alc_hub_gendoc",
        "Write the documents of a collection that has a hub_index.json: a page per package,"
        " llms.txt and llms-full.txt, and files for other readers. Nothing is written if a package"
        " cannot be loaded.",
        GendocHubArgs,
        destroys=False,
    ),
    AlcTool(
        "alc_hub_dist",
        "Make the index and the documents of a collection in one step, all or nothing.",
        DistHubArgs,
        destroys=False,
    ),
)


def _search(given: SearchHubArgs, cards: PackageCards, evals: int) -> dict[str, JSON]:
    said = {"limit": given.limit, "sort": given.sort}
    return packages.hub_search(
        given.query,
        category=given.category,
        installed_only=bool(given.installed_only),
        filter=given.filter,
        fields=given.fields,
        verbose=given.verbose,
        cards=cards,
        **{key: value for key, value in said.items() if value is not None},  # type: ignore[arg-type]
    )


def _gendoc(given: GendocHubArgs) -> dict[str, JSON]:
    return packages.hub_gendoc(
        given.source_dir,
        given.out_dir,
        projections=given.projections,
        config_path=given.config_path,
        lint_strict=bool(given.lint_strict),
    )


def _dist(given: DistHubArgs) -> dict[str, JSON]:
    """The error of a failure says which of the two steps failed."""
    try:
        return packages.hub_dist(
            given.source_dir,
            given.output_path,
            given.out_dir,
            preset=given.preset,
            project=given.project_root,
            projections=given.projections,
            config_path=given.config_path,
            lint_strict=given.lint_strict,
        )
    except (BadPackage, BadPackageFile) as error:
        if str(error).startswith("dist:"):
            raise
        failure = error
    try:
        made = packages.hub_reindex(None, given.source_dir)
    except (BadPackage, BadPackageFile) as error:
        words = f"dist: reindex failed: {error}"
        raise AlcRefused(words, error.code, error.hint) from None
    words = f"dist: gendoc failed: {failure}; reindex result (succeeded): {dump_compact(made)}"
    raise AlcRefused(words, failure.code, failure.hint)


#: What needs no cards of the database.
_VERBS: Final[dict[str, Callable[[Any], dict[str, JSON]]]] = {
    "hub_gendoc": _gendoc,
    "hub_dist": _dist,
}
#: What shows cards: gets those of the database and of files, and the number of evals.
_CARD_VERBS: Final[dict[str, Callable[[Any, PackageCards, int], dict[str, JSON]]]] = {
    "hub_search": _search,
    "hub_info": lambda given, cards, evals: packages.hub_info(given.pkg, cards=cards, evals=evals),
    "hub_reindex": lambda given, cards, evals: packages.hub_reindex(
        given.output_path, given.source_dir, cards=cards
    ),
}


def is_hub_verb(verb: str) -> bool:
    return verb in _VERBS or verb in _CARD_VERBS


async def run_hub_verb(runtime: Runtime, verb: str, given: Any) -> dict[str, JSON]:
    """Run a verb and return its result; raises its errors, such as `BadPackage`."""
    if verb in _VERBS:
        return await asyncio.to_thread(_VERBS[verb], given)
    evals = 0
    if isinstance(given, HubInfoArgs):
        evals = len(await runtime.evals.list(program=given.pkg, limit=_MAX_EVALS))
    cards = await load_package_cards(runtime.cards)
    return await asyncio.to_thread(_CARD_VERBS[verb], given, cards, evals)
