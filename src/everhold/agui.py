r"""Events of a conversation as AG-UI events, for frontends that speak that protocol.

    translator = AgUi(session.id)
    async for event in session.events():
        for line in translator.of(event):
            yield f"data: {dumps(line)}\n\n"

A turn is a run, and a question to a model is a step. Events without a counterpart in AG-UI become
custom events `everhold.<kind>`. Streamed text is not repeated when its message is a fact; a message
that was not streamed is sent whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from everhold.agents.events import Event, EventKind
from everhold.core.codec import JSON
from everhold.core.graph import Node, extract_text, to_blocks
from everhold.core.message import Role
from everhold.core.turn import (
    CodeExecuted,
    MaxTurnsReached,
    SettledTurn,
    TurnAborted,
    TurnAnswered,
    TurnCancelled,
    TurnFailed,
)

__all__ = ["AgUi", "AgUiEvent"]

#: An event of AG-UI, as JSON.
AgUiEvent = dict[str, JSON]


class AgUi:
    """Translates the events of one conversation into AG-UI events."""

    def __init__(self, session_id: str) -> None:
        self._thread = session_id
        self._run = 0  # the turn that was started
        self._open: list[AgUiEvent] = []  # the events that end the streamed messages, newest last
        self._streamed: set[str] = set()  # queries whose text was streamed
        self._again: dict[str, int] = {}  # number of resets by query

    def of(self, event: Event) -> list[AgUiEvent]:
        """The AG-UI events for one event."""
        return [{**line, **_when(event)} for line in self._of(event)]

    def _of(self, event: Event) -> Iterator[AgUiEvent]:
        match event.kind:
            case EventKind.TEXT | EventKind.THINKING | EventKind.TOOL_CALL:
                yield from self._stream(event)
            case EventKind.MODEL_ASKED:
                yield {"type": "STEP_STARTED", "stepName": event.query}
            case EventKind.MODEL_ANSWERED:
                yield from self._close()
                yield {"type": "STEP_FINISHED", "stepName": event.query}
            case EventKind.MESSAGE if event.node is not None:
                yield from self._message(event, event.node)
            case EventKind.SETTLED if event.settled is not None:
                yield from self._settled(event.settled)
            case EventKind.RESET:
                self._again[event.query] = self._again.get(event.query, 0) + 1
                yield from self._close()
                self._streamed.discard(event.query)
                yield _custom(event)
            case EventKind.VIEW:
                self._open.clear()
                yield {"type": "MESSAGES_SNAPSHOT", "messages": format_agui_messages(event.value)}
            case EventKind.INPUT | EventKind.TOOL_STARTED | EventKind.TOOL_FINISHED:
                return  # the messages contain them
            case _:
                yield _custom(event)

    # ---- live text

    def _stream(self, event: Event) -> Iterator[AgUiEvent]:
        self._streamed.add(event.query)
        begin, piece, end = self._lines(event)
        if not any(line == end[-1] for line in self._open):
            yield from self._close()  # a part ends where the next begins
            yield from begin
            self._open += end
        if event.text:
            yield piece

    def _lines(self, event: Event) -> tuple[list[AgUiEvent], AgUiEvent, list[AgUiEvent]]:
        """The events that begin a part of an answer, add a piece to it, and end it."""
        again = self._again.get(event.query, 0)
        name = f"{event.query}.{event.part}" + (f".{again}" if again else "")
        match event.kind:
            case EventKind.TEXT:
                begin: list[AgUiEvent] = [
                    {"type": "TEXT_MESSAGE_START", "messageId": name, "role": "assistant"}
                ]
                piece: AgUiEvent = {
                    "type": "TEXT_MESSAGE_CONTENT",
                    "messageId": name,
                    "delta": event.text,
                }
                return begin, piece, [{"type": "TEXT_MESSAGE_END", "messageId": name}]
            case EventKind.THINKING:
                begin = [
                    {"type": "REASONING_START", "messageId": name},
                    {"type": "REASONING_MESSAGE_START", "messageId": name, "role": "reasoning"},
                ]
                piece = {
                    "type": "REASONING_MESSAGE_CONTENT",
                    "messageId": name,
                    "delta": event.text,
                }
                end: list[AgUiEvent] = [
                    {"type": "REASONING_MESSAGE_END", "messageId": name},
                    {"type": "REASONING_END", "messageId": name},
                ]
                return begin, piece, end
        call = event.call or name
        begin = [{"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": event.name}]
        piece = {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": event.text}
        return begin, piece, [{"type": "TOOL_CALL_END", "toolCallId": call}]

    def _close(self) -> Iterator[AgUiEvent]:
        yield from self._open
        self._open = []

    # ---- facts

    def _message(self, event: Event, node: Node) -> Iterator[AgUiEvent]:
        yield from self._begin(event.turn)
        if node.role is Role.ASSISTANT:
            if f"q-{node.q}" not in self._streamed:
                yield from _whole(node)
        elif node.role is Role.TOOL:
            for block in to_blocks(node.content):
                if block.get("type") == "tool_result":
                    yield {
                        "type": "TOOL_CALL_RESULT",
                        "messageId": f"{node.id}:{block['tool_use_id']}",
                        "toolCallId": block["tool_use_id"],
                        "content": _words(block.get("content")),
                        "role": "tool",
                    }

    def _begin(self, turn: int) -> Iterator[AgUiEvent]:
        if turn != self._run:
            self._run = turn
            yield {"type": "RUN_STARTED", "threadId": self._thread, "runId": _run(turn)}

    def _settled(self, settled: SettledTurn) -> Iterator[AgUiEvent]:
        yield from self._begin(settled.turn)
        yield from self._close()
        done: AgUiEvent = {
            "type": "RUN_FINISHED",
            "threadId": self._thread,
            "runId": _run(settled.turn),
        }
        match settled.outcome:
            case TurnFailed(error, code):
                yield {"type": "RUN_ERROR", "message": error, "code": code or "failed"}
            case TurnAborted(plugin, reason):
                yield {"type": "RUN_ERROR", "message": f"{plugin}: {reason}", "code": "aborted"}
            case MaxTurnsReached(limit):
                yield {
                    "type": "RUN_ERROR",
                    "message": f"the model called tools {limit} times",
                    "code": "max_turns",
                }
            case TurnCancelled():
                yield {**done, "outcome": {"type": "cancelled"}}
            case TurnAnswered(value) | CodeExecuted(value=value) if value is not None:
                yield {**done, "result": value, "outcome": {"type": "success"}}
            case _:
                yield {**done, "outcome": {"type": "success"}}


def format_agui_messages(view: Any) -> list[JSON]:
    """The messages of a view, in the format of AG-UI."""
    found: list[JSON] = []
    for message in [*view["messages"], *view["pending"]]:
        found += _messages(message["id"], message["role"], message["content"])
    return found


def _messages(name: str, role: str, content: JSON) -> Iterator[JSON]:
    if role == Role.TOOL:
        for block in to_blocks(content):
            if block.get("type") == "tool_result":
                call = block["tool_use_id"]
                yield {
                    "id": f"{name}:{call}",
                    "role": "tool",
                    "toolCallId": call,
                    "content": _words(block.get("content")),
                }
        return
    told: dict[str, JSON] = {
        "id": name,
        "role": role if role in ("user", "assistant", "system") else "user",
    }
    told["content"] = extract_text(content)
    calls = [_call(block) for block in to_blocks(content) if block.get("type") == "tool_use"]
    yield {**told, "toolCalls": calls} if calls else told


def _call(block: Any) -> JSON:
    function = {"name": block["name"], "arguments": _json(block.get("input", {}))}
    return {"id": block["id"], "type": "function", "function": function}


def _whole(node: Node) -> Iterator[AgUiEvent]:
    """The events of a message that was not streamed."""
    said = extract_text(node.content)
    if said:
        yield {"type": "TEXT_MESSAGE_START", "messageId": node.id, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": node.id, "delta": said}
        yield {"type": "TEXT_MESSAGE_END", "messageId": node.id}
    for block in to_blocks(node.content):
        if block.get("type") == "tool_use":
            yield {
                "type": "TOOL_CALL_START",
                "toolCallId": block["id"],
                "toolCallName": block["name"],
            }
            yield {
                "type": "TOOL_CALL_ARGS",
                "toolCallId": block["id"],
                "delta": _json(block.get("input", {})),
            }
            yield {"type": "TOOL_CALL_END", "toolCallId": block["id"]}


def _custom(event: Event) -> AgUiEvent:
    told = msgspec.to_builtins(event)
    return {"type": "CUSTOM", "name": f"everhold.{event.kind}", "value": told}


def _when(event: Event) -> AgUiEvent:
    return {"timestamp": int(event.at * 1000)} if event.at else {}


def _run(turn: int) -> str:
    return f"turn-{turn}"


def _words(content: JSON) -> str:
    return content if isinstance(content, str) else _json(content)


def _json(value: JSON) -> str:
    return msgspec.json.encode(value).decode()
