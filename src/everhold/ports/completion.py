"""Direct completions: a model asked once, from within the work of a session (row 30).

What is asked here is a part of the effect that asks it: a replay has the effect's result and asks
nobody, and what it cost is entered under the source of the effect (`tool:<name>` for a tool).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from everhold.core.codec import JSON, to_plain
from everhold.core.query import MAX_TOKENS, Kind, Query
from everhold.core.schema import decode_value_as, schema_of
from everhold.errors import ForeignCall


class Completer(Protocol):
    """Asks a model for the session whose work is under way."""

    async def complete(self, query: Query) -> JSON:
        """What it said; raises `AnswerFailed` if it could not be asked."""
        ...


COMPLETER: ContextVar[Completer] = ContextVar("everhold_completer")


async def complete(
    prompt: str,
    *,
    system: str | None = None,
    returns: Any = None,
    max_tokens: int = MAX_TOKENS,
    **options: JSON,
) -> Any:
    """Ask a model once. `returns` names the type of the answer, which is else its words."""
    completer = COMPLETER.get(None)
    if completer is None:
        raise ForeignCall("a completion outside the work of a session")
    query = Query(
        0,
        "",
        prompt,
        Kind.LLM,
        system=system,
        max_tokens=max_tokens,
        options=to_plain(options, "options") or None,
        schema=None if returns is None else schema_of(returns),
    )
    said = await completer.complete(query)
    return said if returns is None else decode_value_as(said, returns)
