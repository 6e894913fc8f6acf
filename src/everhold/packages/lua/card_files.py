"""Cards in files, as algocline keeps them in its home.

    cards/<package>/<card>.toml           a card
    cards/<package>/<card>.samples.jsonl  its samples: a JSON value per line
    cards/_aliases.toml                   names for cards

Rules
  1. Reading changes nothing. A file is read again only if its time or its size has changed.
  2. A file that cannot be used is listed as a problem, with the reason; the rest is read.
  3. A card belongs to the package of its folder. An id means one card: of two files with one id,
     the first package in order has the card, and the other file is a problem.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, dumps, loads, to_plain
from everhold.errors import BadCard, BadValue

SCHEMA_VERSION: Final = "card/v0"
ALIASES_FILE: Final = "_aliases.toml"
SAMPLES_SUFFIX: Final = ".samples.jsonl"

#: What reading a file of a person may raise.
UNREADABLE: Final = (OSError, ValueError, BadValue, RecursionError)

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class CardProblem(msgspec.Struct, frozen=True):
    """A file among the cards that cannot be used."""

    path: str
    card_id: str
    pkg: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class FileCard(msgspec.Struct, frozen=True):
    """A card in a file."""

    pkg: str
    path: Path
    body: dict[str, Any]


class FileCards(msgspec.Struct):
    """What was found in a folder at one moment."""

    cards: dict[str, FileCard] = {}
    aliases: dict[str, dict[str, Any]] = {}
    problems: list[CardProblem] = []

    def problem_of(self, card_id: str) -> CardProblem | None:
        """Why a card cannot be read, if another file does not have it."""
        return next((one for one in self.problems if one.card_id == card_id), None)

    def read_samples(self, card_id: str) -> list[JSON] | None:
        """The samples of a card; None if there is no file of them. Raises `BadCard`."""
        card = self.cards.get(card_id)
        return None if card is None else read_samples(get_samples_path(card.path))


class CardFolder:
    """A folder of cards, which is read when it is needed. It may not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[Path, tuple[tuple[int, int], dict[str, Any] | str]] = {}

    def load(self) -> FileCards:
        """What is in the folder now. Blocks."""
        found = FileCards()
        known, self._known = self._known, {}
        for file in list_card_files(self.root):
            pkg, card_id = file.parent.name, file.stem
            body = self._read(file, known)
            if card_id in found.cards:
                body = f"package {found.cards[card_id].pkg!r} has a card of this id already"
            if isinstance(body, str):
                found.problems.append(CardProblem(str(file), card_id, pkg, body))
            else:
                found.cards[card_id] = FileCard(pkg, file, body)
        aliases = self.root / ALIASES_FILE
        if os.path.lexists(aliases):
            try:
                rows, problems = read_aliases(aliases)
            except UNREADABLE as error:
                rows, problems = [], [_reason(error)]
            found.aliases = {row["name"]: row for row in rows}
            found.problems += [CardProblem(str(aliases), "", "", one) for one in problems]
        return found

    def _read(self, file: Path, known: dict[Path, Any]) -> dict[str, Any] | str:
        """The card in a file, or why there is none."""
        try:
            stat = file.stat()
            seen = (stat.st_mtime_ns, stat.st_size)
            if file not in known or known[file][0] != seen:
                known[file] = (seen, read_card(file))
        except UNREADABLE as error:
            return _reason(error)
        self._known[file] = known[file]
        body: dict[str, Any] | str = known[file][1]
        return body


def list_card_files(root: Path) -> list[Path]:
    """The files of cards in a folder, by package and id."""
    try:
        folders = sorted(one for one in root.iterdir() if one.name[0] not in "._" and one.is_dir())
    except OSError:
        return []
    return [
        file
        for folder in folders
        for file in sorted(folder.glob("*.toml"))
        if file.name[0] not in "._"
    ]


def get_samples_path(card: Path) -> Path:
    return card.with_name(card.stem + SAMPLES_SUFFIX)


def read_card(file: Path) -> dict[str, Any]:
    """The card in a file, with its id and its package; raises one of `UNREADABLE`."""
    if not file.is_file():
        raise ValueError("it is not a regular file")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    body: dict[str, Any] = to_plain(without_dates(content), file.stem)
    card_id = body.setdefault("card_id", file.stem)
    package = body.setdefault("pkg", {"name": file.parent.name})
    if not isinstance(package, dict):
        raise ValueError("pkg should be a table")
    name = package.setdefault("name", file.parent.name)
    if card_id != file.stem or not is_card_name(card_id) or not is_card_name(name):
        raise ValueError(f"card {card_id!r} of package {name!r} does not fit its file name")
    return body


def read_samples(file: Path) -> list[JSON] | None:
    """The rows of a file of samples; None if it does not exist. Raises `BadCard`."""
    try:
        if not file.is_file() and file.exists():
            raise BadCard(f"{file}: it is not a regular file", "Nothing was read.")
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadCard(f"{file}: {_reason(error)}", "Nothing was read.") from None
    try:
        return [
            to_plain(loads(line), f"{file.name}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    except BadValue:
        number = next(number for number, line in enumerate(lines, 1) if _is_bad(line))
        raise BadCard(
            f"{file}, line {number}: not JSON", f"Fix line {number} of {file} by hand."
        ) from None


def _is_bad(line: bytes) -> bool:
    try:
        to_plain(loads(line)) if line.strip() else None
    except BadValue:
        return True
    return False


def read_aliases(file: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a file of aliases, and why others cannot be used; raises one of `UNREADABLE`."""
    if not file.is_file():
        raise ValueError("it is not a regular file")
    found = without_dates(tomllib.loads(file.read_text(encoding="utf-8"))).get("alias", [])
    rows = []
    problems = []
    for number, row in enumerate(found if isinstance(found, list) else [found], start=1):
        named = isinstance(row, dict) and [row.get(key) for key in ("name", "card_id")]
        if not named or not all(isinstance(text, str) and text for text in named):
            problems.append(f"alias {number} needs a name and a card_id")
            continue
        try:
            rows.append(to_plain(row, f"alias {number}"))
        except BadValue as error:
            problems.append(str(error))
    return rows, problems


def is_card_name(name: object) -> bool:
    """Whether this can name a card, a package or an alias."""
    if not isinstance(name, str) or name in ("", ".") or set("/\\\0") & set(name):
        return False
    if ".." in name:
        return False
    return not any("\ud800" <= one <= "\udfff" for one in name)


def without_dates(value: Any) -> Any:
    """Dates of TOML become strings, because JSON has no dates."""
    if isinstance(value, dict):
        return {key: without_dates(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_dates(one) for one in value]
    if isinstance(value, date | time):
        return value.isoformat().replace("+00:00", "Z")
    return value


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error) or type(error).__name__


# ---- writing: plain JSON values as TOML


def dump_card(body: dict[str, Any]) -> str:
    """A card as the text of its file. It has no nulls."""
    return "".join(_table(body, ()))


def dump_aliases(rows: list[dict[str, Any]]) -> str:
    """Aliases as the text of their file."""
    return "\n".join("[[alias]]\n" + "".join(_pairs(row)) for row in rows)


def dump_samples(rows: list[JSON]) -> str:
    """Samples as the text of their file."""
    return "".join(f"{dumps(row)}\n" for row in rows)


def _table(of: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    tables = {key: value for key, value in of.items() if isinstance(value, dict)}
    plain = {key: value for key, value in of.items() if key not in tables}
    if path and (plain or not tables):
        yield f"\n[{'.'.join(map(_key, path))}]\n"
    yield from _pairs(plain)
    for key in sorted(tables):
        yield from _table(tables[key], (*path, key))


def _pairs(of: dict[str, Any]) -> Iterator[str]:
    for key in sorted(of):
        yield f"{_key(key)} = {_value(of[key])}\n"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case list():
            return f"[{', '.join(_value(one) for one in value if one is not None)}]"
        case dict():
            pairs = (f"{_key(key)} = {_value(one)}" for key, one in sorted(value.items()))
            return f"{{{', '.join(pairs)}}}"
        case float() if math.isfinite(value):
            return repr(value)
    return str(value)


def _text(value: str) -> str:
    # a JSON string is a basic string of TOML, but for DEL
    return dumps(value).replace("\x7f", "\\u007f")
