"""What the loop of an agent is written against, beyond what every program has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import UnsetType

from everhold.core.codec import JSON
from everhold.core.graph import Node
from everhold.core.query import Kind, Rerun
from everhold.core.turn import Settled
from everhold.ports.context import Context


class Stage(Context, Protocol):
    """`ctx` for the loop of an agent."""

    async def put(
        self,
        kind: Kind,
        effect: Callable[[], Any] | None = None,
        *,
        name: str = "",
        args: JSON = None,
        prompt: str = "",
        schema: dict[str, JSON] | None = None,
        options: dict[str, JSON] | None = None,
        rerun: Rerun = ...,
        timeout: float | None = None,
        to: str | None = None,
    ) -> tuple[int, Any]:
        """Ask something, and return the number of the query with its answer.

        `effect` does a `call`; for a question to a model it gives the query in full, of which `args` is the view.
        """
        ...

    def note(self, *nodes: Node, leaf: str | UnsetType | None = ..., settled: Settled | None = None) -> None:
        """Add to the conversation, with the step that is under way."""
        ...
