"""Schedules: start a session, or send something to one, at each time of a recurrence.

Rules
  1. Each time fires once, however many processes look. Its action has a key made of the schedule's
     name, its incarnation and the time, and the schedule advances by compare-and-set.
  2. A run has three writes: the time is stored as begun, the action runs, the schedule advances.
     After a crash in between, another process repeats the action under the same key, once
     `TAKEOVER_SECONDS` have passed.
  3. A failed action is retried with growing delays, and the schedule stores the error. A process
     without the program or the timezone changes nothing and leaves the run to other processes. No
     schedule waits for another.
"""

from __future__ import annotations

import builtins
import datetime as dates
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from everhold.engine.engine import Engine
from everhold.errors import (
    BadArguments,
    BadSchedule,
    Outdated,
    Overtaken,
    StoreError,
    UnknownSchedule,
    UnknownSession,
)
from everhold.ports.store import Duty
from everhold.schedules.action import (
    ALL_FIELDS,
    Action,
    ActionRunner,
    Start,
    action_retry_delay,
    describe_failure,
    make_action,
)
from everhold.schedules.recurrence import (
    Once,
    Recurrence,
    RecurrenceSpec,
    find_latest_time,
    find_next_time,
    format_recurrence,
    parse_recurrence,
)

log = logging.getLogger("everhold")

SCHEDULE_KIND: Final = "schedule"
BATCH_SIZE: Final = 100
#: Seconds after which another process repeats a run that was begun and not finished.
TAKEOVER_SECONDS: Final = 10.0
#: Seconds that a run may be late and still fire with `catch_up="none"`.
MISSED_GRACE: Final = 60.0
#: Bounds of the seconds between two checks whether the previous session has ended. The pause is a
#: tenth of the time waited so far.
QUEUE_POLL_RANGE: Final = (1.0, 60.0)

Overlap = Literal["allow", "skip", "queue"]
CatchUp = Literal["one", "all", "none"]


class ScheduleTerms(msgspec.Struct, frozen=True):
    """The definition of a schedule, as its author gives it."""

    when: Recurrence
    do: Action
    overlap: Overlap = "allow"  # what to do while the session of the previous run has not ended
    catch_up: CatchUp = "one"  # which of the missed runs are made up for


class StoredSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is stored."""

    terms: ScheduleTerms
    since: float
    incarnation: str
    revision: int = 1
    paused: bool = False
    next: float | None = None  # the next time; None: there is none
    begun: float | None = None  # the time whose action is running
    tries: int = 0
    problem: str = ""
    last: float | None = None
    last_session: str | None = None


class Schedule(msgspec.Struct, frozen=True):
    """A schedule, as verbs return it."""

    name: str
    when: str
    do: Action
    overlap: str
    catch_up: str
    state: str  # active, paused, or done
    next_at: float | None
    last_at: float | None
    last_session: str | None
    problem: str  # why the last try failed
    revision: int  # grows with each change by its author


class Schedules:
    """`runtime.schedules`: stores schedules, and runs those that are due.

    `dice` draws incarnations.
    """

    def __init__(self, engine: Engine, actions: ActionRunner, dice: Callable[[int], int]) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = engine.clock
        self._actions = actions
        self._dice = dice
        self._left = 0  # due schedules that this process could not run at the last look
        self._odd: set[str] = set()  # unreadable schedules whose warning was logged
        engine.reconciler.add_chore(self._look)

    # ---- definitions

    async def add(
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
        """Start a session, or send something to one, at each time of a schedule. Idempotent.

        `when` is a cron expression, a `timedelta` or, once, a `datetime`. `do` is a call, a program
        with `args` (`give` names the argument that receives the time), or a `Feed`. With `overlap`
        "skip" or "queue", a run is skipped or waits while the session of the previous run has not
        ended. `catch_up` says which missed runs are made up for: the last "one", "all", or "none".
        With `revision`, a schedule at another revision raises `Outdated`.
        """
        wanted = make_action(
            do, self._store.durability, give=give, args=args, title=title, labels=labels
        )
        if isinstance(wanted, Start) and wanted.give == ALL_FIELDS:
            raise BadArguments("give", "a time has no fields; name one argument")
        terms = ScheduleTerms(parse_recurrence(when, timezone), wanted, overlap, catch_up)
        _check(name, terms)
        return await self._engine.complete(self._add(name, terms, revision))

    async def _add(self, name: str, terms: ScheduleTerms, revision: int | None) -> Schedule:
        now = self._clock.now()
        while True:
            duty = await self._store.duty(SCHEDULE_KIND, name)
            stored = None if duty is None else _read(duty)
            if revision is not None and revision != (0 if stored is None else stored.revision):
                raise Outdated(
                    f"schedule {name!r}", revision, 0 if stored is None else stored.revision
                )
            if stored is not None and stored.terms == terms:
                return build_schedule(name, stored)
            fresh = self._changed(stored, terms, now)
            try:
                await self._write(duty or Duty(SCHEDULE_KIND, name, None), fresh)
            except Overtaken:
                continue
            return build_schedule(name, fresh)

    def _changed(
        self, stored: StoredSchedule | None, terms: ScheduleTerms, now: float
    ) -> StoredSchedule:
        if stored is None:
            first = (
                terms.when.at
                if isinstance(terms.when, Once)
                else find_next_time(terms.when, now, now)
            )
            return StoredSchedule(terms, now, f"{self._dice(48):012x}", next=first)
        changed = msgspec.structs.replace(
            stored, terms=terms, revision=stored.revision + 1, problem="", tries=0
        )
        if stored.terms.when == terms.when:
            return changed
        first = (
            terms.when.at if isinstance(terms.when, Once) else find_next_time(terms.when, now, now)
        )
        return msgspec.structs.replace(changed, since=now, next=first)

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed."""
        return await self._engine.complete(
            self._edit(name, lambda stored: msgspec.structs.replace(stored, paused=True))
        )

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule with its next time after now. Runs during the pause are not missed
        runs.
        """
        now = self._clock.now()

        def resumed(stored: StoredSchedule) -> StoredSchedule:
            if not stored.paused:
                return stored
            following = stored.next
            if (
                following is not None
                and not isinstance(stored.terms.when, Once)
                and following <= now
            ):
                following = find_next_time(stored.terms.when, now, stored.since)
            return msgspec.structs.replace(stored, paused=False, next=following)

        return await self._engine.complete(self._edit(name, resumed))

    async def _edit(
        self, name: str, change: Callable[[StoredSchedule], StoredSchedule]
    ) -> Schedule:
        while True:
            duty = await self._store.duty(SCHEDULE_KIND, name)
            if duty is None:
                raise UnknownSchedule(name)
            stored = change(_read(duty))
            if stored != _read(duty):
                stored = msgspec.structs.replace(stored, revision=stored.revision + 1)
                try:
                    await self._write(duty, stored)
                except Overtaken:
                    continue
            return build_schedule(name, stored)

    async def remove(self, name: str) -> None:
        """Remove a schedule; sessions that it has started are not affected."""
        await self._engine.complete(self._remove(name))

    async def _remove(self, name: str) -> None:
        while True:
            duty = await self._store.duty(SCHEDULE_KIND, name)
            if duty is None:
                raise UnknownSchedule(name)
            try:
                return await self._store.undertake([msgspec.structs.replace(duty, body=None)])
            except Overtaken:
                continue

    # ---- listing

    async def list(self, prefix: str = "") -> builtins.list[Schedule]:
        """All schedules, or those whose names begin with `prefix`."""
        found: builtins.list[Duty] = []
        while page := await self._store.duties(
            SCHEDULE_KIND, prefix=prefix, after=found[-1].id if found else ""
        ):
            found += page
        return [build_schedule(duty.id, _read(duty)) for duty in found]

    async def next_runs(self, name: str, count: int = 5) -> builtins.list[float]:
        """The next times of a schedule, in seconds since 1970, as if it were not paused."""
        duty = await self._store.duty(SCHEDULE_KIND, name)
        if duty is None:
            raise UnknownSchedule(name)
        stored = _read(duty)
        found: builtins.list[float] = []
        following = stored.next
        while following is not None and len(found) < count:
            found.append(following)
            following = find_next_time(stored.terms.when, following, stored.since)
        return found

    # ---- running

    async def _look(self, now: float) -> bool:
        """Run what is due; returns whether there may be more."""
        due = await self._store.duties(SCHEDULE_KIND, due=now, limit=BATCH_SIZE + self._left)
        moved = False
        left = 0
        for duty in due:
            try:
                done = await self._run_due(duty, now)
            except Overtaken:  # another process runs it
                done = True
            except StoreError:
                raise
            except Exception as error:
                # Log once that this process cannot read a schedule; another version may.
                if duty.id not in self._odd:
                    log.warning("schedule %s is left to other processes: %s", duty.id, error)
                self._odd.add(duty.id)
                done = False
            moved = moved or done
            left = left + (not done)
        self._left = left
        return moved

    async def _run_due(self, duty: Duty, now: float) -> bool:
        stored = _read(duty)
        if not self._actions.able(stored.terms.do):
            return False
        if stored.begun is None:
            stored, due = await self._decide(stored, now)
            duty = await self._write(duty, stored, due)
            if stored.begun is None:
                return True
        assert stored.begun is not None
        key = _key(duty, stored)
        happened = dates.datetime.fromtimestamp(stored.begun, dates.UTC).isoformat()
        try:
            done = await self._actions.do(stored.terms.do, key, happened, {SCHEDULE_KIND: duty.id})
        except Exception as error:
            problem = describe_failure(error)
            tries = stored.tries + 1
            log.log(
                logging.WARNING if tries == 1 else logging.INFO, "schedule %s: %s", duty.id, problem
            )
            await self._write(
                duty,
                msgspec.structs.replace(stored, problem=problem, tries=tries),
                now + action_retry_delay(tries),
            )
            return True
        await self._write(duty, _advance(stored, stored.begun, done.session_id))
        return True

    async def _decide(
        self, stored: StoredSchedule, now: float
    ) -> tuple[StoredSchedule, float | None]:
        """Begin, skip or delay the next run; returns the schedule and when to look at it again."""
        when = stored.terms.when
        moment = stored.next
        assert moment is not None
        if stored.terms.catch_up == "one":
            moment = find_latest_time(when, moment, now, stored.since)
        elif stored.terms.catch_up == "none" and moment < now - MISSED_GRACE:
            following = find_next_time(when, now - MISSED_GRACE, stored.since)
            return _skip_to(stored, following)
        if stored.terms.overlap != "allow" and await self._is_running(stored.last_session):
            if stored.terms.overlap == "queue":
                waited = (now - (stored.next or now)) / 10
                return stored, now + min(max(waited, QUEUE_POLL_RANGE[0]), QUEUE_POLL_RANGE[1])
            return _skip_to(stored, find_next_time(when, moment, stored.since))
        return msgspec.structs.replace(stored, begun=moment, tries=0), now + TAKEOVER_SECONDS

    async def _is_running(self, session_id: str | None) -> bool:
        if session_id is None:
            return False
        try:
            return not (await self._store.load(session_id, since=-1)).head.ended
        except UnknownSession:
            return False

    async def _write(self, duty: Duty, stored: StoredSchedule, due: float | None = None) -> Duty:
        """Store a schedule. It is due at its next time, unless `due` is given."""
        at = None if stored.paused and stored.begun is None else stored.next if due is None else due
        if due is None and stored.begun is not None:
            at = duty.due_at  # its author changed it while an action runs
        body = msgspec.to_builtins(stored)
        await self._store.undertake([Duty(SCHEDULE_KIND, duty.id, body, at, duty.version)])
        return Duty(SCHEDULE_KIND, duty.id, body, at, duty.version + 1)


def get_running_key(duty: Duty) -> str | None:
    """The key of the action that runs now. It may be done, and its end not stored yet."""
    stored = _read(duty)
    return None if stored.begun is None else _key(duty, stored)


def _key(duty: Duty, stored: StoredSchedule) -> str:
    return f"{SCHEDULE_KIND}:{duty.id}:{stored.incarnation}:{stored.begun:.3f}"


def build_schedule(name: str, stored: StoredSchedule) -> Schedule:
    terms = stored.terms
    over = stored.next is None and stored.begun is None
    return Schedule(
        name,
        format_recurrence(terms.when),
        terms.do,
        terms.overlap,
        terms.catch_up,
        "done" if over else "paused" if stored.paused else "active",
        None if stored.paused else stored.next,
        stored.last,
        stored.last_session,
        stored.problem,
        stored.revision,
    )


def _advance(stored: StoredSchedule, moment: float, session_id: str) -> StoredSchedule:
    following = stored.next
    if following is None or following <= moment:  # otherwise its author has changed it meanwhile
        following = find_next_time(stored.terms.when, moment, stored.since)
    return msgspec.structs.replace(
        stored,
        begun=None,
        tries=0,
        problem="",
        last=moment,
        last_session=session_id,
        next=following,
    )


def _skip_to(
    stored: StoredSchedule, following: float | None
) -> tuple[StoredSchedule, float | None]:
    return msgspec.structs.replace(stored, next=following), following


def _read(duty: Duty) -> StoredSchedule:
    return msgspec.convert(duty.body, StoredSchedule)


def _check(name: str, terms: ScheduleTerms) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        raise BadArguments("schedule", f"a name has 1 to 200 printable characters, got {name!r}")
    if terms.overlap not in get_args(Overlap):
        raise BadArguments(
            "overlap", f"{terms.overlap!r} is not one of {', '.join(get_args(Overlap))}"
        )
    if terms.catch_up not in get_args(CatchUp):
        raise BadArguments(
            "catch_up", f"{terms.catch_up!r} is not one of {', '.join(get_args(CatchUp))}"
        )
    if (terms.overlap, terms.catch_up) == ("queue", "none"):
        raise BadSchedule(
            format_recurrence(terms.when), "overlap='queue' and catch_up='none' exclude each other"
        )
