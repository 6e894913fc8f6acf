"""The options that every notifier has: its name, and the questions it sends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from everhold.core.query import LISTED, Kind
from everhold.core.schema import PositiveSeconds, describe_misfit
from everhold.errors import BadSetting

#: Seconds for one try, and seconds after which a question is not sent any more.
TIMEOUT: Final = 10.0
MAX_AGE: Final = 86400.0
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class NotifierBase:
    """Checks and holds the options of a notifier."""

    def __init__(
        self,
        name: str,
        kinds: Iterable[str],
        to: Iterable[str],
        timeout: float,
        max_age: float | None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise BadSetting("name", f"{name!r} should be at most 64 letters, digits, - and _")
        if misfit := describe_misfit(timeout, PositiveSeconds):
            raise BadSetting("timeout", misfit)
        if max_age is not None and (misfit := describe_misfit(max_age, PositiveSeconds)):
            raise BadSetting("max_age", misfit)
        self.name, self.timeout = name, float(timeout)
        self.max_age = MAX_AGE if max_age is None else float(max_age)
        self.kinds = tuple(_kind(one) for one in ([kinds] if isinstance(kinds, str) else kinds))
        self.to = (to,) if isinstance(to, str) else tuple(to)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"


def _kind(name: str) -> Kind:
    if name not in LISTED:
        raise BadSetting("kinds", f"{name!r} is not one of {', '.join(sorted(LISTED))}")
    return Kind(name)


def make_notifier_name(readable: str, whole: str) -> str:
    """A stable name for a command or an address, which does not reveal it."""
    first = re.sub(r"[^A-Za-z0-9_-]+", "-", readable).strip("-")[:40] or "teller"
    return f"{first}-{sha256(whole.encode()).hexdigest()[:8]}"
