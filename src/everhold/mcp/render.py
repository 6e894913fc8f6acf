"""Statuses and errors as a model reads them.

Rules
  1. Structured content is the JSON of `wire.py`, except for questions, and more keys. The text says
     the same in full, for hosts that show their model only text.
  2. Questions for a model are a list, `questions`, each with its `id`. All other questions are
     under `for_people`, each with the command by which a person answers it.
  3. `next` is complete in itself: it names the tool, the session, the questions and the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.intake import INPUT
from everhold.core.query import KINDS, MODEL_KINDS, Kind
from everhold.core.status import (
    Accepted,
    Finished,
    OpenQuery,
    Paused,
    Raised,
    Returned,
    Running,
    Status,
)
from everhold.errors import AnswerFailed, EverholdError, read_message
from everhold.exception_info import ExceptionInfo, format_exception
from everhold.ports.exception_reader import describe_exception
from everhold.programs.lua.program import TEXT_REF
from everhold.shell_command import add_database_option, format_command
from everhold.wire import (
    dump_wire_json,
    error_json,
    exception_json,
    query_json,
    status_json,
)

#: Hints for a model, where the hint of an error names commands of a shell. {session} is
#: `session_id 's-…'`.
HINTS: Final = {
    "unknown_session": "Call the tool `sessions` to list the existing sessions.",
    "unknown_query": "Call the tool `status` with {session} to see the open questions.",
    "no_open_query": "Call the tool `status` with {session} to see what it waits for.",
    "many_open_queries": (
        "Give the `id` of the question; call the tool `status` with {session} to see it."
    ),
    "query_closed": "Call the tool `status` with {session} to see the questions that are open now.",
    "waiting": "Call the tool `status` with {session} to see what it waits for.",
    "turn_waiting": "Call the tool `status` with {session} to see what its turn waits for.",
    "unknown_program": "Call the tool `strategies` to list the programs.",
    "bad_arguments": "Call the tool `strategies` with the program's name to see its parameters.",
    "bad_step": "Call the tool `status` with {session} and steps: true to see the steps.",
    "illegal_move": (
        "Only a failed session can be retried. `fork` starts a new session from a step of any"
        " session."
    ),
    "answer_failed": (
        "The error is recorded as the answer, and a retry meets it again. Call the tool `explain`"
        " with {session} to see how to ask again."
    ),
    "budget_exceeded": (
        "Call the tool `retry` with {session} and a larger `budget`: the session continues from its"
        " last answer."
    ),
    "failed": (
        "Once the cause is fixed, call the tool `retry` with {session}: the session continues from"
        " its last answer. `fork` starts a new session from an earlier step."
    ),
}


#: Characters of an error.
MAX_ERROR_CHARS: Final = 2000


def _format_hint(code: str, session_id: str) -> str | None:
    """The hint for a model; None if it has the one that people get."""
    hint = HINTS.get(code)
    if hint is None:
        return None
    return hint.format(session=f"session_id {session_id!r}" if session_id else "its session_id")


def render_status(
    status: Status,
    *,
    title: str = "",
    option: str = "",
    extra: Mapping[str, JSON] | None = None,
    asked: bool = False,
    name: str = "",
) -> dict[str, JSON]:
    """A status as a tool returns it.

    `option` is what commands need to read this database. `asked` is true if the person at the
    client was asked already and did not answer. `name` is what people call the session.
    """
    questions = list_model_questions(status)
    if questions:
        shown: dict[str, JSON] = {"status": "needs_response", "session_id": status.session_id}
        shown["questions"] = [{"id": query.id, **query_json(query)} for query in questions]
    else:
        shown = status_json(_without_people(status))
    if title:
        shown["title"] = title
    if shown["status"] == "error":
        hint = _format_hint(str(shown.get("code")), status.session_id)
        shown["hint"] = hint or translate_move(str(shown["hint"]), option)
        shown["error"] = _cut_error(str(shown["error"]))
    people = [
        _render_person_question(query, option, name) for query in list_other_questions(status)
    ]
    people += [
        {"kind": "signal", "prompt": signal, "command": command}
        for signal, command in list_signal_commands(status, option, name)
    ]
    if people:
        shown["for_people"] = people
    shown |= extra or {}
    shown["next"] = describe_next_step(status, people, asked=asked)
    return shown


def render_metrics(metrics: JSON) -> JSON:
    """The metrics of a snapshot, with the open question named by its `id`."""
    if not isinstance(metrics, dict) or not isinstance(metrics.get("tokens"), dict):
        return metrics
    tokens = {name: value for name, value in metrics["tokens"].items() if name != "current_query"}
    current = metrics["tokens"].get("current_query")
    if isinstance(current, dict):
        rest = {name: value for name, value in current.items() if name != "query_id"}
        tokens["current_question"] = {"id": current["query_id"], **rest}
    return {**metrics, "tokens": tokens}


def render_code_hint(ref: str, status: Status) -> dict[str, JSON]:
    """The next step after Lua code that a call brought. Its session keeps that code unchanged."""
    match status:
        case Finished(outcome=Raised()) if ref == TEXT_REF:
            hint = "Fix the code and call the tool `run` with it. This session keeps the old code."
            return {"hint": hint}
        case Finished(outcome=Returned(None)) if ref == TEXT_REF:
            return {
                "hint": "The code returned nothing. If it should return a value, end it with"
                " `return` and call `run` again."
            }
    return {}


def list_model_questions(status: Status) -> tuple[OpenQuery, ...]:
    """The open questions that a model may answer."""
    return tuple(query for query in _open(status) if query.kind in MODEL_KINDS)


def list_other_questions(status: Status) -> tuple[OpenQuery, ...]:
    """The open questions that a model may not answer."""
    return tuple(query for query in _open(status) if query.kind not in MODEL_KINDS)


def _open(status: Status) -> tuple[OpenQuery, ...]:
    return status.queries if isinstance(status, Paused) else ()


def _without_people(status: Status) -> Status:
    """A status whose questions for people are only named among what it waits for."""
    rest = list_other_questions(status)
    if not rest or not isinstance(status, Paused):
        return status
    words = tuple(f"a person: {query.kind} {query.id}" for query in rest)
    return msgspec.structs.replace(status, queries=(), waiting_for=status.waiting_for + words)


def _render_person_question(query: OpenQuery, option: str, name: str) -> dict[str, JSON]:
    shown: dict[str, JSON] = {
        "id": query.id,
        "kind": str(query.kind),
        "prompt": query.prompt or query.name,
    }
    if query.to:
        shown["to"] = query.to
    shown["command"] = format_answer_command(query, option, name)
    return shown


def format_answer_command(query: OpenQuery, option: str, name: str = "") -> str:
    """The command by which a person answers; `name` is what people call the session."""
    return format_command("answer", name or query.session_id, "--query", query.id) + option


def list_signal_commands(status: Status, option: str, name: str = "") -> list[tuple[str, str]]:
    """The signals that a session waits for, each with the command that sends it."""
    session = name or status.session_id
    found = []
    for signal in status.signals if isinstance(status, Paused) else ():
        words = ("send", session) if signal == INPUT else ("signal", session, signal)
        found.append((signal, format_command(*words) + option))
    return found


# ---- the next step


def describe_next_step(
    status: Status, people: Sequence[Mapping[str, JSON]] = (), *, asked: bool = False
) -> str:
    """What to do now, in words that need nothing else."""
    session = status.session_id
    match status:
        case Accepted(_, remaining):
            if not remaining:
                return _look_later(session, "Your answers are recorded")
            rest = f"{remaining} more question{'s' if remaining > 1 else ''} of session {session}"
            return (
                "Your answers are recorded; call the everhold tool `status` with session_id"
                f" {session!r} to see {rest}."
            )
        case Paused() if questions := list_model_questions(status):
            return _describe_answers(session, questions)
        case Paused() if people:
            commands = "; ".join(str(one["command"]) for one in people)
            here = (
                ""
                if asked
                else f" (or call the everhold tool `ask_person` with session_id {session!r} if the"
                " user is present)"
            )
            return (
                "Only a person can answer this, you cannot: ask the user to type"
                f" `{commands}`{here}, then call the everhold tool `status` with session_id"
                f" {session!r}."
            )
        case Paused() | Running():
            return _look_later(session, "The session has no question for you now")
        case Finished(outcome=Raised(kind=AnswerFailed.code)):
            return (
                "The session failed because the answer to a question was an error. Tell the user;"
                f" or call the everhold tool `explain` with session_id {session!r}, which says how"
                " to ask again."
            )
        case Finished(outcome=Raised()):
            return (
                "The session failed. Tell the user; or, once the cause is fixed, call the everhold"
                f" tool `retry` with session_id {session!r} (no recorded answer is asked for"
                " again). If you wrote the code, fix it and `run` it as a new session."
            )
        case _ if status.state == "completed":
            return "The session is completed: report its result to the user."
        case _:
            return "The session is cancelled; there is nothing to answer."


def describe_related_step(following: str, status: Status, parent: str | None, child: str) -> str:
    """What to do now if it concerns another session: `child` has questions, or `parent` continues
    because this session has ended. Otherwise `following`.
    """
    if child:
        return (
            f"The session {status.session_id} waits for its child session: call the everhold"
            f" tool `status` with session_id {child!r} and answer its questions."
        )
    if parent and isinstance(status, Finished):
        return _look_later(
            parent, f"This session has ended, and its parent {parent} continues with its outcome"
        )
    return following


def _describe_answers(session: str, questions: tuple[OpenQuery, ...]) -> str:
    names = ", ".join(query.id for query in questions)
    each = ", ".join(f'{{"id": "{query.id}", "response": "…"}}' for query in questions[:3])
    more = ", …" if len(questions) > 3 else ""
    one = len(questions) == 1
    what = "this question" if one else f"each of these {len(questions)} questions"
    form = " (JSON that fits its schema)" if any(query.schema for query in questions) else ""
    return (
        f"Write your own answer to {what} ({names}){form} and send {'it' if one else 'all of them'}"
        f' with the everhold tool `answer`: {{"session_id": "{session}", "answers":'
        f" [{each}{more}]}}; repeat this until the status is completed."
    )


def _look_later(session: str, why: str) -> str:
    return (
        f"{why}; call the everhold tool `status` with session_id {session!r} and wait: 30 to see"
        " its progress, and `explain` if it does not move."
    )


#: Commands that move a session, and the tools that do the same. Of the commands that answer, only
#: that for an `llm` question has a tool.
_COMMANDS: Final = (
    (
        f"^{re.escape(KINDS[Kind.LLM].move)}$".replace(r"\{session\}", "(.+)").replace(
            r"\{id\}", r"(\S+)"
        ),
        r"Answer it: the tool `answer`, session_id \1, id \2",
    ),
    (r": everhold (retry|explain) (\S+|'[^']+')$", r": the tool `\1`, session_id \2"),
    (r": everhold show (\S+|'[^']+')$", r": the tool `status`, session_id \1, steps: true"),
    (r": everhold sessions$", r": the tool `sessions`"),
    (r": everhold fork (.+) --at (\d+)$", r": the tool `fork`, session_id \1, at \2"),
)


def translate_move(sentence: str, option: str) -> str:
    """A sentence with a tool in place of the command at its end, if a tool does the same."""
    sentence = sentence.removesuffix(option)
    for command, tool in _COMMANDS:
        sentence = re.sub(command, tool, sentence)
    return add_database_option(sentence, option)


# ---- errors


def render_error(error: EverholdError, option: str = "") -> dict[str, JSON]:
    """An error as a tool returns it. `option` is what commands need to read this database."""
    shown = error_json(error)
    session_id = str(getattr(error, "session_id", ""))
    hint = _format_hint(error.code, session_id)
    if hint is None or error.exception is not None:  # code of the user failed: its hint says which
        hint = error.hint
    if error.hint.startswith("Did you mean "):
        hint = f"{error.hint} {hint}" if hint != error.hint else hint
    hint = translate_move(hint or "Nothing was changed. Correct the call.", option)
    return {"status": "refused", **shown, "hint": hint}


def _cut_error(text: str) -> str:
    """An error as a model needs it; `everhold show` has all of it."""
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS - 1]}…"


def render_unforeseen_error(error: BaseException) -> dict[str, JSON]:
    """An unexpected exception as a tool returns it."""
    return {
        "status": "refused",
        "error": _cut_error(f"{type(error).__name__}: {read_message(error)}"),
        "code": "internal",
        "hint": (
            "This is a bug in everhold or in a program. The standard error of the server has the"
            " details."
        ),
        **exception_json(describe_exception(error)),
    }


# ---- text


#: Keys that the text shows in its own form.
_SPECIAL: Final = frozenset(
    {"status", "session_id", "title", "questions", "for_people", "next", "exception"}
)
#: What the flags of a question require of its answer.
_FLAGS: Final = {
    "grounded": "grounded: say only what you have checked, and where",
    "underspecified": "underspecified: find out or ask the user what is missing, do not guess",
}


def render_text(shown: Mapping[str, Any]) -> str:
    """A result as text, for hosts that show their model nothing else."""
    words = [str(shown.get("status", ""))]
    if "session_id" in shown:
        words.append(f"session {shown['session_id']}")
    if "title" in shown:
        words.append(str(shown["title"]))
    parts = [" · ".join(word for word in words if word)]
    parts += [_format_question(question) for question in shown.get("questions", ())]
    parts += [_format_person_question(one) for one in shown.get("for_people", ())]
    parts += [
        f"{key}: {_format_value(value)}" for key, value in shown.items() if key not in _SPECIAL
    ]
    if "exception" in shown:
        parts.append(format_exception(msgspec.convert(shown["exception"], ExceptionInfo)))
    if "next" in shown:
        parts.append(f"Next: {shown['next']}")
    return "\n\n".join(part for part in parts if part)


def _format_value(value: Any) -> str:
    """Text as it is, a list with one row a line, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(row, dict | str) for row in value):
        return "".join(
            f"\n- {row if isinstance(row, str) else dump_wire_json(row)}" for row in value
        )
    return dump_wire_json(value)


def _format_question(asked: Mapping[str, Any]) -> str:
    facts = [f"at most {asked['max_tokens']} tokens"]
    facts += [meaning for flag, meaning in _FLAGS.items() if asked.get(flag)]
    lines = [f"Question {asked['id']} ({', '.join(facts)}):"]
    if asked.get("system"):
        lines.append(f"[system] {asked['system']}")
    # the prompt of an agent, which has `leaf`, contains its messages as text already
    if asked.get("messages") and "leaf" not in (asked.get("args") or {}):
        lines.append(dump_wire_json(asked["messages"]))
    lines.append(str(asked["prompt"]))
    if asked.get("schema"):
        lines.append(f"[answer with JSON of this schema] {dump_wire_json(asked['schema'])}")
    return "\n".join(lines)


def _format_person_question(one: Mapping[str, Any]) -> str:
    if "id" not in one:
        return f"The session waits for the signal {one['prompt']!r}. To send it: {one['command']}"
    to = f" (to {one['to']})" if "to" in one else ""
    return (
        f"For a person{to}, {one['kind']} {one['id']}: {one['prompt']}\nA person answers"
        f" with: {one['command']}"
    )
