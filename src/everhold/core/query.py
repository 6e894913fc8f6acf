"""Queries and answers, and the table of kinds: who may answer each (an approval: people only).

A query is a recorded request for a value from outside the program. It is stored once, as it was
made, and answered at most once. Its *shape* (key, kind, schema) must be the same on replay; its
*wording* may change.

Rules
  1. Query ids are `q-0`, `q-1`, … in the order made, and never repeat within a session.
  2. A key is the path of the task, a colon, and the ordinal in that task. It is never a line
     number.
  3. The first answer wins. A second answer is a duplicate or a conflict, depending on its content.
  4. `KINDS` has one row for each kind. Other code reads the row, or a set made from it. It compares
     with a single kind only for the behaviour of that kind alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from everhold.core.codec import JSON
from everhold.core.retry import Retry
from everhold.errors import NotAllowed
from everhold.exception_info import ExceptionInfo

QueryId = NewType("QueryId", str)

MAX_TOKENS: Final = 1024
#: The option of a model question that says what to do if it cannot be answered: see `Answerer`.
ON_UNAVAILABLE: Final = "on_unavailable"
#: The prefix of the names of calls that run hooks of plugins. `show` leaves them out.
HOOK_CALL: Final = "hook:"
_ID: Final = re.compile(r"q-(0|[1-9][0-9]{0,17})")
#: The prefix of every namespace of Lua programs. It contains a "/", so that no program can name
#: such a namespace itself.
_LUA_SPACE: Final = "lua/"
_OWN_SPACE: Final = re.compile(r"fork-s-[0-9a-f]{16}-[0-9a-f]{24}-(.+)", re.DOTALL)


class Kind(StrEnum):
    """The kind of a query; `KINDS` has the facts about each."""

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
    """What to do with an effect that was started and has no recorded outcome."""

    SAFE = "safe"  # run it again
    NEVER = "never"  # answer the program with the error that the outcome is unknown
    ASK = "ask"  # ask a person


# ---- what each kind is


class AnsweredBy(StrEnum):
    """Who may answer a query."""

    MODEL = "model"  # a model, or a person instead; through every front
    PERSON = "person"  # a person, never a model; the command line wants a terminal or a name
    OUTSIDE = "outside"  # a person or a system, through the API or the command line; never a model
    PROCESS = "process"  # the process that runs it; a person only if its outcome is unknown
    ENGINE = "engine"  # the store, the clock or another session; never an answer from outside


class KindFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one kind of query.

    In `because` and `move`, {id}, {kind}, {name} and {prompt} are the query's, {whom} is its
    addressee or else `whom`, {span} is its age, {session} is the session in a command, {signal} is
    the name in a command, and {child} is the child session.
    """

    answer: str  # the answer, in a few words
    answered_by: AnsweredBy
    # ---- what happens to it
    effect: bool = False  # it acts outside: a mark is stored from its start until its outcome
    in_store: bool = False  # the store may already hold its answer; the step that asks looks there
    by_name: bool = False  # its answer is sent by name, perhaps before it is asked
    metered: bool = False  # it counts as a model call, in tokens and in budgets
    in_lua: bool = False  # Lua programs can ask it
    # ---- its answer
    text: bool = False  # is text if the query has no schema
    verdict: bool = False  # is a yes or a no
    decision: bool = False  # is a decision: a model may not pass it on to another session
    rewritten: bool = False  # plugins may rewrite it before it is stored
    # ---- how it is shown
    noticed: bool = False  # it always has a row in the inbox; others only with an addressee
    notified: bool = False  # notifiers that name no kinds report it; others only with an addressee
    whom: str = ""  # the addressee if the query names none
    because: str = ""  # why its session waits, for `everhold explain`
    move: str = ""  # the command that answers it


KINDS: Final[Mapping[Kind, KindFacts]] = {
    Kind.LLM: KindFacts(
        answer="a model's text",
        answered_by=AnsweredBy.MODEL,
        metered=True,
        in_lua=True,
        text=True,
        rewritten=True,
        whom="a model",
        because="{id} asks {whom} ({span} ago): {prompt}",
        move="Answer it: everhold answer {session} --query {id}",
    ),
    Kind.TOOL: KindFacts(
        answer="a tool's result",
        answered_by=AnsweredBy.OUTSIDE,
        effect=True,
        rewritten=True,
        whom="the tool {name}",
        because="{id} asks {whom} ({span} ago): {prompt}",
        move="Answer with its result: everhold answer {session} --query {id}",
    ),
    Kind.CALL: KindFacts(
        answer="the result of a function that acts outside",
        answered_by=AnsweredBy.PROCESS,
        effect=True,
        notified=True,
        because="The outcome of {name} ({id}) is unknown: its process died, {span} ago.",
        move="Run it again, or answer with its outcome:"
        " everhold answer {session} '{{\"rerun\": true}}' --query {id}",
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
        answer="a person's text",
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
    Kind.TIMER: KindFacts(answer="the time", answered_by=AnsweredBy.ENGINE),
    Kind.SIGNAL: KindFacts(
        answer="a message from outside",
        answered_by=AnsweredBy.OUTSIDE,
        in_store=True,
        by_name=True,
        decision=True,
        noticed=True,
        because="{id} waits for the signal {name!r}, for {span} so far.",
        move="Send it: everhold signal {session} {signal}",
    ),
    Kind.SESSION: KindFacts(
        answer="the outcome of a child session",
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
#: Kinds that are answered in text. A script may answer them, because a person wrote it.
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
#: Kinds that `answer` answers, and that are shown as questions. Signals are sent by their name.
QUESTIONS: Final = ANSWERABLE - SENT_BY_NAME
#: Kinds of the questions of a session: those of `QUESTIONS`, and calls of unknown outcome.
ASKED: Final = LISTED - SENT_BY_NAME
METERED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.metered)
LUA_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.in_lua)
TEXT_KINDS: Final = frozenset(kind for kind, facts in KINDS.items() if facts.text)
NOTICED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.noticed)
NOTIFIED: Final = frozenset(kind for kind, facts in KINDS.items() if facts.notified)
#: Kinds with which a turn of an agent waits for a person or a system outside.
ASKED_OUTSIDE: Final = QUESTIONS - MODEL_KINDS


# ---- queries and answers


class Query(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One query, as stored. Fields that a kind does not use have their defaults and are not
    written.
    """

    q: int  # its number: `q-7` has 7
    key: str  # its position in the program
    prompt: str = ""
    kind: Kind = Kind.LLM
    messages: list[JSON] | None = None  # earlier messages, which come before the prompt
    system: str | None = None  # the system prompt
    max_tokens: int = MAX_TOKENS  # of the answer
    grounded: bool = False  # the answer may state only what was checked
    underspecified: bool = False  # the prompt lacks something that the answerer should look for
    options: dict[str, JSON] | None = None  # settings of the model, passed on to the answerer
    name: str = ""  # of a call, tool, signal, state key or child program
    args: JSON = None  # of a call, tool, state operation or child program
    rerun: Rerun = Rerun.SAFE  # of a call or tool
    to: str | None = None  # addressee
    schema: dict[str, JSON] | None = None  # of the answer; None: text
    expires_at: float | None = None  # seconds since 1970
    default: JSON | msgspec.UnsetType = msgspec.UNSET  # the answer after expiry
    retry: Retry | None = None  # None: the default of the program, or of the runtime
    timeout: float | None = None  # seconds of one attempt; None: the default

    @property
    def id(self) -> QueryId:
        """Its id in the session, as `q-7`."""
        return QueryId(f"q-{self.q}")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens as the answerer counted them. `prompt_tokens` includes those of the cache, and
    `completion_tokens` those of reasoning.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    model: str = ""
    #: if several models were asked: the usage of each, instead of the counts above
    parts: list[Usage] = []


class QueryAnswer(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The recorded reply to one query: a value or an error."""

    q: int
    value: JSON = None
    error: dict[str, str] | None = None  # {"code", "message"}
    usage: Usage | None = None
    by: dict[str, JSON] | None = None  # front, user, time
    expired: bool = False
    exception: ExceptionInfo | None = None  # behind the error, if code of a user raised it
    attempts: int = 1  # the last one gave this answer

    @property
    def id(self) -> QueryId:
        """The id of the query, as `q-7`."""
        return QueryId(f"q-{self.q}")


class Blocked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Why the last process that tried could not answer an open query: the error's code, message and
    hint, and the time.
    """

    code: str
    message: str
    hint: str = ""
    at: float = 0.0
    exception: ExceptionInfo | None = None  # behind the error, if code of a user raised it


def format_answer_error(answer: QueryAnswer) -> str:
    """The error of an answer in one line: that of a Python function with its class and place."""
    error = answer.error or {}
    code = error.get("code", "")
    words = error.get("message", "")
    if code[:1].isupper() and words != code:
        words = f"{code}: {words}"
    place = "" if answer.exception is None else answer.exception.place
    return f"{words} ({place})" if place else words


class FailedAttempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The last failed attempt at a query that is tried again."""

    number: int  # 1 for the first
    of: int  # how many the policy allows
    error: str  # in one line
    at: float
    next_at: float  # when the next one starts
    usage: Usage | None = None  # of all failed ones


def parse_query_number(query_id: str) -> int | None:
    """The number in `q-7`; None if this is not a query id."""
    found = _ID.fullmatch(query_id)
    return None if found is None else int(found[1])


def make_lua_namespace(name: str, shares: Collection[str] = ()) -> str:
    """The namespace of durable values that Lua programs see as `name`: their own, or a shared
    one.
    """
    return name if name in shares else _LUA_SPACE + name


def make_own_namespace(session_id: str, path: str) -> str:
    """A namespace of durable values that only one part of one session sees."""
    return f"fork-{session_id}-{path}"


def inherit_namespace(namespace: str, session_id: str) -> str | None:
    """The name in this session of another session's own namespace; None for other namespaces."""
    found = _OWN_SPACE.fullmatch(namespace)
    return None if found is None else make_own_namespace(session_id, found[1])


def refuse_other_kinds(kinds: Collection[Kind], query: Query) -> None:
    """Raises `NotAllowed` for a query that is not of these kinds."""
    if query.kind not in kinds:
        raise NotAllowed(
            f"this answerer may not answer {query.id}, a query of kind {query.kind}",
            "Leave it open: `everhold inbox` lists it for those who may answer it.",
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
        _options(query),
        query.name,
        _asked_for(query),
        query.schema,
    )


def _options(query: Query) -> dict[str, JSON] | None:
    """The options, without the limits of attempts, which calls of older databases have there."""
    if query.kind is not Kind.CALL or query.options is None:
        return query.options
    kept = {k: v for k, v in query.options.items() if k not in ("retries", "timeout")}
    return kept or None


def _asked_for(query: Query) -> JSON:
    """The arguments, without the prefix of a namespace, which forks and Lua have."""
    if query.kind is not Kind.STATE or not isinstance(query.args, dict):
        return query.args
    namespace = str(query.args.get("in")).removeprefix(_LUA_SPACE)
    return {**query.args, "in": inherit_namespace(namespace, "") or namespace}


def is_unnoticed(query: Query) -> bool:
    """Whether a query can be answered from outside and has no inbox row of its own."""
    return query.kind in ANSWERABLE and not is_noticed(query.kind, query.to)


def is_noticed(kind: str, to: str | None) -> bool:
    """Whether a query has its own inbox row."""
    return to is not None or kind in NOTICED
