"""Views of stored sessions: their steps, transcripts, snapshots, and model questions in full.

Everything is read from the journal. No program is needed and nothing runs.

The journal holds an agent's model question by reference. If a person or an MCP host answers it,
they need the whole question: system text, messages and tools. `expand_query` adds them, and a
prompt that holds them as text, with the forms of a valid answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import ModelView, to_blocks
from everhold.core.journal import AskedQuery, Delivery, find_open_queries
from everhold.core.progress import LogEntry, LogRing, Progress
from everhold.core.query import MODEL_KINDS, Kind, Query, QueryAnswer, QueryId
from everhold.core.session import OUTSIDE, Birth, Head, get_budget
from everhold.core.status import HISTORY, Finished, OpenQuery, Outcome, SessionFacts, Stopped
from everhold.core.usage import measure_answer, measure_query, price_exchange
from everhold.engine.answer_check import list_answerable
from everhold.engine.journal_reader import JournalStep, read_outcome, read_steps
from everhold.ports.store import FROM_OPEN, SessionRecord, Store

#: The forms of an answer if the model may call tools.
_FORMS = (
    "Answer with plain words to end the turn, or call tools with JSON text of this form: "
    '{"text": "…", "tool_calls": [{"name": "…", "input": {…}}]}. '
    "You are told the results, and asked again."
)
_WORDS = "Answer with plain words: what the assistant says next."


def is_stored_by_reference(query: Query) -> bool:
    """Whether the journal holds a query by reference only."""
    return (
        query.kind is Kind.LLM
        and isinstance(query.args, dict)
        and "leaf" in query.args
        and query.messages is None
    )


def expand_query(query: Query, whole: Query) -> Query:
    """The query in full, with a prompt that contains everything."""
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
    """The query in full, from its program; unchanged if it is not stored by reference."""
    return (
        query
        if effect is None or not is_stored_by_reference(query)
        else expand_query(query, effect())
    )


def expand_queries_from_journal(
    queries: Iterable[Query], deliveries: list[Delivery]
) -> dict[int, Query]:
    """Queries in full, from the whole journal of their session, without its program."""
    conversation = Conversation(deliveries)
    found = {}
    for query in queries:
        system, messages, tools = conversation.graph.shown(msgspec.convert(query.args, ModelView))
        options = {**(query.options or {}), **({"tools": tools} if tools else {})}
        whole = Query(query.q, query.key, messages=messages, system=system, options=options or None)
        whole = msgspec.structs.replace(whole, max_tokens=query.max_tokens)
        found[query.q] = expand_query(query, whole)
    return found


async def load_full_query(store: Store, session_id: str, query: Query) -> Query:
    """A query in full. Loads the journal if the query is stored by reference."""
    if not is_stored_by_reference(query):
        return query
    record = await store.load(session_id)
    return expand_queries_from_journal([query], record.deliveries)[query.q]


async def load_open_question(store: Store, birth: Birth, query: Query, at: float) -> OpenQuery:
    """An open query in full, and why no process could answer it so far.

    Reads the session only if the query is stored by reference, or if a model of a process may have
    been asked.
    """
    if is_stored_by_reference(query):
        record = await store.load(birth.id)
        query = expand_queries_from_journal([query], record.deliveries)[query.q]
    elif query.kind in MODEL_KINDS and birth.llm != OUTSIDE:
        record = await store.load(birth.id, since=FROM_OPEN)
    else:
        return OpenQuery(birth.id, query, at)
    return OpenQuery(birth.id, query, at, record.head.blocked(query.q))


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
    """One delivery of the journal, and the queries that the program asked next."""

    n: int
    at: float
    answers: list[QueryAnswer]
    asked: list[Query]
    fired: bool  # whether timers fired
    cancel: str | None  # the reason, if it was cancelled
    retry: bool  # whether it repeats the delivery before it
    withdrawn: list[QueryId]
    log: list[LogEntry]
    outcome: Outcome | None
    restart: dict[str, JSON] | None = None  # the arguments of a restart after it
    by: dict[str, JSON] | None = None  # who cancelled, retried or changed the budget
    budget: Budget | None = None  # the limits from here on, if they changed


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
        notes.by,
        notes.budget,
    )


def make_transcript(deliveries: Iterable[Delivery]) -> list[dict[str, JSON]]:
    """The model questions and their answers, in the order asked; `response` is null without an
    answer.

    `error` has the message of an error, and `messages` a conversation instead of a prompt.
    """
    transcript = []
    for entry, answer, _ in _exchanges(deliveries):
        query = entry.query
        said: dict[str, JSON] = {
            "query_id": query.id,
            "prompt": query.prompt,
            "system": query.system,
        }
        if query.messages is not None:
            said["messages"] = query.messages
        said["response"] = None if answer is None else answer.value
        if answer is not None and answer.error is not None:
            said["error"] = answer.error.get("message", "")
        transcript.append(said)
    return transcript


def _exchanges(
    deliveries: Iterable[Delivery],
) -> list[tuple[AskedQuery, QueryAnswer | None, float | None]]:
    """Each model question as it was first asked, its answer, and the time of the answer."""
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
    """The facts of a snapshot. `record` must hold the whole journal."""
    birth = record.birth
    head = record.head
    ring, progress = _read_log(record.deliveries)
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
        budget=get_budget(birth, record.head.metrics),
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
        OpenQuery(
            record.birth.id,
            whole.get(entry.query.q, entry.query),
            entry.at,
            record.head.blocked(entry.query.q),
        )
        for entry in shown
    ]


def _read_log(deliveries: Iterable[Delivery]) -> tuple[LogRing, Progress | None]:
    ring = LogRing()
    progress = None
    for step in read_steps(deliveries):
        for entry in step.notes.log:
            ring.add(entry)
        progress = step.notes.progress or progress
    return ring, progress


def _history(deliveries: Iterable[Delivery]) -> list[dict[str, JSON]]:
    """The newest model questions with their answers and token counts."""
    exchanges = []
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
        exchanges.append(exchange)
    return exchanges


def make_finished_status(record: SessionRecord) -> Finished:
    """The status of an ended session, from its last delivery."""
    last = record.deliveries[-1].notes
    stats = compute_session_stats(
        record.birth, record.head, {} if last is None else dict(last.record)
    )
    outcome = read_outcome(record.deliveries) or Stopped("")
    return Finished(record.birth.id, outcome, stats, record.birth.key)


def compute_session_stats(birth: Birth, head: Head, recorded: dict[str, JSON]) -> dict[str, JSON]:
    elapsed = max(0, int((head.updated_at - birth.created_at) * 1000))
    return head.metrics.stats(elapsed, recorded, budget=get_budget(birth, head.metrics))
