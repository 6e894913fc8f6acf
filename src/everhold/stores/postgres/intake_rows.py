"""Intake and duty rows in PostgreSQL.

Rules
  1. A writer of an intake has locked the session's head and its lease, in this order. A read locks
     nothing. Concurrent reads and writes are batched; an intake that another process has locked is
     waited for separately.
  2. The time is the server's, read after the locks, unless the store has a clock of its own.
  3. Accepted and ended items survive the server's death, at the levels "mixed" and "power". A moved
     lease or claim is not flushed: what is committed under it is, and the server keeps the order.
     If it is lost with everything after it, the lease is free or expires.
"""

from __future__ import annotations

import builtins
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from secrets import randbits
from typing import Any, Final, NoReturn, TypeVar

from everhold.core.intake import Intake
from everhold.core.lease import Fence, LeaseOwner
from everhold.core.session import SessionId
from everhold.errors import (
    BadValue,
    EverholdError,
    Overtaken,
    StoreDamaged,
    StoreUnavailable,
    UnknownSession,
)
from everhold.ports.store import Duty, RemoteChange, SessionFingerprint
from everhold.stores.checksums import UNREADABLE
from everhold.stores.intake_rows import DUTY_COLUMNS, check_duties, make_duty_row
from everhold.stores.postgres.address import escape_nul, unescape_nul
from everhold.stores.postgres.address import qualify_schema as named_in
from everhold.stores.postgres.batch import BatchLoader
from everhold.stores.postgres.connection import LOCK_TIMEOUT, PgConnection, PostgresConnections
from everhold.stores.postgres.intake_sql import (
    NOW,
    SET_LOCAL,
    Rows,
    Statement,
    build_intake_select,
    build_lock_statements,
    decode_duty,
    group_intake_rows,
    is_intake_locked,
    lock_head_and_lease,
    read_intake,
    send_statements,
    write_intakes,
)
from everhold.stores.postgres.listen import PostgresNotifyChannel

T = TypeVar("T")
log = logging.getLogger("everhold")

#: A session, and the action on its intake.
IntakeRequest = tuple[str, Callable[[Intake], Any]]
#: Returns the action's result or raises its error.
IntakeResult = Callable[[], Any]

_DUTY: Final = ", ".join(DUTY_COLUMNS)
_STANDING: Final = (
    f"WITH clock AS MATERIALIZED (SELECT {NOW} AS now) SELECT s.id, h.revision, coalesce(l.seq,"
    " 0), (SELECT count(*)"
    " FROM everhold.item i WHERE i.session = s.ref AND i.state = 'waiting' AND i.available_at <="
    " clock.now)"
    " FROM clock CROSS JOIN everhold.session s JOIN everhold.head_1 h ON h.ref = s.ref"
    " LEFT JOIN everhold.lease l ON l.session = s.ref WHERE s.id = ANY(%s) AND s.deleted = 0"
)
_KEEP: Final = (
    f"UPDATE everhold.lease l SET expires_at = greatest(l.expires_at, {NOW} + %s) FROM"
    " everhold.session s"
    " WHERE s.ref = l.session AND l.incarnation = %s AND l.owner = %s AND l.released = 0 AND"
    f" l.expires_at > {NOW}"
    " RETURNING s.id"
)
_LEAVE: Final = (
    "UPDATE everhold.lease SET released = 1 WHERE incarnation = %s AND owner = %s AND released = 0"
)
#: Releases one lease, and returns whether the session has queued items.
_RELEASE: Final = (
    "WITH one AS (SELECT ref FROM everhold.session WHERE id = %s AND deleted = 0), freed AS"
    " (UPDATE everhold.lease l"
    " SET released = 1 FROM one WHERE l.session = one.ref AND (l.incarnation, l.owner, l.token,"
    " l.generation) ="
    " (%s, %s, %s, %s) AND l.released = 0)"
    " SELECT EXISTS (SELECT 1 FROM everhold.item i WHERE i.session = one.ref AND i.state ="
    " 'waiting'"
    f" AND i.seq > %s AND i.available_at <= {NOW}) FROM one"
)
#: One query per kind: the index of due duties starts with the kind and would be scanned otherwise.
_NEXT_DUTY: Final = (
    "WITH RECURSIVE k (kind) AS (SELECT min(kind) FROM everhold.duty WHERE due_at IS NOT NULL"
    " UNION ALL SELECT"
    " (SELECT min(kind) FROM everhold.duty WHERE kind > k.kind AND due_at IS NOT NULL) FROM k"
    " WHERE k.kind IS NOT NULL)"
    " SELECT least((SELECT min((SELECT min(d.due_at) FROM everhold.duty d WHERE d.kind = k.kind"
    " AND d.due_at > %s))"
    " FROM k), (SELECT min(available_at) FROM everhold.item WHERE state = 'waiting' AND"
    " available_at > %s))"
)
#: One row if this was not done before; a concurrent transaction that does it is waited for.
_RECEIPT: Final = "INSERT INTO everhold.receipt (id) VALUES (%s) ON CONFLICT DO NOTHING RETURNING 1"
_ONE: Final = f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND id = %s"
_DUE: Final = (
    f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND due_at <= %s ORDER BY"
    " due_at, id LIMIT %s"
)
_NAMED: Final = (
    f"SELECT {_DUTY} FROM everhold.duty WHERE kind = %s AND starts_with(id, %s) AND"
    " id > %s ORDER BY id LIMIT %s"
)
_AS_IT_WAS: Final = "kind = %s AND id = %s AND version = %s"


class PostgresIntakeRows:
    """The intake and duty verbs of a store with connections to a server."""

    time: Callable[[], float] | None = None
    where: str
    schema: str
    durability: str
    _lines: PostgresConnections
    _ear: PostgresNotifyChannel
    _looks: BatchLoader[str, Rows]
    _moves: BatchLoader[IntakeRequest, IntakeResult | None]

    def use_clock(self, now: Callable[[], float] | None) -> None:
        self.time = now

    def _known(self, session_id: str) -> str:
        raise NotImplementedError

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
        self._known(session_id)
        chosen = None if whole else named
        alone = chosen is None or bool(chosen)
        # reads without names are batched, and see the queued items
        only = only and alone
        if writes:
            return await self._lines.insisting(
                lambda line: self._change(line, session_id, act, chosen, only, True)
            )
        rows = await (
            self._said(*build_intake_select([session_id], chosen, only=only))
            if alone
            else self._looks(session_id)
        )
        _, given = self._seen(session_id, rows, chosen, only=only)
        said = act(given)  # most reads change nothing and take no lock
        if not (given.moved or given.written):
            return said
        outcome = None if alone else await self._moves((session_id, act))
        if outcome is None:
            return await self._lines.insisting(
                lambda line: self._change(line, session_id, act, chosen, only)
            )
        made: T = outcome()
        return made

    async def _looked(self, sessions: builtins.list[str]) -> builtins.list[Rows]:
        """Reads the intakes of some sessions."""
        return group_intake_rows(sessions, await self._said(*build_intake_select(sessions)))

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
        local = self._local(lasting=lasting)
        begin = [
            ("BEGIN", ()),
            local,
            lock_head_and_lease(session_id),
            build_intake_select([session_id], chosen, only=only),
        ]
        ref, fresh = self._seen(
            session_id, (await send_statements(line, self.schema, begin))[-1], chosen, only=only
        )
        said = act(fresh)
        await self._land(line, {ref: fresh}, lasts=lasting)
        return said

    async def release_lease(self, session_id: str, fence: Fence, came: int) -> bool:
        self._known(session_id)
        shown = (*_owner(fence.owner), escape_nul(fence.token), fence.generation)
        given = (escape_nul(session_id), *shown, came, self._moment())
        rows = await self._said(_RELEASE, given)
        if not rows:
            raise UnknownSession(session_id, self.where)
        waits = bool(rows[0][0])
        self._landed(waits, [], RemoteChange((session_id,), heads=False))
        return waits

    async def _land(
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
            sessions, heads=False, first=_last_holder(intakes.values())
        )  # that process may have the session in memory
        told = self._tell(news) if tells else []
        await write_intakes(line, self.schema, intakes, [*lasting, *told])
        self._landed(tells, told, news)

    async def _moved(
        self, wanted: builtins.list[IntakeRequest]
    ) -> builtins.list[IntakeResult | None]:
        """Runs several actions, each on another intake, in one transaction; None for an action that
        must run alone.
        """
        if len(wanted) == 1:
            return [None]
        try:
            return await self._lines.insisting(lambda line: self._change_many(line, wanted))
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
            *build_lock_statements(sessions, free=True),
            build_intake_select(sessions),
        ]
        *_, heads, leases, rows = await send_statements(line, self.schema, begin)
        found = dict(zip(sessions, group_intake_rows(sessions, rows), strict=True))
        changed: dict[int, Intake] = {}
        outcomes: builtins.list[IntakeResult | None] = []
        for session_id, act in wanted:
            seen = found.pop(session_id, ())  # the second action on a session runs alone
            outcomes.append(
                self._acted(session_id, seen, act, changed)
                if is_intake_locked(seen, heads, leases)
                else None
            )
        await self._land(line, changed)
        return outcomes

    def _acted(
        self, session_id: str, rows: Rows, act: Callable[[Intake], Any], changed: dict[int, Intake]
    ) -> IntakeResult:
        """The outcome of one of several actions; an error affects only this one."""
        try:
            ref, fresh = self._seen(session_id, rows, ())
            said = act(fresh)
        except Exception as error:
            return functools.partial(_refuse, error)
        if fresh.moved or fresh.written:
            changed[ref] = fresh
        return lambda: said

    def _seen(
        self, session_id: str, rows: Rows, chosen: Sequence[str] | None, *, only: bool = False
    ) -> tuple[int, Intake]:
        if not rows:
            raise UnknownSession(session_id, self.where)
        try:
            return read_intake(session_id, rows, self.time, chosen, only=only)
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    def _local(self, *, lasting: bool = False) -> Statement:
        """Settings of one transaction: how long it waits for a lock, and what it survives."""
        strong = lasting and self.durability != "process"
        return SET_LOCAL, (self._lines.strong if strong else "off", LOCK_TIMEOUT)

    def _tell(self, news: RemoteChange) -> list[Statement]:
        telling = self._ear.telling(news)
        return [] if telling is None else [telling]

    def _landed(self, tells: bool, told: builtins.list[Statement], news: RemoteChange) -> None:
        """Other processes must know of this change; they were notified with it or not."""
        if tells and not told:
            self._ear.later(news)

    def _moment(self) -> float | None:
        """The time, if it is not the server's."""
        return None if self.time is None else float(self.time())

    async def _once(self, act: Statement, *, tells: bool) -> Rows:
        """Runs a repeatable statement in a transaction of its own."""
        told = self._tell(RemoteChange()) if tells else []
        acts = [("BEGIN", ()), self._local(), act, *told, ("COMMIT", ())]
        said = await self._lines.insisting(lambda line: send_statements(line, self.schema, acts))
        self._landed(tells, told, RemoteChange())
        return said[2]

    async def _said(self, statement: str, values: tuple[Any, ...]) -> Rows:
        """The rows of a single reading statement."""

        async def act(line: PgConnection) -> Rows:
            return await (await line.execute(named_in(statement, self.schema), values)).fetchall()

        return await self._lines.insisting(act)

    async def standing(self, sessions: Sequence[str]) -> dict[SessionId, SessionFingerprint]:
        rows = await self._said(
            _STANDING, (self._moment(), [escape_nul(each) for each in sessions])
        )
        return {SessionId(unescape_nul(row[0])): SessionFingerprint(*row[1:]) for row in rows}

    async def keep(self, owner: LeaseOwner, ttl: float) -> builtins.list[SessionId]:
        now, (incarnation, name) = self._moment(), _owner(owner)
        rows = await self._once((_KEEP, (now, float(ttl), incarnation, name, now)), tells=False)
        return [SessionId(unescape_nul(id)) for (id,) in rows]

    async def leave(self, owner: LeaseOwner) -> None:
        await self._once((_LEAVE, _owner(owner)), tells=True)

    # ---- duties

    async def duty(self, kind: str, id: str) -> Duty | None:
        rows = await self._said(_ONE, (escape_nul(kind), escape_nul(id)))
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
            return self._duties(await self._said(_DUE, (escape_nul(kind), float(due), limit)))
        return self._duties(
            await self._said(
                _NAMED, (escape_nul(kind), escape_nul(prefix), escape_nul(after), limit)
            )
        )

    def _duties(self, rows: Rows) -> builtins.list[Duty]:
        try:
            return [decode_duty(row) for row in rows]
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self.where, str(error)) from None

    async def undertake(self, duties: Sequence[Duty]) -> None:
        check_duties(duties)
        receipt = randbits(62)
        changes = [_change(one) for one in duties]

        async def act(line: PgConnection) -> None:
            before = [("BEGIN", ()), self._local(lasting=True), (_RECEIPT, (receipt,))]
            # it was committed before the connection broke
            if not (await send_statements(line, self.schema, before))[-1]:
                await line.execute("ROLLBACK")
                return
            said = await send_statements(line, self.schema, changes)
            for one, rows in zip(duties, said, strict=True):
                if not rows:
                    raise Overtaken(f"{one.kind}/{one.id}", one.version)
            told = self._tell(RemoteChange())
            await send_statements(line, self.schema, [*told, ("COMMIT", ())])
            self._landed(True, told, RemoteChange())

        await self._lines.insisting(act)

    async def next_duty(self, after: float = -1.0) -> float | None:
        found: float | None = (await self._said(_NEXT_DUTY, (after, after)))[0][0]
        return found


def _refuse(error: Exception) -> NoReturn:
    raise error


def _last_holder(intakes: Iterable[Intake]) -> str:
    """The last lease holder of these sessions if it is the same one for all, otherwise empty."""
    holders = {"" if one.lease is None else one.lease.owner.incarnation for one in intakes}
    return holders.pop() if len(holders) == 1 else ""


def _owner(owner: LeaseOwner) -> tuple[str, str]:
    return escape_nul(owner.incarnation), escape_nul(owner.name)


def _change(duty: Duty) -> Statement:
    """The statement that writes a duty and returns 1 if its version was unchanged."""
    kind = escape_nul(duty.kind)
    id = escape_nul(duty.id)
    version = duty.version
    if duty.body is None and version == 0:
        return (
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM everhold.duty WHERE kind = %s AND id = %s)",
            (kind, id),
        )
    if duty.body is None:
        return f"DELETE FROM everhold.duty WHERE {_AS_IT_WAS} RETURNING 1", (kind, id, version)
    row = make_duty_row(duty)
    if version == 0:
        marks = ", ".join(["%s"] * len(DUTY_COLUMNS))
        insert = (
            f"INSERT INTO everhold.duty ({_DUTY}) VALUES ({marks}) ON CONFLICT DO NOTHING"
            " RETURNING 1"
        )
        return insert, (kind, id, *row[2:])
    update = "UPDATE everhold.duty SET body = %s, due_at = %s, version = %s, seal = %s"
    return f"{update} WHERE {_AS_IT_WAS} RETURNING 1", (*row[2:], kind, id, version)
