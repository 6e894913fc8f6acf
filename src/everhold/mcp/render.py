"""How statuses and errors are told to a model: the wire, and what we add so that the last result
suffices alone.

Rules
  1. Structured content is the wire of `wire.py` with more keys; the text says the same for those
     who read only text, prompts in full.
  2. Only `llm` questions are listed as questions. All others are under `for_people`, each with the
     command by which a person answers.
  3. `next` is one sentence that needs nothing else: which tool, which session, which questions,
     what to send.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import MODEL_KINDS, SENT_BY_NAME
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
from everhold.errors import AnswerFailed, EverholdError
from everhold.programs.lua.program import TEXT_REF
from everhold.wire import add_database_option, dump_wire_json, error_json, status_json

#: Hints of errors that are meant for a shell, as a model can follow them.
HINTS: Final = {
    "unknown_session": "Call the tool `sessions` to list the sessions that are here.",
    "unknown_query": "Call the tool `status` with the session_id to see its open questions.",
    "no_open_query": "Call the tool `status` with the session_id to see what it waits for.",
    "many_open_queries": "Name the question with query_id; the tool `status` shows them.",
    "unknown_program": "Call the tool `strategies` to list what can be run.",
    "bad_arguments": "Call the tool `strategies` with the program's name to see its parameters.",
    "bad_step": "Call the tool `status` with the session_id and steps: true to see its steps.",
    "illegal_move": (
        "Only a failed session can be retried; `fork` goes on from a step of any session."
    ),
    "answer_failed": (
        "The error stays the answer. The tool `fork` goes on with another: `at` its"
        " step, with `answer`."
    ),
    "budget_exceeded": (
        "The session keeps its budget; call the tool `run` again with a larger one, or with none."
    ),
    "failed": (
        "The tool `retry` goes on from its last answer; `fork` begins anew from an earlier step."
    ),
}
#: Characters of the lines on which a program stood when it failed.
TRACEBACK_LENGTH: Final = 1000


def render_status(
    status: Status,
    *,
    title: str = "",
    option: str = "",
    extra: Mapping[str, JSON] | None = None,
    asked: bool = False,
) -> dict[str, JSON]:
    """A status as a tool returns it.

    `option` is what commands need to read this database, `asked` whether the person here was asked
    already, in vain.
    """
    shown = status_json(_for_models(status, option))
    if title:
        shown["title"] = title
    if shown["status"] == "error" and shown.get("code") in HINTS:
        shown["hint"] = HINTS[str(shown["code"])]
    people = [_for_person(query, option) for query in list_other_questions(status)]
    if people:
        shown["for_people"] = people
    shown |= extra or {}
    shown["next"] = describe_next_step(status, people, asked=asked)
    return shown


def render_code_hint(ref: str, status: Status) -> dict[str, JSON]:
    """What to do after a program that was given as text, which its session keeps as it is."""
    match status:
        case Finished(outcome=Raised(traceback=lines)) if ref == TEXT_REF:
            mend = (
                "Mend the code and call the tool `run` with it; this session keeps the code"
                " that it has."
            )
            return {"hint": mend} | ({"traceback": lines[:TRACEBACK_LENGTH]} if lines else {})
        case Finished(outcome=Returned(None)) if ref == TEXT_REF:
            return {
                "hint": (
                    "The code returned nothing. If it should have, end it with `return` and"
                    " `run` it again."
                )
            }
    return {}


def list_model_questions(status: Status) -> tuple[OpenQuery, ...]:
    """What a model may answer."""
    return tuple(query for query in _open(status) if query.kind in MODEL_KINDS)


def list_other_questions(status: Status) -> tuple[OpenQuery, ...]:
    """What a model may not answer."""
    return tuple(query for query in _open(status) if query.kind not in MODEL_KINDS)


def _open(status: Status) -> tuple[OpenQuery, ...]:
    return status.queries if isinstance(status, Paused) else ()


def _for_models(status: Status, option: str) -> Status:
    rest = list_other_questions(status)
    if not rest or not isinstance(status, Paused):
        return status
    words = tuple(f"a person: {query.kind} {query.id}" for query in rest)
    return msgspec.structs.replace(
        status, queries=list_model_questions(status), waiting_for=status.waiting_for + words
    )


def _for_person(query: OpenQuery, option: str) -> dict[str, JSON]:
    shown: dict[str, JSON] = {
        "id": query.id,
        "kind": str(query.kind),
        "prompt": query.prompt or query.name,
    }
    if query.to:
        shown["to"] = query.to
    shown["command"] = format_answer_command(query, option)
    return shown


def format_answer_command(query: OpenQuery, option: str) -> str:
    """What a person types to answer."""
    if query.kind in SENT_BY_NAME:
        return f"everhold signal {query.session_id} {shlex.quote(query.name)}{option}"
    return f"everhold answer {query.session_id} --query {query.id}{option}"


# ---- what to do now


def describe_next_step(
    status: Status, people: Sequence[Mapping[str, JSON]] = (), *, asked: bool = False
) -> str:
    """What to do now, in one sentence that suffices alone."""
    session = status.session_id
    match status:
        case Accepted(_, remaining):
            if not remaining:
                return _later(session, "Your answers are kept")
            rest = f"{remaining} more question{'s' if remaining > 1 else ''} of session {session}"
            return (
                "Your answers are kept; call the everhold tool `status` with session_id"
                f" {session!r} to see {rest}."
            )
        case Paused() if list_model_questions(status):
            return _answer(session, list_model_questions(status))
        case Paused() if people:
            typed = "; ".join(str(one["command"]) for one in people)
            here = (
                ""
                if asked
                else (
                    f" (or call the everhold tool `ask_person` with session_id {session!r} if"
                    " the user is here)"
                )
            )
            return (
                "Only a person can answer this, you cannot: tell the user to type"
                f" `{typed}`{here}, then"
                f" call the everhold tool `status` with session_id {session!r}."
            )
        case Paused() | Running():
            return _later(session, "The session waits for something else than you")
        case Finished(outcome=Raised(kind=AnswerFailed.code)):
            return (
                "The session failed because an error was its answer: tell the user, or, to"
                " answer after all, call the"
                f" everhold tool `status` with session_id {session!r} and steps: true, and then"
                " `fork` with it, `at` "
                "the step that has the error, and your words as `answer`."
            )
        case Finished(outcome=Raised()):
            return (
                "The session failed: tell the user, or call the everhold tool `retry` with"
                f" session_id {session!r} once"
                " the cause is mended (nothing that was answered is asked again); code of your"
                " own you mend and"
                " `run` anew."
            )
        case _:
            done = (
                "completed: report its result to the user"
                if status.state == "completed"
                else "cancelled"
            )
            return f"The session is {done}; nothing is left to answer."


def describe_related_step(following: str, status: Status, parent: str | None, child: str) -> str:
    """What to do now where it concerns another session: the child that has to be answered, or the
    parent that waits.
    """
    if child:
        return (
            f"The session {status.session_id} waits for its child session: call the everhold"
            " tool `status` with"
            f" session_id {child!r} and answer what that one asks."
        )
    if parent and isinstance(status, Finished):
        return _later(
            parent, f"This session has ended, and its parent {parent} goes on with what came of it"
        )
    return following


def _answer(session: str, asked: tuple[OpenQuery, ...]) -> str:
    names = ", ".join(query.id for query in asked)
    each = ", ".join(f'{{"query_id": "{query.id}", "response": "…"}}' for query in asked[:3])
    more = ", …" if len(asked) > 3 else ""
    what = "this prompt" if len(asked) == 1 else f"each of these {len(asked)} prompts"
    form = " (JSON that fits its schema)" if any(query.schema for query in asked) else ""
    return (
        f"Write your own answer to {what} ({names}){form} and send"
        f" {'it' if len(asked) == 1 else 'all of them'} with"
        f' the everhold tool `answer`: {{"session_id": "{session}", "answers": [{each}{more}]}};'
        " go on like this until"
        " the status is completed."
    )


def _later(session: str, why: str) -> str:
    return (
        f"{why}; call the everhold tool `status` with session_id {session!r} and wait 30 to see"
        " how it goes on, and"
        " `explain` with it if it does not."
    )


#: What moves a session, as a command and as a tool does it.
_MOVES: Final = (
    (
        r"^Answer it: everhold answer (.+) VALUE --query (\S+)$",
        r"Answer it: the tool `answer`, session_id \1, query_id \2",
    ),
    (r": everhold (retry|explain) (.+)$", r": the tool `\1`, session_id \2"),
    (r": everhold fork (.+) --at N$", r": the tool `fork`, session_id \1, with at"),
    (r": everhold fork (.+) --at (\d+)$", r": the tool `fork`, session_id \1, at \2"),
)


def translate_move(sentence: str, option: str) -> str:
    """What would move a session: by a tool where there is one, else by a command that a person
    types.
    """
    for command, tool in _MOVES:
        sentence = re.sub(command, tool, sentence)
    return add_database_option(sentence, option)


# ---- errors


def render_error(error: EverholdError, option: str = "") -> dict[str, JSON]:
    """An error as a tool returns it. `option` is what commands need to read this database."""
    shown = error_json(error)
    hint = HINTS.get(error.code) or error.hint or "Nothing was changed; change the call."
    if error.hint.startswith("Did you mean "):
        hint = f"{error.hint} {hint}" if hint != error.hint else hint
    return {"status": "refused", **shown, "hint": add_database_option(hint, option)}


def render_unforeseen_error(error: BaseException) -> dict[str, JSON]:
    """Something nobody foresaw, as a tool returns it."""
    return {
        "status": "refused",
        "error": f"{type(error).__name__}: {error}"[:2000],
        "code": "internal",
        "hint": (
            "This is a fault of everhold or of a program; the server's standard error has"
            " the details."
        ),
    }


# ---- text


def render_text(shown: Mapping[str, Any]) -> str:
    """A result as text, for hosts that show nothing else to their model."""
    parts = [_headline(shown)]
    if "prompt" in shown:
        parts.append(_question(shown["query_id"], shown))
    parts += [_question(query["id"], query) for query in shown.get("queries", ())]
    parts += [_person(one) for one in shown.get("for_people", ())]
    rest = {key: value for key, value in shown.items() if key not in _SAID and key not in _ASKED}
    parts += [f"{key}: {_shown(value)}" for key, value in rest.items()]
    if "next" in shown:
        parts.append(f"Next: {shown['next']}")
    return "\n\n".join(part for part in parts if part)


def _shown(value: Any) -> str:
    """Text as it is, rows one a line, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(row, dict | str) for row in value):
        return "".join(
            f"\n- {row if isinstance(row, str) else dump_wire_json(row)}" for row in value
        )
    return dump_wire_json(value)


_SAID: Final = frozenset({"status", "session_id", "title", "queries", "for_people", "next"})
_ASKED: Final = frozenset(
    {
        "query_id",
        "prompt",
        "system",
        "max_tokens",
        "grounded",
        "underspecified",
        "messages",
        "schema",
        "options",
        "args",
    }
)

#: What the flags of a question ask of whoever answers.
_FLAGS: Final = {
    "grounded": "grounded: say only what you have checked, and where",
    "underspecified": "underspecified: find out or ask the user what is missing, do not guess",
}


def _headline(shown: Mapping[str, Any]) -> str:
    words = [str(shown.get("status", ""))]
    if "session_id" in shown:
        words.append(f"session {shown['session_id']}")
    if "title" in shown:
        words.append(str(shown["title"]))
    return " · ".join(word for word in words if word)


def _question(query_id: str, asked: Mapping[str, Any]) -> str:
    facts = [f"at most {asked['max_tokens']} tokens"]
    facts += [meaning for flag, meaning in _FLAGS.items() if asked.get(flag)]
    lines = [f"Question {query_id} ({', '.join(facts)}):"]
    if asked.get("system"):
        lines.append(f"[system] {asked['system']}")
    # else the prompt has them as text
    if asked.get("messages") and "leaf" not in (asked.get("args") or {}):
        lines.append(dump_wire_json(asked["messages"]))
    lines.append(str(asked["prompt"]))
    if asked.get("schema"):
        lines.append(f"[answer with JSON of this schema] {dump_wire_json(asked['schema'])}")
    return "\n".join(lines)


def _person(one: Mapping[str, Any]) -> str:
    to = f" (to {one['to']})" if "to" in one else ""
    return (
        f"For a person{to}, {one['kind']} {one['id']}: {one['prompt']}\nA person answers"
        f" with: {one['command']}"
    )
