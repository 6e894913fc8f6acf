"""Reads the metadata of a Lua package as text: `meta = { name = "…", version = "…" }`.

The file is never run. The first table named `meta` is searched for fields whose values are string
literals, also joined ones (`"a" .. "b"`). Computed fields stay empty. Without a description, the
comment at the top of the file is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from everhold.programs.lua.declared import BEFORE_TABLE, TOKEN, classify_token, read_source

#: The begin of a table `meta`. Comments and strings match first, so that one in them is not found.
_BEGIN: Final = re.compile(BEFORE_TABLE + r"""|(?P<begin>\bmeta\s*=\s*\{)""", re.DOTALL)


class PackageMeta(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    description: str = ""
    category: str = ""


def read_package_meta(path: Path) -> PackageMeta:
    """The metadata of a main file; fields are empty if they are absent or the file is
    unreadable.
    """
    return parse_package_meta(read_source(path))


def read_meta_fields(path: Path) -> dict[str, str]:
    """All string fields of `meta`, also those that we do not know."""
    return {
        name: " ".join(value.split()) for name, value in _find_fields(read_source(path)).items()
    }


def parse_package_meta(text: str) -> PackageMeta:
    found = _find_fields(text)
    known = {
        name: " ".join(found[name].split())
        for name in PackageMeta.__struct_fields__
        if name in found
    }
    known["description"] = known.get("description") or _first_comment(text)
    return PackageMeta(**known)


def read_docstring(path: Path) -> str:
    """The lines of the `---` comment at the top of a main file."""
    lines: list[str] = []
    for line in read_source(path).removeprefix("\ufeff").splitlines():
        words = line.strip()
        if words.startswith("---"):
            lines.append(words[3:].strip())
        elif words and not (words.startswith("#!") and not lines):
            break
    return "\n".join(lines).strip("\n")


def _find_fields(text: str) -> dict[str, str]:
    """The fields of the first table `meta` that has a name, else of the first one."""
    first: dict[str, str] = {}
    at = 0
    while (begin := _BEGIN.search(text, at)) is not None:
        at = begin.end()
        if begin["begin"] is None:
            continue
        found, at = _read_table(text, at)
        if found.get("name"):
            return found
        first = first or found
    return first


def _read_table(text: str, start: int) -> tuple[dict[str, str], int]:
    """The string fields of a table that begins here, and the place after it. Tables inside it are
    skipped.
    """
    found: dict[str, str] = {}
    depth = 1
    words = list[tuple[str, str]]()
    for token in TOKEN.finditer(text, start):
        kind, value = classify_token(token)
        if kind == "sign" and value in "{([":
            depth += 1
        elif kind == "sign" and value in "})]":
            depth -= 1
        if depth == 0 or (depth == 1 and kind == "sign" and value in ",;"):
            found.update(_string_field(words))
            words = []
        elif depth >= 1 and kind:
            words.append((kind, value))
        if depth == 0:
            return found, token.end()
    return found, len(text)


def _string_field(words: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    kinds = [kind for kind, _ in words]
    if len(words) < 3 or kinds[0] != "name" or words[1] != ("sign", "="):
        return
    values = kinds[2:]
    if all(kind == ("text", "join")[at % 2] for at, kind in enumerate(values)) and len(values) % 2:
        yield words[0][1], "".join(value for kind, value in words[2:] if kind == "text")


def _first_comment(text: str) -> str:
    """The first paragraph of the comment at the top."""
    lines: list[str] = []
    for line in text.lstrip().splitlines():
        words = line.strip().lstrip("-").strip() if line.lstrip().startswith("--") else ""
        if not words and lines:
            break
        if not line.lstrip().startswith("--"):
            break
        if words and not words.startswith("@"):
            lines.append(words)
    return " ".join(lines)
