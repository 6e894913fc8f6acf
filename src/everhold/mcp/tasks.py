"""Sessions as tasks: the extension `io.modelcontextprotocol/tasks` of protocol 2026-07-28.

Rules
  1. A session is a task, and its id is the task's id. Tasks are in the store, not in this process:
     any server on the same database knows them, after any restart, and they do not expire.
  2. A call becomes a task only if the client has declared the extension with that call and can be
     asked the questions of the session. For other clients the call returns a status.
  3. The questions of a task are asked as in rounds: sampling for a model, elicitation for a person,
     each only if declared with the very request. The key of a question is its id. If a child
     session asks it, the key begins with the id of the child, so it never means another question.
  4. An update is recorded whole or not at all. Responses to questions that are not open are
     ignored, as the extension requires.
  5. A program that fails completes its task with an error result. A task fails only if everhold
     could not run it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import MODEL_KINDS
from everhold.core.status import Finished, OpenQuery, Paused, Raised, Running, Status, Stopped
from everhold.errors import BadRequest, EverholdError, Poison, StateError, UsageError, WorkerFailed
from everhold.mcp import elicitation, multi_round, render
from everhold.mcp.protocol import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ProtocolError,
    RequestContext,
)
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.sdk import types
from everhold.mcp.tool_call import find_asking_child
from everhold.ports.store import SessionRecord
from everhold.runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from everhold.mcp.task_params import TaskParams, TaskUpdateParams

log = logging.getLogger("everhold")

EXTENSION: Final = "io.modelcontextprotocol/tasks"
#: Tools whose sessions are tasks to clients that know tasks.
TASK_TOOLS: Final = frozenset({"run", "fork"})
#: Milliseconds between two polls of a client.
POLL_MS: Final = 1000
#: Codes of sessions that failed because everhold could not run them.
INTERNAL_FAILURE_CODES: Final = frozenset({Poison.code, WorkerFailed.code})


def has_task_support(context: RequestContext) -> bool:
    """Whether the client has declared tasks with this request."""
    capabilities = context.session.client_capabilities
    return (
        elicitation.has_multi_round(context)
        and capabilities is not None
        and EXTENSION in (capabilities.extensions or {})
    )


def is_task_request(context: RequestContext, holder: RuntimeHolder) -> bool:
    """Whether a session that this request starts is a task: its model questions must have an
    answerer.
    """
    return has_task_support(context) and (multi_round.has_sampling(context) or not holder.parked)


def make_missing_error() -> ProtocolError:
    """The error for a client that has not declared the extension."""
    needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
    return ProtocolError(
        types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client has not declared {EXTENSION}", needed
    )


class TaskHandlers:
    """Handles requests for tasks.

    `render` makes the result of a tool from a status and a title. `finish` runs a coroutine to its
    end, even if the caller is cancelled.
    """

    def __init__(
        self,
        holder: RuntimeHolder,
        *,
        render: Callable[[Status, str], dict[str, Any]],
        finish: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]],
    ) -> None:
        self._holder = holder
        self._render = render
        self._finish = finish

    def mount(self, server: Server[Any]) -> None:
        """Add the extension to a server of the library."""
        from everhold.mcp.task_params import TaskParams, TaskUpdateParams

        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get)
        server.add_request_handler("tasks/update", TaskUpdateParams, self.update)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel)

    async def created(self, session_id: str) -> dict[str, Any]:
        """The task of a session that was just started, in place of a result."""
        runtime = await self._holder.runtime()
        record = await runtime.store.load(session_id, since=-1)
        return {"resultType": "task", **_task(record), "status": "working"}

    async def get(self, context: RequestContext, params: TaskParams) -> dict[str, Any]:
        """The status of a task, with its questions or its result."""
        _check_request(context, params)
        with _protocol_errors(self._holder):
            runtime = await self._holder.runtime()
            status = await runtime.status(params.task_id)
            record = await runtime.store.load(params.task_id, since=-1)
            asked = multi_round.select_supported_questions(context, await _open(runtime, status))
        return {**_task(record), **self._detail(asked, status, record.birth.title)}

    async def update(self, context: RequestContext, params: TaskUpdateParams) -> dict[str, Any]:
        """Record the answers of the client."""
        _check_request(context, params)
        with _protocol_errors(self._holder):
            runtime = await self._holder.runtime()
            open_now = await _open(runtime, await runtime.status(params.task_id))
            known = {key: raw for key, raw in params.input_responses.items() if key in open_now}
            read = {key: _parse_response(open_now[key], raw) for key, raw in known.items()}
            multi_round.refuse_undeclared(context, read.values())
            answers = {key: _read_answer(open_now[key], response) for key, response in read.items()}
            given: dict[str, Any] = {
                open_now[key].id: value
                for key, value in answers.items()
                if value is not msgspec.UNSET
            }
            asking = next((query.session_id for query in open_now.values()), params.task_id)
            await self._finish(
                _record_answers(
                    runtime,
                    asking,
                    given,
                    elicitation.describe_client(context) | {"through": "task"},
                )
            )
        return {}

    async def cancel(self, context: RequestContext, params: TaskParams) -> dict[str, Any]:
        """Cancel a task. A task that has ended does not change."""
        _check_request(context, params)
        with _protocol_errors(self._holder):
            runtime = await self._holder.runtime()
            try:
                await self._finish(runtime.cancel(params.task_id, "cancelled by the MCP client"))
            except StateError as error:
                log.debug("task %s was not cancelled: %s", params.task_id, error)
        return {}

    def _detail(self, asked: dict[str, OpenQuery], status: Status, title: str) -> dict[str, Any]:
        if isinstance(status, Finished):
            outcome = status.outcome
            if isinstance(outcome, Stopped):
                return {
                    "status": "cancelled",
                    "statusMessage": outcome.reason or "The session was cancelled.",
                }
            failed = isinstance(outcome, Raised)
            if isinstance(outcome, Raised) and outcome.kind in INTERNAL_FAILURE_CODES:
                error = {
                    "code": INTERNAL_ERROR,
                    "message": outcome.error,
                    "data": {"code": outcome.kind},
                }
                return {"status": "failed", "statusMessage": outcome.error, "error": error}
            result = {**self._render(status, title), "isError": failed, "resultType": "complete"}
            return {"status": "completed", "result": result}
        if not asked:
            return {
                "status": "working",
                "statusMessage": _describe_waiting(status, self._holder.option),
            }
        shown = {
            key: _dump_model(request)
            for key, request in multi_round.build_input_requests(asked, title).items()
        }
        return {"status": "input_required", "inputRequests": shown}


async def _open(runtime: Runtime, status: Status) -> dict[str, OpenQuery]:
    """The questions of a task by key: those of its session, or of the child it waits for."""
    found = multi_round.select_client_questions(status)
    if found or not (child := await find_asking_child(runtime, status)):
        return found
    return {
        f"{child}/{key}": query
        for key, query in multi_round.select_client_questions(await runtime.status(child)).items()
    }


# ---- checks


def _check_request(context: RequestContext, params: TaskParams) -> None:
    """Raise `ProtocolError` for an undeclared extension, or a header that names another task."""
    if not elicitation.has_multi_round(context):
        raise ProtocolError(METHOD_NOT_FOUND, "Method not found", context.method)
    if not has_task_support(context):
        raise make_missing_error()
    from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value

    headers = getattr(context.request, "headers", None)  # a pipe has none
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != params.task_id:
        raise ProtocolError(
            types.HEADER_MISMATCH,
            f"the header {MCP_NAME_HEADER} does not name the task of the request",
        )


@contextmanager
def _protocol_errors(holder: RuntimeHolder) -> Iterator[None]:
    """Turn errors of everhold into errors of the protocol, with code and hint."""
    try:
        yield
    except EverholdError as error:
        shown = render.render_error(error, holder.option)
        code = INVALID_PARAMS if isinstance(error, UsageError | StateError) else INTERNAL_ERROR
        raise ProtocolError(
            code, str(error), {"code": shown["code"], "hint": shown["hint"]}
        ) from None


# ---- answers


def _parse_response(
    query: OpenQuery, raw: Any
) -> types.ElicitResult | types.CreateMessageResultWithTools:
    """A response in the form that its question requires; raises `BadRequest`."""
    model = types.CreateMessageResultWithTools if query.kind in MODEL_KINDS else types.ElicitResult
    try:
        return model.model_validate(raw, by_name=False)
    except ValueError:
        raise BadRequest(
            "tasks/update", f"the response to {query.id} is not a {model.__name__}"
        ) from None


def _read_answer(query: OpenQuery, response: object) -> Any:
    """The answer in a response, or `UNSET` for a form that was not accepted."""
    value = multi_round.read_round_answer(query, response)
    if value is msgspec.UNSET and query.kind in MODEL_KINDS:
        raise BadRequest("tasks/update", f"the response to {query.id} is not text")
    return value


async def _record_answers(
    runtime: Runtime, session_id: str, given: dict[str, Any], by: dict[str, JSON]
) -> None:
    """Record answers together. A question that was answered elsewhere meanwhile is left out."""
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


# ---- the form of a task


def _task(record: SessionRecord) -> dict[str, Any]:
    return {
        "taskId": record.birth.id,
        "createdAt": _format_time(record.birth.created_at),
        "lastUpdatedAt": _format_time(record.head.updated_at),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _format_time(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def _describe_waiting(status: Status, option: str) -> str:
    """What a task without questions for this client waits for."""
    waits = [
        f"a model's answer to {query.id} (tool `answer`)"
        for query in render.list_model_questions(status)
    ]
    waits += [
        f"a person, who answers with `{render.format_answer_command(query, option)}`"
        for query in render.list_other_questions(status)
    ]
    waits += [
        f"a signal, which is sent with `{command}`"
        for _, command in render.list_signal_commands(status, option)
    ]
    waits += status.waiting_for if isinstance(status, Running | Paused) else ()
    return f"Waiting for {'; '.join(waits)}." if waits else "Working."


def _dump_model(model: Any) -> dict[str, Any]:
    shown: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return shown
