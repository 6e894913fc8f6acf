"""Which durable values a Lua program may read and write.

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
from typing import Final

from everhold.core.codec import JSON
from everhold.core.query import make_own_namespace

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
