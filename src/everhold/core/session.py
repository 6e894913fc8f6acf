"""The session: its states, the moves between them, and what is known of one without running it.

Everything that decides whether a session may move, and where to, is in this file. It does no I/O,
reads no clock and has never heard of stores or answerers.

Rules
  1. `MOVES` is the whole truth. A pair that is not in it is refused with `IllegalMove`, and nothing
     changes.
  2. `cancelled` and `completed` have no exits; `failed` has one, `retried`.
  3. A session is `running` while somebody works for it (an effect, an inline answer, an accepted
     answer that its program has not seen yet), and `paused` while it waits for the world outside or
     for a clock.

The diagram in docs/reference/states.md and the property tests are drawn from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NewType

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import FORMAT, JSON
from everhold.core.metrics import Metrics
from everhold.errors import IllegalMove

SessionId = NewType("SessionId", str)

#: Who answers a session's questions to models: workers that have a model, or somebody outside, such
#: as an MCP host.
WORKERS: Final = "workers"
OUTSIDE: Final = "outside"


class SessionState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SessionEvent(StrEnum):
    """What can happen to a session."""

    ASKED = "paused"  # nothing moves until an answer, a timer or a signal comes
    ANSWERED = "answered"  # something was handed over
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"


MOVES: Final[Mapping[SessionState, Mapping[SessionEvent, SessionState]]] = {
    SessionState.RUNNING: {
        SessionEvent.ASKED: SessionState.PAUSED,
        SessionEvent.ANSWERED: SessionState.RUNNING,
        SessionEvent.COMPLETED: SessionState.COMPLETED,
        SessionEvent.FAILED: SessionState.FAILED,
        SessionEvent.CANCELLED: SessionState.CANCELLED,
    },
    SessionState.PAUSED: {
        SessionEvent.ASKED: SessionState.PAUSED,
        SessionEvent.ANSWERED: SessionState.RUNNING,
        SessionEvent.COMPLETED: SessionState.COMPLETED,
        SessionEvent.FAILED: SessionState.FAILED,
        SessionEvent.CANCELLED: SessionState.CANCELLED,
    },
    SessionState.COMPLETED: {},
    SessionState.FAILED: {SessionEvent.RETRIED: SessionState.RUNNING},
    SessionState.CANCELLED: {},
}

ENDED: Final = frozenset({SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED})


def apply_event(state: SessionState, event: SessionEvent) -> SessionState:
    """The state after `event`; raises `IllegalMove` if the table has no such move."""
    target = MOVES[state].get(event)
    if target is None:
        raise IllegalMove(state, event)
    return target


def mint(at: float, dice: int) -> SessionId:
    """A session id: sortable by time, and unguessable as far as `dice` (96 bits) is."""
    return SessionId(f"s-{int(at * 1e9):016x}-{dice & (1 << 96) - 1:024x}")


class Seed(msgspec.Struct, frozen=True, array_like=True):
    """From which delivery on the dice fall from which seed."""

    since: int
    seed: str


class Birth(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What never changes about a session."""

    id: SessionId
    program: str  # reference: module:function or path/file.py:function
    version: int = 1
    args: dict[str, JSON] = {}
    created_at: float
    seeds: list[Seed]
    key: str | None = None
    title: str = ""
    labels: dict[str, str] = {}
    metadata: dict[str, str] = {}
    budget: Budget | None = None
    digest: str = ""  # of the program's source
    python: str = ""
    everhold: str = ""
    parent: SessionId | None = None
    parent_query: int = 0
    wakes: str = ""  # how a process in the background wakes its parent: its "intake", or a "signal"
    origin: SessionId | None = None  # of a fork
    origin_n: int = -1  # the last delivery shared with it
    # who answers questions to models: `WORKERS`, `OUTSIDE`, or nothing in sessions of older
    # databases
    llm: str = ""
    format: int = FORMAT


class Head(msgspec.Struct):
    """What changes with every commit. Small, because every step rewrites it."""

    ref: int  # the store's own number for the session; 0 before its first commit
    revision: int
    state: SessionState
    n: int  # number of the last delivery
    open_from: int  # the earliest delivery that asked a query still open; n + 1 if none
    due_at: float | None  # the earliest timer or expiry
    updated_at: float
    metrics: Metrics
    mail: int = 0  # intake rows not yet handed over
    attempts: int = 0  # processes that took the session up since its last commit
    # whether a question to a model is open that a worker may take; a hint for reconciliation
    parked: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def first(self, wanted: int) -> int:
        """The delivery from which on somebody reads who wants what is open (-1), or what is
        replayed (-2).
        """
        return self.open_from if wanted == -1 else self.metrics.begun
