"""Sessions as tasks: the extension `io.modelcontextprotocol/tasks` of protocol 2026-07-28.

Rules
  1. A session is a task and its id is the task's id. A task is in the store, not in this process:
     any server on the same database tells of it, after any restart, and it does not expire.
  2. A call becomes a task only for a client that has declared the extension with that call, and
     that can be asked what the session will ask. To others the call returns a status, as ever.
  3. What a task needs is asked as in rounds: sampling for a model, elicitation for a person, both
     only where declared with the very request. A key is a query's id, after that of the child that
     asks it if it is a child's, so it never means another question.
  4. An update is taken whole or not at all. Responses to what is not open are ignored, as the
     extension asks.
  5. A program that fails completes its task with an error result. A task fails only if our own work
     broke.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value

from everhold.core.codec import JSON
from everhold.core.query import MODEL_KINDS
from everhold.core.status import Finished, OpenQuery, Paused, Raised, Running, Status, Stopped
from everhold.errors import BadRequest, EverholdError, Poison, StateError, UsageError, WorkerFailed
from everhold.mcp import elicitation, multi_round, render
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.tool_call import find_asking_child
from everhold.ports.store import SessionRecord
from everhold.runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

log = logging.getLogger("everhold")

RequestContext = ServerRequestContext[Any, Any]

EXTENSION: Final = "io.modelcontextprotocol/tasks"
#: Tools whose sessions are tasks to clients that know tasks.
TASK_TOOLS: Final = frozenset({"run", "fork"})
#: Milliseconds after which it is worth looking again.
POLL_MS: Final = 1000
#: How a session ends when our own work broke, and not its program.
INTERNAL_FAILURE_CODES: Final = frozenset({Poison.code, WorkerFailed.code})


class TaskParams(types.RequestParams):
    """Which task is meant."""

    task_id: str


class TaskUpdateParams(TaskParams):
    """Answers to what a task needs; each is read when it is known what it answers."""

    input_responses: dict[str, Any]


def has_task_support(context: RequestContext) -> bool:
    """Whether the client has said with this request that it knows tasks."""
    capabilities = context.session.client_capabilities
    return (
        elicitation.has_multi_round(context)
        and capabilities is not None
        and EXTENSION in (capabilities.extensions or {})
    )


def is_task_request(context: RequestContext, holder: RuntimeHolder) -> bool:
    """Whether a session that this request starts is a task: somebody must be there to answer for a
    model.
    """
    return has_task_support(context) and (multi_round.has_sampling(context) or not holder.parked)


def make_missing_error() -> MCPError:
    """The refusal of those who have not declared the extension."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return MCPError(
        types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client has not declared {EXTENSION}", needed
    )


class TaskHandlers:
    """What a server does with tasks.

    `told` makes the result of a tool from a status and a title; `finished` does something to its
    end.
    """

    def __init__(
        self,
        holder: RuntimeHolder,
        *,
        told: Callable[[Status, str], types.CallToolResult],
        finished: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
    ) -> None:
        self._holder = holder
        self._told = told
        self._finished = finished

    def mount(self, server: Server[Any]) -> None:
        """Offer the extension."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def created(self, session_id: str) -> dict[str, Any]:
        """A session that was just committed, as the task in place of a result."""
        runtime = await self._holder.runtime()
        record = await runtime.store.load(session_id, since=-1)
        return {"resultType": "task", **_task(record), "status": "working"}

    async def get(self, context: RequestContext, params: TaskParams) -> dict[str, Any]:
        """Where a task stands, with what it needs or what came of it."""
        _let_in(context, params)
        with _refusing(self._holder):
            runtime = await self._holder.runtime()
            status = await runtime.status(params.task_id)
            record = await runtime.store.load(params.task_id, since=-1)
            asked = multi_round.select_supported_questions(context, await _open(runtime, status))
        return {**_task(record), **self._detail(asked, status, record.birth.title)}

    async def update(self, context: RequestContext, params: TaskUpdateParams) -> dict[str, Any]:
        """Hand on what the client found out."""
        _let_in(context, params)
        with _refusing(self._holder):
            runtime = await self._holder.runtime()
            open_now = await _open(runtime, await runtime.status(params.task_id))
            known = {key: raw for key, raw in params.input_responses.items() if key in open_now}
            read = {key: _read(open_now[key], raw) for key, raw in known.items()}
            multi_round.refuse_undeclared(context, read.values())
            answers = {key: _value(open_now[key], response) for key, response in read.items()}
            given: dict[str, Any] = {
                open_now[key].id: value
                for key, value in answers.items()
                if value is not msgspec.UNSET
            }
            asking = next((query.session_id for query in open_now.values()), params.task_id)
            await self._finished(
                _answered(
                    runtime,
                    asking,
                    given,
                    elicitation.describe_client(context) | {"through": "task"},
                )
            )
        return {}

    async def cancel(self, context: RequestContext, params: TaskParams) -> dict[str, Any]:
        """Stop a task; one that has ended stays as it is."""
        _let_in(context, params)
        with _refusing(self._holder):
            runtime = await self._holder.runtime()
            try:
                await self._finished(runtime.cancel(params.task_id, "cancelled by the MCP client"))
            except StateError as error:
                log.debug("task %s was not cancelled: %s", params.task_id, error)
        return {}

    def _detail(self, asked: dict[str, OpenQuery], status: Status, title: str) -> dict[str, Any]:
        if isinstance(status, Finished):
            return self._ended(status, title)
        if not asked:
            return {"status": "working", "statusMessage": _words(status, self._holder.option)}
        shown = {
            key: _dumped(request)
            for key, request in multi_round.build_input_requests(asked, title).items()
        }
        return {"status": "input_required", "inputRequests": shown}

    def _ended(self, status: Finished, title: str) -> dict[str, Any]:
        outcome = status.outcome
        if isinstance(outcome, Stopped):
            return {
                "status": "cancelled",
                "statusMessage": outcome.reason or "The session was cancelled.",
            }
        failed = isinstance(outcome, Raised)
        if isinstance(outcome, Raised) and outcome.kind in INTERNAL_FAILURE_CODES:
            error = {
                "code": types.INTERNAL_ERROR,
                "message": outcome.error,
                "data": {"code": outcome.kind},
            }
            return {"status": "failed", "statusMessage": outcome.error, "error": error}
        result = self._told(status, title).model_copy(update={"is_error": failed})
        return {"status": "completed", "result": _dumped(result)}


async def _open(runtime: Runtime, status: Status) -> dict[str, OpenQuery]:
    """What a task needs, by its key: what the session asks, or the child that it waits for."""
    found = multi_round.select_client_questions(status)
    if found or not (child := await find_asking_child(runtime, status)):
        return found
    return {
        f"{child}/{key}": query
        for key, query in multi_round.select_client_questions(await runtime.status(child)).items()
    }


# ---- who is let in


def _let_in(context: RequestContext, params: TaskParams) -> None:
    """Refuse what the protocol forbids: an undeclared extension, and a header that names another
    task.
    """
    if not elicitation.has_multi_round(context):
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", context.method)
    if not has_task_support(context):
        raise make_missing_error()
    headers = getattr(context.request, "headers", None)  # there are none on standard input
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise MCPError(
            types.HEADER_MISMATCH,
            f"the header {MCP_NAME_HEADER} does not name the task of the request",
        )


@contextmanager
def _refusing(holder: RuntimeHolder) -> Iterator[None]:
    """Errors of ours as errors of the protocol, with code and hint."""
    try:
        yield
    except EverholdError as error:
        shown = render.render_error(error, holder.option)
        code = (
            types.INVALID_PARAMS
            if isinstance(error, UsageError | StateError)
            else types.INTERNAL_ERROR
        )
        raise MCPError(code, str(error), {"code": shown["code"], "hint": shown["hint"]}) from None


# ---- answers


def _read(query: OpenQuery, raw: Any) -> types.ElicitResult | types.CreateMessageResultWithTools:
    """A response as what its question was put as; raises `BadRequest`."""
    model = types.CreateMessageResultWithTools if query.kind in MODEL_KINDS else types.ElicitResult
    try:
        return model.model_validate(raw, by_name=False)
    except ValueError:
        raise BadRequest(
            "tasks/update", f"the response to {query.id} is not a {model.__name__}"
        ) from None


def _value(query: OpenQuery, response: object) -> Any:
    """What a response says; `UNSET` for a form that was not filled in."""
    value = multi_round.read_round_answer(query, response)
    if value is msgspec.UNSET and query.kind in MODEL_KINDS:
        raise BadRequest("tasks/update", f"the response to {query.id} is not text")
    return value


async def _answered(
    runtime: Runtime, session_id: str, given: dict[str, Any], by: dict[str, JSON]
) -> None:
    """Give answers at once; what somebody else was quicker with is left to them."""
    while given:
        try:
            await runtime.answer_many(session_id, given, by=by, wait=0)
        except StateError:
            open_now = multi_round.select_client_questions(await runtime.status(session_id))
            left = {key: value for key, value in given.items() if key in open_now}
            if len(left) == len(given):
                raise
            given = left
        else:
            return


# ---- how a task looks


def _task(record: SessionRecord) -> dict[str, Any]:
    return {
        "taskId": record.birth.id,
        "createdAt": _moment(record.birth.created_at),
        "lastUpdatedAt": _moment(record.head.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _moment(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _words(status: Status, option: str) -> str:
    """What a task that needs nothing from this client waits for."""
    words = [
        f"a model's answer to {query.id} (tool `answer`)"
        for query in render.list_model_questions(status)
    ]
    words += [
        f"a person, who types `{render.format_answer_command(query, option)}`"
        for query in render.list_other_questions(status)
    ]
    words += status.waiting_for if isinstance(status, Running | Paused) else ()
    return f"Waiting for {'; '.join(words)}." if words else "Working."


def _dumped(model: Any) -> dict[str, Any]:
    shown: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return shown
