"""Verbs on durable values: how a feature answers the state queries of a namespace of its own.

A program asks by a state query, as for any durable value. The engine answers it within the step,
records the answer, and commits the writes with the step.
"""

from __future__ import annotations

from typing import Protocol

from everhold.core.codec import JSON
from everhold.core.query import Query


class ValueAccess(Protocol):
    """The durable values of one step: what is stored, and what the step has written."""

    async def found(self, namespace: str, key: str) -> list[JSON] | None:
        """A value as a list of one; None if it is not set."""
        ...

    async def scan(self, namespace: str, prefix: str) -> list[tuple[str, JSON]]:
        """The keys with a prefix and their values, in the order of the keys."""
        ...

    async def put(self, namespace: str, key: str, value: JSON) -> None: ...


class StepVerbs(Protocol):
    """The verbs during one step."""

    async def answer(self, query: Query) -> JSON:
        """The answer to a state query; a `UsageError` becomes the answer's error."""
        ...

    def committed(self) -> None:
        """The writes of the step are stored. MUST NOT raise."""
        ...


class ValueVerbs(Protocol):
    """The verbs of one namespace."""

    def begin(self, values: ValueAccess, at: float) -> StepVerbs:
        """The verbs for a step at this time."""
        ...
