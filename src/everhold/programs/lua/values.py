"""What goes into a Lua state and comes out of it: bytes, numbers and truth values, and JSON for
everything else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import QueryAnswer
from everhold.errors import ChildFailed, Expired, OutcomeUnknown

#: Names in a ctx that are handed over one by one; a longer one is JSON.
_MANY: Final = 32

encode_lua_json: Final = msgspec.json.Encoder().encode
decode_lua_json: Final = msgspec.json.Decoder().decode


def encode_lua_ctx(ctx: dict[str, JSON]) -> tuple[Any, ...]:
    """A ctx for an `opening`: its JSON, or nothing and then names and values, which is cheaper for
    both sides.
    """
    if len(ctx) > _MANY:
        return (encode_lua_json(ctx),)
    flat: list[Any] = [None]
    for name, value in ctx.items():
        kind = type(value)
        if kind is str:
            value = value.encode()
        elif kind is not int and kind is not float and kind is not bool:
            return (encode_lua_json(ctx),)
        flat += (name.encode(), value)
    return tuple(flat)


def encode_model_answer(value: JSON) -> bytes:
    """An answer of a model as Lua programs get it, which is always text."""
    return value.encode() if type(value) is str else encode_lua_json(value)


def format_answer_error(answer: QueryAnswer) -> bytes:
    """The words of an error that came instead of a value."""
    error = answer.error or {}
    code = error.get("code", "")
    message = error.get("message", "")
    if code == Expired.code:
        message = str(Expired(answer.id))
    elif code == OutcomeUnknown.code:
        message = str(OutcomeUnknown(message))
    elif code == ChildFailed.code:
        message = str(ChildFailed(error.get("session_id", ""), error.get("state", ""), message))
    return message.encode("utf-8", "backslashreplace")


def decode_lua_text(given: bytes) -> str:
    """What a program said, as text that JSON can hold."""
    return given.decode("utf-8", "backslashreplace")


def derive_lua_seed(seed: str, path: str) -> tuple[int, int]:
    """Two numbers for the dice of one strand."""
    drawn = sha256(f"{seed}/{path}".encode()).digest()
    return int.from_bytes(drawn[:8], "big", signed=True), int.from_bytes(
        drawn[8:16], "big", signed=True
    )
