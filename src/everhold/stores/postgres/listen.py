"""Change notifications between processes: NOTIFY, a counter beside it, and polling.

Rules
  1. A process notifies the others in the transaction of a commit, but at most every `NOTIFY_EVERY`
     seconds, or `NOTIFY_EVERY_SOON` where another process may be waiting; changes in between are
     notified after that time. (Transactions that notify wait for each other.) A notification alone
     does not wait for the disk: the changes it names are committed.
  2. A notification names the changed sessions, and says whether one of them may need a move and
     which worker sees to it first: the sender, if it looks for work, or the last lease holder. That
     is a hint: others leave the session to that worker for a moment.
  3. `changed` reads the counters of the others, so that nothing depends on a notification that was
     missed.
  4. Where notifications do not arrive (a pooler in transaction mode), the counters are polled a few
     times a second, and a warning is logged. A slow server looks the same at first, so
     notifications are tried again every `AGAIN` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex
from typing import Any, Final

import psycopg

from everhold.core.codec import dumps, loads
from everhold.errors import BadValue, EverholdError
from everhold.ports.store import RemoteChange
from everhold.stores.postgres.address import qualify_schema
from everhold.stores.postgres.connection import ConnectionLost, PgConnection, PostgresConnections
from everhold.stores.postgres.group_commit import SWEEP

log = logging.getLogger("everhold")

#: Stands for any session.
ANY: Final = ""
#: Characters of a notification; the server accepts 8,000 bytes.
LONGEST: Final = 7000
NOTIFY_EVERY: Final = 0.02
NOTIFY_EVERY_SOON: Final = 0.005
POLL_EVERY: Final = 0.3
#: Seconds after which a notification to oneself counts as lost.
TEST: Final = 2.0
#: Seconds until notifications are tried again.
AGAIN: Final = 300.0
#: Seconds between two polls of a process that receives notifications.
LOOK_EVERY: Final = 5.0

# One statement counts and notifies, so a process that misses the notification sees the counter.
_TELL: Final = (
    "WITH told AS (INSERT INTO everhold.pulse (id, count) VALUES (%s, 1) ON CONFLICT (id)"
    " DO UPDATE SET count = pulse.count + 1, at = now() RETURNING 1) SELECT pg_notify(%s,"
    " %s){more} FROM told"
)
_IN_PASSING: Final = ", set_config('synchronous_commit', 'off', true)"
_COUNTS: Final = "SELECT coalesce(sum(count), 0)::int8, count(*) FROM everhold.pulse WHERE id <> %s"
_FORGET: Final = f"DELETE FROM everhold.pulse WHERE at < now() - interval '1 day'; {SWEEP}"


class PostgresNotifyChannel:
    """Sends and receives the notifications of one store."""

    def __init__(self, lines: PostgresConnections, schema: str) -> None:
        self._lines = lines
        self._id = token_hex(8)
        self._channel = f"everhold_{schema}"
        self._tell, self._tell_alone = (
            qualify_schema(_TELL.format(more=more), schema) for more in ("", _IN_PASSING)
        )
        self._counts, self._forget = (
            qualify_schema(_COUNTS, schema),
            qualify_schema(_FORGET, schema),
        )
        self._notified_at = 0.0
        self._later: asyncio.Task[None] | None = None
        self._me = ""  # the worker that looks for work here
        self._first_workers: set[str] = (
            set()
        )  # the worker that sees first to changes not yet notified
        self._sessions: set[str] = set()  # the sessions that were changed
        self._moves = self._heads = False  # whether one of them may need a move
        # whether a change was not notified that another process may wait for
        self._pending = self._soon = False
        self._seen = (0, 0)
        self._wake: Callable[[RemoteChange], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self.hears = "when asked"

    async def open(self) -> None:
        """Deletes old counters, and reads the current ones."""

        async def first(line: PgConnection) -> None:
            await line.execute(self._forget)

        await self._lines.run_retrying(first)
        await self.changed()

    async def close(self) -> None:
        """Sends what was not sent yet, and stops listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._later is not None and not self._later.done():
            self._later.cancel()
            await asyncio.gather(self._later, return_exceptions=True)
            try:
                await asyncio.wait_for(self._lines.run_retrying(self._tell_now), 2)
            except (EverholdError, TimeoutError):
                pass  # the others see it when they poll

    # ---- sending

    def telling(
        self, news: RemoteChange, *, soon: bool = True
    ) -> tuple[str, tuple[Any, ...]] | None:
        """A statement for the transaction that is about to be sent; None if it is too early: then
        call `later` after the commit.
        """
        now = asyncio.get_running_loop().time()
        if now - self._notified_at < (NOTIFY_EVERY_SOON if soon else NOTIFY_EVERY):
            return None
        self._notified_at = now
        return self._tell, self._make_payload(news, self._me or news.first)

    def _make_payload(self, news: RemoteChange, first: str) -> tuple[str, str, str]:
        """The payload: the first worker, whether a move is needed, and the sessions if they fit."""
        words = dumps([first, news.moves, news.heads, sorted(news.sessions)])
        if len(words) > LONGEST:
            words = dumps([first, True, True, []])
        return self._id, self._channel, f"{self._id} {words}"

    def later(self, news: RemoteChange, *, soon: bool = True) -> None:
        """Schedules a notification about committed changes, soon or after a while."""
        self._pending = True
        self._soon = self._soon or soon
        self._first_workers.add(self._me or news.first)
        self._sessions.update(news.sessions or [ANY])
        self._moves = self._moves or news.moves
        self._heads = self._heads or news.heads
        if self._later is None or self._later.done():
            self._later = asyncio.get_running_loop().create_task(self._tell_later())

    async def tell(self, line: PgConnection) -> None:
        """Notifies all other processes with the running transaction."""
        self._notified_at = asyncio.get_running_loop().time()
        await line.execute(self._tell, self._make_payload(RemoteChange(), ""))

    async def _tell_now(self, line: PgConnection) -> None:
        self._notified_at = asyncio.get_running_loop().time()
        first = self._first_workers.pop() if len(self._first_workers) == 1 else ""
        named = () if ANY in self._sessions else tuple(self._sessions)
        news = RemoteChange(named, self._moves or not named, self._heads, first)
        self._first_workers, self._sessions, self._moves, self._heads = set(), set(), False, False
        await line.execute(self._tell_alone, self._make_payload(news, first))

    async def _tell_later(self) -> None:
        loop = asyncio.get_running_loop()
        while self._pending:
            while (
                left := self._notified_at
                + (NOTIFY_EVERY_SOON if self._soon else NOTIFY_EVERY)
                - loop.time()
            ) > 0:
                await asyncio.sleep(min(left, NOTIFY_EVERY_SOON))  # it may have become urgent
            # changes that are committed during this notification are notified again
            self._pending = self._soon = False
            try:
                await self._lines.run_retrying(self._tell_now)
            except EverholdError as error:
                log.debug("other processes were not notified: %s", error)

    # ---- receiving

    async def changed(self) -> bool:
        """Whether another process has written since the last call."""

        async def counted(line: PgConnection) -> tuple[int, int]:
            return (await (await line.execute(self._counts, (self._id,))).fetchall())[0]

        before, self._seen = self._seen, await self._lines.run_retrying(counted)
        return before != self._seen

    def listen(self, wake: Callable[[RemoteChange], None], me: str) -> float:
        """See `Store.listen`."""
        self._wake = wake
        self._me = me
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())
        return LOOK_EVERY

    async def _listen(self) -> None:
        try:
            while True:
                if not await self._listen_once():
                    self._polling = self._polling or asyncio.get_running_loop().create_task(
                        self._poll()
                    )
                    await asyncio.sleep(AGAIN)
        finally:
            await self._stop_polling()

    async def _listen_once(self) -> bool:
        """Listens for as long as a connection lasts; False if no notification arrives on it."""
        line: PgConnection | None = None
        try:
            line = await self._lines.connect()
            await line.execute(f'LISTEN "{self._channel}"')
            self._call_wake()  # earlier changes are not announced any more
            if not await self._test_delivery(line):
                return False
            await self._stop_polling()
            self.hears = "by notifications"
            async for notify in line.notifies():
                sender, _, words = notify.payload.partition(" ")
                if sender != self._id:
                    self._call_wake(_decode_payload(words))
        except (psycopg.Error, EverholdError, ConnectionLost):
            await asyncio.sleep(0.1)  # `connect` has its own pauses
        finally:
            if line is not None:
                await line.close()
        return True

    async def _test_delivery(self, line: PgConnection) -> bool:
        """Whether a notification to oneself arrives."""

        async def send(other: PgConnection) -> None:
            await other.execute("SELECT pg_notify(%s, %s)", (self._channel, self._id))

        await self._lines.run_retrying(send)
        async for notify in line.notifies(timeout=TEST):
            if notify.payload == self._id:
                return True
            self._call_wake()
        return False

    async def _poll(self) -> None:
        self.hears = "by looking"
        log.warning(
            "%s does not deliver notifications (a pooler in transaction mode?): polling every %s"
            " s instead",
            self._lines.where,
            POLL_EVERY,
        )
        seen = self._seen
        while True:
            await asyncio.sleep(POLL_EVERY)
            try:
                before = self._seen
                await self.changed()
                # the woken task reads for itself
                found = self._seen
                self._seen = before
            except EverholdError:
                continue
            if found != seen:
                seen = found
                self._call_wake()

    async def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)
            self._polling = None

    def _call_wake(self, news: RemoteChange | None = None) -> None:
        if self._wake is not None:
            self._wake(news or RemoteChange())


def _decode_payload(words: str) -> RemoteChange | None:
    """Decodes the payload of another process; None if its version uses another format."""
    try:
        first, moves, heads, sessions = loads(words)
        return RemoteChange(tuple(map(str, sessions)), bool(moves), bool(heads), str(first))
    except (ValueError, TypeError, BadValue):
        return None
