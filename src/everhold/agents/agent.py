"""The agent as its author defines it: model, instructions, tools, plugins and limits. It is a
program.

    agent = everhold.Agent(model="anthropic:claude-sonnet-4-6", instructions="…", tools=[search])

Called without a task, it holds a conversation and takes one input after another. Called with a
task, it does the task and returns the result; `run`, subagents and strategies use it so.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from everhold.agents.builtin_tools import collect_programs, make_process_tools
from everhold.agents.code_tool import CodeTool, collect_executors
from everhold.agents.loop import AgentLoop
from everhold.agents.session_provider import check_model_form
from everhold.agents.skills import add_skill_list, load_skills, make_skill_tool
from everhold.agents.subagents import TASK_TOOL, collect_subagents, find_place, resolve_agent
from everhold.agents.tool_calls import Policy, collect_policies
from everhold.agents.tool_selection import SEARCH_ABOVE, collect_sources
from everhold.core.model_settings import ModelSettings, parse_model_settings
from everhold.core.retry import Retry, parse_retry, parse_timeout
from everhold.core.unknown_names import list_keyword_names
from everhold.errors import BadArguments, UnknownProgram
from everhold.hooks import collect_plugins
from everhold.ports.answerer import check_on_unavailable
from everhold.ports.context import AgentContext
from everhold.ports.process_environment import NO_ENVIRONMENT, ProcessEnvironment
from everhold.ports.program import REGISTRY, Program, register_program
from everhold.ports.tool import Tool, collect_tools


class Agent(Program[..., Any]):
    """A program that holds a conversation with a model, which can call tools.

        agent = Agent("anthropic:claude-sonnet-4-6", instructions="Be brief.", tools=[search])

    `runtime.session(agent, id)` opens a conversation; `runtime.run(agent("a task"))` does one task
    and returns its result, which has the type `returns`. `tools` are functions, tools, objects with
    tools as methods, or servers such as `McpServer`; `extra_tools` are offered only where options
    ask for them, and above `search_above` tools the model searches for them. `policy` decides which
    calls may run. `subagents` and `background` are agents and programs that the model may start,
    `skills` folders of instructions, and `code` executors of programs that the model writes.

    A turn ends after `max_turns` calls of the model, each with at most `max_tokens` tokens; at most
    `concurrency` tools run at once. Give a `name` to an agent that is not a variable at the top of
    its module. An option that does not exist raises `BadArguments`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        instructions: str = "",
        tools: Sequence[Any] = (),
        extra_tools: Sequence[Any] = (),
        search_above: int = SEARCH_ABOVE,
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
        environment: ProcessEnvironment = NO_ENVIRONMENT,
        on_unavailable: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        name: str | None = None,
        version: int = 1,
        **settings: Unpack[ModelSettings],
    ) -> None:
        # every other check needs the right names
        self.options = parse_model_settings(
            "Agent", settings, also=list_keyword_names(Agent.__init__)
        )
        if max_turns < 1:
            raise BadArguments("Agent", f"max_turns must be 1 or more, got {max_turns}")
        self.model = check_model_form(model)
        self.skills = load_skills(skills)
        self.instructions = add_skill_list(instructions, self.skills)
        self.plugins = collect_plugins(plugins)
        self.subagents = collect_subagents(subagents)
        self.executors = collect_executors(code)
        own: list[Tool] = [make_skill_tool(self.skills)] if self.skills else []
        own += make_process_tools(collect_programs(background))
        own += [CodeTool(self.executors, language) for language in self.executors]
        given = [*own, *tools, *(one for plugin in self.plugins for one in plugin.tools)]
        self.sources = collect_sources(given)
        self.tools: tuple[Tool, ...] = collect_tools(
            [one for one in given if one not in self.sources]
        )
        if self.subagents and any(one.name == TASK_TOOL for one in self.tools):
            raise BadArguments(
                "tools",
                f"{TASK_TOOL!r} is reserved for the tool that calls subagents; rename your tool",
            )
        self.extra_tools: tuple[Tool, ...] = collect_tools(extra_tools)
        self.search_above = search_above
        self.policy: tuple[Policy, ...] = collect_policies(policy)
        self.returns = returns
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self.concurrency = concurrency
        self.environment = environment
        self.on_unavailable = check_on_unavailable(on_unavailable)
        self.retry = parse_retry(retry)
        self.timeout = parse_timeout(timeout)
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
            register_program(self)

    async def _held(
        self,
        ctx: AgentContext,
        task: str | None = None,
        within: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        plugin_options: dict[str, Any] | None = None,
    ) -> Any:
        loop = AgentLoop(
            ctx, resolve_agent(self, within), options, plugin_options, find_place(within)
        )
        return await loop.serve() if task is None else await loop.once(task)

    # ---- how other processes load it

    @property
    def name(self) -> str:
        """The name: `name=`, or the variable that holds the agent."""
        return self.ref.rpartition(":")[2]

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def ref(self) -> str:
        """`module:variable`, or `file:variable` in a script: how other processes load it. Raises
        `UnknownProgram` for an agent that is neither named nor a variable of its module.
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
        """Its name in its module."""
        return self._name or self._variable()

    @property
    def is_named(self) -> bool:
        """Whether it was given a name."""
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
            "Assign it at the top of its module, or give it name=…, so that other processes can"
            " load it.",
        )

    @property
    def digest(self) -> str:
        """A fingerprint of the model, the instructions and the names of the tools."""
        if not self._digest:
            from hashlib import sha256

            text = f"{self.model}\0{self.instructions}\0" + "\0".join(
                tool.name for tool in self.tools
            )
            self._digest = sha256(text.encode()).hexdigest()[:16]
        return self._digest
