"""Executes Lua code that an agent's model writes: it can call the agent's tools, in a worker.

    local orders = tool("orders", {customer = "ada"})
    for _, order in ipairs(orders) do print(order.id) end
    return #orders

Rules
  1. Outside of itself, a program can use `tool`, `tools` and `finish` only: no models, no durable
     values, no packages, no files.
  2. A run that is still in memory continues. One that is not is rebuilt from the recorded results.
     Both give the same result.
  3. An error of the program, too much CPU time and too much output are results that the model sees.
     A worker that dies twice is an error of the executor.
  4. A refused request is an error that the program may catch. After `MAX_REFUSALS` the run ends.
  5. Global variables with data (no functions, no metatables) last from program to program, if the
     request asks for it: also after an error, but not after too much CPU time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from everhold.core.codec import JSON
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Raised, Returned
from everhold.errors import (
    CodeExecutionStopped,
    CodeExecutionUnavailable,
    Overtaken,
    Poison,
    WorkerFailed,
)
from everhold.ports.code import (
    CodeEnded,
    CodePaused,
    CodeRequest,
    CodeRunResult,
    CodeToolCall,
    CodeToolResult,
)
from everhold.ports.tool_services import (
    register_closer,
)
from everhold.programs.lua.program import TEXT_REF, LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.values import encode_lua_json

#: Runs kept in memory while they wait for tools.
MAX_HELD_RUNS: Final = 64
#: Attempts to rebuild a lost run within one call.
MAX_RUN_TRIES: Final = 3
#: Refused requests of a program between two calls of tools.
MAX_REFUSALS: Final = 16
_REFUSED: Final = "a program can only call tools here: no models, no durable values"
_NO_FINISH: Final = "finish is not accepted here: return the value"


def _read_lua(path: Path) -> str:
    """Lua code on one line, so that the line numbers of the program after it do not change."""
    return " ".join(path.read_text().split())


#: Defines tool, tools and finish.
_PRELUDE: Final = _read_lua(Path(__file__).with_suffix(".lua"))
#: Runs the program in `ctx.code` with the variables in `ctx.variables`, and sends the new ones.
_WITH_VARIABLES: Final = _read_lua(Path(__file__).with_name("variables.lua"))
#: The largest variables, in bytes of their text.
MAX_VARIABLES: Final = 256 * 1024
_ABOUT: Final = """Run a Lua 5.4 program and return its result and printed text. It has no files, no network and no clock.
In the program, tool(name, input) calls one of your tools and returns its result; tools{{name, input}, {name, input}}
calls several tools in parallel and returns their results in order. A failed tool raises an error; pcall catches it.
ctx.history is the conversation so far: a list of {role, text}, oldest first."""  # noqa: E501
_KEEPS: Final = """
Global variables last from one program to the next: numbers, strings, booleans and tables of them, but no functions."""  # noqa: E501
_FINISH: Final = "\nfinish(value) ends your turn with this value as your answer."


class Lua:
    """An executor for Lua; with `accept_finish`, a program can end the agent's turn. With
    `variables=False`, every program begins without the variables of earlier ones.
    """

    language = "lua"

    def __init__(
        self,
        *,
        accept_finish: bool = False,
        limits: LuaLimits | None = None,
        variables: bool = True,
    ) -> None:
        self.accept_finish = accept_finish
        self.keeps_variables = variables
        self.description = (
            _ABOUT + (_KEEPS if variables else "") + (_FINISH if accept_finish else "")
        )
        self._home = LuaPoolHolder(limits)
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    async def run(
        self, request: CodeRequest, granted: Sequence[Sequence[CodeToolResult]], scope: str
    ) -> CodeRunResult:
        """Run the program of a request in a worker process, up to its next tool calls or its end.
        Raises `CodeExecutionUnavailable` for another language, and without the extra `lua`.
        """
        if request.language != self.language or find_spec("lupa") is None:
            raise CodeExecutionUnavailable(
                request.language, [self.language] if find_spec("lupa") else []
            )
        register_closer(self, self.close)
        for _ in range(MAX_RUN_TRIES):
            run = self._runs.pop(scope, None)
            if run is None or not run.can_continue(len(granted) - 1):
                run = _Run(self._home, request, scope)
            try:
                result = await run.advance_until(granted)
            except Overtaken:  # the worker is gone or busy: rebuild the run
                continue
            except WorkerFailed as error:
                raise CodeExecutionStopped(self.language, error.reason) from None
            if isinstance(result, CodePaused):
                self._runs[scope] = run
                while len(self._runs) > MAX_HELD_RUNS:
                    self._runs.popitem(last=False)[1].drop()
            return result
        raise CodeExecutionStopped(self.language, f"its worker was lost {MAX_RUN_TRIES} times")

    async def close(self) -> None:
        """End the workers. A later run starts new ones."""
        while self._runs:
            self._runs.popitem()[1].drop()
        await self._home.close()


class _Run:
    """One run of a program, from its beginning."""

    def __init__(self, home: LuaPoolHolder, request: CodeRequest, scope: str) -> None:
        self._request = request
        self._seed = sha256(scope.encode()).hexdigest()[:24]
        ctx: dict[str, JSON] = {"history": request.history}
        args: dict[str, JSON] = {"code": f"{_PRELUDE} {request.code}", "ctx": ctx}
        if request.keep_variables:
            args["code"] = f"{_PRELUDE} {_WITH_VARIABLES}"
            ctx |= {"code": request.code, "variables": request.variables or ""}
        birth = Birth(
            id=SessionId(f"cell-{self._seed}"),
            program=TEXT_REF,
            args=args,
            created_at=request.at,
            seeds=[Seed(0, self._seed)],
        )
        self._execution = RemoteLuaExecution(LuaProgram(TEXT_REF), birth, Metrics(), home)
        self._n = 0
        self._open: list[Query] = []  # the queries it waits for
        self._printed: list[str] = []
        self._variables: JSON = None  # those that the program has left
        self._loop = asyncio.get_running_loop()
        self.granted = -1

    def can_continue(self, granted: int) -> bool:
        """Whether it waits at this point, on the running loop; its worker belongs to one loop."""
        return self.granted == granted and self._loop is asyncio.get_running_loop()

    async def advance_until(self, granted: Sequence[Sequence[CodeToolResult]]) -> CodeRunResult:
        """Deliver the recorded results, until the program calls further tools or ends."""
        result: CodeRunResult | None = None
        if self.granted < 0:
            self.granted = 0
            result = await self._advance([])
        while self.granted < len(granted) and not isinstance(result, CodeEnded):
            given = granted[self.granted]
            self.granted += 1
            result = await self._advance(
                [_make_answer(query, one) for query, one in zip(self._open, given, strict=True)]
            )
        assert result is not None
        return result

    async def _advance(self, answers: list[QueryAnswer]) -> CodeRunResult:
        """Deliver answers, until the program calls tools or ends."""
        self._printed = []
        words = ""
        refused = 0
        for _ in range(2 * MAX_REFUSALS):  # each may send variables too
            reply = await self._execution.advance_there(
                self._n, self._request.at, answers, False, None
            )
            self._n += 1
            if reply.notes is not None:
                self._printed += [entry.message for entry in reply.notes.log]
            if reply.outcome is not None:
                match reply.outcome:
                    case Returned(value):
                        return CodeEnded(value, printed=self._printed, variables=self._variables)
                    case Raised(error, kind) if kind != Poison.code:
                        return CodeEnded(
                            error=error, printed=self._printed, variables=self._variables
                        )
                raise CodeExecutionStopped("lua", "the program killed its worker")
            self._open = reply.asked
            wishes = {_get_wish(query) for query in reply.asked}
            if wishes == {"tool"}:
                return CodePaused(
                    [CodeToolCall(query.prompt, _get_input(query)) for query in reply.asked],
                    self._printed,
                )
            if wishes == {"keep"} and self._request.keep_variables:
                words = self._keep(_get_input(reply.asked[0]).get("variables"))
                if not words:
                    answers = [QueryAnswer(query.q, "") for query in reply.asked]
                    continue
            elif wishes == {"finish"} and self._request.accept_finish:
                self.drop()
                return CodeEnded(
                    finish=[_get_input(reply.asked[0]).get("value")],
                    printed=self._printed,
                    variables=self._variables,
                )
            else:
                words = _NO_FINISH if wishes == {"finish"} else _REFUSED
            answers = [
                QueryAnswer(query.q, error={"code": "refused", "message": words})
                for query in reply.asked
            ]
            refused += 1
            if refused == MAX_REFUSALS:
                break
        self.drop()
        return CodeEnded(
            error=f"{words or _REFUSED} (refused {MAX_REFUSALS} times)", printed=self._printed
        )

    def _keep(self, variables: JSON) -> str:
        """Take over what the program leaves; returns why not, if it is too large."""
        text = str(variables or "")
        if len(text) > MAX_VARIABLES:
            return (
                f"the variables have {len(text):,} bytes, and the limit is {MAX_VARIABLES:,}; they"
                " stay as they were before this program"
            )
        self._variables = text
        return ""

    def drop(self) -> None:
        self._execution.drop()


# The prelude sends tool calls and finish as `llm` queries with a mark, `wish`, in their options: a
# Lua program has no other query that carries free data. So the sandbox and its protocol stay as
# they are for every program.
def _get_wish(query: Query) -> str:
    return str((query.options or {}).get("wish", "")) if query.kind is Kind.LLM else ""


def _get_input(query: Query) -> dict[str, JSON]:
    given = (query.options or {}).get("input")
    return given if isinstance(given, dict) else {}  # an empty Lua table may arrive as an array


def _make_answer(query: Query, granted: CodeToolResult) -> QueryAnswer:
    if granted.error is not None:
        return QueryAnswer(query.q, error={"code": "tool_failed", "message": granted.error})
    return QueryAnswer(query.q, encode_lua_json(granted.value).decode())
