"""Who may answer which question: approvals, for example, are answered by people only.

A question for a person (`approval`, `input`) is never answered by a model, whatever stands between
the two.
"""

from __future__ import annotations

from typing import Final

from everhold.core.query import FOR_PEOPLE, Kind, Query
from everhold.errors import NotAllowed

Kinds = frozenset[Kind]

MODEL_KINDS: Final[Kinds] = frozenset({Kind.LLM})
SCRIPTED_KINDS: Final[Kinds] = (
    MODEL_KINDS | FOR_PEOPLE
)  # a person wrote the answers down beforehand


def refuse_other_kinds(kinds: Kinds, query: Query) -> None:
    """Raise `NotAllowed` for a query that is not of these kinds."""
    if query.kind not in kinds:
        raise NotAllowed(
            f"this answerer may not answer {query.id}, which is of the kind {query.kind}",
            "Leave it open: it is in the inbox, for whoever may answer it.",
        )
