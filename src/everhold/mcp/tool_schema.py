"""What a tool is, the JSON schema of its parameters, and how its arguments are read.

Rules
  1. Parameters are the fields of a struct. Its schema has no references, because some hosts do not
     follow them.
  2. Obvious slips of hosts are forgiven: null or empty text for an absent parameter, an object or
     a list sent as JSON text, and one answer without a list around it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import UNSET

from everhold.errors import BadRequest

#: Bytes of arguments that one call may have, as JSON.
MAX_ARGUMENT_BYTES: Final = 8_000_000
#: Seconds that a call may wait.
MAX_WAIT_SECONDS: Final = 300.0
#: Parameters that hosts may send as JSON text.
_JSON_PARAMETERS: Final = frozenset({"args", "answers", "budget"})


class ServerTool(msgspec.Struct, frozen=True):
    """One tool. `handle` takes a `ToolCall` and the arguments."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    handle: Callable[[Any, Any], Awaitable[Any]]
    status: bool = True  # returns the status of a session
    reads: bool = False  # changes nothing
    destroys: bool = False
    repeats: bool = False  # doing it twice is the same as once
    world: bool = False  # may reach people or things outside


def parse_tool_arguments(tool: ServerTool, arguments: dict[str, Any] | None) -> Any:
    """The arguments of a call as the tool's struct; raises `BadRequest`."""
    fields = tool.takes.__struct_fields__
    optional = _list_optional_fields(tool.takes)
    given = {
        name: value
        for name, value in (arguments or {}).items()
        if value is not None and not (value == "" and name in optional)
    }
    refuse_huge(tool.name, given)
    for name in _JSON_PARAMETERS.intersection(given, fields):
        if isinstance(given[name], str):
            given[name] = parse_json_leniently(given[name])
    if "answers" in given and "answers" in fields:
        given["answers"] = _normalize_answers(given["answers"])
    try:
        found = msgspec.convert(given, tool.takes)
    except msgspec.ValidationError as error:
        schema = build_input_schema(tool.takes)
        names = []
        for field, part in schema["properties"].items():
            inner = part.get("items", part).get("properties")
            each = "each " if "items" in part else ""
            names.append(f"{field} ({each}with {', '.join(inner)})" if inner else field)
        raise BadRequest(tool.name, f"{error}; it takes {', '.join(names)}") from None
    wait = getattr(found, "wait", None)
    if wait is not None and not 0 <= wait <= MAX_WAIT_SECONDS:
        raise BadRequest(
            tool.name, f"wait should be between 0 and {MAX_WAIT_SECONDS:.0f} seconds, got {wait}"
        )
    return found


@cache  # reading the fields takes longer than the rest of a call
def _list_optional_fields(takes: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.name for field in msgspec.structs.fields(takes) if field.default is None)


def _normalize_answers(answers: Any) -> Any:
    """Answers as a list, without the empty errors that some hosts add."""
    if isinstance(answers, dict):
        answers = [answers]
    if not isinstance(answers, list):
        return answers
    return [
        {name: value for name, value in one.items() if (name, value) != ("error", "")}
        if isinstance(one, dict)
        else one
        for one in answers
    ]


def refuse_huge(tool: str, given: dict[str, Any]) -> None:
    """Raise `BadRequest` for arguments that are too large, or not plain JSON."""
    try:
        size = len(msgspec.json.encode(given))
    except (RecursionError, ValueError, TypeError) as error:
        raise BadRequest(tool, f"the arguments are not plain JSON: {error}") from None
    if size > MAX_ARGUMENT_BYTES:
        raise BadRequest(
            tool, f"the arguments have {size} bytes, more than the limit of {MAX_ARGUMENT_BYTES}"
        )


def parse_json_leniently(text: str) -> Any:
    """The value of JSON text, or the text itself if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


# ---- schemas


def build_input_schema(takes: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct without references, titles, and `null` as a second type."""
    (root,), parts = msgspec.json.schema_components([takes])
    plain: dict[str, Any] = _inline_references(root, parts)
    return plain


def _inline_references(part: Any, parts: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline_references(item, parts) for item in part]
    if not isinstance(part, dict):
        return part
    found = {
        key: value for key, value in part.items() if key not in ("$ref", "anyOf", "properties")
    }
    # what a field says of itself takes precedence over what its type says
    if "$ref" in part:
        found = {**_inline_references(parts[part["$ref"].rpartition("/")[2]], parts), **found}
    if "anyOf" in part:
        (only,) = [choice for choice in part["anyOf"] if choice != {"type": "null"}]
        found = {**_inline_references(only, parts), **found}
    if "properties" in part:
        found["properties"] = {
            name: _inline_references(value, parts) for name, value in part["properties"].items()
        }
    found.pop("title", None)
    if found.get("default", UNSET) is None:
        del found["default"]
    if found.get("required") == []:
        del found["required"]
    return {
        key: _inline_references(value, parts) if key in ("items", "additionalProperties") else value
        for key, value in found.items()
    }
