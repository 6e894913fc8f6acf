"""What comes in while a model speaks, as deltas for whoever listens."""

from __future__ import annotations

from typing import Any

from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from everhold.core.codec import dumps
from everhold.ports.stream import Delta, DeltaKind


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
