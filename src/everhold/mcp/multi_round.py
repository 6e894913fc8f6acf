"""Rounds: a call that returns questions, and is repeated with the answers (protocol 2026-07-28).

Rules
  1. Only what the client has declared with this very request is asked: sampling for questions for a
     model, elicitation for questions for a person. The result lists the other questions.
  2. Sampling answers questions for a model, and elicitation those for a person, never the other way
     round.
  3. An answer counts only with the sealed state that was sent with its question. A state that comes
     twice is harmless: an answered question is not answered again.
  4. Clients stop after ten rounds, and so does a call. After the tenth it returns an ordinary
     result, whose session id stays valid.
  5. The client can neither read nor forge the state (AES-256-GCM). It is valid for the same call on
     the same database, for a limited time. Any other state is refused, and nothing is done.
  6. The key outlives the process. It is in the user's data folder, readable by its owner only. A
     key that others could read, or that is damaged, is replaced, and states sealed with it become
     invalid. If no key can be stored, or the database does not outlive the process, the process
     makes its own key.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.query import MODEL_KINDS, Usage
from everhold.core.status import OpenQuery, Status
from everhold.errors import NotAllowed
from everhold.mcp import elicitation, token
from everhold.mcp.protocol import RequestContext
from everhold.mcp.render import list_model_questions, list_other_questions
from everhold.mcp.sdk import types
from everhold.packages.settings import get_data_folder
from everhold.ports.answerer import Answer
from everhold.wire import dump_wire_json, error_json

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateBoundary

log = logging.getLogger("everhold")

#: Rounds of one call.
MAX_ROUNDS: Final = 10
#: The key of `_meta` that names the session of a round.
SESSION_META_KEY: Final = "everhold/session_id"
_SPEAKERS: Final = ("user", "assistant")


class RoundState(msgspec.Struct, frozen=True):
    """The questions of a round. It is sealed, and the client returns it with the answers."""

    session_id: str
    query_ids: list[str]
    round: int = 1


class RoundReply(msgspec.Struct, frozen=True):
    """The questions of a round, and the responses of the client."""

    state: RoundState
    responses: dict[str, Any]


# ---- questions


def has_sampling(context: RequestContext) -> bool:
    """Whether the client has declared that it asks its model for the server."""
    capabilities = context.session.client_capabilities
    return (
        elicitation.has_multi_round(context)
        and capabilities is not None
        and capabilities.sampling is not None
    )


def select_client_questions(status: Status) -> dict[str, OpenQuery]:
    """The questions that a client can be asked, by query id.

    Left out are questions addressed to a named person, and those that no form can ask.
    """
    people = (
        query
        for query in list_other_questions(status)
        if query.to is None and elicitation.build_form(query) is not None
    )
    return {query.id: query for query in (*list_model_questions(status), *people)}


def select_supported_questions(
    context: RequestContext, found: Mapping[str, OpenQuery]
) -> dict[str, OpenQuery]:
    """Those of the questions that this client can be asked."""
    models = has_sampling(context)
    people = elicitation.has_elicitation(context)
    return {
        key: query
        for key, query in found.items()
        if (models if query.kind in MODEL_KINDS else people)
    }


def select_next_round(
    context: RequestContext, status: Status, back: RoundReply | None, notes: Mapping[str, str]
) -> dict[str, OpenQuery]:
    """The questions of the next round.

    Empty if the last round asked the same questions in vain, or if it was the last one allowed.
    """
    asked = select_supported_questions(context, select_client_questions(status))
    if list_model_questions(status):  # a person is asked when nothing is left for the model
        asked = {query_id: query for query_id, query in asked.items() if query.kind in MODEL_KINDS}
    if back is None:
        return asked
    fresh = asked.keys() - set(back.state.query_ids) | (asked.keys() & notes.keys())
    return asked if fresh and back.state.round < MAX_ROUNDS else {}


def build_input_requests(
    asked: Mapping[str, OpenQuery], title: str, notes: Mapping[str, str] | None = None
) -> dict[str, types.InputRequest]:
    """The questions as requests of the protocol. `notes` says why an earlier answer was refused."""
    return {
        query_id: _sampling(query, (notes or {}).get(query_id, ""))
        if query.kind in MODEL_KINDS
        else _form(query, title)
        for query_id, query in asked.items()
    }


def build_input_required(
    asked: Mapping[str, OpenQuery],
    title: str,
    *,
    number: int = 1,
    notes: Mapping[str, str] | None = None,
) -> types.InputRequiredResult:
    """The result that asks the client for answers."""
    session_id = next(iter(asked.values())).session_id
    state = msgspec.json.encode(RoundState(session_id, list(asked), number)).decode()
    return types.InputRequiredResult(
        input_requests=build_input_requests(asked, title, notes),
        request_state=state,
        _meta={SESSION_META_KEY: session_id},
    )


def _form(query: OpenQuery, title: str) -> types.ElicitRequest:
    found = elicitation.build_form(query)
    assert found is not None
    params = types.ElicitRequestFormParams(
        message=elicitation.format_form_message(query, title), requested_schema=found.schema
    )
    return types.ElicitRequest(params=params)


def _sampling(query: OpenQuery, note: str) -> types.CreateMessageRequest:
    temperature = (query.options or {}).get("temperature")
    facts: dict[str, Any] = {
        name: True for name in ("grounded", "underspecified") if getattr(query, name)
    }
    earlier = _earlier(query)
    text = _build_prompt(query, note, alone=not earlier)
    params = types.CreateMessageRequestParams(
        messages=[*earlier, _message("user", text)] if text or not earlier else earlier,
        system_prompt=query.system,
        max_tokens=query.max_tokens,
        temperature=temperature if isinstance(temperature, int | float) else None,
        metadata=facts or None,
    )
    return types.CreateMessageRequest(params=params)


def _earlier(query: OpenQuery) -> list[types.SamplingMessage]:
    """The messages before the prompt, if sampling can carry them and the prompt does not."""
    if (
        query.args is not None
        or not query.messages
        or not all(
            isinstance(one, dict)
            and one.get("role") in _SPEAKERS
            and isinstance(one.get("content"), str)
            for one in query.messages
        )
    ):
        return []
    return [
        _message(one["role"], one["content"]) for one in query.messages if isinstance(one, dict)
    ]


def _build_prompt(query: OpenQuery, note: str, *, alone: bool) -> str:
    """The prompt, with everything else that the model needs."""
    # the prompt of an agent, which has `args`, contains its messages already
    parts = (
        [dump_wire_json(query.messages)] if alone and query.messages and query.args is None else []
    )
    parts.append(query.prompt)
    if query.schema:
        parts.append(
            f"Answer with JSON of this schema, and nothing else: {dump_wire_json(query.schema)}"
        )
    if note:
        parts.append(f"An earlier answer was refused: {note}")
    return "\n\n".join(part for part in parts if part)


def _message(role: Any, words: Any) -> types.SamplingMessage:
    return types.SamplingMessage(role=role, content=types.TextContent(type="text", text=words))


# ---- answers


def _is_sampled(response: object) -> bool:
    return isinstance(response, types.CreateMessageResult | types.CreateMessageResultWithTools)


def read_round_reply(context: RequestContext, params: Any) -> RoundReply | None:
    """The questions and the responses, or None for a first call. The state is unsealed already."""
    responses = dict(params.input_responses or {})
    if params.request_state is None:
        if responses:
            raise NotAllowed(
                "inputResponses came without the requestState of a round",
                "Call again without inputResponses.",
            )
        return None
    refuse_undeclared(context, responses.values())
    return RoundReply(msgspec.json.decode(params.request_state, type=RoundState), responses)


def refuse_undeclared(context: RequestContext, responses: Iterable[object]) -> None:
    """Raise `NotAllowed` for answers of a kind that the client has not declared."""
    for response in responses:
        if _is_sampled(response) and not has_sampling(context):
            raise NotAllowed(
                "the client has not declared sampling, so it cannot send its model's answer",
                "Answer with the tool `answer`.",
            )
        if isinstance(response, types.ElicitResult) and not elicitation.has_elicitation(context):
            raise NotAllowed(
                "the client has not declared elicitation, so it cannot send a person's answer",
                "Ask the person to type the command that the tool `status` shows.",
            )


def read_round_answer(query: OpenQuery, response: object) -> Any:
    """The answer in a response, or `UNSET` if it does not answer the question."""
    if query.kind not in MODEL_KINDS:
        return elicitation.read_form_result(query, response)
    if not _is_sampled(response):
        return msgspec.UNSET
    reply: Any = response
    content: Any = reply.content
    blocks = content if isinstance(content, list) else [content]
    if not blocks or not all(isinstance(block, types.TextContent) for block in blocks):
        return msgspec.UNSET
    return Answer("".join(block.text for block in blocks), Usage(model=reply.model))


# ---- the sealed state

KEY_FILE: Final = "mcp.key"
#: Bytes of a key.
KEY_BYTES: Final = 32
#: Seconds for which a state is valid.
STATE_TTL: Final = 24 * 3600.0
#: The URL of a database that ends with the process.
_MEMORY_URL: Final = "memory://"


class StateBoundary:
    """Seals and unseals the states of a server on a database.

    The library does the work. It is loaded with the first state, and its refusals get a hint.
    """

    def __init__(self, database: Callable[[], str], ttl: float = STATE_TTL) -> None:
        self._codec = StateCodec(database)
        self._ttl = ttl

    @cached_property
    def _library(self) -> RequestStateBoundary:
        from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

        return RequestStateBoundary(
            RequestStateSecurity(codec=self._codec, ttl=self._ttl), default_audience="everhold"
        )

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types.methods import is_input_required

        if (ctx.params or {}).get("requestState") is None:
            result = await call_next(ctx)
            return (
                await self._library(ctx, _make_call_next(result))
                if is_input_required(result)
                else result
            )
        try:
            return await self._library(ctx, call_next)
        except MCPError as error:
            data = error.error.data
            if not isinstance(data, dict) or data.get("reason") != "invalid_request_state":
                raise
            refusal = NotAllowed(
                "the requestState is expired or changed, or belongs to another call or database",
                "Nothing was done, and the session has not changed. The tool `sessions` finds it,"
                " and `status` shows it.",
            )
            raise MCPError(
                error.error.code, error.error.message, {**data, **error_json(refusal)}
            ) from None


def _make_call_next(result: HandlerResult) -> CallNext:
    async def call_next(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        return result

    return call_next


class StateCodec:
    """Seals with a key for one database, derived from the key of the data folder.

    The key is read with the first state.
    """

    def __init__(self, database: Callable[[], str]) -> None:
        self._database = database
        self._loaded: AESGCMRequestStateCodec | None = None

    def seal(self, payload: bytes) -> str:
        return self._codec().seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec().unseal(token)

    def _codec(self) -> AESGCMRequestStateCodec:
        if self._loaded is None:
            from mcp.server.request_state import AESGCMRequestStateCodec

            database = self._database()
            root = (
                secrets.token_bytes(KEY_BYTES)
                if database == _MEMORY_URL
                else load_state_key(get_data_folder())
            )
            self._loaded = AESGCMRequestStateCodec(
                [hmac.digest(root, database.encode(), hashlib.sha256)]
            )
        return self._loaded


def load_state_key(folder: Path) -> bytes:
    """The key in a folder, made if it is missing. If it cannot be stored, a key of this process."""
    try:
        return _read_key(folder / KEY_FILE) or _create_key(folder / KEY_FILE)
    except OSError as error:
        log.warning(
            "no key can be stored in %s (%s): rounds that are open now end with this server",
            folder,
            error,
        )
        return secrets.token_bytes(KEY_BYTES)


def _read_key(file: Path) -> bytes | None:
    """The key in a file, or None if it is missing or cannot be trusted."""
    try:
        with file.open("rb") as source:
            others = token.is_open_to_others(source.fileno())
            found = source.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    if others or len(found) != KEY_BYTES:
        log.warning("%s is %s and is replaced", file, "readable by others" if others else "damaged")
        file.unlink(missing_ok=True)
        return None
    return found


def _create_key(file: Path) -> bytes:
    """A new key in a file. Processes that make one at the same time get the same key."""
    token.create_owner_file(file, secrets.token_bytes(KEY_BYTES))
    found = _read_key(file)
    if found is None:
        raise OSError(f"{file} cannot be made readable by its owner only")
    return found
