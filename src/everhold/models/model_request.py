"""One request to a provider's model: from a query to pydantic-ai messages, and back to an answer.

Blocks of a message are `text`, `image`, `tool_use`, `tool_result` and `thinking`. A provider's own
data of a block (ids, signatures) is kept under `provider` in the block, and is sent back to the
same provider only.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from everhold.core.codec import JSON, dumps
from everhold.core.graph import to_blocks
from everhold.core.query import Query, QueryAnswer, Usage
from everhold.errors import AnswerFailed
from everhold.models.provider_access import LOCAL_OPTIONS, ModelName, merge_provider_settings
from everhold.ports.answerer import Answer
from everhold.ports.stream import Delta, DeltaKind

#: The field that holds a value whose schema is not an object: providers accept only objects.
WRAPPED_VALUE: Final = "value"


def make_model_settings(provider: str, query: Query, defaults: Mapping[str, Any]) -> ModelSettings:
    """The request's settings; raises `AnswerFailed` for an unknown option."""
    given = {
        name: value for name, value in (query.options or {}).items() if name not in LOCAL_OPTIONS
    }
    merged = merge_provider_settings(provider, defaults, given)
    conversation: dict[str, Any] = {"cache": True} if query.args is not None else {}
    return ModelSettings(**{"max_tokens": query.max_tokens, **conversation, **merged})  # type: ignore[typeddict-item]


def make_request_parameters(query: Query, *, native: bool) -> ModelRequestParameters:
    """The tools and the schema of the answer; `native` if the provider can enforce a schema."""
    options = query.options or {}
    tools = [_make_tool(tool) for tool in options.get("tools") or []]
    if not has_structured_answer(query):
        return ModelRequestParameters(function_tools=tools)
    form = OutputObjectDefinition(json_schema=_as_object(query.schema or {}), name="answer")
    return ModelRequestParameters(
        function_tools=tools, output_mode="native" if native else "prompted", output_object=form
    )


def _make_tool(tool: Any) -> ToolDefinition:
    match tool:
        case {"name": str(name), "input_schema": dict(schema)}:
            return ToolDefinition(
                name=name, description=tool.get("description"), parameters_json_schema=schema
            )
    raise AnswerFailed(f"a tool needs a name and an input_schema: {tool!r:.100}", "bad_option")


def has_structured_answer(query: Query) -> bool:
    """Whether the answer must be JSON that matches a schema; a plain string is text."""
    schema = query.schema or {}
    return bool(schema) and not (
        schema.get("type") == "string" and set(schema) <= {"type", "title", "description"}
    )


def is_wrapped_schema(schema: Mapping[str, JSON]) -> bool:
    """Whether an answer of this form has to stand inside an object: providers take nothing else."""
    return schema.get("type") != "object"


def _as_object(schema: dict[str, JSON]) -> dict[str, JSON]:
    if not is_wrapped_schema(schema):
        return schema
    inner = {name: part for name, part in schema.items() if name != "$defs"}
    outer: dict[str, JSON] = {
        "type": "object",
        "properties": {WRAPPED_VALUE: inner},
        "required": [WRAPPED_VALUE],
        "additionalProperties": False,
    }
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


# ---- messages

#: Fields in which servers of the OpenAI chat API return the reasoning of a model.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")


def keep_reasoning_field(model: Model, messages: Sequence[ModelMessage]) -> Model:
    """The model, so configured that the messages are sent in the same bytes in every request.

    By default, pydantic-ai adds an empty reasoning field to tool calls without reasoning, and
    leaves it out again once a user message follows: no prompt cache would survive that.
    """
    maker: Any = getattr(sys.modules.get("pydantic_ai.models.openai"), "OpenAIChatModel", None)
    kind: Any = type(model)
    if kind is not maker:
        return model
    if model.profile.get("openai_chat_send_back_thinking_parts", "auto") != "auto":
        return model
    fields = [
        part.id
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ThinkingPart)
        and part.id in REASONING_FIELDS
        and part.provider_name == model.system
    ]
    if not fields or fields[0] is None:
        return model
    profile: Any = {
        **model.profile,
        "openai_chat_send_back_thinking_parts": "field",
        "openai_chat_thinking_field": fields[0],
    }
    return maker(  # type: ignore[no-any-return]
        model.model_name,
        provider=model.provider,  # with its client and connections
        profile=profile,
        settings=model.settings,
    )


def make_model_messages(query: Query) -> list[ModelMessage]:
    """The conversation as messages; the prompt is the last one."""
    messages: list[ModelMessage] = []
    calls: dict[str, str] = {}  # names of tools by the ids of their calls
    given = list(query.messages or [])
    if query.prompt or not given:
        given.append({"role": "user", "content": query.prompt})
    for message in given:
        if not isinstance(message, dict) or "role" not in message:
            raise AnswerFailed(f"a message needs a role: {message!r:.100}", "not_supported")
        if message.get("content") == []:  # imported sessions may have messages without content
            continue
        if message["role"] == "assistant":
            messages.append(_make_response(message, calls))
            continue
        parts = list(_make_request_parts(message, calls))
        # Providers expect the roles to alternate, so consecutive requests become one.
        if messages and isinstance(messages[-1], ModelRequest):
            parts = [*messages[-1].parts, *parts]
            messages.pop()
        messages.append(ModelRequest(parts))
    if query.system:
        for one in messages:
            if isinstance(one, ModelRequest):
                one.instructions = query.system
    return messages


def has_system_message(messages: list[ModelMessage]) -> bool:
    """Whether there are system messages among the others."""
    return any(isinstance(part, SystemPromptPart) for message in messages for part in message.parts)


def _make_request_parts(
    message: dict[str, Any], calls: Mapping[str, str]
) -> Iterator[ModelRequestPart]:
    """Text and images become one part; each tool result is a part of its own."""
    content: list[UserContent] = []
    for block in to_blocks(message.get("content")):
        match block:
            case {"type": "tool_result"}:
                yield _make_tool_return(block, calls)
            case {"type": "text", "text": str(words)} if message["role"] in ("system", "signal"):
                yield SystemPromptPart(words)
            case {"type": "text", "text": str(words)}:
                content.append(words)
            case {"type": "image", "image": image}:
                content.append(_decode_image(image))
            case _:
                raise _make_unsupported_error(block)
    if content:
        yield UserPromptPart(
            content[0] if len(content) == 1 and isinstance(content[0], str) else content
        )


def _make_tool_return(block: dict[str, Any], calls: Mapping[str, str]) -> ToolReturnPart:
    call = str(block["tool_use_id"])
    content = block.get("content")
    if isinstance(content, list) and content and all(_is_block(one) for one in content):
        content = [
            _decode_image(one["image"]) if one["type"] == "image" else one["text"]
            for one in content
        ]
    failed = bool(block.get("is_error"))
    return ToolReturnPart(
        calls.get(call, "unknown"), content, call, outcome="failed" if failed else "success"
    )


def _is_block(value: Any) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"type": "image", "image": dict()}:
            return True
    return False


def _decode_image(image: Any) -> BinaryContent:
    try:
        return BinaryContent(
            base64.b64decode(image["data"], validate=True), media_type=image["media_type"]
        )
    except (KeyError, TypeError, binascii.Error) as error:
        raise AnswerFailed(f"an image cannot be decoded: {error!r}", "not_supported") from None


def _make_response(message: dict[str, Any], calls: dict[str, str]) -> ModelResponse:
    parts: list[ModelResponsePart] = []
    provider: dict[str, Any] = {}
    for block in to_blocks(message.get("content")):
        parts.append(_make_response_part(block, calls))
        provider = provider or (block.get("provider") or {})
    return ModelResponse(
        parts, provider_name=provider.get("name"), canonical_system=provider.get("system")
    )


def _make_response_part(block: Any, calls: dict[str, str]) -> ModelResponsePart:
    stored = (block.get("provider") or {}) if isinstance(block, dict) else {}
    provider_data: dict[str, Any] = {
        "id": stored.get("id"),
        "provider_name": stored.get("name"),
        "provider_details": stored.get("details"),
    }
    match block:
        case {"type": "text", "text": str(words)}:
            return TextPart(words, **provider_data)
        case {"type": "thinking"}:
            return ThinkingPart(
                block.get("thinking", ""), signature=block.get("signature"), **provider_data
            )
        case {"type": "tool_use", "id": call, "name": name}:
            calls[call] = name
            return ToolCallPart(name, block.get("input") or {}, call, **provider_data)
    raise _make_unsupported_error(block)


def _make_unsupported_error(block: Any) -> AnswerFailed:
    kind = (
        block.get("type", "an unknown block") if isinstance(block, dict) else type(block).__name__
    )
    return AnswerFailed(
        f"a message contains {kind}, which cannot be sent to a model", "not_supported"
    )


def read_answer_value(query: Query, response: ModelResponse) -> JSON:
    """The answer's value: blocks for a conversation; otherwise text, or JSON for a schema."""
    if query.args is not None or response.tool_calls:
        return {"content": read_answer_blocks(response)}
    words = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return _parse_structured(query, words) if has_structured_answer(query) else words


def read_answer_blocks(response: ModelResponse) -> list[JSON]:
    """The response as blocks, each with the data that its provider needs back."""
    found: list[JSON] = []
    for part in response.parts:
        match part:
            case TextPart(content=words):
                if words:
                    found.append({"type": "text", "text": words, **_provider_data(part, response)})
            case ThinkingPart(content=words, signature=signature):
                signed = {} if signature is None else {"signature": signature}
                block = {"type": "thinking", "thinking": words, **signed}
                found.append({**block, **_provider_data(part, response)})
            case ToolCallPart(tool_name=name, tool_call_id=call):
                use = {"type": "tool_use", "id": call, "name": name, "input": _read_input(part)}
                found.append({**use, **_provider_data(part, response)})
    return found


def read_response_usage(response: ModelResponse, asked: str) -> Usage:
    """The usage of a response, under the name of the model that answered."""
    counted = response.usage
    return Usage(
        counted.input_tokens,
        counted.output_tokens,
        counted.cache_read_tokens,
        counted.cache_write_tokens,
        counted.output_reasoning_tokens,
        response.model_name or asked,
    )


def _parse_structured(query: Query, words: str) -> JSON:
    """The JSON value of a text. Text that is not JSON is returned: the answer check refuses it."""
    try:
        value = msgspec.json.decode(words)
    except msgspec.DecodeError:
        return words
    if (
        is_wrapped_schema(query.schema or {})
        and isinstance(value, dict)
        and set(value) == {WRAPPED_VALUE}
    ):
        return value[WRAPPED_VALUE]
    return value


def _read_input(part: ToolCallPart) -> JSON:
    """The input of a tool call. Text that is not a JSON object stays text: the tool refuses it."""
    if not isinstance(part.args, str):
        return part.args or {}
    try:
        found = msgspec.json.decode(part.args) if part.args.strip() else {}
    except msgspec.DecodeError:
        return part.args
    return found if isinstance(found, dict) else part.args


def _provider_data(
    part: TextPart | ThinkingPart | ToolCallPart, response: ModelResponse
) -> dict[str, JSON]:
    """The ids and details of a block that its provider needs back; others ignore them."""
    if part.id is None and not part.provider_details and not isinstance(part, ThinkingPart):
        return {}
    data: dict[str, Any] = {
        "name": part.provider_name or response.provider_name,
        "system": response.canonical_system,
        "id": part.id,
        "details": part.provider_details,
    }
    return {"provider": {name: value for name, value in data.items() if value is not None}}


def parse_stream_event(event: Any) -> Delta | None:
    """The delta of a stream event; None if it carries no part of the answer."""
    match event:
        case PartStartEvent(index=part, part=TextPart(content=words)):
            return _words(DeltaKind.TEXT, words, part)
        case PartStartEvent(index=part, part=ThinkingPart(content=words)):
            return _words(DeltaKind.THINKING, words, part)
        case PartStartEvent(
            index=part, part=ToolCallPart(tool_name=name, tool_call_id=call, args=args)
        ):
            return Delta(DeltaKind.TOOL, _json(args), part, call, name)
        case PartDeltaEvent(index=part, delta=TextPartDelta(content_delta=words)):
            return _words(DeltaKind.TEXT, words, part)
        case PartDeltaEvent(index=part, delta=ThinkingPartDelta(content_delta=words)):
            return _words(DeltaKind.THINKING, words, part)
        case PartDeltaEvent(index=part, delta=ToolCallPartDelta(args_delta=args)):
            return _words(DeltaKind.TOOL, _json(args), part)
    return None


def _words(kind: DeltaKind, words: str | None, part: int) -> Delta | None:
    return Delta(kind, words, part) if words else None


def _json(args: Any) -> str:
    return args or "" if args is None or isinstance(args, str) else dumps(args)


#: Finish reasons that are errors, and that a retry would not change.
FINAL_FINISH_REASONS: Final = {
    "length": (
        "output_limit",
        "the answer was cut at max_tokens={}; raise max_tokens, or ask for a shorter answer",
    ),
    "content_filter": ("content_filter", "the model refuses to answer (content filter)"),
}


async def ask_model(
    model: Model,
    name: ModelName,
    query: Query,
    defaults: Mapping[str, Any],
    *,
    listen: Callable[[Delta], None] | None,
) -> Answer | QueryAnswer:
    """Ask a model once; a final finish reason is an answer with an error. Raises other failures."""
    settings = make_model_settings(name.provider, query, defaults)
    native = bool(model.profile.get("supports_json_schema_output", False))
    parameters = make_request_parameters(query, native=native)
    messages = make_model_messages(query)
    model = keep_reasoning_field(model, messages)
    # Some providers accept no system message inside a conversation; prepare_messages moves it.
    if has_system_message(messages):
        messages = model.prepare_messages(messages, parameters)
    if listen is None:
        response = await model_request(
            model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        )
    else:
        async with model_request_stream(
            model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        ) as stream:
            async for event in stream:
                delta = parse_stream_event(event)
                if delta is not None:
                    listen(delta)
            response = stream.get()
    return _make_answer(name, query, response)


def _make_answer(name: ModelName, query: Query, response: ModelResponse) -> Answer | QueryAnswer:
    usage = read_response_usage(response, name.model)
    reason = response.finish_reason
    if reason in FINAL_FINISH_REASONS:
        code, words = FINAL_FINISH_REASONS[reason]
        return QueryAnswer(
            query.q,
            error={"code": code, "message": f"{name}: {words.format(query.max_tokens)}"},
            usage=usage,
        )
    if reason is None or reason == "error":
        raise AnswerFailed(f"{name}: the answer is incomplete", "bad_response")
    if not response.tool_calls and not any(
        isinstance(part, TextPart) and part.content for part in response.parts
    ):
        raise AnswerFailed(f"{name}: the answer is empty", "empty_response")
    return Answer(read_answer_value(query, response), usage)
