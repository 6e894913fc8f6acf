"""The tools of the default profile: for each its parameters, its description and what it does.

Rules
  1. A description suffices: a model that has read nothing else uses the tool correctly.
  2. A tool answers `llm` questions only. The kind of a question is looked up before anything is
     recorded. An id means the same question for ever, so another cannot be put in its place.
  3. A fork through a tool shares nothing that a person decided: one approval is not used twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta

from everhold.core.codec import JSON, is_same_json
from everhold.core.journal import AskedQuery, Delivery, find_open_queries
from everhold.core.query import (
    KINDS,
    MODEL_KINDS,
    Kind,
    Query,
    Usage,
    format_answer_error,
    parse_query_number,
)
from everhold.core.session import Birth
from everhold.core.status import OpenQuery, Status
from everhold.engine.children import child_id, is_process_query
from everhold.engine.journal_reader import index_queries, read_steps
from everhold.errors import (
    AnswerConflict,
    AnswerFailed,
    BadRequest,
    ManyOpenQueries,
    NoOpenQuery,
    NotAllowed,
    UnknownSession,
)
from everhold.mcp import elicitation, instructions, render
from everhold.mcp.tool_call import StatusResult, ToolCall
from everhold.mcp.tool_schema import MAX_WAIT_SECONDS, ServerTool
from everhold.ports.answerer import Answer
from everhold.ports.store import SessionRecord, Store
from everhold.wire import dump_wire_json, exception_json

#: Steps in a list of steps, the newest.
MAX_STEPS: Final = 50
#: Characters of a prompt or an answer in a list of steps.
PREVIEW_LENGTH: Final = 200

ArgsT = TypeVar("ArgsT", bound=msgspec.Struct)
Handler = Callable[[ToolCall, ArgsT], Awaitable[Any]]

_TOOLS: Final[list[ServerTool]] = []


def _tool(
    title: str, description: str, takes: type[ArgsT], **hints: bool
) -> Callable[[Handler[ArgsT]], Handler[ArgsT]]:
    """Add a handler to the table of tools, under its own name."""

    def add(handle: Handler[ArgsT]) -> Handler[ArgsT]:
        _TOOLS.append(ServerTool(handle.__name__, title, description, takes, handle, **hints))
        return handle

    return add


_TEXT: Final = {"type": "string"}

SessionName = Annotated[
    str,
    Meta(
        description="The session: its id, the beginning of its id, its key, or @last (the newest)."
    ),
]
WaitSeconds = Annotated[
    float | None,
    Meta(
        description="Seconds to wait for timers, child sessions and answers from elsewhere."
        f" Default 30, at most {MAX_WAIT_SECONDS:.0f}."
    ),
]

_STATUSES: Final = (
    "The result has a status. needs_response: answer its questions with the tool `answer`."
    " completed: the outcome is in `result`. waiting: see `next`. error: the session failed;"
    " `retry` may help."
)


# ---- run


class SpendingLimits(msgspec.Struct, forbid_unknown_fields=True):
    """Limits of a session. A request beyond one fails with budget_exceeded."""

    max_llm_calls: Annotated[
        int | None, Meta(description="How many answers of models the session may request.")
    ] = None
    max_elapsed_ms: Annotated[
        int | None, Meta(description="How long the session may take, in milliseconds.")
    ] = None
    max_tokens: Annotated[
        int | None,
        Meta(description="How many tokens the session may use, in prompts and answers together."),
    ] = None

    def to_dict(self) -> dict[str, int]:
        """The limits that are given."""
        given = msgspec.structs.asdict(self)
        return {name: limit for name, limit in given.items() if limit is not None}


NewLimits = Annotated[
    SpendingLimits | None,
    Meta(description="Limits to change, such as a larger one. The others stay as they are."),
]


class RunArgs(msgspec.Struct, forbid_unknown_fields=True):
    program: Annotated[
        str | None,
        Meta(description="Name of a strategy or program. The tool `strategies` lists them."),
    ] = None
    args: Annotated[
        dict[str, Any] | None,
        Meta(
            description='Arguments of the program by name, such as {"task": "…"}. With code, the'
            " value of `ctx` in the code."
        ),
    ] = None
    code: Annotated[
        str | None,
        Meta(description="Lua code to run instead of a program. Read everhold://guide first."),
    ] = None
    code_file: Annotated[
        str | None,
        Meta(description="Path of a .lua file in the project, to run instead of a program."),
    ] = None
    key: Annotated[
        str | None,
        Meta(
            description="A name that you choose. Another run with the same key continues the same"
            " session."
        ),
    ] = None
    again: Annotated[
        bool,
        Meta(
            description="With the key of a deleted session: start a new session. Without it, such"
            " a run is refused."
        ),
    ] = False
    title: Annotated[
        str | None, Meta(description="A few words by which a person recognises the session.")
    ] = None
    budget: Annotated[
        SpendingLimits | None, Meta(description="Limits on what the session may spend.")
    ] = None
    wait: WaitSeconds = None


@_tool(
    "Run a strategy or program",
    "Start a reasoning strategy, an installed program, or Lua code that you wrote. Give exactly"
    " one of program, code and code_file. The session runs until it has questions for you, the"
    " model. Answer each question in your own words with the tool `answer`, and repeat until the"
    f" status is completed. {_STATUSES} For a strategy, the first result estimates how many"
    " answers and rounds will follow. Sessions are stored on disk: they survive restarts, and"
    " `status` shows their open questions again. Lua code runs in a sandbox without files or"
    " network.",
    RunArgs,
    world=True,
)
async def run(call: ToolCall, given: RunArgs) -> StatusResult:
    if sum(one is not None for one in (given.program, given.code, given.code_file)) != 1:
        raise BadRequest("run", "give exactly one of program, code and code_file")
    args = given.args or {}
    if given.program is None:
        started = call.holder.code(given.code, given.code_file, args)
    else:
        started = call.holder.program(given.program)(**args)
    title = instructions.make_session_title(given.program or given.code_file or "code", args)
    title = given.title or title
    status = await call.runtime.start(
        started,
        key=given.key,
        title=title,
        budget=_read_budget(given.budget),
        wait=0,
        again=given.again,
    )
    title = (
        (await call.runtime.store.load(status.session_id, since=-1)).birth.title
        if given.key
        else title
    )
    extra: dict[str, JSON] = {}
    estimate = instructions.render_estimate(started.program, started.args)
    if estimate is not None:
        extra["estimate"] = estimate
    return await call.settle(status, title, wait=given.wait, extra=extra, ref=started.program.ref)


def _read_budget(given: SpendingLimits | None) -> dict[str, int] | None:
    return None if given is None else given.to_dict() or None


# ---- answer

Tokens = Annotated[int, Meta(ge=0)]


class AnswerUsage(msgspec.Struct, forbid_unknown_fields=True):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class ToolAnswer(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[
        str | None,
        Meta(description="`id` of the question. Required if several questions are open."),
    ] = None
    response: Annotated[
        Any,
        Meta(
            description="Your answer: plain text, or JSON as text if the question has a schema.",
            extra_json_schema=_TEXT,
        ),
    ] = UNSET
    error: Annotated[
        str | None,
        Meta(
            description="Instead of a response: why you cannot answer. The program gets this error."
        ),
    ] = None
    usage: Annotated[
        AnswerUsage | None, Meta(description="Tokens that the answer cost, if you know them.")
    ] = None


class AnswerArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    answers: Annotated[
        list[ToolAnswer],
        Meta(
            description="One entry for each question that you answer. If you can, answer all open"
            " questions in one call."
        ),
    ]
    wait: WaitSeconds = None


@_tool(
    "Answer a session's questions",
    "Answer open questions of a session, one or several in a call. The program then continues."
    " All answers of a call are recorded, or none: if one does not fit, the error says why."
    " Sending the same answer again changes nothing. You can answer questions for a model only;"
    f" a person answers approvals and questions for people. {_STATUSES} accepted: your answers"
    " are recorded, and other questions are still open.",
    AnswerArgs,
    repeats=True,
    world=True,
)
async def answer(call: ToolCall, given: AnswerArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    record = await call.runtime.store.load(session_id, since=-1)
    answers = await _check_answers(call, record, given.answers)
    by = elicitation.describe_client(call.context)
    status = await call.runtime.answer_many(session_id, answers, by=by, wait=0)
    return await _resume(call, record, status, given.wait)


async def _resume(
    call: ToolCall, record: SessionRecord, status: Status, wait: float | None
) -> StatusResult:
    birth = record.birth
    standing = await call.settle(
        status, birth.title, seen=record.head.n, wait=wait, ref=birth.program
    )
    standing.parent = birth.parent
    return standing


async def _check_answers(
    call: ToolCall, record: SessionRecord, answers: list[ToolAnswer]
) -> dict[str, Any]:
    """The answers by query id; raises `NotAllowed` for what a model may not answer."""
    session_id = record.birth.id
    asked = {q: entry.query for q, entry in find_open_queries(record.deliveries).items()}
    if not answers:
        raise BadRequest("answer", "answers is empty")
    found: dict[str, Any] = {}
    for one in answers:
        query_id = one.id or _get_sole_question(call, record, asked)
        q = parse_query_number(query_id)
        if q is not None and q not in asked:
            asked |= index_queries((await call.runtime.store.load(session_id)).deliveries)
        if q in asked:
            _refuse_person_question(call, session_id, asked[q])
        value = _read_answer(one)
        if query_id in found and not _is_same_answer(found[query_id], value):
            raise AnswerConflict(session_id, query_id, at_once=True)
        found[query_id] = value
    return found


def _get_sole_question(call: ToolCall, record: SessionRecord, asked: dict[int, Query]) -> str:
    """The one open question for a model."""
    ids = [query.id for query in asked.values() if query.kind in MODEL_KINDS]
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise ManyOpenQueries(record.birth.id, [*ids])
    for query in asked.values():
        _refuse_person_question(call, record.birth.id, query)
    raise NoOpenQuery(record.birth.id, record.head.state)


def _refuse_person_question(call: ToolCall, session_id: str, query: Query) -> None:
    if query.kind not in MODEL_KINDS:
        command = render.format_answer_command(OpenQuery(session_id, query, 0), call.holder.option)
        raise NotAllowed(
            f"{query.id} of session {session_id} is a question of kind {query.kind}, which a"
            " tool cannot answer",
            f"Ask the person to type `{command}`, or call the tool `ask_person`.",
        )


def _read_answer(one: ToolAnswer) -> Any:
    if one.error is not None:
        if one.response is not msgspec.UNSET and one.response is not None:
            raise BadRequest("answer", "give either a response or an error for each question")
        return AnswerFailed(one.error)
    if one.response is msgspec.UNSET:
        raise BadRequest("answer", "each answer needs a response or an error")
    if one.usage is None:
        return one.response
    return Answer(one.response, Usage(one.usage.prompt_tokens, one.usage.completion_tokens))


def _is_same_answer(one: Any, other: Any) -> bool:
    if isinstance(one, AnswerFailed) or isinstance(other, AnswerFailed):
        return (
            isinstance(one, AnswerFailed)
            and isinstance(other, AnswerFailed)
            and one.message == other.message
        )
    first, second = (value.value if isinstance(value, Answer) else value for value in (one, other))
    return is_same_json(first, second)


# ---- status


class StatusArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    steps: Annotated[
        bool, Meta(description="Also list the newest 50 steps with their questions and answers.")
    ] = False
    wait: Annotated[
        float | None,
        Meta(
            description="Seconds to wait until the session ends or has questions. Default 0, at"
            f" most {MAX_WAIT_SECONDS:.0f}."
        ),
    ] = None


@_tool(
    "Show a session",
    "Show a session: its status, its open questions in full, its result if it has ended, its"
    " progress and its cost. Use it to resume a session: after a restart, in another"
    " conversation, or when you no longer know its questions. With `wait`, the call waits for a"
    " timer, a child session or a person. Changes nothing.",
    StatusArgs,
    reads=True,
    repeats=True,
)
async def status(call: ToolCall, given: StatusArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    status = await call.runtime.status(session_id)
    record = await call.runtime.store.load(session_id, since=-1)
    if given.wait:
        # if this process has a model, it answers what another process left open
        status = await call.runtime.wait(session_id, 0)
        status = await call.wait_for_person(status, given.wait)
        status = (await call.settle(status, "", seen=record.head.n, wait=given.wait)).status
    ref = record.birth.program
    extra: dict[str, JSON] = {
        "program": ref,
        "steps": record.head.n + 1,
        **render.render_code_hint(ref, status),
    }
    shown = await call.runtime.snapshot(session_id)
    extra["metrics"] = render.render_metrics(shown["metrics"])
    if given.steps:
        extra["journal"] = _list_steps((await call.runtime.store.load(session_id)).deliveries)
    return StatusResult(status, record.birth.title, extra, parent=record.birth.parent)


def _list_steps(deliveries: list[Delivery]) -> list[JSON]:
    rows: list[JSON] = []
    for step in list(read_steps(deliveries))[-MAX_STEPS:]:
        answers: list[JSON] = [
            {
                "id": one.answer.id,
                "kind": str(one.query.kind),
                "prompt": _shorten(one.query.prompt or one.query.name),
                "answer": _shorten(
                    one.answer.value
                    if one.answer.error is None
                    else f"error: {format_answer_error(one.answer)}"
                ),
            }
            for one in step.answered
            if one.query is not None
        ]
        row: dict[str, JSON] = {
            "step": step.n,
            "answers": answers,
            "asked": [query.id for query in step.asked],
        }
        rows.append(row if step.notes.restart is None else {**row, "restarted": True})
    return rows


def _shorten(value: JSON) -> str:
    words = value if isinstance(value, str) else dump_wire_json(value)
    return words if len(words) <= PREVIEW_LENGTH else words[:PREVIEW_LENGTH] + "…"


# ---- sessions


class ListSessionsArgs(msgspec.Struct, forbid_unknown_fields=True):
    state: Annotated[
        str | None,
        Meta(
            description="List only sessions in this state: running, paused, completed, failed or"
            " cancelled."
        ),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=200, description="How many sessions to list.")] = 20
    after: Annotated[
        str | None, Meta(description="For the next page: the last session_id of this page.")
    ] = None


@_tool(
    "List sessions",
    "List sessions, newest first, with title, program, state and number of steps. Use it to find"
    " an earlier session. A paused session waits for answers; call `status` to see its questions."
    " Changes nothing.",
    ListSessionsArgs,
    status=False,
    reads=True,
    repeats=True,
)
async def sessions(call: ToolCall, given: ListSessionsArgs) -> dict[str, JSON]:
    after = None if given.after is None else await call.find_session(given.after)
    listed = await call.runtime.sessions(state=given.state, limit=given.limit, after=after)
    rows: list[JSON] = [
        {
            "session_id": one.session_id,
            "title": one.title,
            "state": str(one.state),
            "program": one.program.replace("\\", "/").rpartition("/")[2],
            "key": one.key,
            "steps": one.steps + 1,
            "updated_at": int(one.updated_at * 1000),
        }
        | ({"parent": one.parent} if one.parent else {})
        for one in listed
    ]
    found: dict[str, JSON] = {"database": call.runtime.database, "sessions": rows}
    if len(rows) == given.limit:
        only = f"state {given.state!r} and " if given.state else ""
        found["next"] = (
            f"For more, call the everhold tool `sessions` with {only}after"
            f" {listed[-1].session_id!r}."
        )
    return found


# ---- cancel


class CancelArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    reason: Annotated[str | None, Meta(description="Why. It is stored with the session.")] = None


@_tool(
    "Cancel a session",
    "Stop a session and its child sessions permanently. Its steps stay readable, and `fork` can"
    " start a new session from one of them. Use it only if the user wants to stop the session.",
    CancelArgs,
    destroys=True,
    repeats=True,
)
async def cancel(call: ToolCall, given: CancelArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    title = (await call.runtime.store.load(session_id, since=-1)).birth.title
    return StatusResult(await call.runtime.cancel(session_id, given.reason or ""), title)


# ---- fork


class ForkArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    at: Annotated[
        int | None,
        Meta(
            description="Number of the last step to share; `status` with steps: true lists the"
            " numbers. Default: the newest step."
        ),
    ] = None
    answer: Annotated[
        Any,
        Meta(
            description="A new answer that replaces the one of step `at` in the new session.",
            extra_json_schema=_TEXT,
        ),
    ] = UNSET
    id: Annotated[
        str | None,
        Meta(description="`id` of the question to answer anew, if step `at` answered several."),
    ] = None
    title: Annotated[str | None, Meta(description="A title for the new session.")] = None
    budget: NewLimits = None
    wait: WaitSeconds = None


@_tool(
    "Fork a session at a step",
    "Start a new session that shares the steps of another session up to step `at`. The other"
    " session does not change. With `answer`, the new session replaces the answer of that step:"
    " use it to try another answer without paying for the earlier steps again. A person's"
    f" decision cannot be shared: fork before it. {_STATUSES}",
    ForkArgs,
    world=True,
)
async def fork(call: ToolCall, given: ForkArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    record = await call.runtime.store.load(session_id)
    if (given.answer is not msgspec.UNSET or given.id is not None) and given.at is None:
        raise BadRequest("fork", "to replace an answer, give its step as `at`")
    await _refuse_decided(call, record, given)
    more: dict[str, Any] = {} if given.answer is msgspec.UNSET else {"answer": given.answer}
    status = await call.runtime.fork(
        session_id,
        at=given.at,
        query_id=given.id,
        title=given.title or "",
        budget=_read_budget(given.budget),
        wait=0,
        **more,
    )
    return await call.settle(
        status, given.title or record.birth.title, seen=record.head.n, wait=given.wait
    )


async def _refuse_decided(call: ToolCall, record: SessionRecord, given: ForkArgs) -> None:
    """Refuse to copy or replace an answer that did not come from a model."""
    last = record.head.n if given.at is None else given.at
    answered = (
        (step, one.asked)
        for step in read_steps(record.deliveries)
        for one in step.answered
        if step.n <= last and one.asked is not None
    )
    for step, entry in answered:
        query = entry.query
        replaced = step.n == last and given.answer is not msgspec.UNSET
        is_other = replaced and query.kind not in MODEL_KINDS
        if is_other or await is_decided(call.runtime.store, record.birth, entry):
            inside = (
                " that contains a person's decision"
                if query.kind is Kind.SESSION and not is_other
                else ""
            )
            raise NotAllowed(
                f"step {step.n} has the answer to {query.id}, a question of kind"
                f" {query.kind}{inside}; a tool cannot copy it into another session",
                f"Fork before it (at: {step.n - 1}, without an answer), or ask a person to type"
                f" `everhold fork {record.birth.id} --at {last}{call.holder.option}`.",
            )


async def is_decided(store: Store, birth: Birth, entry: AskedQuery) -> bool:
    """Whether a person decided the answer to this query, in this session or in a child session,
    however deep. If the child is deleted, the answer counts as a person's.
    """
    if entry.query.kind is not Kind.SESSION or is_process_query(entry.query):
        return KINDS[entry.query.kind].decision
    children = [
        found
        for one in await _list_ancestors(store, birth)
        if (found := await _load_or_none(store, child_id(one, entry)))
    ]
    return not children or any(
        [
            await is_decided(store, child.birth, one.asked)
            for child in children
            for step in read_steps(child.deliveries)
            for one in step.answered
            if one.asked is not None
        ]
    )


async def _list_ancestors(store: Store, birth: Birth) -> list[Birth]:
    """A session and the sessions it was forked from. The child may belong to any of them."""
    births = [birth]
    while births[-1].origin is not None and (
        before := await _load_or_none(store, births[-1].origin)
    ):
        births.append(before.birth)
    return births


async def _load_or_none(store: Store, session_id: str) -> SessionRecord | None:
    try:
        return await store.load(session_id)
    except UnknownSession:
        return None


# ---- retry


class RetryArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName
    budget: NewLimits = None
    wait: WaitSeconds = None


@_tool(
    "Retry a failed session",
    "Continue a failed session from its last answer, with the current version of the program."
    " All recorded answers are kept, and no question is asked twice. Use it if the status is"
    f" error. {_STATUSES}",
    RetryArgs,
    world=True,
)
async def retry(call: ToolCall, given: RetryArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    record = await call.runtime.store.load(session_id, since=-1)
    status = await call.runtime.retry(session_id, budget=_read_budget(given.budget), wait=0)
    return await _resume(call, record, status, given.wait)


# ---- strategies


class StrategiesArgs(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[
        str | None, Meta(description="Describe this program in full. Without it, list all.")
    ] = None


@_tool(
    "List strategies and programs",
    "List what `run` can start: the name, the purpose, and the cost in answers and rounds. With"
    " `name`, describe one program: its parameters, when to use it, and its sources. Changes"
    " nothing.",
    StrategiesArgs,
    status=False,
    reads=True,
    repeats=True,
)
async def strategies(call: ToolCall, given: StrategiesArgs) -> dict[str, JSON]:
    if given.name is not None:
        return instructions.render_program(call.holder.program(given.name))
    return instructions.render_catalog(call.holder.catalog())


# ---- explain


class SessionArgs(msgspec.Struct, forbid_unknown_fields=True):
    session_id: SessionName


@_tool(
    "Explain why a session waits",
    "Explain why a session is in its state and what would move it. Use it if a session waits and"
    " you do not know what for. Changes nothing.",
    SessionArgs,
    status=False,
    reads=True,
    repeats=True,
)
async def explain(call: ToolCall, given: SessionArgs) -> dict[str, JSON]:
    found = await call.runtime.explain(await call.find_session(given.session_id))
    return {
        "session_id": found.session_id,
        "state": str(found.state),
        "because": [*found.because],
        "moves": [render.translate_move(words, call.holder.option) for words in found.moves],
        **exception_json(found.exception),
    }


# ---- ask_person


@_tool(
    "Ask the person at this client",
    "Show a session's questions for people (approvals and input) to the person at this client,"
    " if the client can show forms. The person answers them, not you. If the client cannot show"
    " forms, the result has the command that the person types. Use it if a session waits for a"
    " person who is present.",
    SessionArgs,
    repeats=True,
    world=True,
)
async def ask_person(call: ToolCall, given: SessionArgs) -> StatusResult:
    session_id = await call.find_session(given.session_id)
    title = (await call.runtime.store.load(session_id, since=-1)).birth.title
    return StatusResult(await call.runtime.status(session_id), title, asked=True)


TOOLS: Final = tuple(_TOOLS)
BY_NAME: Final = {tool.name: tool for tool in TOOLS}


#: The schema of every status. Which of its keys are there depends on the status.
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
        "next": {"type": "string", "description": "What to do now, complete in itself."},
        "questions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "prompt": {"type": "string"}},
            },
            "description": "The open questions for you, each with its `id`.",
        },
        "for_people": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Questions and signals for people, each with its command.",
        },
        "remaining": {"type": "integer", "description": "How many questions are still open."},
        "result": {"description": "What the program returned."},
        "stats": {"type": "object"},
        "error": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "exception": {"type": "object", "description": "What the code raised, and where."},
        "estimate": {
            "type": "object",
            "description": "How many answers and rounds the session will take.",
        },
    },
    "required": ["status"],
}
