"""The keywords that a schema may use, and the operands they may have.

Any other keyword is refused by name: it could be a condition that is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType
from typing import Final, NamedTuple

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.errors import BadSchema

Schema = dict[str, JSON] | bool

#: The words for each type, and the Python types of its values.
TYPES: Final[dict[str, tuple[str, frozenset[type]]]] = {
    "null": ("null", frozenset({NoneType})),
    "boolean": ("true or false", frozenset({bool})),
    "integer": ("an integer", frozenset({int})),
    "number": ("a number", frozenset({int, float})),
    "string": ("a string", frozenset({str})),
    "array": ("a list", frozenset({list})),
    "object": ("an object", frozenset({dict})),
}

_REF_FORM: Final = re.compile(r"#/(\$defs|definitions)/([^/]+)")
_HINT: Final = "Use only the keywords in docs/adr/0002, or check the answer in the program."


def check_schema(schema: Schema) -> None:
    """Raises `BadSchema` if any part of `schema` could not be checked."""
    codec.to_plain(schema, "the schema")
    _usable(schema, "the schema", schema)


def resolve_ref(ref: str, root: Schema) -> Schema:
    """The schema that a checked `$ref` refers to."""
    found = _found(ref, root)
    assert found is not None
    return found


def get_type_names(types: JSON) -> list[str]:
    """The operand of `type`, one name or a list, as a list."""
    return types if isinstance(types, list) else [types]


def _usable(schema: Schema, place: str, root: Schema) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _bad(place, "a schema is an object, true or false")
    for keyword, operand in schema.items():
        known = OPERANDS["title"] if keyword.startswith("x-") else OPERANDS.get(keyword)
        if known is None:
            raise _bad(place, f"everhold does not support the keyword {keyword!r}")
        parts = known.parts(operand, root)
        if parts is None:
            raise _bad(f"{place}.{keyword}", f"it must be {known.words}")
        for where, part in parts.items():
            _usable(part, f"{place}.{keyword}{where}", root)


def _bad(place: str, reason: str) -> BadSchema:
    error = BadSchema(place, reason)
    error.hint = _HINT
    return error


def _found(ref: JSON, root: Schema) -> Schema | None:
    if ref == "#":
        return root
    match = _REF_FORM.fullmatch(ref) if isinstance(ref, str) else None
    if match is None or isinstance(root, bool):
        return None
    room, name = match.groups()
    rooms = root.get(room)
    return (
        rooms.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(rooms, dict) else None
    )


class _Operand(NamedTuple):
    """`parts` returns the schemas inside an operand, by path; None if the operand is not valid."""

    words: str
    parts: Callable[[JSON, Schema], dict[str, Schema] | None]


def _that(holds: Callable[[JSON], bool]) -> Callable[[JSON, Schema], dict[str, Schema] | None]:
    return lambda operand, root: {} if holds(operand) else None


def _listed(operand: JSON, root: Schema) -> dict[str, Schema] | None:
    if type(operand) is list and operand:
        return {f"[{index}]": part for index, part in enumerate(operand)}
    return None


def _named(operand: JSON, root: Schema) -> dict[str, Schema] | None:
    return {f".{name}": part for name, part in operand.items()} if type(operand) is dict else None


def _by_pattern(operand: JSON, root: Schema) -> dict[str, Schema] | None:
    return _named(operand, root) if type(operand) is dict and all(map(_compiles, operand)) else None


def _compiles(pattern: JSON) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


def _texts(operand: JSON) -> bool:
    return type(operand) is list and all(type(one) is str for one in operand)


def _known(operand: JSON) -> bool:
    return (
        _texts(get_type_names(operand))
        and bool(operand)
        and all(name in TYPES for name in get_type_names(operand))
    )


_ANY = _Operand("anything", lambda operand, root: {})
_SCHEMA = _Operand("a schema", lambda operand, root: {"": operand})
_SCHEMAS = _Operand("a list of schemas", _listed)
_NAMED = _Operand("an object of schemas", _named)
_PATTERNED = _Operand("an object of schemas by regular expression", _by_pattern)
_COUNT = _Operand("a whole number", _that(lambda it: type(it) is int and it >= 0))
_NUMBER = _Operand("a number", _that(lambda it: type(it) in (int, float)))
_POSITIVE = _Operand("a number above 0", _that(lambda it: type(it) in (int, float) and it > 0))
_FLAG = _Operand("true or false", _that(lambda it: type(it) is bool))
_TEXT = _Operand("a string", _that(lambda it: type(it) is str))
_TEXTS = _Operand("a list of strings", _that(_texts))
_VALUES = _Operand("a list of values", _that(lambda it: type(it) is list and bool(it)))
_PATTERN = _Operand("a regular expression", _that(_compiles))
_TYPE = _Operand(f"one or more of {', '.join(TYPES)}", _that(_known))
_REF = _Operand(
    "'#', '#/$defs/NAME' or '#/definitions/NAME' of this schema",
    lambda operand, root: None if _found(operand, root) is None else {},
)

OPERANDS: Final[dict[str, _Operand]] = {
    # conditions
    "type": _TYPE,
    "const": _ANY,
    "enum": _VALUES,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": _POSITIVE,
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "pattern": _PATTERN,
    "format": _TEXT,
    "contentEncoding": _TEXT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "prefixItems": _SCHEMAS,
    "items": _SCHEMA,
    "uniqueItems": _FLAG,
    "contains": _SCHEMA,
    "required": _TEXTS,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "propertyNames": _SCHEMA,
    "properties": _NAMED,
    "patternProperties": _PATTERNED,
    "additionalProperties": _SCHEMA,
    "$ref": _REF,
    "allOf": _SCHEMAS,
    "anyOf": _SCHEMAS,
    "oneOf": _SCHEMAS,
    "not": _SCHEMA,
    "if": _SCHEMA,
    # read by the rule of another keyword
    "minContains": _COUNT,
    "maxContains": _COUNT,
    "then": _SCHEMA,
    "else": _SCHEMA,
    "$defs": _NAMED,
    "definitions": _NAMED,
    # for people, like every keyword that begins with x-
    "title": _ANY,
    "description": _ANY,
    "default": _ANY,
    "example": _ANY,
    "examples": _ANY,
    "discriminator": _ANY,
    "deprecated": _ANY,
    "readOnly": _ANY,
    "writeOnly": _ANY,
    "contentMediaType": _ANY,
    "$schema": _ANY,
    "$id": _ANY,
    "$comment": _ANY,
}
