"""What a Lua package says of itself, read as text: `meta = { name = "…", version = "…", description
= "…" }`.

The file is not run, whatever is in it. A table named `meta` is looked for, and in it the fields
whose values are plain strings, also joined ones (`"a" .. "b"`). Fields that are computed stay
empty. If there is no description, the comment at the top of the file takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

MAX_META_CHARS: Final = 200_000  # bytes of a file that are looked at

_BEGIN: Final = re.compile(r"\bmeta\s*=\s*\{")
#: What is opened and never closed goes to the end, so that nothing is looked at twice.
_TOKEN: Final = re.compile(
    r"""--\[\[.*?(?:\]\]|\Z)|--[^\n]*|\[\[(?P<long>.*?)(?:\]\]|\Z)|"(?P<double>(?:\\.|[^"\\\n])*)"?|'(?P<single>(?:\\.|[^'\\\n])*)'?"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<join>\.\.)|(?P<sign>[{}=,;\[\]()])|\s+|.""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(z\s*|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}


class PackageMeta(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    description: str = ""
    category: str = ""


def read_package_meta(path: Path) -> PackageMeta:
    """What the file says of itself; empty where it says nothing or cannot be read."""
    return parse_package_meta(_text(path))


def read_meta_fields(path: Path) -> dict[str, str]:
    """All that the file says of itself in plain strings, whatever it calls it."""
    return {name: " ".join(said.split()) for name, said in _found(_text(path)).items()}


def parse_package_meta(text: str) -> PackageMeta:
    found = _found(text)
    known = {
        name: " ".join(found[name].split())
        for name in PackageMeta.__struct_fields__
        if name in found
    }
    known["description"] = known.get("description") or _comment(text)
    return PackageMeta(**known)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_META_CHARS).decode("utf-8", "replace")
    except OSError:
        return ""


def _found(text: str) -> dict[str, str]:
    begin = _BEGIN.search(text)
    return dict(_fields(text[begin.end() :])) if begin else {}


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """The fields of a table up to its end whose values are strings; tables inside it are passed
    over.
    """
    depth = 1
    words = list[tuple[str, str]]()
    for token in _TOKEN.finditer(text):
        kind, said = _word(token)
        if kind == "sign" and said in "{([":
            depth += 1
        elif kind == "sign" and said in "})]":
            depth -= 1
        if depth == 0 or (depth == 1 and kind == "sign" and said in ",;"):
            yield from _field(words)
            words = []
        elif depth >= 1 and kind:
            words.append((kind, said))
        if depth == 0:
            return


def _field(words: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    kinds = [kind for kind, _ in words]
    if len(words) < 3 or kinds[0] != "name" or words[1] != ("sign", "="):
        return
    values = kinds[2:]
    if all(kind == ("text", "join")[at % 2] for at, kind in enumerate(values)) and len(values) % 2:
        yield words[0][1], "".join(said for kind, said in words[2:] if kind == "text")


def _word(token: re.Match[str]) -> tuple[str, str]:
    """What a token is (a text, a name, a sign, `..`, something else) and what it says; nothing for
    what is no token.
    """
    match token.lastgroup:
        case "long":
            return "text", token["long"]
        case "double" | "single":
            return "text", _ESCAPE.sub(_unescaped, token[token.lastgroup])
        case "name" | "sign" | "join":
            return token.lastgroup, token[0]
    blank = token[0].isspace() or token[0].startswith("--")
    return ("", "") if blank else ("other", token[0])


def _unescaped(found: re.Match[str]) -> str:
    return "" if found[1].startswith("z") else _ESCAPED.get(found[1], found[1])


def _comment(text: str) -> str:
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
