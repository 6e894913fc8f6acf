"""The rule of each keyword, and their application to a value."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, Final

import msgspec

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.jsonschema.keywords import TYPES, Schema, get_type_names, resolve_ref
from everhold.core.jsonschema.messages import (
    describe_schema,
    format_value,
    join_path,
    list_enum_values,
)
from everhold.errors import AnswerRefused, BadSchema

#: The limit of nested schemas; only a schema that refers to itself can reach it.
DEPTH: Final = 150
#: The same for `accepts_text`, which need not be exact.
_NEAR: Final = 8

#: Formats of types that msgspec can decode: they are checked, because other text would be refused
#: after it was stored. Other formats are only descriptions.
FORMATS: Final[dict[str, Any]] = {
    "date-time": datetime,
    "date": date,
    "duration": timedelta,
    "decimal": re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}


def validate_value(value: JSON, schema: Schema, path: str = "answer") -> None:
    """Raises `AnswerRefused` with the path of the first misfit."""
    _check(schema, value, path, schema, 0)


def accepts_text(schema: Schema, root: Schema, depth: int = 0) -> bool:
    """Whether the schema may accept a string."""
    if isinstance(schema, bool):
        return schema
    if depth > _NEAR:
        return True

    def below(part: Schema) -> bool:
        return accepts_text(part, root, depth + 1)

    return (
        ("type" not in schema or "string" in get_type_names(schema["type"]))
        and (not (values := list_enum_values(schema)) or str in map(type, values))
        and ("$ref" not in schema or below(resolve_ref(schema["$ref"], root)))
        and all(below(part) for part in schema.get("allOf", ()))
        and all(
            any(below(part) for part in schema[word])
            for word in ("anyOf", "oneOf")
            if word in schema
        )
    )


def _check(schema: Schema, value: JSON, path: str, root: Schema, depth: int) -> None:
    if isinstance(schema, bool):
        if not schema:
            raise AnswerRefused(path, "absent", format_value(value))
        return
    # BadSchema, not a misfit: anyOf would catch a misfit and try the next alternative for ever
    if depth > DEPTH:
        raise BadSchema(path, f"nested deeper than {DEPTH} schemas")
    spot = _Spot(schema, path, root, depth)
    kind = type(value)
    for keyword, (concerns, rule) in RULES.items():
        if keyword in schema and (concerns is None or kind in concerns):
            rule(spot, schema[keyword], value)


class _Spot(msgspec.Struct, frozen=True, gc=False):
    """The state of a check: the current schema and the path of the value."""

    schema: dict[str, JSON]
    path: str
    root: Schema
    depth: int

    def here(self, schema: Schema, value: JSON) -> None:
        _check(schema, value, self.path, self.root, self.depth + 1)

    def inside(self, name: str | int, schema: Schema, value: JSON) -> None:
        _check(schema, value, join_path(self.path, name), self.root, self.depth + 1)

    def fits(self, schema: Schema, value: JSON) -> bool:
        try:
            self.here(schema, value)
        except AnswerRefused:
            return False
        return True

    def misfit(self, value: JSON, expected: str = "") -> AnswerRefused:
        return AnswerRefused(
            self.path, expected or describe_schema(self.schema, self.root), format_value(value)
        )


Rule = Callable[[_Spot, JSON, JSON], None]

# Rules about any value


def _type(spot: _Spot, wanted: JSON, value: JSON) -> None:
    if not any(type(value) in TYPES[name][1] for name in get_type_names(wanted)):
        raise spot.misfit(value)


def _enum(spot: _Spot, values: JSON, value: JSON) -> None:
    if not any(codec.is_same_json(one, value) for one in values):
        raise spot.misfit(value)


def _const(spot: _Spot, one: JSON, value: JSON) -> None:
    _enum(spot, [one], value)


def _ref(spot: _Spot, ref: JSON, value: JSON) -> None:
    spot.here(resolve_ref(ref, spot.root), value)


def _all_of(spot: _Spot, parts: JSON, value: JSON) -> None:
    for part in parts:
        spot.here(part, value)


def _any_of(spot: _Spot, parts: JSON, value: JSON) -> None:
    misfits = []
    for part in _rivals(spot, parts, value):
        try:
            return spot.here(part, value)
        except AnswerRefused as misfit:
            misfits.append(misfit)
    raise _closest(spot, misfits, value)


def _one_of(spot: _Spot, parts: JSON, value: JSON) -> None:
    misfits = []
    fitting = 0
    for part in _rivals(spot, parts, value):
        try:
            spot.here(part, value)
            fitting += 1
        except AnswerRefused as misfit:
            misfits.append(misfit)
    if fitting > 1:
        raise spot.misfit(value, f"only one of these: {describe_schema(spot.schema, spot.root)}")
    if not fitting:
        raise _closest(spot, misfits, value)


def _not(spot: _Spot, part: JSON, value: JSON) -> None:
    if spot.fits(part, value):
        raise spot.misfit(value, f"not {describe_schema(part, spot.root)}")


def _if(spot: _Spot, condition: JSON, value: JSON) -> None:
    spot.here(spot.schema.get("then" if spot.fits(condition, value) else "else", True), value)


def _rivals(spot: _Spot, parts: list[Schema], value: JSON) -> list[Schema]:
    """The alternatives that no tag rules out; the others would cost time and blur the message."""
    return [
        part for part in parts if not (type(value) is dict and _other_tag(part, value, spot.root))
    ]


def _other_tag(part: Schema, value: dict[str, JSON], root: Schema) -> bool:
    tags = _tags(part, root)
    return any(
        name in value and not codec.is_same_json(value[name], tag) for name, tag in tags.items()
    )


def _tags(part: Schema, root: Schema) -> dict[str, JSON]:
    """The properties with only one possible value."""
    if isinstance(part, dict) and "$ref" in part:
        part = resolve_ref(part["$ref"], root)
    found = part.get("properties", {}) if isinstance(part, dict) else {}
    listed = {name: list_enum_values(schema) for name, schema in found.items()}
    return {name: values[0] for name, values in listed.items() if len(values) == 1}


def _closest(spot: _Spot, misfits: list[AnswerRefused], value: JSON) -> AnswerRefused:
    """The most useful misfit: the one inside the value, if only one alternative got that far."""
    inside = [misfit for misfit in misfits if misfit.path != spot.path]
    return inside[0] if len(inside) == 1 else spot.misfit(value)


# Rules about numbers, strings and sizes


def _limit(holds: Callable[[Any, Any], bool], of: Callable[[Any], Any] | None = None) -> Rule:
    """A rule that compares the value, or its size, with the operand."""

    def rule(spot: _Spot, operand: JSON, value: JSON) -> None:
        if not holds(of(value) if of else value, operand):
            raise spot.misfit(value)

    return rule


def _divided(value: float, by: float) -> bool:
    from fractions import Fraction  # rarely needed, and slow to import

    # 0.3 is a multiple of 0.1, whatever floats say
    return Fraction(str(value)) % Fraction(str(by)) == 0


def _matches(value: str, pattern: str) -> bool:
    return re.search(pattern, value) is not None


def _formatted(value: str, form: str) -> bool:
    wanted = FORMATS.get(form)
    if isinstance(wanted, re.Pattern):
        return wanted.fullmatch(value) is not None
    return wanted is None or _converts(value, wanted)


def _encoded(value: str, encoding: str) -> bool:
    return encoding != "base64" or _converts(value, bytes)


def _converts(value: str, type_: Any) -> bool:
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


# Rules about lists


def _prefix(spot: _Spot, parts: JSON, value: JSON) -> None:
    for index, (part, item) in enumerate(zip(parts, value, strict=False)):
        spot.inside(index, part, item)


def _items(spot: _Spot, part: JSON, value: JSON) -> None:
    for index in range(len(spot.schema.get("prefixItems", ())), len(value)):
        spot.inside(index, part, value[index])


def _unique(spot: _Spot, wanted: JSON, value: JSON) -> None:
    seen: set[bytes] = set()
    for index, item in enumerate(value if wanted else ()):
        content = msgspec.json.encode(item, order="deterministic")
        if content in seen:
            raise AnswerRefused(
                join_path(spot.path, index), "unlike the items before it", format_value(item)
            )
        seen.add(content)


def _contains(spot: _Spot, part: JSON, value: JSON) -> None:
    count = sum(spot.fits(part, item) for item in value)
    least = spot.schema.get("minContains", 1)
    most = spot.schema.get("maxContains")
    if count < least or (most is not None and count > most):
        limits = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise spot.misfit(value, f"a list with {limits} of {describe_schema(part, spot.root)}")


# Rules about objects


def _required(spot: _Spot, wanted: JSON, value: JSON) -> None:
    for name in wanted:
        if name not in value:
            raise spot.misfit(value, f"an object with {name!r}")


def _properties(spot: _Spot, parts: JSON, value: JSON) -> None:
    for name, part in parts.items():
        if name in value:
            spot.inside(name, part, value[name])


def _pattern_properties(spot: _Spot, parts: JSON, value: JSON) -> None:
    for pattern, part in parts.items():
        for name in value:
            if _matches(name, pattern):
                spot.inside(name, part, value[name])


def _additional(spot: _Spot, part: JSON, value: JSON) -> None:
    named = spot.schema.get("properties", {})
    patterns = spot.schema.get("patternProperties", {})
    for name in value:
        if name not in named and not any(_matches(name, pattern) for pattern in patterns):
            spot.inside(name, part, value[name])


def _names(spot: _Spot, part: JSON, value: JSON) -> None:
    for name in value:
        _check(part, name, f"the key {name!r} of {spot.path}", spot.root, spot.depth + 1)


_NUMBERS = TYPES["number"][1]
_STRINGS = TYPES["string"][1]
_LISTS = TYPES["array"][1]
_OBJECTS = TYPES["object"][1]

#: Each keyword with the types it applies to (None: all) and its rule. Cheap rules are first.
RULES: Final[dict[str, tuple[frozenset[type] | None, Rule]]] = {
    "type": (None, _type),
    "const": (None, _const),
    "enum": (None, _enum),
    "minimum": (_NUMBERS, _limit(operator.ge)),
    "maximum": (_NUMBERS, _limit(operator.le)),
    "exclusiveMinimum": (_NUMBERS, _limit(operator.gt)),
    "exclusiveMaximum": (_NUMBERS, _limit(operator.lt)),
    "multipleOf": (_NUMBERS, _limit(_divided)),
    "minLength": (_STRINGS, _limit(operator.ge, len)),
    "maxLength": (_STRINGS, _limit(operator.le, len)),
    "pattern": (_STRINGS, _limit(_matches)),
    "format": (_STRINGS, _limit(_formatted)),
    "contentEncoding": (_STRINGS, _limit(_encoded)),
    "minItems": (_LISTS, _limit(operator.ge, len)),
    "maxItems": (_LISTS, _limit(operator.le, len)),
    "prefixItems": (_LISTS, _prefix),
    "items": (_LISTS, _items),
    "uniqueItems": (_LISTS, _unique),
    "contains": (_LISTS, _contains),
    "required": (_OBJECTS, _required),
    "minProperties": (_OBJECTS, _limit(operator.ge, len)),
    "maxProperties": (_OBJECTS, _limit(operator.le, len)),
    "propertyNames": (_OBJECTS, _names),
    "properties": (_OBJECTS, _properties),
    "patternProperties": (_OBJECTS, _pattern_properties),
    "additionalProperties": (_OBJECTS, _additional),
    "$ref": (None, _ref),
    "allOf": (None, _all_of),
    "anyOf": (None, _any_of),
    "oneOf": (None, _one_of),
    "not": (None, _not),
    "if": (None, _if),
}
