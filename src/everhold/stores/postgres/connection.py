"""Connections to the server: opening, pooling, retrying, batched lookups, and server errors.

Rules
  1. When a connection breaks, the work is retried on a new one, with growing pauses, for at most
     `patience` seconds; then `StoreUnavailable` is raised. A wrong name or password fails at once.
  2. There may be a pooler that gives each transaction to another backend. Then nothing is set for
     longer than a transaction, and no statement is prepared.
  3. A connection on which a command was interrupted is closed and never reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper

from everhold.errors import (
    BadValue,
    EverholdError,
    ReadOnlyStore,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from everhold.stores.outage import OutageTracker
from everhold.stores.postgres.address import PostgresAddress

PgConnection = psycopg.AsyncConnection[tuple[Any, ...]]
K = TypeVar("K")
T = TypeVar("T")

OLDEST_SERVER: Final = 130000
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 1.0
#: Milliseconds after which a lock that another transaction holds counts as busy; the work is
#: retried later.
LOCK_TIMEOUT: Final = "1000"
_FOR_GOOD: Final = (
    "does not exist",
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "could not translate host name",
    "failed to resolve host",
    "permission denied",
    "connection is bad: invalid",
)
_AWAY: Final = (
    "Start the server, or check the address with `everhold info`; nothing is lost meanwhile."
)


class ConnectionLost(Exception):
    """The connection broke: it is unknown whether the sent work was committed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error).strip() or type(error).__name__)


def is_connection_lost(error: psycopg.Error, line: PgConnection) -> bool:
    """Whether an error means that the connection is lost, and not that the server refused
    something.
    """
    state = error.sqlstate or ""
    return (
        line.closed
        or line.broken
        or state.startswith(("57P", "08"))
        or isinstance(error, psycopg.InterfaceError)
    )


class PostgresConnections:
    """The connections of one store: a small pool for readers, and others on demand."""

    def __init__(self, address: PostgresAddress, *, patience: float, size: int = 4) -> None:
        self.where = address.where
        self.patience = patience
        self.pooled = False
        self.strong = "on"  # the `synchronous_commit` of a change that must survive power loss
        self.schema = address.schema
        self._facts = address.facts
        self._idle: list[PgConnection] = []
        self._free = asyncio.Semaphore(size)
        self._closed = False
        self.stall = OutageTracker()

    # ---- one connection

    async def connect(self, patience: float | None = None, *, settings: str = "") -> PgConnection:
        """Opens a connection, with session settings unless a pooler shares it; raises
        `StoreUnavailable`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.patience if patience is None else patience)
        wait = _FIRST_WAIT
        while True:
            try:
                line = await psycopg.AsyncConnection.connect(
                    autocommit=True, prepare_threshold=None, **self._facts
                )
                return await self._prepare(line, settings)
            except psycopg.Error as error:
                words = _first_line(error)
                if any(sign in words for sign in _FOR_GOOD):
                    raise StoreUnavailable(
                        self.where, words, "Check name, user, password and rights."
                    ) from None
                if self._closed or loop.time() + wait > deadline:
                    raise StoreUnavailable(self.where, words, _AWAY) from None
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _prepare(self, line: PgConnection, settings: str) -> PgConnection:
        """Checks the server, and sets session settings unless a pooler shares the connection."""
        try:
            cursor = await line.execute(
                "SELECT pg_backend_pid(), current_setting('server_version_num')::int,"
                " current_setting('server_encoding'), current_setting('synchronous_commit')"
            )
            pid, version, encoding, strength = (await cursor.fetchall())[0]
            if version < OLDEST_SERVER:
                raise StoreUnavailable(
                    self.where, f"PostgreSQL {version // 10000} is too old", "Use 13 or newer."
                )
            if encoding != "UTF8":
                raise StoreUnavailable(
                    self.where, f"its encoding is {encoding}", "Create the database with UTF8."
                )
            self.pooled = pid != line.info.backend_pid
            self.strong = "on" if strength == "off" else strength
            # psycopg would choose int2, int4 or int8 by the value, and the server would prepare
            # one statement for each combination.
            line.adapters.register_dumper(int, Int8BinaryDumper)
            if not self.pooled:
                line.prepare_threshold = 1
                await line.execute(
                    f"SET lock_timeout = {LOCK_TIMEOUT}; SET statement_timeout = 0;"
                    f" SET idle_in_transaction_session_timeout = '30s'; {settings}"
                )
            return line
        except BaseException:
            await line.close()
            raise

    # ---- pool

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[PgConnection]:
        """Lends a connection. Raises `ConnectionLost` if it breaks meanwhile."""
        async with self._free:
            line = await self._take_idle()
            sound = False
            try:
                yield line
                sound = True
            except psycopg.Error as error:
                if is_connection_lost(error, line):
                    raise ConnectionLost(error) from None
                sound = await self._end_transaction(line)
                raise
            except EverholdError:
                sound = await self._end_transaction(line)
                raise
            finally:
                if sound and not self._closed and not line.closed:
                    self._idle.append(line)
                else:
                    await line.close()

    def give(self, line: PgConnection) -> None:
        """Returns a connection to the pool."""
        self._idle.append(line)

    async def _take_idle(self) -> PgConnection:
        if self._closed:
            raise StoreUnavailable(self.where, "it was closed")
        while self._idle:
            line = self._idle.pop()
            if not line.closed:
                return line
        return await self.connect()

    async def _end_transaction(self, line: PgConnection) -> bool:
        """Ends the transaction that an error left open; whether the connection can be reused."""
        try:
            if line.info.transaction_status is not TransactionStatus.IDLE:
                await line.execute("ROLLBACK")
        except psycopg.Error:
            return False
        return True

    async def run_retrying(self, act: Callable[[PgConnection], Awaitable[T]]) -> T:
        """Runs repeatable work, on as many connections as it takes; raises translated errors."""
        with self.stall.watched():
            loop = asyncio.get_running_loop()
            deadline = loop.time() + self.patience
            wait = _FIRST_WAIT
            while True:
                try:
                    async with self.borrowed() as line:
                        return await act(line)
                except ConnectionLost as error:
                    await self._close_idle()  # the other connections are probably broken too
                    if loop.time() > deadline:
                        raise StoreUnavailable(self.where, str(error), _AWAY) from None
                except psycopg.Error as error:
                    if not is_transient_error(error) or loop.time() > deadline:
                        raise await self.translate(error) from None
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    async def translate(self, error: psycopg.Error) -> EverholdError:
        """Translates an error of the server."""
        if error.sqlstate in (
            "42P01",
            "42883",
        ):  # a table or function is gone: another process has migrated the schema
            return await self._other_format() or translate_pg_error(error, self.where)
        return translate_pg_error(error, self.where)

    async def _other_format(self) -> EverholdError | None:
        from everhold.stores.postgres.schema import read_schema_format

        try:
            async with self.borrowed() as line:
                await read_schema_format(line, self.schema, self.where)
        except EverholdError as other:
            return other
        except (ConnectionLost, psycopg.Error):
            pass
        return None

    async def close(self) -> None:
        self._closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop().close()


# ---- server errors


def _first_line(error: psycopg.Error) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rpartition("FATAL:  ")[2].removeprefix("connection failed: ")


def is_transient_error(error: psycopg.Error) -> bool:
    """Whether a retry may succeed: a deadlock, a lock timeout, a race."""
    return error.sqlstate in ("40001", "40P01", "55P03")


def translate_pg_error(error: psycopg.Error, where: str) -> EverholdError:
    """Translates an error of the server; the refused work had no effect."""
    state = error.sqlstate or ""
    words = _first_line(error)
    if state in ("40001", "40P01", "55P03", "57014"):
        return StoreBusy(where, 0)
    if state in ("53100", "53200"):
        return StoreFull(where)
    if state == "54000":  # the row of an index; only user-given names are indexed
        return BadValue("a key or a name", f"it is too long, {words}")
    if state == "25006":
        return ReadOnlyStore(where)
    if state == "42501":
        return StoreUnavailable(
            where, words, "Grant this user the rights that `everhold db migrate --print-sql` needs."
        )
    if state.startswith(("42", "22", "23", "XX")):
        return StoreDamaged(where, words)
    return StoreUnavailable(where, words, _AWAY)


# ---- batched lookups

#: Lookups in one batch.
BATCH_LIMIT: Final = 100


class BatchLoader(Generic[K, T]):
    """Batches lookups: those that arrive during a lookup are answered together by the next one.

    `ask` receives several requests and returns an answer for each, in order. A request is always
    answered by a lookup that started after it. A request that fails does not affect the others.
    """

    def __init__(
        self, ask: Callable[[list[K]], Awaitable[Sequence[T]]], *, at_once: int = 1
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._wanted: list[tuple[K, asyncio.Future[T]]] = []
        # a strong reference; asyncio keeps only weak ones
        self._tasks: set[asyncio.Task[Any]] = set()
        # tasks that will still look at the queue; a finished one may be among the tasks
        self._busy = 0

    async def __call__(self, wanted: K) -> T:
        loop = asyncio.get_running_loop()
        said: asyncio.Future[T] = loop.create_future()
        self._wanted.append((wanted, said))
        if self._busy < self._at_once:
            self._busy += 1
            self._tasks.add(task := loop.create_task(self._work()))
            task.add_done_callback(self._tasks.discard)
        return await said

    async def _work(self) -> None:
        try:
            while self._wanted:
                batch = self._wanted[:BATCH_LIMIT]
                self._wanted = self._wanted[BATCH_LIMIT:]
                await self._answer([one for one in batch if not one[1].done()])
        finally:
            self._busy -= 1

    async def _answer(self, batch: list[tuple[K, asyncio.Future[T]]]) -> None:
        try:
            said = await self._ask([wanted for wanted, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), one in zip(batch, said, strict=True):
                if not future.done():
                    future.set_result(one)
