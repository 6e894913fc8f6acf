"""A question to a model that is stored by reference, as whoever may answer it sees it: in full.

Where no model answers, somebody else does: a person, or a host over MCP. They are shown the system
text, the messages and the tools; and, for those who only look at a prompt, all of it as text with
the forms that an answer may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import ModelView, to_blocks
from everhold.core.journal import Delivery
from everhold.core.query import Kind, Query
from everhold.ports.store import Store

#: What an answer may look like where the model may call tools.
_FORMS = (
    "Answer with plain words to end the turn, or call tools with JSON text of this form: "
    '{"text": "…", "tool_calls": [{"name": "…", "input": {…}}]}. '
    "You are told the results, and asked again."
)
_WORDS = "Answer with plain words: what the assistant says next."


def is_stored_by_reference(query: Query) -> bool:
    """Whether the journal has only a view of what was asked."""
    return (
        query.kind is Kind.LLM
        and isinstance(query.args, dict)
        and "leaf" in query.args
        and query.messages is None
    )


def expand_query(query: Query, whole: Query) -> Query:
    """The query in full, with a prompt that suffices alone."""
    options: dict[str, Any] = whole.options or {}
    return msgspec.structs.replace(
        query,
        prompt=_prompt(whole.messages or [], options.get("tools") or []),
        messages=whole.messages,
        system=whole.system,
        max_tokens=whole.max_tokens,
        options=whole.options,
        schema=query.schema if query.schema is not None else whole.schema,
    )


def expand_query_from_effect(query: Query, effect: Callable[[], Any] | None) -> Query:
    """The query in full, as its program knows it; unchanged where there is nothing to add."""
    return (
        query
        if effect is None or not is_stored_by_reference(query)
        else expand_query(query, effect())
    )


def expand_queries_from_journal(
    queries: Iterable[Query], deliveries: list[Delivery]
) -> dict[int, Query]:
    """Queries in full, read from the whole journal of their session; the program is not needed."""
    told = Conversation(deliveries)
    found = {}
    for query in queries:
        system, messages, tools = told.graph.shown(msgspec.convert(query.args, ModelView))
        options = {**(query.options or {}), **({"tools": tools} if tools else {})}
        whole = Query(query.q, query.key, messages=messages, system=system, options=options or None)
        whole = msgspec.structs.replace(whole, max_tokens=query.max_tokens)
        found[query.q] = expand_query(query, whole)
    return found


async def load_full_query(store: Store, session_id: str, query: Query) -> Query:
    """A query in full, also where the journal has it by reference."""
    if not is_stored_by_reference(query):
        return query
    record = await store.load(session_id)
    return expand_queries_from_journal([query], record.deliveries)[query.q]


# ---- as text


def _prompt(messages: list[JSON], tools: list[JSON]) -> str:
    parts = ["The conversation so far:", *(_message(message) for message in messages)]
    if tools:
        parts += ["The tools:", "\n".join(_tool(tool) for tool in tools)]
    return "\n\n".join([*parts, _FORMS if tools else _WORDS])


def _message(message: Any) -> str:
    said = "\n".join(_block(block) for block in to_blocks(message["content"]))
    return f"[{message['role']}]\n{said}"


def _block(block: Any) -> str:
    match block:
        case {"type": "text", "text": words}:
            return str(words)
        case {"type": "tool_use", "name": name}:
            return f"(calls {name} with {_json(block.get('input', {}))})"
        case {"type": "tool_result", "content": content}:
            return f"(result: {content if isinstance(content, str) else _json(content)})"
        case {"type": kind}:
            return f"({kind})"
    return _json(block)


def _tool(tool: Any) -> str:
    about = " ".join(str(tool.get("description", "")).split())
    return f"- {tool['name']}: {about} Input: {_json(tool.get('input_schema', {}))}"


def _json(value: JSON) -> str:
    return msgspec.json.encode(value).decode()
