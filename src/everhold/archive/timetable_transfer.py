"""Carrying schedules, triggers, and events that are remembered, from one database into another."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from everhold.ports.store import Duty, Store
from everhold.schedules.schedule import SCHEDULE_KIND as SCHEDULE
from everhold.schedules.trigger import EVENT, HANDOVER, TRIGGER

_KINDS: Final = (SCHEDULE, TRIGGER, EVENT, HANDOVER)


async def load_timetable(store: Store) -> list[Duty]:
    """All of them."""
    found: list[Duty] = []
    for kind in _KINDS:
        after = ""
        while page := await store.duties(kind, after=after, limit=500):
            found += page
            after = page[-1].id
    return found


async def copy_timetable(store: Store, duties: list[Duty]) -> dict[str, int]:
    """Keep here what was kept elsewhere, all at once; what has the same name here stays. Returns
    how many of each.
    """
    fresh = [duty for duty in duties if await store.duty(duty.kind, duty.id) is None]
    await store.undertake([msgspec.structs.replace(duty, version=0) for duty in fresh])
    count = Counter(duty.kind for duty in fresh)
    return {f"{kind}s": count[kind] for kind in (SCHEDULE, TRIGGER, EVENT)}
