"""The row of a card in the index: its summary, and its ancestor; and all cards of packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.packages.lua.card_files import CardFolder


def summarize_card(card: dict[str, Any], package: str) -> dict[str, JSON]:
    """The row of a card in a listing."""
    rate = get_at(card, ("stats", "pass_rate"))
    row = {
        "card_id": card["card_id"],
        "pkg": package,
        "created_at": get_text_at(card, "created_at"),
        "model": get_text_at(card, "model", "id"),
        "scenario": get_text_at(card, "scenario", "name"),
        "pass_rate": rate if type(rate) in (int, float) else None,
    }
    return {key: value for key, value in row.items() if value is not None}


def make_index_entry(card: dict[str, Any], package: str) -> dict[str, JSON]:
    """The row of a card, with its ancestor."""
    prior = {
        "prior_card_id": get_text_at(card, "metadata", "prior_card_id"),
        "prior_relation": get_text_at(card, "metadata", "prior_relation"),
    }
    named = {key: value for key, value in prior.items() if value is not None}
    return {**summarize_card(card, package), **named}


def get_summary(entry: dict[str, JSON]) -> dict[str, JSON]:
    """The row of a listing, from an entry of the index."""
    hidden = ("prior_card_id", "prior_relation")
    return {key: value for key, value in entry.items() if key not in hidden}


def get_at(value: JSON, path: Iterable[str]) -> JSON:
    """The value at a path; None if there is none."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def get_text_at(card: dict[str, Any], *path: str) -> str | None:
    """The text at a path; None if there is another value or none."""
    found = get_at(card, path)
    return found if isinstance(found, str) else None


def sort_newest_first(cards: Iterable[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Cards, or entries of the index, by their time and then by their id, both descending."""
    return sorted(
        cards,
        key=lambda card: (
            card["created_at"] if isinstance(card.get("created_at"), str) else "",
            card["card_id"],
        ),
        reverse=True,
    )


class PackageCards(msgspec.Struct, frozen=True):
    """The cards of all packages: rows of a listing, newest first, and aliases."""

    rows: Sequence[dict[str, JSON]] = ()
    aliases: Sequence[dict[str, JSON]] = ()
    problems: Sequence[str] = ()  # files that cannot be read

    def of(self, package: str) -> list[dict[str, JSON]]:
        """The rows of one package."""
        return [row for row in self.rows if row["pkg"] == package]

    def find_best(self, package: str) -> dict[str, JSON] | None:
        """The card with the highest pass rate, in the form of an index of the hub."""
        rated = [row for row in self.of(package) if "pass_rate" in row]
        if not rated:
            return None
        best = max(rated, key=lambda row: float(row["pass_rate"]))
        return {
            "card_id": best["card_id"],
            "model": best.get("model", ""),
            "pass_rate": float(best["pass_rate"]),
            "scenario": best.get("scenario", ""),
        }


def load_package_cards(root: Path) -> PackageCards:
    """The cards in the files of a folder. Blocks."""
    found = CardFolder(root).load()
    rows = [summarize_card(card.body, card.pkg) for card in found.cards.values()]
    aliases = [found.aliases[name] for name in sorted(found.aliases)]
    return PackageCards(sort_newest_first(rows), aliases, [*map(str, found.problems)])
