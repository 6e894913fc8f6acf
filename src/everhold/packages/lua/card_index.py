"""The row of a card in the index: its summary, and its ancestor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everhold.core.codec import JSON


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
