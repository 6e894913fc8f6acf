"""Triggers: what a named event starts or feeds, once per event.

Rules
  1. An event has a key. The same key with the same payload is the event that was emitted first;
     another payload is a conflict. A key is remembered for `EVENT_KEY_SECONDS` seconds after
     everything was handed over.
  2. The event and its handovers, one for each trigger that fits, are written down as one. Whatever
     happens then, each handover is done, under a key made of the trigger, its incarnation and the
     event: once.
  3. Emitting never fails because a handover does. One that fails is tried again, later and later,
     `MAX_TRIES` times; then it is `failed`, and stays until somebody has it tried again or drops
     it.
  4. Where a program is missing, nothing is changed: a process that has it does the handover.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.engine.arguments import check_key_length
from everhold.engine.engine import Engine
from everhold.errors import (
    BadArguments,
    EventConflict,
    Outdated,
    Overtaken,
    StoreError,
    UnknownHandover,
    UnknownTrigger,
)
from everhold.ports.store import Duty
from everhold.schedules.action import (
    ALL_FIELDS,
    Action,
    ActionRunner,
    Feed,
    action_retry_delay,
    describe_failure,
    make_action,
)

log = logging.getLogger("everhold")

TRIGGER: Final = "trigger"
EVENT: Final = "event"
HANDOVER: Final = "handover"
BATCH_SIZE: Final = 100
#: Tries before a handover has failed for good; the last comes about eight minutes after the first.
MAX_TRIES: Final = 9
#: Seconds after which another process goes on with what was written down and not handed over.
TAKEOVER_SECONDS: Final = 10.0
#: Seconds that the key of an event is remembered.
EVENT_KEY_SECONDS: Final = 7 * 86400.0
#: Bytes of the key of an event: with the names of event and trigger it is the key of the session
#: that is begun.
MAX_KEY_BYTES: Final = 800
#: What a handover has come to where nobody has to do anything about it any more.
_OVER: Final = frozenset({"started", "already"})


class StoredTrigger(msgspec.Struct, frozen=True):
    """A trigger as it is stored, under `event/name`."""

    do: Action
    where: dict[str, JSON]
    incarnation: str
    revision: int = 1
    enabled: bool = True


class Trigger(msgspec.Struct, frozen=True):
    """What an event starts or feeds."""

    event: str
    name: str
    do: Action
    where: dict[str, JSON]  # fields that the payload must have, and their values; of a list, one
    enabled: bool
    revision: int


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it is stored, under `event/key`."""

    payload: JSON
    at: float
    handovers: list[str]  # the names of the triggers that fitted


class StoredHandover(msgspec.Struct, frozen=True):
    """A handover as it is stored, under `event/name/key`."""

    do: Action
    incarnation: str
    tries: int = 0
    state: str = "waiting"  # started, already, waiting, or failed
    session: str | None = None
    error: str = ""
    at: float = 0.0


class Handover(msgspec.Struct, frozen=True):
    """What one event came to for one trigger."""

    id: str
    event: str
    key: str
    trigger: str
    # started; already (by an earlier try); waiting, to be tried (again); failed, for good
    state: str
    session_id: str | None
    error: str
    tries: int
    due_at: float | None


class Emitted(msgspec.Struct, frozen=True):
    """The receipt of an event: what it was, whether it is new, and what it came to so far."""

    event: str
    key: str
    at: float
    new: bool
    handovers: tuple[Handover, ...]


class Triggers:
    """`runtime.triggers`: keeps triggers and events, and hands over what is due. `dice` draws
    incarnations and keys.
    """

    def __init__(self, engine: Engine, actions: ActionRunner, dice: Callable[[int], int]) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = engine.clock
        self._actions = actions
        self._dice = dice
        self._left = 0  # due handovers that were left to other processes at the last look
        engine.reconciler.add_chore(self._look)

    # ---- triggers

    async def add(
        self,
        event: str,
        do: Any,
        *,
        name: str | None = None,
        where: Mapping[str, JSON] | None = None,
        args: Mapping[str, Any] | None = None,
        give: str = ALL_FIELDS,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        revision: int | None = None,
    ) -> Trigger:
        """Start a session, or feed one, whenever an event is emitted; the same again changes
        nothing.

        `do` is a program (with `args`), a call, or a `Feed`. The fields of the payload are its
        arguments, as far as it takes them, unless `give` names one that is given the payload as a
        whole; empty: it is given nothing. `where` says which fields of the payload must have which
        values. With `revision`, the trigger has to be at it.
        """
        fed = isinstance(do, Feed)
        action = make_action(
            do,
            give="" if fed and give == ALL_FIELDS else give,
            args=args,
            title=title,
            labels=labels,
        )
        own = name if name is not None else _default_name(action)
        _name("event", event)
        _name("name", own)
        return await self._engine.complete(
            self._add(event, own, action, _where(where or {}), revision)
        )

    async def _add(
        self, event: str, name: str, do: Action, wanted: dict[str, JSON], revision: int | None
    ) -> Trigger:
        while True:
            duty = await self._store.duty(TRIGGER, f"{event}/{name}")
            kept = None if duty is None else _trigger(duty)
            found = 0 if kept is None else kept.revision
            if revision is not None and revision != found:
                raise Outdated(f"trigger {name!r} of {event!r}", revision, found)
            if kept is not None and kept.do == do and is_same_json(kept.where, wanted):
                return _shown(event, name, kept)
            if kept is None:
                fresh = StoredTrigger(do, wanted, f"{self._dice(48):012x}")
            else:
                fresh = msgspec.structs.replace(kept, do=do, where=wanted, revision=found + 1)
            try:
                await self._keep(event, name, fresh, 0 if duty is None else duty.version)
            except Overtaken:
                continue
            return _shown(event, name, fresh)

    async def enable(self, event: str, name: str) -> Trigger:
        """Let an event fire this trigger again."""
        return await self._engine.complete(self._enable(event, name, True))

    async def disable(self, event: str, name: str) -> Trigger:
        """Let an event fire this trigger no more, until it is enabled."""
        return await self._engine.complete(self._enable(event, name, False))

    async def _enable(self, event: str, name: str, enabled: bool) -> Trigger:
        while True:
            duty = await self._known(event, name)
            kept = _trigger(duty)
            if kept.enabled == enabled:
                return _shown(event, name, kept)
            fresh = msgspec.structs.replace(kept, enabled=enabled, revision=kept.revision + 1)
            try:
                await self._keep(event, name, fresh, duty.version)
            except Overtaken:
                continue
            return _shown(event, name, fresh)

    async def remove(self, event: str, name: str) -> None:
        """Remove a trigger. Sessions that it has started, and events that were emitted before, are
        not affected. One that is added anew is another.
        """
        await self._engine.complete(self._remove(event, name))

    async def _remove(self, event: str, name: str) -> None:
        while True:
            duty = await self._known(event, name)
            try:
                return await self._store.undertake([msgspec.structs.replace(duty, body=None)])
            except Overtaken:
                continue

    async def list(self, event: str | None = None) -> builtins.list[Trigger]:
        """All triggers, or those of one event."""
        found = await self._pages(TRIGGER, "" if event is None else f"{event}/")
        return [
            _shown(duty.id.partition("/")[0], duty.id.partition("/")[2], _trigger(duty))
            for duty in found
        ]

    async def _known(self, event: str, name: str) -> Duty:
        duty = await self._store.duty(TRIGGER, f"{event}/{name}")
        if duty is None:
            raise UnknownTrigger(event, name)
        return duty

    async def _keep(self, event: str, name: str, kept: StoredTrigger, version: int) -> None:
        await self._store.undertake(
            [Duty(TRIGGER, f"{event}/{name}", msgspec.to_builtins(kept), None, version)]
        )

    # ---- events

    async def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> Emitted:
        """Say that something happened: it is kept, then handed over to each trigger that fits,
        once.

        The same key with the same payload is the event that came first; another payload raises
        `EventConflict`.
        """
        _name("event", event)
        if key is not None and (
            not isinstance(key, str) or not key.strip() or not key.isprintable()
        ):
            raise BadArguments("key", "a key is printable text, and not blank")
        if key is not None:
            check_key_length(key, MAX_KEY_BYTES)
        payload = to_plain(payload, "payload")
        key = f"{self._dice(96):024x}" if key is None else key
        return await self._engine.complete(self._emit(event, payload, key))

    async def _emit(self, event: str, payload: JSON, key: str) -> Emitted:
        now = self._clock.now()
        while True:
            known = await self._store.duty(EVENT, f"{event}/{key}")
            if known is not None:
                return await self._again(
                    event, key, payload, msgspec.convert(known.body, StoredEvent)
                )
            fits = [
                one
                for one in await self._pages(TRIGGER, f"{event}/")
                if _fits(_trigger(one), payload)
            ]
            happened = StoredEvent(payload, now, [_split(one.id, 2)[1] for one in fits])
            reserved = [_reserved(one, key, now) for one in fits]
            try:
                await self._store.undertake(
                    [
                        Duty(
                            EVENT,
                            f"{event}/{key}",
                            msgspec.to_builtins(happened),
                            now + EVENT_KEY_SECONDS,
                        ),
                        *reserved,
                    ]
                )
            except Overtaken:
                continue
            done = [
                await self._at_once(msgspec.structs.replace(one, version=1), payload, now)
                for one in reserved
            ]
            return Emitted(event, key, now, True, tuple(done))

    async def _at_once(self, duty: Duty, payload: JSON, now: float) -> Handover:
        """The first try of a handover: the event is kept, so that trouble with the store is not the
        caller's.
        """
        try:
            return await self._hand_over(duty, payload, now)
        except StoreError as error:
            log.warning("event %s: %s", duty.id, error)
            return _told(duty)

    async def _again(self, event: str, key: str, payload: JSON, happened: StoredEvent) -> Emitted:
        if not is_same_json(happened.payload, payload):
            raise EventConflict(event, key)
        found = [
            await self._store.duty(HANDOVER, f"{event}/{name}/{key}") for name in happened.handovers
        ]
        return Emitted(
            event, key, happened.at, False, tuple(_told(duty) for duty in found if duty is not None)
        )

    # ---- handovers

    async def handovers(
        self, event: str | None = None, *, state: str | None = None
    ) -> builtins.list[Handover]:
        """What events came to: "started", "already", "waiting" to be tried again, or "failed" for
        good.
        """
        found = await self._pages(HANDOVER, "" if event is None else f"{event}/")
        told = [_told(duty) for duty in found]
        return [one for one in told if state in (None, one.state)]

    async def retry(self, id: str) -> Handover:
        """Try a handover now that failed or waits to be tried again."""
        return await self._engine.complete(self._retry(id))

    async def _retry(self, id: str) -> Handover:
        now = self._clock.now()
        while True:
            duty = await self._store.duty(HANDOVER, id)
            if duty is None:
                raise UnknownHandover(id)
            told = _read(duty)
            if told.state in _OVER:
                return _told(duty)
            fresh = msgspec.structs.replace(told, state="waiting", tries=0)
            try:
                duty = await self._note(duty, fresh, now + TAKEOVER_SECONDS)
                return await self._hand_over(duty, await self._payload(duty), now)
            except Overtaken:  # another caller tries it as well
                continue

    async def drop(self, id: str) -> None:
        """Drop a handover: what it should have started is not started any more."""
        await self._engine.complete(self._drop(id))

    async def _drop(self, id: str) -> None:
        duty = await self._store.duty(HANDOVER, id)
        if duty is None:
            raise UnknownHandover(id)
        await self._store.undertake([msgspec.structs.replace(duty, body=None)])

    async def _look(self, now: float) -> bool:
        """Hand over what is due, and forget what is over; returns whether there may be more."""
        due = await self._store.duties(HANDOVER, due=now, limit=BATCH_SIZE + self._left)
        moved = False
        left = 0
        for duty in due:
            if not self._actions.able(_read(duty).do):
                left += 1
                continue
            try:
                await self._hand_over(duty, await self._payload(duty), now)
            except Overtaken:  # another process does it
                pass
            moved = True
        self._left = left
        return await self._forget(now) or moved

    async def _hand_over(self, duty: Duty, payload: JSON, now: float) -> Handover:
        """Try one handover, and note what came of it."""
        event, name, _ = _split(duty.id, 3)
        told_ = _read(duty)
        if not self._actions.able(told_.do):
            return _told(duty)
        labels = {EVENT: event, TRIGGER: name}
        try:
            done = await self._actions.do(told_.do, get_handover_key(duty), payload, labels)
        except Exception as error:
            problem = describe_failure(error)
            tries = told_.tries + 1
            over = tries >= MAX_TRIES
            log.log(
                logging.WARNING if over else logging.INFO,
                "event %s, trigger %s: %s",
                event,
                name,
                problem,
            )
            fresh = msgspec.structs.replace(
                told_, tries=tries, error=problem, state="failed" if over else "waiting", at=now
            )
            return _told(
                await self._note(duty, fresh, None if over else now + action_retry_delay(tries))
            )
        state = "started" if done.new else "already"
        fresh = msgspec.structs.replace(
            told_, state=state, session=done.session_id, error="", at=now
        )
        return _told(await self._note(duty, fresh, None))

    async def _note(self, duty: Duty, told: StoredHandover, due: float | None) -> Duty:
        body = msgspec.to_builtins(told)
        await self._store.undertake([Duty(HANDOVER, duty.id, body, due, duty.version)])
        return Duty(HANDOVER, duty.id, body, due, duty.version + 1)

    async def _payload(self, duty: Duty) -> JSON:
        event, _, key = _split(duty.id, 3)
        known = await self._store.duty(EVENT, f"{event}/{key}")
        return None if known is None else msgspec.convert(known.body, StoredEvent).payload

    async def _forget(self, now: float) -> bool:
        """Forget events that were handed over long ago, or that nothing was triggered by."""
        gone = await self._store.duties(EVENT, due=now, limit=BATCH_SIZE)
        for duty in gone:
            event, key = _split(duty.id, 2)
            happened = msgspec.convert(duty.body, StoredEvent)
            names = [f"{event}/{name}/{key}" for name in happened.handovers]
            found = [
                one for id in names if (one := await self._store.duty(HANDOVER, id)) is not None
            ]
            over = all(_read(one).state in _OVER for one in found)
            fresh = [msgspec.structs.replace(one, body=None) for one in (duty, *found)]
            later = [msgspec.structs.replace(duty, due_at=now + EVENT_KEY_SECONDS)]
            try:
                await self._store.undertake(fresh if over else later)
            except Overtaken:
                pass
        return bool(gone)

    async def _pages(self, kind: str, prefix: str) -> builtins.list[Duty]:
        found: builtins.list[Duty] = []
        while page := await self._store.duties(
            kind, prefix=prefix, after=found[-1].id if found else ""
        ):
            found += page
        return found


def get_handover_key(duty: Duty) -> str:
    """The key under which a handover is done."""
    event, name, key = _split(duty.id, 3)
    return f"{TRIGGER}:{event}:{name}:{_read(duty).incarnation}:{key}"


def _reserved(trigger: Duty, key: str, now: float) -> Duty:
    kept = _trigger(trigger)
    body = msgspec.to_builtins(StoredHandover(kept.do, kept.incarnation, at=now))
    return Duty(HANDOVER, f"{trigger.id}/{key}", body, now + TAKEOVER_SECONDS)


def _fits(kept: StoredTrigger, payload: JSON) -> bool:
    return kept.enabled and all(
        _has(payload, path.split("."), wanted) for path, wanted in kept.where.items()
    )


def _has(found: Any, path: list[str], wanted: JSON) -> bool:
    for part in path:
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return (
        any(is_same_json(found, one) for one in wanted)
        if isinstance(wanted, list)
        else is_same_json(found, wanted)
    )


def _trigger(duty: Duty) -> StoredTrigger:
    return msgspec.convert(duty.body, StoredTrigger)


def _read(duty: Duty) -> StoredHandover:
    return msgspec.convert(duty.body, StoredHandover)


def _told(duty: Duty) -> Handover:
    (event, name, key), told = _split(duty.id, 3), _read(duty)
    return Handover(
        duty.id, event, key, name, told.state, told.session, told.error, told.tries, duty.due_at
    )


def _shown(event: str, name: str, kept: StoredTrigger) -> Trigger:
    return Trigger(event, name, kept.do, kept.where, kept.enabled, kept.revision)


def _split(id: str, parts: int) -> list[str]:
    return id.split("/", parts - 1)


def _default_name(action: Action) -> str:
    """What a trigger is called by default: after its program, or its session."""
    if isinstance(action, Feed):
        return action.session
    return action.program.rpartition(":")[2].replace("/", "_")


def _name(what: str, given: str) -> None:
    """Names are parts of ids, with a stroke between them."""
    fine = (
        isinstance(given, str)
        and given.strip()
        and given.isprintable()
        and "/" not in given
        and len(given) <= 200
    )
    if not fine:
        raise BadArguments(
            what, f"a name has 1 to 200 printable characters and no '/', got {given!r}"
        )


def _where(given: Mapping[str, JSON]) -> dict[str, JSON]:
    if not isinstance(given, Mapping) or not all(isinstance(path, str) and path for path in given):
        raise BadArguments(
            "where", "say which field must have which value: {'customer.tier': 'gold'}"
        )
    return dict(to_plain(dict(given), "where"))
