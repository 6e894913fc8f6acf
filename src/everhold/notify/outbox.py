"""The outbox: sends a notification for each open question, and never delays a session.

Rules
  1. The commit that asks a question writes its row in the inbox. A question without an entry of a
     notifier gets one, so that none is lost between the two writes.
  2. Each question and notifier has one entry: the first write creates it, and a claim on it sends.
  3. Delivery is at least once. After a crash between sending and recording it, another process
     takes the claim over and sends again under the same id, which lets the receiver drop doubles.
  4. A failed notification is retried with growing delays until it is too old. Then it is given up,
     and stays listed.
  5. A question that is closed is not sent any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import SENT_BY_NAME, Kind, Query
from everhold.core.session import Birth, SessionId, format_session_name
from everhold.errors import EverholdError, Overtaken
from everhold.ports.program import Clock
from everhold.ports.store import (
    Duty,
    Maintenance,
    QuestionFilter,
    Store,
    make_asking_id,
    require_maintenance,
)
from everhold.shell_command import format_command

log = logging.getLogger("everhold")

#: The kind of the duty that registers a notifier. The kind of its entries is `tell:` and its name.
NOTIFIER_KIND: Final = "teller"
#: Seconds between two tries: the first delay, which doubles, and the longest.
FIRST_DELAY: Final = 0.05
MAX_DELAY: Final = 300.0
#: Seconds after the timeout of a try at which another process may take it over.
ABANDONED_SECONDS: Final = 30.0
#: Seconds between two checks of a finished entry. It is deleted when its question is closed.
RECHECK_SECONDS: Final = 86400.0
#: How many notifications one notifier sends at a time.
MAX_CONCURRENT: Final = 4
#: How many questions get an entry at once.
PAGE_SIZE: Final = 100


class OutboxState(StrEnum):
    """The state of a notification."""

    WAITING = "waiting"
    SENDING = "sending"
    TOLD = "told"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"


#: States in which nothing is sent any more.
DONE_STATES: Final = frozenset({OutboxState.TOLD, OutboxState.GIVEN_UP, OutboxState.DROPPED})


class NotificationFailed(Exception):
    """A try failed. With `final` there is no retry; `after` is the least delay in seconds."""

    def __init__(self, reason: str, *, final: bool = False, after: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.after = after


@runtime_checkable
class Notifier(Protocol):
    """A way to notify people."""

    name: str
    kinds: tuple[Kind, ...]  # of the questions it sends; empty: all kinds for people
    to: tuple[str, ...]  # the people whose questions it sends; empty: all
    timeout: float  # seconds for one try
    max_age: float  # seconds after which a question is not sent any more

    async def tell(self, id: str, message: bytes, now: float) -> None:
        """Send one message, which is JSON. Raises `NotificationFailed`."""
        ...


class OutboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One question, and the state of its notification by one notifier."""

    session_id: SessionId
    query_id: str
    kind: Kind
    to: str | None
    asked_at: float
    teller: str
    state: OutboxState = OutboxState.WAITING
    tries: int = 0
    since: float  # when it was created, or last retried by a person
    error: str = ""  # of the last try
    due_at: float | None = None  # when it is tried next

    @property
    def q(self) -> int:
        """The number of the query."""
        return int(self.query_id.removeprefix("q-"))

    @property
    def id(self) -> str:
        """The same for every try, so that the receiver can drop doubles."""
        return make_asking_id(self.session_id, self.q, self.asked_at)


def decode_entry(duty: Duty) -> OutboxEntry:
    return msgspec.structs.replace(msgspec.convert(duty.body, OutboxEntry), due_at=duty.due_at)


def encode_entry(entry: OutboxEntry, due_at: float | None, version: int = 0) -> Duty:
    body = msgspec.to_builtins(msgspec.structs.replace(entry, due_at=None))
    return Duty(_kind(entry.teller), entry.id, body, due_at, version)


def _kind(notifier: str) -> str:
    return f"tell:{notifier}"


def notify_retry_delay(tries: int) -> float:
    """Seconds until the next try: doubling, up to five minutes."""
    return float(min(FIRST_DELAY * 2 ** min(tries - 1, 30), MAX_DELAY))


def build_notification(
    birth: Birth, query: Query, asked_at: float, database: str = ""
) -> dict[str, JSON]:
    """The message: the question, its session, and the command that answers it from any folder."""
    message: dict[str, JSON] = {
        "type": "question",
        "id": make_asking_id(birth.id, query.q, asked_at),
        "session_id": birth.id,
        "key": birth.key,
        "program": birth.program,
        "title": birth.title,
        "labels": birth.labels,
        "query_id": query.id,
        "kind": query.kind.value,
        "prompt": query.prompt,
        "name": query.name,
        "to": query.to,
        "schema": query.schema,
        "asked_at": int(asked_at * 1000),
        "expires_at": None if query.expires_at is None else int(query.expires_at * 1000),
    }
    name = format_session_name(birth.id, birth.key)
    words = (
        ("signal", name, query.name)
        if query.kind in SENT_BY_NAME
        else ("answer", name, "--query", query.id)
    )
    return message | {"answer": format_command(*words, database=database)}


class Outbox:
    """Creates entries for open questions and sends them. A runtime with notifiers has one."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        notifiers: Sequence[Notifier],
        *,
        in_full: Callable[[str, Query], Awaitable[Query]],
        poke: Callable[[], object],
        database: str = "",  # for the commands in messages, without its password
    ) -> None:
        self._store = store
        self._maintenance = require_maintenance(store, "notifying people")
        self._clock = clock
        self._notifiers = notifiers
        self._in_full = in_full
        self._poke = poke
        self._database = database
        self._sending: dict[str, set[asyncio.Task[None]]] = {
            notifier.name: set() for notifier in notifiers
        }
        self._registered = False

    async def see_to(self, now: float) -> bool:
        """A chore of reconciliation: create entries, and start to send what is due.

        It does not wait for delivery.
        """
        if not self._registered:
            # Register the notifiers, so that other processes can list their entries.
            for one in self._notifiers:
                if await self._store.duty(NOTIFIER_KIND, one.name) is None:
                    await self._write(Duty(NOTIFIER_KIND, one.name, {}))
            self._registered = True
        more = False
        for notifier in self._notifiers:
            more = await self._note(notifier, now) or more
            await self._begin(notifier, now)
        return more

    async def close(self, grace: float) -> None:
        """Send what is due for at most `grace` seconds; the next process sends the rest."""
        try:
            async with asyncio.timeout(grace):
                await self.see_to(self._clock.now())
                while tasks := self._tasks():
                    await asyncio.wait(tasks)
                    await self.see_to(self._clock.now())
        except (TimeoutError, EverholdError) as error:
            log.debug("the outbox is closed with notifications left: %s", error)
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def left(self) -> int:
        """How many entries are due and not finished."""
        now = self._clock.now()
        found = 0
        for notifier in self._notifiers:
            due = await self._store.duties(_kind(notifier.name), due=now, limit=1000)
            found += sum(decode_entry(duty).state not in DONE_STATES for duty in due)
        return found

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {task for tasks in self._sending.values() for task in tasks}

    async def _note(self, notifier: Notifier, now: float) -> bool:
        """Create entries for new questions; returns whether there may be more."""
        kind = _kind(notifier.name)
        wanted = QuestionFilter(kinds=notifier.kinds, to=notifier.to, without=kind, limit=PAGE_SIZE)
        found = await self._maintenance.asking(wanted)
        for birth, query, at in found:
            await asyncio.sleep(0)  # let other tasks run between two writes
            entry = OutboxEntry(
                session_id=birth.id,
                query_id=query.id,
                kind=query.kind,
                to=query.to,
                asked_at=at,
                teller=notifier.name,
                since=now,
            )
            await self._write(encode_entry(entry, now))
        return len(found) == PAGE_SIZE

    async def _begin(self, notifier: Notifier, now: float) -> None:
        """Claim and send what is due, at most `MAX_CONCURRENT` at a time."""
        tasks = self._sending[notifier.name]
        while (free := MAX_CONCURRENT - len(tasks)) > 0:
            due = await self._store.duties(_kind(notifier.name), due=now, limit=free)
            for duty in due:
                entry = decode_entry(duty)
                if entry.state in DONE_STATES:
                    # Delete a finished entry if its question is closed.
                    if await self._open(entry) is None:
                        await self._write(msgspec.structs.replace(duty, body=None))
                    else:
                        await self._write(
                            msgspec.structs.replace(duty, due_at=now + RECHECK_SECONDS)
                        )
                    continue
                claimed = msgspec.structs.replace(
                    entry, state=OutboxState.SENDING, tries=entry.tries + 1
                )
                mine = encode_entry(
                    claimed, now + notifier.timeout + ABANDONED_SECONDS, duty.version
                )
                if await self._write(mine):
                    task = asyncio.create_task(self._send(notifier, claimed, mine.version + 1))
                    tasks.add(task)
                    task.add_done_callback(self._sent(tasks))
            if not due:
                return

    def _sent(self, tasks: set[asyncio.Task[None]]) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.warning("sending a notification failed: %s", task.exception())
            self._poke()

        return done

    async def _send(self, notifier: Notifier, entry: OutboxEntry, version: int) -> None:
        """Try once, and store the result."""
        found = await self._open(entry)
        if found is None:
            await self._write(Duty(_kind(entry.teller), entry.id, None, None, version))
            return
        birth, query = found
        whole = await self._in_full(birth.id, query)
        text = msgspec.json.encode(build_notification(birth, whole, entry.asked_at, self._database))
        try:
            await _send_in_time(notifier, entry.id, text, self._clock.now())
        except NotificationFailed as failure:
            await self._failed(notifier, entry, failure, version)
        # this process stops: give the claim back, so that the next one need not wait for its end
        except asyncio.CancelledError:
            back = msgspec.structs.replace(
                entry, state=OutboxState.WAITING, error="the process stopped while sending it"
            )
            await self._write(encode_entry(back, self._clock.now(), version))
            raise
        else:
            sent = msgspec.structs.replace(entry, state=OutboxState.TOLD, error="")
            await self._write(encode_entry(sent, self._clock.now() + RECHECK_SECONDS, version))

    async def _failed(
        self, notifier: Notifier, entry: OutboxEntry, failure: NotificationFailed, version: int
    ) -> None:
        now = self._clock.now()
        later = now + max(notify_retry_delay(entry.tries), min(failure.after, MAX_DELAY))
        state = OutboxState.WAITING
        if failure.final or later > entry.since + notifier.max_age:
            state = OutboxState.GIVEN_UP
            later = now + RECHECK_SECONDS
            log.warning("%s gave up notification %s: %s", entry.teller, entry.id, failure)
        await self._write(
            encode_entry(
                msgspec.structs.replace(entry, state=state, error=str(failure)), later, version
            )
        )

    async def _open(self, entry: OutboxEntry) -> tuple[Birth, Query] | None:
        return await find_open_question(self._maintenance, entry)

    async def _write(self, duty: Duty) -> bool:
        """Write a duty; returns False if another process has changed it."""
        try:
            await self._store.undertake([duty])
        except Overtaken:
            return False
        return True


async def _send_in_time(notifier: Notifier, id: str, text: bytes, now: float) -> None:
    try:
        async with asyncio.timeout(notifier.timeout):
            await notifier.tell(id, text, now)
    except TimeoutError:
        raise NotificationFailed(f"timeout after {notifier.timeout:g} s") from None
    except (NotificationFailed, asyncio.CancelledError):
        raise
    # a custom notifier; the text of its error may contain secrets
    except Exception as error:
        raise NotificationFailed(f"the notifier raised {type(error).__name__}") from None


async def find_open_question(
    maintenance: Maintenance, entry: OutboxEntry
) -> tuple[Birth, Query] | None:
    """The question of an entry; None if it is closed."""
    wanted = QuestionFilter(session=entry.session_id, kinds=(entry.kind,), limit=10_000)
    for birth, query, at in await maintenance.asking(wanted):
        if make_asking_id(birth.id, query.q, at) == entry.id:
            return birth, query
    return None


# ---- listing and changing entries


async def list_entries(
    store: Store, *, session_id: str = "", notifier: str | None = None
) -> list[tuple[OutboxEntry, Duty]]:
    """All entries, of every registered notifier or of one, in the order of their questions."""
    found: list[tuple[OutboxEntry, Duty]] = []
    for name in [notifier] if notifier is not None else await list_notifiers(store):
        after = ""
        while page := await store.duties(_kind(name), prefix=session_id, after=after, limit=500):
            found += [(decode_entry(duty), duty) for duty in page]
            after = page[-1].id
    found.sort(key=lambda one: (one[0].asked_at, one[0].session_id, one[0].q, one[0].teller))
    return found


async def list_notifiers(store: Store) -> list[str]:
    names: list[str] = []
    while page := await store.duties(NOTIFIER_KIND, after=names[-1] if names else "", limit=500):
        names += [duty.id for duty in page]
    return names


async def retry_entries(
    store: Store, chosen: Sequence[tuple[OutboxEntry, Duty]], now: float
) -> list[OutboxEntry]:
    """Reset entries, so that they are sent again; skips those that are being sent."""
    fresh: dict[str, Any] = {"state": OutboxState.WAITING, "tries": 0, "since": now, "error": ""}
    return await _change_entries(store, chosen, fresh, now, except_for={OutboxState.SENDING})


async def drop_entries(
    store: Store, chosen: Sequence[tuple[OutboxEntry, Duty]], now: float
) -> list[OutboxEntry]:
    """Drop entries; skips those that were sent."""
    dropped: dict[str, Any] = {"state": OutboxState.DROPPED}
    return await _change_entries(
        store,
        chosen,
        dropped,
        now + RECHECK_SECONDS,
        except_for={OutboxState.TOLD, OutboxState.DROPPED},
    )


async def _change_entries(
    store: Store,
    chosen: Sequence[tuple[OutboxEntry, Duty]],
    change: dict[str, Any],
    due: float,
    except_for: set[OutboxState],
) -> list[OutboxEntry]:
    changed = []
    for entry, duty in chosen:
        if entry.state in except_for:
            continue
        fresh = msgspec.structs.replace(entry, **change)
        try:
            await store.undertake([encode_entry(fresh, due, duty.version)])
        except Overtaken:
            continue
        changed.append(msgspec.structs.replace(fresh, due_at=due))
    return changed


async def forget_closed_entries(store: Store) -> int:
    """Delete entries of closed questions; returns how many."""
    maintenance = require_maintenance(store, "gc")
    deleted = 0
    for entry, duty in await list_entries(store):
        await asyncio.sleep(0)
        if (
            entry.state is not OutboxState.SENDING
            and await find_open_question(maintenance, entry) is None
        ):
            try:
                await store.undertake([msgspec.structs.replace(duty, body=None)])
                deleted += 1
            except Overtaken:
                continue
    return deleted
