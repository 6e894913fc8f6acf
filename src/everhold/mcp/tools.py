"""The table of tools: what each is called, what a model is told of it, and what it takes.

Rules
  1. A description suffices: a model that has read nothing else uses the tool correctly.
  2. Parameters are the fields of a struct; the schema that a host sees is made from it, without
     references.
  3. What hosts do to arguments is forgiven where it is plain: null or empty text for nothing, an
     object or a list sent as JSON text, one answer without a list around it, and `id` for
     `query_id`, as a list of questions calls it.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta

from everhold.errors import BadRequest

#: Characters of arguments that one call may bring, as JSON.
MAX_ARGUMENT_CHARS: Final = 8_000_000
#: Seconds a call may be asked to wait.
MAX_WAIT_SECONDS: Final = 300.0

_SESSION = (
    "The session's id (`session_id` of an earlier result); the beginning of it, its key,"
    " or @last will do."
)
_TEXT: Final = {"type": "string"}

SessionName = Annotated[str, Meta(description=_SESSION)]
WaitSeconds = Annotated[
    float | None,
    Meta(
        description="Seconds to wait for timers, children and answerers; default 30, at most"
        f" {MAX_WAIT_SECONDS:.0f}."
    ),
]


class SpendingLimits(msgspec.Struct, forbid_unknown_fields=True):
    """Limits; what asks for more fails with budget_exceeded."""

    max_llm_calls: Annotated[
        int | None, Meta(description="How many answers the session may ask for.")
    ] = None
    max_elapsed_ms: Annotated[
        int | None, Meta(description="How long it may take, in milliseconds.")
    ] = None
    max_tokens: Annotated[
        int | None, Meta(description="How many tokens it may use, prompts and answers.")
    ] = None


Tokens = Annotated[int, Meta(ge=0)]


class AnswerUsage(msgspec.Struct, forbid_unknown_fields=True):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class ToolAnswer(msgspec.Struct, forbid_unknown_fields=True):
    query_id: Annotated[
        str | None,
        Meta(
            description="Which question: the query_id or id shown with it. Needed if several are"
            " open."
        ),
    ] = None
    response: Annotated[
        Any,
        Meta(
            description="Your answer: plain text, or JSON as text where the question shows a"
            " schema.",
            extra_json_schema=_TEXT,
        ),
    ] = UNSET
    error: Annotated[
        str | None,
        Meta(description="Instead of a response: why you cannot answer. The program is told."),
    ] = None
    usage: Annotated[
        AnswerUsage | None, Meta(description="Tokens the answer cost, if you know them.")
    ] = None


class RunArgs(msgspec.Struct, forbid_unknown_fields=True):
    program: Annotated[
        str | None,
        Meta(description="Name of a strategy or program; the tool `strategies` lists them."),
    ] = None
    args: Annotated[
        dict[str, Any] | None,
        Meta(
            description='Its arguments by name, such as {"task": "…"}; with code, what the code'
            " sees as `ctx`."
        ),
    ] = None
    code: Annotated[
        str | None,
        Meta(description="Instead of program: Lua code; the resource everhold://guide shows how."),
    ] = None
    code_file: Annotated[
        str | None, Meta(description="Instead of code: path of a .lua file of the project.")
    ] = None
    key: Annotated[
        str | None,
        Meta(
            description="A name of your own: running again with the same key goes on with the"
            " same session."
        ),
    ] = None
    again: Annotated[
        bool,
        Meta(
            description="With a key whose session was deleted: start a new one. Without it, that"
            " is refused."
        ),
    ] = False
    title: Annotated[
        str | None, Meta(description="A few words by which a person recognises the session.")
    ] = None
    budget: Annotated[
        SpendingLimits | None, Meta(description="Limits on what the session may spend.")
    ] = None
    wait: WaitSeconds = None


class AnswerArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    answers: Annotated[
        list[ToolAnswer],
        Meta(
            description="One entry for each question you answer. Answer all that are open at"
            " once if you can."
        ),
    ]
    wait: WaitSeconds = None


class StatusArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    steps: Annotated[
        bool, Meta(description="Also list the newest 50 steps: what was asked and answered.")
    ] = False
    wait: Annotated[
        float | None,
        Meta(
            description="Seconds to wait until it ends or has questions; default 0, at most"
            f" {MAX_WAIT_SECONDS:.0f}."
        ),
    ] = None


class ListSessionsArgs(msgspec.Struct, forbid_unknown_fields=True):
    state: Annotated[
        str | None, Meta(description="Only these: running, paused, completed, failed or cancelled.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=200, description="How many.")] = 20
    after: Annotated[
        str | None, Meta(description="The next page: the last session_id of the one before.")
    ] = None


class CancelArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    reason: Annotated[str | None, Meta(description="Why; kept with the session.")] = None


class ForkArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    at: Annotated[
        int | None,
        Meta(
            description="The last step to share (status with steps: true numbers them); default:"
            " all."
        ),
    ] = None
    answer: Annotated[
        Any,
        Meta(
            description="Another answer in place of the one given at step `at`; the new session"
            " goes on from it.",
            extra_json_schema=_TEXT,
        ),
    ] = UNSET
    query_id: Annotated[
        str | None, Meta(description="Which answer to replace, if the step has several.")
    ] = None
    title: Annotated[str | None, Meta(description="A title for the new session.")] = None
    wait: WaitSeconds = None


class RetryArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    wait: WaitSeconds = None


class SessionArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName


class StrategiesArgs(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[
        str | None, Meta(description="Describe this one in full; without it, all are listed.")
    ] = None


class ServerTool(msgspec.Struct, frozen=True):
    """One tool; `status` says whether it returns a status of a session."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    status: bool = True
    reads: bool = False  # changes nothing
    destroys: bool = False
    repeats: bool = False  # doing it twice is the same as once
    world: bool = False  # may reach people or things outside


_LOOP = (
    "Returns a status. needs_response: answer the questions yourself with the tool `answer`."
    " completed: `result` is"
    " the outcome. waiting: see `next`. error: the session failed; `retry` may go on."
)

TOOLS: Final = (
    ServerTool(
        "run",
        "Run a strategy or program",
        "Start a reasoning strategy, an installed program, or Lua code of your own. It runs"
        " until it needs you: each"
        " prompt it returns is for YOU to answer, in your own words, with the tool `answer`;"
        " repeat until status is"
        f" completed. Give exactly one of program, code and code_file. {_LOOP} For a strategy"
        " the first result has an"
        " estimate of how many answers and rounds are to come. Sessions are kept on disk: they"
        " survive restarts and"
        " can be resumed with `status`. Code runs in a sandbox without files or network.",
        RunArgs,
        world=True,
    ),
    ServerTool(
        "answer",
        "Answer a session's questions",
        "Give your answers to the open questions of a session, one or many in a call; the"
        " program then goes on. All"
        " are taken or none: if one does not fit you are told why, and nothing has changed."
        " Sending the same answer"
        " again is harmless. Only questions for a model can be answered: approvals and questions"
        " for a person are"
        f" answered by that person. {_LOOP} accepted: kept, but other questions are still open.",
        AnswerArgs,
        repeats=True,
        world=True,
    ),
    ServerTool(
        "status",
        "Look at a session",
        "Where a session stands, its open questions in full, its result if it has ended,"
        " progress and cost. Use it to"
        " resume: after a restart, in another conversation, or when you no longer know what was"
        " asked. With wait, it"
        " waits for a session that waits for a timer, a child or a person. Changes nothing.",
        StatusArgs,
        reads=True,
        repeats=True,
    ),
    ServerTool(
        "sessions",
        "List sessions",
        "List sessions, newest first, with title, program, state and number of steps. Use it to"
        " find a session that"
        " was begun earlier; paused ones wait for answers (call `status` to see them). Changes"
        " nothing.",
        ListSessionsArgs,
        status=False,
        reads=True,
        repeats=True,
    ),
    ServerTool(
        "cancel",
        "Cancel a session",
        "Stop a session and its children for good. What it said so far stays readable, and"
        " `fork` can begin anew from"
        " one of its steps. Use it only if the user wants it stopped.",
        CancelArgs,
        destroys=True,
        repeats=True,
    ),
    ServerTool(
        "fork",
        "Branch off from a step",
        "Begin a new session that shares the steps of another up to step `at`, and leave the"
        " other as it is. With"
        " `answer`, the answer given at that step is replaced: use it to try something else"
        " without paying for the"
        f" earlier steps again. What a person decided is not shared: fork before it. {_LOOP}",
        ForkArgs,
        world=True,
    ),
    ServerTool(
        "retry",
        "Go on after a failure",
        "Go on from a failed session's last answer, with the program as it is now. All answers"
        " it has are kept:"
        f" nothing is asked twice. For sessions whose status is error. {_LOOP}",
        RetryArgs,
        world=True,
    ),
    ServerTool(
        "strategies",
        "List strategies and programs",
        "List what `run` can start: for each its name, what it does, and what it costs in"
        " answers and rounds. With a"
        " name, describe that one: parameters, when to use it, where it comes from. Changes"
        " nothing.",
        StrategiesArgs,
        status=False,
        reads=True,
        repeats=True,
    ),
    ServerTool(
        "explain",
        "Say why a session does not move",
        "Say in sentences why a session is where it is and what would move it. Use it if a"
        " session waits and you do"
        " not know for what. Changes nothing.",
        SessionArgs,
        status=False,
        reads=True,
        repeats=True,
    ),
    ServerTool(
        "ask_person",
        "Put a question to the person here",
        "Show the person at this client the questions that a session has for a person"
        " (approvals, input), if the"
        " client can show forms. The person answers, not you. If it cannot, the result says"
        " which command the person"
        " types instead. Use it if a session waits for a person and the person is here.",
        SessionArgs,
        repeats=True,
        world=True,
    ),
)

BY_NAME: Final = {tool.name: tool for tool in TOOLS}


def parse_tool_arguments(tool: ServerTool, arguments: dict[str, Any] | None) -> Any:
    """The arguments of a call as the tool's struct; raises `BadRequest`."""
    fields = tool.takes.__struct_fields__
    optional = _optional(tool.takes)
    given = {
        name: value
        for name, value in (arguments or {}).items()
        if value is not None and not (value == "" and name in optional)
    }
    refuse_huge(tool.name, given)
    for name, value in given.items():
        if isinstance(value, str) and name in ("args", "answers", "budget") and name in fields:
            given[name] = parse_json_leniently(value)
    if tool.takes is AnswerArgs and "answers" in given:
        given["answers"] = _listed(given["answers"])
    try:
        found = msgspec.convert(given, tool.takes)
    except msgspec.ValidationError as error:
        raise BadRequest(
            tool.name, f"{error}; it takes {_named(build_input_schema(tool.takes))}"
        ) from None
    wait = getattr(found, "wait", None)
    if wait is not None and not 0 <= wait <= MAX_WAIT_SECONDS:
        raise BadRequest(
            tool.name, f"wait should be between 0 and {MAX_WAIT_SECONDS:.0f} seconds, got {wait}"
        )
    return found


@cache
def _optional(takes: type[msgspec.Struct]) -> frozenset[str]:
    """The parameters that a tool would do without. To look at them takes longer than the rest of a
    call.
    """
    return frozenset(field.name for field in msgspec.structs.fields(takes) if field.default is None)


def _listed(answers: Any) -> Any:
    """Answers as they are meant."""
    if isinstance(answers, dict):
        answers = [answers]
    if not isinstance(answers, list):
        return answers
    return [_meant(one) if isinstance(one, dict) else one for one in answers]


def _meant(answer: dict[str, Any]) -> dict[str, Any]:
    told = {name: value for name, value in answer.items() if (name, value) != ("error", "")}
    return told if "query_id" in told or "id" not in told else {"query_id": told.pop("id"), **told}


def _named(told: dict[str, Any]) -> str:
    """The names of all parameters, and of what is in them."""
    names = []
    for name, part in told["properties"].items():
        inner = part.get("items", part).get("properties")
        each = "each " if "items" in part else ""
        names.append(f"{name} ({each}with {', '.join(inner)})" if inner else name)
    return ", ".join(names)


def refuse_huge(tool: str, given: dict[str, Any]) -> None:
    """Raise `BadRequest` for arguments that are too long, or not plain JSON."""
    try:
        size = len(msgspec.json.encode(given))
    except (RecursionError, ValueError, TypeError) as error:
        raise BadRequest(tool, f"the arguments are not plain JSON: {error}") from None
    if size > MAX_ARGUMENT_CHARS:
        raise BadRequest(
            tool, f"the arguments are {size} bytes; at most {MAX_ARGUMENT_CHARS} are taken"
        )


def parse_json_leniently(text: str) -> Any:
    """What a text is as JSON; the text itself if it is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# ---- schemas


def build_input_schema(takes: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct, written out: no references, no titles, no null beside a type."""
    (root,), parts = msgspec.json.schema_components([takes])
    plain: dict[str, Any] = _plain(root, parts)
    return plain


def _plain(part: Any, parts: dict[str, Any]) -> Any:
    if isinstance(part, list):
        return [_plain(item, parts) for item in part]
    if not isinstance(part, dict):
        return part
    told = {key: value for key, value in part.items() if key not in ("$ref", "anyOf", "properties")}
    if "$ref" in part:
        told = {**_plain(parts[part["$ref"].rpartition("/")[2]], parts), **told}
    if "anyOf" in part:
        (only,) = [choice for choice in part["anyOf"] if choice != {"type": "null"}]
        told = {**_plain(only, parts), **told}
    if "properties" in part:
        told["properties"] = {
            name: _plain(value, parts) for name, value in part["properties"].items()
        }
    told.pop("title", None)
    if told.get("default", UNSET) is None:
        del told["default"]
    if told.get("required") == []:
        del told["required"]
    return {
        key: _plain(value, parts) if key in ("items", "additionalProperties") else value
        for key, value in told.items()
    }


#: What every status looks like; the other keys depend on which it is.
STATUS_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "description": (
                "needs_response, accepted, waiting, running, completed, error or cancelled"
            ),
        },
        "session_id": {"type": "string"},
        "title": {"type": "string"},
        "next": {
            "type": "string",
            "description": "What to do now, in one sentence that suffices alone.",
        },
        "query_id": {"type": "string", "description": "The one open question."},
        "prompt": {"type": "string"},
        "queries": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The open questions, if several.",
        },
        "for_people": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Questions only a person answers.",
        },
        "remaining": {"type": "integer"},
        "result": {"description": "What the program returned."},
        "stats": {"type": "object"},
        "error": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "estimate": {
            "type": "object",
            "description": "How many answers and rounds the session will take.",
        },
    },
    "required": ["status"],
}
