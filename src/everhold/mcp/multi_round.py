"""Rounds: a call that returns what it needs, and is made again with the answers (since protocol
2026-07-28).

Rules
  1. What is asked follows what the client has declared with this very request: a question for a
     model goes out as sampling, one for a person as elicitation. What it has not declared is not
     asked, and the result lists it.
  2. Sampling answers questions for a model, elicitation those for a person, never the other way
     round.
  3. An answer counts only with the sealed state we gave out for its question. A state that comes
     twice is harmless: what is answered already is not answered again.
  4. Clients give up after ten rounds. So does a call: the tenth is followed by an ordinary result,
     whose session id is good for as long as the session is.
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

import mcp_types as types
import msgspec
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.methods import is_input_required

from everhold.core.codec import JSON
from everhold.core.query import MODEL_KINDS, Usage
from everhold.core.status import OpenQuery, Status
from everhold.errors import NotAllowed
from everhold.mcp import elicitation, token
from everhold.mcp.render import list_model_questions, list_other_questions
from everhold.packages.settings import get_data_folder
from everhold.ports.answerer import Answer
from everhold.wire import dump_wire_json, error_json

if TYPE_CHECKING:
    from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateBoundary

log = logging.getLogger("everhold")

RequestContext = ServerRequestContext[Any, Any]
InputRequests = dict[str, types.InputRequest]

#: How often one call is answered with what it needs.
MAX_ROUNDS: Final = 10
#: Where a result that asks for something says which session it is about.
SESSION_META_KEY: Final = "everhold/session_id"
_SPEAKERS: Final = ("user", "assistant")
_SAMPLED: Final = (types.CreateMessageResult, types.CreateMessageResultWithTools)


class RoundState(msgspec.Struct, frozen=True):
    """What we asked for in a call that the client is to repeat: sealed, and read when it comes
    back.
    """

    session_id: str
    query_ids: list[str]
    round: int = 1


class RoundReply(msgspec.Struct, frozen=True):
    """What was asked for, and what came back."""

    put: RoundState
    responses: dict[str, Any]


# ---- what is asked


def has_sampling(context: RequestContext) -> bool:
    """Whether the client has said that it asks its model for us."""
    capabilities = context.session.client_capabilities
    return (
        elicitation.has_multi_round(context)
        and capabilities is not None
        and capabilities.sampling is not None
    )


def select_client_questions(status: Status) -> dict[str, OpenQuery]:
    """What can be put to some client, by query id: not what is addressed to somebody, nor what no
    form can ask.
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
    """What of these this client can be asked."""
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
    """What the next round asks; nothing if it was asked in vain, or the client would not listen any
    longer.
    """
    asked = select_supported_questions(context, select_client_questions(status))
    if list_model_questions(status):  # a person is asked when nothing is left for the model
        asked = {query_id: query for query_id, query in asked.items() if query.kind in MODEL_KINDS}
    if back is None:
        return asked
    fresh = asked.keys() - set(back.put.query_ids) | (asked.keys() & notes.keys())
    return asked if fresh and back.put.round < MAX_ROUNDS else {}


def build_input_requests(
    asked: Mapping[str, OpenQuery], title: str, notes: Mapping[str, str] | None = None
) -> InputRequests:
    """Questions as the protocol puts them to a client. `notes` says what was wrong with an earlier
    answer.
    """
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
    """What the client is to find out before it calls again."""
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
    params = types.CreateMessageRequestParams(
        messages=_messages(query, note),
        system_prompt=query.system,
        max_tokens=query.max_tokens,
        temperature=temperature if isinstance(temperature, int | float) else None,
        metadata=facts or None,
    )
    return types.CreateMessageRequest(params=params)


def _messages(query: OpenQuery, note: str) -> list[types.SamplingMessage]:
    earlier = _earlier(query)
    words = _words(query, note, alone=not earlier)
    return [*earlier, _message("user", words)] if words or not earlier else earlier


def _earlier(query: OpenQuery) -> list[types.SamplingMessage]:
    """The messages before the prompt, where sampling can say them as they are and the prompt does
    not.
    """
    if query.args is not None or not query.messages or not _plain(query.messages):
        return []
    return [
        _message(one["role"], one["content"]) for one in query.messages if isinstance(one, dict)
    ]


def _words(query: OpenQuery, note: str, *, alone: bool) -> str:
    """The prompt, and what a model has to know beside it."""
    # What an agent asks has `args`, and its prompt says its messages already.
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


def _plain(messages: list[JSON]) -> bool:
    return all(
        isinstance(one, dict)
        and one.get("role") in _SPEAKERS
        and isinstance(one.get("content"), str)
        for one in messages
    )


def _message(role: Any, words: Any) -> types.SamplingMessage:
    return types.SamplingMessage(role=role, content=types.TextContent(type="text", text=words))


# ---- what comes back


def read_round_reply(
    context: RequestContext, params: types.CallToolRequestParams
) -> RoundReply | None:
    """What was asked, and what came back; None for a first call. The state was unsealed before."""
    responses = dict(params.input_responses or {})
    if params.request_state is None:
        if responses:
            raise NotAllowed(
                "these are answers to questions that were not asked here", "Call without them."
            )
        return None
    refuse_undeclared(context, responses.values())
    return RoundReply(msgspec.json.decode(params.request_state, type=RoundState), responses)


def refuse_undeclared(context: RequestContext, responses: Iterable[object]) -> None:
    """Raise `NotAllowed` for answers of a sort that the client has not said it can give."""
    for response in responses:
        if isinstance(response, _SAMPLED) and not has_sampling(context):
            raise NotAllowed(
                "the client has not declared sampling, so what it brings is not its model's answer",
                "A model answers with the tool `answer`.",
            )
        if isinstance(response, types.ElicitResult) and not elicitation.has_elicitation(context):
            raise NotAllowed(
                "the client has not declared elicitation, so what it brings is not a person's"
                " answer",
                "A person answers with the command that the tool `status` shows.",
            )


def read_round_answer(query: OpenQuery, response: object) -> Any:
    """What a response says to a question; `UNSET` if it is no answer to it."""
    if query.kind not in MODEL_KINDS:
        return elicitation.read_form_result(query, response)
    if not isinstance(response, _SAMPLED):
        return msgspec.UNSET
    content: Any = response.content
    blocks = content if isinstance(content, list) else [content]
    if not blocks or not all(isinstance(block, types.TextContent) for block in blocks):
        return msgspec.UNSET
    return Answer("".join(block.text for block in blocks), Usage(model=response.model))


# ---- the sealed state

KEY_FILE: Final = "mcp.key"
#: Bytes of a key.
KEY_BYTES: Final = 32
#: Seconds after which a state is worthless.
STATE_TTL: Final = 24 * 3600.0
#: What no state is good for after the process.
_FLEETING: Final = "memory://"


class StateBoundary:
    """Seals and unseals the states of a server on a database.

    It is the library's, which is loaded with the first state, and whose refusal also says what to
    do.
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
        if (ctx.params or {}).get("requestState") is None:
            result = await call_next(ctx)
            return (
                await self._library(ctx, _returning(result))
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
                "the requestState is expired, changed, or was made for another call or database",
                "Nothing was done, and the session is as it was: the tool `sessions` finds it,"
                " `status` shows it.",
            )
            raise MCPError(
                error.error.code, error.error.message, {**data, **error_json(refusal)}
            ) from None


def _returning(result: HandlerResult) -> CallNext:
    async def call_next(ctx: ServerRequestContext[Any, Any]) -> HandlerResult:
        return result

    return call_next


class StateCodec:
    """Seals with the key of the data folder, made fit for one database. Nothing is read before it
    is needed.
    """

    def __init__(self, database: Callable[[], str]) -> None:
        self._database = database
        self._made: AESGCMRequestStateCodec | None = None

    def seal(self, payload: bytes) -> str:
        return self._codec().seal(payload)

    def unseal(self, token: str) -> bytes:
        return self._codec().unseal(token)

    def _codec(self) -> AESGCMRequestStateCodec:
        if self._made is None:
            from mcp.server.request_state import AESGCMRequestStateCodec

            database = self._database()
            root = (
                secrets.token_bytes(KEY_BYTES)
                if database == _FLEETING
                else load_state_key(get_data_folder())
            )
            self._made = AESGCMRequestStateCodec(
                [hmac.digest(root, database.encode(), hashlib.sha256)]
            )
        return self._made


def load_state_key(folder: Path) -> bytes:
    """The key in a folder, made if there is none; one of this process alone if none can be kept."""
    try:
        return _kept(folder / KEY_FILE) or _made(folder / KEY_FILE)
    except OSError as error:
        log.warning(
            "no key can be kept in %s (%s): what is asked now is forgotten on a restart",
            folder,
            error,
        )
        return secrets.token_bytes(KEY_BYTES)


def _kept(file: Path) -> bytes | None:
    """The key in a file; None if there is none that can be trusted."""
    try:
        with file.open("rb") as source:
            others = token.is_open_to_others(source.fileno())
            found = source.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    if others or len(found) != KEY_BYTES:
        log.warning("%s is %s: it is replaced", file, "open to others" if others else "damaged")
        file.unlink(missing_ok=True)
        return None
    return found


def _made(file: Path) -> bytes:
    """A new key in a file; of several processes that make one at once, all get the same."""
    token.create_owner_file(file, secrets.token_bytes(KEY_BYTES))
    found = _kept(file)
    if found is None:
        raise OSError(f"{file} cannot be kept readable by its owner alone")
    return found
