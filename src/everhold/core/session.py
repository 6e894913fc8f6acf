"""The session: its states, the transitions between them, its birth and its head.

This file alone decides which transitions are legal. It does no I/O, reads no clock and imports no
store or answerer.

Rules
  1. `MOVES` has every legal transition. Any other pair raises `IllegalMove`, and nothing changes.
  2. `cancelled` and `completed` have no exits; `failed` has one, `retried`.
  3. A session is `running` while work is in progress for it: an effect, an inline answer, or an
     accepted answer that its program has not received yet. It is `paused` while it waits for an
     answer from outside or for a timer.

The diagram in docs/reference/states.md and the property tests are made from the table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final, NewType

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import FORMAT, JSON
from everhold.core.metrics import Metrics
from everhold.core.query import Blocked
from everhold.errors import IllegalMove

SessionId = NewType("SessionId", str)

#: Who answers a session's questions to models: workers that have a model, or a client outside, such
#: as an MCP host.
WORKERS: Final = "workers"
OUTSIDE: Final = "outside"


#: A name that begins like this is an id.
ID_START: Final = re.compile(r"s-[0-9a-f]{16}")


def format_session_name(session_id: str, key: str | None) -> str:
    """The name of a session for people: its key, or its id if the key looks like an id or an
    option.
    """
    if key is None or not key.strip() or key.startswith(("@", "-")) or ID_START.match(key):
        return session_id
    return key


class SessionState(StrEnum):
    """The state of a session."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SessionEvent(StrEnum):
    """An event that may change the state of a session."""

    ASKED = "paused"  # the program waits for an answer, a timer or a signal
    ANSWERED = "answered"  # an answer, a timer firing or a signal was accepted
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
    """The state after `event`; raises `IllegalMove` if the table has no such transition."""
    target = MOVES[state].get(event)
    if target is None:
        raise IllegalMove(state, event)
    return target


def mint(at: float, dice: int) -> SessionId:
    """A session id: sortable by time, and unguessable as far as `dice` (96 bits) is."""
    return SessionId(f"s-{int(at * 1e9):016x}-{dice & (1 << 96) - 1:024x}")


class Seed(msgspec.Struct, frozen=True, array_like=True):
    """A seed of the program's random numbers, and the first delivery that uses it."""

    since: int
    seed: str


class Birth(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The facts of a session that never change."""

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
    wakes: str = ""  # how a background child notifies its parent: its "intake", or a "signal"
    origin: SessionId | None = None  # of a fork
    origin_n: int = -1  # the last delivery shared with it
    forked_by: dict[str, JSON] | None = None  # who forked it
    # who answers questions to models: `WORKERS` or `OUTSIDE`; empty in sessions of older databases
    llm: str = ""
    # environment variables that its Lua programs may read, as they were when it started
    variables: dict[str, str] = {}
    format: int = FORMAT


class Head(msgspec.Struct):
    """The facts of a session that change. Small, because every commit rewrites it."""

    ref: int  # the store's own number for the session; 0 before its first commit
    revision: int
    state: SessionState
    n: int  # number of the last delivery
    open_from: int  # the earliest delivery with a query that is still open; n + 1 if none
    due_at: float | None  # the earliest timer or expiry
    updated_at: float
    metrics: Metrics
    mail: int = 0  # letters not yet delivered
    attempts: int = 0  # processes that loaded the session since its last commit
    # whether a question to a model is open that a worker may answer; a hint for reconciliation
    parked: bool = False
    # whether a question may be open that belongs in the inbox and has no row there; a hint
    asking: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def blocked(self, q: int) -> Blocked | None:
        """Why an open query could not be answered; None if nothing is known."""
        held = self.metrics.blocked
        return None if held is None else held.get(q)

    def block(
        self, opened: Collection[int], q: int | None = None, why: Blocked | None = None
    ) -> None:
        """Store why query `q` could not be answered, and drop the reasons of queries that are not
        open any more.

        The reasons are in the metrics, because that row takes new fields without a new format.
        """
        found = {n: one for n, one in (self.metrics.blocked or {}).items() if n in opened}
        if q is not None and why is not None:
            found[q] = why
        self.metrics.blocked = found or None

    def first(self, wanted: int) -> int:
        """The first delivery to read for the open queries (-1), or for a replay (-2)."""
        return self.open_from if wanted == -1 else self.metrics.begun


def get_budget(birth: Birth, metrics: Metrics) -> Budget | None:
    """The limits that hold for a session now; None if it has none."""
    return birth.budget if metrics.budget is None else metrics.budget
