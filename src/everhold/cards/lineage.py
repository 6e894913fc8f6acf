"""The tree of cards along `metadata.prior_card_id`: ancestors, descendants, or both."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from everhold.cards.view import CardView
from everhold.cards.where import read_count
from everhold.core.codec import JSON
from everhold.errors import BadCardQuery
from everhold.packages.lua.card_index import get_at, make_index_entry, sort_newest_first

DEFAULT_DEPTH: Final = 10
DIRECTIONS: Final = ("up", "down", "both")

Entry = dict[str, JSON]


class LineageQuery(msgspec.Struct, frozen=True):
    """What a lineage is asked for."""

    direction: str = "up"
    depth: int = DEFAULT_DEPTH
    include_stats: bool = True
    relations: list[str] | None = None  # follow only these

    @classmethod
    def parse(cls, given: dict[str, JSON]) -> LineageQuery:
        """The options of a call; raises `BadCardQuery`."""
        direction = given.get("direction") or "up"
        if direction not in DIRECTIONS:
            raise BadCardQuery(
                f"a lineage goes up, down or in both directions ('both'), not '{direction}'",
                "up follows ancestors, down follows descendants.",
            )
        relations = given.get("relation_filter")
        relations = [relations] if isinstance(relations, str) else relations
        if relations == {}:
            relations = []
        if relations is not None and not (
            isinstance(relations, list) and all(isinstance(one, str) for one in relations)
        ):
            raise BadCardQuery(
                "relation_filter takes an array of names", "Name relations to follow."
            )
        depth = read_count("depth", given.get("depth"), DEFAULT_DEPTH)
        assert depth is not None
        return cls(direction, depth, given.get("include_stats") is not False, relations)


class LineageWalk:
    """Visits cards from one card on, and collects nodes and edges."""

    def __init__(self, view: CardView, query: LineageQuery) -> None:
        self._view = view
        self._query = query
        self._seen: set[JSON] = set()
        self._nodes: list[Entry] = []
        self._edges: list[Entry] = []
        self._truncated = False

    async def run(self, card_id: str) -> dict[str, JSON]:
        """The lineage of a card; raises `UnknownCard`."""
        card, package = await self._view.require(card_id)
        root = make_index_entry(card, package)
        self._visit(root, 0, card)
        if self._query.direction != "down":
            await self._climb(root)
        if self._query.direction != "up":
            await self._descend(root)
        return {
            "root": card_id,
            "nodes": self._nodes,
            "edges": self._edges,
            "truncated": self._truncated,
        }

    def _follows(self, entry: Entry) -> bool:
        allowed = self._query.relations
        return "prior_card_id" in entry and (
            allowed is None or entry.get("prior_relation") in allowed
        )

    def _visit(self, entry: Entry, depth: int, card: dict[str, Any] | None) -> None:
        self._seen.add(entry["card_id"])
        node: Entry = {"card_id": entry["card_id"], "pkg": entry["pkg"], "depth": depth}
        for key in ("prior_card_id", "prior_relation"):
            if key in entry:
                node[key] = entry[key]
        stats = get_at(card, ("stats",))
        if self._query.include_stats and stats is not None:
            node["stats"] = stats
        self._nodes.append(node)

    def _join(self, entry: Entry) -> None:
        edge: Entry = {"from": entry["card_id"], "to": entry["prior_card_id"]}
        if "prior_relation" in entry:
            edge["relation"] = entry["prior_relation"]
        self._edges.append(edge)

    async def _climb(self, entry: Entry) -> None:
        depth = 0
        while self._follows(entry) and entry["prior_card_id"] not in self._seen:
            package = await self._view.find_package(entry["prior_card_id"])
            if package is None:
                return
            if depth == self._query.depth:
                self._truncated = True
                return
            depth += 1
            self._join(entry)
            card, package = await self._view.require(entry["prior_card_id"])
            entry = make_index_entry(card, package)
            self._visit(entry, -depth, card)

    async def _descend(self, root: Entry) -> None:
        children: dict[JSON, list[Entry]] = {}
        for entry in reversed(sort_newest_first(await self._view.entries())):
            if self._follows(entry):
                children.setdefault(entry["prior_card_id"], []).append(entry)
        level, depth = [root], 0
        while level:
            below = []
            for parent in level:
                for child in children.get(parent["card_id"], ()):
                    if child["card_id"] in self._seen:
                        continue
                    if depth == self._query.depth:
                        self._truncated = True
                        return
                    self._join(child)
                    card = (
                        await self._view.load(child["card_id"])
                        if self._query.include_stats
                        else None
                    )
                    self._visit(child, depth + 1, card)
                    below.append(child)
            level, depth = below, depth + 1
