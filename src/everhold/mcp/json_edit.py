"""Editing JSON that people wrote: one member is put in or taken out, and every other byte stays
where it is.

Comments and trailing commas are understood, as editors' settings have them. An edit returns text
whose meaning was compared with what it should be, or raises `MalformedText`: text is never made
worse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_SKIP: Final = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')  # what has no end is given up at once
_PLAIN: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
#: What comes before a member, if a remark ends the line above; and after one, if nothing else
#: stands on its line.
_REMARK: Final = re.compile(r"//[^\n]*\n\Z")
_ENDS: Final = re.compile(r"[ \t]*,?[ \t]*(?:\r?\n|\Z)")
_DEEPEST: Final = 200

#: What can be put in: words, and lists of words.
ServerEntry: TypeAlias = Mapping[str, str | list[str] | dict[str, str]]


class MalformedText(ValueError):
    """The text is not what its format asks for, or cannot be edited safely."""


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A value and where it stands. `value` is as `json` reads it, but numbers are their own
    text.
    """

    start: int
    end: int
    value: Any
    members: tuple[LocatedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class LocatedMember:
    start: int
    key: str
    spot: LocatedValue


def parse_host_json(text: str) -> LocatedValue:
    """The whole text as one value; raises `MalformedText` with the line."""
    spot = _value(text, _skip(text, 0), 0)
    rest = _skip(text, spot.end)
    if rest != len(text):
        raise _wrong(text, rest, "nothing more")
    return spot


def put_json_server(text: str, path: Sequence[str], entry: ServerEntry) -> str:
    """The text with the members of `entry` in the object at `path`; what else is in that object
    stays.
    """
    text = text + "{}\n" if _skip(text, 0) == len(text) else text
    wanted = _copy(parse_host_json(text).value)
    _reach(wanted, path).update(entry)
    for key, value in entry.items():
        text = _put_one(text, path, key, value)
    return _checked(text, wanted)


def drop_json_server(text: str, path: Sequence[str]) -> str:
    """The text without the member at `path`, and without the objects around it that then hold not
    even a comment.
    """
    wanted = _copy(parse_host_json(text).value)
    while True:
        del _reach(wanted, path[:-1])[path[-1]]
        text = _cut(text, path)
        path = path[:-1]
        holder = _at(text, path)
        if not path or text[holder.start + 1 : holder.end - 1].strip():
            return _checked(text, wanted)


# ---- reading


def _value(text: str, at: int, depth: int) -> LocatedValue:
    if depth > _DEEPEST:
        raise _wrong(text, at, f"at most {_DEEPEST} levels")
    match text[at : at + 1]:
        case "{":
            return _object(text, at, depth)
        case "[":
            return _array(text, at, depth)
        case '"':
            word, end = _string(text, at)
            return LocatedValue(at, end, word)
    found = _PLAIN.match(text, at)
    if not found:
        raise _wrong(text, at, "a value")
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    return LocatedValue(at, found.end(), words.get(found[0], found[0]))


def _object(text: str, start: int, depth: int) -> LocatedValue:
    members: list[LocatedMember] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise _wrong(text, at, "a name in double quotes, or }")
        key, end = _string(text, at)
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            raise _wrong(text, colon, "a colon")
        spot = _value(text, _skip(text, colon + 1), depth + 1)
        members.append(LocatedMember(at, key, spot))
        at = _after(text, spot.end, "}")
    return LocatedValue(
        start, at + 1, {member.key: member.spot.value for member in members}, tuple(members)
    )


def _array(text: str, start: int, depth: int) -> LocatedValue:
    items: list[Any] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "]":
        spot = _value(text, at, depth + 1)
        items.append(spot.value)
        at = _after(text, spot.end, "]")
    return LocatedValue(start, at + 1, items)


def _after(text: str, end: int, close: str) -> int:
    """Where the next member begins, or the end of what holds it."""
    at = _skip(text, end)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != close:
        raise _wrong(text, at, f"a comma or {close}")
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    try:
        return str(json.loads(found[0] if found else "")), found.end() if found else at
    except json.JSONDecodeError:
        raise _wrong(text, at, "a string that ends on its line, with known escapes") from None


def _skip(text: str, at: int) -> int:
    found = _SKIP.match(text, at)
    return found.end() if found else at


def _wrong(text: str, at: int, expected: str) -> MalformedText:
    line = text.count("\n", 0, at) + 1
    found = repr(text[at]) if at < len(text) else "the end"
    return MalformedText(f"line {line}: expected {expected}, found {found}")


# ---- writing


def _put_one(text: str, path: Sequence[str], key: str, value: Any) -> str:
    """Put in one member, with the objects on the way to it."""
    spot = parse_host_json(text)
    for depth, name in enumerate((*path, key)):
        member = _member(spot, name)
        if member is None:
            for inner in reversed([*path, key][depth + 1 :]):
                value = {inner: value}
            return _insert(text, spot, depth, name, value)
        spot = member.spot
    if spot.value == value:
        return text
    return text[: spot.start] + _written(text, value, len(path) + 1) + text[spot.end :]


def _insert(text: str, holder: LocatedValue, depth: int, key: str, value: Any) -> str:
    words = f"{json.dumps(key, ensure_ascii=False)}: {_written(text, value, depth + 1)}"
    line = _newline(text)
    inner = _unit(text) * (depth + 1)
    outer = _unit(text) * depth
    if not holder.members:
        if _flat(text):
            return text[: holder.start + 1] + words + text[holder.start + 1 :]
        inside = text[holder.start + 1 : holder.end - 1].rstrip()
        return f"{text[: holder.start + 1]}{inside}{line}{inner}{words}{line}{outer}{text[holder.end - 1 :]}"  # noqa: E501
    last = holder.members[-1].spot.end
    gap = " " if _flat(text) else line + inner
    comma = _skip(text, last)
    if text[comma] == ",":  # a trailing one, which is kept as a habit of this file
        return f"{text[: comma + 1]}{gap}{words},{text[comma + 1 :]}"
    said = len(text[: holder.end - 1].rstrip())
    return f"{text[:last]},{text[last:said]}{gap}{words}{text[said:]}"


def _cut(text: str, path: Sequence[str]) -> str:
    """Take out a member, its line, and the comma that it no longer needs."""
    holder = _at(text, path[:-1])
    index = max(i for i, member in enumerate(holder.members) if member.key == path[-1])
    member = holder.members[index]
    before = holder.members[:index]
    comma = _skip(text, member.spot.end)
    if text[comma] != "," and before:
        comma = _skip(text, before[-1].spot.end)
    start = len(text[: member.start].rstrip(" \t"))
    gap = text[before[-1].spot.end if before else holder.start + 1 : start]
    # else what follows would be in the remark
    if _ENDS.match(text, member.spot.end) or not _REMARK.search(gap):
        start -= len(re.search(r"(?:\r?\n)?\Z", text[:start])[0])  # type: ignore[index]
    holes = [(start, member.spot.end)] + ([(comma, comma + 1)] if text[comma] == "," else [])
    end = holder.end
    for begin, stop in sorted(holes, reverse=True):
        text = text[:begin] + text[stop:]
        end = end - (stop - begin)
    if not text[holder.start + 1 : end - 1].strip():
        text = text[: holder.start + 1] + text[end - 1 :]
    return text


def _at(text: str, path: Sequence[str]) -> LocatedValue:
    """The object at a path that is there."""
    spot = parse_host_json(text)
    for name in path:
        member = _member(spot, name)
        assert member is not None
        spot = member.spot
    return spot


def _member(spot: LocatedValue, key: str) -> LocatedMember | None:
    if not isinstance(spot.value, dict):
        raise MalformedText(f"there should be an object around {key!r}")
    return next((member for member in reversed(spot.members) if member.key == key), None)


def _reach(value: Any, path: Sequence[str]) -> dict[str, Any]:
    """The object at `path`, made on the way if it is missing."""
    for name in (*path, None):
        if not isinstance(value, dict):
            raise MalformedText(f"{'.'.join(path) or 'the file'} should be an object")
        if name is not None:
            value = value.setdefault(name, {})
    return value  # type: ignore[no-any-return]


def _checked(text: str, wanted: Any) -> str:
    if parse_host_json(text).value != wanted:
        raise MalformedText("it is written in a way that this command cannot edit safely")
    return text


def _copy(value: Any) -> Any:
    """A copy, so that a wish can be formed from what was read."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# ---- the habits of a file


def _written(text: str, value: Any, depth: int) -> str:
    if _flat(text):
        return json.dumps(value, ensure_ascii=False)
    said = json.dumps(value, ensure_ascii=False, indent=_unit(text))
    return said.replace("\n", _newline(text) + _unit(text) * depth)


def _flat(text: str) -> bool:
    """Whether all stands on one line, and there is something on it."""
    return "\n" not in text.strip() and len(text.strip()) > 2


def _unit(text: str) -> str:
    found = re.search(r"\{[ \t]*\r?\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
