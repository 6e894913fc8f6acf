"""The agent and its loop as their parts see them: protocols that keep the parts independent of the
loop.

`AgentLoop` is the only `LoopState`, and `Agent` the only `AgentDefinition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from everhold.agents.plugin_host import Decision, PluginHost
from everhold.agents.tool_calls import Policy, Toolbox
from everhold.core.codec import JSON
from everhold.core.graph import Graph, ModelView, Node
from everhold.core.message import Role
from everhold.core.turn import FrameOptions
from everhold.hooks import Contribute, Plugin
from everhold.ports.code import CodeExecutor
from everhold.ports.context import AgentContext
from everhold.ports.process_environment import ProcessEnvironment
from everhold.ports.tool import Tool, ToolSource
from everhold.ports.tool_services import INJECTED_ROLES

#: An input, with the number of the query that received it.
HeardInput = tuple[int | None, dict[str, JSON]]


def get_input_role(said: dict[str, JSON]) -> Role:
    """The role of an input: a user's, unless the host gave another one."""
    role = said.get("role")
    return Role(str(role)) if role in INJECTED_ROLES else Role.USER


class AgentDefinition(Protocol):
    """An agent, as its author defined it."""

    model: str | None
    instructions: str
    tools: tuple[Tool, ...]
    extra_tools: tuple[Tool, ...]
    search_above: int
    plugins: tuple[Plugin, ...]
    policy: tuple[Policy, ...]
    subagents: dict[str, Any]
    executors: dict[str, CodeExecutor]
    sources: tuple[ToolSource, ...]
    returns: Any
    max_turns: int
    max_tokens: int
    concurrency: int
    on_unavailable: str | None
    options: dict[str, JSON]
    environment: ProcessEnvironment

    def __call__(self, *args: Any, **more: Any) -> Any:
        """A call of the agent, as of any program."""
        ...


class ChildPlace(Protocol):
    """The position of a subagent's session below others."""

    @property
    def path(self) -> list[str]:
        """The names of the agents from the top down."""
        ...

    def list_above(self, parent: str) -> list[str]:
        """The sessions above."""
        ...


class ModelAsker(Protocol):
    """Asks the model of a conversation."""

    context: int  # tokens of the context at the last model call

    def told(self) -> str | None:
        """The prompt node: the current one, or a new one if the prompt has changed."""
        ...

    def told_for(self, options: dict[str, JSON], prompt: str | None) -> str | None:
        """The prompt node of a model call with options of its own; `prompt` is the one before."""
        ...

    async def ask(self, view: ModelView, options: dict[str, JSON]) -> tuple[int, JSON]:
        """Ask the model; returns the query number and the reply."""
        ...


class LoopState(Protocol):
    """One conversation, as its turns, frames and model calls see it."""

    ctx: AgentContext
    agent: AgentDefinition
    place: ChildPlace | None  # of a subagent
    graph: Graph
    plugged: PluginHost
    hooks: list[str]
    inner_results: bool
    toolbox: Toolbox
    options: FrameOptions
    turn: int
    rounds: int
    most: int
    turn_options: dict[str, JSON]
    contributions: list[Contribute]
    waiting: list[HeardInput]
    taken: list[str]
    ordinal: int
    switched: int
    instructions: str

    @property
    def models(self) -> ModelAsker: ...

    @property
    def effective(self) -> dict[str, JSON]:
        """The current options."""
        ...

    @property
    def tip(self) -> str: ...

    async def open(self) -> None: ...

    async def refresh(self) -> list[str]: ...

    async def learn_events(self) -> None: ...

    async def decide(
        self, hook: str, given: Sequence[tuple[str, tuple[Any, ...]]] = ..., **where: bool
    ) -> list[Decision]:
        """Ask the plugins."""
        ...

    def tell(self, hook: str, *arguments: Any) -> None:
        """Notify the plugins."""
        ...

    def land(self) -> bool:
        """Add the messages and nodes of tools and plugins."""
        ...

    def add(self, node: Node, answers: dict[int, JSON] | None = None) -> Node:
        """Add a node at the tip."""
        ...

    def say(self, role: Role, q: int | None, content: JSON) -> None:
        """Add a message."""
        ...

    def give_up(self, why: str) -> None:
        """Give each open tool call a result."""
        ...
