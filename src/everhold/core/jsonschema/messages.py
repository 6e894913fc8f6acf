"""Schemas and values as text, for messages about a refused answer."""

from __future__ import annotations

from typing import Final

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.jsonschema.keywords import TYPES, Schema, get_type_names, resolve_ref

_SHOWN: Final = 80  # characters of a value
_LISTED: Final = 12  # values or names
_DEEP: Final = 4  # schemas within schemas

_DETAILS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "multipleOf": "that is a multiple of {}",
    "minLength": "of length ≥ {}",
    "maxLength": "of length ≤ {}",
    "pattern": "matching {!r}",
    "format": "in the format {!r}",
    "contentEncoding": "in {}",
    "minItems": "of length ≥ {}",
    "maxItems": "of length ≤ {}",
    "minProperties": "of size ≥ {}",
    "maxProperties": "of size ≤ {}",
}


def describe_schema(schema: Schema, root: Schema, depth: int = 0) -> str:
    """The accepted values as a phrase: "an integer ≥ 1", "one of 'yes', 'no'"."""
    if isinstance(schema, bool):
        return "anything" if schema else "absent"
    if values := list_enum_values(schema):
        return (
            format_value(values[0])
            if len(values) == 1
            else f"one of {_series([format_value(one) for one in values])}"
        )
    if depth > _DEEP:
        return "a value"
    if "$ref" in schema:
        return describe_schema(resolve_ref(schema["$ref"], root), root, depth + 1)
    for keyword, word in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if keyword in schema:
            return word.join(
                dict.fromkeys(describe_schema(part, root, depth + 1) for part in schema[keyword])
            )
    kind = (
        " or ".join(TYPES[name][0] for name in get_type_names(schema.get("type", []))) or "a value"
    )
    details = [
        words.format(schema[keyword]) for keyword, words in _DETAILS.items() if keyword in schema
    ]
    if required := schema.get("required"):
        tags = {name: list_enum_values(part) for name, part in schema.get("properties", {}).items()}
        details.append(f"with {_series([_member(name, tags.get(name, [])) for name in required])}")
    return f"{kind} {' and '.join(details)}" if details else kind


def list_enum_values(schema: Schema) -> list[JSON]:
    """The values of `const` or `enum`; empty if the schema has neither."""
    if isinstance(schema, bool):
        return []
    return [schema["const"]] if "const" in schema else list(schema.get("enum", ()))


def format_value(value: JSON) -> str:
    """A value as text; a long one is shortened or summarised."""
    match value:
        case str():
            return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
        case list():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict():
            return (
                f"an object with {_series([repr(name) for name in value])}"
                if value
                else "an empty object"
            )
        case _:
            return codec.dumps(value)


def join_path(path: str, step: str | int) -> str:
    """The path of a member or an item: `answer.items[2]`."""
    return (
        f"{path}.{step}" if isinstance(step, str) and step.isidentifier() else f"{path}[{step!r}]"
    )


def _member(name: str, values: list[JSON]) -> str:
    return f"{name!r} = {format_value(values[0])}" if len(values) == 1 else repr(name)


def _series(words: list[str]) -> str:
    return ", ".join(words[:_LISTED]) + (", …" if len(words) > _LISTED else "")
