"""How long sessions are kept that have ended, as the table `[retention]` of the settings says
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from everhold.archive.retention import USUAL, Plan
from everhold.core.session import ENDED, State
from everhold.errors import BadSetting
from everhold.packages.settings import Settings, seconds

KEYS: Final = ("completed", "failed", "cancelled", "keep_last", "per_program", "intake", "every")


class Retention(msgspec.Struct, frozen=True):
    """What goes, and how often whoever keeps the database open sees to it; None: only when
    asked.
    """

    plan: Plan
    every: float | None = None


def retention(found: Settings | None) -> Retention | None:
    """What the settings say; None if they say nothing. Raises `BadSetting`."""
    if found is None or not found.retention:
        return None
    where = f"retention in {found.source.get('retention', '')}"
    table = found.retention
    for key in table:
        if key not in KEYS:
            raise BadSetting(where, f"there is no {key!r}; there are {', '.join(KEYS)}")
    keep_last = _of(table, "keep_last", int, 0, where)
    ages = {
        state: seconds(table[state.value], f"{state} of {where}")
        for state in sorted(ENDED)
        if state in table
    }
    if not ages:
        if "keep_last" not in table:
            raise BadSetting(
                where, "say how long completed, failed or cancelled sessions are kept, or keep_last"
            )
        ages = dict.fromkeys(USUAL, 0.0)
    if keep_last < 0:
        raise BadSetting(where, f"keep_last cannot be {keep_last}")
    every = seconds(table["every"], f"every of {where}") if "every" in table else None
    if every is not None and every < 60:
        raise BadSetting(where, "every should be a minute at least")
    plan = Plan(
        ages={State(state): age for state, age in ages.items()},
        keep_last=keep_last,
        per_program=_of(table, "per_program", bool, False, where),
        intake=seconds(table["intake"], f"intake of {where}") if "intake" in table else None,
    )
    return Retention(plan, every)


def _of(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    found = table.get(key, default)
    if type(found) is not kind:
        raise BadSetting(where, f"{key} cannot be {found!r}")
    return found
