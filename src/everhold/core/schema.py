"""Types as JSON Schemas, and the validation of answers and arguments against types.

A program names the type of an answer; the query stores its schema, so that a process without the
program can check an answer. `jsonschema` does the checking; this module converts between types,
schemas and plain values.

Rules
  1. The schema of a type depends only on the type, not on the process, the order of imports or the
     version of Python.
  2. Pydantic models are recognised by their methods; pydantic is never imported.
  3. `decode_value_as` can read every value that `encode_value_as` has encoded.
  4. Without a type, or with a type of JSON, only plain JSON is accepted: no value is converted
     silently.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.jsonschema import (
    Schema,
    accepts_text,
    check_schema,
    describe_schema,
    format_value,
    join_path,
    validate_value,
)
from everhold.errors import AnswerRefused, BadSchema, BadValue

__all__ = [
    "NonNegativeInt",
    "PositiveInt",
    "PositiveSeconds",
    "Schema",
    "Seconds",
    "check_schema",
    "decode_value_as",
    "describe_misfit",
    "encode_value_as",
    "fits_type",
    "parse_answer",
    "schema_of",
    "validate_value",
]

#: Types of arguments, for `describe_misfit`.
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
PositiveSeconds = Annotated[float, msgspec.Meta(gt=0)]

_TYPED: Final = (
    "Use a dataclass, msgspec or pydantic model, TypedDict, NamedTuple, Enum,"
    " Literal or JSON's types."
)
_FENCE: Final = re.compile(r"```[\w+-]*\s*")  # its first line
_EXPECTED: Final = re.compile(r"(?:Expected|Input should be) (.+)")
# what follows, up to a last backtick, is where it is
_PLACE: Final = re.compile(r" - at `(?:key in )?\$")


def schema_of(type_: Any) -> dict[str, JSON]:
    """The JSON Schema of a type, read-only; a dict is used as a schema itself. Raises `BadSchema`
    if the type has none.
    """
    if isinstance(type_, dict):
        check_schema(type_)
        return codec.to_plain(type_, "the schema")  # type: ignore[no-any-return]
    try:
        # `int | str` equals `str | int` but has another schema; the text distinguishes them
        return _remembered(type_, repr(type_))
    except TypeError:  # not hashable
        return _generated(type_)


def parse_answer(answer: object, schema: dict[str, JSON] | None) -> JSON:
    """The value to store for an answer; raises `AnswerRefused`. Text is parsed as JSON if the
    schema accepts no text.
    """
    value = codec.to_plain(answer, "answer")
    if schema is None:
        if not isinstance(value, str):
            raise AnswerRefused("answer", "a string", format_value(value))
        return value
    if isinstance(value, str) and not accepts_text(schema, schema):
        try:
            parsed = codec.loads(_unfenced(value.strip()))
        except BadValue:
            raise AnswerRefused(
                "answer",
                describe_schema(schema, schema),
                f"text that is not JSON: {format_value(value)}",
            ) from None
        value = codec.to_plain(parsed, "answer")
    validate_value(value, schema)
    return value


def decode_value_as(value: JSON, type_: Any, path: str = "answer") -> Any:
    """Converts a plain value to a type; raises `AnswerRefused`."""
    if _is_open(type_):
        return value
    if isinstance(type_, dict):
        validate_value(value, type_, path)
        return value
    if _is_model(type_) or _is_adapter(type_):
        return _validated(type_, value, path)
    try:
        return msgspec.convert(value, type_, str_keys=True, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        what, where = _parted(str(error))
        raise _misfit(path + where, what, "another value", type_) from None
    except TypeError as error:
        raise _unsupported(type_, error) from None


def encode_value_as(value: object, type_: Any, path: str) -> JSON:
    """Converts a value of a type to plain JSON; raises `BadValue` with the path of a misfit."""
    if _is_open(type_) or _is_plain(type_):
        return codec.to_plain(value, path)
    try:
        plain = codec.to_plain(
            value if isinstance(type_, dict) else _built(value, type_, path), path
        )
        decode_value_as(plain, type_, path)
    except AnswerRefused as error:
        raise BadValue(error.path, f"it must be {error.expected}, not {error.got}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadValue(path, f"it cannot be represented in JSON ({error})") from None
    return plain


def fits_type(value: object, type_: Any) -> bool:
    """Whether msgspec accepts a value as a type, including the constraints of `msgspec.Meta`.

    For checks of arguments: here a bool is not a number, and NaN is in no range.
    """
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return False
    return True


def describe_misfit(value: object, type_: Any) -> str | None:
    """Why a value does not fit a type, as "must be an integer ≥ 1, got 0"; None if it fits.

    The type alone says what is checked and what the message demands.
    """
    if fits_type(value, type_):
        return None
    schema = schema_of(type_)
    return f"must be {describe_schema(schema, schema)}, got {value!r:.100}"


def _unfenced(text: str) -> str:
    """The text inside a Markdown code fence, if the fence is the whole text."""
    # Not one regular expression for the whole: it could backtrack for hours.
    first, _, rest = text.partition("\n")
    return rest[:-3].strip() if rest.endswith("```") and _FENCE.fullmatch(first) else text


# From a type to its schema


@lru_cache(maxsize=1024)
def _remembered(type_: Any, text: str) -> dict[str, JSON]:
    return _generated(type_)


def _generated(type_: Any) -> dict[str, JSON]:
    try:
        schema = codec.to_plain(_raw(type_), f"the schema of {_name(type_)}")
    except (TypeError, ValueError, NameError, AttributeError, RuntimeError) as error:
        raise _unsupported(type_, error) from None
    check_schema(schema)
    return schema  # type: ignore[no-any-return]


def _raw(type_: Any) -> dict[str, Any]:
    if _is_adapter(type_):
        return type_.json_schema()  # type: ignore[no-any-return]
    if _is_model(type_):
        return type_.model_json_schema()  # type: ignore[no-any-return]
    msgspec.json.Decoder(type_, dec_hook=_decoded)  # refuses a type with a schema but no decoder
    lifted: dict[str, Any] = {}

    def of_model(model: Any) -> dict[str, Any]:
        if not _is_model(model):
            raise NotImplementedError
        part: dict[str, Any] = model.model_json_schema()
        _add(lifted, part.pop("$defs", {}))
        return part

    schema = msgspec.json.schema(type_, schema_hook=of_model)
    for part in schema.get("$defs", {}).values():
        if "description" in part:  # a docstring, whose indentation differs between Pythons
            part["description"] = " ".join(part["description"].split())
    if lifted:
        _add(schema.setdefault("$defs", {}), lifted)
    return schema


def _add(defs: dict[str, Any], more: dict[str, Any]) -> None:
    for name, part in more.items():
        if defs.setdefault(name, part) != part:
            raise TypeError(f"two types in it have the name {name}")


def _unsupported(type_: Any, error: Exception) -> BadSchema:
    lines = [line for line in str(error).splitlines() if not line.startswith("For further")]
    refusal = BadSchema(f"the type {_name(type_)}", lines[-1])
    refusal.hint = _TYPED
    return refusal


def _name(type_: Any) -> str:
    return type_.__qualname__ if isinstance(type_, type) and not get_args(type_) else repr(type_)


# What kind of type it is


def _is_open(type_: Any) -> bool:
    return type_ is None or type_ is Any or type_ is object


def _is_model(type_: Any) -> bool:
    return isinstance(type_, type) and hasattr(type_, "model_json_schema")


def _is_adapter(type_: Any) -> bool:
    return hasattr(type_, "validate_json") and hasattr(type_, "dump_python")


def _is_plain(type_: Any) -> bool:
    """Whether every value of the type is JSON already."""
    match get_origin(type_) or type_:
        case origin if origin is Annotated:
            return _is_plain(get_args(type_)[0])
        case origin if origin is Literal:
            return all(type(value) in (str, int, bool, NoneType) for value in get_args(type_))
        case origin if origin is dict:
            name, item = get_args(type_) or (str, Any)
            return name is str and (_is_open(item) or _is_plain(item))
        case origin if origin in (list, Union, UnionType):
            return all(_is_open(item) or _is_plain(item) for item in get_args(type_))
        case origin:
            return origin in (str, int, float, bool, NoneType)


# Between values and plain values


def _validated(type_: Any, value: JSON, path: str) -> Any:
    validate = type_.validate_json if _is_adapter(type_) else type_.model_validate_json
    try:
        return validate(codec.dumps(value))
    except ValueError as error:
        first = error.errors()[0]  # type: ignore[attr-defined]
        for step in first["loc"]:
            path = join_path(path, step)
        raise _misfit(path, first["msg"], format_value(first["input"]), type_) from None


def _decoded(type_: Any, value: JSON) -> Any:
    """Decodes a pydantic model inside a type of msgspec."""
    if not _is_model(type_):
        raise _unsupported(type_, TypeError("it has no schema"))
    return _validated(type_, value, type_.__name__)


def _parted(message: str) -> tuple[str, str]:
    """Splits an error message of msgspec into the misfit and its path."""
    # Both may quote any text: the path is from the first " - at `" to the last backtick.
    found = _PLACE.search(message)
    if found is None or not message.endswith("`"):
        return message, ""
    return message[: found.start()], message[found.end() : -1]


def _misfit(path: str, message: str, got: str, type_: Any) -> AnswerRefused:
    if said := _EXPECTED.fullmatch(message):
        expected, _, other = said[1].partition(", got ")
        return AnswerRefused(path, expected, other or got)
    return AnswerRefused(path, f"what {_name(type_)} accepts", f"an error: {message}")


def _built(value: object, type_: Any, path: str) -> Any:
    if _is_adapter(type_):
        return type_.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)

    def encoded(inner: Any) -> Any:
        if _is_model(type(inner)):
            return inner.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
        raise BadValue(
            path,
            f"it contains {_article(type(inner).__name__)}, which cannot be represented in JSON",
        )

    return _lists(msgspec.to_builtins(value, str_keys=True, enc_hook=encoded))


def _lists(value: Any) -> Any:
    """The value with lists instead of tuples, which msgspec does not convert."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _article(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
