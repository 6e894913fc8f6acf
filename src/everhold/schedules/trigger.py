"""Triggers: start a session, or send something to one, once for each event.

Rules
  1. An event has a key. Emitting the same key and payload again returns the first event; another
     payload is a conflict. A key is stored for `EVENT_KEY_SECONDS` seconds after the last handover.
  2. The event and its handovers, one for each matching trigger, are stored in one write. Each
     handover then runs once, under a key made of the trigger, its incarnation and the event.
  3. Emitting never fails because of a handover. A failed handover is retried with growing delays.
     After `MAX_TRIES` tries it is `failed`, and stays until it is retried or dropped by hand.
  4. A process without the program changes nothing and leaves the handover to other processes.
"""

from __future__ import annotations

import builtins
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.turn import check_event_name
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
#: Tries before a handover is `failed`; the last is about eight minutes after the first.
MAX_TRIES: Final = 9
#: Seconds after which another process runs a handover that was stored and not finished.
TAKEOVER_SECONDS: Final = 10.0
#: Seconds that the key of an event is stored.
EVENT_KEY_SECONDS: Final = 7 * 86400.0
#: Maximum bytes of an event's key. With the names of event and trigger it becomes a session's key.
MAX_KEY_BYTES: Final = 800
#: States of finished handovers.
_FINISHED: Final = frozenset({"started", "already"})


class StoredTrigger(msgspec.Struct, frozen=True):
    """A trigger as it is stored, under `event/name`."""

    do: Action
    where: dict[str, JSON]
    incarnation: str
    revision: int = 1
    enabled: bool = True


class Trigger(msgspec.Struct, frozen=True):
    """An event's name, and the action that it runs."""

    event: str
    name: str
    do: Action
    where: dict[str, JSON]  # fields of the payload and their required values; of a list, one
    enabled: bool
    revision: int


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it is stored, under `event/key`."""

    payload: JSON
    at: float
    handovers: list[str]  # the names of the matching triggers


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
    """The delivery of one event to one trigger."""

    id: str
    event: str
    key: str
    trigger: str
    # started; already (started by an earlier try); waiting (for a try); failed (not retried)
    state: str
    session_id: str | None
    error: str
    tries: int
    due_at: float | None


class Emitted(msgspec.Struct, frozen=True):
    """The receipt of an event: whether it is new, and its handovers so far."""

    event: str
    key: str
    at: float
    new: bool
    handovers: tuple[Handover, ...]


class Triggers:
    """`runtime.triggers`: stores triggers and events, and runs handovers.

    `dice` draws incarnations and keys.
    """

    def __init__(self, engine: Engine, actions: ActionRunner, dice: Callable[[int], int]) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = engine.clock
        self._actions = actions
        self._dice = dice
        self._left = 0  # due handovers that this process could not run at the last look
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
        """Start a session, or send something to one, for each event of a name. Idempotent.

        `do` is a program (with `args`), a call, or a `Feed`. The fields of the payload become
        arguments of the program, if it takes them. `give` names one argument that receives the
        whole payload instead; if `give` is empty, no argument does. `where` has the fields that the
        payload must have, with their values. With `revision`, a trigger at another revision raises
        `Outdated`.
        """
        fed = isinstance(do, Feed)
        action = make_action(
            do,
            self._store.durability,
            give="" if fed and give == ALL_FIELDS else give,
            args=args,
            title=title,
            labels=labels,
        )
        own = name if name is not None else _default_name(action)
        check_event_name(event)
        check_event_name(own, "name")
        return await self._engine.complete(
            self._add(event, own, action, _check_where(where or {}), revision)
        )

    async def _add(
        self, event: str, name: str, do: Action, wanted: dict[str, JSON], revision: int | None
    ) -> Trigger:
        while True:
            duty = await self._store.duty(TRIGGER, f"{event}/{name}")
            stored = None if duty is None else _trigger(duty)
            found = 0 if stored is None else stored.revision
            if revision is not None and revision != found:
                raise Outdated(f"trigger {name!r} of {event!r}", revision, found)
            if stored is not None and stored.do == do and is_same_json(stored.where, wanted):
                return _build_trigger(event, name, stored)
            if stored is None:
                fresh = StoredTrigger(do, wanted, f"{self._dice(48):012x}")
            else:
                fresh = msgspec.structs.replace(stored, do=do, where=wanted, revision=found + 1)
            try:
                await self._write(event, name, fresh, 0 if duty is None else duty.version)
            except Overtaken:
                continue
            return _build_trigger(event, name, fresh)

    async def enable(self, event: str, name: str) -> Trigger:
        """Enable a trigger: events fire it again."""
        return await self._engine.complete(self._enable(event, name, True))

    async def disable(self, event: str, name: str) -> Trigger:
        """Disable a trigger: events do not fire it until it is enabled."""
        return await self._engine.complete(self._enable(event, name, False))

    async def _enable(self, event: str, name: str, enabled: bool) -> Trigger:
        while True:
            duty = await self._load(event, name)
            stored = _trigger(duty)
            if stored.enabled == enabled:
                return _build_trigger(event, name, stored)
            fresh = msgspec.structs.replace(stored, enabled=enabled, revision=stored.revision + 1)
            try:
                await self._write(event, name, fresh, duty.version)
            except Overtaken:
                continue
            return _build_trigger(event, name, fresh)

    async def remove(self, event: str, name: str) -> None:
        """Remove a trigger. Started sessions and earlier events are not affected.

        A trigger added later under the same name is a new one.
        """
        await self._engine.complete(self._remove(event, name))

    async def _remove(self, event: str, name: str) -> None:
        while True:
            duty = await self._load(event, name)
            try:
                return await self._store.undertake([msgspec.structs.replace(duty, body=None)])
            except Overtaken:
                continue

    async def list(self, event: str | None = None) -> builtins.list[Trigger]:
        """All triggers, or those of one event."""
        found = await self._pages(TRIGGER, "" if event is None else f"{event}/")
        return [
            _build_trigger(duty.id.partition("/")[0], duty.id.partition("/")[2], _trigger(duty))
            for duty in found
        ]

    async def _load(self, event: str, name: str) -> Duty:
        duty = await self._store.duty(TRIGGER, f"{event}/{name}")
        if duty is None:
            raise UnknownTrigger(event, name)
        return duty

    async def _write(self, event: str, name: str, stored: StoredTrigger, version: int) -> None:
        await self._store.undertake(
            [Duty(TRIGGER, f"{event}/{name}", msgspec.to_builtins(stored), None, version)]
        )

    # ---- events

    async def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> Emitted:
        """Emit an event: store it, then hand it over once to each matching trigger.

        The same key and payload return the event that was emitted first; another payload raises
        `EventConflict`.
        """
        check_event_name(event)
        if key is not None and (
            not isinstance(key, str) or not key.strip() or not key.isprintable()
        ):
            raise BadArguments("key", "a key should be printable and not blank")
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
                return await self._load_receipt(
                    event, key, payload, msgspec.convert(known.body, StoredEvent)
                )
            matching = [
                one
                for one in await self._pages(TRIGGER, f"{event}/")
                if _matches(_trigger(one), payload)
            ]
            happened = StoredEvent(payload, now, [_split(one.id, 2)[1] for one in matching])
            planned = [_plan_handover(one, key, now) for one in matching]
            try:
                await self._store.undertake(
                    [
                        Duty(
                            EVENT,
                            f"{event}/{key}",
                            msgspec.to_builtins(happened),
                            now + EVENT_KEY_SECONDS,
                        ),
                        *planned,
                    ]
                )
            except Overtaken:
                continue
            done = [
                await self._try_now(msgspec.structs.replace(one, version=1), payload, now)
                for one in planned
            ]
            return Emitted(event, key, now, True, tuple(done))

    async def _try_now(self, duty: Duty, payload: JSON, now: float) -> Handover:
        """The first try of a handover. The event is stored, so an error of the store is only
        logged.
        """
        try:
            return await self._hand_over(duty, payload, now)
        except StoreError as error:
            log.warning("event %s: %s", duty.id, error)
            return _build_handover(duty)

    async def _load_receipt(
        self, event: str, key: str, payload: JSON, happened: StoredEvent
    ) -> Emitted:
        if not is_same_json(happened.payload, payload):
            raise EventConflict(event, key)
        found = [
            await self._store.duty(HANDOVER, f"{event}/{name}/{key}") for name in happened.handovers
        ]
        return Emitted(
            event,
            key,
            happened.at,
            False,
            tuple(_build_handover(duty) for duty in found if duty is not None),
        )

    # ---- handovers

    async def handovers(
        self, event: str | None = None, *, state: str | None = None
    ) -> builtins.list[Handover]:
        """Handovers, of all events or of one, in one state or in all.

        States are "started", "already" (started by an earlier try), "waiting" and "failed".
        """
        found = await self._pages(HANDOVER, "" if event is None else f"{event}/")
        shown = [_build_handover(duty) for duty in found]
        return [one for one in shown if state in (None, one.state)]

    async def retry(self, id: str) -> Handover:
        """Retry a failed or waiting handover now."""
        return await self._engine.complete(self._retry(id))

    async def _retry(self, id: str) -> Handover:
        now = self._clock.now()
        while True:
            duty = await self._store.duty(HANDOVER, id)
            if duty is None:
                raise UnknownHandover(id)
            stored = _read(duty)
            if stored.state in _FINISHED:
                return _build_handover(duty)
            fresh = msgspec.structs.replace(stored, state="waiting", tries=0)
            try:
                duty = await self._store_result(duty, fresh, now + TAKEOVER_SECONDS)
                return await self._hand_over(duty, await self._payload(duty), now)
            except Overtaken:  # another process has changed it
                continue

    async def drop(self, id: str) -> None:
        """Drop a handover: its action is not run any more."""
        await self._engine.complete(self._drop(id))

    async def _drop(self, id: str) -> None:
        duty = await self._store.duty(HANDOVER, id)
        if duty is None:
            raise UnknownHandover(id)
        await self._store.undertake([msgspec.structs.replace(duty, body=None)])

    async def _look(self, now: float) -> bool:
        """Run due handovers and delete old events; returns whether there may be more."""
        due = await self._store.duties(HANDOVER, due=now, limit=BATCH_SIZE + self._left)
        moved = False
        left = 0
        for duty in due:
            if not self._actions.able(_read(duty).do):
                left += 1
                continue
            try:
                await self._hand_over(duty, await self._payload(duty), now)
            except Overtaken:  # another process runs it
                pass
            moved = True
        self._left = left
        return await self._delete_old_events(now) or moved

    async def _hand_over(self, duty: Duty, payload: JSON, now: float) -> Handover:
        """Try one handover, and store the result."""
        event, name, _ = _split(duty.id, 3)
        stored = _read(duty)
        if not self._actions.able(stored.do):
            return _build_handover(duty)
        labels = {EVENT: event, TRIGGER: name}
        try:
            done = await self._actions.do(stored.do, get_handover_key(duty), payload, labels)
        except Exception as error:
            problem = describe_failure(error)
            tries = stored.tries + 1
            over = tries >= MAX_TRIES
            log.log(
                logging.WARNING if over else logging.INFO,
                "event %s, trigger %s: %s",
                event,
                name,
                problem,
            )
            fresh = msgspec.structs.replace(
                stored, tries=tries, error=problem, state="failed" if over else "waiting", at=now
            )
            return _build_handover(
                await self._store_result(
                    duty, fresh, None if over else now + action_retry_delay(tries)
                )
            )
        state = "started" if done.new else "already"
        fresh = msgspec.structs.replace(
            stored, state=state, session=done.session_id, error="", at=now
        )
        return _build_handover(await self._store_result(duty, fresh, None))

    async def _store_result(self, duty: Duty, stored: StoredHandover, due: float | None) -> Duty:
        body = msgspec.to_builtins(stored)
        await self._store.undertake([Duty(HANDOVER, duty.id, body, due, duty.version)])
        return Duty(HANDOVER, duty.id, body, due, duty.version + 1)

    async def _payload(self, duty: Duty) -> JSON:
        event, _, key = _split(duty.id, 3)
        known = await self._store.duty(EVENT, f"{event}/{key}")
        return None if known is None else msgspec.convert(known.body, StoredEvent).payload

    async def _delete_old_events(self, now: float) -> bool:
        """Delete events whose key has expired and whose handovers are all finished."""
        expired = await self._store.duties(EVENT, due=now, limit=BATCH_SIZE)
        for duty in expired:
            event, key = _split(duty.id, 2)
            happened = msgspec.convert(duty.body, StoredEvent)
            names = [f"{event}/{name}/{key}" for name in happened.handovers]
            found = [
                one for id in names if (one := await self._store.duty(HANDOVER, id)) is not None
            ]
            over = all(_read(one).state in _FINISHED for one in found)
            fresh = [msgspec.structs.replace(one, body=None) for one in (duty, *found)]
            later = [msgspec.structs.replace(duty, due_at=now + EVENT_KEY_SECONDS)]
            try:
                await self._store.undertake(fresh if over else later)
            except Overtaken:
                pass
        return bool(expired)

    async def _pages(self, kind: str, prefix: str) -> builtins.list[Duty]:
        found: builtins.list[Duty] = []
        while page := await self._store.duties(
            kind, prefix=prefix, after=found[-1].id if found else ""
        ):
            found += page
        return found


def get_handover_key(duty: Duty) -> str:
    """The key of a handover's action."""
    event, name, key = _split(duty.id, 3)
    return f"{TRIGGER}:{event}:{name}:{_read(duty).incarnation}:{key}"


def _plan_handover(trigger: Duty, key: str, now: float) -> Duty:
    stored = _trigger(trigger)
    body = msgspec.to_builtins(StoredHandover(stored.do, stored.incarnation, at=now))
    return Duty(HANDOVER, f"{trigger.id}/{key}", body, now + TAKEOVER_SECONDS)


def _matches(stored: StoredTrigger, payload: JSON) -> bool:
    return stored.enabled and all(
        _has_value(payload, path.split("."), wanted) for path, wanted in stored.where.items()
    )


def _has_value(found: Any, path: list[str], wanted: JSON) -> bool:
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


def _build_handover(duty: Duty) -> Handover:
    event, name, key = _split(duty.id, 3)
    stored = _read(duty)
    return Handover(
        duty.id,
        event,
        key,
        name,
        stored.state,
        stored.session,
        stored.error,
        stored.tries,
        duty.due_at,
    )


def _build_trigger(event: str, name: str, stored: StoredTrigger) -> Trigger:
    return Trigger(event, name, stored.do, stored.where, stored.enabled, stored.revision)


def _split(id: str, parts: int) -> list[str]:
    return id.split("/", parts - 1)


def _default_name(action: Action) -> str:
    """The default name of a trigger: its program's or session's."""
    if isinstance(action, Feed):
        return action.session
    return action.program.rpartition(":")[2].replace("/", "_")


def _check_where(given: Mapping[str, JSON]) -> dict[str, JSON]:
    if not isinstance(given, Mapping) or not all(isinstance(path, str) and path for path in given):
        raise BadArguments(
            "where", "give fields with their values, such as {'customer.tier': 'gold'}"
        )
    return dict(to_plain(dict(given), "where"))
