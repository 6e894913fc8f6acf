"""What providers of models write, for one scripted reply: whole, or as the events of a stream."""

import json
from dataclasses import dataclass, field
from typing import Any

JSON = Any


@dataclass
class Reply:
    """What a model says, whoever offers it."""

    text: str = ""
    thinking: str = ""
    signature: str = "c2lnbmVk"
    tools: list[tuple[str, str, dict[str, JSON]]] = field(default_factory=list)  # id, name, input
    finish: str = "stop"  # or "length", or "filter"
    prompt: int = 100
    completion: int = 20
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    model: str = "the-model-itself"


def pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def sse(event: str | None, data: JSON) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


# ---- OpenAI chat

_CHAT_ENDS = {"stop": "stop", "length": "length", "filter": "content_filter"}


def _chat_usage(reply: Reply) -> JSON:
    return {
        "prompt_tokens": reply.prompt,
        "completion_tokens": reply.completion,
        "total_tokens": reply.prompt + reply.completion,
        "prompt_tokens_details": {"cached_tokens": reply.cached},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning},
    }


def _chat_end(reply: Reply) -> str:
    return "tool_calls" if reply.tools else _CHAT_ENDS[reply.finish]


def chat_whole(reply: Reply) -> JSON:
    calls = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
        for call, name, given in reply.tools
    ]
    message = {"role": "assistant", "content": reply.text or None}
    if calls:
        message["tool_calls"] = calls
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _chat_end(reply)}],
        "usage": _chat_usage(reply),
    }


def chat_events(reply: Reply) -> list[bytes]:
    def chunk(delta: JSON, end: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return sse(None, {**frame, "choices": [choice]})

    frame = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": reply.model,
    }
    found = [chunk({"role": "assistant", "content": ""})]
    found += [chunk({"reasoning_content": piece}) for piece in pieces(reply.thinking)]
    found += [chunk({"content": piece}) for piece in pieces(reply.text)]
    for index, (call, name, given) in enumerate(reply.tools):
        begin = {
            "index": index,
            "id": call,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        found.append(chunk({"tool_calls": [begin]}))
        for piece in pieces(json.dumps(given)):
            found.append(
                chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            )
    found.append(chunk({}, _chat_end(reply)))
    found.append(sse(None, {**frame, "choices": [], "usage": _chat_usage(reply)}))
    return [*found, b"data: [DONE]\n\n"]


# ---- OpenAI responses


def _items(reply: Reply) -> list[JSON]:
    found: list[JSON] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        found.append(
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": summary,
                "encrypted_content": reply.signature,
            }
        )
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        found.append(
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    for at, (call, name, given) in enumerate(reply.tools):
        made = {
            "type": "function_call",
            "id": f"fc_{at}",
            "call_id": call,
            "name": name,
            "status": "completed",
        }
        found.append({**made, "arguments": json.dumps(given)})
    return found


def responses_whole(reply: Reply, status: str | None = None) -> JSON:
    reasons = {"length": "max_output_tokens", "filter": "content_filter"}
    cut = reply.finish in reasons
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": reply.model,
        "status": status or ("incomplete" if cut else "completed"),
        "incomplete_details": {"reason": reasons[reply.finish]} if cut else None,
        "error": None,
        "output": [] if status else _items(reply),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None
        if status
        else {
            "input_tokens": reply.prompt,
            "output_tokens": reply.completion,
            "total_tokens": reply.prompt + reply.completion,
            "input_tokens_details": {
                "cached_tokens": reply.cached,
                "cache_write_tokens": reply.written,
            },
            "output_tokens_details": {"reasoning_tokens": reply.reasoning},
        },
    }


def responses_events(reply: Reply) -> list[bytes]:
    found: list[bytes] = []

    def add(event: str, **data: JSON) -> None:
        found.append(sse(event, {"type": event, "sequence_number": len(found), **data}))

    add("response.created", response=responses_whole(reply, "in_progress"))
    for at, item in enumerate(_items(reply)):
        match item["type"]:
            case "reasoning":
                add("response.output_item.added", output_index=at, item={**item, "summary": []})
                where = {"item_id": item["id"], "output_index": at, "summary_index": 0}
                empty = {"type": "summary_text", "text": ""}
                add("response.reasoning_summary_part.added", **where, part=empty)
                for piece in pieces(reply.thinking):
                    add("response.reasoning_summary_text.delta", **where, delta=piece)
            case "message":
                add("response.output_item.added", output_index=at, item={**item, "content": []})
                where = {"item_id": item["id"], "output_index": at, "content_index": 0}
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                add("response.content_part.added", **where, part=part)
                for piece in pieces(reply.text):
                    add("response.output_text.delta", **where, delta=piece, logprobs=[])
                add("response.output_text.done", **where, text=reply.text, logprobs=[])
            case _:
                add("response.output_item.added", output_index=at, item={**item, "arguments": ""})
                for piece in pieces(item["arguments"]):
                    where = {"item_id": item["id"], "output_index": at}
                    add("response.function_call_arguments.delta", **where, delta=piece)
        add("response.output_item.done", output_index=at, item=item)
    end = "response.incomplete" if reply.finish != "stop" else "response.completed"
    add(end, response=responses_whole(reply))
    return found


# ---- Anthropic

_ANTHROPIC_ENDS = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}


def _anthropic_usage(reply: Reply) -> JSON:
    """Anthropic counts what is cached beside the rest."""
    return {
        "input_tokens": reply.prompt - reply.cached - reply.written,
        "output_tokens": reply.completion,
        "cache_read_input_tokens": reply.cached,
        "cache_creation_input_tokens": reply.written,
        "output_tokens_details": {"thinking_tokens": reply.reasoning},
    }


def _anthropic_blocks(reply: Reply) -> list[JSON]:
    found: list[JSON] = []
    if reply.thinking:
        found.append({"type": "thinking", "thinking": reply.thinking, "signature": reply.signature})
    if reply.text:
        found.append({"type": "text", "text": reply.text})
    found += [
        {"type": "tool_use", "id": call, "name": name, "input": given}
        for call, name, given in reply.tools
    ]
    return found


def anthropic_whole(reply: Reply) -> JSON:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _anthropic_blocks(reply),
        "stop_reason": "tool_use" if reply.tools else _ANTHROPIC_ENDS[reply.finish],
        "stop_sequence": None,
        "usage": _anthropic_usage(reply),
    }


def anthropic_events(reply: Reply) -> list[bytes]:
    found: list[bytes] = []

    def add(event: str, **data: JSON) -> None:
        found.append(sse(event, {"type": event, **data}))

    whole = anthropic_whole(reply)
    begin = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 1},
    }
    add("message_start", message=begin)
    add("ping")
    for at, block in enumerate(whole["content"]):
        match block["type"]:
            case "thinking":
                add(
                    "content_block_start",
                    index=at,
                    content_block={"type": "thinking", "thinking": "", "signature": ""},
                )
                for piece in pieces(block["thinking"]):
                    add(
                        "content_block_delta",
                        index=at,
                        delta={"type": "thinking_delta", "thinking": piece},
                    )
                signed = {"type": "signature_delta", "signature": block["signature"]}
                add("content_block_delta", index=at, delta=signed)
            case "text":
                add("content_block_start", index=at, content_block={"type": "text", "text": ""})
                for piece in pieces(block["text"]):
                    add(
                        "content_block_delta", index=at, delta={"type": "text_delta", "text": piece}
                    )
            case _:
                add("content_block_start", index=at, content_block={**block, "input": {}})
                for piece in pieces(json.dumps(block["input"])):
                    add(
                        "content_block_delta",
                        index=at,
                        delta={"type": "input_json_delta", "partial_json": piece},
                    )
        add("content_block_stop", index=at)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    add("message_delta", delta=delta, usage=whole["usage"])
    add("message_stop")
    return found


# ---- Google

_GOOGLE_ENDS = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}


def _google(reply: Reply, parts: list[JSON], end: bool) -> JSON:
    candidate: JSON = {"content": {"role": "model", "parts": parts}, "index": 0}
    if end:
        candidate["finishReason"] = _GOOGLE_ENDS[reply.finish]
    return {
        "candidates": [candidate],
        "modelVersion": reply.model,
        "responseId": "r-1",
        "usageMetadata": {
            "promptTokenCount": reply.prompt,
            "candidatesTokenCount": reply.completion - reply.reasoning,
            "thoughtsTokenCount": reply.reasoning,
            "cachedContentTokenCount": reply.cached,
            "totalTokenCount": reply.prompt + reply.completion,
        },
    }


def _google_calls(reply: Reply) -> list[JSON]:
    return [
        {
            "functionCall": {"id": call, "name": name, "args": given},
            "thoughtSignature": reply.signature,
        }
        for call, name, given in reply.tools
    ]


def google_whole(reply: Reply) -> JSON:
    parts: list[JSON] = []
    if reply.thinking:
        parts.append({"text": reply.thinking, "thought": True})
    if reply.text:
        parts.append({"text": reply.text})
    return _google(reply, [*parts, *_google_calls(reply)], end=True)


def google_events(reply: Reply) -> list[bytes]:
    parts: list[JSON] = [{"text": piece, "thought": True} for piece in pieces(reply.thinking)]
    parts += [{"text": piece} for piece in pieces(reply.text)]
    parts += _google_calls(reply)
    last = len(parts) - 1
    return [sse(None, _google(reply, [part], end=at == last)) for at, part in enumerate(parts)]


# ---- errors


def error_body(provider: str, status: int, message: str, code: str = "") -> JSON:
    if provider == "anthropic":
        types = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        types |= {429: "rate_limit_error", 500: "api_error", 529: "overloaded_error"}
        return {
            "type": "error",
            "error": {"type": types.get(status, "api_error"), "message": message},
        }
    if provider == "google":
        names = {
            400: "INVALID_ARGUMENT",
            401: "UNAUTHENTICATED",
            404: "NOT_FOUND",
            429: "RESOURCE_EXHAUSTED",
        }
        return {
            "error": {
                "code": status,
                "message": message,
                "status": names.get(status, "UNAVAILABLE"),
            }
        }
    return {"error": {"message": message, "type": "error", "code": code or None, "param": None}}
