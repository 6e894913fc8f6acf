"""Editing TOML that people wrote: one entry is put in or taken out, and every other line stays as
it is.

The standard library reads TOML and does not write it. A text is taken apart into its statements (a
header, or a key with its value, however many lines it has), lines are moved, and the outcome is
read again: it says what it should, or `ValueError` is raised and nobody writes it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ELSEWHERE: Final = "the entry stands there in a form that cannot be edited"

KeyPath = tuple[str, ...]


class _Statement(msgspec.Struct, frozen=True):
    begin: int  # its first line
    end: int  # the line after its last
    path: KeyPath  # what it is about; empty for blank lines and comments
    is_header: bool = False


def parse_toml(text: str) -> dict[str, Any]:
    """What a text says; raises `ValueError` if it is not TOML."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def put_toml_value(text: str, path: KeyPath, value: Any) -> str:
    """The text with a value at a path where there was none; a mapping becomes a table with a header
    of its own.
    """
    wanted = parse_toml(text)
    _reach(wanted, path[:-1])[path[-1]] = value
    line = "\r\n" if "\r\n" in text else "\n"
    if isinstance(value, Mapping):
        return _checked(
            _joined(text, [format_toml_header(path), *format_toml_pairs(value)], line), wanted
        )
    statements = list(_statements(text))
    at = _end_of_table(statements, path[:-1])
    pair = f"{_name(path[-1])} = {format_toml_value(value)}"
    if at is None:
        return _checked(_joined(text, [format_toml_header(path[:-1]), pair], line), wanted)
    lines = text.splitlines(keepends=True)
    if lines[at - 1 : at] and not lines[at - 1].endswith("\n"):
        lines[at - 1] += line
    lines.insert(at, pair + line)
    return _checked("".join(lines), wanted)


def drop_toml_value(text: str, path: KeyPath) -> str:
    """The text without what is at a path."""
    wanted = parse_toml(text)
    del _reach(wanted, path[:-1])[path[-1]]
    lines = text.splitlines(keepends=True)
    for begin, end in reversed(list(_spans(list(_statements(text)), path))):
        is_apart = end == len(lines) or not lines[end].strip()
        if begin and is_apart and not lines[begin - 1].strip():
            begin -= 1
        elif not begin and is_apart:
            end += 1
        del lines[begin:end]
    return _checked("".join(lines), wanted)


def format_toml_header(path: KeyPath) -> str:
    return f"[{'.'.join(map(_name, path))}]"


def format_toml_pairs(table: Mapping[str, Any]) -> list[str]:
    """The lines of a table."""
    return [f"{_name(key)} = {format_toml_value(value)}" for key, value in table.items()]


def format_toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(format_toml_pairs(value))} }}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- taking a text apart


def _statements(text: str) -> Iterator[_Statement]:
    """The statements of a text that is TOML."""
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    begin = 0
    table = KeyPath()
    for number in range(len(lines)):
        chunk = "".join(lines[begin : number + 1])
        try:
            found = tomllib.loads(chunk)
        except tomllib.TOMLDecodeError:
            continue  # it goes on in the next line
        if chunk.lstrip().startswith("["):
            table = _first_path(found)
            yield _Statement(begin, number + 1, table, is_header=True)
        else:
            yield _Statement(begin, number + 1, (*table, *_key(chunk)) if found else ())
        begin = number + 1


def _key(chunk: str) -> KeyPath:
    """The key of a statement, part by part: what stands before the sign that makes it one."""
    for sign in re.finditer("=", chunk):
        try:
            return _first_path(tomllib.loads(f"{chunk[: sign.start()]}= 0"))
        except tomllib.TOMLDecodeError:
            continue  # this one is within quotes
    return ()


def _first_path(table: Any) -> KeyPath:
    parts: list[str] = []
    while (isinstance(table, dict) and table) or isinstance(table, list):
        if isinstance(table, list):
            table = table[0]
            continue
        key, table = next(iter(table.items()))
        parts.append(key)
    return tuple(parts)


def _end_of_table(statements: Sequence[_Statement], table: KeyPath) -> int | None:
    """The line after the last entry of a table that has a header."""
    end = None
    inside = False
    for one in statements:
        inside = one.path == table if one.is_header else inside
        if inside and one.path:
            end = one.end
    return end


def _spans(statements: Sequence[_Statement], path: KeyPath) -> Iterator[tuple[int, int]]:
    """The lines that are about a path, or about what is in it. Comments at the end of a table
    stay.
    """
    begin = end = -1
    for one in statements:
        is_meant = one.path[: len(path)] == path
        if begin >= 0 and one.path and not is_meant:
            yield begin, end
            begin = -1
        if is_meant:
            begin = one.begin if begin < 0 else begin
            end = one.end
    if begin >= 0:
        yield begin, end


# ---- putting it together


def _joined(text: str, lines: Sequence[str], line: str) -> str:
    gap = line if text.strip() else ""
    text += line if text and not text.endswith("\n") else ""
    return text + gap + line.join([*lines, ""])


def _reach(table: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{'.'.join(path)} should be a table")
    return table


def _checked(text: str, wanted: Mapping[str, Any]) -> str:
    """An empty table that no line names is no table."""
    try:
        found = parse_toml(text)
    except ValueError:
        raise ValueError(_ELSEWHERE) from None
    if _full(found) != _full(wanted):
        raise ValueError(_ELSEWHERE)
    return text


def _full(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value != {}}


def _name(part: str) -> str:
    return part if _BARE.fullmatch(part) else format_toml_value(part)
