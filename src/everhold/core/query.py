"""What a program asks, and what the world answers.

A query is what a program cannot know by itself. It is a value: asked once, stored as it was asked,
answered at most once. Its *shape* (key, kind, schema) must be the same on replay; its *wording* may
change.

Rules
  1. Query ids are `q-0`, `q-1`, … in the order asked, and never repeat within a session.
  2. A key is the path of the task that asked, a colon, and the ordinal in that task. Never a line
     number.
  3. First answer wins. Whether another is the same or a conflict is decided by content.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from typing import Any, Final, NewType

import msgspec

from everhold.core.codec import JSON

QueryId = NewType("QueryId", str)

MAX_TOKENS: Final = 1024
_ID: Final = re.compile(r"q-(0|[1-9][0-9]{0,17})")
#: Begins every namespace of Lua programs. It holds a "/", so that no program can name such a
#: namespace itself.
_LUA_SPACE: Final = "lua/"
_OWN_SPACE: Final = re.compile(r"fork-s-[0-9a-f]{16}-[0-9a-f]{24}-(.+)", re.DOTALL)


class Kind(StrEnum):
    LLM = "llm"  # a model's words
    TOOL = "tool"  # a tool's result
    CALL = "call"  # a local side effect
    APPROVAL = "approval"  # a person's yes or no
    INPUT = "input"  # a person's words
    TIMER = "timer"  # a moment
    SIGNAL = "signal"  # a message from outside
    SESSION = "session"  # a child's end
    STATE = "state"  # a durable value shared between sessions


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


#: Kinds that only a person may answer.
FOR_PEOPLE: Final = frozenset({Kind.APPROVAL, Kind.INPUT})
#: Kinds that somebody outside can answer; the rest are moved by the runtime, a clock or another
#: session.
ANSWERABLE: Final = frozenset({Kind.LLM, Kind.TOOL, Kind.APPROVAL, Kind.INPUT, Kind.SIGNAL})
#: Kinds with an effect outside: a mark is kept from before they start until their outcome is known.
EFFECTS: Final = frozenset({Kind.CALL, Kind.TOOL})


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
