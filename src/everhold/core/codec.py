"""Encodes values as JSON text, and decodes them.

Rules
  1. Values that JSON would silently change are refused with their path: tuples, sets, NaN,
     infinities, keys that are not strings, lone surrogates, integers outside 64 bits, objects.
  2. `to_plain(value)` returns the value as it will be read back, so that a program sees the same
     value live and on replay.
  3. Every stored record carries `FORMAT`. A reader checks this number before it decodes the rest.
"""

from __future__ import annotations

import math
from typing import Any, Final
from zlib import crc32

import msgspec

from everhold.errors import BadValue

#: The format of stored and exported records. A migration raises it; no number is used twice.
FORMAT: Final = 1

JSON = Any  # a value that `to_plain` accepts

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_LIMIT: Final = 2**63
_DEPTH: Final = 200


def dumps(value: JSON) -> str:
    """Encodes a value that is known to be plain."""
    return _encode(value).decode()


def loads(text: str | bytes) -> JSON:
    """Decodes JSON text; raises `BadValue` if it is malformed."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadValue("the text", f"not JSON ({error})") from None


def to_plain(value: object, path: str = "the value") -> JSON:
    """Returns `value` as replay will see it; raises `BadValue` with the path of a part that JSON
    would change.
    """
    kind = type(value)
    if kind is str:
        _text(value, path)  # type: ignore[arg-type]
        return value
    _walk(value, path, 0)
    return _decode(_encode(value)) if kind is dict or kind is list else value


def is_same_json(one: JSON, other: JSON) -> bool:
    """Whether two plain values have the same content (True is not 1, and 1.0 is not 1)."""
    return bool(_encode(one) == _encode(other)) or _sorted(one) == _sorted(other)


def _sorted(value: JSON) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def _text(value: str, path: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadValue(path, "a lone surrogate is not text") from None


def _walk(value: object, path: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _text(value, path)  # type: ignore[arg-type]
    elif value is None or kind is bool:
        pass
    elif kind is int:
        if not -_LIMIT <= value < _LIMIT:  # type: ignore[operator]
            raise BadValue(path, "an integer outside 64 bits; store it as text")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise BadValue(path, f"{value} is not a JSON number")
    elif depth >= _DEPTH:
        raise BadValue(path, f"nested deeper than {_DEPTH} levels")
    elif kind is list:
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _walk(item, f"{path}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise BadValue(path, f"the key {key!r} is {_name(key)}, not text")
            _text(key, f"a key of {path}")
            _walk(item, f"{path}.{key}", depth + 1)
    else:
        forgot = "; await it" if hasattr(kind, "__await__") else ""
        raise BadValue(path, f"{_name(value)} would change on the way{forgot}")


def _name(value: object) -> str:
    kind = type(value)
    return f"{'an' if kind.__name__[0] in 'aeiouAEIOU' else 'a'} {kind.__name__}"


def checksum_row(*parts: object) -> int:
    """A checksum of a stored row, so that a damaged row is never used as an answer."""
    return crc32("\x1f".join(map(str, parts)).encode())
