"""Conversion of values for Lua states, and the namespaces of durable values that Lua may use.

Bytes, numbers and booleans are passed as they are, everything else as JSON.

    lua/<name>                the namespace of the program: `ctx._ns` is the name, or "default"
    <name>                    the same, if the settings share this name with Python programs
    fork-<session>-<path>     the values of one child of an `alc.fork`
    card                      the verbs of `alc.card`, which are answered by `everhold.cards`

Rules
  1. The process that starts a session decides its namespace. A Lua state or a worker cannot change
     it.
  2. A name that a program chooses contains no "/", so no program reaches the namespace of the other
     language.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import QueryAnswer, make_own_namespace
from everhold.errors import ChildFailed, Expired, OutcomeUnknown

#: A ctx with more keys than this is passed as JSON.
_MANY: Final = 32

encode_lua_json: Final = msgspec.json.Encoder().encode
decode_lua_json: Final = msgspec.json.Decoder().decode


def encode_lua_ctx(ctx: dict[str, JSON]) -> tuple[Any, ...]:
    """Arguments for `make_vm_opening`: JSON, or None, names and values, which is cheaper."""
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
    """A model's answer for a Lua program, always text."""
    return value.encode() if type(value) is str else encode_lua_json(value)


def format_answer_error(answer: QueryAnswer) -> bytes:
    """The message of an answer with an error."""
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
    """Text of a program, with invalid UTF-8 escaped so that JSON accepts it."""
    return given.decode("utf-8", "backslashreplace")


def derive_lua_seed(seed: str, path: str) -> tuple[int, int]:
    """Two numbers that seed `math.random` of one coroutine."""
    drawn = sha256(f"{seed}/{path}".encode()).digest()
    return int.from_bytes(drawn[:8], "big", signed=True), int.from_bytes(
        drawn[8:16], "big", signed=True
    )


#: The namespace of the verbs of cards. The values of cards have other namespaces.
CARD_NAMESPACE: Final = "card"


def get_namespace_name(ctx: Mapping[str, JSON]) -> str:
    """The name that a program's ctx gives to its namespace."""
    name = ctx.get("_ns")
    return name if isinstance(name, str) else "default"


def may_use_namespace(args: JSON, space: str, session_id: str) -> bool:
    """Whether a session with this namespace may make a state query with these arguments."""
    namespace = args.get("in") if isinstance(args, dict) else None
    if not isinstance(namespace, str):
        return False
    return namespace in (space, CARD_NAMESPACE) or namespace.startswith(
        make_own_namespace(session_id, "")
    )
