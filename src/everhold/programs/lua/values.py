"""What goes into a Lua state and comes out of it: bytes, numbers and truth values, and JSON for
everything else.

Which durable values a Lua program may read and write.

    lua/<name>                the namespace of the program: `ctx._ns` is the name, or "default"
    <name>                    the same, where the settings share that name with Python programs
    fork-<session>-<strand>   what one child of an `alc.fork` keeps for itself
    card/…                    what `alc.card` keeps

Rules
  1. The process that begins a session decides its namespace. What a Lua state or a worker says does
     not change it.
  2. No name that a program may use holds a "/", so that no program reaches the namespace of the
     other language.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import QueryAnswer, make_own_namespace
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


CARD_NAMESPACES: Final = frozenset(
    {"card/id", "card/body", "card/index", "card/samples", "card/alias"}
)


def get_namespace_name(ctx: Mapping[str, JSON]) -> str:
    """The name that a program's ctx gives to its namespace."""
    name = ctx.get("_ns")
    return name if isinstance(name, str) else "default"


def may_use_namespace(args: JSON, space: str, session_id: str) -> bool:
    """Whether a session whose program has this space may ask for durable values with these
    arguments.
    """
    namespace = args.get("in") if isinstance(args, dict) else None
    if not isinstance(namespace, str):
        return False
    return (
        namespace == space
        or namespace in CARD_NAMESPACES
        or namespace.startswith(make_own_namespace(session_id, ""))
    )
