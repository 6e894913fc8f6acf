"""Sessions for people to look at: their steps, what was said to models, and snapshots for a status
call.

Everything here is read from the journal; no program is needed and nothing is run.

A question to a model that is stored by reference, as whoever may answer it sees it: in full.

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
from everhold.core.journal import AskedQuery, Delivery, find_open_queries
from everhold.core.progress import LogEntry, LogRing, Progress
from everhold.core.query import Kind, Query, QueryAnswer, QueryId
from everhold.core.session import Birth, Head
from everhold.core.status import HISTORY, Finished, OpenQuery, Outcome, SessionFacts, Stopped
from everhold.core.usage import measure_answer, measure_query, price_exchange
from everhold.engine.answer_check import list_answerable
from everhold.engine.journal_reader import JournalStep, read_outcome, read_steps
from everhold.ports.store import SessionRecord, Store

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


class Step(msgspec.Struct, frozen=True):
    """One record of the journal: what was handed to the program together, and what it asked in
    return.
    """

    n: int
    at: float
    answers: list[QueryAnswer]
    asked: list[Query]
    fired: bool  # timers went off
    cancel: str | None  # the reason, if it was cancelled
    retry: bool  # the step before it was handed over again
    withdrawn: list[QueryId]
    log: list[LogEntry]
    outcome: Outcome | None
    restart: dict[str, JSON] | None = None  # with what the program began again after it


def make_view_step(step: JournalStep) -> Step:
    notes = step.notes
    return Step(
        step.n,
        step.at,
        step.delivery.answers,
        step.asked,
        notes.fired,
        notes.cancel,
        notes.retry,
        [QueryId(f"q-{q}") for q in notes.withdrawn],
        notes.log,
        notes.outcome,
        None if notes.restart is None else notes.restart.args,
    )


def make_transcript(deliveries: Iterable[Delivery]) -> list[dict[str, JSON]]:
    """What models were asked and said, in the order asked; `response` is null where nothing was
    said.

    An error instead of a value is under `error`, and a conversation instead of a prompt under
    `messages`.
    """
    told = []
    for entry, answer, _ in _exchanges(deliveries):
        query = entry.query
        said = _said(query)
        said["response"] = None if answer is None else answer.value
        if answer is not None and answer.error is not None:
            said["error"] = answer.error.get("message", "")
        told.append(said)
    return told


def _said(query: Query) -> dict[str, JSON]:
    said: dict[str, JSON] = {"query_id": query.id, "prompt": query.prompt, "system": query.system}
    if query.messages is not None:
        said["messages"] = query.messages
    return said


def _exchanges(
    deliveries: Iterable[Delivery],
) -> list[tuple[AskedQuery, QueryAnswer | None, float | None]]:
    """Each query to a model as it was first asked, its answer, and when that came."""
    first: dict[int, AskedQuery] = {}
    answers: dict[int, tuple[QueryAnswer, float]] = {}
    for step in read_steps(deliveries):
        for one in step.answered:
            answers[one.answer.q] = (one.answer, step.at)
        for query in step.asked:
            if query.kind is Kind.LLM:
                first.setdefault(query.q, AskedQuery(query, step.n, step.at))
    return [(entry, *answers.get(q, (None, None))) for q, entry in first.items()]


def collect_session_facts(record: SessionRecord, now: float, *, history: bool) -> SessionFacts:
    """What a snapshot of a session is made from; `record` holds its whole journal."""
    birth = record.birth
    head = record.head
    ring, progress = _aside(record.deliveries)
    until = head.updated_at if head.ended else now
    return SessionFacts(
        session_id=birth.id,
        state=head.state,
        started_at=birth.created_at,
        last_activity_at=head.updated_at,
        elapsed_ms=max(0, int((until - birth.created_at) * 1000)),
        metrics=head.metrics,
        open=[] if head.ended else _open(record),
        strategy=birth.program.rpartition(":")[2],
        logs=list(ring),
        progress=progress,
        budget=birth.budget,
        history=_history(record.deliveries) if history else None,
    )


def _open(record: SessionRecord) -> list[OpenQuery]:
    kept = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
    working = {effect.q: effect.worker for effect in record.effects}
    waiting = {
        q: entry for q, entry in find_open_queries(record.deliveries).items() if q not in kept
    }
    shown = list_answerable(waiting, working)
    whole = expand_queries_from_journal(
        [e.query for e in shown if is_stored_by_reference(e.query)], record.deliveries
    )
    return [
        OpenQuery(record.birth.id, whole.get(entry.query.q, entry.query), entry.at)
        for entry in shown
    ]


def _aside(deliveries: Iterable[Delivery]) -> tuple[LogRing, Progress | None]:
    ring = LogRing()
    progress = None
    for step in read_steps(deliveries):
        for entry in step.notes.log:
            ring.add(entry)
        progress = step.notes.progress or progress
    return ring, progress


def _history(deliveries: Iterable[Delivery]) -> list[dict[str, JSON]]:
    """The newest exchanges with models. What is still open has neither response nor end."""
    told = []
    for entry, answer, at in _exchanges(deliveries)[-HISTORY:]:
        estimated = measure_query(entry.query)[1]
        exchange: dict[str, JSON] = {
            "query_id": entry.query.id,
            "prompt": entry.query.prompt,
            "response": None,
            "prompt_tokens": estimated,
            "response_tokens": None,
            "started_at": int(entry.at * 1000),
            "completed_at": None,
        }
        if answer is not None and at is not None:
            spent = price_exchange(answer.usage, estimated, measure_answer(answer)[1])
            exchange |= {
                "response": answer.value,
                "prompt_tokens": spent.prompt,
                "response_tokens": spent.response,
                "completed_at": int(at * 1000),
            }
        told.append(exchange)
    return told


def make_finished_status(record: SessionRecord) -> Finished:
    """The status of a session that has ended, from its last delivery."""
    last = record.deliveries[-1].notes
    stats = compute_session_stats(
        record.birth, record.head, {} if last is None else dict(last.record)
    )
    return Finished(record.birth.id, read_outcome(record.deliveries) or Stopped(""), stats)


def compute_session_stats(birth: Birth, head: Head, recorded: dict[str, JSON]) -> dict[str, JSON]:
    elapsed = max(0, int((head.updated_at - birth.created_at) * 1000))
    return head.metrics.stats(elapsed, recorded, budget=birth.budget)
