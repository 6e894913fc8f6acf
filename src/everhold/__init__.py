"""LLM programs that stop wherever they need an answer, and survive everything while they wait.

Names are loaded when they are first used, so that `import everhold` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.agents import AgentSession as AgentSession
    from everhold.agents import Turn as Turn
    from everhold.answerers import Command as Command
    from everhold.answerers import Model as Model
    from everhold.answerers import Script as Script
    from everhold.blocking import BlockingRuntime as BlockingRuntime
    from everhold.blocking import open_blocking as open_blocking
    from everhold.blocking import run as run
    from everhold.core.budget import Budget as Budget
    from everhold.core.errors import AnswerFailed as AnswerFailed
    from everhold.core.errors import BudgetExceeded as BudgetExceeded
    from everhold.core.errors import Cancelled as Cancelled
    from everhold.core.errors import ChildFailed as ChildFailed
    from everhold.core.errors import Diverged as Diverged
    from everhold.core.errors import EverholdError as EverholdError
    from everhold.core.errors import Expired as Expired
    from everhold.core.errors import Failed as Failed
    from everhold.core.errors import OutcomeUnknown as OutcomeUnknown
    from everhold.core.errors import Waiting as Waiting
    from everhold.core.observe import Observer as Observer
    from everhold.core.query import Query as Query
    from everhold.core.query import Usage as Usage
    from everhold.core.status import Accepted as Accepted
    from everhold.core.status import Finished as Finished
    from everhold.core.status import OpenQuery as OpenQuery
    from everhold.core.status import Paused as Paused
    from everhold.core.status import Running as Running
    from everhold.drive.agent.agent import Agent as Agent
    from everhold.drive.agent.subagents import subagent as subagent
    from everhold.hooks import Plugin as Plugin
    from everhold.plugins.mcp import McpServer as McpServer
    from everhold.ports.context import Context as Context
    from everhold.ports.program import Call as Call
    from everhold.ports.program import Program as Program
    from everhold.ports.program import program as program
    from everhold.ports.said import Said as Said
    from everhold.ports.tool import tool as tool
    from everhold.runtime import Runtime as Runtime
    from everhold.runtime import open as open

_HOMES = {
    "Accepted": "core.status",
    "Agent": "drive.agent.agent",
    "AgentSession": "agents",
    "AnswerFailed": "core.errors",
    "BlockingRuntime": "blocking",
    "Budget": "core.budget",
    "BudgetExceeded": "core.errors",
    "Call": "ports.program",
    "Cancelled": "core.errors",
    "ChildFailed": "core.errors",
    "Command": "answerers",
    "Context": "ports.context",
    "Diverged": "core.errors",
    "EverholdError": "core.errors",
    "Expired": "core.errors",
    "Failed": "core.errors",
    "Finished": "core.status",
    "McpServer": "plugins.mcp",
    "Model": "answerers",
    "Observer": "core.observe",
    "OpenQuery": "core.status",
    "OutcomeUnknown": "core.errors",
    "Paused": "core.status",
    "Plugin": "hooks",
    "Program": "ports.program",
    "Query": "core.query",
    "Running": "core.status",
    "Runtime": "runtime",
    "Said": "ports.said",
    "Script": "answerers",
    "Turn": "agents",
    "Usage": "core.query",
    "Waiting": "core.errors",
    "open": "runtime",
    "open_blocking": "blocking",
    "program": "ports.program",
    "run": "blocking",
    "subagent": "drive.agent.subagents",
    "tool": "ports.tool",
}

__all__ = sorted(_HOMES)


if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'everhold' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"everhold.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
