"""An agent as its author writes it: a model, instructions, tools, plugins and limits. It is a
program.

    agent = everhold.Agent(model="anthropic:claude-sonnet-4-6", instructions="…", tools=[search])

Called without a task it holds a conversation and takes inputs one after another; called with one it
does that task and returns what came of it, which is how `run`, a subagent and a strategy use it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everhold.agents.background_programs import background_of, process_tools
from everhold.agents.code_tool import Code, executors_of
from everhold.agents.loop import Life
from everhold.agents.skills import skill_tool, skills_of, told
from everhold.agents.subagents import TASK, settled, subagents_of
from everhold.agents.tool_policy import Policy, policies_of
from everhold.agents.tool_selection import MANY
from everhold.agents.tool_sources import sources_of
from everhold.core.codec import JSON
from everhold.errors import BadArguments, UnknownProgram
from everhold.hooks import plugins_of
from everhold.ports.agent import Stage
from everhold.ports.program import REGISTRY, Program, register
from everhold.ports.tool import Tool, tools_of


class Agent(Program[..., Any]):
    """A program that holds a conversation."""

    def __init__(
        self,
        model: str | None = None,
        *,
        instructions: str = "",
        tools: Sequence[Any] = (),
        extra_tools: Sequence[Any] = (),
        search_above: int = MANY,
        plugins: Sequence[Any] = (),
        policy: Any = None,
        subagents: Sequence[Any] = (),
        background: Sequence[Any] = (),
        skills: Sequence[str | Path] = (),
        code: Any = None,
        returns: Any = None,
        max_turns: int = 12,
        max_tokens: int = 4096,
        concurrency: int = 8,
        name: str | None = None,
        version: int = 1,
        **options: JSON,
    ) -> None:
        if max_turns < 1:
            raise BadArguments("Agent", f"max_turns should be 1 or more, got {max_turns}")
        self.model = model
        self.skills = skills_of(skills)
        self.instructions = told(instructions, self.skills)
        self.plugins = plugins_of(plugins)
        self.subagents = subagents_of(subagents)
        self.executors = executors_of(code)
        own: list[Tool] = [skill_tool(self.skills)] if self.skills else []
        own += process_tools(background_of(background))
        own += [Code(self.executors, language) for language in self.executors]
        given = [*own, *tools, *(one for plugin in self.plugins for one in plugin.tools)]
        self.sources = sources_of(given)
        self.tools: tuple[Tool, ...] = tools_of([one for one in given if one not in self.sources])
        if self.subagents and any(one.name == TASK for one in self.tools):
            raise BadArguments(
                "tools", f"{TASK!r} is the name of the tool that reaches the subagents"
            )
        self.extra_tools: tuple[Tool, ...] = tools_of(extra_tools)
        self.search_above = search_above
        self.policy: tuple[Policy, ...] = policies_of(policy)
        self.returns = returns
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.concurrency = concurrency
        self.options = options
        self.version = version
        self.strict = False
        self.body = self._held
        self._name = name
        self._ref = ""
        self._signature: inspect.Signature | None = None
        self._types: dict[str, Any] | None = None
        self._digest = ""
        self.__doc__ = instructions or None
        self.__module__ = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
        if name is not None:
            register(self)

    async def _held(
        self, ctx: Stage, task: str | None = None, within: dict[str, Any] | None = None
    ) -> Any:
        life = Life(ctx, settled(self, within))
        return await life.serve() if task is None else await life.once(task)

    # ---- how other processes find it

    @property
    def name(self) -> str:
        return self.ref.rpartition(":")[2]

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def ref(self) -> str:
        """module:variable, or the file of a script; raises `UnknownProgram` for an agent that has
        no name.
        """
        if not self._ref:
            self._ref = f"{self._place()}:{self.qualname}"
            REGISTRY[(self._ref, self.version)] = self
        return self._ref

    @ref.setter
    def ref(self, ref: str) -> None:
        self._ref = ref

    @property
    def qualname(self) -> str:
        return self._name or self._variable()

    @property
    def is_named(self) -> bool:
        return self._name is not None

    def _place(self) -> str:
        module = sys.modules.get(self.__module__)
        if self.__module__ != "__main__":
            return self.__module__
        file = getattr(module, "__file__", None)
        return "__main__" if file is None else str(file)

    def _variable(self) -> str:
        names = vars(sys.modules[self.__module__]) if self.__module__ in sys.modules else {}
        for name, value in names.items():
            if value is self:
                return name
        raise UnknownProgram(
            "Agent",
            "it is not a variable of its module",
            "Assign it at the top of its module, or give it name=, so that other processes can"
            " find it.",
        )

    @property
    def digest(self) -> str:
        if not self._digest:
            from hashlib import sha256

            told = f"{self.model}\0{self.instructions}\0" + "\0".join(
                tool.name for tool in self.tools
            )
            self._digest = sha256(told.encode()).hexdigest()[:16]
        return self._digest
