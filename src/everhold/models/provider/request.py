"""A query as a model's provider is asked: messages, what may be called, the form of the answer, and
settings.

Blocks a message may have: `text`, `image`, `tool_use`, `tool_result`, and `thinking`, which goes
back to the provider it came from with its signature. What a provider gave beside the words of a
block is under `provider` there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from everhold.core.codec import JSON
from everhold.core.graph import to_blocks
from everhold.core.query import Query
from everhold.errors import AnswerFailed
from everhold.models.provider.model_name import LOCAL_OPTIONS, refuse_unknown_option

#: Where a value stands in an answer whose form is not an object.
WRAPPED_VALUE: Final = "value"


def make_model_settings(query: Query, defaults: Mapping[str, Any]) -> ModelSettings:
    """What the provider is told beside the words; raises `AnswerFailed` for an option that nobody
    knows.
    """
    given = {
        name: value for name, value in (query.options or {}).items() if name not in LOCAL_OPTIONS
    }
    for name in given:
        refuse_unknown_option(name)
    conversation: dict[str, Any] = {"cache": True} if query.args is not None else {}
    return ModelSettings(**{"max_tokens": query.max_tokens, **conversation, **defaults, **given})  # type: ignore[typeddict-item]


def make_request_parameters(query: Query, *, native: bool) -> ModelRequestParameters:
    """The tools, and the form of the answer; `native` says whether the model can be held to a
    form.
    """
    options = query.options or {}
    tools = [_tool(tool) for tool in options.get("tools") or []]
    if not has_structured_answer(query):
        return ModelRequestParameters(function_tools=tools)
    form = OutputObjectDefinition(json_schema=_as_object(query.schema or {}), name="answer")
    return ModelRequestParameters(
        function_tools=tools, output_mode="native" if native else "prompted", output_object=form
    )


def _tool(told: Any) -> ToolDefinition:
    match told:
        case {"name": str(name), "input_schema": dict(schema)}:
            return ToolDefinition(
                name=name, description=told.get("description"), parameters_json_schema=schema
            )
    raise AnswerFailed(
        f"a tool has a name and an input_schema, which {told!r:.100} has not", "bad_option"
    )


def has_structured_answer(query: Query) -> bool:
    """Whether the answer is asked for as JSON of a form. Free text is text."""
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


def make_model_messages(query: Query) -> list[ModelMessage]:
    """The conversation so far, and the prompt as what was said last."""
    said: list[ModelMessage] = []
    calls: dict[str, str] = {}  # names of tools by the ids of their calls
    given = list(query.messages or [])
    if query.prompt or not given:
        given.append({"role": "user", "content": query.prompt})
    for message in given:
        if not isinstance(message, dict) or "role" not in message:
            raise AnswerFailed(
                f"a message has a role, which {message!r:.100} has not", "not_supported"
            )
        if message["role"] == "assistant":
            said.append(_response(message, calls))
            continue
        parts = list(_parts(message, calls))
        if said and isinstance(said[-1], ModelRequest):
            parts = [*said[-1].parts, *parts]
            said.pop()
        said.append(ModelRequest(parts))
    if query.system:
        for one in said:
            if isinstance(one, ModelRequest):
                one.instructions = query.system
    return said


def has_system_message(messages: list[ModelMessage]) -> bool:
    """Whether there are system messages among the others."""
    return any(isinstance(part, SystemPromptPart) for message in messages for part in message.parts)


def _parts(message: dict[str, Any], calls: Mapping[str, str]) -> Iterator[ModelRequestPart]:
    """What was said to the model: words and pictures together, results of tools each for itself."""
    content: list[UserContent] = []
    for block in to_blocks(message.get("content")):
        match block:
            case {"type": "tool_result"}:
                yield _result(block, calls)
            case {"type": "text", "text": str(words)} if message["role"] == "system":
                yield SystemPromptPart(words)
            case {"type": "text", "text": str(words)}:
                content.append(words)
            case {"type": "image", "image": image}:
                content.append(_picture(image))
            case _:
                raise _unsendable(block)
    if content:
        yield UserPromptPart(
            content[0] if len(content) == 1 and isinstance(content[0], str) else content
        )


def _result(block: dict[str, Any], calls: Mapping[str, str]) -> ToolReturnPart:
    call = str(block["tool_use_id"])
    content = block.get("content")
    if isinstance(content, list) and content and all(_is_block(one) for one in content):
        content = [
            _picture(one["image"]) if one["type"] == "image" else one["text"] for one in content
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


def _picture(image: Any) -> BinaryContent:
    try:
        return BinaryContent(
            base64.b64decode(image["data"], validate=True), media_type=image["media_type"]
        )
    except (KeyError, TypeError, binascii.Error) as error:
        raise AnswerFailed(f"a picture cannot be read: {error!r}", "not_supported") from None


def _response(message: dict[str, Any], calls: dict[str, str]) -> ModelResponse:
    parts: list[ModelResponsePart] = []
    provider: dict[str, Any] = {}
    for block in to_blocks(message.get("content")):
        parts.append(_said(block, calls))
        provider = provider or (block.get("provider") or {})
    return ModelResponse(
        parts, provider_name=provider.get("name"), canonical_system=provider.get("system")
    )


def _said(block: Any, calls: dict[str, str]) -> ModelResponsePart:
    kept = (block.get("provider") or {}) if isinstance(block, dict) else {}
    beside: dict[str, Any] = {
        "id": kept.get("id"),
        "provider_name": kept.get("name"),
        "provider_details": kept.get("details"),
    }
    match block:
        case {"type": "text", "text": str(words)}:
            return TextPart(words, **beside)
        case {"type": "thinking"}:
            return ThinkingPart(
                block.get("thinking", ""), signature=block.get("signature"), **beside
            )
        case {"type": "tool_use", "id": call, "name": name}:
            calls[call] = name
            return ToolCallPart(name, block.get("input") or {}, call, **beside)
    raise _unsendable(block)


def _unsendable(block: Any) -> AnswerFailed:
    kind = block.get("type", "something else") if isinstance(block, dict) else type(block).__name__
    return AnswerFailed(f"a message holds {kind}, which cannot be sent to a model", "not_supported")
