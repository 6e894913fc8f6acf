"""Reads from the text of a Lua program what it takes: its `M.spec.entries.run.input`.

    M.spec = { entries = { run = { input = T.shape({
      task = T.string:describe("What to answer"),
      rounds = T.number:is_optional(),
    }) } } }

The file is never run. Each field of the shape is an argument. It is required unless its type says
`is_optional`. What is computed in another way is not declared.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from keyword import iskeyword
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

MAX_SOURCE_BYTES: Final = 200_000  # of a file, that are read
#: Brackets that are deeper than this are not read.
MAX_DEPTH: Final = 50
#: Comments and strings, in a pattern that finds something else.
BEFORE_TABLE: Final = (
    r"""--\[(=*)\[.*?(?:\]\1\]|\Z)|--[^\n]*|\[\[.*?(?:\]\]|\Z)"""
    r"""|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?"""
)
#: A string or comment without an end matches to the end of the text, so that the scan stays linear.
TOKEN: Final = re.compile(
    r"""--\[\[.*?(?:\]\]|\Z)|--[^\n]*|\[\[(?P<long>.*?)(?:\]\]|\Z)|"(?P<double>(?:\\.|[^"\\\n])*)"?|'(?P<single>(?:\\.|[^'\\\n])*)'?"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<join>\.\.)|(?P<sign>[{}=,;\[\]()])|\s+|.""",
    re.DOTALL,
)
#: The begin of a table `spec`. Comments and strings match first, so that one in them is not found.
_SPEC: Final = re.compile(BEFORE_TABLE + r"""|(?P<begin>\bspec\s*=\s*\{)""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(z\s*|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}
_TYPES: Final[Mapping[str, Any]] = {"string": str, "number": int | float, "boolean": bool}


class DeclaredArgument(msgspec.Struct, frozen=True):
    """An argument that a Lua program declares."""

    name: str
    type: Any = Any
    required: bool = True
    description: str = ""

    @property
    def parameter(self) -> inspect.Parameter:
        default = inspect.Parameter.empty if self.required else None
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=default, annotation=self.type)


class _Part(NamedTuple):
    """A token, or brackets (the kind is the first one) with what is between them."""

    kind: str
    value: str = ""
    inner: Sequence[_Part] = ()


def read_source(path: Path) -> str:
    """The beginning of a file; empty if it is unreadable."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_declared_arguments(text: str) -> tuple[DeclaredArgument, ...]:
    """The arguments in the order of the text; none if the program declares none."""
    begin = next((one for one in _SPEC.finditer(text) if one["begin"]), None)
    table = () if begin is None else _parse_table(text, begin.end())
    for name in ("entries", "run"):
        table = _find_table(table, name)
    shape = dict(_split_fields(table)).get("input", ())
    for one, after in pairwise(shape):
        if one[:2] == ("name", "shape") and after.kind == "(":
            fields = next((part.inner for part in after.inner if part.kind == "{"), ())
            return tuple(
                _make_argument(name, value)
                for name, value in dict(_split_fields(fields)).items()
                if name.isidentifier() and not iskeyword(name)
            )
    return ()


def classify_token(token: re.Match[str]) -> tuple[str, str]:
    """The kind of a token (text, name, sign, join, other) and its value. Blanks have no kind."""
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


def _parse_table(text: str, start: int) -> Sequence[_Part]:
    """What is inside a table that begins here; nothing if it has no end."""
    inside: list[list[_Part]] = [[]]
    brackets = ["{"]
    for token in TOKEN.finditer(text, start):
        kind, value = classify_token(token)
        if kind == "sign" and value in "{([":
            if len(brackets) == MAX_DEPTH:
                return ()
            brackets.append(value)
            inside.append([])
        elif kind == "sign" and value in "})]":
            part = _Part(brackets.pop(), inner=inside.pop())
            if not brackets:
                return part.inner
            inside[-1].append(part)
        elif kind:
            inside[-1].append(_Part(kind, value))
    return ()


def _find_table(parts: Sequence[_Part], name: str) -> Sequence[_Part]:
    """What is inside the table in the field of this name."""
    value = dict(_split_fields(parts)).get(name, ())
    return value[0].inner if len(value) == 1 and value[0].kind == "{" else ()


def _split_fields(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Part]]]:
    """The fields `name = value` and `["name"] = value` of a table."""
    field: list[_Part] = []
    for part in (*parts, _Part("sign", ",")):
        if part.kind != "sign" or part.value not in (",", ";"):
            field.append(part)
            continue
        if len(field) > 2 and field[1].value == "=":
            key = field[0].inner[0] if field[0].kind == "[" and field[0].inner else field[0]
            if key.kind in ("name", "text"):
                yield key.value, field[2:]
        field = []


def _make_argument(name: str, value: Sequence[_Part]) -> DeclaredArgument:
    """The argument of a field such as `T.string:is_optional():describe("…")`."""
    names = [part.value for part in value if part.kind == "name"]
    words = ""
    for one, after in pairwise(value):
        if one[:2] == ("name", "describe") and after.kind == "(":
            words = "".join(part.value for part in after.inner if part.kind == "text")
    wanted = _TYPES.get(names[1], Any) if len(names) > 1 else Any
    required = "is_optional" not in names and names[1:2] != ["any"]
    return DeclaredArgument(name, wanted, required, " ".join(words.split()))
