"""Answerers: objects that answer queries in this process, such as models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import Kind, Query, Usage


class Answerer(ABC):
    """Answers queries in this process. Only `answer` is required.

    A plain async function of a query is an answerer too: `everhold.models.FunctionModel` wraps it.
    """

    #: The kinds of query that it answers.
    kinds: frozenset[Kind] = frozenset({Kind.LLM})

    @abstractmethod
    async def answer(self, query: Query, session_id: str) -> Any:
        """Return the answer's value, or an `everhold.Answer` with usage.

        An exception is an answer too: the program sees an error. `NotAllowed`, `BadSetting`,
        `MissingExtra`, `ProviderMismatch` and `ProviderUnconfigured` leave the query open instead.
        """

    def takes(self, query: Query) -> bool:
        """Whether it answers this query, which has one of its kinds. Otherwise the query stays
        open.
        """
        return True

    def check(self) -> None:  # noqa: B027  nothing to check, by default
        """Raise if it cannot work in this process. A runtime calls it before it opens."""

    async def close(self) -> None:  # noqa: B027  nothing to close, by default
        """Close what it opened on the running event loop. A runtime calls it when it closes;
        `answer` may be called again later.
        """


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An answer's value, and its usage if it is known."""

    value: JSON
    usage: Usage | None = None
