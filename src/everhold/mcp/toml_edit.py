"""Editing TOML that people wrote: one table is put in or taken out, and every other line stays as
it is.

The standard library reads TOML and does not write it, so an edit moves lines and then reads the
outcome: it is what it should be, or `MalformedText` is raised. A table in another form than `[a.b]`
(inline, or dotted keys) is left alone.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from everhold.mcp.json_edit import MalformedText, ServerEntry

_HEADER: Final = re.compile(r"\s*\[")
_NOTHING: Final = re.compile(r"\s*(#.*)?$")
_ELSEWHERE: Final = "it stands there in a form that this command does not edit"


def parse_host_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MalformedText(str(error) or "it is nested too deeply") from None


def put_toml_server(text: str, path: Sequence[str], entry: ServerEntry) -> str:
    """The text with the keys of `entry` in the table at `path`; what else is in that table
    stays.
    """
    wanted = parse_host_toml(text)
    holder = _reach(wanted, path)
    line = "\r\n" if "\r\n" in text else "\n"
    if not holder:
        gap = line if text.strip() else ""
        text += line if text and not text.endswith("\n") else ""
        text += gap + line.join([_name(path), *map(_pair, entry.items()), ""])
    else:
        for key, value in entry.items():
            if holder.get(key) != value:
                text = _put_one(text, path, key, value, line)
    holder.update(entry)
    return _checked(text, wanted)


def drop_toml_server(text: str, path: Sequence[str]) -> str:
    """The text without the table at `path` and those within it."""
    wanted = parse_host_toml(text)
    del _reach(wanted, path[:-1])[path[-1]]
    lines = text.splitlines(keepends=True)
    heads = _heads(lines)
    for at, (number, name) in reversed(list(enumerate(heads))):
        if name[: len(path)] != tuple(path):
            continue
        end = heads[at + 1][0] if at + 1 < len(heads) else len(lines)
        while end > number + 1 and _NOTHING.match(lines[end - 1]):
            end -= 1
        start = number - 1 if number and not lines[number - 1].strip() else number
        del lines[start:end]
    return _checked("".join(lines), wanted)


def format_toml_server(path: Sequence[str], entry: ServerEntry) -> str:
    return "\n".join([_name(path), *map(_pair, entry.items()), ""])


def _put_one(text: str, path: Sequence[str], key: str, value: Any, line: str) -> str:
    lines = text.splitlines(keepends=True)
    heads = _heads(lines)
    here = next((at for at, (_, name) in enumerate(heads) if name == tuple(path)), None)
    if here is None:
        raise MalformedText(_ELSEWHERE)
    start = heads[here][0] + 1
    end = heads[here + 1][0] if here + 1 < len(heads) else len(lines)
    spoken = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=")
    at = next((n for n in range(start, end) if spoken.match(lines[n]) and _whole(lines[:n])), None)
    stop = start if at is None else next(n for n in range(at + 1, end + 1) if _whole(lines[:n]))
    lines[start if at is None else at : stop] = [_pair((key, value)) + line]
    return "".join(lines)


def _heads(lines: list[str]) -> list[tuple[int, tuple[str, ...]]]:
    """The lines that begin a table, and its name. A line within a string or an array begins
    none.
    """
    found = []
    for number, line in enumerate(lines):
        if _HEADER.match(line) and _whole(lines[:number]):
            name: list[str] = []
            table: Any = parse_host_toml(line)
            while isinstance(table, dict) and table:
                key, table = next(iter(table.items()))
                name.append(key)
            found.append((number, tuple(name)))
    return found


def _whole(lines: list[str]) -> bool:
    """Whether these lines end where a statement ends: the beginning of a TOML text is TOML just
    there.
    """
    try:
        parse_host_toml("".join(lines))
    except MalformedText:
        return False
    return True


def _reach(table: Any, path: Sequence[str]) -> dict[str, Any]:
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise MalformedText(f"{'.'.join(path)} should be a table")
    return table  # type: ignore[no-any-return]


def _checked(text: str, wanted: dict[str, Any]) -> str:
    """An empty table that no line names is no table."""
    if _full(parse_host_toml(text)) != _full(wanted):
        raise MalformedText(_ELSEWHERE)
    return text


def _full(table: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if value != {}}


def _name(path: Sequence[str]) -> str:
    return f"[{'.'.join(part if re.fullmatch(r'[A-Za-z0-9_-]+', part) else json.dumps(part) for part in path)}]"  # noqa: E501


def _pair(pair: tuple[str, Any]) -> str:
    key, value = pair
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"
