"""The SQLite store: the verbs of `ports.store.Store` on one file.

One connection, on the loop's thread. A read of more than one statement runs in one read
transaction, so that a session is never seen half old and half new.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from everhold.core.codec import JSON, checksum_row, dumps, loads
from everhold.core.intake import Intake
from everhold.core.journal import Delivery, find_open_queries
from everhold.core.lease import Fence, LeaseOwner
from everhold.core.query import ANSWERABLE, NOTICED, Kind, Query
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import (
    BadSetting,
    BadValue,
    Overtaken,
    StillNeeded,
    StoreDamaged,
    StoreUnavailable,
    UnknownAttachment,
    UnknownSession,
)
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    DELETED_BY,
    DELETED_KEYS,
    LOOK_EVERY,
    Change,
    Duty,
    Effect,
    FoundQuestion,
    InboxPlace,
    Letter,
    RemoteChange,
    SessionFilter,
    SessionFingerprint,
    SessionRecord,
    SessionSummary,
    UnmovedSession,
    WorkerRecord,
    list_inbox_kinds,
    place_in_inbox,
)
from everhold.stores import listing
from everhold.stores.loop_turns import give_loop_turns
from everhold.stores.outage import OutageTracker
from everhold.stores.row_codec import (
    LONE_SURROGATE,
    UNREADABLE,
    check_duties,
    read_head,
    read_journal,
    read_mark,
    release_if_held,
)
from everhold.stores.sqlite import intake_rows, lineage
from everhold.stores.sqlite.checkpoint import LOOK_AFTER, Checkpoints
from everhold.stores.sqlite.database import (
    ClosedConnection,
    DatabaseFile,
    ScanTooLong,
    connect_file,
    has_log,
    is_copied_alone,
    limit_steps,
    prepare_database,
    run_in_thread,
    translate_sqlite_error,
)
from everhold.stores.sqlite.group_commit import SQLiteGroupCommit, find_newer_format
from everhold.stores.sqlite.maintenance import SQLiteMaintenance
from everhold.stores.sqlite.write import HEAD_COLUMNS, write_value

T = TypeVar("T")

DURABILITY: Final = ("process", "mixed", "power")

# The texts are read as bytes, because checksums and decoders take bytes.
_JOURNAL: Final = (
    "SELECT n, at, CAST(answers AS BLOB), CAST(asked AS BLOB), CAST(notes AS BLOB), seal FROM"
    " journal"
    " WHERE session = ? AND n >= ? AND n <= ? ORDER BY n"
)
_TOP: Final = 2**63 - 1
#: Sessions that need a move, each with the reason. Every part reads a small partial index.
#: `INDEXED BY` makes a missing index an error; without it the planner may scan the whole table.
_UNMOVED: Final = (
    "SELECT s.id, w.why, w.since, coalesce(h.revision, 0), w.came FROM ("
    "SELECT ref, 'timer' AS why, due_at AS since, 0 AS came FROM head_2 INDEXED BY head_due"
    " WHERE due_at <= :now AND state IN ('running', 'paused') UNION ALL"
    " SELECT ref, 'letter', (SELECT min(at) FROM letter WHERE session = ref), 0 FROM head_2"
    " INDEXED BY head_mail"
    " WHERE mail > 0 AND state = 'running' UNION ALL"
    " SELECT session, 'mark', min(since), 0 FROM effect WHERE worker NOT IN (SELECT value FROM"
    " json_each(:living))"
    " GROUP BY session UNION ALL"
    " SELECT i.session, 'item', min(i.at), l.seq + count(*) FROM item i INDEXED BY item_waiting"
    " JOIN lease l ON l.session = i.session WHERE i.state = 'waiting' AND i.available_at <= :clock"
    " AND (l.released = 1 OR l.expires_at <= :clock) GROUP BY i.session {parked}) w"
    " JOIN session s ON s.ref = w.ref LEFT JOIN head_2 h ON h.ref = w.ref WHERE s.deleted = 0"
    " ORDER BY w.since, w.ref, w.why LIMIT :limit"
)
_PARKED: Final = (
    "UNION ALL SELECT ref, 'parked', updated_at, 0 FROM head_2 INDEXED BY head_parked"
    " WHERE parked = 1 AND state IN ('running', 'paused')"
)

_DIALECT: Final = listing.Dialect(
    head="head_2",
    columns=HEAD_COLUMNS,
    ended="h.state <> 'running' AND h.state <> 'paused'",  # as in the index
    ended_at="h.updated_at",
    queued="EXISTS (SELECT 1 FROM letter l WHERE l.session = n.session AND l.kind = 'answer'"
    " AND json_extract(l.body, '$.q') = n.q)",
)

_birth = msgspec.json.Decoder(Birth).decode
_query = msgspec.json.Decoder(Query).decode


@give_loop_turns
class SQLiteStore:
    """Sessions in one SQLite file."""

    time: Callable[[], float] | None = None

    def __init__(
        self, path: str | Path, *, durability: str = "mixed", patience: float = 30.0
    ) -> None:
        if durability not in DURABILITY:
            raise BadSetting("durability", f"{durability!r} is not one of {', '.join(DURABILITY)}")
        self.path = Path(path)
        self.where = str(path)
        # a database in memory ends with its connection
        self.durability = "none" if str(path) == ":memory:" else durability
        self.maintenance = SQLiteMaintenance(self)
        self._patience = patience
        self._stall = OutageTracker()
        self._connection: sqlite3.Connection = ClosedConnection(self.where)  # type: ignore[assignment]
        self._group: SQLiteGroupCommit = ClosedConnection(self.where)  # type: ignore[assignment]
        self._run: Callable[..., Any] = ClosedConnection(self.where)
        self._place: DatabaseFile = ClosedConnection(self.where)  # type: ignore[assignment]
        self._checkpoints: Checkpoints = ClosedConnection(self.where)  # type: ignore[assignment]
        self._copied_alone = False
        self._seen_version = 0

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.time = now

    def now(self) -> float:
        """The time of the store: its clock, else that of the machine."""
        return time.time() if self.time is None else self.time()

    async def open(self) -> None:
        logged = has_log(self.path)
        connection = connect_file(self.path)
        try:
            prepare_database(connection, self.path)
            self._copied_alone = is_copied_alone(connection, self.path, logged=logged)
            place = DatabaseFile(self.path)
        except BaseException:
            connection.close()
            raise
        if self.durability == "power":
            connection.execute("PRAGMA synchronous = FULL")
        self._connection = connection
        self._place = place
        self._checkpoints = Checkpoints(place, self.where)
        self._run = connection.cursor().execute
        self._group = SQLiteGroupCommit(
            connection,
            self.where,
            fsync=self.durability == "power",
            patience=self._patience,
            place=place,
            after=self._checkpoints.wrote,
            now=self.now,
        )
        self.commit = self._group.commit  # type: ignore[method-assign]  # one call less on the way
        self.commit_now = self._group.commit_now  # type: ignore[method-assign]
        self._seen_version = self._data_version()

    async def close(self) -> None:
        if isinstance(self._connection, ClosedConnection):
            return
        try:
            self._group.close()
            await self._checkpoints.close()
        finally:  # also if the caller is cancelled while it waits for the thread
            self._connection.close()
            self._connection = self._group = self._run = ClosedConnection(self.where)  # type: ignore[assignment]
            del self.commit, self.commit_now

    # ---- the write verb

    async def commit(self, change: Change, fence: int) -> None:
        await self._group.commit(change, fence)

    def commit_now(self, change: Change, fence: int) -> bool:
        return self._group.commit_now(change, fence)

    # ---- reading

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        with self._reading():
            birth, head, origin = self._session(session_id)
            first = since if since >= 0 else head.first(since)
            deliveries = self._deliveries(head.ref, first, birth.origin_n, origin)
            letters = self._letters(head.ref) if head.mail else []
            effects = [] if head.ended else self._effects(head.ref)
            if len(deliveries) != max(head.n + 1 - first, 0) or (
                len(letters) != head.mail and not head.ended
            ):
                raise ValueError(f"session {session_id} has rows missing")
        return SessionRecord(birth, head, deliveries, letters, effects)

    def _session(self, session_id: str) -> tuple[Birth, Head, int | None]:
        statement = (
            f"SELECT s.birth, s.seal, s.origin, {HEAD_COLUMNS} FROM session s JOIN head_2 h ON"
            " h.ref = s.ref"
            " WHERE s.id = ? AND s.deleted = 0"
        )
        try:
            row = self._run(statement, (session_id,)).fetchone()
        except UnicodeEncodeError:
            row = None
        if row is None:
            raise UnknownSession(session_id, self.where)
        if checksum_row(row[0]) != row[1]:
            raise ValueError(f"session {session_id} does not match its seal")
        return _birth(row[0]), read_head(row[3:]), row[2]

    def _deliveries(
        self, ref: int, first: int, origin_n: int, origin: int | None
    ) -> builtins.list[Delivery]:
        """Deliveries from `first` on; those up to `origin_n` are rows of other sessions."""
        if origin is None or first > origin_n:
            return read_journal(ref, self._run(_JOURNAL, (ref, first, _TOP)).fetchall())
        found: builtins.list[Delivery] = []
        for link, upto in lineage.list_fork_spans(self._run, ref, first):
            found += read_journal(link, self._run(_JOURNAL, (link, first, upto)).fetchall())
        return found

    def _letters(self, ref: int) -> builtins.list[Letter]:
        rows = self._run(
            "SELECT kind, body, at, id, seal FROM letter WHERE session = ? ORDER BY id", (ref,)
        )
        letters = []
        for kind, body, at, letter_id, sealed in rows:
            if checksum_row(kind, body, at) != sealed:
                raise ValueError(f"letter {letter_id} does not match its seal")
            letters.append(Letter(kind, loads(body), at, letter_id))
        return letters

    def _effects(self, ref: int) -> builtins.list[Effect]:
        rows = self._run(
            "SELECT q, worker, since, failed, seal FROM effect WHERE session = ? ORDER BY q", (ref,)
        )
        return [read_mark(ref, *row) for row in rows]

    async def find(self, key: str) -> SessionId | None:
        with self._reading():
            row = self._run(
                "SELECT id FROM session WHERE key = ? AND deleted = 0", (key,)
            ).fetchone()
        return None if row is None else SessionId(row[0])

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        rows = await self._scan(lambda store: store._page(wanted))
        return [SessionSummary(_birth(row[0]), read_head(row[1:])) for row in rows]

    def _page(self, wanted: SessionFilter) -> listing.Rows:
        reading = listing.SessionLister(_DIALECT, wanted).read()
        rows: listing.Rows | None = None
        try:
            while True:
                statement, values = reading.send(rows)  # type: ignore[arg-type]
                rows = self._run(statement, values).fetchall()
        except StopIteration as done:
            found: listing.Rows = done.value
            return found

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, after: InboxPlace | None = None
    ) -> builtins.list[FoundQuestion]:
        kinds = list_inbox_kinds(kind, to)

        def act(store: SQLiteStore) -> builtins.list[FoundQuestion]:
            noticed = listing.select_noticed(_DIALECT, kinds, to, limit, after)
            rows = store._run(*noticed).fetchall()
            found = [(_birth(birth), _query(query), at) for birth, query, at, *_ in rows]
            if to is None:
                found += store._unnoticed(kinds, limit, after)
            return found

        found = await self._scan(act)
        found.sort(key=place_in_inbox)
        return found[:limit]

    def _unnoticed(
        self, kinds: Collection[Kind], limit: int, after: InboxPlace | None
    ) -> builtins.list[FoundQuestion]:
        """Open queries without a notice, found through the journals of sessions that may have
        one.
        """
        found: builtins.list[FoundQuestion] = []
        if (ANSWERABLE - NOTICED).isdisjoint(kinds):
            return found
        with closing(self._connection.cursor()) as cursor:
            for row in cursor.execute(*listing.select_asking(_DIALECT, -1, after)):
                if len(found) >= limit:
                    break
                found += [
                    one
                    for one in self._open_here(*row)
                    if one[1].kind in kinds and (after is None or place_in_inbox(one) > after)
                ]
        return found

    def _open_here(
        self,
        ref: int,
        text: str,
        mail: int,
        _at: float,
        _id: str,
        origin: int | None,
        origin_n: int,
        open_from: int,
    ) -> builtins.list[FoundQuestion]:
        """The open questions of a session without a notice and a running answerer."""
        hidden = {q for (q,) in self._run("SELECT q FROM notice WHERE session = ?", (ref,))}
        hidden |= {effect.q for effect in self._effects(ref)}
        if mail:  # queries whose answer is queued
            hidden |= {letter.body["q"] for letter in self._letters(ref) if letter.kind == "answer"}
        opened = find_open_queries(self._deliveries(ref, open_from, origin_n, origin))
        birth = _birth(text)
        return [
            (birth, entry.query, entry.at)
            for q, entry in sorted(opened.items())
            if q not in hidden and entry.query.kind in ANSWERABLE
        ]

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        given = {"now": now, "clock": self.now(), "living": dumps(sorted(living)), "limit": limit}
        with self._reading():
            rows = self._run(_UNMOVED.format(parked=_PARKED if parked else ""), given).fetchall()
        return [
            UnmovedSession(SessionId(id), why, since, revision, came)
            for id, why, since, revision, came in rows
        ]

    async def next_due(self) -> float | None:
        with self._reading():
            row = self._run(
                "SELECT due_at FROM head_2 INDEXED BY head_due WHERE due_at IS NOT NULL"
                " AND state IN ('running', 'paused') ORDER BY due_at LIMIT 1"
            ).fetchone()
        return None if row is None else row[0]

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
        with self._reading():  # most reads change nothing and take no lock
            _, given = self._read_intake(session_id, named, whole, only)
        result = act(given)
        if not given.moved and not given.written:
            return result

        def land() -> T:
            ref, fresh = self._read_intake(session_id, named, whole, only)
            result = act(fresh)
            intake_rows.write_intake(self._run, ref, fresh)
            return result

        landed: T = await self._write(land, lasting=given.lasting)
        return landed

    def _read_intake(
        self, session_id: str, named: Sequence[str], whole: bool, only: bool
    ) -> tuple[int, Intake]:
        _, head, _ = self._session(session_id)
        return head.ref, intake_rows.read_intake(
            self._run, head.ref, session_id, head.state, self.now(), named, whole=whole, only=only
        )

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        with self._reading():
            return intake_rows.select_fingerprints(self._run, sessions, self.now())

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        kept: builtins.list[SessionId] = await self._write(
            lambda: intake_rows.extend_leases(self._run, owner, ttl, self.now())
        )
        return kept

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        return await self.intake(session_id, functools.partial(release_if_held, fence, came))

    async def leave(self, owner: LeaseOwner) -> None:
        await self._write(lambda: intake_rows.release_leases(self._run, owner))

    async def duty(self, kind: str, id: str) -> Duty | None:
        with self._reading():
            return intake_rows.select_duty(self._run, kind, id)

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        with self._reading():
            return [*intake_rows.select_duties(self._run, kind, due, prefix, after, limit)]

    async def undertake(self, duties: Sequence[Duty]) -> None:
        check_duties(duties)
        await self._write(lambda: intake_rows.write_duties(self._run, duties), lasting=True)

    async def next_duty(self, after: float = -1.0) -> float | None:
        with self._reading():
            return intake_rows.select_next_duty(self._run, after)

    # ---- durable values

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        with self._reading():
            row = self._run(
                "SELECT value, version, seal FROM value WHERE namespace = ? AND key = ?",
                (namespace, key),
            ).fetchone()
            if row is None:
                return None, 0
            if checksum_row(namespace, key, row[0], row[1]) != row[2]:
                raise ValueError(f"the value {namespace}/{key} does not match its seal")
        return (None if row[0] is None else loads(row[0])), row[1]

    async def keys(self, namespace: str) -> builtins.list[str]:
        statement = "SELECT key FROM value WHERE namespace = ? AND value IS NOT NULL ORDER BY key"
        rows = await self._scan(lambda store: store._run(statement, (namespace,)).fetchall())
        return [row[0] for row in rows]

    # ---- workers

    async def beat(self, worker: WorkerRecord) -> None:
        statement = (
            "INSERT OR REPLACE INTO worker (id, host, pid, ttl, seen_at) VALUES (?, ?, ?, ?, ?)"
        )
        row = (worker.id, worker.host, worker.pid, float(worker.ttl))
        await self._write(lambda: self._run(statement, (*row, self.now())))

    async def workers(self) -> builtins.list[WorkerRecord]:
        with self._reading():
            statement = "SELECT id, host, pid, ttl, max(0.0, ? - seen_at) FROM worker ORDER BY id"
            rows = self._run(statement, (self.now(),))
            heard = self._stall.age
            return [
                WorkerRecord(id, host, pid, ttl, heard(age)) for id, host, pid, ttl, age in rows
            ]

    async def release(self, worker_id: str) -> None:
        await self._write(lambda: self._run("DELETE FROM worker WHERE id = ?", (worker_id,)))

    # ---- attachments

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        def act() -> None:
            _, head, _ = self._session(session_id)
            made.check(data)
            lineage.insert_attachment(self._run, head.ref, head.n, made, data, at)

        await self._write(act)

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        with self._reading():
            found = lineage.select_attachment(self._run, self._session(session_id)[1].ref, id)
        if found is None:
            raise UnknownAttachment(session_id, id)
        return found

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        with self._reading():
            return lineage.list_attachments(self._run, self._session(session_id)[1].ref)

    # ---- deletion

    async def delete(self, session_id: str, fence: int, by: dict[str, JSON] | None = None) -> int:
        kept: int = await self._write(lambda: self._delete(session_id, fence, by))
        return kept

    def _delete(self, session_id: str, fence: int, by: dict[str, JSON] | None) -> int:
        birth, head, _ = self._session(session_id)
        if head.revision != fence:
            raise Overtaken(session_id, fence)
        if head.state is SessionState.RUNNING:
            raise StillNeeded(session_id, "it is running", "Cancel it first.")
        ref = head.ref
        for table in ("notice", "effect", "letter", "item", "lease"):
            self._run(f"DELETE FROM {table} WHERE session = ?", (ref,))
        self._run("DELETE FROM head_2 WHERE ref = ?", (ref,))
        for name, value in birth.labels.items():
            self._run(
                "DELETE FROM label WHERE name = ? AND value = ? AND created_at = ? AND session = ?",
                (name, value, birth.created_at, ref),
            )
        self._run("UPDATE session SET deleted = 1, key = NULL WHERE ref = ?", (ref,))
        if birth.key is not None:
            write_value(self._run, DELETED_KEYS, birth.key, session_id)
        if by is not None:
            write_value(self._run, DELETED_BY, session_id, by)
        lineage.forget_unneeded(self._run, ref)
        kept: int = self._run("SELECT count(*) FROM journal WHERE session = ?", (ref,)).fetchone()[
            0
        ]
        return kept

    # ---- other processes

    async def changed(self) -> bool:
        # SQLite's data_version changes only when another connection commits.
        before = self._seen_version
        self._seen_version = self._data_version()
        return before != self._seen_version

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return LOOK_EVERY  # a file cannot notify

    def _data_version(self) -> int:
        with self._translating():
            found: int = self._run("PRAGMA data_version").fetchone()[0]
        return found

    async def _write(self, act: Callable[[], Any], *, lasting: bool = False) -> Any:
        """Runs a rare write; waits for other processes without blocking the loop. A `lasting` write
        survives power loss at "mixed" too.
        """
        with self._stall.watched():
            return await self._written(act, lasting)

    async def _written(self, act: Callable[[], Any], lasting: bool) -> Any:
        await self._checkpoints.room()
        loop = asyncio.get_running_loop()
        began = loop.time()
        wait = 50e-6
        synced = lasting and self.durability == "mixed"
        while True:
            try:
                with self._translating():
                    if synced:  # before BEGIN: it cannot be changed in a transaction
                        self._run("PRAGMA synchronous = FULL")
                    try:
                        self._run("BEGIN IMMEDIATE")
                        result = act()
                        self._place.check()
                        self._run("COMMIT")
                    finally:
                        if self._connection.in_transaction:
                            self._run("ROLLBACK")
                        if synced:
                            self._run("PRAGMA synchronous = NORMAL")
                self._checkpoints.wrote(LOOK_AFTER)
                return result.rowcount if isinstance(result, sqlite3.Cursor) else result
            except SQLiteBusy as busy:
                if loop.time() - began > self._patience:
                    raise busy.error from None
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, 2e-3)

    async def _scan(self, act: Callable[[SQLiteStore], T]) -> T:
        """Runs a read that may visit every row; a thread runs a long one."""
        with self._reading():
            try:
                with limit_steps(self._connection):
                    return act(self)
            except ScanTooLong:
                pass
        return await self._aside(act)

    async def _aside(self, act: Callable[[SQLiteStore], T]) -> T:
        """Runs a long read in a thread."""

        def seen(connection: sqlite3.Connection) -> T:
            store = copy(self)  # shares everything but the connection
            store._connection, store._run = connection, connection.cursor().execute
            return act(store)

        # Raises for a closed store, and for a store that another thread has opened.
        self._data_version()
        try:
            with self._translating():
                return await run_in_thread(self._place, seen)
        except StoreUnavailable:
            pass
        except SQLiteBusy as busy:
            raise busy.error from None
        with self._reading():  # the file is gone from its path, but not for this connection
            return act(self)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A read transaction: one moment's view of the file."""
        with self._translating():
            self._run("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._run("COMMIT")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            found = find_newer_format(self._connection, self.where) or translate_sqlite_error(
                error, self.where
            )
            raise SQLiteBusy(found) if found.code == "store_busy" else found from None
        except OverflowError as error:
            raise BadValue("the value", str(error)) from None
        # a text that was looked for; stored rows cannot hold it
        except UnicodeEncodeError as error:
            raise BadValue(repr(error.object), LONE_SURROGATE) from None
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None


class SQLiteBusy(Exception):
    """Another process locks the file; callers that can wait try again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
