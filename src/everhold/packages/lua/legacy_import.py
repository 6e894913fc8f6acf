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
import tomllib
from collections.abc import Collection, Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from everhold.core.codec import JSON, loads, to_plain
from everhold.core.query import make_lua_namespace
from everhold.errors import BadPackage, BadPackageFile, BadValue
from everhold.packages.lua.atomic_file import read_text_file, write_atomically
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
    for file in sorted(home.cards.glob("*/*.toml")):
        _collect(found, file, lambda file=file: [_card(file)])
    aliases = home.cards / "_aliases.toml"
    if aliases.is_file():
        _collect(found, aliases, lambda: [*_aliases(aliases)])
    found.logs = sum(not file.name.endswith(".meta.json") for file in home.logs.glob("[!.]*.json"))
    return found


def _collect(found: LegacyData, file: Path, read: Any) -> None:
    try:
        found.parts += read()
    except (OSError, ValueError, BadValue, RecursionError) as error:
        found.problems.append(f"{file}: {error}")


def _state(file: Path, shares: Collection[str]) -> Iterator[LegacyPart]:
    namespace = file.stem
    space = make_lua_namespace(file.stem, shares)
    for key, value in _object(loads(file.read_bytes())).items():
        name = f"{namespace}/{key}"
        yield LegacyPart("value", name, [(space, key, to_plain(value, name))])


# ---- cards


def _card(file: Path) -> LegacyPart:
    body = to_plain(_without_dates(tomllib.loads(file.read_text(encoding="utf-8"))), file.stem)
    body.setdefault("card_id", file.stem)
    package = _at(body, "pkg", "name") or file.parent.name
    if not isinstance(body.get("pkg", {}), dict):
        raise ValueError("pkg should be a table")
    body["pkg"] = {"name": package, **body.get("pkg", {})}
    card_id = body["card_id"]
    if (
        card_id != file.stem
        or {*package, *card_id} & set("/\\\0")
        or ".." in f"{package} {card_id}"
    ):
        raise ValueError(f"card {card_id!r} of package {package!r} does not fit its file name")
    place = f"{package}/{card_id}"
    values = [
        ("card/id", card_id, package),
        ("card/body", place, body),
        ("card/index", place, _index(body)),
    ]
    samples = file.with_name(f"{card_id}.samples.jsonl")
    if samples.is_file():
        rows = [to_plain(loads(line), f"{samples.name}, line {n}") for n, line in _lines(samples)]
        values.append(("card/samples", card_id, rows))
    return LegacyPart("card", card_id, values)


def _index(body: dict[str, Any]) -> dict[str, JSON]:
    """The index entry of a card, as `alc.card` writes it."""
    entry = {
        "card_id": body["card_id"],
        "pkg": body["pkg"]["name"],
        "created_at": _at(body, "created_at"),
        "model": _at(body, "model", "id"),
        "scenario": _at(body, "scenario", "name"),
        "prior_card_id": _at(body, "metadata", "prior_card_id"),
        "prior_relation": _at(body, "metadata", "prior_relation"),
    }
    stats = body.get("stats")
    rate = stats.get("pass_rate") if isinstance(stats, dict) else None
    if type(rate) in (int, float):
        entry["pass_rate"] = rate
    return {key: value for key, value in entry.items() if value is not None}


def _aliases(file: Path) -> Iterator[LegacyPart]:
    rows = _without_dates(tomllib.loads(file.read_text(encoding="utf-8"))).get("alias", [])
    for row in rows if isinstance(rows, list) else [rows]:
        name = _at(_object(row), "name")
        card_id = _at(_object(row), "card_id")
        if not name or not card_id:
            raise ValueError("an alias needs a name and a card_id")
        yield LegacyPart("alias", name, [("card/alias", name, to_plain(row, name))])


# ---- values


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if line.strip():
            yield number, line


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it should hold an object")
    return value


def _at(value: Any, *path: str) -> str | None:
    """The string at a path; None if there is another value or none."""
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _without_dates(value: Any) -> Any:
    """Dates of TOML become strings, because JSON has no dates."""
    if isinstance(value, dict):
        return {key: _without_dates(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_dates(one) for one in value]
    return value.isoformat() if isinstance(value, date | time) else value


# ---- an old alc.lock

NOTHING_TO_MIGRATE: Final = "nothing to migrate"


def migrate(project: str | Path | None = None) -> dict[str, Any]:
    """Convert an old alc.lock to an alc.toml; the lock is kept as alc.lock.bak."""
    one = Project(find_project_root(project) or Path.cwd())
    text = read_text_file(one.lock)
    if text is None:
        return {"status": NOTHING_TO_MIGRATE, "reason": "alc.lock not found"}
    old = _read_old_lock(one.lock, text)
    if not old:
        return {
            "status": NOTHING_TO_MIGRATE,
            "reason": "already new format or no local_dir entries",
        }
    if one.toml.exists():
        raise BadPackage(
            f"alc.toml already exists at {one.toml}. Remove it first or migrate manually."
        )
    backup = one.lock.with_name("alc.lock.bak")
    needs = format_toml_table(("packages",), {name: {"path": path} for name, path in old.items()})
    with one.guarded():
        write_atomically(one.toml, needs, mode=0o644)
        os.replace(one.lock, backup)
    note = "Run alc_update to generate new alc.lock"
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
