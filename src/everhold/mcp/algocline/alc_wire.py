"""The wire of the profile: declarations of tools, arguments, statuses, snapshots and refusals.

Rules
  1. Unknown parameters are ignored, and null counts as absent, as in algocline. An argument of a
     wrong type is an error of the protocol, raised before anything is done.
  2. Every result is one text: a JSON document with its keys in ascending order. A refusal is a
     plain sentence.
  3. The keys are algocline's. Added are `stats` of a failed session, and `result` or `error` in the
     snapshot of an ended one. States that algocline does not have (waiting for a person or a timer)
     are written as in the default profile.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from everhold.core.codec import JSON
from everhold.core.status import Accepted, Finished, Paused, Raised, Returned, Status
from everhold.errors import BadRequest, EverholdError
from everhold.mcp import render, tool_schema
from everhold.mcp.algocline.query_ids import QueryNames
from everhold.mcp.protocol import INVALID_PARAMS, ProtocolError
from everhold.wire import dump_wire_json, query_json

_PROJECT = (
    "Folder of the project, with its alc.toml. Default: ALC_PROJECT_ROOT, or else the nearest"
    " folder with an alc.toml from the current folder upwards."
)

ProjectRoot = Annotated[str | None, Meta(description=_PROJECT)]


class AlcTool(msgspec.Struct, frozen=True):
    """One tool. A hint that is None is left out."""

    name: str
    description: str
    takes: type[msgspec.Struct]
    reads: bool | None = None
    destroys: bool | None = None
    repeats: bool | None = None
    world: bool = False

    @property
    def verb(self) -> str:
        """The name of its handler."""
        return self.name.removeprefix("alc_")


#: Parameters that some hosts send as JSON text.
_LENIENT: Final = (
    "responses",
    "usage",
    "opts",
    "strategy_opts",
    "filter",
    "fields",
    "where",
    "order_by",
    "projections",
)


def parse_alc_arguments(tool: AlcTool, arguments: dict[str, Any] | None) -> Any:
    """The arguments of a call as the tool's struct; raises `ProtocolError` if they do not fit."""
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    try:
        tool_schema.refuse_huge(tool.name, given)
    except BadRequest as error:
        raise ProtocolError(INVALID_PARAMS, str(error)) from None
    for name in _LENIENT:
        if isinstance(given.get(name), str):
            given[name] = tool_schema.parse_json_leniently(given[name])
    try:
        return msgspec.convert(given, tool.takes)
    except msgspec.ValidationError as error:
        raise ProtocolError(INVALID_PARAMS, describe_bad_arguments(str(error))) from None


_KINDS: Final = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def describe_bad_arguments(found: str) -> str:
    """What msgspec found wrong with arguments, with the fragments that clients look for."""
    words, _, place = found.partition(" - at `$.")
    name = place.removesuffix("`")
    if wrong := re.fullmatch(r"Expected `(.+?)(?: \| null)?`, got `(.+)`", words):
        wanted, given = (_KINDS.get(kind, kind) for kind in wrong.groups())
        words = f"invalid type: `{name}` is {given}, expected {wanted}"
    elif missing := re.fullmatch(r"Object missing required field `(.+)`", words):
        words = f"missing field `{missing[1]}`" + (f" in `{name}`" if name else "")
    elif name:
        words = f"invalid value: `{name}`: {words[0].lower()}{words[1:]}"
    return f"failed to deserialize parameters: {words}"


def describe_alc_tool(tool: AlcTool) -> dict[str, Any]:
    hints = {
        "destructiveHint": tool.destroys,
        "idempotentHint": tool.repeats,
        "openWorldHint": tool.world,
        "readOnlyHint": tool.reads,
    }
    return {
        "annotations": {name: hint for name, hint in hints.items() if hint is not None},
        "description": tool.description,
        "inputSchema": tool_schema.build_input_schema(tool.takes),
        "name": tool.name,
    }


# ---- results


class AlcRefused(Exception):
    """A refusal in algocline's words. `code` is that of the corresponding error of everhold."""

    def __init__(self, text: str, code: str = "bad_request", hint: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.hint = hint

    @classmethod
    def of(cls, error: EverholdError) -> AlcRefused:
        return cls(str(error), error.code, error.hint)


def render_alc_status(status: Status, names: QueryNames, *, option: str = "") -> dict[str, JSON]:
    """A status as alc_run, alc_advice and alc_continue return it."""
    match status:
        case Accepted(_, remaining) if remaining:
            return {"status": "accepted", "remaining": remaining}
        case Paused() if asked := render.list_model_questions(status):
            head: dict[str, JSON] = {"status": "needs_response", "session_id": status.session_id}
            if len(asked) == 1:
                return {**head, "query_id": names[asked[0].id], **query_json(asked[0])}
            return {
                **head,
                "queries": [{"id": names[query.id], **query_json(query)} for query in asked],
            }
        case Finished():
            return _render_outcome(status)
    shown = render.render_status(status, option=option)
    people = shown.get("for_people", ())
    look = f"call alc_status with session_id {status.session_id!r} to see its progress"
    if not people:
        shown["next"] = f"The session has no question for you now; {look}."
    else:
        commands = "; ".join(str(one["command"]) for one in people)
        shown["next"] = (
            f"Only a person can answer this, you cannot: ask the user to type `{commands}`,"
            f" then {look}."
        )
    return shown


def _render_outcome(status: Finished) -> dict[str, JSON]:
    match status.outcome:
        case Returned(value):
            return {"status": "completed", "result": value, "stats": render_alc_stats(status)}
        case Raised(error):
            return {"status": "error", "error": error, "stats": render_alc_stats(status)}
        case _:
            return {"status": "cancelled", "stats": render_alc_stats(status)}


def render_alc_stats(status: Finished) -> dict[str, Any]:
    """The costs of a session. Its rounds are the pauses that were answered; reads of the store are
    not rounds.
    """
    auto = status.metrics["auto"]
    return {**status.metrics, "auto": {**auto, "rounds": auto["pauses"]}}


def render_alc_outcome(status: Finished) -> dict[str, JSON]:
    """The outcome of a session, for its snapshot."""
    outcome = _render_outcome(status)
    return {key: outcome[key] for key in ("result", "error", "stats") if key in outcome}


def rename_query_ids(snapshot: dict[str, Any], names: QueryNames, pauses: int) -> dict[str, Any]:
    """A snapshot with algocline's query ids and rounds."""
    metrics = snapshot["metrics"]
    metrics["rounds"] = pauses - bool(names.open)
    current = metrics["tokens"]["current_query"]
    for part in (
        *snapshot.get("pending", ()),
        *metrics.get("conversation_history", ()),
        current or {},
    ):
        if "query_id" in part:
            part["query_id"] = names[part["query_id"]]
        if part.get("response", ...) is None:
            part["response_tokens"] = 0
    return snapshot


def dump_pretty(value: JSON) -> str:
    """JSON with two spaces and sorted keys."""
    return msgspec.json.format(dump_wire_json(value), indent=2)


def dump_compact(value: JSON) -> str:
    return dump_wire_json(value)
