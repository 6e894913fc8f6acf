"""The store: durable memory for sessions, in domain verbs.

`Store` is what every store must do for sessions to run. `Maintenance` is the rest: what
notifications, retention, `verify` and `info` ask. A store without it is complete, and those verbs
raise `NoMaintenance`.

There is one write verb for sessions, `commit(change, fence)`: everything a step changes lands in
it, whole or not at all. A fence is the revision the change was computed from; who comes later with
an old one is refused.

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
from everhold.core.query import Kind, Query
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import NoMaintenance
from everhold.ports.attachment import Attachment

T = TypeVar("T")


class Notice(msgspec.Struct, frozen=True):
    """A row of the inbox: a query that somebody else than a model answers, or that is addressed to
    somebody.
    """

    q: int
    kind: Kind
    to: str | None
    asked_at: float
    query: Query


#: What `load` reads of a journal, beside all from some delivery on: from what is open on; or what
#: is replayed.
FROM_OPEN: Final = -1
FROM_RESTART: Final = -2

#: The worker of work that has not begun: whoever finds it may begin it.
NO_WORKER: Final = ""


class Effect(msgspec.Struct, frozen=True):
    """A mark that somebody works on a query: kept from before the work starts until its outcome is
    recorded.
    """

    q: int
    worker: str
    since: float


class Letter(msgspec.Struct, frozen=True):
    """A row of the intake: something accepted for a session that its program has not seen yet."""

    kind: str  # "start", "answer", "signal", "cancel", "wake"
    body: JSON
    at: float
    id: int = 0  # given by the store
    to: SessionId | None = None  # another session than the one of the change


#: The namespace of durable values that holds the keys of deleted sessions, each with the id of its
#: last session. No program can name it.
DELETED_KEYS: Final = "session/deleted-key"


class ValueWrite(msgspec.Struct, frozen=True):
    """A change of one durable value; `value` None deletes, else it is a list of one."""

    namespace: str
    key: str
    value: list[JSON] | None
    # the version it was computed from; 0: there was none. MUST still be so at the commit
    version: int


class Change(msgspec.Struct):
    """Everything one commit changes about one session."""

    id: SessionId
    head: Head  # as it will be; `revision` is the new one
    deliveries: Sequence[Delivery] = ()
    birth: Birth | None = None  # of a new session
    births: Sequence[tuple[Birth, Head]] = ()  # of children
    notices: Sequence[Notice] = ()
    effects: Sequence[Effect] = ()
    closed: Sequence[int] = ()  # queries that leave the inbox and the effects
    read: Sequence[int] = ()  # letters that were handed over
    letters: Sequence[Letter] = ()
    writes: Sequence[ValueWrite] = ()
    durable: bool = False  # MUST survive power loss whatever the level
    # what happens to the lanes and the lease, in the same moment
    intake: Callable[[Intake], object] | None = None
    # ids and keys of items that `intake` is to see though they have ended
    named: Sequence[str] = ()
    # only deliveries, and of the head only what every step changes: no state, due_at, mail
    light: bool = False


class SessionRecord(msgspec.Struct):
    """What is known of one session, read at one moment."""

    birth: Birth
    head: Head
    deliveries: list[Delivery]
    letters: list[Letter]
    effects: list[Effect]


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions to list. Newest first; `after` is the last id of the page before."""

    state: tuple[SessionState, ...] = ()
    program: str | None = None
    labels: dict[str, str] = {}
    parent: SessionId | None = None
    older_than: float | None = None  # last moved before this moment
    newer_than: float | None = None
    prefix: str = ""  # of the id
    limit: int = 100
    after: SessionId | None = None


class SessionSummary(msgspec.Struct, frozen=True):
    """A session without its journal: its birth and its head."""

    birth: Birth
    head: Head


class SessionFingerprint(msgspec.Struct, frozen=True):
    """How a session stands, in numbers: while they are the same, nothing was done to it, and
    nothing came for it.
    """

    revision: int
    came: int = 0  # items of the intake, ever
    waiting: int = 0  # those of them that wait and are available


#: Why a session needs a move: a timer is due, a letter waits, a mark has no living worker, an item
#: waits in the intake and no lease is alive, or a question to a model is open that workers may
#: take.
TIMER: Final = "timer"
LETTER: Final = "letter"
MARK: Final = "mark"
ITEM: Final = "item"
PARKED: Final = "parked"


class UnmovedSession(msgspec.Struct, frozen=True):
    """A session that needs a move. The same again means that nothing has happened to it since."""

    id: SessionId
    why: str
    since: float
    revision: int
    came: int = 0  # of what waits in its intake: grows with what comes


class RemoteChange(msgspec.Struct, frozen=True):
    """What another process says of what it wrote."""

    sessions: Sequence[str] = ()  # to which sessions; none: it does not say
    moves: bool = True  # whether one of them may have to be moved
    heads: bool = True  # whether more was written than what waits in their intakes
    # the worker that sees to it first, if there is one: others leave it to that one for a moment
    first: str = ""


class WorkerRecord(msgspec.Struct, frozen=True):
    """One process that works for sessions; its row says that it is alive, for `ttl` seconds after
    each beat.
    """

    id: str
    host: str
    pid: int
    ttl: float = TTL
    age: float = 0.0  # seconds since its last beat, by the store's clock; told by the store

    @property
    def expired(self) -> bool:
        return self.age >= self.ttl


class Duty(msgspec.Struct, frozen=True):
    """Something the house keeps in mind beside sessions: a schedule, an event, a delivery to be
    made.
    """

    kind: str
    id: str
    body: JSON  # None: it is done with, and goes
    due_at: float | None = None  # when somebody has to see to it
    version: int = 0  # grows by one with every change; 0: there is none yet


class QuestionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which questions for people to list: of all that have a row in the inbox, and nobody answers
    yet.
    """

    session: SessionId | None = None
    # none: every kind but signals, which are a program's, unless they are addressed
    kinds: tuple[Kind, ...] = ()
    to: tuple[str, ...] = ()
    # only those for which there is no duty of this kind, under the id `make_asking_id`
    without: str | None = None
    limit: int = 100


def make_asking_id(session_id: str, q: int, asked_at: float) -> str:
    """The name of one asking: the same question asked again is another."""
    return f"{session_id}/q-{q}/{int(asked_at * 1000)}"


class ReclaimResult(msgspec.Struct, frozen=True):
    """What `reclaim` removed, which nobody could read any more."""

    blobs: int = 0
    bytes: int = 0  # of the blobs
    rows: int = 0  # others


#: Seconds between two looks at a store that hears nothing by itself.
LOOK_EVERY: Final = 0.2

#: Told now and then while something takes long: how much is done, and of how much, in a unit of its
#: own.
ProgressCallback = Callable[[int, int], object]


class StoreProblem(msgspec.Struct, frozen=True):
    """Something `verify` found. A warning says that something may be missing, not that something is
    damaged.
    """

    session: str
    code: str
    detail: str
    warning: bool = False


class Maintenance(Protocol):
    """The upkeep of a store: what sessions do not need to run."""

    @property
    def path(self) -> Path | None:
        """The file of the store, if it is one that another process can open."""
        ...

    async def asking(self, wanted: QuestionFilter) -> builtins.list[tuple[Birth, Query, float]]:
        """Open questions for people that nobody answers yet, those asked first first."""
        ...

    async def size(self, session_id: str) -> int:
        """Bytes of steps and attachments that deleting a session would free now: none that a fork
        reads.

        MUST raise `UnknownSession` if there is none.
        """
        ...

    async def reclaim(self) -> ReclaimResult:
        """Remove what no session can read any more, and say what was removed by this call.

        MUST leave everything that a session may read, also what is kept meanwhile.
        MUST find nothing more when called again.
        """
        ...

    async def verify(self, progress: ProgressCallback | None = None) -> builtins.list[StoreProblem]:
        """Look for gaps, dangling references and damage; tells after each session how far it is.

        MUST find nothing in a sound store, but for warnings (see `StoreProblem`).
        """
        ...

    def stats(self) -> dict[str, Any]:
        """Numbers for people: size, format, settings."""
        ...


class Store(Protocol):
    """Durable memory for sessions: one transactional domain, shared by any number of processes."""

    @property
    def where(self) -> str:
        """The place of the store, for people, without a password."""
        ...

    @property
    def durability(self) -> str:
        """What a commit survives: "process" (the process dies), "power" (power fails too), or
        "mixed": as "process", and as "power" for a change that is `durable`; "none" is for a
        store in memory.
        """
        ...

    @property
    def time(self) -> Callable[[], float] | None:
        """The clock that leases and workers live by; None: the store's own."""
        ...

    @property
    def maintenance(self) -> Maintenance | None:
        """The upkeep of this store, or None; the store itself, if it has those verbs too."""
        ...

    def use_clock(self, now: Callable[[], float] | None) -> None:
        """Live by this clock from now on, or by the store's own again."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def commit(self, change: Change, fence: int) -> None:
        """Land one change.

        MUST raise `Overtaken`, and change nothing, if the stored revision is not `fence`. MUST
        raise `KeyConflict` if a new session's key is taken, and `Overtaken` if its id is. MUST
        raise `Overtaken` if a value written has another version than the write was computed from.
        MUST keep the change before it returns; after `durable` or at level "power", against power
        loss. MUST not let one refused change harm another that is committed at the same time. MUST
        set `change.head.ref` of a new session.
        """
        ...

    def commit_now(self, change: Change, fence: int) -> bool:
        """Land one change without waiting, if that is possible now; False: it did not land, and
        `commit` has to wait.

        MUST raise and keep what `commit` does.
        """
        ...

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        """Read one session and its deliveries from `since` on, of one moment.

        `FROM_OPEN` is from `head.open_from` on, and `FROM_RESTART` from `head.metrics.begun`, where
        its program began again last.

        MUST raise `UnknownSession` if there is none. MUST include the deliveries a fork shares with
        its origin, through any number of forks of forks.
        """
        ...

    async def find(self, key: str) -> SessionId | None:
        """The session with this key."""
        ...

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]: ...

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, without: str | None = None
    ) -> builtins.list[tuple[Birth, Query, float]]:
        """Open queries of all sessions that somebody outside can answer, oldest first.

        Signals of the name `without` are left out.
        """
        ...

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        """Sessions that need a move, oldest first, once for each reason: see `TIMER` and what
        follows it.

        `now` is the moment until which timers are due; `living` are the workers whose marks are in
        good hands. Parked questions are looked for if `parked` says so. MUST name sessions that
        have ended and have items waiting, too: what waits has to be told so. What it costs depends
        on what is found, not on how many sessions there are.
        """
        ...

    async def next_due(self) -> float | None:
        """The earliest moment at which a session moves by itself."""
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
        """Let `act` see a session's lease and what waits for it, and land what it changed, as one.

        It is given everything that waits, what has ended under an id or key `named`, or all with
        `whole`; with `only` it needs no more than what is named, however much waits. A key under
        which it lets something in has to be named. `writes` is a hint that it will change something
        that has to last. It may be called more than once, and is to be repeatable: where the
        outcome of a try is unknown, it is tried again. MUST raise `UnknownSession` if there is
        none. MUST let one act at a time on a session, whoever the others are, and change nothing if
        it raises. MUST write nothing if nothing was changed. MUST give the time of one clock for
        all processes. MUST run `Change.intake` so too, in the transaction of its commit; if it
        raises, nothing of the commit lands.
        """
        ...

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        """How these sessions stand; one that is not there is left out. It costs little, however
        large they are.
        """
        ...

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        """Renew all leases of a worker that are alive; returns whose they are."""
        ...

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        """Release one lease, if it is still this one; returns whether something waits that came
        after item `came`.

        What waited before was seen by whoever took the lease: to be told of it again and again
        would help nobody. MUST raise `UnknownSession` if there is none.
        """
        ...

    async def leave(self, owner: LeaseOwner) -> None:
        """Release all leases of a worker."""
        ...

    async def duty(self, kind: str, id: str) -> Duty | None: ...

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        """Duties of a kind: those due by a moment, earliest first; else those whose id begins so
        and comes after.
        """
        ...

    async def undertake(self, duties: Sequence[Duty]) -> None:
        """Write duties, each computed from its `version`.

        MUST raise `Overtaken`, and change nothing, if one has another version by now.
        MUST keep them before it returns.
        """
        ...

    async def next_duty(self, after: float = -1.0) -> float | None:
        """The earliest moment later than `after` at which a duty is due or something that waits
        becomes available.
        """
        ...

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        """A durable value as a list of one (None: there is none), and its version (0: never
        written).
        """
        ...

    async def keys(self, namespace: str) -> builtins.list[str]:
        """The keys of a namespace in order."""
        ...

    async def beat(self, worker: WorkerRecord) -> None:
        """Say that a worker lives, now.

        MUST take the time of one clock for all processes, whatever the worker's own says.
        """
        ...

    async def workers(self) -> builtins.list[WorkerRecord]:
        """Those that were not released, each with its age, by id."""
        ...

    async def release(self, worker_id: str) -> None:
        """Say that a worker is gone."""
        ...

    async def delete(self, session_id: str, fence: int) -> int:
        """Forget a session; return how many deliveries are kept because a fork still uses them.

        MUST keep what a fork shares, and hide the rest. MUST free its key, and keep the session's
        id under that key in the namespace `DELETED_KEYS`, at once.
        """
        ...

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        """Keep bytes beside a session; the same again changes nothing.

        MUST raise `UnknownSession` if there is none.
        MUST refuse bytes that are not what `made` names, and keep nothing.
        MUST keep them before it returns, whoever else keeps the same bytes.
        """
        ...

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        """Read what a session keeps, or what its origin had kept before the step at which it was
        forked.

        MUST raise `UnknownAttachment` for everything else, whoever keeps it.
        """
        ...

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        """What a session may read, in the order kept.

        MUST let go of bytes with the last session that may read them.
        """
        ...

    async def changed(self) -> bool:
        """Whether another process may have written since the last call."""
        ...

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        """Have `wake` called when another process may have written, until the store is closed.

        `me` is who looks for work here, and sees first to what this process writes. Returns the
        seconds after which to ask `changed` all the same: `LOOK_EVERY` from a store that hears
        nothing. MUST have called `wake`, or say so when `changed` is asked, by then.
        """
        ...


def require_maintenance(store: Store, what: str) -> Maintenance:
    """The upkeep of a store, for the verb `what`; raises `NoMaintenance` if it has none."""
    found = store.maintenance
    if found is None:
        raise NoMaintenance(store.where, what)
    return found
