"""Letting go of sessions that have ended: only when asked, and never of what another session still needs.

Rules
  1. Only sessions that have ended are deleted. A failed one can be retried, so it goes only if it is named.
  2. What a fork shares is kept by the store, hidden, as long as the fork is there.
  3. A child stays while its parent may still ask for its end: as long as that runs, waits, or can be retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from everhold.core.errors import BadSetting, Overtaken, UnknownSession
from everhold.core.session import ENDED, SessionId, State
from everhold.drive.transfer import heard, pages
from everhold.ports.store import Filter, Progress, Store

#: What is swept unless the caller names states.
USUAL: Final = (State.COMPLETED, State.CANCELLED)


class Swept(msgspec.Struct, frozen=True):
    """What was deleted (or, in a dry run, would be), and what was not and why."""

    deleted: list[SessionId]
    kept: dict[SessionId, str]
    shared_steps: int  # of deleted sessions; they stay because a fork has them too
    dry_run: bool


def swept_states(given: Iterable[str]) -> tuple[State, ...]:
    """The states a caller named; raises `BadSetting` for one that is not an end."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in set(ENDED):
            raise BadSetting("states", f"{name!r} is no end; sweep takes {', '.join(sorted(ENDED))}")
    return tuple(State(name) for name in names) or USUAL


async def sweep(
    store: Store, wanted: Filter, *, keep_last: int, dry_run: bool, progress: Progress | None = None
) -> Swept:
    """Delete the sessions that a filter finds, but for the newest `keep_last` of them."""
    found = [(row.birth, row.head.revision) async for row in pages(store, wanted)][keep_last:]
    deleted: dict[SessionId, int] = {}
    told = heard(progress)
    kept: dict[SessionId, str] = {}
    for done, (birth, revision) in enumerate(reversed(found)):  # parents before their children
        told(done, len(found))
        if birth.parent is not None and birth.parent not in deleted:
            reason = await _needed_by(store, birth.parent)
            if reason:
                kept[birth.id] = reason
                continue
        try:
            deleted[birth.id] = 0 if dry_run else await store.delete(birth.id, revision)
        except UnknownSession:  # somebody else was quicker
            continue
        except Overtaken:
            kept[birth.id] = "it has moved since"
    return Swept(list(deleted), kept, sum(deleted.values()), dry_run)


async def _needed_by(store: Store, parent: str) -> str:
    try:
        state = (await store.load(parent, since=-1)).head.state
    except UnknownSession:
        return ""
    return "" if state in USUAL else f"its parent {parent} is {state}"
