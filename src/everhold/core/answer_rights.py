"""Who may answer which question: approvals, for example, are answered by people only.

A question for a person (`approval`, `input`) is never answered by a model, whatever stands between
the two.
"""

from __future__ import annotations

from typing import Final

from everhold.core.query import FOR_PEOPLE, Kind, Query
from everhold.errors import NotAllowed

Kinds = frozenset[Kind]

MODEL: Final[Kinds] = frozenset({Kind.LLM})
PREPARED: Final[Kinds] = MODEL | FOR_PEOPLE  # a person wrote the answers down beforehand


def refuse_others(kinds: Kinds, query: Query) -> None:
    """Raise `NotAllowed` for a query that is not of these kinds."""
    if query.kind not in kinds:
        raise NotAllowed(
            f"this answerer may not answer {query.id}, which is of the kind {query.kind}",
            "Leave it open: it is in the inbox, for whoever may answer it.",
        )
