"""Who calls `move` for which session, and when.

The engine has one function that moves a session. It is idempotent, and may run twice at once: the
fence of the commit decides. So a mover decides nothing about a session. It only makes sure that a
move happens, soon and not too often.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from everhold.core.session import SessionId


class Next(msgspec.Struct, frozen=True):
    """What a move says about the session: when to move it again, and which others to move."""

    at: float | None = None  # move it again at that time: its earliest timer or expiry
    # sessions to which the commits of this move delivered something
    others: Sequence[SessionId] = ()
    # why it cannot go on in this process: its program is not here, or diverged
    absent: str | None = None
    moved: bool = False  # whether anything was committed


#: Moves one session; never raises because of what is wrong with that session.
Move = Callable[[str], Awaitable[Next]]


class Mover(Protocol):
    def send(self, session_id: str, *, at: float | None = None) -> None:
        """Request a move, now or at a time. It returns at once, and a request may be lost:
        reconciliation finds it.

        MUST move the session again if it is being moved now.
        """
        ...

    async def serve(self, move: Move) -> None:
        """Run the moves that were requested, until `leave` is called."""
        ...

    async def leave(self, grace: float) -> None:
        """Begin no move any more, and let running ones end within `grace` seconds."""
        ...
