"""The options that hold in a frame of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everhold.agents.prompt import parse_prompt_layer
from everhold.core.codec import JSON, to_plain
from everhold.errors import BadArguments


def check_options(options: Mapping[str, JSON]) -> dict[str, JSON]:
    """Options as they are kept; raises `BadValue` or `BadArguments` for what cannot be."""
    found: Any = to_plain(dict(options), "options")
    parse_prompt_layer(found.get("prompt"))
    for name in ("max_turns", "max_tokens"):
        most = found.get(name)
        if most is not None and (type(most) is not int or most < 1):
            raise BadArguments("options", f"{name} should be 1 or more, got {most!r}")
    if not isinstance(found.get("model") or "", str):
        raise BadArguments("options", "model should be the name of one")
    return dict(found)
