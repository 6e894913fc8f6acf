"""Group commit: one writer connection; changes during a transaction go into the next one.

Rules
  1. A change alone is one statement. Several are one transaction, sent in one go (pipeline mode),
     one round trip.
  2. Each change is accepted or refused by itself. If one breaks the transaction (a race for a key,
     a deadlock), all are retried one by one, and only the offending one is refused.
  3. When the connection breaks in the middle, the outcome is unknown. The same changes are sent
     again: those that were committed are recognised by their receipt or their journal row, and are
     never applied twice.
  4. A change with an `intake` bypasses the queue, on a pooled connection: it is computed between
     two statements.
  5. A change that gets no connection within `patience` seconds is refused with `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from secrets import randbits
from typing import Any, Final, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from everhold.core.intake import Intake
from everhold.core.session import Birth, Head, SessionId
from everhold.errors import (
    BadValue,
    EverholdError,
    Overtaken,
    StoreBusy,
    StoreDamaged,
    StoreUnavailable,
)
from everhold.ports.store import Change, RemoteChange
from everhold.stores.postgres import lineage
from everhold.stores.postgres.address import escape_nul, qualify_schema, unescape_nul
from everhold.stores.postgres.connection import (
    LOCK_TIMEOUT,
    ConnectionLost,
    PgConnection,
    PostgresConnections,
    is_connection_lost,
    is_transient_error,
)
from everhold.stores.postgres.intake_rows import (
    SET_LOCAL,
    Rows,
    Statement,
    open_intake,
    read_intake,
    send_statements,
    write_intakes,
)
from everhold.stores.postgres.write import (
    LAND,
    LAND_MANY,
    LANDED,
    LIGHT,
    LINK,
    STEPS,
    PendingChange,
    build_link_statement,
    collect_births,
    encode_full_changes,
    encode_steps,
    merge_news,
)
from everhold.stores.row_codec import UNREADABLE, read_head

T = TypeVar("T")
log = logging.getLogger("everhold")

BATCH: Final = 200
#: Number of session numbers that are reserved at once.
REFS: Final = 50
#: Changes between two sweeps of old receipts.
SWEEP_EVERY: Final = 5000
#: The columns of a head in the order of `read_head`.
HEAD_COLUMNS: Final = (
    "h.ref, h.revision, h.state, h.n, h.open_from, h.due_at, h.updated_at, h.metrics, h.mail,"
    " h.attempts, h.seal, h.parked, h.asking"
)
_OTHERS: Final = (
    f"SELECT s.id, {HEAD_COLUMNS} FROM everhold.head_1 h JOIN everhold.session s ON s.ref = h.ref"
    " WHERE s.id = ANY(%s) OR h.ref = %s ORDER BY h.ref FOR NO KEY UPDATE OF h"
)
_KNOWN: Final = "SELECT 1 FROM everhold.receipt WHERE id = %s"
#: Deletes receipts that no retry can need any more.
SWEEP: Final = "DELETE FROM everhold.receipt WHERE at < now() - interval '1 hour'"

_UNKNOWN: Final = (
    "The outcome is unknown. Repeating the same call is safe: it is never applied twice."
)


class NotifyStatement(Protocol):
    """A statement that notifies other processes, when due; see `PostgresNotifyChannel.telling`."""

    def __call__(self, news: RemoteChange, *, soon: bool) -> tuple[str, tuple[Any, ...]] | None: ...


class NotifyLater(Protocol):
    """Notifies them of changes committed without it; see `PostgresNotifyChannel.later`."""

    def __call__(self, news: RemoteChange, *, soon: bool) -> None: ...


class PostgresGroupCommit:
    """The commits of one store."""

    def __init__(
        self,
        lines: PostgresConnections,
        schema: str,
        *,
        durability: str,
        telling: NotifyStatement,
        later: NotifyLater,
        time: Callable[[], Callable[[], float] | None],
    ) -> None:
        self._lines = lines
        self._schema = schema
        self._where = lines.where
        self._durability = durability
        self._telling = telling
        self._later = later
        self._time = time  # the clock, if it is not the server's
        self._queue: list[PendingChange] = []
        self._wake = asyncio.Event()
        self._line: PgConnection | None = None
        self._closed = False
        self._refs: list[int] = []
        self._receipt = randbits(62)
        self._unswept = 0
        self._light, self._land, self._landed = (
            qualify_schema(each, schema) for each in (LIGHT, LAND, LANDED)
        )
        self._steps, self._land_many, self._link = (
            qualify_schema(each, schema) for each in (STEPS, LAND_MANY, LINK)
        )
        self._task = asyncio.get_running_loop().create_task(self._write())

    async def commit(self, change: Change, fence: int) -> None:
        """See `Store.commit`."""
        births = collect_births(change) if change.birth is not None or change.births else []
        if fence < 0 or (change.birth is None) is (fence == 0):
            raise Overtaken(change.id, fence)
        for _, head in births:
            # The next session number. Numbers are reserved in blocks, because a change must
            # contain them before it is sent; unused ones are lost.
            while not self._refs:
                self._refs += reversed(await self._lines.run_retrying(self._reserve_numbers))
            head.ref = self._refs.pop()
        self._receipt += 1
        receipt = self._receipt
        try:
            sources = [await self._source(birth) for birth, _ in births]
            landing = PendingChange(change, fence, births, receipt, sources)
        except (TypeError, ValueError) as error:
            raise BadValue("the change", str(error)) from None
        if self._closed:
            raise StoreUnavailable(self._where, "it was closed")
        act = change.intake
        if act is not None and not change.light:
            await self._lines.run_retrying(
                lambda line: self._commit_with_intake(line, landing, act, change)
            )
            return
        loop = asyncio.get_running_loop()
        landing.done, landing.since = loop.create_future(), loop.time()
        self._queue.append(landing)
        self._wake.set()
        await landing.done

    async def close(self) -> None:
        """Commits the queue if that is possible now, then refuses the rest: the store is closed."""
        self._closed = True
        self._wake.set()
        done, _ = await asyncio.wait([self._task], timeout=5)
        if not done:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refuse(self._queue, StoreUnavailable(self._where, "it was closed"))
        self._queue = []
        if self._line is not None:
            await self._line.close()

    async def _reserve_numbers(self, line: PgConnection) -> list[int]:
        statement = qualify_schema(
            "SELECT nextval('everhold.session_ref') FROM generate_series(1, %s)", self._schema
        )
        return [row[0] for row in await (await line.execute(statement, (REFS,))).fetchall()]

    async def _source(self, birth: Birth) -> SessionId | None:
        """Where a new fork reads its shared deliveries. That never changes, so it is read before
        the transaction.
        """
        if birth.origin is None:
            return None
        values = (escape_nul(birth.origin), birth.origin_n, birth.origin_n)

        async def act(line: PgConnection) -> Rows:
            return await (
                await line.execute(qualify_schema(lineage.SOURCE, self._schema), values)
            ).fetchall()

        rows = await self._lines.run_retrying(act)
        return SessionId(unescape_nul(rows[0][0])) if rows else birth.origin

    def _linked(self, batch: list[PendingChange]) -> list[tuple[str, tuple[Any, ...]]]:
        """The statements that follow the creation of forks of forks."""
        return [(self._link, values) for _, values in build_link_statement(batch)]

    # ---- the writer

    async def _write(self) -> None:
        batch: list[PendingChange] = []
        try:
            while self._queue or not self._closed:
                if not self._queue:
                    self._wake.clear()
                    await self._wake.wait()
                batch = self._next_batch()
                if batch:
                    await self._write_batch(batch)
        finally:
            self._refuse(batch, StoreUnavailable(self._where, "it was closed"))

    def _next_batch(self) -> list[PendingChange]:
        """The next batch: queued changes, but no two of one session; a change with letters to
        others is alone.
        """
        if self._queue and self._queue[0].posts:
            return [self._queue.pop(0)]
        batch: dict[int, PendingChange] = {}
        left: list[PendingChange] = []
        for one in self._queue:
            if one.posts or one.ref in batch or len(batch) == BATCH:
                left.append(one)
            else:
                batch[one.ref] = one
        self._queue = left
        # all processes lock heads in the same order, which avoids deadlocks
        return sorted(batch.values(), key=lambda one: one.ref)

    async def _write_batch(self, batch: list[PendingChange]) -> None:
        """Commits or refuses each of these, on as many connections as it takes."""
        try:
            line = await self._writer_connection()
            if len(batch) > 1:
                await self._commit_batch(line, batch)
            else:
                await self._commit_one(line, batch[0])
        except ConnectionLost as error:
            await self._drop_line()
            self._retry_unknown(
                [one for one in batch if one.done is not None and not one.done.done()], str(error)
            )
        except EverholdError as error:
            self._refuse([one for one in batch if not one.tried], error)
            reason = error.reason if isinstance(error, StoreUnavailable) else str(error)
            self._refuse(batch, StoreUnavailable(self._where, reason, _UNKNOWN))
        except Exception as error:  # no caller may wait for ever
            log.exception("unexpected error in a commit")
            await self._drop_line()
            self._refuse(batch, StoreUnavailable(self._where, repr(error)))
        self._unswept += len(batch)
        if self._unswept >= SWEEP_EVERY and self._line is not None:
            self._unswept = 0
            try:
                await self._line.execute(qualify_schema(SWEEP, self._schema))
            except psycopg.Error:
                pass  # the next sweep does it

    def _retry_unknown(self, left: list[PendingChange], reason: str) -> None:
        """Retries the changes with an unknown outcome."""
        now = asyncio.get_running_loop().time()
        for one in left:
            one.tried = True
        late = [one for one in left if now - one.since > self._lines.patience]
        self._refuse(late, StoreUnavailable(self._where, reason, _UNKNOWN))
        self._queue[:0] = [one for one in left if one not in late]

    def _refuse(self, batch: list[PendingChange], error: EverholdError) -> None:
        for one in batch:
            one.answer(error)

    async def _writer_connection(self) -> PgConnection:
        """The writer's connection."""
        if self._line is not None and not self._line.closed:
            return self._line
        self._line = await self._lines.connect(
            settings=f"SET synchronous_commit = {self._strength(False)}"
        )
        return self._line

    async def _drop_line(self) -> None:
        line = self._line
        self._line = None
        if line is not None:
            await line.close()

    def _strength(self, durable: bool) -> str:
        """The `synchronous_commit` of a transaction."""
        return self._lines.strong if durable or self._durability == "power" else "off"

    # ---- one transaction

    async def _commit_batch(self, line: PgConnection, batch: list[PendingChange]) -> None:
        try:
            said = await self._sent(line, batch)
        except psycopg.Error as error:
            await self._roll_back(line, error)
            for one in batch:
                await self._commit_one(line, one)
            return
        for one, verdict in zip(batch, said, strict=True):
            await self._answer(line, one, verdict)

    async def _commit_one(self, line: PgConnection, one: PendingChange) -> None:
        try:
            said = (
                await self._posted(line, one) if one.posts else (await self._sent(line, [one]))[0]
            )
        except psycopg.Error as error:
            await self._roll_back(line, error)
            waited = asyncio.get_running_loop().time() - one.since
            if is_transient_error(error) or isinstance(error, psycopg.errors.UniqueViolation):
                if (error.diag.table_name or "") == "journal":
                    one.answer(Overtaken(one.change_id, one.fence))
                elif waited > self._lines.patience:
                    one.answer(StoreBusy(self._where, waited))
                else:
                    self._queue.append(one)
            else:
                one.answer(await self._lines.translate(error))
        except StoreDamaged as error:
            await self._roll_back(line, None)
            one.answer(error)
        else:
            await self._answer(line, one, said)

    async def _sent(self, line: PgConnection, batch: list[PendingChange]) -> list[Any]:
        """Sends these as one transaction; returns each outcome: the number of moved rows, or the
        answer of `land_1`.
        """
        durable = any(one.durable for one in batch)
        if len(batch) == 1 and (batch[0].step is None or batch[0].is_light):
            one = batch[0]
            act = (self._light, one.light) if one.is_light else (self._land, one.full)
            cursor, *_ = await self._transaction(line, [act, *self._linked(batch)], durable, batch)
            return [cursor.rowcount if one.is_light else (await cursor.fetchall())[0][0]]
        stepping = [one for one in batch if one.step is not None]
        full = [one for one in batch if one.step is None]
        acts = [(self._steps, (encode_steps(stepping),))] if stepping else []
        acts += [(self._land_many, (encode_full_changes(full),))] if full else []
        acts += self._linked(full)
        cursors = await self._transaction(line, acts, durable, batch)
        moved = {ref for (ref,) in await cursors[0].fetchall()} if stepping else set()
        said = dict(await cursors[1 if stepping else 0].fetchall()) if full else {}
        return [said[one.full[0]] if one.step is None else int(one.ref in moved) for one in batch]

    async def _transaction(
        self,
        line: PgConnection,
        acts: list[tuple[str, tuple[Any, ...]]],
        durable: bool,
        batch: list[PendingChange],
    ) -> list[psycopg.AsyncCursor[Any]]:
        local = self._lines.pooled or (durable and self._durability != "power")
        soon = any(one.soon for one in batch)
        news = merge_news([one.news for one in batch])
        telling = self._telling(news, soon=soon)
        if len(acts) == 1 and telling is None and not local:
            cursors = [await line.execute(*acts[0])]
            self._later(news, soon=soon)
            return cursors
        async with line.pipeline():
            await line.execute("BEGIN")
            if local:
                await line.execute(SET_LOCAL, (self._strength(durable), LOCK_TIMEOUT))
            cursors = [await line.execute(*act) for act in acts]
            if telling is not None:
                await line.execute(*telling)
            await line.execute("COMMIT")
        if telling is None:
            self._later(news, soon=soon)
        return cursors

    async def _posted(self, line: PgConnection, one: PendingChange) -> Any:
        """Sends a change with letters to other sessions, whose heads must be read and
        locked first.
        """
        async with line.pipeline():
            await line.execute("BEGIN")
            await line.execute(SET_LOCAL, (self._strength(one.durable), LOCK_TIMEOUT))
            ids = list(one.posts)
            cursor = await line.execute(qualify_schema(_OTHERS, self._schema), (ids, one.full[1]))
        heads = self._read_receivers(one, await cursor.fetchall())
        telling = self._telling(one.news, soon=one.soon)
        async with line.pipeline():
            cursor = await line.execute(self._land, one.addressed(heads))
            for act in self._linked([one]):
                await line.execute(*act)
            if telling is not None:
                await line.execute(*telling)
            await line.execute("COMMIT")
        if telling is None:
            self._later(one.news, soon=one.soon)
        return (await cursor.fetchall())[0][0]

    async def _commit_with_intake(
        self,
        line: PgConnection,
        one: PendingChange,
        act: Callable[[Intake], object],
        change: Change,
    ) -> None:
        """Commits a change and runs its `intake` in one transaction; once, however often it is
        retried.
        """
        try:
            await self._land_and_act(line, one, act, change)
        except psycopg.errors.UniqueViolation as error:
            await self._roll_back(line, error)
            if error.diag.table_name == "session":
                # its id or key is being taken; by this process, if a connection broke
                raise ConnectionLost(error) from None
            if error.diag.table_name == "journal":
                raise Overtaken(one.change_id, one.fence) from None
            raise

    async def _land_and_act(
        self,
        line: PgConnection,
        one: PendingChange,
        act: Callable[[Intake], object],
        change: Change,
    ) -> None:
        receipt, ref, *_ = one.full
        settings = (self._strength(one.durable), LOCK_TIMEOUT)
        again = one.tried
        one.tried = True
        begin: list[Statement] = [("BEGIN", ()), *([(_KNOWN, (receipt,))] if again else [])]
        if self._lines.pooled:  # otherwise the connection has the timeout for what comes first
            begin.append((SET_LOCAL, settings))
        others: list[Statement] = [(_OTHERS, ([*one.posts], ref))] if one.posts else []
        # otherwise nothing depends on it
        said = await send_statements(line, self._schema, [*begin, *others]) if others else []
        given = (LAND, one.addressed(self._read_receivers(one, said[-1] if said else [])))
        acts: list[Statement] = [
            given,
            open_intake(change.id, change.named, settings),
            *build_link_statement([one]),
        ]
        said += await send_statements(line, self._schema, acts if said else [*begin, *acts])
        known = said[1] if again else []
        ((refused,),), rows, *_ = said[len(begin) + len(others) :]
        if known:  # it was committed before the connection broke
            await line.execute("ROLLBACK")
            return
        if refused is not None:
            raise one.refusal(refused)
        _, intake = self._decode(lambda: read_intake(change.id, rows, self._time(), change.named))
        act(intake)
        telling = self._telling(one.news, soon=one.soon)
        told = [] if telling is None else [telling]
        await write_intakes(line, self._schema, {ref: intake}, told)
        if telling is None:
            self._later(one.news, soon=one.soon)

    def _read_receivers(self, one: PendingChange, rows: Rows) -> dict[str, Head]:
        """The heads of other sessions that receive a letter."""
        return self._decode(
            lambda: {row[0]: read_head(row[1:]) for row in rows if row[0] in one.posts}
        )

    def _decode(self, reading: Callable[[], T]) -> T:
        """Decodes rows; raises `StoreDamaged` if they are unreadable."""
        try:
            return reading()
        except (BadValue, *UNREADABLE) as error:
            raise StoreDamaged(self._where, str(error)) from None

    async def _answer(self, line: PgConnection, one: PendingChange, said: Any) -> None:
        if one.step is not None:
            if said == 1 or (one.tried and await self._was_committed(line, one)):
                one.answer(None)
            else:
                one.answer(Overtaken(one.change_id, one.fence))
        else:
            one.answer(None if said is None else one.refusal(said))

    async def _was_committed(self, line: PgConnection, one: PendingChange) -> bool:
        """Whether a step was committed before the connection broke."""
        try:
            cursor = await line.execute(self._landed, one.landed)
            return bool(await cursor.fetchall())
        except psycopg.Error as error:
            raise ConnectionLost(error) from None

    async def _roll_back(self, line: PgConnection, error: psycopg.Error | None) -> None:
        if error is not None and is_connection_lost(error, line):
            raise ConnectionLost(error) from None
        try:
            if line.info.transaction_status is not TransactionStatus.IDLE:
                await line.execute("ROLLBACK")
        except psycopg.Error as failed:
            raise ConnectionLost(failed) from None
