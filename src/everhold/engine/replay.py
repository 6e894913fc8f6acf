"""A stored session played again, delivery by delivery: no effects, nothing written, nothing asked
of anybody.

The program runs; what it asks is compared with what is recorded and goes nowhere. Whoever iterates
decides how far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from everhold.core.journal import (
    Delivery,
    Opened,
    Reply,
    Restart,
    compare,
    fold,
    lately,
    restart_of,
    tape,
)
from everhold.core.metrics import Metrics
from everhold.core.query import Query
from everhold.engine.live_session import count, handed
from everhold.ports.program import Host
from everhold.ports.store import Record


class Played(msgspec.Struct, frozen=True):
    """One delivery that was handed over again, and matches."""

    given: Delivery
    recorded: Delivery  # the one whose reply stands: `given`, or the retry that followed it
    reply: Reply
    reworded: list[tuple[Query, Query]]  # as recorded, and as asked now


def replay(record: Record, host: Host, to: int | None = None) -> Iterator[Played]:
    """Play a session up to its last delivery; raises `Diverged` where the program asks something
    else.

    Where the program begins again, it does so with what is recorded. With `to`, only what it takes
    to come to that step is played: from the last restart before it on. Raises what finding the
    program raises, before it plays.
    """
    meter = Metrics()
    execution: Any = host.begin(record.birth, meter)
    opened: dict[int, Opened] = {}
    known = 0  # queries asked so far
    restart, deliveries = _before(record.deliveries, to)
    try:
        for expected in tape(deliveries):
            if restart is not None:
                execution.drop()
                meter = restart.metrics.copy()
                execution = execution.again(restart, meter)
                known = restart.q
                opened.clear()
            execution.replaying = True
            given = expected.given
            recorded = expected.reply
            handing = handed(given)
            execution.recorded_versions = {} if recorded.notes is None else recorded.notes.versions
            execution.recorded = recorded.notes
            count(meter, opened, given.answers, fired=handing[3])
            with execution.entered():
                reply = execution.advance(*handing)
            changed = compare(expected, reply, known, strict=False)
            meter.paused(query for query in recorded.asked if query.q >= known)
            known = reply.asked[-1].q + 1 if reply.asked else known
            fold(opened, Delivery(given.n, given.at, given.answers))
            if given is not recorded:
                opened.clear()
            fold(opened, recorded)
            restart = restart_of(recorded)
            yield Played(given, recorded, reply, _pairs(changed, recorded, reply))
    finally:
        execution.drop()


def _before(deliveries: list[Delivery], to: int | None) -> tuple[Restart | None, list[Delivery]]:
    """The last restart before a step, and the deliveries after it."""
    restarted = None if to is None else lately([one for one in deliveries if one.n < to])[0]
    if restarted is None:
        return None, deliveries
    return restart_of(restarted), [one for one in deliveries if one.n > restarted.n]


def _pairs(changed: list[int], recorded: Delivery, reply: Reply) -> list[tuple[Query, Query]]:
    if not changed:
        return []
    asked = {query.q: query for query in reply.asked}
    return [(query, asked[query.q]) for query in recorded.asked if query.q in changed]
