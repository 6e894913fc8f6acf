"""Calling tools: side by side, each checked before it runs, each with a result that the model sees."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from everhold.core.codec import JSON
from everhold.core.errors import AnswerFailed, AnswerRefused, EverholdError, OutcomeUnknown
from everhold.core.query import Kind
from everhold.core.schema import read
from everhold.drive.agent.reply import ToolCall
from everhold.ports.agent import Stage
from everhold.ports.tool import Tool


class Toolbox:
    """The tools of one agent."""

    def __init__(self, ctx: Stage, tools: Sequence[Tool], concurrency: int) -> None:
        self._ctx = ctx
        self._tools = {tool.name: tool for tool in tools}
        self._free = asyncio.Semaphore(concurrency)
        self.answers: dict[int, JSON] = {}  # of the calls that blocks name

    @property
    def specs(self) -> list[JSON]:
        """What a model is told of them."""
        return [tool.spec() for tool in self._tools.values()]

    async def run(self, calls: Sequence[ToolCall]) -> list[JSON]:
        """Call them all, and return the results in the order of the calls."""
        return list(await asyncio.gather(*(self._one(call) for call in calls)))

    async def _one(self, call: ToolCall) -> JSON:
        async with self._free:
            tool = self._tools.get(call.name)
            if tool is None:
                known = ", ".join(sorted(self._tools)) or "none"
                return call.result(f"Error: there is no tool {call.name!r}; the tools are: {known}", error=True)
            try:
                args: Any = read(call.input, tool.schema)
            except AnswerRefused as error:
                where = error.path.replace("answer", "input", 1)
                words = f"Error: {where} should be {error.expected}, got {error.got}"
                return call.result(words, error=True)
            return await self._do(tool, call, args)

    async def _do(self, tool: Tool, call: ToolCall, args: dict[str, JSON]) -> JSON:
        options: dict[str, JSON] = {"call": call.id}
        if tool.retries:
            options["retries"] = tool.retries
        if tool.timeout is not None:
            options["timeout"] = tool.timeout
        effect = functools.partial(tool.function, **args)
        try:
            q, found = await self._ctx.put(
                Kind.CALL, effect, name=tool.name, args=args, rerun=tool.rerun, options=options
            )
        except OutcomeUnknown:
            words = f"The outcome of {tool.name} is unknown: it was started and may or may not have happened."
            return call.result(words, error=True)
        except AnswerFailed as error:
            return call.result(f"Error: {error}", error=True)
        except EverholdError as error:
            return call.result(f"Error: {error}", error=True)
        self.answers[q] = found
        return call.named(q)
