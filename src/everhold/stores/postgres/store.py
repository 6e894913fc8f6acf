"""The PostgreSQL store: the verbs of `ports.store.Store`.

One connection writes (see group_commit.py), a few others read. A verb reads one moment: in one
statement, or in one repeatable-read transaction.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from everhold.core.codec import JSON, checksum_row, dumps, loads
from everhold.core.query import SENT_BY_NAME, Kind, Query
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import (
    BadSetting,
    BadValue,
    Overtaken,
    StillNeeded,
    StoreDamaged,
    UnknownAttachment,
    UnknownSession,
)
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    DELETED_KEYS,
    Change,
    RemoteChange,
    SessionFilter,
    SessionRecord,
    SessionSummary,
    UnmovedSession,
    WorkerRecord,
)
from everhold.stores.checksums import UNREADABLE, read_head
from everhold.stores.postgres import attachment_rows
from everhold.stores.postgres import read as look
from everhold.stores.postgres.address import (
    PostgresAddress,
    escape_nul,
    qualify_schema,
    unescape_nul,
)
from everhold.stores.postgres.batch import BatchLoader
from everhold.stores.postgres.connection import PgConnection, PostgresConnections
from everhold.stores.postgres.group_commit import PostgresGroupCommit
from everhold.stores.postgres.intake_rows import PostgresIntakeRows
from everhold.stores.postgres.intake_sql import NOW
from everhold.stores.postgres.listen import PostgresNotifyChannel
from everhold.stores.postgres.maintenance import PostgresMaintenance
from everhold.stores.postgres.schema import LOCKS, make_lock_number, prepare_schema

T = TypeVar("T")

DURABILITY: Final = ("process", "mixed", "power")
#: Seconds that opening waits for a server that does not answer.
OPENING: Final = 2.0


class PostgresStore(PostgresIntakeRows):
    """Sessions in a PostgreSQL database, shared by any number of processes."""

    def __init__(
        self,
        address: str,
        *,
        schema: str | None = None,
        durability: str = "mixed",
        patience: float = 30.0,
        lines: int = 4,
    ) -> None:
        if durability not in DURABILITY:
            raise BadSetting("durability", f"{durability!r} is not one of {', '.join(DURABILITY)}")
        self._address = PostgresAddress(address, schema)
        self.where = self._address.where
        self.schema = self._address.schema
        self.durability = durability
        self.maintenance = PostgresMaintenance(self)
        self._patience = patience
        self._size = lines
        self._format = 0
        self._lines: PostgresConnections = None  # type: ignore[assignment]
        self._group: PostgresGroupCommit = None  # type: ignore[assignment]
        self._ear: PostgresNotifyChannel = None  # type: ignore[assignment]
        self._loads: BatchLoader[tuple[str, int], look.LoadedRows] = None  # type: ignore[assignment]

    async def open(self) -> None:
        lines = PostgresConnections(self._address, patience=self._patience, size=self._size)
        line = await lines.connect(min(OPENING, self._patience))
        try:
            self._format = await prepare_schema(line, self.schema, self.where)
        except BaseException:
            await line.close()
            raise
        lines.give(line)
        ear = PostgresNotifyChannel(lines, self.schema)
        try:
            await ear.open()
        except BaseException:
            await lines.close()
            raise
        self._lines = lines
        self._ear = ear
        self._loads, self._looks = (
            BatchLoader(self._loaded, at_once=2),
            BatchLoader(self._looked, at_once=2),
        )
        self._moves = BatchLoader(self._moved)
        self._group = PostgresGroupCommit(
            lines,
            self.schema,
            durability=self.durability,
            telling=ear.telling,
            later=ear.later,
            time=lambda: self.time,
        )
        self.commit = self._group.commit  # type: ignore[method-assign]  # one call less on the way

    async def close(self) -> None:
        if self._lines is None:
            return
        await self._group.close()
        await self._ear.close()
        await self._lines.close()

    # ---- the write verb

    def commit_now(self, change: Change, fence: int) -> bool:
        return False  # a server's answer must be awaited

    async def commit(self, change: Change, fence: int) -> None:
        await self._group.commit(change, fence)

    # ---- reading

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        rows = await self._loads((self._known(session_id), since))
        try:
            birth, head = self._session(session_id, rows[0])
            return look.build_record(birth, head, *rows[1:])
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    async def _loaded(
        self, wanted: builtins.list[tuple[str, int]]
    ) -> builtins.list[look.LoadedRows]:
        """Reads some sessions at one moment."""
        ids = [id for id, _ in wanted]
        since = [n for _, n in wanted]
        return look.split_loaded_rows(len(wanted), await self._rows(look.LOAD, ids, since))

    def _known(self, session_id: str) -> str:
        """An id as stored; raises `UnknownSession` for text that cannot be an id."""
        try:
            session_id.encode()
        except UnicodeEncodeError:
            raise UnknownSession(session_id, self.where) from None
        return escape_nul(session_id)

    def _session(self, session_id: str, rows: builtins.list[tuple[Any, ...]]) -> tuple[Birth, Head]:
        if not rows:
            raise UnknownSession(session_id, self.where)
        text, sealed, *head = rows[0]
        if checksum_row(text) != sealed:
            raise ValueError(f"session {session_id} does not match its seal")
        return look.read_birth(text), read_head(tuple(head))

    async def find(self, key: str) -> SessionId | None:
        rows = await self._rows(
            "SELECT id FROM everhold.session WHERE key = %s AND deleted = 0", escape_nul(key)
        )
        return SessionId(unescape_nul(rows[0][0])) if rows else None

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        statement, values = look.build_list_select(wanted)

        async def act(line: PgConnection) -> builtins.list[SessionSummary]:
            rows = await (await line.execute(self._say(statement), values)).fetchall()
            return [SessionSummary(look.read_birth(row[0]), read_head(row[1:])) for row in rows]

        return await self._insisting(act)

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, without: str | None = None
    ) -> builtins.list[tuple[Birth, Query, float]]:
        whom = None if to is None else escape_nul(to)

        async def act(line: PgConnection) -> builtins.list[look.FoundQuery]:
            await line.execute(look.SNAPSHOT)
            inbox = look.InboxReader(line, self.schema)
            found = await inbox.noticed(kind, whom)
            if whom is None:
                found += await inbox.unnoticed(kind, limit)
            await line.execute("COMMIT")
            return found

        found = await self._insisting(act)
        found = [one for one in found if one[1].kind not in SENT_BY_NAME or one[1].name != without]
        found.sort(key=lambda entry: (entry[2], entry[0].created_at, entry[0].id, entry[1].q))
        return found[:limit]

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        given = (self._moment(), float(now), [escape_nul(each) for each in living], parked, limit)
        rows = await self._rows(look.UNMOVED, *given)
        return [UnmovedSession(SessionId(unescape_nul(id)), *rest) for id, *rest in rows]

    async def next_due(self) -> float | None:
        found: float | None = (await self._rows(look.NEXT_DUE))[0][0]
        return found

    # ---- durable values

    async def value(self, namespace: str, key: str) -> tuple[builtins.list[JSON] | None, int]:
        rows = await self._rows(
            "SELECT value, version, seal FROM everhold.value WHERE namespace = %s AND key = %s",
            escape_nul(namespace),
            escape_nul(key),
        )
        if not rows:
            return None, 0
        text, version, sealed = rows[0]
        if checksum_row(namespace, key, text, version) != sealed:
            raise StoreDamaged(self.where, f"the value {namespace}/{key} does not match its seal")
        return (None if text is None else loads(text)), version

    async def keys(self, namespace: str) -> builtins.list[str]:
        statement = (
            "SELECT key FROM everhold.value WHERE namespace = %s AND value IS NOT NULL ORDER BY key"
        )
        return [unescape_nul(key) for (key,) in await self._rows(statement, escape_nul(namespace))]

    # ---- workers

    async def beat(self, worker: WorkerRecord) -> None:
        await self._write(
            "INSERT INTO everhold.worker (id, host, pid, ttl, seen_at) VALUES (%s, %s, %s, %s,"
            f" {NOW})"
            " ON CONFLICT (id) DO UPDATE SET host = excluded.host, pid = excluded.pid, ttl ="
            " excluded.ttl,"
            " seen_at = excluded.seen_at",
            escape_nul(worker.id),
            escape_nul(worker.host),
            worker.pid,
            float(worker.ttl),
            self._moment(),
        )

    async def workers(self) -> builtins.list[WorkerRecord]:
        rows = await self._rows(
            f"SELECT id, host, pid, ttl, greatest(0.0, {NOW} - seen_at) FROM everhold.worker"
            " ORDER BY id",
            self._moment(),
        )
        heard = self._lines.stall.age
        return [
            WorkerRecord(unescape_nul(id), unescape_nul(host), pid, ttl, heard(age))
            for id, host, pid, ttl, age in rows
        ]

    async def release(self, worker_id: str) -> None:
        await self._write("DELETE FROM everhold.worker WHERE id = %s", escape_nul(worker_id))

    # ---- deletion

    async def delete(self, session_id: str, fence: int) -> int:
        self._known(session_id)
        sent = False

        async def act(line: PgConnection) -> int:
            nonlocal sent
            again = sent
            sent = True
            try:
                async with line.transaction():
                    kept_rows = await self._delete(line, session_id, fence)
                    await self._ear.tell(line)
                return kept_rows
            except UnknownSession:
                if again:  # it was committed before the connection broke
                    return await self._left(line, session_id)
                raise

        return await self._insisting(act)

    async def _delete(self, line: PgConnection, session_id: str, fence: int) -> int:
        # Only one process at a time may decide what a chain of forks shares.
        await self._on(
            line,
            "SELECT pg_advisory_xact_lock(%s::int, %s::int)",
            LOCKS,
            make_lock_number(f"{self.schema} gc"),
        )
        await self._on(
            line, "SELECT 1 FROM everhold.session WHERE id = %s FOR UPDATE", escape_nul(session_id)
        )
        rows = await self._on(line, look.SESSION + " FOR UPDATE OF h", escape_nul(session_id))
        birth, head = self._session(session_id, rows)
        if head.revision != fence:
            raise Overtaken(session_id, fence)
        if head.state is SessionState.RUNNING:
            raise StillNeeded(session_id, "it is running", "Cancel it first.")
        for table in ("notice", "effect", "letter", "item", "lease"):
            await self._on(line, f"DELETE FROM everhold.{table} WHERE session = %s", head.ref)
        await self._on(line, "DELETE FROM everhold.head_1 WHERE ref = %s", head.ref)
        await self._on(
            line, "UPDATE everhold.session SET deleted = 1, key = NULL WHERE ref = %s", head.ref
        )
        if birth.key is not None:
            await self._note(line, DELETED_KEYS, birth.key, session_id)
        await self._forget(line, head.ref)
        return await self._left(line, session_id)

    async def _note(self, line: PgConnection, namespace: str, key: str, value: JSON) -> None:
        """Writes a durable value outside of a step, without comparing versions. One writer at a
        time.
        """
        statement = (
            "SELECT version FROM everhold.value WHERE namespace = %s AND key = %s FOR UPDATE"
        )
        rows = await self._on(line, statement, escape_nul(namespace), escape_nul(key))
        text = dumps([value])
        version = (rows[0][0] if rows else 0) + 1
        await self._on(
            line,
            "INSERT INTO everhold.value (namespace, key, value, version, seal) VALUES (%s, %s,"
            " %s, %s, %s)"
            " ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, version ="
            " excluded.version,"
            " seal = excluded.seal",
            *(
                escape_nul(namespace),
                escape_nul(key),
                text,
                version,
                checksum_row(namespace, key, text, version),
            ),
        )

    async def _left(self, line: PgConnection, session_id: str) -> int:
        """Number of deliveries that are kept of a deleted session."""
        statement = (
            "SELECT count(*) FROM everhold.journal j JOIN everhold.session s ON s.ref ="
            " j.session WHERE s.id = %s"
        )
        left: int = (await self._on(line, statement, escape_nul(session_id)))[0][0]
        return left

    async def _forget(self, line: PgConnection, ref: int | None) -> None:
        """Deletes the rows of a deleted session, and of deleted sources before it, that no living
        fork reads.
        """
        while ref is not None:
            needed = await self._needed(line, ref)
            await attachment_rows.drop_attachments(functools.partial(self._on, line), ref, needed)
            await self._on(
                line, "DELETE FROM everhold.journal WHERE session = %s AND n > %s", ref, needed
            )
            before = (
                "SELECT o.ref FROM everhold.session s JOIN everhold.session o ON o.ref = s.origin"
            )
            read_less = "WHERE s.ref = %s AND s.origin_n > %s AND o.deleted = 1"
            rows = await self._on(line, f"{before} {read_less}", ref, needed)
            forks = "SELECT 1 FROM everhold.session WHERE origin = s.ref"
            await self._on(
                line, f"DELETE FROM everhold.session s WHERE ref = %s AND NOT EXISTS ({forks})", ref
            )
            ref = rows[0][0] if rows else None

    async def _needed(self, line: PgConnection, ref: int) -> int:
        """The last delivery of a session that a living fork reads; -1 if there is none."""
        needed: int = (await self._on(line, look.NEEDED, ref))[0][0]
        return needed

    # ---- attachments

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        known = self._known(session_id)

        async def act(line: PgConnection) -> None:
            async with line.transaction():
                lock = make_lock_number(f"{self.schema} gc")
                await self._on(
                    line, "SELECT pg_advisory_xact_lock_shared(%s::int, %s::int)", LOCKS, lock
                )
                _, head = self._session(session_id, await self._on(line, look.SESSION, known))
                made.check(data)
                await attachment_rows.insert_attachment(
                    functools.partial(self._on, line), head.ref, head.n, made, data, at
                )

        await self._insisting(act)

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        known = self._known(session_id)

        async def act(line: PgConnection) -> tuple[Attachment, bytes] | None:
            _, head = self._session(session_id, await self._on(line, look.SESSION, known))
            return await attachment_rows.select_attachment(
                functools.partial(self._on, line), head.ref, id
            )

        found = await self._insisting(act)
        if found is None:
            raise UnknownAttachment(session_id, id)
        return found

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        known = self._known(session_id)

        async def act(line: PgConnection) -> builtins.list[Attachment]:
            _, head = self._session(session_id, await self._on(line, look.SESSION, known))
            return await attachment_rows.list_attachments(
                functools.partial(self._on, line), head.ref
            )

        return await self._insisting(act)

    # ---- other processes

    async def changed(self) -> bool:
        return await self._ear.changed()

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return self._ear.listen(wake, me)

    # ---- statements

    def _say(self, statement: str) -> str:
        return qualify_schema(statement, self.schema)

    async def _on(
        self, line: PgConnection, statement: str, *values: Any
    ) -> builtins.list[tuple[Any, ...]]:
        cursor = await line.execute(self._say(statement), values)
        return await cursor.fetchall() if cursor.description else []

    async def _rows(self, statement: str, *values: Any) -> builtins.list[tuple[Any, ...]]:
        return await self._insisting(lambda line: self._on(line, statement, *values))

    async def _write(self, statement: str, *values: Any) -> None:
        """Runs a rare write that may be repeated, and notifies the other processes."""

        async def act(line: PgConnection) -> None:
            async with line.transaction():
                await self._on(line, statement, *values)
                await self._ear.tell(line)

        await self._insisting(act)

    async def _insisting(self, act: Callable[[PgConnection], Awaitable[T]]) -> T:
        try:
            return await self._lines.insisting(act)
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None
