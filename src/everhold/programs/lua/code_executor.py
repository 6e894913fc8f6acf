"""Lua as an agent's model writes it: small programs that call the agent's tools, in a worker that
can be killed.

    local orders = tool("orders", {customer = "ada"})
    for _, order in ipairs(orders) do print(order.id) end
    return #orders

Rules
  1. A program has `tool`, `tools` and `finish`, and nothing else that reaches outside: no model, no
     durable values, no packages, no files.
  2. A life that is still held goes on; one that is not is made again from what was granted. Both
     come to the same.
  3. An error in the program, too much time or too much talk are its own; that its worker dies twice
     is not.
  4. What is refused is an error that a program may catch, but not for ever: one that asks on and on
     is ended.
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
from everhold.core.journal import ProgramReply
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

#: Lives that are held between two stretches.
MAX_HELD_RUNS: Final = 64
#: How often a life that was lost is made again within one stretch.
MAX_RUN_TRIES: Final = 3
#: How often a program may ask for what is refused, between two of its tools.
MAX_REFUSALS: Final = 16
_REFUSED: Final = "a program of a tool has only tools: no models, and no durable values"
_NO_FINISH: Final = "finish is not accepted here: return the value"

# What a program has beside Lua. All on one line, so that the lines of a program keep their numbers.
_BEFORE: Final = " ".join(Path(__file__).with_suffix(".lua").read_text().split())
_ABOUT: Final = """Run a Lua 5.4 program, and receive what it returns and prints. It has no files, no network, no clock.
In it, tool(name, input) calls one of your tools and returns its result; tools{{name, input}, {name, input}} calls
several side by side and returns their results in order. A tool that fails raises an error, which pcall catches.
ctx.history is what was said so far: a list of {role, text}, the oldest first."""  # noqa: E501
_FINISH: Final = "\nfinish(value) ends your turn with a value as your answer."


class Lua:
    """An executor for Lua; `accept_finish` lets programs end the turn that they run in."""

    language = "lua"

    def __init__(self, *, accept_finish: bool = False, limits: LuaLimits | None = None) -> None:
        self.accept_finish = accept_finish
        self.description = _ABOUT + (_FINISH if accept_finish else "")
        self._home = LuaPoolHolder(limits)
        self._lives: OrderedDict[str, _Life] = OrderedDict()

    async def run(
        self, request: CodeRequest, granted: Sequence[Sequence[CodeToolResult]], scope: str
    ) -> CodeRunResult:
        if request.language != self.language or find_spec("lupa") is None:
            raise CodeExecutionUnavailable(
                request.language, [self.language] if find_spec("lupa") else []
            )
        register_closer(self, self.close)
        for _ in range(MAX_RUN_TRIES):
            life = self._lives.pop(scope, None)
            if life is None or not life.stands_at(len(granted) - 1):
                life = _Life(self._home, request, scope)
            try:
                stretch = await life.until(granted)
            except Overtaken:  # its worker is gone, or busy: once more from the beginning
                continue
            except WorkerFailed as error:
                raise CodeExecutionStopped(self.language, error.reason) from None
            if isinstance(stretch, CodePaused):
                self._keep(scope, life)
            return stretch
        raise CodeExecutionStopped(self.language, f"its worker was lost {MAX_RUN_TRIES} times")

    def _keep(self, scope: str, life: _Life) -> None:
        self._lives[scope] = life
        while len(self._lives) > MAX_HELD_RUNS:
            self._lives.popitem(last=False)[1].drop()

    async def close(self) -> None:
        """End the workers. What runs later starts new ones."""
        while self._lives:
            self._lives.popitem()[1].drop()
        await self._home.close()


class _Life:
    """One run of a program, from its beginning."""

    def __init__(self, home: LuaPoolHolder, request: CodeRequest, scope: str) -> None:
        self._request = request
        self._seed = sha256(scope.encode()).hexdigest()[:24]
        args: dict[str, JSON] = {
            "code": f"{_BEFORE} {request.code}",
            "ctx": {"history": request.history},
        }
        birth = Birth(
            id=SessionId(f"cell-{self._seed}"),
            program=TEXT_REF,
            args=args,
            created_at=request.at,
            seeds=[Seed(0, self._seed)],
        )
        self._execution = RemoteLuaExecution(LuaProgram(TEXT_REF), birth, Metrics(), home)
        self._n = 0
        self._wants: list[Query] = []  # what it waits for
        self._printed: list[str] = []
        self._loop = asyncio.get_running_loop()
        self.granted = -1

    def stands_at(self, granted: int) -> bool:
        """Whether it can go on from there: a life ends with its loop."""
        return self.granted == granted and self._loop is asyncio.get_running_loop()

    async def until(self, granted: Sequence[Sequence[CodeToolResult]]) -> CodeRunResult:
        """Go on until more is asked than was granted."""
        stretch: CodeRunResult | None = None
        if self.granted < 0:
            self.granted = 0
            stretch = await self._on([])
        while self.granted < len(granted) and not isinstance(stretch, CodeEnded):
            given = granted[self.granted]
            self.granted += 1
            stretch = await self._on(
                [_answer(query, one) for query, one in zip(self._wants, given, strict=True)]
            )
        assert stretch is not None
        return stretch

    async def _on(self, answers: list[QueryAnswer]) -> CodeRunResult:
        """Go on with these answers, up to where tools are wanted or the program ends."""
        self._printed = []
        words = ""
        for _ in range(MAX_REFUSALS):
            reply = await self._execution.advance_there(
                self._n, self._request.at, answers, False, None
            )
            self._n += 1
            self._hear(reply)
            if reply.outcome is not None:
                return self._ended(reply)
            self._wants = reply.asked
            wish = {_wish(query) for query in reply.asked}
            if wish == {"tool"}:
                return CodePaused(
                    [CodeToolCall(query.prompt, _input(query)) for query in reply.asked],
                    self._printed,
                )
            if wish == {"finish"} and self._request.accept_finish:
                self.drop()
                return CodeEnded(
                    finish=[_input(reply.asked[0]).get("value")], printed=self._printed
                )
            words = _NO_FINISH if wish == {"finish"} else _REFUSED
            answers = [
                QueryAnswer(query.q, error={"code": "refused", "message": words})
                for query in reply.asked
            ]
        self.drop()
        return CodeEnded(
            error=f"{words} (it was told so {MAX_REFUSALS} times)", printed=self._printed
        )

    def _ended(self, reply: ProgramReply) -> CodeEnded:
        match reply.outcome:
            case Returned(value):
                return CodeEnded(value, printed=self._printed)
            case Raised(error, kind) if kind != Poison.code:
                return CodeEnded(error=error, printed=self._printed)
        raise CodeExecutionStopped("lua", "its worker died of the program")

    def _hear(self, reply: ProgramReply) -> None:
        if reply.notes is not None:
            self._printed += [entry.message for entry in reply.notes.log]

    def drop(self) -> None:
        self._execution.drop()


def _wish(query: Query) -> str:
    return str((query.options or {}).get("wish", "")) if query.kind is Kind.LLM else ""


def _input(query: Query) -> dict[str, JSON]:
    given = (query.options or {}).get("input")
    return given if isinstance(given, dict) else {}  # an empty table may be an array


def _answer(query: Query, granted: CodeToolResult) -> QueryAnswer:
    if granted.error is not None:
        return QueryAnswer(query.q, error={"code": "tool_failed", "message": granted.error})
    return QueryAnswer(query.q, encode_lua_json(granted.value).decode())
