"""The tools for cards: parameters, descriptions and handlers.

Rules
  1. Files that cannot be read are rows of `alc_card_list`, each with its `error`. The other tools
     that search name them in `_meta` (`everhold/problems`).
  2. `where`, `order_by` and `fields` may be JSON text, as some hosts send them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from everhold.core.codec import JSON
from everhold.errors import BadCard
from everhold.mcp.algocline.alc_wire import AlcTool
from everhold.runtime import Runtime

CardId = Annotated[str, Meta(description="The card's id.")]
OnlyPackage = Annotated[str | None, Meta(description="Only cards of this package.")]
Count = Annotated[int, Meta(ge=0)]
Where = Annotated[
    Any,
    Meta(
        description='Conditions in the shape of a card, such as {"stats": {"pass_rate":'
        ' {"gte": 0.8}}}. Operators: eq, ne, lt, lte, gt, gte, in, nin, exists, contains,'
        " starts_with; _and, _or, _not.",
        extra_json_schema={"type": "object"},
    ),
]


class ListCardsArgs(msgspec.Struct):
    pkg: OnlyPackage = None


class CardArgs(msgspec.Struct):
    card_id: CardId


class FindCardsArgs(msgspec.Struct):
    pkg: OnlyPackage = None
    where: Where = None
    order_by: Annotated[
        Any,
        Meta(
            description='A path such as "-stats.pass_rate" (- for descending), or an array of'
            " paths. Default: newest first.",
            extra_json_schema={"type": ["string", "array"]},
        ),
    ] = None
    limit: Annotated[Count | None, Meta(description="How many cards at most.")] = None
    offset: Annotated[Count | None, Meta(description="How many cards to leave out first.")] = None


class AppendCardArgs(msgspec.Struct):
    card_id: CardId
    fields: Annotated[
        Any,
        Meta(
            description="Keys to add at the top level. A key that the card has is refused.",
            extra_json_schema={"type": "object"},
        ),
    ]


class CardSamplesArgs(msgspec.Struct):
    card_id: CardId
    offset: Annotated[Count | None, Meta(description="How many rows to leave out first.")] = None
    limit: Annotated[Count | None, Meta(description="How many rows at most.")] = None
    where: Where = None


class CardLineageArgs(msgspec.Struct):
    card_id: CardId
    direction: Annotated[
        str | None, Meta(description="up (ancestors, the default), down (descendants) or both.")
    ] = None
    depth: Annotated[Count | None, Meta(description="How many generations. Default 10.")] = None
    include_stats: Annotated[
        bool | None, Meta(description="Show the stats of each card. Default true.")
    ] = None
    relation_filter: Annotated[
        list[str] | None, Meta(description="Follow only these values of metadata.prior_relation.")
    ] = None


class SetAliasArgs(msgspec.Struct):
    name: Annotated[str, Meta(description="The alias.")]
    card_id: CardId
    pkg: Annotated[str | None, Meta(description="The package that the alias is for.")] = None
    note: Annotated[str | None, Meta(description="Why the alias names this card.")] = None


class AliasArgs(msgspec.Struct):
    name: Annotated[str, Meta(description="The alias.")]


class InstallCardsArgs(msgspec.Struct):
    url: Annotated[
        str,
        Meta(
            description="Absolute path of a folder, or URL of a git repository, with an"
            " alc_cards.toml."
        ),
    ]


class BackfillArgs(msgspec.Struct):
    sink: Annotated[str, Meta(description="A sink of ALC_CARD_SINKS, such as file:///srv/cards.")]
    dry_run: Annotated[bool, Meta(description="Only say what would be copied.")] = False


CARD_TOOLS: Final = (
    AlcTool("alc_card_list", "List cards, newest first.", ListCardsArgs, reads=True),
    AlcTool("alc_card_get", "Show a card.", CardArgs, reads=True),
    AlcTool("alc_card_find", "Search among cards.", FindCardsArgs, reads=True),
    AlcTool(
        "alc_card_append",
        "Add keys to a card. What it has is never changed.",
        AppendCardArgs,
        destroys=False,
    ),
    AlcTool(
        "alc_card_samples",
        "Show the samples of a card: a row per case.",
        CardSamplesArgs,
        reads=True,
    ),
    AlcTool(
        "alc_card_lineage",
        "Show which cards a card comes from, or which come from it.",
        CardLineageArgs,
        reads=True,
    ),
    AlcTool(
        "alc_card_alias_set",
        "Name a card. A name that is used already then names this card.",
        SetAliasArgs,
        destroys=False,
        repeats=True,
    ),
    AlcTool("alc_card_alias_list", "List the names of cards.", ListCardsArgs, reads=True),
    AlcTool("alc_card_get_by_alias", "Show the card that a name names.", AliasArgs, reads=True),
    AlcTool(
        "alc_card_install",
        "Install a collection of cards from a folder or a git repository. Cards that are here"
        " already are skipped.",
        InstallCardsArgs,
        destroys=False,
    ),
    AlcTool(
        "alc_card_sink_backfill",
        "Copy the cards that a sink lacks to it. What is there stays.",
        BackfillArgs,
        destroys=False,
        repeats=True,
    ),
)


# ---- handlers


async def _list(runtime: Runtime, given: ListCardsArgs) -> JSON:
    rows: list[JSON] = [*await runtime.cards.list(given.pkg)]
    for problem in await runtime.cards.problems(given.pkg):
        if problem.card_id:
            rows.append({"card_id": problem.card_id, "pkg": problem.pkg, "error": problem.reason})
    return rows


async def _find(runtime: Runtime, given: FindCardsArgs) -> JSON:
    return await runtime.cards.find(
        pkg=given.pkg,
        where=given.where,
        order_by=given.order_by,
        limit=given.limit,
        offset=given.offset,
    )


async def _append(runtime: Runtime, given: AppendCardArgs) -> JSON:
    if not isinstance(given.fields, dict):
        raise BadCard("fields must be an object", "Nothing was written. Give keys to add.")
    return await runtime.cards.append(given.card_id, given.fields)


async def _samples(runtime: Runtime, given: CardSamplesArgs) -> JSON:
    return await runtime.cards.samples(
        given.card_id, where=given.where, limit=given.limit, offset=given.offset
    )


async def _lineage(runtime: Runtime, given: CardLineageArgs) -> JSON:
    return await runtime.cards.lineage(
        given.card_id,
        direction=given.direction or "up",  # type: ignore[arg-type]  # checked there
        depth=given.depth,
        include_stats=given.include_stats is not False,
        relations=given.relation_filter,
    )


async def _backfill(runtime: Runtime, given: BackfillArgs) -> JSON:
    return (await runtime.cards.backfill(given.sink, dry_run=given.dry_run)).to_json()


_HANDLERS: Final[dict[str, Callable[[Runtime, Any], Awaitable[JSON]]]] = {
    "card_list": _list,
    "card_get": lambda runtime, given: runtime.cards.get(given.card_id),
    "card_find": _find,
    "card_append": _append,
    "card_samples": _samples,
    "card_lineage": _lineage,
    "card_alias_set": lambda runtime, given: runtime.cards.set_alias(
        given.name, given.card_id, pkg=given.pkg, note=given.note
    ),
    "card_alias_list": lambda runtime, given: runtime.cards.aliases(given.pkg),
    "card_get_by_alias": lambda runtime, given: runtime.cards.get_by_alias(given.name),
    "card_install": lambda runtime, given: runtime.cards.install(given.url),
    "card_sink_backfill": _backfill,
}
_SEARCHES: Final = ("card_list", "card_find", "card_alias_list", "card_lineage")


def is_card_verb(verb: str) -> bool:
    return verb in _HANDLERS


async def run_card_verb(
    runtime: Runtime, verb: str, given: Any
) -> tuple[JSON, dict[str, JSON] | None]:
    """Run a verb. Returns its result, and what belongs into `_meta`."""
    result = await _HANDLERS[verb](runtime, given)
    if verb not in _SEARCHES:
        return result, None
    problems = await runtime.cards.problems(getattr(given, "pkg", None))
    return result, {"everhold/problems": [str(one) for one in problems]} if problems else None
