"""Exported sessions without their texts: every letter becomes `x` and every digit `1`; spaces and
signs stay.

A redacted file is for `check` alone. It cannot be imported: what a program would go on with is not
there.

Rules
  1. A text keeps its length, in characters and in bytes, so that estimates, budgets and line counts
     stay the same.
  2. Redacting twice is redacting once: `check` redacts what a program asks now, and compares.
  3. Of an answer with a schema only free text is replaced; what an enum, a pattern or a union
     decides by stays. An answer without a schema is free text throughout.
  4. Keys, kinds, names of programs and functions, labels, schemas, times and numbers stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from string import ascii_letters, digits
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.intake import Item
from everhold.core.journal import Delivery, Notes
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Answer, Kind, Query
from everhold.core.schema import check
from everhold.core.session import Birth
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.core.turn import Settled, TurnOutcome
from everhold.errors import AnswerRefused, BadSetting
from everhold.ports.store import Letter

#: What can be redacted, and what `redact=True` means: prompts, system texts and arguments of calls;
#: answers; logs, errors, results, titles and metadata; the arguments sessions were started with.
PARTS: Final = ("prompts", "answers", "notes", "arguments")

_ASCII: Final = str.maketrans(dict.fromkeys(ascii_letters, "x") | dict.fromkeys(digits, "1"))
_BY_BYTES: Final = {2: "¤", 3: "•", 4: "𝕩"}
#: Keywords beside which a string is still free text.
_LOOSE: Final = frozenset(
    {"type", "title", "description", "minLength", "maxLength", "default", "examples"}
)

replace = msgspec.structs.replace


def parts(wanted: bool | Collection[str]) -> tuple[str, ...]:
    """The parts that a caller wants redacted, in order."""
    if isinstance(wanted, bool):
        return PARTS if wanted else ()
    named = {wanted} if isinstance(wanted, str) else set(wanted)
    if unknown := sorted(named - set(PARTS)):
        raise BadSetting("redact", f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in named)


def text(words: str) -> str:
    """A placeholder of the same length."""
    if words.isascii():
        return words.translate(_ASCII)
    return "".join(_sign(sign) for sign in words)


def _sign(sign: str) -> str:
    if sign.isascii():
        return sign.translate(_ASCII)
    return sign if sign.isspace() else _BY_BYTES[len(sign.encode())]


def blank(value: JSON) -> JSON:
    """A JSON value with all its texts replaced; the keys of objects stay."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return [blank(item) for item in value]
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    return value


# ---- by schema


def fitting(value: JSON, schema: dict[str, JSON] | None) -> JSON:
    """A value with its free texts replaced that still fits the schema."""
    if schema is None:
        return blank(value)
    redacted = _free(value, schema, schema)
    try:
        check(redacted, schema)
    except AnswerRefused:
        return value
    return redacted


def _free(value: JSON, schema: JSON, root: dict[str, JSON]) -> JSON:
    schema = _resolved(schema, root)
    if schema is True or schema == {}:
        return blank(value)
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
        return text(value) if schema.get("type") == "string" and schema.keys() <= _LOOSE else value
    if isinstance(value, list) and "prefixItems" not in schema:
        return [_free(item, schema.get("items", True), root) for item in value]
    if isinstance(value, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        return {key: _free(item, known.get(key, others), root) for key, item in value.items()}
    return value


def _is_for(schema: JSON, value: JSON) -> bool:
    """Whether a branch of a union could be the one that a value took."""
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


def query(asked: Query) -> Query:
    """A query without its words. What tells whose child a session is, and what a state query does,
    stays.
    """
    args = blank(asked.args)
    options = blank(asked.options)
    if asked.kind is Kind.SESSION and asked.options is not None:
        options = asked.options | (
            {"title": text(asked.options["title"])} if "title" in asked.options else {}
        )
    if asked.kind is Kind.STATE:
        args = args | {"in": asked.args["in"], "do": asked.args["do"]}
    return replace(
        asked,
        prompt=text(asked.prompt),
        system=None if asked.system is None else text(asked.system),
        messages=blank(asked.messages),
        options=options,
        args=args,
        to=None if asked.to is None else text(asked.to),
        default=asked.default
        if asked.default is msgspec.UNSET
        else fitting(asked.default, asked.schema),
    )


def answer(given: Answer, asked: Query | None) -> Answer:
    """An answer without its words; who gave it goes too."""
    error = given.error
    if error is not None:
        error = error | {"message": text(error.get("message", ""))}
    value = None if asked is None else _loop(asked, given.value)
    if value is None:
        value = fitting(given.value, None if asked is None else asked.schema)
    return replace(given, value=value, error=error, by=None)


# ---- conversations of agents

#: What a loop goes by: sorts of blocks, ids, names of tools, directives.
_FORM: Final = frozenset(
    {"type", "id", "tool_use_id", "do", "role", "to", "frame", "slot", "fingerprint", "version"}
)
#: What is somebody's own below there, whatever it is called.
_OWN: Final = frozenset({"input", "options", "value", "state", "metadata"})


def said(value: JSON) -> JSON:
    """What was said in a conversation, or decided about it, without its words; what tells its form
    stays.
    """
    if isinstance(value, list):
        return [said(item) for item in value]
    if not isinstance(value, dict):
        return blank(value)
    kept = {key: _said(key, item, value) for key, item in value.items()}
    return (
        kept
        if "said" not in value
        else {**kept, "said": [[*who, said(data)] for *who, data in value["said"]]}
    )


def _loop(asked: Query, value: JSON) -> JSON:
    """An answer that the loop of an agent goes by, without words; None if it is another one."""
    if _is_talk(asked):
        return said(value)
    if asked.kind is not Kind.CALL or not isinstance(value, dict):
        return None
    if asked.name.startswith("tools:"):  # what a source offers is nobody's words
        return value
    if asked.name.startswith("code:"):
        wishes = [
            {"tool": wish["tool"], "input": blank(wish["input"])}
            for wish in value.get("wishes", [])
        ]
        return {**blank(value), "type": value["type"], **({"wishes": wishes} if wishes else {})}
    return None


def _said(key: str, value: JSON, whole: dict[str, JSON]) -> JSON:
    if (
        key == "input"
        and whole.get("name") == "task"
        and isinstance(value, dict)
        and "agent" in value
    ):
        return {**blank(value), "agent": value["agent"]}  # whose task it is
    if key in _OWN:
        return blank(value)
    if key in _FORM or (key == "name" and (whole.get("type") == "tool_use" or "input" in whole)):
        return value if isinstance(value, str) else said(value)
    return said(value)


def _is_talk(asked: Query) -> bool:
    """Whether a query is one of an agent's loop: its inputs, its model by reference, its
    plugins.
    """
    match asked.kind:
        case Kind.SIGNAL:
            return asked.name == "input"
        case Kind.LLM:
            return asked.args is not None
        case Kind.CALL:
            return asked.name.startswith("hook:")
    return False


def _settled(settled: Settled | None) -> Settled | None:
    if settled is None:
        return None
    outcome: Any = msgspec.to_builtins(settled.outcome)
    words = {name: text(outcome[name]) for name in ("error", "reason") if outcome.get(name)}
    own = {name: blank(outcome[name]) for name in ("value", "options") if name in outcome}
    return replace(settled, outcome=msgspec.convert({**outcome, **words, **own}, TurnOutcome))


def delivery(one: Delivery, asked: Mapping[int, Query], wanted: Collection[str]) -> Delivery:
    """A delivery without the parts that are wanted gone; `asked` has the queries as they were
    asked.
    """
    answers = one.answers
    queries = one.asked
    notes = one.notes
    if "answers" in wanted:
        answers = [answer(each, asked.get(each.q)) for each in answers]
    if "prompts" in wanted:
        queries = [query(each) for each in queries]
    if "notes" in wanted and notes is not None:
        notes = _notes(notes)
    if (
        notes is not None
        and notes.restart is not None
        and ("answers" in wanted or "arguments" in wanted)
    ):
        # unlike those of a start, they are made from answers
        notes = replace(notes, restart=replace(notes.restart, args=blank(notes.restart.args)))
    return Delivery(one.n, one.at, answers, queries, notes)


def _notes(notes: Notes) -> Notes:
    progress = notes.progress
    if progress is not None and progress.message is not None:
        progress = Progress(progress.step, progress.total, text(progress.message))
    return replace(
        notes,
        cancel=None if notes.cancel is None else text(notes.cancel),
        log=[
            LogEntry(entry.ts, entry.level, entry.source, text(entry.message))
            for entry in notes.log
        ],
        progress=progress,
        record=blank(notes.record),
        outcome=_outcome(notes.outcome),
        nodes=[replace(node, content=said(node.content)) for node in notes.nodes],
        settled=_settled(notes.settled),
        facts={
            name: value if name in ("agent", "sources", "subagents") else blank(value)
            for name, value in notes.facts.items()
        },
    )


def _outcome(outcome: Outcome | None) -> Outcome | None:
    match outcome:
        case Returned(value):
            return Returned(blank(value))
        case Raised():
            return replace(outcome, error=text(outcome.error), traceback=text(outcome.traceback))
        case Stopped(reason):
            return Stopped(text(reason))
    return None


def letter(one: Letter, asked: Mapping[int, Query], wanted: Collection[str]) -> Letter:
    if "answers" not in wanted:
        return one
    body = one.body
    match one.kind:
        case "answer":
            given = msgspec.convert(body, Answer)
            body = msgspec.to_builtins(answer(given, asked.get(given.q)))
        case "signal":
            body = {"name": body["name"], "value": blank(body["value"])}
        case _:
            body = blank(body)
    return Letter(one.kind, body, one.at)


def item(one: Item, wanted: Collection[str]) -> Item:
    """What waits, or waited, to be said."""
    return replace(one, body=blank(one.body), end=blank(one.end)) if "answers" in wanted else one


def birth(one: Birth, wanted: Collection[str]) -> Birth:
    if "notes" in wanted:
        one = replace(one, title=text(one.title), metadata=blank(one.metadata))
    # a subagent: its task is a model's words, its place is none
    if one.parent is not None and "within" in one.args:
        one = replace(one, args={**blank(one.args), "within": one.args["within"]})
    elif "arguments" in wanted:
        one = replace(one, args=blank(one.args))
    return one
