"""Sessions in the memory of one process: the reference for every other store.

Rules
  1. Nothing is shared with a caller. Journal, births, queries, letters and values are kept as JSON
     text; heads are copied on the way in and on the way out.
  2. A commit is checked and encoded completely before any of it is stored, without an await in
     between.
  3. A fork holds only the deliveries after `origin_n`. Earlier ones are read from its source: its
     origin or, if that session has no delivery of its own up to `origin_n`, the source of its
     origin. So every session in a chain of sources contributes deliveries, and a fork of a fork
     costs no more than a fork.
  4. A deleted session that a fork still reads is buried: hidden, and kept only as long as the fork
     needs it.
"""

from __future__ import annotations

import builtins
import copy
import functools
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nsmallest
from operator import itemgetter
from typing import Final, TypeVar

import msgspec

from everhold.core import journal
from everhold.core.codec import JSON, dumps, loads
from everhold.core.intake import Intake, IntakeItem
from everhold.core.journal import AskedQuery, Delivery
from everhold.core.lease import Fence, Lease, LeaseOwner
from everhold.core.query import ANSWERABLE, LISTED, Kind, Query
from everhold.core.session import Birth, Head, SessionEvent, SessionId, SessionState, apply_event
from everhold.errors import (
    BadArguments,
    BadValue,
    KeyConflict,
    Overtaken,
    StillNeeded,
    UnknownAttachment,
    UnknownSession,
)
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    DELETED_BY,
    DELETED_KEYS,
    ITEM,
    LETTER,
    LOOK_EVERY,
    MARK,
    PARKED,
    TIMER,
    Change,
    Duty,
    Effect,
    FoundQuestion,
    InboxPlace,
    Letter,
    Notice,
    RemoteChange,
    SessionFilter,
    SessionFingerprint,
    SessionRecord,
    SessionSummary,
    UnmovedSession,
    WorkerRecord,
    list_inbox_kinds,
)
from everhold.stores.loop_turns import give_loop_turns
from everhold.stores.memory_maintenance import MemoryMaintenance
from everhold.stores.row_codec import check_duties, make_item_row, read_item, release_if_held

T = TypeVar("T")
Row = tuple[int, float, bytes, bytes, bytes | None]  # n, at, answers, asked, notes
_number = itemgetter(0)
_encode = msgspec.json.Encoder().encode
_birth = msgspec.json.Decoder(Birth).decode
_notice = msgspec.json.Decoder(Notice).decode
_NEVER: Final = (None, 0)


class _Post(msgspec.Struct, frozen=True):
    """A stored letter; `body` is JSON text."""

    kind: str
    body: str
    at: float


class _Session:
    """A stored session."""

    __slots__ = (
        "attached",
        "birth",
        "effects",
        "forks",
        "head",
        "letters",
        "notices",
        "rows",
        "source",
        "text",
    )

    def __init__(self, birth: Birth, head: Head, source: SessionId | None) -> None:
        self.text = _encode(birth)  # callers get copies of it
        self.birth = birth  # only for reading here
        self.source = source  # the session that has the deliveries up to `birth.origin_n`
        self.head = _copied(head)
        self.rows: list[Row] = []
        self.letters: dict[int, _Post] = {}
        self.notices: dict[int, bytes] = {}
        self.effects: dict[int, Effect] = {}
        self.forks: set[SessionId] = set()  # the sessions that have this one as their source
        # each with the step at which it was kept
        self.attached: dict[str, tuple[Attachment, int]] = {}

    @property
    def place(self) -> tuple[float, str]:
        return (self.birth.created_at, self.birth.id)

    def handled_queries(self) -> set[int]:
        """The queries that a queued answer or a worker already handles."""
        answered = (
            loads(post.body)["q"] for post in self.letters.values() if post.kind == "answer"
        )
        return {*self.effects, *answered}


class MemoryIntake:
    """The intake of one session."""

    __slots__ = ("items", "lease", "seq")

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.seq = 0
        self.items: dict[str, IntakeItem] = {}

    def read(
        self,
        session_id: str,
        head: Head,
        now: float,
        named: Sequence[str],
        *,
        whole: bool = False,
        only: bool = False,
    ) -> Intake:
        def wanted(item: IntakeItem) -> bool:
            return whole or (item.waits and not only) or item.id in named or item.key in named

        items = [copy.deepcopy(item) for item in self.items.values() if wanted(item)]
        return Intake(
            session_id,
            now,
            self.lease,
            self.seq,
            items,
            head.state,
            None if whole else named,
            only=only,
        )

    def write(self, intake: Intake) -> None:
        """Stores the changes as a file would: everything is checked before anything is written."""
        fresh = {
            id: None if item is None else read_item(make_item_row(item))
            for id, item in intake.written.items()
        }
        for id, item in fresh.items():
            if item is not None and id in self.items and self.items[id].seq != item.seq:
                raise BadArguments("intake", f"the id {id!r} was already used")
        self.lease = intake.lease
        self.seq = intake.seq
        for id, item in fresh.items():
            if item is None:
                self.items.pop(id, None)
            else:
                self.items[id] = item


@give_loop_turns
class MemoryStore:
    """Keeps sessions in this process."""

    where = "memory"
    durability = "none"
    time: Callable[[], float] | None = None

    def __init__(self) -> None:
        self.maintenance = MemoryMaintenance(self)
        self._sessions: dict[str, _Session] = {}
        self._live: dict[str, _Session] = {}  # the sessions that have not ended
        self._buried: dict[str, _Session] = {}
        self._keys: dict[str, SessionId] = {}
        self._values: dict[tuple[str, str], tuple[str | None, int]] = {}
        self._workers: dict[str, tuple[WorkerRecord, float]] = {}  # each with its last heartbeat
        self._blobs: dict[str, bytes] = {}
        self._intakes: dict[str, MemoryIntake] = {}
        self._duties: dict[tuple[str, str], tuple[str, float | None, int]] = {}
        self._ref = 0
        self._letter = 0

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.time = now

    def now(self) -> float:
        """The time of the store: its clock, else that of the machine."""
        return time.time() if self.time is None else self.time()

    async def open(self) -> None:
        """Does nothing: the store exists as long as the object."""

    async def close(self) -> None:
        """Does nothing: the content stays until the object is deleted."""

    def commit_now(self, change: Change, fence: int) -> bool:
        self._commit(change, fence)
        return True

    async def commit(self, change: Change, fence: int) -> None:
        self._commit(change, fence)

    def _commit(self, change: Change, fence: int) -> None:
        session = self._sessions.get(change.id)
        stored = 0 if session is None else session.head.revision
        if stored != fence or (session is None) is (change.birth is None):
            raise Overtaken(change.id, fence)
        try:
            rows = self._encode_deliveries(change, session) if change.deliveries else []
            if change.light and session is not None:
                session.rows += rows
                session.head = _copied(change.head)
                return
            born = self._make_sessions(change) if change.birth is not None or change.births else []
            notices = {one.q: _encode(one) for one in change.notices}
            letters = [(one.to, _Post(one.kind, dumps(one.body), one.at)) for one in change.letters]
            values = self._written(change) if change.writes else {}
        except (TypeError, ValueError) as error:
            raise BadValue("the change", str(error)) from None
        if change.intake is not None:
            held = self._intakes.get(change.id) or MemoryIntake()
            intake = held.read(change.id, change.head, self.now(), change.named)
            change.intake(intake)
            held.write(intake)
            self._intakes[change.id] = held

        for newcomer, head in born:
            self._add(newcomer, head)
        if session is None:
            session = self._sessions[change.id]
        session.rows += rows
        self._apply_change(session, change, notices)
        for to, post in letters:
            self._post_letter(change.id if to is None else to, post, change.id)
        self._values.update(values)

    def _encode_deliveries(self, change: Change, session: _Session | None) -> list[Row]:
        """The rows of a change's deliveries; raises if the journal already has their numbers."""
        rows = [(one.n, one.at, *journal.encode_delivery(one)) for one in change.deliveries]
        twice = len(rows) > 1 and len({row[0] for row in rows}) < len(rows)
        if twice or (session is not None and rows[0][0] <= session.head.n):
            raise Overtaken(change.id, change.head.revision - 1)
        return rows

    def _make_sessions(self, change: Change) -> list[tuple[_Session, Head]]:
        """The sessions that a change creates; raises if one of them is not valid."""
        births = (
            [(change.birth, change.head), *change.births]
            if change.birth is not None
            else change.births
        )
        ids: set[str] = set()
        keys: dict[str, SessionId] = {}
        born = []
        for birth, head in births:
            if birth.id in ids or birth.id in self._sessions or birth.id in self._buried:
                raise Overtaken(birth.id, 0)
            ids.add(birth.id)
            if birth.key is not None:
                holder = keys.get(birth.key) or self._keys.get(birth.key)
                if holder is not None:
                    raise KeyConflict(birth.key, holder)
                keys[birth.key] = birth.id
            if birth.origin is not None and birth.origin not in self._sessions:
                raise UnknownSession(birth.origin, self.where)
            born.append((_Session(birth, head, self._source(birth)), head))
        return born

    def _source(self, birth: Birth) -> SessionId | None:
        """The session from which a new fork reads its shared deliveries."""
        if birth.origin is None:
            return None
        link = self._sessions[birth.origin]
        while link.birth.origin_n >= birth.origin_n and (before := self._before(link)) is not None:
            link = before
        return link.birth.id

    def _written(self, change: Change) -> dict[tuple[str, str], tuple[str | None, int]]:
        """The durable values after a change; raises if one was computed from an older version."""
        values: dict[tuple[str, str], tuple[str | None, int]] = {}
        for write in change.writes:
            place = (write.namespace, write.key)
            version = (values.get(place) or self._values.get(place, _NEVER))[1]
            if version != write.version:
                raise Overtaken(change.id, change.head.revision - 1)
            values[place] = (None if write.value is None else dumps(write.value), version + 1)
        return values

    def _add(self, session: _Session, head: Head) -> None:
        self._ref += 1
        session.head.ref = head.ref = self._ref
        birth = session.birth
        self._sessions[birth.id] = session
        if not head.ended:
            self._live[birth.id] = session
        if birth.key is not None:
            self._keys[birth.key] = birth.id
        before = self._before(session)
        if before is not None:
            before.forks.add(birth.id)

    def _apply_change(self, session: _Session, change: Change, notices: dict[int, bytes]) -> None:
        """Updates head, inbox, marks and intake as the change says."""
        ref = session.head.ref
        head = session.head = _copied(change.head)
        head.ref = ref
        for q in change.closed:
            session.notices.pop(q, None)
            session.effects.pop(q, None)
        for letter in change.read:
            session.letters.pop(letter, None)
        if head.ended:
            self._live.pop(change.id, None)
            session.notices.clear()
            session.effects.clear()
            return
        self._live[change.id] = session
        session.notices.update(notices)
        for effect in change.effects:
            session.effects[effect.q] = effect

    def _post_letter(self, to: str, post: _Post, sender: str) -> None:
        """Puts a letter into an intake. A letter to a session that has ended or is deleted is
        dropped.
        """
        session = self._sessions.get(to)
        if session is None or (session.head.ended and to != sender):
            return
        self._letter += 1
        session.letters[self._letter] = post
        if to != sender:
            head = session.head
            head.mail += 1
            head.revision += 1
            head.state = apply_event(head.state, SessionEvent.ANSWERED)

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        session = self._known(session_id)
        start = since if since >= 0 else session.head.first(since)
        return SessionRecord(
            _birth(session.text),
            _copied(session.head),
            self._deliveries(session, start),
            [
                Letter(post.kind, loads(post.body), post.at, id)
                for id, post in session.letters.items()
            ],
            list(session.effects.values()),
        )

    def _known(self, session_id: str) -> _Session:
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(session_id, self.where)
        return session

    def _deliveries(self, session: _Session, since: int) -> list[Delivery]:
        parts: list[list[Row]] = []
        for link, last in self._chain(session):
            start = bisect_left(link.rows, since, key=_number)
            parts.append(link.rows[start : bisect_right(link.rows, last, key=_number)])
            if link.birth.origin_n < since:
                break
        return [journal.decode_delivery(*row) for part in reversed(parts) for row in part]

    def _chain(self, session: _Session) -> Iterator[tuple[_Session, int]]:
        """A session and its chain of sources, each with the last delivery that the session
        reads.
        """
        link: _Session | None = session
        last = session.head.n
        while link is not None:
            yield link, last
            last = min(last, link.birth.origin_n)
            link = self._before(link)

    def _before(self, fork: _Session) -> _Session | None:
        """The source of a session, deleted or not."""
        source = fork.source
        return None if source is None else self._sessions.get(source) or self._buried.get(source)

    async def find(self, key: str) -> SessionId | None:
        return self._keys.get(key)

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        found = [one for one in self._sessions.values() if _matches(one, wanted)]
        last = self._sessions.get(wanted.after or "")
        if wanted.older_than is not None:
            moved = (-1.0, "") if last is None else (last.head.updated_at, last.birth.id)
            found = [one for one in found if (one.head.updated_at, one.birth.id) > moved]
        elif last is not None:
            found = [one for one in found if one.place < last.place]
        # deleted meanwhile, but ids sort by time, so it still marks the end of the page
        elif wanted.after is not None:
            found = [one for one in found if one.birth.id < wanted.after]
        if wanted.older_than is not None:
            found.sort(key=lambda one: (one.head.updated_at, one.birth.id))
        else:
            found.sort(key=lambda one: one.place, reverse=True)
        return [
            SessionSummary(_birth(one.text), _copied(one.head)) for one in found[: wanted.limit]
        ]

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, after: InboxPlace | None = None
    ) -> builtins.list[FoundQuestion]:
        kinds = list_inbox_kinds(kind, to)
        found = []
        for session in self._live.values():
            taken = session.handled_queries()
            for q, (query, at) in self._waiting(session).items():
                place = InboxPlace(*session.place, q)
                if (
                    q not in taken
                    and query.kind in kinds
                    and to in (None, query.to)
                    and (after is None or place > after)
                ):
                    found.append((place, session.text, query, at))
        oldest = nsmallest(limit, found, key=itemgetter(0))
        return [(_birth(text), query, at) for _, text, query, at in oldest]

    def _waiting(self, session: _Session) -> dict[int, tuple[Query, float]]:
        """Questions that the outside may answer: those to models, and those with notices."""
        waiting = {
            q: (one.query, one.at)
            for q, one in self._opened(session).items()
            if one.query.kind in ANSWERABLE
        }
        for q, text in session.notices.items():
            notice = _notice(text)
            if notice.kind in LISTED:
                waiting[q] = (notice.query, notice.asked_at)
        return waiting

    def _opened(self, session: _Session) -> dict[int, AskedQuery]:
        return journal.find_open_queries(self._deliveries(session, session.head.open_from))

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        # Sessions that have not ended, and those with queued input.
        rest = [
            self._sessions[id]
            for id in self._intakes
            if id in self._sessions and id not in self._live
        ]
        found = [
            (
                since,
                session.head.ref,
                why,
                UnmovedSession(session.birth.id, why, since, session.head.revision, came),
            )
            for session in [*self._live.values(), *rest]
            for why, since, came in self._find_reasons(session, now, living, parked)
        ]
        return [one for *_, one in nsmallest(limit, found, key=lambda each: each[:3])]

    def _find_reasons(
        self, session: _Session, now: float, living: set[str], parked: bool
    ) -> Iterator[tuple[str, float, int]]:
        """Why a session needs a move: the reason, since when, and the number of queued items."""
        head = session.head
        clock = self.now()
        if not head.ended:
            if head.due_at is not None and head.due_at <= now:
                yield TIMER, head.due_at, 0
            if head.mail and head.state is SessionState.RUNNING:
                yield LETTER, min(post.at for post in session.letters.values()), 0
            lost = [
                effect.since for effect in session.effects.values() if effect.worker not in living
            ]
            if lost:
                yield MARK, min(lost), 0
            if parked and head.parked:
                yield PARKED, head.updated_at, 0
        held = self._intakes.get(session.birth.id)
        if held is not None and (held.lease is None or not held.lease.live(clock)):
            waiting = [
                item.at for item in held.items.values() if item.waits and item.available_at <= clock
            ]
            if waiting:
                yield ITEM, min(waiting), held.seq + len(waiting)

    async def next_due(self) -> float | None:
        moments = (session.head.due_at for session in self._live.values())
        return min((at for at in moments if at is not None), default=None)

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        text, version = self._values.get((namespace, key), _NEVER)
        return (None if text is None else loads(text)), version

    async def keys(self, namespace: str) -> builtins.list[str]:
        return sorted(
            key
            for (room, key), (text, _) in self._values.items()
            if room == namespace and text is not None
        )

    # ---- intake and duties

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
        head = self._known(session_id).head
        held = self._intakes.get(session_id) or MemoryIntake()
        given = held.read(session_id, head, self.now(), named, whole=whole, only=only)
        said = act(given)
        if given.moved or given.written:
            held.write(given)
            self._intakes[session_id] = held
        return said

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        now = self.now()
        found = {}
        for session_id in sessions:
            with suppress(UnknownSession):
                head = self._known(session_id).head
                held = self._intakes.get(session_id) or MemoryIntake()
                waiting = sum(
                    item.waits and item.available_at <= now for item in held.items.values()
                )
                found[SessionId(session_id)] = SessionFingerprint(head.revision, held.seq, waiting)
        return found

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        now = self.now()
        kept = []
        for session_id, held in self._intakes.items():
            lease = held.lease
            if lease is not None and lease.owner == owner and lease.live(now):
                held.lease = msgspec.structs.replace(
                    lease, expires_at=max(lease.expires_at, now + ttl)
                )
                kept.append(SessionId(session_id))
        return kept

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        return await self.intake(session_id, functools.partial(release_if_held, fence, came))

    async def leave(self, owner: LeaseOwner) -> None:
        for held in self._intakes.values():
            if held.lease is not None and held.lease.owner == owner:
                held.lease = msgspec.structs.replace(held.lease, released=True)

    async def duty(self, kind: str, id: str) -> Duty | None:
        found = self._duties.get((kind, id))
        return None if found is None else Duty(kind, id, loads(found[0]), found[1], found[2])

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        rows = [(id, *row) for (of, id), row in self._duties.items() if of == kind]
        if due is not None:
            found = sorted(
                (at, id, text, v) for id, text, at, v in rows if at is not None and at <= due
            )
            return [
                Duty(kind, id, loads(text), at, version) for at, id, text, version in found[:limit]
            ]
        named = sorted(row for row in rows if row[0].startswith(prefix) and row[0] > after)
        return [Duty(kind, id, loads(text), at, version) for id, text, at, version in named[:limit]]

    async def undertake(self, duties: Sequence[Duty]) -> None:
        check_duties(duties)
        fresh = dict(self._duties)
        for one in duties:
            place = (one.kind, one.id)
            if (fresh[place][2] if place in fresh else 0) != one.version:
                raise Overtaken(f"{one.kind}/{one.id}", one.version)
            if one.body is None:
                fresh.pop(place, None)
            else:
                fresh[place] = (dumps(one.body), one.due_at, one.version + 1)
        self._duties = fresh

    async def next_duty(self, after: float = -1.0) -> float | None:
        due = [at for _, at, _ in self._duties.values() if at is not None]
        waits = [
            item.available_at
            for held in self._intakes.values()
            for item in held.items.values()
            if item.waits
        ]
        return min((at for at in (*due, *waits) if at > after), default=None)

    # ---- workers and attachments

    async def beat(self, worker: WorkerRecord) -> None:
        self._workers[worker.id] = (worker, self.now())

    async def workers(self) -> builtins.list[WorkerRecord]:
        now = self.now()
        rows = sorted(self._workers.items())
        return [
            msgspec.structs.replace(worker, age=max(0.0, now - seen_at))
            for _, (worker, seen_at) in rows
        ]

    async def release(self, worker_id: str) -> None:
        self._workers.pop(worker_id, None)

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        session = self._known(session_id)
        made.check(data)
        self._blobs.setdefault(made.id, bytes(data))
        session.attached.setdefault(made.id, (made, session.head.n))

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        for made in self._attached(self._known(session_id)):
            if made.id == id:
                return made, self._blobs[id]
        raise UnknownAttachment(session_id, id)

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        found: dict[str, Attachment] = {}
        for made in self._attached(self._known(session_id)):
            found.setdefault(made.id, made)
        return [*found.values()]

    def _attached(self, session: _Session) -> Iterator[Attachment]:
        """Attachments that a session may read, oldest first: its own, and its origins' from before
        the fork.
        """
        for link, upto in reversed([*self._chain(session)]):
            yield from (made for made, n in link.attached.values() if link is session or n < upto)

    def _drop_attachments(self, session: _Session, needed: int) -> None:
        """Deletes attachments of a deleted session that no fork reads, and bytes that no row refers
        to.
        """
        gone = [id for id, (_, n) in session.attached.items() if n >= needed]
        if not gone:
            return
        for id in gone:
            del session.attached[id]
        left = {
            id for one in (*self._sessions.values(), *self._buried.values()) for id in one.attached
        }
        for id in gone:
            if id not in left:
                self._blobs.pop(id, None)

    async def delete(self, session_id: str, fence: int, by: dict[str, JSON] | None = None) -> int:
        session = self._known(session_id)
        if session.head.revision != fence:
            raise Overtaken(session_id, fence)
        if session.head.state is SessionState.RUNNING:
            raise StillNeeded(
                session_id, "it is running", "Cancel it first, or wait until it has ended."
            )
        del self._sessions[session_id]
        self._intakes.pop(session_id, None)
        self._live.pop(session_id, None)
        if session.birth.key is not None:
            del self._keys[session.birth.key]
            place = (DELETED_KEYS, session.birth.key)
            self._values[place] = (dumps([session_id]), self._values.get(place, _NEVER)[1] + 1)
        if by is not None:
            self._values[DELETED_BY, session_id] = (dumps([by]), 1)
        for rest in (session.letters, session.notices, session.effects):
            rest.clear()
        self._buried[session_id] = session
        self._sweep(session)
        return len(session.rows) if session_id in self._buried else 0

    def _sweep(self, session: _Session | None) -> None:
        """Deletes what no fork needs any more, from a buried session up to the first living one."""
        while session is not None and session.birth.id in self._buried:
            needed = self._needed(session)
            del session.rows[bisect_right(session.rows, needed, key=_number) :]
            self._drop_attachments(session, needed)
            before = self._before(session)
            if not session.forks:
                del self._buried[session.birth.id]
                if before is not None:
                    before.forks.discard(session.birth.id)
            # otherwise that one is read as far as before
            session = before if needed < session.birth.origin_n else None

    def _needed(self, session: _Session) -> int:
        """The last delivery of a session that a fork still reads; -1 if there is none."""
        needed = -1
        left = [(fork_id, session.head.n) for fork_id in session.forks]
        while left:
            fork_id, upto = left.pop()
            fork = self._sessions.get(fork_id)
            if fork is not None:
                needed = max(needed, min(upto, fork.birth.origin_n))
            else:
                buried = self._buried[fork_id]
                upto = min(upto, buried.birth.origin_n)
                left += [(further, upto) for further in buried.forks]
        return needed

    async def changed(self) -> bool:
        return False

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return LOOK_EVERY


def _copied(head: Head) -> Head:
    return msgspec.structs.replace(head, metrics=head.metrics.copy())


def _matches(session: _Session, wanted: SessionFilter) -> bool:
    birth = session.birth
    head = session.head
    return (
        (not wanted.state or head.state in wanted.state)
        and (
            not wanted.programs
            or not {birth.program, birth.program.rpartition(":")[2]}.isdisjoint(wanted.programs)
        )
        and wanted.parent in (None, birth.parent)
        and birth.id.startswith(wanted.prefix)
        and (wanted.older_than is None or head.updated_at < wanted.older_than)
        and (wanted.newer_than is None or head.updated_at >= wanted.newer_than)
        and wanted.labels.items() <= birth.labels.items()
    )
