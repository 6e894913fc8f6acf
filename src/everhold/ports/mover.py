"""Movers: they decide when `move` runs, and for which session.

The engine has one function that moves a session. It is idempotent, and may run twice at once: the
fence of the commit decides. A mover decides nothing about a session; it only makes sure that moves
happen soon, and not too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from everhold.core.session import SessionId
from everhold.exception_info import ExceptionInfo


class Next(msgspec.Struct, frozen=True):
    """The result of a move: when to move the session again, and which other sessions to move."""

    at: float | None = None  # move it again at that time: its earliest timer or expiry
    # sessions to which the commits of this move delivered something
    others: Sequence[SessionId] = ()
    # why it cannot move in this process: its program cannot be loaded, or diverged
    absent: str | None = None
    exception: ExceptionInfo | None = None  # that loading its program raised
    moved: bool = False  # whether anything was committed


#: Moves one session. Never raises for a problem of that session.
Move = Callable[[str], Awaitable[Next]]


class Mover(Protocol):
    def send(self, session_id: str, *, at: float | None = None) -> None:
        """Request a move, now or at a time. Returns at once. A request may be lost; reconciliation
        finds the session then.

        MUST move the session again if it is being moved now.
        """
        ...

    async def serve(self, move: Move) -> None:
        """Run requested moves until `leave` is called."""
        ...

    async def leave(self, grace: float) -> None:
        """Start no more moves, and let running ones end within `grace` seconds."""
        ...
