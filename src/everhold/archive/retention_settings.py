"""How long sessions are kept that have ended, as the table `[retention]` of the settings says
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from everhold.archive.retention import DEFAULT_STATES, RetentionPlan
from everhold.core.session import ENDED, SessionState
from everhold.errors import BadSetting
from everhold.packages.settings import Settings, parse_duration

RETENTION_KEYS: Final = (
    "completed",
    "failed",
    "cancelled",
    "keep_last",
    "per_program",
    "intake",
    "every",
)


class RetentionSettings(msgspec.Struct, frozen=True):
    """What goes, and how often whoever keeps the database open sees to it; None: only when
    asked.
    """

    plan: RetentionPlan
    every: float | None = None


def load_retention(found: Settings | None) -> RetentionSettings | None:
    """What the settings say; None if they say nothing. Raises `BadSetting`."""
    if found is None or not found.retention:
        return None
    where = f"retention in {found.source.get('retention', '')}"
    table = found.retention
    for key in table:
        if key not in RETENTION_KEYS:
            raise BadSetting(where, f"there is no {key!r}; there are {', '.join(RETENTION_KEYS)}")
    keep_last = _of(table, "keep_last", int, 0, where)
    ages = {
        state: parse_duration(table[state.value], f"{state} of {where}")
        for state in sorted(ENDED)
        if state in table
    }
    if not ages:
        if "keep_last" not in table:
            raise BadSetting(
                where, "say how long completed, failed or cancelled sessions are kept, or keep_last"
            )
        ages = dict.fromkeys(DEFAULT_STATES, 0.0)
    if keep_last < 0:
        raise BadSetting(where, f"keep_last cannot be {keep_last}")
    every = parse_duration(table["every"], f"every of {where}") if "every" in table else None
    if every is not None and every < 60:
        raise BadSetting(where, "every should be a minute at least")
    plan = RetentionPlan(
        ages={SessionState(state): age for state, age in ages.items()},
        keep_last=keep_last,
        per_program=_of(table, "per_program", bool, False, where),
        intake=parse_duration(table["intake"], f"intake of {where}") if "intake" in table else None,
    )
    return RetentionSettings(plan, every)


def _of(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    found = table.get(key, default)
    if type(found) is not kind:
        raise BadSetting(where, f"{key} cannot be {found!r}")
    return found
