"""Running code that a model wrote: one tool per language, whose programs call the other tools (row
25).

Rules
  1. Each run of a program up to its next tool calls is one effect, and each tool call is another,
     with its own key: policies and approvals apply, and after a crash no call is repeated.
  2. An error of the program is part of the result. If the program cannot run, that is an error with
     its own code.
  3. `finish` ends the turn only if the executor allows it. Otherwise it is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.agents.builtin_tools import AgentToolCall, BuiltinTool, ToolHost
from everhold.agents.tool_calls import truncate_result
from everhold.core.codec import JSON
from everhold.core.query import Kind
from everhold.core.tool import Wanted, Window
from everhold.errors import AnswerFailed, BadArguments, CodeExecutionUnavailable
from everhold.ports.code import (
    CodeEnded,
    CodeExecutor,
    CodePaused,
    CodeRequest,
    CodeRunResult,
    CodeToolResult,
)

#: Tools that one program may call.
MAX_TOOL_CALLS: Final = 128
_SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "the program"}},
    "required": ["code"],
    "additionalProperties": False,
}


def collect_executors(given: Any) -> dict[str, CodeExecutor]:
    """Executors by language, from one, several or none."""
    many = () if given is None else tuple(given) if isinstance(given, Sequence) else (given,)
    found: dict[str, CodeExecutor] = {}
    for one in many:
        if isinstance(one, type) or not isinstance(one, CodeExecutor):
            raise BadArguments("code", f"{one!r} is not a code executor")
        language = one.language
        if language in found:
            raise BadArguments("code", f"two executors run {language!r}")
        found[language] = one
    return found


def find_executor(executors: dict[str, CodeExecutor], language: str) -> CodeExecutor:
    """The executor of a language; raises `CodeExecutionUnavailable`."""
    if language not in executors:
        raise CodeExecutionUnavailable(language, sorted(executors))
    return executors[language]


class CodeTool(BuiltinTool):
    """The tool that runs programs in one language."""

    def __init__(self, executors: dict[str, CodeExecutor], language: str) -> None:
        self._executor = find_executor(executors, language)
        super().__init__(language, self._executor.description, _SCHEMA)

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        accepts = self._executor.accept_finish
        code = str(wanted.input["code"])
        # a history may be long, and few programs read it
        history = box.history() if "history" in code else []
        request = CodeRequest(
            self._executor.language, code, accepts, box.ctx.now().timestamp(), history
        )
        granted: list[list[CodeToolResult]] = []
        printed: list[str] = []
        called = 0
        while True:
            stretch = await self._stretch(box, request, granted, wanted)
            printed += stretch.printed
            if isinstance(stretch, CodeEnded):
                return self._end(box, stretch, printed, accepts)
            first = called
            called = called + len(stretch.wishes)
            if called > MAX_TOOL_CALLS:
                raise AnswerFailed(
                    f"the program called more than {MAX_TOOL_CALLS} tools", "code_calls"
                )
            granted.append(await self._grant(box, stretch, wanted, first))

    async def _stretch(
        self,
        box: ToolHost,
        request: CodeRequest,
        granted: list[list[CodeToolResult]],
        wanted: Wanted,
    ) -> CodePaused | CodeEnded:
        effect = functools.partial(self._run, request, list(granted), wanted.key)
        _, said = await box.ctx.put(
            Kind.CALL,
            effect,
            name=f"code:{self.name}:{len(granted)}",
            options={"call": wanted.call_id},
        )
        found: CodePaused | CodeEnded = msgspec.convert(said, CodeRunResult)
        return found

    async def _run(
        self, request: CodeRequest, granted: list[list[CodeToolResult]], scope: str
    ) -> JSON:
        """One run, inside the effect. Its output and value are cut to what the model may see."""
        stretch = await self._executor.run(request, granted, scope)
        found: dict[str, JSON] = msgspec.to_builtins(stretch)
        if stretch.printed:
            whole = "\n".join(stretch.printed)
            found["printed"] = [await truncate_result(whole, Window())]
        if isinstance(stretch, CodeEnded) and stretch.value is not None:
            found["value"] = await truncate_result(stretch.value, Window())
        return found

    async def _grant(
        self, box: ToolHost, asked: CodePaused, wanted: Wanted, first: int
    ) -> list[CodeToolResult]:
        """Call the tools that the program wants, concurrently."""
        calls = [
            AgentToolCall(f"{wanted.call_id}.{first + place}", wish.tool, wish.input)
            for place, wish in enumerate(asked.wishes)
        ]
        results = iter(await box.also([call for call in calls if call.name != self.name]))
        found = []
        for call in calls:
            failed, value = (
                (True, "a program cannot call the tool that runs it")
                if call.name == self.name
                else next(results)
            )
            found.append(CodeToolResult(error=str(value)) if failed else CodeToolResult(value))
        return found

    def _end(
        self, box: ToolHost, ended: CodeEnded, printed: list[str], accepts: bool
    ) -> tuple[None, JSON]:
        result: dict[str, JSON] = {}
        if printed:
            result["printed"] = "\n".join(printed)
        if ended.error is not None:
            result["error"] = ended.error
        elif ended.finish and not accepts:
            raise AnswerFailed(
                f"a program in {self.name} may not finish the turn",
                "code_finish",
            )
        elif ended.finish:
            box.finish[:] = ended.finish
            result["finished"] = True
        else:
            result["value"] = ended.value
        return None, result
