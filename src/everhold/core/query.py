"""Queries: what programs ask, who may answer each kind (an approval: people only), and the answers.

A query is what a program cannot know by itself. It is a value: asked once, stored as it was asked,
answered at most once. Its *shape* (key, kind, schema) must be the same on replay; its *wording* may
change.

Rules
  1. Query ids are `q-0`, `q-1`, … in the order asked, and never repeat within a session.
  2. A key is the path of the task that asked, a colon, and the ordinal in that task. Never a line
     number.
  3. First answer wins. Whether another is the same or a conflict is decided by content.
  4. What a kind is, is its row in `KINDS`. Code elsewhere reads the row, or a set made from it. It
     compares with a single kind only to do what that kind alone does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from everhold.core.codec import JSON
from everhold.errors import NotAllowed

QueryId = NewType("QueryId", str)

MAX_TOKENS: Final = 1024
_ID: Final = re.compile(r"q-(0|[1-9][0-9]{0,17})")
#: Begins every namespace of Lua programs. It holds a "/", so that no program can name such a
#: namespace itself.
_LUA_SPACE: Final = "lua/"
_OWN_SPACE: Final = re.compile(r"fork-s-[0-9a-f]{16}-[0-9a-f]{24}-(.+)", re.DOTALL)


class Kind(StrEnum):
    """What sort of answer a query waits for; `KINDS` says everything else about a kind."""

    LLM = "llm"
    TOOL = "tool"
    CALL = "call"
    APPROVAL = "approval"
    INPUT = "input"
    TIMER = "timer"
    SIGNAL = "signal"
    SESSION = "session"
    STATE = "state"


class QueryState(StrEnum):
    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"
    CANCELLED = "cancelled"


class Rerun(StrEnum):
    """What to do with an effect that was started and whose outcome nobody recorded."""

    SAFE = "safe"  # do it again
    NEVER = "never"  # tell the program that the outcome is unknown
    ASK = "ask"  # ask a person


# ---- what each kind is


class AnsweredBy(StrEnum):
    """Who may answer a query."""

    MODEL = "model"  # a model, or a person in its place; through every front
    PERSON = "person"  # a person, never a model; the command line wants a terminal or a name
    OUTSIDE = "outside"  # a person or a system, through the API or the command line; never a model
    PROCESS = "process"  # the process that runs it; a person only if its outcome is unknown
    ENGINE = "engine"  # the store, the clock or another session; never an answer from outside


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What everhold knows about one kind of query.

    In `because` and `move`, {id}, {kind}, {name} and {prompt} are the query's, {whom} is its
    addressee or else `whom`, {span} is the time since it was asked, {session} names the session in
    a command, {signal} is the name in a command, and {child} is the child session.
    """

    answer: str  # what answers it, in a few words
    answered_by: AnsweredBy
    # ---- what happens to it
    effect: bool = False  # it acts outside: a mark is kept from its start until its outcome
    in_store: bool = False  # the store may hold its answer already; the step that asks looks there
    by_name: bool = False  # it is sent by its name, perhaps before it is asked
    metered: bool = False  # it counts as a model call, in tokens and in budgets
    in_lua: bool = False  # Lua programs can ask it
    # ---- what its answer is
    text: bool = False  # text, where the query has no schema
    verdict: bool = False  # a yes or a no
    decision: bool = False  # a decision: no model may carry it into another session
    rewritten: bool = False  # plugins may rewrite it before it is stored
    # ---- what people see
    noticed: bool = False  # it has a row of its own in the inbox; others have one if addressed
    notified: bool = False  # notifiers report it unless they name kinds; others only if addressed
    whom: str = ""  # who is asked if the query does not say
    because: str = ""  # why its session waits, as `everhold explain` says it
    move: str = ""  # what moves its session


KINDS: Final[Mapping[Kind, KindFacts]] = {
    Kind.LLM: KindFacts(
        answer="a model's words",
        answered_by=AnsweredBy.MODEL,
        metered=True,
        in_lua=True,
        text=True,
        rewritten=True,
        whom="a model",
        because="{id} asks {whom} ({span} ago): {prompt}",
        move="Answer it: everhold answer {session} VALUE --query {id}",
    ),
    Kind.TOOL: KindFacts(
        answer="a tool's result",
        answered_by=AnsweredBy.OUTSIDE,
        effect=True,
        rewritten=True,
        whom="the tool {name}",
        because="{id} asks {whom} ({span} ago): {prompt}",
        move="Say what it returned: everhold answer {session} VALUE --query {id}",
    ),
    Kind.CALL: KindFacts(
        answer="the result of a function that acts outside",
        answered_by=AnsweredBy.PROCESS,
        effect=True,
        notified=True,
        because="The outcome of {name} ({id}) is unknown: its process died, {span} ago.",
        move="Say what became of it: everhold answer {session} '{{\"rerun\": true}}' --query {id}",
    ),
    Kind.APPROVAL: KindFacts(
        answer="a person's yes or no",
        answered_by=AnsweredBy.PERSON,
        verdict=True,
        decision=True,
        noticed=True,
        notified=True,
        whom="a person",
        because="{id} asks {whom} for an {kind} ({span} ago): {prompt}",
        move="A person answers: everhold answer {session} --query {id}",
    ),
    Kind.INPUT: KindFacts(
        answer="a person's words",
        answered_by=AnsweredBy.PERSON,
        text=True,
        decision=True,
        rewritten=True,
        noticed=True,
        notified=True,
        whom="a person",
        because="{id} asks {whom} for an {kind} ({span} ago): {prompt}",
        move="A person answers: everhold answer {session} --query {id}",
    ),
    Kind.TIMER: KindFacts(answer="a moment", answered_by=AnsweredBy.ENGINE),
    Kind.SIGNAL: KindFacts(
        answer="a message from outside",
        answered_by=AnsweredBy.OUTSIDE,
        in_store=True,
        by_name=True,
        decision=True,
        noticed=True,
        because="{id} waits for the signal {name!r}, for {span} so far.",
        move="Send it: everhold signal {session} {signal} VALUE",
    ),
    Kind.SESSION: KindFacts(
        answer="the end of a child session",
        answered_by=AnsweredBy.ENGINE,
        in_store=True,
        because="{id} waits for a child session of {name}, for {span} so far.",
        move="Look at the child: everhold explain {child}",
    ),
    Kind.STATE: KindFacts(
        answer="a durable value that sessions share",
        answered_by=AnsweredBy.ENGINE,
        in_store=True,
        in_lua=True,
    ),
}


def _select(*answered_by: AnsweredBy) -> frozenset[Kind]:
    return frozenset(kind for kind, facts in KINDS.items() if facts.answered_by in answered_by)


#: Kinds that a model may answer.
MODEL_KINDS: Final = _select(AnsweredBy.MODEL)
#: Kinds that only a person may answer.
FOR_PEOPLE: Final = _select(AnsweredBy.PERSON)
#: Kinds that are answered in words. A script may hold the answers: a person wrote them before.
SCRIPTED_KINDS: Final = MODEL_KINDS | FOR_PEOPLE
#: Kinds that are answered from outside; the rest are answered by a process or by the engine.
ANSWERABLE: Final = _select(AnsweredBy.MODEL, AnsweredBy.PERSON, AnsweredBy.OUTSIDE)
#: Kinds that the engine answers.
INNER: Final = _select(AnsweredBy.ENGINE)
#: Kinds that may be in the inbox: also calls whose outcome is unknown.
LISTED: Final = frozenset(Kind) - INNER
EFFECTS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.effect)
IN_STORE: Final = frozenset(kind for kind, facts in KINDS.items() if facts.in_store)
SENT_BY_NAME: Final = frozenset(kind for kind, facts in KINDS.items() if facts.by_name)
METERED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.metered)
LUA_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.in_lua)
TEXT_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.text)
NOTICED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.noticed)
NOTIFIED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.notified)
#: Kinds by which a turn of an agent waits for a person or a system outside.
ASKED_OUTSIDE: Final = ANSWERABLE - MODEL_KINDS - SENT_BY_NAME


# ---- queries and answers


class Query(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One question, as it is stored. Fields that a kind does not use stay at their defaults and are
    not written.
    """

    q: int
    key: str
    prompt: str = ""
    kind: Kind = Kind.LLM
    messages: list[JSON] | None = None
    system: str | None = None
    max_tokens: int = MAX_TOKENS
    grounded: bool = False
    underspecified: bool = False
    options: dict[str, JSON] | None = None  # passed through to whoever answers
    name: str = ""  # of a call, tool, signal, state key or child program
    args: JSON = None  # of a call, tool, state operation or child program
    rerun: Rerun = Rerun.SAFE
    to: str | None = None  # addressee
    schema: dict[str, JSON] | None = None
    expires_at: float | None = None
    default: JSON | msgspec.UnsetType = msgspec.UNSET

    @property
    def id(self) -> QueryId:
        return QueryId(f"q-{self.q}")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens as the answerer counted them. The cache's are among the prompt's, reasoning among the
    completion's.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    model: str = ""
    # where several models were asked: each by itself, in the place of the counts above
    parts: list[Usage] = []


class QueryAnswer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the world said to one query: a value, or an error instead of one."""

    q: int
    value: JSON = None
    error: dict[str, str] | None = None  # {"code", "message"}
    usage: Usage | None = None
    by: dict[str, JSON] | None = None  # front, user, time
    expired: bool = False

    @property
    def id(self) -> QueryId:
        return QueryId(f"q-{self.q}")


def parse_query_number(query_id: str) -> int | None:
    """The ordinal in `q-7`, or None for what is not a query id."""
    found = _ID.fullmatch(query_id)
    return None if found is None else int(found[1])


def make_lua_namespace(name: str, shares: Collection[str] = ()) -> str:
    """The namespace of durable values that Lua programs see under this name: their own, or a shared
    one.
    """
    return name if name in shares else _LUA_SPACE + name


def make_own_namespace(session_id: str, path: str) -> str:
    """The namespace of durable values that one part of one session sees, and nobody else."""
    return f"fork-{session_id}-{path}"


def inherit_namespace(namespace: str, session_id: str) -> str | None:
    """What such a namespace of another session is called in this one; None if it is not such a
    one.
    """
    found = _OWN_SPACE.fullmatch(namespace)
    return None if found is None else make_own_namespace(session_id, found[1])


def refuse_other_kinds(kinds: Collection[Kind], query: Query) -> None:
    """Raise `NotAllowed` for a query that is not of these kinds."""
    if query.kind not in kinds:
        raise NotAllowed(
            f"this answerer may not answer {query.id}, which is of the kind {query.kind}",
            "Leave it open: it is in the inbox, for whoever may answer it.",
        )


def has_new_wording(recorded: Query, asked: Query) -> bool:
    """Whether the wording of a query with the same shape has changed."""
    return asked != recorded and _wording(asked) != _wording(recorded)


def _wording(query: Query) -> tuple[Any, ...]:
    return (
        query.prompt,
        query.messages,
        query.system,
        query.max_tokens,
        query.grounded,
        query.underspecified,
        query.options,
        query.name,
        _asked_for(query),
        query.schema,
    )


def _asked_for(query: Query) -> JSON:
    """The arguments. Where a namespace is kept is not part of the question: forks and Lua have
    their own.
    """
    if query.kind is not Kind.STATE or not isinstance(query.args, dict):
        return query.args
    namespace = str(query.args.get("in")).removeprefix(_LUA_SPACE)
    return {**query.args, "in": inherit_namespace(namespace, "") or namespace}
