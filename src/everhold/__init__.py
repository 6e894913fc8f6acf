"""Durable execution for LLM programs and agents: programs pause at a question and survive crashes.

The most used names are here. The other public packages are `agents`, `hooks`, `plugins`,
`stores`, `models`, `schedules`, `notify`, `strategies`, `packages`, `testing`, `errors` and `agui`;
docs/stability.md defines what is public. Everything else is private.

Names are loaded when they are first used, so that `import everhold` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.agents.agent import Agent as Agent
    from everhold.agents.session import AgentSession as AgentSession
    from everhold.agents.session import Turn as Turn
    from everhold.agents.subagents import subagent as subagent
    from everhold.blocking import BlockingRuntime as BlockingRuntime
    from everhold.blocking import BlockingSession as BlockingSession
    from everhold.blocking import open_blocking as open_blocking
    from everhold.blocking import run as run
    from everhold.core.budget import Budget as Budget
    from everhold.core.observer import Observer as Observer
    from everhold.core.progress import Progress as Progress
    from everhold.core.query import Query as Query
    from everhold.core.query import Usage as Usage
    from everhold.core.retry import Retry as Retry
    from everhold.core.status import Accepted as Accepted
    from everhold.core.status import Finished as Finished
    from everhold.core.status import OpenQuery as OpenQuery
    from everhold.core.status import Paused as Paused
    from everhold.core.status import Running as Running
    from everhold.core.status import Status as Status
    from everhold.engine.limits import Limits as Limits
    from everhold.errors import AnswerFailed as AnswerFailed
    from everhold.errors import BudgetExceeded as BudgetExceeded
    from everhold.errors import Cancelled as Cancelled
    from everhold.errors import ChildFailed as ChildFailed
    from everhold.errors import Diverged as Diverged
    from everhold.errors import EverholdError as EverholdError
    from everhold.errors import Expired as Expired
    from everhold.errors import Failed as Failed
    from everhold.errors import OutcomeUnknown as OutcomeUnknown
    from everhold.errors import Waiting as Waiting
    from everhold.hooks import Plugin as Plugin
    from everhold.models import CommandModel as CommandModel
    from everhold.models import Model as Model
    from everhold.models import ScriptModel as ScriptModel
    from everhold.plugins.mcp import McpServer as McpServer
    from everhold.ports.answerer import Answer as Answer
    from everhold.ports.context import Context as Context
    from everhold.ports.program import Call as Call
    from everhold.ports.program import Program as Program
    from everhold.ports.program import program as program
    from everhold.ports.tool import tool as tool
    from everhold.programs.lua.program import LuaProgram as LuaProgram
    from everhold.programs.python.determinism_guard import configure_guard as configure_guard
    from everhold.runtime import Runtime as Runtime
    from everhold.runtime import open as open

_HOMES = {
    "Accepted": "core.status",
    "Agent": "agents.agent",
    "AgentSession": "agents.session",
    "Answer": "ports.answerer",
    "AnswerFailed": "errors",
    "BlockingRuntime": "blocking",
    "BlockingSession": "blocking",
    "Budget": "core.budget",
    "BudgetExceeded": "errors",
    "Call": "ports.program",
    "Cancelled": "errors",
    "ChildFailed": "errors",
    "CommandModel": "models",
    "Context": "ports.context",
    "Diverged": "errors",
    "EverholdError": "errors",
    "Expired": "errors",
    "Failed": "errors",
    "Finished": "core.status",
    "Limits": "engine.limits",
    "LuaProgram": "programs.lua.program",
    "McpServer": "plugins.mcp",
    "Model": "models",
    "Observer": "core.observer",
    "OpenQuery": "core.status",
    "OutcomeUnknown": "errors",
    "Paused": "core.status",
    "Plugin": "hooks",
    "Program": "ports.program",
    "Progress": "core.progress",
    "Query": "core.query",
    "Retry": "core.retry",
    "Running": "core.status",
    "Runtime": "runtime",
    "ScriptModel": "models",
    "Status": "core.status",
    "Turn": "agents.session",
    "Usage": "core.query",
    "Waiting": "errors",
    "configure_guard": "programs.python.determinism_guard",
    "open": "runtime",
    "open_blocking": "blocking",
    "program": "ports.program",
    "run": "blocking",
    "subagent": "agents.subagents",
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
