"""Answerers: those who answer questions of programs now, such as models.

What an answerer says when it knows more than the value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Kind, Query, Usage


class Answerer(ABC):
    """Answers questions in this process. Only `answer` has to be written.

    A plain async function of a query is an answerer too: `everhold.models.FunctionModel` wraps it.
    """

    #: The kinds of query it answers.
    kinds: frozenset[Kind] = frozenset({Kind.LLM})

    @abstractmethod
    async def answer(self, query: Query, session_id: str) -> Any:
        """Return the answer's value, or an `everhold.Answer` with usage.

        Raising is an answer too: the program sees an error. `NotAllowed`, `BadSetting`,
        `MissingExtra`, `ProviderMismatch` and `ProviderUnconfigured` leave the query open instead.
        """

    def takes(self, query: Query) -> bool:
        """Whether it answers this query, which is of one of its kinds; others stay open."""
        return True

    def check(self) -> None:  # noqa: B027  nothing to check, by default
        """Raise what keeps it from working in this process. A runtime calls it before it opens."""

    async def close(self) -> None:  # noqa: B027  nothing to close, by default
        """Close what it opened on the running event loop. A runtime calls it when it closes; it may
        be asked again later.
        """


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An answer's value, and the tokens it cost as far as the answerer counted them."""

    value: JSON
    usage: Usage | None = None
