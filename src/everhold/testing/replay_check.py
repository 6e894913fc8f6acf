"""The replay after a test: every session runs again from its journal, and must ask and end the
same.

The code is the same as a moment ago, so this compares more than a resume after a deploy: every word
of a question, its expiry, and the result. Calls to clocks and random numbers are reported with the
line that makes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from everhold.archive.recording import RecordingHost
from everhold.core.codec import JSON, is_same_json
from everhold.core.journal import Delivery, ProgramReply, describe_query, get_restart
from everhold.core.query import Query
from everhold.core.status import Raised, Returned
from everhold.engine.journal_reader import read_outcome
from everhold.engine.replay import replay_session
from everhold.errors import Diverged, ForeignCall
from everhold.ports.program import ProgramHost
from everhold.ports.store import SessionRecord
from everhold.testing.guards import ForbiddenCall, record_forbidden_calls


class ReplayFinding(msgspec.Struct, frozen=True):
    """One difference that a replay found."""

    step: int
    where: str  # the step in words
    what: str

    def __str__(self) -> str:
        return f"step {self.step} ({self.where}): {self.what}"


class WatchingHost(RecordingHost):
    """A host that also records forbidden calls of programs."""

    def __init__(self, host: ProgramHost, allowed: Collection[str] = ()) -> None:
        super().__init__(host)
        self._allowed = allowed
        self.spotted: list[list[ForbiddenCall]] = []

    def hear(self, advance: Any, args: tuple[Any, ...]) -> ProgramReply:
        self.spotted.append([])
        with record_forbidden_calls(self.spotted[-1], self._allowed):
            return super().hear(advance, args)


def replay_record(
    record: SessionRecord, host: ProgramHost, allowed: Collection[str] = ()
) -> list[ReplayFinding]:
    """Replay a session; an empty list means that it resumes unchanged after a kill at any point."""
    watching = WatchingHost(host, allowed)
    found: list[ReplayFinding] = []
    step = 0
    try:
        for played in replay_session(record, watching):
            step = played.given.n
            found += _read(step, played.recorded, watching)
            found += [
                ReplayFinding(step, _where(played.recorded), what)
                for what in _differ(played.recorded, played.reply)
            ]
    except Diverged as error:
        step = error.step
        found += _read(step, record.deliveries[step], watching)
        what = f"recorded {error.recorded}; on replay {error.asked}"
        found.append(ReplayFinding(step, _where(record.deliveries[step]), what))
    return found + _reached_out(record)


def _read(step: int, recorded: Delivery, watching: WatchingHost) -> list[ReplayFinding]:
    return [ReplayFinding(step, _where(recorded), str(spotted)) for spotted in watching.spotted[-1]]


def _differ(recorded: Delivery, reply: ProgramReply) -> Iterator[str]:
    """The differences between two replies whose questions have the same shape."""
    asked = {query.q: query for query in reply.asked}
    for old in recorded.asked:
        new = asked.get(old.q)
        if new is not None and new != old:
            for name in Query.__struct_fields__:
                before = getattr(old, name)
                now = getattr(new, name)
                if before != now:
                    yield (
                        f"{old.id} has another {name}: recorded {_shown(before)}; on"
                        f" replay {_shown(now)}"
                    )
    began = get_restart(recorded)
    begins = None if reply.notes is None else reply.notes.restart
    if began is not None and begins is not None and not is_same_json(began.args, begins.args):
        yield f"it restarted with {_shown(began.args)}; on replay with {_shown(begins.args)}"
    outcome = None if recorded.notes is None else recorded.notes.outcome
    match outcome, reply.outcome:
        case Returned(value=old_value), Returned(value=new_value) if not is_same_json(
            old_value, new_value
        ):
            yield f"it returned {_shown(old_value)}; on replay {_shown(new_value)}"
        case Raised(error=old_error), Raised(error=new_error) if old_error != new_error:
            yield f"it failed with {old_error!r}; on replay with {new_error!r}"


def _reached_out(record: SessionRecord) -> list[ReplayFinding]:
    """The refusal that failed the program, if it tried to use a file or the network."""
    outcome = read_outcome(record.deliveries)
    if isinstance(outcome, Raised) and outcome.kind in (ForeignCall.code, ForeignCall.__name__):
        return [
            ReplayFinding(record.deliveries[-1].n, _where(record.deliveries[-1]), outcome.error)
        ]
    return []


def _where(delivery: Delivery) -> str:
    """A step in words: its first question, else its first answer, else the end."""
    if delivery.asked:
        return f"{delivery.asked[0].id}, {describe_query(delivery.asked[0])}"
    if delivery.answers:
        return f"after the answer to {delivery.answers[0].id}"
    return "the beginning" if delivery.n == 0 else "the end"


def _shown(value: JSON) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "…"
