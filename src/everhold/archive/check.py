"""Checks whether a stored session can resume with the current code, by replaying it.

Verdicts
    ok         the program makes exactly the recorded queries
    reworded   some queries have new wording; the session can resume with the recorded answers
    diverged   the program makes other queries; the session cannot resume
    missing    the program, or the version that the session needs, is not here
    error      the program cannot be loaded, or does not take its arguments

Nothing is changed. This module checks one session; `everhold.archive.check_process` checks many, in
a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from everhold.archive import redact
from everhold.core.journal import describe_query
from everhold.core.query import Kind, Query, QueryId, has_new_wording
from everhold.core.session import SessionId, SessionState, format_session_name
from everhold.engine.replay import replay_session
from everhold.errors import (
    Diverged,
    EverholdError,
    NotAProgram,
    UnknownProgram,
    VersionMissing,
    read_message,
)
from everhold.exception_info import ExceptionInfo
from everhold.ports.exception_reader import describe_exception
from everhold.ports.program import ProgramHost
from everhold.ports.store import SessionRecord

CheckVerdict = Literal["ok", "reworded", "diverged", "missing", "error"]
#: Verdicts of sessions that cannot resume.
BROKEN_VERDICTS = frozenset({"diverged", "missing", "error"})


class RewordedQuery(msgspec.Struct, frozen=True):
    """A query whose wording differs from the recorded one."""

    step: int
    query_id: QueryId
    key: str
    kind: Kind
    changed: list[str]  # the names of its fields that differ
    recorded: str
    asked: str


class SessionCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of checking one session."""

    session_id: SessionId
    program: str
    version: int
    state: SessionState
    verdict: CheckVerdict
    steps: int = 0  # deliveries that match
    reworded: list[RewordedQuery] = []
    step: int | None = None  # where it diverged
    recorded: str = ""
    asked: str = ""
    code: str = ""  # of the error
    reason: str = ""
    hint: str = ""
    exception: ExceptionInfo | None = None  # behind the error, if code of a user raised it
    key: str | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the session can resume with this code."""
        return self.verdict not in BROKEN_VERDICTS


class CheckReport(msgspec.Struct, frozen=True):
    """The results of a check. `redacted` names the redacted parts of the file.

    A program that depends on a redacted text may seem to diverge. Redacted wording is compared by
    its length.
    """

    source: str
    checked: list[SessionCheck]
    redacted: list[str]
    python: str
    hash_seed: int

    @property
    def ok(self) -> bool:
        """Whether every session can resume."""
        return all(one.goes_on for one in self.checked)

    @property
    def counts(self) -> dict[str, int]:
        """The number of sessions with each verdict."""
        found: dict[str, int] = {}
        for one in self.checked:
            found[one.verdict] = found.get(one.verdict, 0) + 1
        return found


def check_session(
    record: SessionRecord, host: ProgramHost, *, redacted: Iterable[str] = ()
) -> SessionCheck:
    """Replay one session and return its verdict. Errors of the program become verdicts."""
    birth = record.birth
    changed: list[RewordedQuery] = []
    steps = 0

    def verdict(found: CheckVerdict, **more: Any) -> SessionCheck:
        state = record.head.state
        return SessionCheck(
            birth.id,
            birth.program,
            birth.version,
            state,
            found,
            steps,
            changed,
            key=birth.key,
            **more,
        )

    try:
        execution = host.begin(record.birth, record.head.metrics.copy())
        execution.drop()
        strict = bool(execution.program.strict)
        # from the last restart only, as a resume would replay it
        for played in replay_session(record, host, to=record.head.n):
            pairs = [pair for pair in played.reworded if not redacted or _differ(*pair)]
            if pairs and strict:
                old, new = pairs[0]
                raise Diverged(
                    played.given.n,
                    describe_query(old),
                    describe_query(new) + " with another wording (strict)",
                )
            changed += [_reworded(played.given.n, old, new) for old, new in pairs]
            steps += 1
    except Diverged as error:
        error.tell_fork(format_session_name(record.birth.id, record.birth.key))
        more = {"step": error.step, "recorded": error.recorded, "asked": error.asked}
        return verdict("diverged", **more, **_describe_error(error))
    except (UnknownProgram, NotAProgram, VersionMissing) as error:
        return verdict("missing", **_describe_error(error))
    except (Exception, SystemExit) as error:
        return verdict("error", **_describe_error(error))
    return verdict("reworded" if changed else "ok")


def _differ(old: Query, new: Query) -> bool:
    """Whether two queries still differ after redaction."""
    return has_new_wording(redact.redact_query(old), redact.redact_query(new))


def _reworded(step: int, old: Query, new: Query) -> RewordedQuery:
    names = [name for name in _WORDS if getattr(old, name) != getattr(new, name)]
    return RewordedQuery(
        step, old.id, old.key, old.kind, names, _said(old, names), _said(new, names)
    )


_WORDS = (
    "prompt",
    "messages",
    "system",
    "max_tokens",
    "grounded",
    "underspecified",
    "options",
    "name",
    "args",
    "schema",
)


def _said(query: Query, names: list[str]) -> str:
    """The values of the changed fields, as text."""
    values = [getattr(query, name) for name in names]
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return msgspec.json.encode(dict(zip(names, values, strict=True))).decode()


def _describe_error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, EverholdError):
        told = {"code": error.code, "reason": str(error), "hint": error.hint}
        return {**told, "exception": error.exception or describe_exception(error)}
    reason = f"{type(error).__name__}: {read_message(error)}"
    return {"code": type(error).__name__, "reason": reason, "exception": describe_exception(error)}
