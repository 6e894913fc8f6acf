"""What a model answered, as everhold keeps it.

What comes in while a model speaks, as deltas for whoever listens.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic_ai.messages import (
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from everhold.core.codec import JSON, dumps
from everhold.core.query import Query, Usage
from everhold.models.provider.request import WRAPPED_VALUE, has_structured_answer, is_wrapped_schema
from everhold.ports.stream import Delta, DeltaKind


def read_answer_value(query: Query, response: ModelResponse) -> JSON:
    """The answer's value: blocks for a conversation, else words, or what the words say in the form
    asked for.
    """
    if query.args is not None or response.tool_calls:
        return {"content": read_answer_blocks(response)}
    words = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return _formed(query, words) if has_structured_answer(query) else words


def read_answer_blocks(response: ModelResponse) -> list[JSON]:
    """What was said as blocks, each with what its provider wants back with it."""
    found: list[JSON] = []
    for part in response.parts:
        match part:
            case TextPart(content=words):
                if words:
                    found.append({"type": "text", "text": words, **_beside(part, response)})
            case ThinkingPart(content=words, signature=signature):
                signed = {} if signature is None else {"signature": signature}
                found.append(
                    {"type": "thinking", "thinking": words, **signed, **_beside(part, response)}
                )
            case ToolCallPart(tool_name=name, tool_call_id=call):
                use = {"type": "tool_use", "id": call, "name": name, "input": _input(part)}
                found.append({**use, **_beside(part, response)})
    return found


def read_response_usage(response: ModelResponse, asked: str) -> Usage:
    """What it cost, under the model that really answered."""
    counted = response.usage
    return Usage(
        counted.input_tokens,
        counted.output_tokens,
        counted.cache_read_tokens,
        counted.cache_write_tokens,
        counted.output_reasoning_tokens,
        response.model_name or asked,
    )


def _formed(query: Query, words: str) -> JSON:
    """The value that the words are; they are left as they are where they are none, for the check at
    the door.
    """
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


def _input(part: ToolCallPart) -> JSON:
    """The input of a call; text that is no JSON object stays text, and the model is told that it
    does not fit.
    """
    if not isinstance(part.args, str):
        return part.args or {}
    try:
        found = msgspec.json.decode(part.args) if part.args.strip() else {}
    except msgspec.DecodeError:
        return part.args
    return found if isinstance(found, dict) else part.args


def _beside(
    part: TextPart | ThinkingPart | ToolCallPart, response: ModelResponse
) -> dict[str, JSON]:
    """What has to go back with a block, if anything: signatures and ids are worth nothing to other
    providers.
    """
    if part.id is None and not part.provider_details and not isinstance(part, ThinkingPart):
        return {}
    kept: dict[str, Any] = {
        "name": part.provider_name or response.provider_name,
        "system": response.canonical_system,
        "id": part.id,
        "details": part.provider_details,
    }
    return {"provider": {name: value for name, value in kept.items() if value is not None}}


def parse_stream_event(event: Any) -> Delta | None:
    """The piece of the answer that an event brings; None for those that bring none."""
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
