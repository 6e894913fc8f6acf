"""Edits JSON that people wrote: adds or removes one member, and changes no other byte.

Comments and trailing commas are accepted, as in the settings of editors. The meaning of the edited
text is compared with the intended one. If they differ, `MalformedText` is raised, so an edit never
damages a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

_SKIP: Final = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(
    r'"(?:[^"\\\x00-\x1f]++|\\.)*+"'
)  # possessive: no backtracking if the end is missing
_PLAIN: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
#: A comment at the end of the line above a member; and the end of a line after a member.
_COMMENT: Final = re.compile(r"//[^\n]*\n\Z")
_ENDS: Final = re.compile(r"[ \t]*,?[ \t]*(?:\r?\n|\Z)")
_DEEPEST: Final = 200

#: The entry of a server: text, lists of text and maps of text.
ServerEntry: TypeAlias = Mapping[str, str | list[str] | dict[str, str]]


class MalformedText(ValueError):
    """The text does not have the required format, or cannot be edited safely."""


@dataclass(frozen=True, slots=True)
class LocatedValue:
    """A value with its position. `value` is as `json` reads it, but numbers stay text."""

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
    """The text as one value; raises `MalformedText` with the line."""
    spot = _value(text, _skip(text, 0), 0)
    rest = _skip(text, spot.end)
    if rest != len(text):
        raise _make_error(text, rest, "nothing more")
    return spot


def put_json_server(text: str, path: Sequence[str], entry: ServerEntry) -> str:
    """The text with the members of `entry` in the object at `path`. Its other members stay."""
    text = text + "{}\n" if _skip(text, 0) == len(text) else text
    intended = _copy(parse_host_json(text).value)
    _reach_object(intended, path).update(entry)
    for key, value in entry.items():
        text = _put_member(text, path, key, value)
    return _check_meaning(text, intended)


def drop_json_server(text: str, path: Sequence[str]) -> str:
    """The text without the member at `path`, and without objects that are empty then."""
    intended = _copy(parse_host_json(text).value)
    while True:
        del _reach_object(intended, path[:-1])[path[-1]]
        text = _cut_member(text, path)
        path = path[:-1]
        holder = _find_object(text, path)
        if not path or text[holder.start + 1 : holder.end - 1].strip():
            return _check_meaning(text, intended)


# ---- reading


def _value(text: str, at: int, depth: int) -> LocatedValue:
    if depth > _DEEPEST:
        raise _make_error(text, at, f"at most {_DEEPEST} levels")
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
        raise _make_error(text, at, "a value")
    words: dict[str, Any] = {"true": True, "false": False, "null": None}
    return LocatedValue(at, found.end(), words.get(found[0], found[0]))


def _object(text: str, start: int, depth: int) -> LocatedValue:
    members: list[LocatedMember] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise _make_error(text, at, "a name in double quotes, or }")
        key, end = _string(text, at)
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            raise _make_error(text, colon, "a colon")
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
    """The position of the next member, or of the closing bracket."""
    at = _skip(text, end)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != close:
        raise _make_error(text, at, f"a comma or {close}")
    return at


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    try:
        return str(json.loads(found[0] if found else "")), found.end() if found else at
    except json.JSONDecodeError:
        raise _make_error(text, at, "a string that ends on its line, with known escapes") from None


def _skip(text: str, at: int) -> int:
    found = _SKIP.match(text, at)
    return found.end() if found else at


def _make_error(text: str, at: int, expected: str) -> MalformedText:
    line = text.count("\n", 0, at) + 1
    found = repr(text[at]) if at < len(text) else "the end"
    return MalformedText(f"line {line}: expected {expected}, found {found}")


# ---- writing


def _put_member(text: str, path: Sequence[str], key: str, value: Any) -> str:
    """Add one member, and the missing objects on its path."""
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
    return text[: spot.start] + _format_value(text, value, len(path) + 1) + text[spot.end :]


def _insert(text: str, holder: LocatedValue, depth: int, key: str, value: Any) -> str:
    words = f"{json.dumps(key, ensure_ascii=False)}: {_format_value(text, value, depth + 1)}"
    line = _detect_newline(text)
    inner = _detect_indent(text) * (depth + 1)
    outer = _detect_indent(text) * depth
    if not holder.members:
        if _is_one_line(text):
            return text[: holder.start + 1] + words + text[holder.start + 1 :]
        inside = text[holder.start + 1 : holder.end - 1].rstrip()
        return f"{text[: holder.start + 1]}{inside}{line}{inner}{words}{line}{outer}{text[holder.end - 1 :]}"  # noqa: E501
    last = holder.members[-1].spot.end
    gap = " " if _is_one_line(text) else line + inner
    comma = _skip(text, last)
    if text[comma] == ",":  # a trailing comma: the new member gets one too
        return f"{text[: comma + 1]}{gap}{words},{text[comma + 1 :]}"
    said = len(text[: holder.end - 1].rstrip())
    return f"{text[:last]},{text[last:said]}{gap}{words}{text[said:]}"


def _cut_member(text: str, path: Sequence[str]) -> str:
    """Remove a member, its line, and the comma that is no longer needed."""
    holder = _find_object(text, path[:-1])
    index = max(i for i, member in enumerate(holder.members) if member.key == path[-1])
    member = holder.members[index]
    before = holder.members[:index]
    comma = _skip(text, member.spot.end)
    if text[comma] != "," and before:
        comma = _skip(text, before[-1].spot.end)
    start = len(text[: member.start].rstrip(" \t"))
    gap = text[before[-1].spot.end if before else holder.start + 1 : start]
    # otherwise the next member would become part of the comment
    if _ENDS.match(text, member.spot.end) or not _COMMENT.search(gap):
        start -= len(re.search(r"(?:\r?\n)?\Z", text[:start])[0])  # type: ignore[index]
    holes = [(start, member.spot.end)] + ([(comma, comma + 1)] if text[comma] == "," else [])
    end = holder.end
    for begin, stop in sorted(holes, reverse=True):
        text = text[:begin] + text[stop:]
        end = end - (stop - begin)
    if not text[holder.start + 1 : end - 1].strip():
        text = text[: holder.start + 1] + text[end - 1 :]
    return text


def _find_object(text: str, path: Sequence[str]) -> LocatedValue:
    """The object at a path that exists."""
    spot = parse_host_json(text)
    for name in path:
        member = _member(spot, name)
        assert member is not None
        spot = member.spot
    return spot


def _member(spot: LocatedValue, key: str) -> LocatedMember | None:
    if not isinstance(spot.value, dict):
        raise MalformedText(f"{key!r} should be inside an object")
    return next((member for member in reversed(spot.members) if member.key == key), None)


def _reach_object(value: Any, path: Sequence[str]) -> dict[str, Any]:
    """The object at `path`. Missing objects on the path are added."""
    for name in (*path, None):
        if not isinstance(value, dict):
            raise MalformedText(f"{'.'.join(path) or 'the file'} should be an object")
        if name is not None:
            value = value.setdefault(name, {})
    return value  # type: ignore[no-any-return]


def _check_meaning(text: str, intended: Any) -> str:
    if parse_host_json(text).value != intended:
        raise MalformedText("its form cannot be edited safely")
    return text


def _copy(value: Any) -> Any:
    """A deep copy, to build the intended value from the parsed one."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


# ---- the style of a file


def _format_value(text: str, value: Any, depth: int) -> str:
    if _is_one_line(text):
        return json.dumps(value, ensure_ascii=False)
    said = json.dumps(value, ensure_ascii=False, indent=_detect_indent(text))
    return said.replace("\n", _detect_newline(text) + _detect_indent(text) * depth)


def _is_one_line(text: str) -> bool:
    """Whether the text is a single line with content."""
    return "\n" not in text.strip() and len(text.strip()) > 2


def _detect_indent(text: str) -> str:
    found = re.search(r"\{[ \t]*\r?\n([ \t]+)\S", text)
    return found[1] if found else "  "


def _detect_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
