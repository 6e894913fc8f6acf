"""The PostgreSQL store: the verbs of `ports.store.Store`.

One connection writes (see group_commit.py), a few others read. A verb reads one moment: in one
statement, or in one repeatable-read transaction.
"""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from secrets import randbits
from typing import Any, Final, NoReturn, TypeVar

from everhold.core.codec import JSON, checksum_row, dumps, loads
from everhold.core.intake import Intake
from everhold.core.lease import Fence, LeaseOwner
from everhold.core.query import Kind
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import (
    BadSetting,
    BadValue,
    EverholdError,
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
    Change,
    Duty,
    FoundQuestion,
    InboxPlace,
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
from everhold.stores.postgres import intake_rows, lineage, read
from everhold.stores.postgres.address import (
    PostgresAddress,
    escape_nul,
    qualify_schema,
    unescape_nul,
)
from everhold.stores.postgres.connection import (
    LOCK_TIMEOUT,
    BatchLoader,
    PgConnection,
    PostgresConnections,
)
from everhold.stores.postgres.group_commit import PostgresGroupCommit
from everhold.stores.postgres.intake_rows import NOW, Rows, Statement, send_statements
from everhold.stores.postgres.listen import PostgresNotifyChannel
from everhold.stores.postgres.maintenance import PostgresMaintenance
from everhold.stores.postgres.schema import prepare_schema
from everhold.stores.row_codec import UNREADABLE, check_duties, read_head

log = logging.getLogger("everhold")
T = TypeVar("T")
#: A session, and the action on its intake.
IntakeRequest = tuple[str, Callable[[Intake], Any]]
#: Returns the action's result or raises its error.
IntakeResult = Callable[[], Any]

#: Deletes the labels of a session; its row still has them.
_UNLABEL: Final = (
    "DELETE FROM everhold.label l USING everhold.session s CROSS JOIN LATERAL"
    " jsonb_each_text(s.labels) e WHERE s.ref = %s AND l.name = e.key AND l.value = e.value"
    " AND l.created_at = s.created_at AND l.session = s.ref"
)
DURABILITY: Final = ("process", "mixed", "power")
#: Seconds that opening waits for a server that does not answer.
OPENING: Final = 2.0


class PostgresStore:
    """Sessions in a PostgreSQL database, shared by any number of processes."""

    time: Callable[[], float] | None = None

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
        self._channel: PostgresNotifyChannel = None  # type: ignore[assignment]
        self._session_reads: BatchLoader[tuple[str, int], read.LoadedRows] = None  # type: ignore[assignment]

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.time = now

    async def open(self) -> None:
        lines = PostgresConnections(self._address, patience=self._patience, size=self._size)
        line = await lines.connect(min(OPENING, self._patience))
        try:
            self._format = await prepare_schema(line, self.schema, self.where)
        except BaseException:
            await line.close()
            raise
        lines.give(line)
        channel = PostgresNotifyChannel(lines, self.schema)
        try:
            await channel.open()
        except BaseException:
            await lines.close()
            raise
        self._lines = lines
        self._channel = channel
        self._session_reads, self._intake_reads = (
            BatchLoader(self._read_sessions, at_once=2),
            BatchLoader(self._read_intakes, at_once=2),
        )
        self._intake_changes = BatchLoader(self._change_batch)
        self._group = PostgresGroupCommit(
            lines,
            self.schema,
            durability=self.durability,
            telling=channel.telling,
            later=channel.later,
            time=lambda: self.time,
        )
        self.commit = self._group.commit  # type: ignore[method-assign]  # one call less on the way

    async def close(self) -> None:
        if self._lines is None:
            return
        await self._group.close()
        await self._channel.close()
        await self._lines.close()

    # ---- the write verb

    def commit_now(self, change: Change, fence: int) -> bool:
        return False  # a server's answer must be awaited

    async def commit(self, change: Change, fence: int) -> None:
        await self._group.commit(change, fence)

    # ---- reading

    async def load(self, session_id: str, since: int = 0) -> SessionRecord:
        rows = await self._session_reads((self._escape_id(session_id), since))
        try:
            birth, head = self._session(session_id, rows[0])
            return read.build_record(birth, head, *rows[1:])
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    async def _read_sessions(
        self, wanted: builtins.list[tuple[str, int]]
    ) -> builtins.list[read.LoadedRows]:
        """Reads some sessions at one moment."""
        ids = [id for id, _ in wanted]
        since = [n for _, n in wanted]
        return read.split_loaded_rows(len(wanted), await self._rows(read.LOAD, ids, since))

    def _escape_id(self, session_id: str) -> str:
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
        return read.read_birth(text), read_head(tuple(head))

    async def find(self, key: str) -> SessionId | None:
        rows = await self._rows(
            "SELECT id FROM everhold.session WHERE key = %s AND deleted = 0", escape_nul(key)
        )
        return SessionId(unescape_nul(rows[0][0])) if rows else None

    async def list(self, wanted: SessionFilter) -> builtins.list[SessionSummary]:
        _check_texts(*wanted.programs, wanted.prefix, wanted.parent, wanted.after)
        _check_texts(*wanted.labels, *wanted.labels.values())

        async def act(line: PgConnection) -> builtins.list[SessionSummary]:
            rows = await read.read_page(functools.partial(self._on, line), wanted)
            return [SessionSummary(read.read_birth(row[0]), read_head(row[1:])) for row in rows]

        return await self._run_retrying(act)

    async def inbox(
        self, *, kind: Kind | None, to: str | None, limit: int, after: InboxPlace | None = None
    ) -> builtins.list[FoundQuestion]:
        _check_texts(to)
        kinds = list_inbox_kinds(kind, to)

        async def act(line: PgConnection) -> builtins.list[FoundQuestion]:
            await line.execute(read.SNAPSHOT)
            say = functools.partial(self._on, line)
            inbox = read.InboxReader(say, kinds, to, limit, after)
            found = await inbox.noticed()
            if to is None:
                found += await inbox.unnoticed()
            await line.execute("COMMIT")
            return found

        found = await self._run_retrying(act)
        found.sort(key=place_in_inbox)
        return found[:limit]

    async def unmoved(
        self, now: float, living: set[str], *, parked: bool = False, limit: int = 100
    ) -> builtins.list[UnmovedSession]:
        given = (
            self._given_time(),
            float(now),
            [escape_nul(each) for each in living],
            parked,
            limit,
        )
        rows = await self._rows(read.UNMOVED, *given)
        return [UnmovedSession(SessionId(unescape_nul(id)), *rest) for id, *rest in rows]

    async def next_due(self) -> float | None:
        found: float | None = (await self._rows(read.NEXT_DUE))[0][0]
        return found

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
        self._escape_id(session_id)
        chosen = None if whole else named
        alone = chosen is None or bool(chosen)
        # reads without names are batched, and see the queued items
        only = only and alone
        if writes:
            return await self._lines.run_retrying(
                lambda line: self._change(line, session_id, act, chosen, only, True)
            )
        if alone:
            select, values = intake_rows.build_intake_select([session_id], chosen, only=only)
            rows: intake_rows.Rows = await self._rows(select, *values)
        else:
            rows = await self._intake_reads(session_id)
        _, given = self._decode_intake(session_id, rows, chosen, only=only)
        said = act(given)  # most reads change nothing and take no lock
        if not (given.moved or given.written):
            return said
        outcome = None if alone else await self._intake_changes((session_id, act))
        if outcome is None:
            return await self._lines.run_retrying(
                lambda line: self._change(line, session_id, act, chosen, only)
            )
        made: T = outcome()
        return made

    async def _read_intakes(self, sessions: builtins.list[str]) -> builtins.list[Rows]:
        """Reads the intakes of some sessions."""
        select, values = intake_rows.build_intake_select(sessions)
        return intake_rows.group_intake_rows(sessions, await self._rows(select, *values))

    async def _change(
        self,
        line: PgConnection,
        session_id: str,
        act: Callable[[Intake], T],
        chosen: Sequence[str] | None,
        only: bool,
        lasting: bool = False,
    ) -> T:
        """Runs an action on one intake; waits for other transactions on it."""
        settings = self._local(lasting=lasting)[1]
        begin: builtins.list[Statement] = [
            ("BEGIN", ()),
            intake_rows.open_intake(session_id, chosen, settings, only=only),
        ]
        ref, fresh = self._decode_intake(
            session_id, (await send_statements(line, self.schema, begin))[-1], chosen, only=only
        )
        said = act(fresh)
        await self._write_and_commit(line, {ref: fresh}, lasts=lasting)
        return said

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        self._escape_id(session_id)
        shown = (
            *intake_rows.make_owner_values(fence.owner),
            escape_nul(fence.token),
            fence.generation,
        )
        given = (escape_nul(session_id), *shown, came, self._given_time())
        rows = await self._rows(intake_rows.RELEASE, *given)
        if not rows:
            raise UnknownSession(session_id, self.where)
        waits = bool(rows[0][0])
        self._notify_later(waits, [], RemoteChange((session_id,), heads=False))
        return waits

    async def _write_and_commit(
        self, line: PgConnection, intakes: dict[int, Intake], *, lasts: bool = False
    ) -> None:
        lasting = (
            [self._local(lasting=True)]
            if not lasts and any(one.lasting for one in intakes.values())
            else []
        )
        tells = any(one.written or (one.holder is None and one.items) for one in intakes.values())
        sessions = tuple(one.session_id for one in intakes.values())
        news = RemoteChange(
            sessions, heads=False, first=intake_rows.find_last_holder(intakes.values())
        )  # that process may have the session in memory
        told = self._make_notify(news) if tells else []
        await intake_rows.write_intakes(line, self.schema, intakes, [*lasting, *told])
        self._notify_later(tells, told, news)

    async def _change_batch(
        self, wanted: builtins.list[IntakeRequest]
    ) -> builtins.list[IntakeResult | None]:
        """Runs several actions, each on another intake, in one transaction; None for an action that
        must run alone.
        """
        if len(wanted) == 1:
            return [None]
        try:
            return await self._lines.run_retrying(lambda line: self._change_many(line, wanted))
        except StoreUnavailable:
            raise
        except EverholdError as error:  # the offending one is found when each runs alone
            log.debug("intakes could not be changed in one transaction: %s", error)
            return [None] * len(wanted)

    async def _change_many(
        self, line: PgConnection, wanted: builtins.list[IntakeRequest]
    ) -> builtins.list[IntakeResult | None]:
        sessions = list(dict.fromkeys(session_id for session_id, _ in wanted))
        begin = [
            ("BEGIN", ()),
            self._local(),
            *intake_rows.build_lock_statements(sessions, free=True),
            intake_rows.build_intake_select(sessions),
        ]
        *_, heads, leases, rows = await send_statements(line, self.schema, begin)
        found = dict(zip(sessions, intake_rows.group_intake_rows(sessions, rows), strict=True))
        changed: dict[int, Intake] = {}
        outcomes: builtins.list[IntakeResult | None] = []
        for session_id, act in wanted:
            seen = found.pop(session_id, ())  # the second action on a session runs alone
            outcomes.append(
                self._run_action(session_id, seen, act, changed)
                if intake_rows.is_intake_locked(seen, heads, leases)
                else None
            )
        await self._write_and_commit(line, changed)
        return outcomes

    def _run_action(
        self, session_id: str, rows: Rows, act: Callable[[Intake], Any], changed: dict[int, Intake]
    ) -> IntakeResult:
        """The outcome of one of several actions; an error affects only this one."""
        try:
            ref, fresh = self._decode_intake(session_id, rows, ())
            said = act(fresh)
        except Exception as error:
            return functools.partial(_refuse, error)
        if fresh.moved or fresh.written:
            changed[ref] = fresh
        return lambda: said

    def _decode_intake(
        self, session_id: str, rows: Rows, chosen: Sequence[str] | None, *, only: bool = False
    ) -> tuple[int, Intake]:
        if not rows:
            raise UnknownSession(session_id, self.where)
        try:
            return intake_rows.read_intake(session_id, rows, self.time, chosen, only=only)
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    def _local(self, *, lasting: bool = False) -> Statement:
        """Settings of one transaction: how long it waits for a lock, and what it survives."""
        strong = lasting and self.durability != "process"
        return intake_rows.SET_LOCAL, (self._lines.strong if strong else "off", LOCK_TIMEOUT)

    def _make_notify(self, news: RemoteChange) -> builtins.list[Statement]:
        telling = self._channel.telling(news)
        return [] if telling is None else [telling]

    def _notify_later(
        self, tells: bool, told: builtins.list[Statement], news: RemoteChange
    ) -> None:
        """Other processes must know of this change; they were notified with it or not."""
        if tells and not told:
            self._channel.later(news)

    def _given_time(self) -> float | None:
        """The time, if it is not the server's."""
        return None if self.time is None else float(self.time())

    async def _run_statement(self, act: Statement, *, tells: bool) -> Rows:
        """Runs a repeatable statement in a transaction of its own."""
        told = self._make_notify(RemoteChange()) if tells else []
        acts = [("BEGIN", ()), self._local(), act, *told, ("COMMIT", ())]
        said = await self._lines.run_retrying(lambda line: send_statements(line, self.schema, acts))
        self._notify_later(tells, told, RemoteChange())
        return said[2]

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        rows = await self._rows(
            intake_rows.STANDING, self._given_time(), [escape_nul(each) for each in sessions]
        )
        return {SessionId(unescape_nul(row[0])): SessionFingerprint(*row[1:]) for row in rows}

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        now, (incarnation, name) = self._given_time(), intake_rows.make_owner_values(owner)
        rows = await self._run_statement(
            (intake_rows.KEEP, (now, float(ttl), incarnation, name, now)), tells=False
        )
        return [SessionId(unescape_nul(id)) for (id,) in rows]

    async def leave(self, owner: LeaseOwner) -> None:
        await self._run_statement(
            (intake_rows.LEAVE, intake_rows.make_owner_values(owner)), tells=True
        )

    # ---- duties

    async def duty(self, kind: str, id: str) -> Duty | None:
        rows = await self._rows(intake_rows.ONE_DUTY, escape_nul(kind), escape_nul(id))
        return next(iter(self._duties(rows)), None)

    async def duties(
        self,
        kind: str,
        *,
        due: float | None = None,
        prefix: str = "",
        after: str = "",
        limit: int = 100,
    ) -> builtins.list[Duty]:
        if due is not None:
            return self._duties(
                await self._rows(intake_rows.DUE_DUTIES, escape_nul(kind), float(due), limit)
            )
        return self._duties(
            await self._rows(
                intake_rows.NAMED_DUTIES,
                escape_nul(kind),
                escape_nul(prefix),
                escape_nul(after),
                limit,
            )
        )

    def _duties(self, rows: Rows) -> builtins.list[Duty]:
        try:
            return [intake_rows.decode_duty(row) for row in rows]
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    async def undertake(self, duties: Sequence[Duty]) -> None:
        check_duties(duties)
        receipt = randbits(62)
        changes = [intake_rows.build_duty_statement(one) for one in duties]

        async def act(line: PgConnection) -> None:
            before = [("BEGIN", ()), self._local(lasting=True), (intake_rows.RECEIPT, (receipt,))]
            # it was committed before the connection broke
            if not (await send_statements(line, self.schema, before))[-1]:
                await line.execute("ROLLBACK")
                return
            said = await send_statements(line, self.schema, changes)
            for one, rows in zip(duties, said, strict=True):
                if not rows:
                    raise Overtaken(f"{one.kind}/{one.id}", one.version)
            told = self._make_notify(RemoteChange())
            await send_statements(line, self.schema, [*told, ("COMMIT", ())])
            self._notify_later(True, told, RemoteChange())

        await self._lines.run_retrying(act)

    async def next_duty(self, after: float = -1.0) -> float | None:
        found: float | None = (await self._rows(intake_rows.NEXT_DUTY, after, after))[0][0]
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
            self._given_time(),
        )

    async def workers(self) -> builtins.list[WorkerRecord]:
        rows = await self._rows(
            f"SELECT id, host, pid, ttl, greatest(0.0, {NOW} - seen_at) FROM everhold.worker"
            " ORDER BY id",
            self._given_time(),
        )
        heard = self._lines.stall.age
        return [
            WorkerRecord(unescape_nul(id), unescape_nul(host), pid, ttl, heard(age))
            for id, host, pid, ttl, age in rows
        ]

    async def release(self, worker_id: str) -> None:
        await self._write("DELETE FROM everhold.worker WHERE id = %s", escape_nul(worker_id))

    # ---- deletion

    async def delete(self, session_id: str, fence: int, by: dict[str, JSON] | None = None) -> int:
        self._escape_id(session_id)
        sent = False

        async def act(line: PgConnection) -> int:
            nonlocal sent
            again = sent
            sent = True
            try:
                async with line.transaction():
                    kept_rows = await self._delete(line, session_id, fence, by)
                    await self._channel.tell(line)
                return kept_rows
            except UnknownSession:
                if again:  # it was committed before the connection broke
                    return await lineage.count_kept_deliveries(
                        functools.partial(self._on, line), session_id
                    )
                raise

        return await self._run_retrying(act)

    async def _delete(
        self, line: PgConnection, session_id: str, fence: int, by: dict[str, JSON] | None
    ) -> int:
        say = functools.partial(self._on, line)
        await lineage.lock_lineage(say, self.schema)
        await self._on(
            line, "SELECT 1 FROM everhold.session WHERE id = %s FOR UPDATE", escape_nul(session_id)
        )
        rows = await self._on(line, read.SESSION + " FOR UPDATE OF h", escape_nul(session_id))
        birth, head = self._session(session_id, rows)
        if head.revision != fence:
            raise Overtaken(session_id, fence)
        if head.state is SessionState.RUNNING:
            raise StillNeeded(session_id, "it is running", "Cancel it first.")
        for table in ("notice", "effect", "letter", "item", "lease"):
            await self._on(line, f"DELETE FROM everhold.{table} WHERE session = %s", head.ref)
        await self._on(line, "DELETE FROM everhold.head_1 WHERE ref = %s", head.ref)
        await self._on(line, _UNLABEL, head.ref)
        await self._on(
            line, "UPDATE everhold.session SET deleted = 1, key = NULL WHERE ref = %s", head.ref
        )
        if birth.key is not None:
            await self._note(line, DELETED_KEYS, birth.key, session_id)
        if by is not None:
            await self._note(line, DELETED_BY, session_id, by)
        await lineage.forget_unneeded(say, head.ref)
        return await lineage.count_kept_deliveries(say, session_id)

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

    # ---- attachments

    async def attach(self, session_id: str, made: Attachment, data: bytes, at: float) -> None:
        known = self._escape_id(session_id)

        async def act(line: PgConnection) -> None:
            async with line.transaction():
                say = functools.partial(self._on, line)
                await lineage.lock_lineage(say, self.schema, shared=True)
                _, head = self._session(session_id, await self._on(line, read.SESSION, known))
                made.check(data)
                await lineage.insert_attachment(say, head.ref, head.n, made, data, at)

        await self._run_retrying(act)

    async def attachment(self, session_id: str, id: str) -> tuple[Attachment, bytes]:
        known = self._escape_id(session_id)

        async def act(line: PgConnection) -> tuple[Attachment, bytes] | None:
            _, head = self._session(session_id, await self._on(line, read.SESSION, known))
            return await lineage.select_attachment(functools.partial(self._on, line), head.ref, id)

        found = await self._run_retrying(act)
        if found is None:
            raise UnknownAttachment(session_id, id)
        return found

    async def attachments(self, session_id: str) -> builtins.list[Attachment]:
        known = self._escape_id(session_id)

        async def act(line: PgConnection) -> builtins.list[Attachment]:
            _, head = self._session(session_id, await self._on(line, read.SESSION, known))
            return await lineage.list_attachments(functools.partial(self._on, line), head.ref)

        return await self._run_retrying(act)

    # ---- other processes

    async def changed(self) -> bool:
        return await self._channel.changed()

    def listen(self, wake: Callable[[RemoteChange], None], me: str = "") -> float:
        return self._channel.listen(wake, me)

    # ---- statements

    def _qualify(self, statement: str) -> str:
        return qualify_schema(statement, self.schema)

    async def _on(
        self, line: PgConnection, statement: str, *values: Any
    ) -> builtins.list[tuple[Any, ...]]:
        cursor = await line.execute(self._qualify(statement), values)
        return await cursor.fetchall() if cursor.description else []

    async def _rows(self, statement: str, *values: Any) -> builtins.list[tuple[Any, ...]]:
        """The rows of one statement."""

        async def act(line: PgConnection) -> builtins.list[tuple[Any, ...]]:
            return await (await line.execute(self._qualify(statement), values)).fetchall()

        return await self._lines.run_retrying(act)

    async def _write(self, statement: str, *values: Any) -> None:
        """Runs a rare write that may be repeated, and notifies the other processes."""

        async def act(line: PgConnection) -> None:
            async with line.transaction():
                await self._on(line, statement, *values)
                await self._channel.tell(line)

        await self._run_retrying(act)

    async def _run_retrying(self, act: Callable[[PgConnection], Awaitable[T]]) -> T:
        try:
            return await self._lines.run_retrying(act)
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None


def _check_texts(*texts: str | None) -> None:
    """Raises `BadValue` for a caller's text that no column can hold. A query that met it would
    report a damaged row.
    """
    for text in texts:
        if text is not None:
            escape_nul(text)


def _refuse(error: Exception) -> NoReturn:
    raise error
