"""Reads the data of an algocline folder, and converts an old alc.lock.

Values of `alc.state` and cards become durable values:

    state/<namespace>.json               an object; each key is a value of that namespace
    cards/<package>/<card>.toml          a card
    cards/<package>/<card>.samples.jsonl its samples
    cards/_aliases.toml                  names for cards

Reading changes nothing in the folder. An unreadable file is listed as a problem, and the rest is
read. Logs are only counted: alc_log_view reads them in place.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from everhold.core.codec import JSON, loads, to_plain
from everhold.core.query import make_lua_namespace
from everhold.errors import BadCard, BadPackage, BadPackageFile
from everhold.packages.lua.atomic_file import read_text_file, write_atomically
from everhold.packages.lua.card_files import (
    ALIASES_FILE,
    UNREADABLE,
    get_samples_path,
    list_card_files,
    read_aliases,
    read_card,
    read_samples,
)
from everhold.packages.lua.card_index import make_index_entry
from everhold.packages.lua.folder import is_package_name
from everhold.packages.lua.paths import AlcHome, find_project_root
from everhold.packages.lua.project import LEGACY_SOURCE, Project
from everhold.packages.toml import format_toml_table, parse_toml

LegacyKind = Literal["value", "card", "alias"]


class LegacyPart(msgspec.Struct, frozen=True):
    """Values that are imported together, unless the first of them exists already."""

    kind: LegacyKind
    name: str  # namespace/key of a value, the id of a card, an alias
    values: list[tuple[str, str, JSON]]  # namespace, key, value


class LegacyData(msgspec.Struct):
    """The parts that were found, and the files that could not be read."""

    parts: list[LegacyPart] = []
    problems: list[str] = []
    logs: int = 0


def read_legacy_data(home: AlcHome, shares: Collection[str] = ()) -> LegacyData:
    """Everything in a folder that can be imported, under the names that Lua programs use."""
    found = LegacyData()
    for file in sorted(home.state.glob("*.json")):
        _collect(found, file, lambda file=file: [*_state(file, shares)])
    for file in list_card_files(home.cards):
        _collect(found, file, lambda file=file: [_card(file)])
    aliases = home.cards / ALIASES_FILE
    if aliases.is_file():
        _collect(found, aliases, lambda: _aliases(aliases, found.problems))
    found.logs = sum(not file.name.endswith(".meta.json") for file in home.logs.glob("[!.]*.json"))
    return found


def _collect(found: LegacyData, file: Path, read: Any) -> None:
    try:
        found.parts += read()
    except (*UNREADABLE, BadCard) as error:
        found.problems.append(f"{file}: {error}")


def _state(file: Path, shares: Collection[str]) -> Iterator[LegacyPart]:
    namespace = file.stem
    space = make_lua_namespace(file.stem, shares)
    for key, value in _object(loads(file.read_bytes())).items():
        name = f"{namespace}/{key}"
        yield LegacyPart("value", name, [(space, key, to_plain(value, name))])


# ---- cards


def _card(file: Path) -> LegacyPart:
    body = read_card(file)
    card_id = body["card_id"]
    package = body["pkg"]["name"]
    place = f"{package}/{card_id}"
    values = [
        ("card/id", card_id, package),
        ("card/body", place, body),
        ("card/index", place, make_index_entry(body, package)),
    ]
    rows = read_samples(get_samples_path(file))
    if rows is not None:
        values.append(("card/samples", card_id, rows))
    return LegacyPart("card", card_id, values)


def _aliases(file: Path, problems: list[str]) -> list[LegacyPart]:
    rows, bad = read_aliases(file)
    problems += [f"{file}: {one}" for one in bad]
    return [LegacyPart("alias", row["name"], [("card/alias", row["name"], row)]) for row in rows]


# ---- values


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it should hold an object")
    return value


# ---- an old alc.lock

NOTHING_TO_MIGRATE: Final = "nothing to migrate"


def migrate(project: str | Path | None = None) -> dict[str, Any]:
    """Convert an old alc.lock to an alc.toml; the lock is kept as alc.lock.bak."""
    one = Project(find_project_root(project) or Path.cwd())
    text = read_text_file(one.lock)
    if text is None:
        return {"status": NOTHING_TO_MIGRATE, "reason": "there is no alc.lock"}
    old = _read_old_lock(one.lock, text)
    if not old:
        return {
            "status": NOTHING_TO_MIGRATE,
            "reason": "alc.lock has no entry of the old form",
        }
    if one.toml.exists():
        raise BadPackage(
            f"{one.toml} already exists; move it away, or copy the paths of alc.lock into it"
        )
    backup = one.lock.with_name("alc.lock.bak")
    needs = format_toml_table(("packages",), {name: {"path": path} for name, path in old.items()})
    with one.guarded():
        write_atomically(one.toml, needs, mode=0o644)
        os.replace(one.lock, backup)
    note = "alc_update writes the new alc.lock"
    return {"migrated": True, "alc_toml": str(one.toml), "backup": str(backup), "note": note}


def _read_old_lock(file: Path, text: str) -> dict[str, str]:
    """The folders of the packages of an old lock; empty for a lock of the current form."""
    try:
        packages = parse_toml(text).get("package", [])
        found = {
            one["name"]: one["source"]["path"]
            for one in packages
            if one.get("source", {}).get("type") == LEGACY_SOURCE or "linked_at" in one
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadPackageFile(str(file), f"it cannot be read: {error}") from None
    if not all(is_package_name(name) and isinstance(path, str) for name, path in found.items()):
        raise BadPackageFile(str(file), "a [[package]] has no usable name or path")
    return found
