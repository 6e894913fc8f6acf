"""What a model said, in whichever form it came: words, blocks, or the simple form that people and
hosts write.

"Paris." words: the end of the turn {"content": [{"type": "text", …}, {"type": "tool_use", …}]}
blocks, as a provider says it {"text": "…", "tool_calls": [{"name": "search", "input": {…}}]} the
simple form; `content` may stand for `text`
"""

from __future__ import annotations

from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import extract_text, to_blocks
from everhold.errors import AnswerFailed


class ToolCall(msgspec.Struct, frozen=True):
    """The model wants a tool to be called."""

    id: str
    name: str
    input: JSON

    def result(self, content: JSON, *, error: bool = False) -> dict[str, JSON]:
        """The block that answers the call."""
        block: dict[str, JSON] = {"type": "tool_result", "tool_use_id": self.id, "content": content}
        return {**block, "is_error": True} if error else block

    def named(self, q: int) -> dict[str, JSON]:
        """The block that answers the call with the answer to a query."""
        return {"type": "tool_result", "tool_use_id": self.id, "q": q}


class ModelReply(msgspec.Struct, frozen=True):
    """What was said: its words, and the tools it calls. `blocks` is set if what was said is not
    kept as it came.
    """

    text: str
    calls: list[ToolCall]
    blocks: list[JSON] | None = None


def parse_model_reply(said: JSON, where: str) -> ModelReply:
    """What a model said; raises `AnswerFailed` for what is none of the forms. `where` names calls
    without id.
    """
    if isinstance(said, str):
        simple = _written(said)
        if simple is None:
            return ModelReply(said, [])
        said = simple
    if isinstance(said, dict) and (
        "tool_calls" in said or ("text" in said and "content" not in said)
    ):
        return _simple(said, where)
    found = to_blocks(said)
    if not found or not all(isinstance(block, dict) for block in found):
        raise AnswerFailed("the model said nothing that can be used", "empty_response")
    parts = _told_apart(found, where)
    calls = [
        ToolCall(one["id"], one["name"], one.get("input", {}))
        for one in parts
        if one.get("type") == "tool_use"
    ]
    return ModelReply(extract_text(said), calls, None if parts == found else parts)


def _told_apart(parts: list[Any], where: str) -> list[Any]:
    """Blocks in which each call has an id of its own: results are known by it. Those that have one
    keep it.
    """
    kept: list[Any] = []
    known: set[str] = set()
    for block in parts:
        if block.get("type") == "tool_use":
            if not isinstance(block.get("name"), str):
                raise AnswerFailed("a tool call needs a name and an input", "bad_tool_call")
            id = block.get("id")
            if not isinstance(id, str) or not id or id in known:
                block = {**block, "id": f"call-{where}-{len(known)}"}
            known.add(block["id"])
        kept.append(block)
    return kept


def _written(said: str) -> JSON:
    """The simple form, if somebody wrote it as text."""
    if not said.lstrip().startswith("{"):
        return None
    try:
        value = msgspec.json.decode(said)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("tool_calls"), list) else None


def _simple(said: dict[str, JSON], where: str) -> ModelReply:
    words = said.get("text", said.get("content")) or ""
    if not isinstance(words, str):
        raise AnswerFailed("the text of an answer should be words", "bad_response")
    kept: list[JSON] = [{"type": "text", "text": words}] if words else []
    wanted = said.get("tool_calls") or []
    for one in wanted if isinstance(wanted, list) else [None]:
        if not isinstance(one, dict):
            raise AnswerFailed("a tool call needs a name and an input", "bad_tool_call")
        kept.append(
            {
                "type": "tool_use",
                "id": one.get("id"),
                "name": one.get("name"),
                "input": one.get("input", {}),
            }
        )
    if not kept:
        raise AnswerFailed("the model said nothing that can be used", "empty_response")
    kept = _told_apart(kept, where)
    calls = [
        ToolCall(one["id"], one["name"], one["input"]) for one in kept if one["type"] == "tool_use"
    ]
    return ModelReply(words, calls, kept)
