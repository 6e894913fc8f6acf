"""Redacts exported sessions: letters become `x` and digits `1`; spaces and punctuation stay.

A redacted file is for `check` only. It cannot be imported, because a program could not resume
without the texts.

Rules
  1. A text keeps its length in characters and bytes, so that token estimates, budgets and line
     counts stay the same.
  2. Redaction is idempotent: `check` redacts what a program asks now, and compares.
  3. In an answer with a schema only free text is replaced. Values restricted by an enum, a pattern
     or a union stay. An answer without a schema is free text.
  4. Keys, kinds, names of programs and functions, labels, schemas, times and numbers stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import ascii_letters, digits
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.intake import IntakeItem
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import HOOK_CALL, FailedAttempt, Kind, Query, QueryAnswer
from everhold.core.schema import validate_value
from everhold.core.session import Birth
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.core.turn import SettledTurn, TurnFailed, TurnOutcome
from everhold.errors import AnswerRefused, BadSetting
from everhold.exception_info import map_texts
from everhold.ports.store import Letter

#: The parts that can be redacted; `redact=True` means all. prompts: also system texts and arguments
#: of calls. notes: logs, errors, results, titles and metadata. arguments: those of sessions.
REDACTABLE_PARTS: Final = ("prompts", "answers", "notes", "arguments")

_ASCII: Final = str.maketrans(dict.fromkeys(ascii_letters, "x") | dict.fromkeys(digits, "1"))
_BY_BYTES: Final = {2: "¤", 3: "•", 4: "𝕩"}
#: Schema keywords that leave a string free text.
_LOOSE: Final = frozenset(
    {"type", "title", "description", "minLength", "maxLength", "default", "examples"}
)

replace = msgspec.structs.replace


def select_parts(wanted: bool | Collection[str]) -> tuple[str, ...]:
    """The parts to redact, in order. Raises `BadSetting` for an unknown one."""
    if isinstance(wanted, bool):
        return REDACTABLE_PARTS if wanted else ()
    named = {wanted} if isinstance(wanted, str) else set(wanted)
    if unknown := sorted(named - set(REDACTABLE_PARTS)):
        raise BadSetting("redact", f"{unknown[0]!r} is not one of {', '.join(REDACTABLE_PARTS)}")
    return tuple(part for part in REDACTABLE_PARTS if part in named)


def redact_text(text: str) -> str:
    """A placeholder with the same length in characters and in UTF-8 bytes."""
    if text.isascii():
        return text.translate(_ASCII)
    return "".join(_redact_character(character) for character in text)


def _redact_character(character: str) -> str:
    if character.isascii():
        return character.translate(_ASCII)
    return character if character.isspace() else _BY_BYTES[len(character.encode())]


def redact_json(value: JSON) -> JSON:
    """A JSON value with all texts replaced. The keys of objects stay."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, list):
        return [redact_json(item) for item in value]
    if isinstance(value, dict):
        return {key: redact_json(item) for key, item in value.items()}
    return value


# ---- by schema


def redact_to_schema(value: JSON, schema: dict[str, JSON] | None) -> JSON:
    """A value with its free texts replaced. If that no longer fits the schema, it is unchanged."""
    if schema is None:
        return redact_json(value)
    redacted = _free(value, schema, schema)
    try:
        validate_value(redacted, schema)
    except AnswerRefused:
        return value
    return redacted


def _free(value: JSON, schema: JSON, root: dict[str, JSON]) -> JSON:
    schema = _resolved(schema, root)
    if schema is True or schema == {}:
        return redact_json(value)
    if not isinstance(schema, dict):
        return value
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        fit = [
            branch
            for branch in (_resolved(each, root) for each in branches)
            if _is_for(branch, value)
        ]
        return _free(value, fit[0], root) if len(fit) == 1 else value
    if isinstance(value, str):
        return (
            redact_text(value)
            if schema.get("type") == "string" and schema.keys() <= _LOOSE
            else value
        )
    if isinstance(value, list) and "prefixItems" not in schema:
        return [_free(item, schema.get("items", True), root) for item in value]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return {key: _free(item, known.get(key, others), root) for key, item in value.items()}
    return value


def _is_for(schema: JSON, value: JSON) -> bool:
    """Whether a value could belong to this branch of a union."""
    names = {
        str: "string",
        list: "array",
        dict: "object",
        bool: "boolean",
        int: "integer",
        float: "number",
    }
    if not isinstance(schema, dict) or "type" not in schema:
        return True
    return bool(schema["type"] == names.get(type(value), "null"))


def _resolved(schema: JSON, root: dict[str, JSON]) -> JSON:
    for _ in range(20):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        found: Any = root
        for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        schema = found
    return False


# ---- by record


def redact_query(asked: Query) -> Query:
    """A query without its texts. The id of a child, and the namespace and verb of a state query,
    stay.
    """
    args = redact_json(asked.args)
    options = redact_json(asked.options)
    if asked.kind is Kind.SESSION and asked.options is not None:
        options = asked.options | (
            {"title": redact_text(asked.options["title"])} if "title" in asked.options else {}
        )
    if asked.kind is Kind.STATE:
        args = args | {"in": asked.args["in"], "do": asked.args["do"]}
    return replace(
        asked,
        prompt=redact_text(asked.prompt),
        system=None if asked.system is None else redact_text(asked.system),
        messages=redact_json(asked.messages),
        options=options,
        args=args,
        to=None if asked.to is None else redact_text(asked.to),
        default=asked.default
        if asked.default is msgspec.UNSET
        else redact_to_schema(asked.default, asked.schema),
    )


def redact_answer(given: QueryAnswer, asked: Query | None) -> QueryAnswer:
    """An answer without its texts and without its author."""
    error = given.error
    if error is not None:
        error = error | {"message": redact_text(error.get("message", ""))}
    value = None if asked is None else _loop(asked, given.value)
    if value is None:
        value = redact_to_schema(given.value, None if asked is None else asked.schema)
    exception = given.exception
    if exception is not None:
        exception = map_texts(exception, redact_text)
    return replace(given, value=value, error=error, exception=exception, by=None)


# ---- conversations of agents

#: Fields that control the agent loop: block types, ids, tool names, directives.
_CONTROL_FIELDS: Final = frozenset(
    {"type", "id", "tool_use_id", "do", "role", "to", "frame", "slot", "fingerprint", "version"}
)
#: Fields with free content, whatever their fields are called.
_FREE_FIELDS: Final = frozenset({"input", "options", "value", "state", "metadata"})


def redact_conversation(value: JSON) -> JSON:
    """Messages and decisions of a conversation without their texts. Their structure stays."""
    if isinstance(value, list):
        return [redact_conversation(item) for item in value]
    if not isinstance(value, dict):
        return redact_json(value)
    kept = {key: _said(key, item, value) for key, item in value.items()}
    return (
        kept
        if "said" not in value
        else {**kept, "said": [[*who, redact_conversation(data)] for *who, data in value["said"]]}
    )


def _loop(asked: Query, value: JSON) -> JSON:
    """An answer that controls the agent loop, redacted; None for any other answer."""
    if _is_talk(asked):
        return redact_conversation(value)
    if asked.kind is not Kind.CALL or not isinstance(value, dict):
        return None
    if asked.name.startswith("tools:"):  # the tools of a source, not free text
        return value
    if asked.name.startswith("code:"):
        wishes = [
            {"tool": wish["tool"], "input": redact_json(wish["input"])}
            for wish in value.get("wishes", [])
        ]
        return {
            **redact_json(value),
            "type": value["type"],
            **({"wishes": wishes} if wishes else {}),
        }
    return None


def _said(key: str, value: JSON, whole: dict[str, JSON]) -> JSON:
    if (
        key == "input"
        and whole.get("name") == "task"
        and isinstance(value, dict)
        and "agent" in value
    ):
        return {**redact_json(value), "agent": value["agent"]}  # the name of the subagent
    if key in _FREE_FIELDS:
        return redact_json(value)
    if key in _CONTROL_FIELDS or (
        key == "name" and (whole.get("type") == "tool_use" or "input" in whole)
    ):
        return value if isinstance(value, str) else redact_conversation(value)
    return redact_conversation(value)


def _is_talk(asked: Query) -> bool:
    """Whether a query belongs to an agent loop: an input, a model question by reference, a
    plugin.
    """
    match asked.kind:
        case Kind.SIGNAL:
            return asked.name == "input"
        case Kind.LLM:
            return asked.args is not None
        case Kind.CALL:
            return asked.name.startswith(HOOK_CALL)
    return False


def _settled(settled: SettledTurn | None) -> SettledTurn | None:
    if settled is None:
        return None
    outcome: Any = msgspec.to_builtins(settled.outcome)
    words = {name: redact_text(outcome[name]) for name in ("error", "reason") if outcome.get(name)}
    own = {name: redact_json(outcome[name]) for name in ("value", "options") if name in outcome}
    if isinstance(settled.outcome, TurnFailed) and settled.outcome.exception is not None:
        own["exception"] = map_texts(settled.outcome.exception, redact_text)
    redacted: TurnOutcome = msgspec.convert({**outcome, **words, **own}, TurnOutcome)
    return replace(settled, outcome=redacted)


def redact_delivery(one: Delivery, asked: Mapping[int, Query], wanted: Collection[str]) -> Delivery:
    """A delivery without the `wanted` parts. `asked` has all queries of the session by number."""
    answers = one.answers
    queries = one.asked
    notes = one.notes
    if "answers" in wanted:
        answers = [redact_answer(each, asked.get(each.q)) for each in answers]
    if "prompts" in wanted:
        queries = [redact_query(each) for each in queries]
    if "notes" in wanted and notes is not None:
        notes = _notes(notes)
    if (
        notes is not None
        and notes.restart is not None
        and ("answers" in wanted or "arguments" in wanted)
    ):
        # the arguments of a restart are computed from answers, unlike those of a start
        notes = replace(notes, restart=replace(notes.restart, args=redact_json(notes.restart.args)))
    return Delivery(one.n, one.at, answers, queries, notes)


def redact_metrics(metrics: Metrics, wanted: Collection[str]) -> Metrics:
    """The metrics of a head; its progress is a note."""
    if "notes" not in wanted:
        return metrics
    return replace(metrics, progress=_progress(metrics.progress))


def redact_failed_attempt(
    failed: FailedAttempt | None, wanted: Collection[str]
) -> FailedAttempt | None:
    """A failed attempt; its error is like an answer."""
    if failed is None or "answers" not in wanted:
        return failed
    return replace(failed, error=redact_text(failed.error))


def _progress(progress: Progress | None) -> Progress | None:
    if progress is None or progress.message is None:
        return progress
    return Progress(progress.step, progress.total, redact_text(progress.message))


def _notes(notes: DeliveryNotes) -> DeliveryNotes:
    return replace(
        notes,
        cancel=None if notes.cancel is None else redact_text(notes.cancel),
        log=[
            LogEntry(entry.ts, entry.level, entry.source, redact_text(entry.message))
            for entry in notes.log
        ],
        progress=_progress(notes.progress),
        record=redact_json(notes.record),
        outcome=_outcome(notes.outcome),
        nodes=[replace(node, content=redact_conversation(node.content)) for node in notes.nodes],
        settled=_settled(notes.settled),
        facts={name: _fact(name, value) for name, value in notes.facts.items()},
    )


def _fact(name: str, value: JSON) -> JSON:
    """A fact of an agent loop. Those that control it stay; of tools, only the descriptions go."""
    if name == "tools":
        return _tools(value)
    return value if name in ("agent", "sources", "subagents") else redact_json(value)


def _tools(value: JSON) -> JSON:
    if isinstance(value, list):
        return [_tools(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: redact_text(item) if key == "description" and isinstance(item, str) else _tools(item)
        for key, item in value.items()
    }


def _outcome(outcome: Outcome | None) -> Outcome | None:
    match outcome:
        case Returned(value):
            return Returned(redact_json(value))
        case Raised():
            exception = outcome.exception
            return replace(
                outcome,
                error=redact_text(outcome.error),
                traceback_text=redact_text(outcome.traceback_text),
                exception=None if exception is None else map_texts(exception, redact_text),
            )
        case Stopped(reason):
            return Stopped(redact_text(reason))
    return None


def redact_letter(one: Letter, asked: Mapping[int, Query], wanted: Collection[str]) -> Letter:
    if "answers" not in wanted:
        return one
    body = one.body
    match one.kind:
        case "answer":
            given = msgspec.convert(body, QueryAnswer)
            body = msgspec.to_builtins(redact_answer(given, asked.get(given.q)))
        case "signal":
            body = {"name": body["name"], "value": redact_json(body["value"])}
        case _:
            body = redact_json(body)
    return Letter(one.kind, body, one.at)


def redact_item(one: IntakeItem, wanted: Collection[str]) -> IntakeItem:
    """An item of an intake without its texts."""
    return (
        replace(one, body=redact_json(one.body), end=redact_json(one.end))
        if "answers" in wanted
        else one
    )


def redact_birth(one: Birth, wanted: Collection[str]) -> Birth:
    if "notes" in wanted:
        one = replace(one, title=redact_text(one.title), metadata=redact_json(one.metadata))
    # a subagent: a model wrote its task, but `within` only names the parent's place
    if one.parent is not None and "within" in one.args:
        one = replace(one, args={**redact_json(one.args), "within": one.args["within"]})
    elif "arguments" in wanted:
        one = replace(one, args=redact_json(one.args))
    return one
