"""The store: durable memory for sessions, in domain verbs.

`Store` is what every store must implement so that sessions can run. `Maintenance` is optional: it
serves notifications, retention, `verify` and `info`. Without it, those verbs raise `NoMaintenance`.

Sessions have one write verb, `commit(change, fence)`: all changes of a step are committed together
or not at all. A fence is the revision that the change was computed from; a commit with an old fence
is refused.

Words in capitals are promises; each MUST is a test in `everhold.testing.conformance`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from everhold.core.codec import JSON
from everhold.core.intake import Intake
from everhold.core.journal import Delivery
from everhold.core.lease import TTL, Fence, LeaseOwner
from everhold.core.query import LISTED, SENT_BY_NAME, FailedAttempt, Kind, Query
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import NoMaintenance
from everhold.ports.attachment import Attachment

T = TypeVar("T")


class Notice(msgspec.Struct, frozen=True):
    """A row of the inbox: a query that needs an answer from outside, or that is addressed."""

    q: int
    kind: Kind
    to: str | None
    asked_at: float
    query: Query


#: Values for `since` in `load`: from the first open query on, or from the last restart on.
FROM_OPEN: Final = -1
FROM_RESTART: Final = -2

#: The worker of an effect that has not started: any worker may start it.
NO_WORKER: Final = ""


class Effect(msgspec.Struct, frozen=True):
    """A mark that a worker works on a query: stored before the work starts, until its outcome is
    recorded.

    After a failed attempt that is followed by another one, its worker is `NO_WORKER` until the next
    one starts, and `since` is the time of that start.
    """

    q: int
    worker: str
    since: float
    failed: FailedAttempt | None = None  # the last failed attempt, also while the next one runs


class Letter(msgspec.Struct, frozen=True):
    """A row of the intake: input that was accepted for a session and not yet delivered to its
    program.
    """

    kind: str  # "start", "answer", "signal", "cancel", "wake"
    body: JSON
    at: float
    id: int = 0  # given by the store
    to: SessionId | None = None  # another session than the one of the change


#: The namespace of durable values that holds the keys of deleted sessions, each with the id of its
#: last session. No program can name it.
DELETED_KEYS: Final = "session/deleted-key"
#: The namespace of durable values that holds who deleted a session, by its id.
DELETED_BY: Final = "session/deleted-by"


class ValueWrite(msgspec.Struct, frozen=True):
    """A change of one durable value. `value` None deletes it, otherwise it is a list of one."""

    namespace: str
    key: str
    value: list[JSON] | None
    # the version it was computed from; 0: not set. MUST still be the version at the commit
    version: int


class Change(msgspec.Struct):
    """Everything that one commit changes about one session."""

    id: SessionId
    head: Head  # the new head, with the new `revision`
    deliveries: Sequence[Delivery] = ()
    birth: Birth | None = None  # of a new session
    births: Sequence[tuple[Birth, Head]] = ()  # of children
    notices: Sequence[Notice] = ()
    effects: Sequence[Effect] = ()
    closed: Sequence[int] = ()  # queries that leave the inbox and the effects
    read: Sequence[int] = ()  # letters that were delivered
    letters: Sequence[Letter] = ()
    writes: Sequence[ValueWrite] = ()
    durable: bool = False  # MUST survive power loss whatever the level
    # changes queued items and the lease in the same transaction
    intake: Callable[[Intake], object] | None = None
    # ids and keys of ended items that `intake` needs to see
    named: Sequence[str] = ()
    # only deliveries, and the fields of the head that every step changes: no state, due_at, mail
    light: bool = False


class SessionRecord(msgspec.Struct):
    """A session as it was at one moment."""

    birth: Birth
    head: Head
    deliveries: list[Delivery]
    letters: list[Letter]
    effects: list[Effect]


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list; `after` is the last id of the previous page.

    Newest first, by birth and id. With `older_than`, the longest unmoved first.
    """

    state: tuple[SessionState, ...] = ()
    programs: tuple[str, ...] = ()  # references of one program, or the name of a function
    labels: dict[str, str] = {}
    parent: SessionId | None = None
    older_than: float | None = None  # last moved before this moment
    newer_than: float | None = None
    prefix: str = ""  # of the id
    limit: int = 100
    after: SessionId | None = None


class InboxPlace(msgspec.Struct, frozen=True, order=True):
    """The place of a question in the inbox. The oldest session is first."""

    created_at: float  # of the session
    session_id: str
    q: int


#: A question of the inbox: its session, the query, and when it was asked.
FoundQuestion = tuple[Birth, Query, float]


def place_in_inbox(found: FoundQuestion) -> InboxPlace:
    """Where the inbox shows a question."""
    return InboxPlace(found[0].created_at, found[0].id, found[1].q)


def list_inbox_kinds(kind: Kind | None, to: str | None) -> tuple[Kind, ...]:
    """The kinds that the inbox shows: signals only if they are asked for, or addressed."""
    if kind is not None:
        return (kind,)
    return tuple(
        one for one in Kind if one in LISTED and (to is not None or one not in SENT_BY_NAME)
    )


class SessionSummary(msgspec.Struct, frozen=True):
    """A session without its journal: its birth and its head."""

    birth: Birth
    head: Head


class SessionFingerprint(msgspec.Struct, frozen=True):
    """The state of a session in numbers: equal fingerprints mean that nothing was committed and
    nothing arrived.
    """

    revision: int
    came: int = 0  # number of items ever queued
    waiting: int = 0  # number of queued items that are available


#: Why a session needs a move: a timer is due, a letter waits, a mark has no living worker, an item
#: waits and no lease is alive, or a model question is open that workers may answer.
TIMER: Final = "timer"
LETTER: Final = "letter"
MARK: Final = "mark"
ITEM: Final = "item"
PARKED: Final = "parked"


class UnmovedSession(msgspec.Struct, frozen=True):
    """A session that needs a move. An equal record means that nothing has happened to it since."""

    id: SessionId
    why: str
    since: float
    revision: int
    came: int = 0  # of its intake: grows with each item


class RemoteChange(msgspec.Struct, frozen=True):
    """A notification about writes of another process."""

    sessions: Sequence[str] = ()  # the written sessions; empty: unknown
    moves: bool = True  # whether one of them may need a move
    heads: bool = True  # whether more was written than queued items
    # the worker that handles it first, if there is one; others wait a moment
    first: str = ""


class WorkerRecord(msgspec.Struct, frozen=True):
    """A process that moves sessions. Its row proves that it is alive for `ttl` seconds after each
    beat.
    """

    id: str
    host: str
    pid: int
    ttl: float = TTL
    age: float = 0.0  # seconds since its last beat, by the store's clock; set by the store

    @property
    def expired(self) -> bool:
        """Whether it has not reported for longer than its leases last."""
        return self.age >= self.ttl


class Duty(msgspec.Struct, frozen=True):
    """A record beside sessions: a schedule, an event, or a delivery to make."""

    kind: str
    id: str
    body: JSON  # None deletes the duty
    due_at: float | None = None  # when it has to be handled
    version: int = 0  # grows by one with every change; 0: there is none yet


class QuestionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which questions for people to list: those with a row in the inbox and no running answerer."""

    session: SessionId | None = None
    # empty: every kind, but signals only if they are addressed
    kinds: tuple[Kind, ...] = ()
    to: tuple[str, ...] = ()
    # only those without a duty of this kind under the id `make_asking_id`
    without: str | None = None
    limit: int = 100


def make_asking_id(session_id: str, q: int, asked_at: float) -> str:
    """The id of one asking; the same question asked again has another id."""
    return f"{session_id}/q-{q}/{int(asked_at * 1000)}"


class ReclaimResult(msgspec.Struct, frozen=True):
    """Unreachable data that `reclaim` removed."""

    blobs: int = 0
    bytes: int = 0  # of the blobs
    rows: int = 0  # others


#: Seconds between two reads of a store without notifications.
LOOK_EVERY: Final = 0.2

#: Called now and then during long work, with the amount done and the total.
ProgressCallback = Callable[[int, int], object]


class StoreProblem(msgspec.Struct, frozen=True):
    """A finding of `verify`. A warning means that something may be missing, not that something is
    damaged.
    """

    session: str
    code: str
    detail: str
    warning: bool = False


class Maintenance(Protocol):
    """The upkeep of a store: verbs that running sessions do not need."""

    @property
    def path(self) -> Path | None:
        """The file of the store, if another process can open it."""
        ...

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        """Open questions for people without a running answerer, oldest first."""
        ...

    async def size(self, session_id: str) -> int:
        """Bytes of steps and attachments that deleting a session would free now; those that a fork
        reads do not count.

        MUST raise `UnknownSession` if there is none.
        """
        ...

    async def reclaim(self) -> ReclaimResult:
        """Remove data that no session can read any more; returns what this call removed.

        MUST leave everything that a session may read, including data that is stored meanwhile. MUST
        find nothing more when called again.
        """
        ...

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        """Look for gaps, dangling references and damage; reports progress after each session.

        MUST find nothing in a sound store, except warnings (see `StoreProblem`).
        """
        ...

    def stats(self) -> dict[str, Any]:
        """Numbers for people: size, format, settings."""
        ...


class Store(Protocol):
    """Durable memory for sessions: one transactional domain, shared by any number of processes."""

    @property
    def where(self) -> str:
        """The place of the store for display, without a password."""
        ...

    @property
    def durability(self) -> str:
        """What a commit survives: "process" (the process dies), "power" (a power failure too), or
        "mixed" ("power" for a change that is `durable`, otherwise "process"); "none" for a store in
        memory.
        """
        ...

    @property
    def time(self) -> Callable[[], float] | None:
        """The clock for leases and workers; None: the store's own."""
        ...

    @property
    def maintenance(self) -> Maintenance | None:
        """The upkeep of this store, which may be the store itself, or None."""
        ...

    def use_clock(self, now: Callable[[], float] | None) -> None:
        """Use this clock for leases and workers; None: the store's own."""
        ...

    async def open(self) -> None:
        """Open the store; called once, before every other verb."""
        ...

    async def close(self) -> None:
        """Close the store."""
        ...

    async def commit(self, change: Change, fence: int) -> None:
        """Commit one change.

        MUST raise `Overtaken`, and change nothing, if the stored revision is not `fence`. MUST
        raise `KeyConflict` if a new session's key is taken, and `Overtaken` if its id is. MUST
        raise `Overtaken` if a written value has another version than the write was computed from.
        MUST store the change before it returns; with `durable`, or at level "power", against power
        loss. MUST not let a refused change harm another that is committed at the same time. MUST
        set `change.head.ref` of a new session.
        """
        ...

    def commit_now(self, change: Change, fence: int) -> bool:
        """Commit one change without waiting, if possible; False: nothing was committed, use
        `commit`.

        MUST raise and promise what `commit` does.
        """
        ...

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        """Read one session and its deliveries from `since` on, as of one moment.

        `FROM_OPEN` means from `head.open_from` on, and `FROM_RESTART` from `head.metrics.begun`,
        the last restart of the program.

        MUST raise `UnknownSession` if there is none. MUST include the deliveries that a fork shares
        with its origin, through any number of forks.
        """
        ...

    async def find(self, key: str) -> SessionId | None:
        """The session with this key, or None."""
        ...

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        """The sessions that match. A page costs what it shows: with one filter, it costs the same
        among a million sessions as among a thousand.
        """
        ...

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, after: InboxPlace | None = None
    ) -> builtins.list[FoundQuestion]:
        """Open queries that can be answered from outside: the oldest session first, and within a
        session in the order asked.

        Signals are listed only if `kind` or `to` names them. `after` is the place of the last
        question of the previous page. A page costs what it shows: `head.asking` says which sessions
        may have an open question without a notice, and the journals of others are not read.
        """
        ...

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        """Sessions that need a move, oldest first, once per reason: see `TIMER` and the constants
        after it.

        Timers are due until `now`; `living` are the workers whose marks count as alive. Parked
        questions are included with `parked`. MUST include ended sessions with queued items, which
        must be refused. The cost depends on the number of results, not on the number of sessions.
        """
        ...

    async def next_due(self) -> float | None:
        """The earliest time at which a session needs a move without new input."""
        ...

    async def intake(
        self,
        session_id: str,
        act: Callable[[Intake], T],
        *,
        named: Sequence[str] = (),
        whole: bool = False,
        only: bool = False,
        writes: bool = False,
    ) -> T:
        """Run `act` on a session's lease and queued items, and commit its changes atomically.

        It sees all queued items, and ended items whose id or key is `named`, or all with `whole`;
        with `only` it needs only the named ones. A key under which it queues an item must be named.
        `writes` is a hint that it will make a durable change. It may be called more than once and
        must be repeatable: if the outcome of a try is unknown, it is tried again. MUST raise
        `UnknownSession` if there is none. MUST run one act at a time per session, across processes,
        and change nothing if it raises. MUST write nothing if nothing was changed. MUST use the
        time of one clock for all processes. MUST run `Change.intake` in the same way, in the
        transaction of its commit; if it raises, nothing is committed.
        """
        ...

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        """The fingerprints of these sessions; unknown sessions are left out. Cheap, however large
        the sessions are.
        """
        ...

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        """Renew all living leases of a worker; returns their sessions."""
        ...

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        """Release one lease, if it is still held; returns whether an item arrived after item
        `came`.

        Items up to `came` were seen by the holder, so they do not need another notification. MUST
        raise `UnknownSession` if there is none.
        """
        ...

    async def leave(self, owner: LeaseOwner) -> None:
        """Release all leases of a worker."""
        ...

    async def duty(self, kind: str, id: str) -> Duty | None:
        """One duty, or None."""
        ...

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        """Duties of a kind: with `due`, those due by then, earliest first; otherwise by id prefix,
        after `after`.
        """
        ...

    async def undertake(self, duties: Sequence[Duty]) -> None:
        """Write duties, each computed from its `version`.

        MUST raise `Overtaken`, and change nothing, if one has another version by now. MUST store
        them before it returns.
        """
        ...

    async def next_duty(self, after: float = -1.0) -> float | None:
        """The earliest time after `after` at which a duty is due or a queued item becomes
        available.
        """
        ...

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        """A durable value as a list of one (None: not set), and its version (0: never written)."""
        ...

    async def keys(self, namespace: str) -> builtins.list[str]:
        """The keys of a namespace, sorted."""
        ...

    async def beat(self, worker: WorkerRecord) -> None:
        """Record that a worker is alive now.

        MUST use the time of one clock for all processes, not the worker's own.
        """
        ...

    async def workers(self) -> builtins.list[WorkerRecord]:
        """The workers that were not released, each with its age, by id."""
        ...

    async def release(self, worker_id: str) -> None:
        """Record that a worker has stopped."""
        ...

    async def delete(self, session_id: str, fence: int, by: dict[str, JSON] | None = None) -> int:
        """Delete a session; returns the number of deliveries that stay because a fork uses them.

        MUST keep what a fork shares, and hide the rest. MUST free its key at once, and store the
        session's id under that key in the namespace `DELETED_KEYS`. MUST store `by`, if it is
        given, under the session's id in the namespace `DELETED_BY`.
        """
        ...

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        """Store bytes beside a session; the same bytes again change nothing.

        MUST raise `UnknownSession` if there is none. MUST refuse bytes that do not match `made`,
        and store nothing. MUST store them before it returns, even if another session stores the
        same bytes.
        """
        ...

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        """Read an attachment of a session, or one that its origin had before the step of the
        fork.

        MUST raise `UnknownAttachment` for all others, even if another session has it.
        """
        ...

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        """The attachments that a session may read, in the order stored.

        MUST delete bytes with the last session that may read them.
        """
        ...

    async def changed(self) -> bool:
        """Whether another process may have written since the last call."""
        ...

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        """Call `wake` when another process may have written, until the store is closed.

        `me` is the worker that first handles what this process writes. Returns the seconds after
        which to call `changed` anyway: `LOOK_EVERY` for a store without notifications. By then it
        MUST have called `wake`, or return True from `changed`.
        """
        ...


def require_maintenance(store: Store, what: str) -> Maintenance:
    """The upkeep of a store, for the verb `what`; raises `NoMaintenance`."""
    found = store.maintenance
    if found is None:
        raise NoMaintenance(store.where, what)
    return found
