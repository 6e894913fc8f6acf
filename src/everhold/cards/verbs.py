"""What can be done with cards, once: for Lua programs, tools, the command line and Python.

Each verb gets plain JSON and gives plain JSON. In a Lua program a verb is one query, and its
result is recorded in the journal, so that a replay reads neither the database nor a file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from everhold.cards.card import (
    check_card_name,
    drop_nulls,
    fill_in_card,
    format_card_time,
)
from everhold.cards.lineage import LineageQuery, LineageWalk
from everhold.cards.view import CardView
from everhold.cards.where import (
    check_where,
    matches,
    parse_order_by,
    read_count,
    select_page,
    sort_by,
)
from everhold.core.codec import JSON, to_plain
from everhold.errors import BadCard, UnknownCard, UnknownCardAlias
from everhold.packages.lua.card_index import get_summary, sort_newest_first, summarize_card

Options = dict[str, JSON]


class CardVerbs:
    """The verbs on one view. `at` is the time of what is written."""

    def __init__(self, view: CardView, at: float, version: str) -> None:
        self.view = view
        self._at = at
        self._version = version

    async def run(self, verb: str, name: JSON, given: JSON) -> JSON:
        """Run a verb of a Lua program; raises errors of cards."""
        found = VERBS.get(verb)
        if found is None:
            raise BadCard(f"there is no verb {verb!r} of cards", f"Verbs: {', '.join(VERBS)}.")
        return await found(self, name, given)

    async def create(self, name: JSON, given: JSON) -> JSON:
        if not isinstance(given, dict):
            raise BadCard("a card must be an object")
        card = fill_in_card(given, self._at, self._version)
        await self.view.create(card)
        card_id = card["card_id"]
        return {"card_id": card_id, "path": f"alc://cards/{card_id}"}

    async def get(self, card_id: JSON, given: JSON = None) -> JSON:
        """A card; None if there is none."""
        return await self.view.load(card_id)

    async def append(self, card_id: JSON, fields: JSON) -> JSON:
        if not isinstance(fields, dict):
            raise BadCard("fields must be an object", "Nothing was written. Give keys to add.")
        card, package = await self.view.require(card_id)
        added = drop_nulls(to_plain(fields, "fields"))
        return await self.view.extend(card, package, added)

    async def list(self, name: JSON = None, given: JSON = None) -> JSON:
        entries = await self.view.entries(_read_package(_read_options(given)))
        return [get_summary(entry) for entry in sort_newest_first(entries)]

    async def find(self, name: JSON, given: JSON) -> JSON:
        options = _read_options(given)
        where, order = options.get("where"), parse_order_by(options.get("order_by"))
        offset, limit = _read_page(options)
        check_where(where)
        if not where and not order:
            listed: list[JSON] = await self.list(None, {"pkg": options.get("pkg")})
            return select_page(listed, offset, limit)
        found = await self.view.bodies(_read_package(options))
        packages = {card["card_id"]: package for card, package in found}
        cards = sort_by([card for card, _ in found if matches(card, where)], order)
        page = select_page(cards, offset, limit)
        return [summarize_card(card, packages[card["card_id"]]) for card in page]

    async def alias_set(self, name: JSON, given: JSON) -> JSON:
        check_card_name("alias", name)
        options = _read_options(given)
        card_id = options.get("card_id")
        await self.view.require(card_id)
        for key in ("pkg", "note"):
            if not isinstance(options.get(key, ""), str):
                raise BadCard(f"{key} must be a string", "Nothing was written.")
        alias = {"name": name, "card_id": card_id, "set_at": format_card_time(self._at)}
        alias |= {key: options[key] for key in ("pkg", "note") if key in options}
        await self.view.put_alias(alias)
        return alias

    async def alias_list(self, name: JSON = None, given: JSON = None) -> JSON:
        package = _read_options(given).get("pkg")
        aliases = await self.view.aliases()
        return [one for one in aliases if package is None or one.get("pkg") == package]

    async def get_by_alias(self, name: JSON, given: JSON = None) -> JSON:
        """The card that an alias names; None if there is no such alias."""
        alias = await self.view.alias(name)
        if alias is None:
            return None
        card = await self.view.load(alias["card_id"])
        if card is None:
            raise UnknownCardAlias(str(name), str(alias["card_id"]))
        return card

    async def write_samples(self, card_id: JSON, rows: JSON) -> JSON:
        rows = [] if rows == {} else rows
        if not isinstance(rows, list):
            raise BadCard(
                "the samples are not an array", "Nothing was written. Give an array of rows."
            )
        _, package = await self.view.require(card_id)
        await self.view.put_samples(card_id, package, to_plain(rows, "samples"))
        return {"path": f"alc://cards/{card_id}/samples", "count": len(rows)}

    async def read_samples(self, card_id: JSON, given: JSON = None) -> JSON:
        options = _read_options(given)
        where = options.get("where")
        offset, limit = _read_page(options)
        check_where(where)
        await self.view.require(card_id)
        rows = await self.view.samples(card_id) or []
        return select_page([row for row in rows if matches(row, where)], offset, limit)

    async def lineage(self, card_id: JSON, given: JSON = None) -> JSON:
        """The lineage of a card; None if there is no such card."""
        query = LineageQuery.parse(_read_options(given))
        if not isinstance(card_id, str):
            raise BadCard("card_id is required", "Name the card whose lineage to show.")
        try:
            return await LineageWalk(self.view, query).run(card_id)
        except UnknownCard:
            return None


#: The verbs by the name that Lua programs use. Each gets a name and a value, or null.
VERBS: Final[dict[str, Callable[[CardVerbs, Any, Any], Awaitable[JSON]]]] = {
    "create": CardVerbs.create,
    "get": CardVerbs.get,
    "append": CardVerbs.append,
    "list": CardVerbs.list,
    "find": CardVerbs.find,
    "alias_set": CardVerbs.alias_set,
    "alias_list": CardVerbs.alias_list,
    "get_by_alias": CardVerbs.get_by_alias,
    "write_samples": CardVerbs.write_samples,
    "read_samples": CardVerbs.read_samples,
    "lineage": CardVerbs.lineage,
}


def _read_options(given: JSON) -> Options:
    """Options without nulls, which count as missing."""
    if given is None or given == []:
        return {}
    if not isinstance(given, dict):
        raise BadCard("options must be an object", "Give options by name.")
    return {key: value for key, value in given.items() if value is not None}


def _read_package(options: Options) -> str | None:
    package = options.get("pkg")
    return None if package is None else check_card_name("pkg", package)


def _read_page(options: Options) -> tuple[int, int | None]:
    offset = read_count("offset", options.get("offset"), 0)
    assert offset is not None
    return offset, read_count("limit", options.get("limit"), None)
