"""Verbs of a runtime that features are given, so that they need not know the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from everhold.core.status import Status
from everhold.ports.program import Call


class StartVerb(Protocol):
    """Starts a session; see `Runtime.start`."""

    async def __call__(
        self,
        call: Call[Any],
        *,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...


class ForkVerb(Protocol):
    """Forks a session; see `Runtime.fork`."""

    async def __call__(
        self,
        session: str,
        *,
        at: int | None = None,
        key: str | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...
