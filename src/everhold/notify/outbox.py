"""The outbox: people are told that they are asked, once for each asking, and never in a session's
way.

Rules
  1. A question's row in the inbox lands in the commit that asks it. One that a teller has no entry
     for is to be told: nothing can be forgotten between the two.
  2. There is one entry for each asking and teller. Whoever writes it first has written it; whoever
     claims it sends.
  3. It is told at least once. Who dies between sending and saying so leaves a claim that another
     takes after a while, and sends again under the same id, so that who receives it can drop the
     double.
  4. What fails is tried again, later and later, until it is too old; then it is given up, and stays
     to be seen.
  5. A question that is not open any more is not told any more.
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
from everhold.core.session import Birth, SessionId
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

log = logging.getLogger("everhold")

#: The kind of the duty that says that a teller was ever here; its entries have the kind `tell:` and
#: its name.
NOTIFIER_KIND: Final = "teller"
#: Seconds between two tries: the first pause, which doubles, and the longest.
FIRST_DELAY: Final = 0.05
MAX_DELAY: Final = 300.0
#: Seconds after a try should have ended at which it counts as abandoned.
ABANDONED_SECONDS: Final = 30.0
#: Seconds after which an entry that is done with is looked at again: it goes when its question is
#: not open any more.
RECHECK_SECONDS: Final = 86400.0
#: How many one teller sends at a time.
MAX_CONCURRENT: Final = 4
#: How many askings are noted at once.
PAGE_SIZE: Final = 100


class OutboxState(StrEnum):
    """How far the telling is."""

    WAITING = "waiting"
    SENDING = "sending"
    TOLD = "told"
    GIVEN_UP = "given_up"
    DROPPED = "dropped"


#: Those that are done with.
DONE_STATES: Final = frozenset({OutboxState.TOLD, OutboxState.GIVEN_UP, OutboxState.DROPPED})


class NotificationFailed(Exception):
    """A try failed. `final`: there is no use in another; `after`: not before so many seconds."""

    def __init__(self, words: str, *, final: bool = False, after: float = 0.0) -> None:
        super().__init__(words)
        self.final = final
        self.after = after


@runtime_checkable
class Notifier(Protocol):
    """A way to tell people."""

    name: str
    kinds: tuple[Kind, ...]  # of the questions it tells of; none: all that are for people
    to: tuple[str, ...]  # whose questions it tells of; none: everybody's
    timeout: float  # seconds for one try
    max_age: float  # seconds after which there is no use in telling

    async def tell(self, id: str, message: bytes, now: float) -> None:
        """Tell once; `message` is JSON. Raises `NotificationFailed`."""
        ...


class OutboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One asking, and how far one teller is with it."""

    session_id: SessionId
    query_id: str
    kind: Kind
    to: str | None
    asked_at: float
    teller: str
    state: OutboxState = OutboxState.WAITING
    tries: int = 0
    since: float  # when it was noted, or last put back by a person
    error: str = ""  # of the last try
    due_at: float | None = None  # when it is tried next

    @property
    def q(self) -> int:
        return int(self.query_id.removeprefix("q-"))

    @property
    def id(self) -> str:
        """The same for every try: whoever receives it can drop doubles by it."""
        return make_asking_id(self.session_id, self.q, self.asked_at)


def decode_entry(duty: Duty) -> OutboxEntry:
    return msgspec.structs.replace(msgspec.convert(duty.body, OutboxEntry), due_at=duty.due_at)


def encode_entry(entry: OutboxEntry, due_at: float | None, version: int = 0) -> Duty:
    body = msgspec.to_builtins(msgspec.structs.replace(entry, due_at=None))
    return Duty(_kind(entry.teller), entry.id, body, due_at, version)


def _kind(teller: str) -> str:
    return f"tell:{teller}"


def notify_retry_delay(tries: int) -> float:
    """Seconds until the next try."""
    return float(min(FIRST_DELAY * 2 ** min(tries - 1, 30), MAX_DELAY))


def build_notification(birth: Birth, query: Query, asked_at: float) -> dict[str, JSON]:
    """What is told: the question, whose it is, and how it is answered."""
    told: dict[str, JSON] = {
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
    verb = (
        f"signal {birth.id} {query.name}"
        if query.kind in SENT_BY_NAME
        else f"answer {birth.id} --query {query.id}"
    )
    return told | {"answer": f"everhold {verb}"}


class Outbox:
    """Notes what is to be told, and tells it; one for each runtime that has tellers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        tellers: Sequence[Notifier],
        *,
        in_full: Callable[[str, Query], Awaitable[Query]],
        poke: Callable[[], object],
    ) -> None:
        self._store = store
        self._maintenance = require_maintenance(store, "notifying people")
        self._clock = clock
        self._tellers = tellers
        self._in_full = in_full
        self._poke = poke
        self._sending: dict[str, set[asyncio.Task[None]]] = {
            teller.name: set() for teller in tellers
        }
        self._registered = False

    async def see_to(self, now: float) -> bool:
        """A chore of reconciliation: note what is new, and begin to send what is due; it does not
        wait for delivery.
        """
        if not self._registered:
            await self._register()
        more = False
        for teller in self._tellers:
            more = await self._note(teller, now) or more
            await self._begin(teller, now)
        return more

    async def close(self, grace: float) -> None:
        """Send what is due, for at most `grace` seconds; the rest is sent by whoever opens next."""
        try:
            async with asyncio.timeout(grace):
                await self.see_to(self._clock.now())
                while tasks := self._tasks():
                    await asyncio.wait(tasks)
                    await self.see_to(self._clock.now())
        except (TimeoutError, EverholdError) as error:
            log.debug("the outbox is left as it is: %s", error)
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def left(self) -> int:
        """How many of its entries could be tried now."""
        now = self._clock.now()
        found = 0
        for teller in self._tellers:
            due = await self._store.duties(_kind(teller.name), due=now, limit=1000)
            found += sum(decode_entry(duty).state not in DONE_STATES for duty in due)
        return found

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {task for each in self._sending.values() for task in each}

    async def _register(self) -> None:
        """Say which tellers there are, so that whoever looks at the outbox finds their entries."""
        for teller in self._tellers:
            if await self._store.duty(NOTIFIER_KIND, teller.name) is None:
                await self._write(Duty(NOTIFIER_KIND, teller.name, {}))
        self._registered = True

    async def _note(self, teller: Notifier, now: float) -> bool:
        """Write an entry for each asking that has none; returns whether there may be more."""
        kind = _kind(teller.name)
        wanted = QuestionFilter(kinds=teller.kinds, to=teller.to, without=kind, limit=PAGE_SIZE)
        found = await self._maintenance.asking(wanted)
        for birth, query, at in found:
            await asyncio.sleep(0)  # whoever else lives on this loop comes in between
            entry = OutboxEntry(
                session_id=birth.id,
                query_id=query.id,
                kind=query.kind,
                to=query.to,
                asked_at=at,
                teller=teller.name,
                since=now,
            )
            await self._write(encode_entry(entry, now))
        return len(found) == PAGE_SIZE

    async def _begin(self, teller: Notifier, now: float) -> None:
        """Claim what is due, as much as may be sent at a time."""
        tasks = self._sending[teller.name]
        while (free := MAX_CONCURRENT - len(tasks)) > 0:
            due = await self._store.duties(_kind(teller.name), due=now, limit=free)
            for duty in due:
                entry = decode_entry(duty)
                if entry.state in DONE_STATES:
                    await self._look_again(duty, entry, now)
                    continue
                claimed = msgspec.structs.replace(
                    entry, state=OutboxState.SENDING, tries=entry.tries + 1
                )
                mine = encode_entry(claimed, now + teller.timeout + ABANDONED_SECONDS, duty.version)
                if await self._write(mine):
                    task = asyncio.create_task(self._send(teller, claimed, mine.version + 1))
                    tasks.add(task)
                    task.add_done_callback(self._sent(tasks))
            if not due:
                return

    def _sent(self, tasks: set[asyncio.Task[None]]) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.warning("the outbox stumbled: %s", task.exception())
            self._poke()

        return done

    async def _send(self, teller: Notifier, entry: OutboxEntry, version: int) -> None:
        """One try, and what became of it."""
        found = await self._open(entry)
        if found is None:
            await self._write(Duty(_kind(entry.teller), entry.id, None, None, version))
            return
        birth, query = found
        text = msgspec.json.encode(
            build_notification(birth, await self._in_full(birth.id, query), entry.asked_at)
        )
        try:
            await _in_time(teller, entry.id, text, self._clock.now())
        except NotificationFailed as failure:
            await self._failed(teller, entry, failure, version)
        # this process goes; the next one need not wait for the claim to run out
        except asyncio.CancelledError:
            back = msgspec.structs.replace(
                entry, state=OutboxState.WAITING, error="the process that sent it was stopped"
            )
            await self._write(encode_entry(back, self._clock.now(), version))
            raise
        else:
            told = msgspec.structs.replace(entry, state=OutboxState.TOLD, error="")
            await self._write(encode_entry(told, self._clock.now() + RECHECK_SECONDS, version))

    async def _failed(
        self, teller: Notifier, entry: OutboxEntry, failure: NotificationFailed, version: int
    ) -> None:
        now = self._clock.now()
        later = now + max(notify_retry_delay(entry.tries), min(failure.after, MAX_DELAY))
        state = OutboxState.WAITING
        if failure.final or later > entry.since + teller.max_age:
            state = OutboxState.GIVEN_UP
            later = now + RECHECK_SECONDS
            log.warning("%s gave up telling of %s: %s", entry.teller, entry.id, failure)
        await self._write(
            encode_entry(
                msgspec.structs.replace(entry, state=state, error=str(failure)), later, version
            )
        )

    async def _look_again(self, duty: Duty, entry: OutboxEntry, now: float) -> None:
        """An entry that is done with goes with its question."""
        if await self._open(entry) is None:
            await self._write(msgspec.structs.replace(duty, body=None))
        else:
            await self._write(msgspec.structs.replace(duty, due_at=now + RECHECK_SECONDS))

    async def _open(self, entry: OutboxEntry) -> tuple[Birth, Query] | None:
        return await find_open_question(self._maintenance, entry)

    async def _write(self, duty: Duty) -> bool:
        """Whether nobody else was quicker."""
        try:
            await self._store.undertake([duty])
        except Overtaken:
            return False
        return True


async def _in_time(teller: Notifier, id: str, text: bytes, now: float) -> None:
    try:
        async with asyncio.timeout(teller.timeout):
            await teller.tell(id, text, now)
    except TimeoutError:
        raise NotificationFailed(f"no answer in {teller.timeout:g} s") from None
    except (NotificationFailed, asyncio.CancelledError):
        raise
    # a teller of somebody's own; its words may hold what is nobody's business
    except Exception as error:
        raise NotificationFailed(f"it failed with {type(error).__name__}") from None


async def find_open_question(
    maintenance: Maintenance, entry: OutboxEntry
) -> tuple[Birth, Query] | None:
    """The question of an entry, if nobody has answered or withdrawn it."""
    wanted = QuestionFilter(session=entry.session_id, kinds=(entry.kind,), limit=10_000)
    for birth, query, at in await maintenance.asking(wanted):
        if make_asking_id(birth.id, query.q, at) == entry.id:
            return birth, query
    return None


# ---- looking at it


async def list_entries(
    store: Store, *, session_id: str = "", teller: str | None = None
) -> list[tuple[OutboxEntry, Duty]]:
    """All entries, of every teller that ever was here, or of one; in the order asked."""
    found: list[tuple[OutboxEntry, Duty]] = []
    for name in [teller] if teller is not None else await list_notifiers(store):
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
    """Have entries tried again, as if they were new; not those that are being sent now."""
    fresh: dict[str, Any] = {"state": OutboxState.WAITING, "tries": 0, "since": now, "error": ""}
    return await _moved(store, chosen, fresh, now, except_for={OutboxState.SENDING})


async def drop_entries(
    store: Store, chosen: Sequence[tuple[OutboxEntry, Duty]], now: float
) -> list[OutboxEntry]:
    """Have entries not tried any more; not those that were told."""
    gone: dict[str, Any] = {"state": OutboxState.DROPPED}
    return await _moved(
        store,
        chosen,
        gone,
        now + RECHECK_SECONDS,
        except_for={OutboxState.TOLD, OutboxState.DROPPED},
    )


async def _moved(
    store: Store,
    chosen: Sequence[tuple[OutboxEntry, Duty]],
    change: dict[str, Any],
    due: float,
    except_for: set[OutboxState],
) -> list[OutboxEntry]:
    moved = []
    for entry, duty in chosen:
        if entry.state in except_for:
            continue
        fresh = msgspec.structs.replace(entry, **change)
        try:
            await store.undertake([encode_entry(fresh, due, duty.version)])
        except Overtaken:
            continue
        moved.append(msgspec.structs.replace(fresh, due_at=due))
    return moved


async def forget_closed_entries(store: Store) -> int:
    """Remove entries whose question is not open any more; returns how many."""
    maintenance = require_maintenance(store, "gc")
    gone = 0
    for entry, duty in await list_entries(store):
        await asyncio.sleep(0)
        if (
            entry.state is not OutboxState.SENDING
            and await find_open_question(maintenance, entry) is None
        ):
            try:
                await store.undertake([msgspec.structs.replace(duty, body=None)])
                gone += 1
            except Overtaken:
                continue
    return gone
