"""The part of `Runtime` that keeps schedules and triggers, and does what they say."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from everhold.core.codec import JSON
from everhold.engine.accept import Signal
from everhold.errors import BadArguments, EverholdError, KeyConflict, KeyDeleted
from everhold.packages.catalog import find_named_program
from everhold.packages.find import find_program
from everhold.schedules.action import (
    ALL_FIELDS,
    Action,
    ActionResult,
    Feed,
    Start,
    build_arguments,
    make_action,
)
from everhold.schedules.recurrence import RecurrenceSpec, parse_recurrence
from everhold.schedules.schedule import CatchUp, Overlap, Schedule, Schedules, ScheduleTerms
from everhold.schedules.trigger import Emitted, Handover, Trigger, Triggers

if TYPE_CHECKING:
    from everhold.runtime import Runtime

T = TypeVar("T")

#: Seconds after which a program that was not found is looked for again.
PROGRAM_RETRY_SECONDS: Final = 5.0


class Timetable:
    """The part of `Runtime` that keeps schedules and triggers."""

    _hands: RuntimeActionRunner
    _schedules: Schedules
    _triggers: Triggers

    def _keep_time(self) -> None:
        """Register with reconciliation, which starts what is due."""
        runtime = cast("Runtime", self)
        hands = self._hands = RuntimeActionRunner(runtime)
        self._schedules = Schedules(runtime.store, hands, runtime._dice)
        self._triggers = Triggers(runtime.store, hands, runtime._dice)
        runtime.engine.reconciler.chores += [self._schedules.look, self._triggers.look]

    # ---- schedules

    async def schedule(
        self,
        name: str,
        when: RecurrenceSpec,
        do: Any,
        *,
        timezone: str = "UTC",
        args: Mapping[str, Any] | None = None,
        give: str = "",
        overlap: Overlap = "allow",
        catch_up: CatchUp = "one",
        title: str = "",
        labels: Mapping[str, str] | None = None,
        revision: int | None = None,
    ) -> Schedule:
        """Start a session, or feed one, whenever a moment comes round; the same again changes
        nothing.

        `when` is a cron expression, a `timedelta` or, once, a `datetime`. `do` is a call, a program
        with `args` (`give` names the argument that is given the moment), or a `Feed`. With
        `overlap` "skip" or "queue" a moment is passed over, or waits, while the session before it
        has not ended; `catch_up` says which moments that nobody was there for are made up: the last
        "one", "all", or "none". With `revision`, the schedule has to be at it.
        """
        wanted = make_action(do, give=give, args=args, title=title, labels=labels)
        if isinstance(wanted, Start) and wanted.give == ALL_FIELDS:
            raise BadArguments("give", "a moment has no fields; name one argument")
        terms = ScheduleTerms(parse_recurrence(when, timezone), wanted, overlap, catch_up)
        return await self._whole(self._schedules.put(name, terms, self._now, revision))

    async def schedules(self, prefix: str = "") -> list[Schedule]:
        """All schedules, or those whose names begin so."""
        return await self._schedules.all(prefix)

    async def moments(self, name: str, count: int = 5) -> list[float]:
        """The next moments of a schedule, in seconds since 1970."""
        return await self._schedules.moments(name, count)

    async def pause_schedule(self, name: str) -> Schedule:
        """Let no moment of a schedule come until it is resumed."""
        return await self._whole(self._schedules.pause(name))

    async def resume_schedule(self, name: str) -> Schedule:
        """Let a schedule go on with the next moment after now."""
        return await self._whole(self._schedules.resume(name, self._now))

    async def unschedule(self, name: str) -> None:
        """Forget a schedule; sessions that it has begun go on."""
        await self._whole(self._schedules.remove(name))

    # ---- triggers

    async def on(
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
        wanted = make_action(
            do,
            give="" if fed and give == ALL_FIELDS else give,
            args=args,
            title=title,
            labels=labels,
        )
        own = name if name is not None else _name(wanted)
        return await self._whole(self._triggers.put(event, own, wanted, where or {}, revision))

    async def triggers(self, event: str | None = None) -> list[Trigger]:
        """What is triggered, by one event or by any."""
        return await self._triggers.all(event)

    async def enable_trigger(self, event: str, name: str, *, enabled: bool = True) -> Trigger:
        """Let an event trigger this (again); with `enabled=False`, not any more."""
        return await self._whole(self._triggers.enable(event, name, enabled))

    async def off(self, event: str, name: str) -> None:
        """Forget a trigger. What it has started goes on, and what was reserved for it is handed
        over.
        """
        await self._whole(self._triggers.remove(event, name))

    async def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> Emitted:
        """Say that something happened: it is kept, then handed over to each trigger that fits,
        once.

        The same key with the same payload is the event that came first; another payload raises
        `EventConflict`.
        """
        return await self._whole(self._triggers.emit(event, payload, key, self._now))

    async def handovers(
        self, event: str | None = None, *, state: str | None = None
    ) -> list[Handover]:
        """What events came to: "started", "already", "waiting" to be tried again, or "failed" for
        good.
        """
        return await self._triggers.handovers(event, state)

    async def hand_over(self, id: str) -> Handover:
        """Try a handover now that failed or waits to be tried again."""
        return await self._whole(self._triggers.again(id, self._now))

    async def drop_handover(self, id: str) -> None:
        """Forget a handover: what it should have started is not started any more."""
        await self._whole(self._triggers.drop(id))

    # ---- within

    @property
    def _now(self) -> float:
        return cast("Runtime", self).clock.now()

    async def _whole(self, verb: Coroutine[Any, Any, T]) -> T:
        """Run a verb to its end, also if its caller is cancelled; reconciliation then sees when to
        look next.
        """
        runtime = cast("Runtime", self)

        async def done() -> T:
            found = await verb
            runtime.engine.sessions.poke()
            return found

        return await runtime.engine.shielded.run(done())


class RuntimeActionRunner:
    """Does deeds with the verbs of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.programs: frozenset[str] = frozenset()  # whose sessions are begun here; none: all
        self._absent: dict[str, float] = {}  # programs that were not found here, and when

    def able(self, deed: Action) -> bool:
        if isinstance(deed, Feed):
            return True
        if self.programs and deed.program not in self.programs:
            return False
        now = self._runtime.clock.now()
        if (
            now - self._absent.get(deed.program, now - PROGRAM_RETRY_SECONDS)
            < PROGRAM_RETRY_SECONDS
        ):
            return False
        try:
            self._program(deed.program)
        except EverholdError:  # there is none, or it cannot be loaded here
            self._absent[deed.program] = now
            return False
        self._absent.pop(deed.program, None)
        return True

    async def do(
        self, deed: Action, key: str, happened: JSON, labels: Mapping[str, str]
    ) -> ActionResult:
        if isinstance(deed, Feed):
            return await self._feed(deed, key, happened)
        found = await self._runtime.store.find(key)
        if found is not None:
            return ActionResult(found, False)
        program = self._program(deed.program)
        call = program(**build_arguments(deed, happened, program.signature))
        told = {**labels, **deed.labels}
        try:
            status = await self._runtime.start(call, key=key, title=deed.title, labels=told, wait=0)
        # another process was quicker, or it has ended and was deleted
        except (KeyConflict, KeyDeleted) as known:
            return ActionResult(known.session_id, False)
        return ActionResult(status.session_id, True)

    async def _feed(self, deed: Feed, key: str, happened: JSON) -> ActionResult:
        runtime = self._runtime
        session_id = await runtime.store.find(deed.session) or deed.session
        value = happened if deed.value is msgspec.UNSET else deed.value
        if deed.signal:
            new = await runtime.engine.send(session_id, Signal(deed.signal, value, key))
        else:
            new = await runtime.engine.shielded.run(
                runtime.engine.acceptance.words(session_id, value, key)
            )
        return ActionResult(session_id, new)

    def _program(self, ref: str) -> Any:
        """The program of this reference, in its newest version."""
        known = self._runtime._programs.get(ref)
        if known is not None:
            return known
        found = self._runtime._settings
        return find_program(ref) if found is None else find_named_program(ref, found)


def _name(wanted: Action) -> str:
    """What a trigger is called by itself: after its program, or its session."""
    return (
        wanted.session
        if isinstance(wanted, Feed)
        else wanted.program.rpartition(":")[2].replace("/", "_")
    )
