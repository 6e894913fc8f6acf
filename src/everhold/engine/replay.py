"""Replays a stored session, delivery by delivery, without effects and without writes.

The program runs, and its queries are compared with the recorded ones. No query is sent. The caller
iterates as far as it wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import msgspec

from everhold.core.journal import (
    AskedQuery,
    Delivery,
    ProgramReply,
    Restart,
    compare_reply,
    fold_delivery,
    get_restart,
    pair_replies,
    split_at_last_restart,
)
from everhold.core.metrics import Metrics
from everhold.core.query import Query
from everhold.engine.live_session import count_replayed_answers, make_advance_args
from everhold.ports.program import ProgramHost, RestartableExecution
from everhold.ports.store import SessionRecord


class ReplayedDelivery(msgspec.Struct, frozen=True):
    """One replayed delivery that matches the journal."""

    given: Delivery
    recorded: Delivery  # has the valid reply: `given`, or the retry after it
    reply: ProgramReply
    reworded: list[tuple[Query, Query]]  # as recorded, and as asked now


def replay_session(
    record: SessionRecord, host: ProgramHost, to: int | None = None
) -> Iterator[ReplayedDelivery]:
    """Replay a session up to its last delivery. Raises `Diverged` where the program asks something
    else.

    A restart uses the recorded arguments. With `to`, the replay begins at the last restart before
    that step. Errors of finding the program are raised first.
    """
    meter = Metrics()
    execution = host.begin(record.birth, meter)
    opened: dict[int, AskedQuery] = {}
    known = 0  # queries asked so far
    restart, deliveries = _before(record.deliveries, to)
    try:
        for expected in pair_replies(deliveries):
            if restart is not None:
                execution.drop()
                meter = restart.metrics.copy()
                execution = cast(RestartableExecution, execution).again(restart, meter)
                known = restart.q
                opened.clear()
            execution.replaying = True
            given = expected.given
            recorded = expected.reply
            handing = make_advance_args(expected)
            execution.recorded_versions = {} if recorded.notes is None else recorded.notes.versions
            execution.recorded = recorded
            count_replayed_answers(meter, opened, expected)
            with execution.entered():
                reply = execution.advance(*handing)
            changed = compare_reply(expected, reply, known, strict=False)
            meter.paused(query for query in recorded.asked if query.q >= known)
            known = reply.asked[-1].q + 1 if reply.asked else known
            fold_delivery(opened, Delivery(given.n, given.at, given.answers))
            if given is not recorded:
                opened.clear()
            fold_delivery(opened, recorded)
            restart = get_restart(recorded)
            yield ReplayedDelivery(given, recorded, reply, _pairs(changed, recorded, reply))
    finally:
        execution.drop()


def _before(deliveries: list[Delivery], to: int | None) -> tuple[Restart | None, list[Delivery]]:
    """The last restart before a step, and the deliveries after it."""
    restarted = (
        None if to is None else split_at_last_restart([one for one in deliveries if one.n < to])[0]
    )
    if restarted is None:
        return None, deliveries
    return get_restart(restarted), [one for one in deliveries if one.n > restarted.n]


def _pairs(
    changed: list[int], recorded: Delivery, reply: ProgramReply
) -> list[tuple[Query, Query]]:
    if not changed:
        return []
    asked = {query.q: query for query in reply.asked}
    return [(query, asked[query.q]) for query in recorded.asked if query.q in changed]
