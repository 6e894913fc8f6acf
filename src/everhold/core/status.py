"""The status of a session, as values for callers; and its snapshot as JSON.

Rules
  1. A status is `Accepted`, `Running`, `Paused` or `Finished`. Each has its session and its state.
  2. An outcome is stored as tagged JSON; a new field goes last and has a default.
  3. Times are seconds since the epoch. Times in a snapshot are milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.intake import INPUT
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import (
    ASKED,
    METERED,
    QUESTIONS,
    Blocked,
    Kind,
    Query,
    QueryId,
)
from everhold.core.retry import Retry
from everhold.core.schema import NonNegativeInt
from everhold.core.session import format_session_name
from everhold.core.usage import measure_query
from everhold.errors import (
    AnswerFailed,
    BadSetting,
    BudgetExceeded,
    Cancelled,
    ChildFailed,
    Expired,
    Failed,
    ManyOpenQueries,
    NoOpenQuery,
    OutcomeUnknown,
    leaves,
    name_session,
)
from everhold.exception_info import ExceptionInfo, format_exception, recall_exception
from everhold.shell_command import format_command

#: States of a session that has not ended.
LIVE: Final = frozenset({"running", "paused"})
#: The last moment that a calendar can show in every time zone: the first of January 9999.
LATEST: Final = 253_370_764_800.0
#: The number of newest exchanges in the history of a snapshot.
HISTORY: Final = 10
#: The number of characters in the preview of a prompt.
PREVIEW_CHARS: Final = 200

_JSON_NAMES: Final = ((bool, "bool"), ((int, float), "number"), (list, "array"), (object, "null"))


class OpenQuery(msgspec.Struct, frozen=True, gc=False):
    """An open query and its session."""

    session_id: str
    query: Query
    asked_at: float
    blocked: Blocked | None = None  # why no process could answer it so far

    @property
    def id(self) -> QueryId:
        """The id of the query in its session, as `q-7`."""
        return self.query.id

    @property
    def key(self) -> str:
        """The position of the query in its program."""
        return self.query.key

    @property
    def kind(self) -> Kind:
        """The kind of query: who may answer it, and with what."""
        return self.query.kind

    @property
    def prompt(self) -> str:
        """The text of the question."""
        return self.query.prompt

    @property
    def messages(self) -> list[JSON] | None:
        """The messages before the prompt."""
        return self.query.messages

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self.query.system

    @property
    def max_tokens(self) -> int:
        """The most tokens of the answer."""
        return self.query.max_tokens

    @property
    def grounded(self) -> bool:
        """Whether the answer may state only what was checked."""
        return self.query.grounded

    @property
    def underspecified(self) -> bool:
        """Whether the prompt lacks something that the answerer should look for."""
        return self.query.underspecified

    @property
    def options(self) -> dict[str, JSON] | None:
        """The settings of the model and other options."""
        return self.query.options

    @property
    def name(self) -> str:
        """The name of the call, tool, signal, state key or child program."""
        return self.query.name

    @property
    def args(self) -> JSON:
        """The arguments of the call, tool, state operation or child program."""
        return self.query.args

    @property
    def schema(self) -> dict[str, JSON] | None:
        """The JSON Schema of the answer; None for text."""
        return self.query.schema

    @property
    def to(self) -> str | None:
        """The addressee of the question."""
        return self.query.to

    @property
    def expires_at(self) -> float | None:
        """The time at which it expires, in seconds since 1970."""
        return self.query.expires_at

    @property
    def retry(self) -> Retry | None:
        return self.query.retry

    @property
    def timeout(self) -> float | None:
        return self.query.timeout

    @property
    def default(self) -> Any:
        """The answer after expiry; `msgspec.UNSET` if expiry is an error."""
        return self.query.default


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The program finished with a value."""

    value: JSON = None


class Raised(msgspec.Struct, frozen=True, omit_defaults=True, tag="raised"):
    """The program finished with an error."""

    error: str
    kind: str = ""  # the code of an everhold error, otherwise the name of the class
    # of a Lua program, and of sessions of older databases
    traceback_text: str = msgspec.field(default="", name="traceback")
    step: int = 0  # the number of the delivery it was raised in
    exception: ExceptionInfo | None = None

    @property
    def traceback(self) -> str:
        """The frames of the user's code, as Python prints them; empty if none is known."""
        return self.traceback_text if self.exception is None else format_exception(self.exception)


class Stopped(msgspec.Struct, frozen=True, omit_defaults=True, tag="stopped"):
    """The session was cancelled."""

    reason: str = ""


Outcome = Returned | Raised | Stopped


class Accepted(msgspec.Struct, frozen=True):
    """The answer is recorded, and the program asked nothing new. `remaining` questions are still
    open; without any, the session can resume.
    """

    session_id: str
    remaining: int

    @property
    def state(self) -> str:
        """ "paused" while questions remain, else "running"."""
        return "paused" if self.remaining else "running"


class Running(msgspec.Struct, frozen=True):
    """The session is moving, or can be moved: `waiting_for` describes its work in progress."""

    session_id: str
    waiting_for: tuple[str, ...] = ()
    progress: Progress | None = None  # what the program reported last

    @property
    def state(self) -> str:
        """ "running"."""
        return "running"


class Paused(msgspec.Struct, frozen=True):
    """The session waits for answers to `queries`, for `signals`, or for the events described in
    `waiting_for`.

    `until` is the time of its earliest timer or expiry. `signals` are names.
    """

    session_id: str
    queries: tuple[OpenQuery, ...] = ()
    until: float | None = None
    waiting_for: tuple[str, ...] = ()
    progress: Progress | None = None  # what the program reported last
    signals: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """ "paused"."""
        return "paused"

    @property
    def needs_outside(self) -> bool:
        """Whether it waits for an answer or a signal from outside."""
        return bool(self.queries or self.signals)


class Finished(msgspec.Struct, frozen=True):
    """The session has ended. `metrics` has the form of `Metrics.stats`."""

    session_id: str
    outcome: Outcome
    metrics: dict[str, JSON]
    key: str | None = None

    @property
    def state(self) -> str:
        """ "completed", "failed" or "cancelled"."""
        if isinstance(self.outcome, Returned):
            return "completed"
        return "failed" if isinstance(self.outcome, Raised) else "cancelled"

    @property
    def result(self) -> Any:
        """The value that the program returned; raises `Failed` or `Cancelled` if there is none."""
        outcome = self.outcome
        if isinstance(outcome, Returned):
            return outcome.value
        if isinstance(outcome, Raised):
            name = format_session_name(self.session_id, self.key)
            hint = hint_after_failure(outcome.kind, name)
            told = outcome.traceback
            failed = Failed(self.session_id, outcome.error, hint, outcome.exception, told)
            name_session(failed, name)
            cause = recall_exception(self.session_id, outcome)
            if cause is None and told:
                failed.add_note(told)
            raise failed from cause
        cancelled = Cancelled(self.session_id, outcome.reason)
        name_session(cancelled, format_session_name(self.session_id, self.key))
        raise cancelled

    @property
    def error(self) -> str | None:
        """The error of a failed program; None if it did not fail."""
        return self.outcome.error if isinstance(self.outcome, Raised) else None


def describe_signals(names: Iterable[str]) -> tuple[str, ...]:
    """The signals that a session waits for, in words. An agent waits for its input."""
    return tuple("an input" if name == INPUT else f"the signal {name!r}" for name in names)


def hint_after_failure(kind: str, name: str) -> str:
    """What to do about a failed session that people call `name`. `kind` is that of its outcome."""
    if kind in _RECORDED:
        return (
            "A retry replays the recorded error. To ask again, fork the session before it:"
            f" {format_command('explain', name)}"
        )
    if kind == BudgetExceeded.code:
        return f"Raise the budget; see how: {format_command('explain', name)}"
    leaf = _LEAVES.get(kind)
    if leaf is None or not leaf.hint:
        return f"Fix the program, then: {format_command('retry', name)}"
    return f"{leaf.hint} Then: {format_command('retry', name)}"


_LEAVES: Final = {leaf.code: leaf for leaf in leaves()}
#: Errors that are the recorded answer of a query.
_RECORDED: Final = frozenset(
    leaf.code for leaf in (AnswerFailed, ChildFailed, Expired, OutcomeUnknown)
)

#: The status of a session.
Status = Accepted | Running | Paused | Finished

Q = TypeVar("Q", OpenQuery, Query)


def require_sole_query(session_id: str, state: str, open_queries: Sequence[Q]) -> Q:
    """The one open query that can be answered from outside; raises `NoOpenQuery` or
    `ManyOpenQueries`.

    A call counts if its outcome is unknown. A signal does not count: it is sent by name.
    """
    pending = [query for query in open_queries if query.kind in ASKED]
    if len(pending) == 1:
        return pending[0]
    if pending:
        raise ManyOpenQueries(session_id, [query.id for query in pending])
    raise NoOpenQuery(session_id, state)


def is_idle_expired(last_activity: float, now: float, ttl: float) -> bool:
    """Whether a session was idle for `ttl` seconds or more; false if the clock went backwards."""
    return now >= last_activity and now - last_activity >= ttl


class SessionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a snapshot of one session. `open` and `history` are in the order asked."""

    session_id: str
    state: str
    started_at: float
    last_activity_at: float
    elapsed_ms: int
    metrics: Metrics
    open: Sequence[OpenQuery] = ()
    strategy: str | None = None
    logs: Sequence[LogEntry] = ()
    progress: Progress | None = None
    budget: Budget | None = None
    history: Sequence[dict[str, JSON]] | None = None  # None: not requested


class PromptOff(msgspec.Struct, frozen=True, tag_field="mode", tag="off"):
    """Omits the prompt."""


class PromptFull(msgspec.Struct, frozen=True, tag_field="mode", tag="full"):
    """Shows the whole prompt."""


class PromptPreview(msgspec.Struct, frozen=True, tag_field="mode", tag="preview"):
    """Shows the first characters of the prompt."""

    chars: NonNegativeInt


class PendingFilter(msgspec.Struct, frozen=True):
    """The fields of open queries that a snapshot shows."""

    query_id: bool = False
    max_tokens: bool = False
    system: bool = False
    grounded: bool = False
    underspecified: bool = False
    prompt: PromptOff | PromptFull | PromptPreview = PromptOff()

    @classmethod
    def read(
        cls, given: object = msgspec.UNSET, *, preview_chars: int = PREVIEW_CHARS
    ) -> PendingFilter | None:
        """Parses a filter: the name of a preset, or an object. None if it is missing: then queries
        are only counted.
        """
        if given is msgspec.UNSET:
            return None
        if isinstance(given, str):
            return cls._preset(given, preview_chars)
        if not isinstance(given, dict):
            found = next(name for kind, name in _JSON_NAMES if isinstance(given, kind))
            raise _refused(f"pending_filter must be a preset name or an object, not {found}")
        try:
            return msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise _refused(f"invalid pending_filter object: {error}") from None

    @classmethod
    def _preset(cls, name: str, preview_chars: int) -> PendingFilter:
        match name:
            case "meta":
                return cls(query_id=True, max_tokens=True)
            case "preview":
                return cls(query_id=True, max_tokens=True, prompt=PromptPreview(preview_chars))
            case "full":
                return cls(True, True, True, True, True, prompt=PromptFull())
        raise _refused(f"unknown pending_filter preset '{name}'; there are meta, preview and full")

    def show(self, query: OpenQuery) -> dict[str, JSON]:
        """One open query with the fields of this filter."""
        shown: dict[str, JSON] = {} if query.kind is Kind.LLM else {"kind": query.kind.value}
        if self.query_id:
            shown["query_id"] = query.id
        for name in ("max_tokens", "system", "grounded", "underspecified"):
            if getattr(self, name):
                shown[name] = getattr(query, name)
        match self.prompt:
            case PromptFull():
                shown["prompt"] = query.prompt
            case PromptPreview(chars=chars):
                shown["prompt_preview"] = query.prompt[:chars]
        return shown


def snapshot_session(facts: SessionFacts, pending: PendingFilter | None = None) -> dict[str, JSON]:
    """The snapshot of one session, for a status call."""
    waiting = [query for query in facts.open if query.kind in QUESTIONS]
    shown: dict[str, JSON] = {
        "session_id": facts.session_id,
        "state": str(facts.state) if facts.state in LIVE else "terminal",
        "phase": str(facts.state),
        "started_at": _ms(facts.started_at),
        "last_activity_at": _ms(facts.last_activity_at),
        "metrics": _metrics(facts),
        "pending_queries": len(waiting),
    }
    if facts.strategy is not None:
        shown["strategy"] = facts.strategy
    if pending is not None:
        shown["pending"] = [pending.show(query) for query in waiting]
    return shown


def snapshot_sessions(
    sessions: Iterable[SessionFacts], pending: PendingFilter | None = None
) -> dict[str, JSON]:
    """The snapshots of several sessions, for a status call. Ended ones do not count as active."""
    listed = [snapshot_session(facts, pending) for facts in sessions]
    return {"active_sessions": sum(one["state"] in LIVE for one in listed), "sessions": listed}


def _metrics(facts: SessionFacts) -> dict[str, JSON]:
    metrics = facts.metrics
    shown: dict[str, JSON] = {
        "elapsed_ms": facts.elapsed_ms,
        "llm_calls": metrics.llm_calls,
        "rounds": metrics.rounds,
        "tokens": {
            "prompt_total": metrics.prompt.tokens,
            "response_total": metrics.response.tokens,
            "total": metrics.tokens,
            "current_query": _current(facts.open),
        },
        "recent_logs": [entry.json() for entry in facts.logs],
    }
    if facts.progress is not None:
        shown["progress"] = facts.progress.json()
    if facts.budget is not None:
        shown["budget_remaining"] = facts.budget.remaining(
            llm_calls=metrics.llm_calls, elapsed_ms=facts.elapsed_ms, tokens=metrics.tokens
        )
    if facts.history is not None:
        shown["conversation_history"] = list(facts.history[-HISTORY:])
    return shown


def _current(open_queries: Sequence[OpenQuery]) -> dict[str, JSON] | None:
    """The oldest open llm query; a batch may be partly answered."""
    for query in open_queries:
        if query.kind in METERED:
            return {
                "query_id": query.id,
                "prompt_tokens": measure_query(query.query)[1],
                "started_waiting_at": _ms(query.asked_at),
            }
    return None


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _refused(reason: str) -> BadSetting:
    return BadSetting("pending_filter", reason)
