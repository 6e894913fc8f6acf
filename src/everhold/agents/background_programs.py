"""Programs that a model may start in the background, each as a process of the conversation:
`Agent(background=[…])`.

Rules
  1. A process goes on when the turn that began it is over. What it says, and its end, wake the
     conversation through its intake: in a turn of their own, or at the next checkpoint of the one
     under way.
  2. The model knows processes by their ids, and only those of its own conversation.
  3. At most `MAX_ALIVE` of them are alive at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from everhold.agents.builtin_tools import BuiltinTool, ToolHost
from everhold.core.codec import JSON
from everhold.core.query import Kind
from everhold.core.tool import Wanted
from everhold.engine.children import WAKE_BY_INTAKE, make_end_signal_name
from everhold.errors import AnswerFailed, BadArguments, Expired

#: How many processes of one conversation may be alive at a time.
MAX_ALIVE: Final = 32
#: Seconds that a model may wait for a process, at most; and if it does not say how many.
MAX_WAIT: Final = 3600.0
DEFAULT_WAIT: Final = 60.0
START_TOOL: Final = "process_start"
_ALIVE: Final = ("running", "paused")


class ProcessTool(BuiltinTool):
    """One of the tools about processes."""

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
    """Programs by name; two of one name, and what is no program, are refused."""
    found: dict[str, Any] = {}
    for one in given:
        if not callable(one) or not hasattr(one, "body"):
            raise BadArguments("background", f"{one!r} is not a program")
        name = getattr(one, "_name", None) or one.name
        if name in found:
            raise BadArguments("background", f"there are two of the name {name!r}")
        found[name] = one
    return found


def make_process_tools(known: dict[str, Any]) -> list[BuiltinTool]:
    """The tools that start these programs, and look after what was started; none if there is
    nothing to start.
    """
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
            "List the processes of this conversation, and where they stand.",
            _schema([]),
            _list,
        ),
        ProcessTool(
            "process_wait",
            "Wait for the end of a process; without waiting, you are told of it as soon as it"
            " comes.",
            _schema(
                ["id"],
                id=one,
                seconds={"type": "number", "description": "how long; 60 if you do not say"},
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
                value={"description": "what to send"},
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
    "title": {"type": "string", "description": "what to call the process, in a few words"},
}


async def _start(box: ToolHost, known: dict[str, Any], given: dict[str, Any]) -> JSON:
    name = str(given["program"])
    if name not in known:
        raise AnswerFailed(
            f"no program {name!r} can be started (known: {', '.join(known)})", "unknown_program"
        )
    try:
        call = known[name](**(given.get("arguments") or {}))
    except (BadArguments, TypeError) as error:
        raise AnswerFailed(str(error), "bad_arguments") from None
    alive = [one for one in await _do(box, "list") if one["state"] in _ALIVE]
    if len(alive) >= MAX_ALIVE:
        raise AnswerFailed(
            f"{len(alive)} processes are alive, which is the most", "too_many_processes"
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
        "Start a program in the background, and go on; you are told when it has ended, or has"
        " something to say.\n" + "\n".join(lines)
    )


def _parameters(program: Any) -> str:
    return f"({', '.join(name for name in program.signature.parameters if name != 'within')})"


def _summary(program: Any) -> str:
    return " ".join((program.__doc__ or "").partition("\n\n")[0].split()) or "(no description)"
