"""The verbs of `Timetable` for code that is not async; written from it by tools/blocking.py."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from everhold.core.codec import JSON
from everhold.schedules.action import ALL_FIELDS
from everhold.schedules.recurrence import RecurrenceSpec
from everhold.schedules.schedule import CatchUp, Overlap, Schedule
from everhold.schedules.schedules import Timetable
from everhold.schedules.trigger import Emitted, Handover, Trigger

T = TypeVar("T")


class BlockingTimetable:
    """The part of `BlockingRuntime` that keeps schedules and triggers."""

    _runtime: Timetable

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    # [[[cog
    # from tools.blocking import timetable
    # print(timetable())
    # ]]]
    def schedule(
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
        """
        return self._wait(
            self._runtime.schedule(
                name,
                when,
                do,
                timezone=timezone,
                args=args,
                give=give,
                overlap=overlap,
                catch_up=catch_up,
                title=title,
                labels=labels,
                revision=revision,
            )
        )

    def schedules(self, prefix: str = "") -> list[Schedule]:
        """All schedules, or those whose names begin so."""
        return self._wait(self._runtime.schedules(prefix))

    def moments(self, name: str, count: int = 5) -> list[float]:
        """The next moments of a schedule, in seconds since 1970."""
        return self._wait(self._runtime.moments(name, count))

    def pause_schedule(self, name: str) -> Schedule:
        """Let no moment of a schedule come until it is resumed."""
        return self._wait(self._runtime.pause_schedule(name))

    def resume_schedule(self, name: str) -> Schedule:
        """Let a schedule go on with the next moment after now."""
        return self._wait(self._runtime.resume_schedule(name))

    def unschedule(self, name: str) -> None:
        """Forget a schedule; sessions that it has begun go on."""
        return self._wait(self._runtime.unschedule(name))

    def on(
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
        """
        return self._wait(
            self._runtime.on(
                event,
                do,
                name=name,
                where=where,
                args=args,
                give=give,
                title=title,
                labels=labels,
                revision=revision,
            )
        )

    def triggers(self, event: str | None = None) -> list[Trigger]:
        """What is triggered, by one event or by any."""
        return self._wait(self._runtime.triggers(event))

    def enable_trigger(self, event: str, name: str, *, enabled: bool = True) -> Trigger:
        """Let an event trigger this (again); with `enabled=False`, not any more."""
        return self._wait(self._runtime.enable_trigger(event, name, enabled=enabled))

    def off(self, event: str, name: str) -> None:
        """Forget a trigger. What it has started goes on, and what was reserved for it is handed
        over.
        """
        return self._wait(self._runtime.off(event, name))

    def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> Emitted:
        """Say that something happened: it is kept, then handed over to each trigger that fits,
        once.
        """
        return self._wait(self._runtime.emit(event, payload, key=key))

    def handovers(self, event: str | None = None, *, state: str | None = None) -> list[Handover]:
        """What events came to: "started", "already", "waiting" to be tried again, or "failed"
        for good.
        """
        return self._wait(self._runtime.handovers(event, state=state))

    def hand_over(self, id: str) -> Handover:
        """Try a handover now that failed or waits to be tried again."""
        return self._wait(self._runtime.hand_over(id))

    def drop_handover(self, id: str) -> None:
        """Forget a handover: what it should have started is not started any more."""
        return self._wait(self._runtime.drop_handover(id))

    # [[[end]]]
