"""Running code that a model or a host wrote, in programs that call the agent's tools (row 25).

A model gets one tool per language. A host runs code with `AgentSession.execute`.

Rules
  1. Each run of a program up to its next tool calls is one effect, and each tool call is another,
     with its own key: policies and approvals apply, and after a crash no call is repeated.
  2. An error of the program is part of the result. If the program cannot run, that is an error with
     its own code.
  3. `finish` is accepted only if the executor (for a model) or the host allows it. Otherwise it is
     refused.
  4. What a program prints is streamed while it runs, and is part of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

import msgspec

from everhold.agents.builtin_tools import AgentToolCall, BuiltinTool, ToolHost
from everhold.agents.tool_calls import truncate_result
from everhold.core.codec import JSON, is_same_json
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
    VariableKeeper,
)
from everhold.ports.stream import Delta, DeltaKind, publish_delta
from everhold.ports.tool_services import CURRENT_SERVICES

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


def keeps_variables(executor: CodeExecutor) -> bool:
    """Whether programs find the variables of earlier ones."""
    return isinstance(executor, VariableKeeper) and executor.keeps_variables


class CodeTool(BuiltinTool):
    """The tool that runs programs in one language."""

    def __init__(self, executors: dict[str, CodeExecutor], language: str) -> None:
        self._executor = find_executor(executors, language)
        super().__init__(language, self._executor.description, _SCHEMA)

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        run = CodeRun(
            box,
            self._executor,
            str(wanted.input["code"]),
            wanted.call_id,
            wanted.key,
            accept_finish=self._executor.accept_finish,
        )
        ended = await run.run()
        result: dict[str, JSON] = {}
        if run.printed:
            result["printed"] = "\n".join(run.printed)
        if ended.error is not None:
            result["error"] = ended.error
        elif ended.finish:
            box.finish[:] = ended.finish
            result["finished"] = True
        else:
            result["value"] = ended.value
        return None, result


class CodeRun:
    """One run of a program, from its beginning to its end."""

    def __init__(
        self,
        box: ToolHost,
        executor: CodeExecutor,
        code: str,
        call_id: str,
        key: str,
        *,
        accept_finish: bool,
        variables: bool = True,
    ) -> None:
        self._box = box
        self._executor = executor
        self.language = executor.language
        self._code = code
        self._call = call_id
        self._key = key
        self._accepts = accept_finish
        self._keeps = variables and box.variables.enabled and keeps_variables(executor)
        self.printed: list[str] = []

    async def run(self) -> CodeEnded:
        """Run the program; raises `AnswerFailed` if it breaks a rule, or cannot run."""
        try:
            return await self._run_to_end()
        finally:
            ctx = self._box.ctx
            if ctx.recorded() is None:  # readers of its output hear that nothing more will come
                end = Delta(DeltaKind.END, "", 0, self._call, self.language)
                publish_delta(ctx.session_id, "", end)

    async def _run_to_end(self) -> CodeEnded:
        box = self._box
        async with box.variables.lock(self.language) if self._keeps else nullcontext():
            # a history may be long, and few programs read it
            history = box.history() if "history" in self._code else []
            request = CodeRequest(
                self.language,
                self._code,
                self._accepts,
                box.ctx.now().timestamp(),
                history,
                self._keeps,
                box.variables.get(self.language) if self._keeps else None,
            )
            q, ended, answer = await self._advance(request)
            if ended.finish and ended.error is None and not self._accepts:
                raise AnswerFailed(
                    f"a program in {self.language} may not finish the turn", "code_finish"
                )
            if self._keeps and ended.variables is not None:
                box.variables.set(self.language, ended.variables, q, answer)
        return ended

    async def _advance(self, request: CodeRequest) -> tuple[int, CodeEnded, JSON]:
        """Run stretch by stretch; returns the last one, with its query and answer."""
        granted: list[list[CodeToolResult]] = []
        called = 0
        while True:
            q, answer = await self._box.ctx.put(
                Kind.CALL,
                functools.partial(self._run, request, list(granted)),
                name=f"code:{self.language}:{len(granted)}",
                options={"call": self._call},
            )
            stretch: CodePaused | CodeEnded = msgspec.convert(answer, CodeRunResult)
            self.printed += stretch.printed
            if isinstance(stretch, CodeEnded):
                return q, stretch, answer
            first = called
            called = called + len(stretch.wishes)
            if called > MAX_TOOL_CALLS:
                raise AnswerFailed(
                    f"the program called more than {MAX_TOOL_CALLS} tools", "code_calls"
                )
            granted.append(await self._grant(stretch, first))

    async def _run(self, request: CodeRequest, granted: list[list[CodeToolResult]]) -> JSON:
        """One run, inside the effect. Its output and value are cut to what the model may see."""
        output = _Output(self._call, self.language)
        stretch = await self._executor.run(
            msgspec.structs.replace(request, emit=output.emit), granted, self._key
        )
        if not output.emitted:
            for line in stretch.printed:
                output.emit(f"{line}\n")
        found: dict[str, JSON] = msgspec.to_builtins(stretch)
        if stretch.printed:
            whole = "\n".join(stretch.printed)
            found["printed"] = [await truncate_result(whole, Window())]
        if isinstance(stretch, CodeEnded):
            if stretch.value is not None:
                found["value"] = await truncate_result(stretch.value, Window())
            if not request.keep_variables or is_same_json(stretch.variables, request.variables):
                found.pop("variables", None)
            else:
                found["language"] = self.language
        return found

    async def _grant(self, asked: CodePaused, first: int) -> list[CodeToolResult]:
        """Call the tools that the program wants, concurrently."""
        calls = [
            AgentToolCall(f"{self._call}.{first + place}", wish.tool, wish.input)
            for place, wish in enumerate(asked.wishes)
        ]
        results = iter(await self._box.also([one for one in calls if one.name != self.language]))
        found = []
        for call in calls:
            failed, value = (
                (True, "a program cannot call the tool that runs it")
                if call.name == self.language
                else next(results)
            )
            found.append(CodeToolResult(error=str(value)) if failed else CodeToolResult(value))
        return found


class _Output:
    """Streams the output of one stretch to the listeners of this process."""

    def __init__(self, call_id: str, language: str) -> None:
        self._services = CURRENT_SERVICES.get(None)
        self._call = call_id
        self._language = language
        self.emitted = False

    def emit(self, text: str) -> None:
        self.emitted = True
        if self._services is not None and text:
            self._services.output(Delta(DeltaKind.OUTPUT, text, 0, self._call, self._language))
