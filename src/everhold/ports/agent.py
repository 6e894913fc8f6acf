"""What the loop of an agent is written against, beyond what every program has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec import UnsetType

from everhold.core.codec import JSON
from everhold.core.graph import Node
from everhold.core.journal import DeliveryNotes
from everhold.core.query import Kind, Rerun, Usage
from everhold.core.turn import SettledTurn
from everhold.ports.context import Context
from everhold.ports.program import Call


class AgentContext(Context, Protocol):
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

        `effect` does a `call`; for a question to a model it gives the query in full, of which
        `args` is the view.
        """
        ...

    def keep_with(self, keep: Callable[[JSON], JSON]) -> None:
        """Have what somebody outside answers written down as `keep` returns it."""
        ...

    def note(
        self, *nodes: Node, leaf: str | UnsetType | None = ..., settled: SettledTurn | None = None
    ) -> None:
        """Add to the conversation, with the step that is under way."""
        ...

    async def delegate(
        self, call: Call[Any], *, title: str = "", source: str = ""
    ) -> tuple[int, Any]:
        """Begin a child session, and return the number of the query with how the child ended.

        What it costs is entered under `source`; it is cancelled as soon as nobody waits for it.
        """
        ...

    cost: Usage | None  #: what the last answer to `put` or `delegate` cost, if that was counted

    @property
    def parent(self) -> str | None:
        """The session that began this one, if one did."""
        ...

    def recorded(self) -> DeliveryNotes | None:
        """What the step that is replayed noted; None where nothing is replayed."""
        ...

    def fact(self, name: str, value: JSON, default: JSON = None) -> JSON:
        """Something that the loop takes for given: `value`, which is noted if it is new; on replay,
        what was noted.

        So may an agent's author change a limit or a plugin without changing what was said before.
        """
        ...

    def after(self, effect: Callable[[], Any]) -> None:
        """Do something once this step is kept. It is not done on replay, and not if the process
        dies between.
        """
        ...
