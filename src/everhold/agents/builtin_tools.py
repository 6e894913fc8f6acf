"""Tools that the agent loop runs itself, and the built-in ones: `read_attachment`, and background
processes (`Agent(background=[…])`).

An ordinary tool runs inside one effect. A `BuiltinTool` is checked inside an effect too, but its
work (`held`) runs in the loop: every query it makes is journaled, so that it resumes after a crash
where it stopped.

Rules for processes
  1. A process keeps running when the turn that started it settles. Its notifications and its end
     enter the conversation through the intake: in a turn of their own, or at the next checkpoint of
     the running turn.
  2. The model addresses processes by id, and only those of its own conversation.
  3. At most `MAX_ALIVE` processes of a conversation run at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec

from everhold.agents.variables import ProgramVariables
from everhold.core.codec import JSON
from everhold.core.query import Kind, Usage
from everhold.core.tool import Wanted
from everhold.core.turn import TurnFailed
from everhold.engine.children import WAKE_BY_INTAKE, make_end_signal_name
from everhold.errors import AnswerFailed, BadArguments, Expired, UnknownAttachment
from everhold.ports.context import AgentContext
from everhold.ports.tool import Tool, ToolContext, tool


class AgentToolCall(msgspec.Struct, frozen=True):
    """A call of a tool, as the model wants it."""

    id: str
    name: str
    input: JSON

    def result(self, content: JSON, *, error: bool = False) -> dict[str, JSON]:
        """The block that answers the call."""
        block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": self.id, "content": content}
        return {**block, "is_error": True} if error else block

    def named(self, q: int) -> dict[str, JSON]:
        """The block that answers the call by naming a query, whose answer is the content."""
        return {"type": "tool_result", "tool_use_id": self.id, "q": q}


class ToolHost(Protocol):
    """The toolbox, as a builtin tool sees it."""

    ctx: AgentContext
    turn: int  # of the conversation
    failed: TurnFailed | None
    finish: list[JSON]  # at most one: the value that the turn ends with
    # records usage under a source
    spend: Callable[[str, Usage | None], None]

    history: Callable[[], list[JSON]]  # the messages so far, in order: role and text
    # the environment that options have set, for the children of a session
    given_environment: Callable[[], JSON]
    variables: ProgramVariables  # of the programs that ran in the session

    async def also(self, calls: Sequence[AgentToolCall]) -> list[tuple[bool, JSON]]:
        """Call more tools, as the model would. Returns, for each, whether it failed and its
        content.
        """
        ...


class BuiltinTool(Tool):
    """A tool whose work runs in the loop. Its `function` only checks that it may run, and returns
    nothing.
    """

    def __init__(
        self, name: str, description: str, schema: dict[str, JSON], **options: Any
    ) -> None:
        super().__init__(_nothing, name=name, description=description, rerun="safe", **options)
        self.schema = schema

    def arguments(self, given: dict[str, JSON], context: Any) -> dict[str, Any]:
        """No arguments: `held` reads the input itself."""
        return {}

    @abstractmethod
    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        """Do the work. Returns the query whose answer is the result, if there is one, and the
        result.

        Raises `AnswerFailed`; the model sees its message.
        """


def _nothing() -> None:
    """Nothing to check outside."""


#: Characters that one call may read.
MAX_READ_CHARS: Final = 16_000


@tool(read_only=True, output=None)
async def read_attachment(
    context: ToolContext,
    id: Annotated[str, "the id of the attachment"],
    offset: Annotated[int, "the first character to read"] = 0,
    length: Annotated[int, "how many characters to read"] = MAX_READ_CHARS,
) -> str:
    """Read a part of a text attachment of this conversation."""
    try:
        made, data = await context.attachment(id)
    except UnknownAttachment:
        return f"There is no attachment {id!r} in this conversation."
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"The attachment is not text: {made.media_type}, {made.size:,} bytes."
    begin = max(0, offset)
    part = text[begin : begin + max(1, min(length, MAX_READ_CHARS))]
    return f"{part}\n[Characters {begin:,} to {begin + len(part):,} of {len(text):,}.]"


#: Processes of one conversation that may run at a time.
MAX_ALIVE: Final = 32
#: Seconds that a model may wait for a process: at most, and by default.
MAX_WAIT: Final = 3600.0
DEFAULT_WAIT: Final = 60.0
START_TOOL: Final = "process_start"
_ALIVE: Final = ("running", "paused")


class ProcessTool(BuiltinTool):
    """One of the tools for background processes."""

    def __init__(
        self,
        name: str,
        words: str,
        schema: dict[str, JSON],
        act: Callable[[ToolHost, dict[str, Any]], Awaitable[JSON]],
    ) -> None:
        super().__init__(name, words, schema)
        self._act = act

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        return None, await self._act(box, wanted.input)


def collect_programs(given: Sequence[Any]) -> dict[str, Any]:
    """Programs by name. Raises `BadArguments` for duplicates and for what is not a program."""
    found: dict[str, Any] = {}
    for one in given:
        if not callable(one) or not hasattr(one, "body"):
            raise BadArguments("background", f"{one!r} is not a program")
        name = getattr(one, "_name", None) or one.name
        if name in found:
            raise BadArguments("background", f"two programs have the name {name!r}")
        found[name] = one
    return found


def make_process_tools(known: dict[str, Any]) -> list[BuiltinTool]:
    """The tools that start these programs and manage the processes; empty without programs."""
    if not known:
        return []

    async def start(box: ToolHost, given: dict[str, Any]) -> JSON:
        return await _start(box, known, given)

    one: JSON = {"type": "string", "description": "the id that process_start returned"}
    return [
        ProcessTool(
            START_TOOL,
            _described(known),
            _schema(["program"], program=_enum(known), **_STARTED),
            start,
        ),
        ProcessTool(
            "process_list",
            "List the processes of this conversation and their states.",
            _schema([]),
            _list,
        ),
        ProcessTool(
            "process_wait",
            "Wait until a process ends. You need not wait: its end is reported to you.",
            _schema(
                ["id"],
                id=one,
                seconds={"type": "number", "description": "how long to wait; 60 by default"},
            ),
            _wait,
        ),
        ProcessTool(
            "process_signal",
            "Send a signal to a process that waits for one.",
            _schema(
                ["id", "name"],
                id=one,
                name={"type": "string"},
                value={"description": "the value to send"},
            ),
            _signal,
        ),
        ProcessTool(
            "process_cancel",
            "Stop a process.",
            _schema(["id"], id=one, reason={"type": "string"}),
            _cancel,
        ),
    ]


_STARTED: Final[dict[str, JSON]] = {
    "arguments": {"type": "object", "description": "its arguments by name"},
    "title": {"type": "string", "description": "a short title for the process"},
}


async def _start(box: ToolHost, known: dict[str, Any], given: dict[str, Any]) -> JSON:
    name = str(given["program"])
    if name not in known:
        raise AnswerFailed(
            f"there is no program {name!r}; the programs are: {', '.join(known)}",
            "unknown_program",
        )
    try:
        call = known[name](**(given.get("arguments") or {}))
    except (BadArguments, TypeError) as error:
        raise AnswerFailed(str(error), "bad_arguments") from None
    alive = [one for one in await _do(box, "list") if one["state"] in _ALIVE]
    if len(alive) >= MAX_ALIVE:
        raise AnswerFailed(
            f"{len(alive)} processes are running, which is the limit; wait for one or cancel one",
            "too_many_processes",
        )
    options = {
        "version": call.program.version,
        "wakes": WAKE_BY_INTAKE,
        "title": str(given.get("title") or name)[:80],
    }
    return {"id": await _do(box, "begin", name=call.program.ref, args=call.args, options=options)}


async def _list(box: ToolHost, given: dict[str, Any]) -> JSON:
    return [{**one, "id": one.pop("process")} for one in map(dict, await _do(box, "list"))]


async def _wait(box: ToolHost, given: dict[str, Any]) -> JSON:
    id = str(given["id"])
    found = await _about(box, "look", id)
    if found["state"] in _ALIVE:
        seconds = min(max(float(given.get("seconds") or DEFAULT_WAIT), 0.0), MAX_WAIT)
        try:
            _, found = await box.ctx.put(
                Kind.SIGNAL, name=make_end_signal_name(id), timeout=seconds
            )
        except Expired:
            return {"id": id, "state": "running"}
    return {
        "id": id,
        **{name: found[name] for name in ("state", "value", "error") if name in found},
    }


async def _signal(box: ToolHost, given: dict[str, Any]) -> JSON:
    sent = await _about(
        box, "signal", str(given["id"]), name=str(given["name"]), args=given.get("value")
    )
    return {"sent": sent}


async def _cancel(box: ToolHost, given: dict[str, Any]) -> JSON:
    return {"cancelled": await _about(box, "stop", str(given["id"]), args=given.get("reason"))}


async def _about(box: ToolHost, verb: str, id: str, **more: Any) -> Any:
    return await _do(box, verb, options={"process": id}, **more)


async def _do(box: ToolHost, verb: str, options: dict[str, JSON] | None = None, **more: Any) -> Any:
    return (await box.ctx.put(Kind.SESSION, options={"do": verb, **(options or {})}, **more))[1]


def _schema(required: list[str], **properties: JSON) -> dict[str, JSON]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _enum(known: dict[str, Any]) -> JSON:
    return {"type": "string", "enum": list(known)}


def _described(known: dict[str, Any]) -> str:
    lines = [f"- {name}{_parameters(one)}: {_summary(one)}" for name, one in known.items()]
    return (
        "Start a program in the background. Its notifications and its end are reported to you.\n"
        + "\n".join(lines)
    )


def _parameters(program: Any) -> str:
    return f"({', '.join(name for name in program.signature.parameters if name != 'within')})"


def _summary(program: Any) -> str:
    return " ".join((program.__doc__ or "").partition("\n\n")[0].split()) or "(no description)"
