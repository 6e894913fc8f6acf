"""Whether stored sessions can go on under the code as it is now: each is replayed, and nothing is
changed.

    ok         the program asks exactly what it asked
    reworded   it asks the same in other words: the session goes on, and the recorded answers stand
    diverged   it asks something else: the session could not go on
    missing    the program, or the version of it that the session needs, is not here
    error      the program could not be loaded, or does not take its arguments any more

This file judges one session. `everhold.archive.check_process` does it for many, in a process of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from everhold.archive import redact
from everhold.core.journal import describe_query
from everhold.core.query import Kind, Query, QueryId, has_new_wording
from everhold.core.session import SessionId, SessionState
from everhold.engine.replay import replay_session
from everhold.errors import Diverged, EverholdError, NotAProgram, UnknownProgram, VersionMissing
from everhold.ports.program import ProgramHost
from everhold.ports.store import SessionRecord

CheckVerdict = Literal["ok", "reworded", "diverged", "missing", "error"]
#: Verdicts under which a session would not go on.
BROKEN_VERDICTS = frozenset({"diverged", "missing", "error"})


class RewordedQuery(msgspec.Struct, frozen=True):
    """A question that is asked in other words now."""

    step: int
    query_id: QueryId
    key: str
    kind: Kind
    changed: list[str]  # the names of its fields that differ
    recorded: str
    asked: str


class SessionCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one session."""

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
    code: str = ""  # of the error that speaks against it
    reason: str = ""
    hint: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether the session would go on under this code."""
        return self.verdict not in BROKEN_VERDICTS


class CheckReport(msgspec.Struct, frozen=True):
    """What came of all of them. `redacted` names what the file did not hold: a program that decides
    by such texts may seem to diverge, and wording is compared by its length."""

    source: str
    checked: list[SessionCheck]
    redacted: list[str]
    python: str
    hash_seed: int

    @property
    def ok(self) -> bool:
        """Whether every session would go on."""
        return all(one.goes_on for one in self.checked)

    @property
    def counts(self) -> dict[str, int]:
        """How many sessions there are of each verdict that occurs."""
        found: dict[str, int] = {}
        for one in self.checked:
            found[one.verdict] = found.get(one.verdict, 0) + 1
        return found


def check_session(
    record: SessionRecord, host: ProgramHost, *, redacted: Iterable[str] = ()
) -> SessionCheck:
    """Replay one session and say what came of it. Never raises for what a program does."""
    birth = record.birth
    changed: list[RewordedQuery] = []
    steps = 0

    def verdict(found: CheckVerdict, **more: Any) -> SessionCheck:
        return SessionCheck(
            birth.id, birth.program, birth.version, record.head.state, found, steps, changed, **more
        )

    try:
        strict = _strict(record, host)
        for played in replay_session(
            record, host, to=record.head.n
        ):  # as it would be replayed to go on
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
        more = {"step": error.step, "recorded": error.recorded, "asked": error.asked}
        return verdict("diverged", **more, **_told(error))
    except (UnknownProgram, NotAProgram, VersionMissing) as error:
        return verdict("missing", **_told(error))
    except (Exception, SystemExit) as error:
        return verdict("error", **_told(error))
    return verdict("reworded" if changed else "ok")


def _strict(record: SessionRecord, host: ProgramHost) -> bool:
    """Whether the program wants its very words; raises if it is not here."""
    execution = host.begin(record.birth, record.head.metrics.copy())
    execution.drop()
    return bool(execution.program.strict)


def _differ(old: Query, new: Query) -> bool:
    """Whether two queries differ in more than a redacted file can tell."""
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
    """The words that changed, as text."""
    values = [getattr(query, name) for name in names]
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return msgspec.json.encode(dict(zip(names, values, strict=True))).decode()


def _told(error: BaseException) -> dict[str, Any]:
    if isinstance(error, EverholdError):
        return {"code": error.code, "reason": str(error), "hint": error.hint}
    return {"code": type(error).__name__, "reason": f"{type(error).__name__}: {error}"}
