"""One card: checks of its names, what is filled in, its fingerprint and id.

schema_version     "card/v0"
created_at         the time, in UTC
created_by         everhold and its version
param_fingerprint  a fingerprint of `params`
card_id            package, model, time, and a fingerprint of all the rest
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from everhold.core.codec import JSON, dumps, to_plain
from everhold.errors import BadCard
from everhold.packages.lua.card_files import SCHEMA_VERSION, is_card_name
from everhold.packages.lua.card_index import get_at, get_text_at

Card = dict[str, Any]

_EXPONENT: Final = re.compile(r"e([+-]?)0*(\d+)")
_NAMES_HINT: Final = "A name is not empty, and contains no slash, backslash, NUL or `..`."


def check_card_name(what: str, name: object) -> str:
    """A name of a card, package or alias; raises `BadCard`."""
    if not isinstance(name, str) or not is_card_name(name):
        raise BadCard(f"invalid {what} '{_show(name)}'", _NAMES_HINT)
    return name


def fill_in_card(given: Card, at: float, version: str) -> Card:
    """A new card with all that it lacks; raises `BadCard`."""
    card: Card = drop_nulls(to_plain(given, "the card"))
    package = get_at(card, ("pkg", "name"))
    if not isinstance(package, str) or not package:
        raise BadCard("pkg.name is required", 'Give the package: {"pkg": {"name": "cot"}, …}.')
    check_card_name("pkg.name", package)
    card.setdefault("schema_version", SCHEMA_VERSION)
    card.setdefault("created_at", format_card_time(at))
    card.setdefault("created_by", f"alc@everhold-{version}")
    if isinstance(card.get("params"), dict):
        card.setdefault("param_fingerprint", fingerprint(card["params"]))
    if "card_id" not in card:
        card["card_id"] = _make_id(card, package, at)
    check_card_name("card_id", card["card_id"])
    return card


def drop_nulls(value: Any) -> Any:
    """A copy without nulls, because TOML has none."""
    if isinstance(value, dict):
        return {key: drop_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [drop_nulls(one) for one in value if one is not None]
    return value


def format_card_time(at: float) -> str:
    return _utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def fingerprint(value: JSON) -> str:
    """16 hexadecimal digits: the same content has the same ones in every process, and in
    algocline.
    """
    total = 5381
    for byte in _canonical(value).encode():
        total = (total * 33 + byte) & 0xFFFF_FFFF_FFFF_FFFF
    return f"{total:016x}"


def _canonical(value: JSON) -> str:
    """JSON with sorted keys, in which text is not escaped: for fingerprints only."""
    if isinstance(value, dict):
        # in the order of their bytes
        pairs = (f'"{key}":{_canonical(value[key])}' for key in sorted(value, key=str.encode))
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return _EXPONENT.sub(lambda at: f"e{at[1].strip('+')}{at[2]}", repr(value))
    return dumps(value)


def _make_id(card: Card, package: str, at: float) -> str:
    model = get_text_at(card, "model", "id") or ""
    short = model.removeprefix("claude-").removeprefix("gpt-")
    short = "".join(one for one in short if one.isascii() and one.isalnum()) or "model"
    return f"{package}_{short}_{_utc(at):%Y%m%dT%H%M%S}_{fingerprint(card)[-6:]}"


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(int(at), UTC)


def _show(name: object) -> str:
    return name if isinstance(name, str) else "nil" if name is None else dumps(name)
