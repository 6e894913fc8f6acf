"""Schedules: sessions that begin, or are fed, when a moment comes round.

Rules
  1. Each moment is done once, whatever number of processes look: it is done under a key made of the
     schedule's name, its incarnation and the moment, and the schedule moves on by compare-and-set.
  2. First it is written down which moment is begun, then it is done, then the schedule moves on.
     Who dies between is followed by another process after `TAKEOVER_SECONDS`, which does the same
     moment under the same key.
  3. What cannot be done is tried again, later and later, and the schedule says why. Where the
     program or the timezone is missing, nothing is changed: a process that has it will do it. No
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
#: Seconds after which another process goes on with a moment that was begun and not finished.
TAKEOVER_SECONDS: Final = 10.0
#: Seconds that a moment may be late where missed ones do not count.
MISSED_GRACE: Final = 60.0
#: Seconds between two looks whether the session before has ended: a tenth of the time that was
#: waited, within these.
QUEUE_POLL_RANGE: Final = (1.0, 60.0)

Overlap = Literal["allow", "skip", "queue"]
CatchUp = Literal["one", "all", "none"]


class ScheduleTerms(msgspec.Struct, frozen=True):
    """What the author of a schedule says."""

    when: Recurrence
    do: Action
    overlap: Overlap = "allow"  # what to do while the session of the moment before has not ended
    catch_up: CatchUp = "one"  # which of the moments that nobody was there for are made up


class StoredSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is stored."""

    terms: ScheduleTerms
    since: float
    incarnation: str
    revision: int = 1
    paused: bool = False
    next: float | None = None  # the moment that comes; None: no more
    begun: float | None = None  # the moment that is being done
    tries: int = 0
    problem: str = ""
    last: float | None = None
    last_session: str | None = None


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as people see it."""

    name: str
    when: str
    do: Action
    overlap: str
    catch_up: str
    state: str  # active, paused, or done
    next_at: float | None
    last_at: float | None
    last_session: str | None
    problem: str  # what kept the last try from being done
    revision: int  # grows with every change of what its author says


class Schedules:
    """`runtime.schedules`: keeps schedules, and does what is due. `dice` draws the incarnations."""

    def __init__(self, engine: Engine, actions: ActionRunner, dice: Callable[[int], int]) -> None:
        self._engine = engine
        self._store = engine.store
        self._clock = engine.clock
        self._actions = actions
        self._dice = dice
        self._left = 0  # due ones that were left to other processes at the last look
        self._odd: set[str] = set()  # those that cannot be counted here, which was told
        engine.reconciler.add_chore(self._look)

    # ---- what its author says

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
        """Start a session, or feed one, at each time of a schedule; the same again changes nothing.

        `when` is a cron expression, a `timedelta` or, once, a `datetime`. `do` is a call, a program
        with `args` (`give` names the argument that is given the time), or a `Feed`. With `overlap`
        "skip" or "queue" a run is skipped, or waits, while the session of the run before has not
        ended. `catch_up` says which runs that no process was there for are made up: the last
        "one", "all", or "none". With `revision`, the schedule has to be at it.
        """
        wanted = make_action(do, give=give, args=args, title=title, labels=labels)
        if isinstance(wanted, Start) and wanted.give == ALL_FIELDS:
            raise BadArguments("give", "a moment has no fields; name one argument")
        terms = ScheduleTerms(parse_recurrence(when, timezone), wanted, overlap, catch_up)
        _check(name, terms)
        return await self._engine.complete(self._add(name, terms, revision))

    async def _add(self, name: str, terms: ScheduleTerms, revision: int | None) -> Schedule:
        now = self._clock.now()
        while True:
            duty = await self._store.duty(SCHEDULE_KIND, name)
            kept = None if duty is None else _read(duty)
            if revision is not None and revision != (0 if kept is None else kept.revision):
                raise Outdated(f"schedule {name!r}", revision, 0 if kept is None else kept.revision)
            if kept is not None and kept.terms == terms:
                return build_schedule(name, kept)
            fresh = self._changed(kept, terms, now)
            try:
                await self._write(duty or Duty(SCHEDULE_KIND, name, None), fresh)
            except Overtaken:
                continue
            return build_schedule(name, fresh)

    def _changed(
        self, kept: StoredSchedule | None, terms: ScheduleTerms, now: float
    ) -> StoredSchedule:
        if kept is None:
            first = (
                terms.when.at
                if isinstance(terms.when, Once)
                else find_next_time(terms.when, now, now)
            )
            return StoredSchedule(terms, now, f"{self._dice(48):012x}", next=first)
        changed = msgspec.structs.replace(
            kept, terms=terms, revision=kept.revision + 1, problem="", tries=0
        )
        if kept.terms.when == terms.when:
            return changed
        first = (
            terms.when.at if isinstance(terms.when, Once) else find_next_time(terms.when, now, now)
        )
        return msgspec.structs.replace(changed, since=now, next=first)

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed."""
        return await self._engine.complete(
            self._edit(name, lambda kept: msgspec.structs.replace(kept, paused=True))
        )

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule with its next time after now: those between were cancelled, not
        missed.
        """
        now = self._clock.now()

        def resumed(kept: StoredSchedule) -> StoredSchedule:
            if not kept.paused:
                return kept
            following = kept.next
            if following is not None and not isinstance(kept.terms.when, Once) and following <= now:
                following = find_next_time(kept.terms.when, now, kept.since)
            return msgspec.structs.replace(kept, paused=False, next=following)

        return await self._engine.complete(self._edit(name, resumed))

    async def _edit(
        self, name: str, change: Callable[[StoredSchedule], StoredSchedule]
    ) -> Schedule:
        while True:
            duty = await self._store.duty(SCHEDULE_KIND, name)
            if duty is None:
                raise UnknownSchedule(name)
            kept = change(_read(duty))
            if kept != _read(duty):
                kept = msgspec.structs.replace(kept, revision=kept.revision + 1)
                try:
                    await self._write(duty, kept)
                except Overtaken:
                    continue
            return build_schedule(name, kept)

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

    # ---- looking

    async def list(self, prefix: str = "") -> builtins.list[Schedule]:
        """All schedules, or those whose names begin so."""
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
        kept = _read(duty)
        found: builtins.list[float] = []
        following = kept.next
        while following is not None and len(found) < count:
            found.append(following)
            following = find_next_time(kept.terms.when, following, kept.since)
        return found

    # ---- doing

    async def _look(self, now: float) -> bool:
        """Do what is due; returns whether there may be more."""
        due = await self._store.duties(SCHEDULE_KIND, due=now, limit=BATCH_SIZE + self._left)
        moved = False
        left = 0
        for duty in due:
            try:
                done = await self._one(duty, now)
            except Overtaken:  # another process does it
                done = True
            except StoreError:
                raise
            except Exception as error:
                done = self._leave(duty.id, error)
            moved = moved or done
            left = left + (not done)
        self._left = left
        return moved

    def _leave(self, name: str, error: Exception) -> bool:
        """A schedule that cannot be read or counted here is for others, and this is told once."""
        if name not in self._odd:
            log.warning("schedule %s is left to other processes: %s", name, error)
        self._odd.add(name)
        return False

    async def _one(self, duty: Duty, now: float) -> bool:
        kept = _read(duty)
        if not self._actions.able(kept.terms.do):
            return False
        if kept.begun is None:
            kept, due = await self._decided(kept, now)
            duty = await self._write(duty, kept, due)
            if kept.begun is None:
                return True
        assert kept.begun is not None
        key = _key(duty, kept)
        happened = dates.datetime.fromtimestamp(kept.begun, dates.UTC).isoformat()
        try:
            done = await self._actions.do(kept.terms.do, key, happened, {SCHEDULE_KIND: duty.id})
        except Exception as error:
            problem = describe_failure(error)
            tries = kept.tries + 1
            log.log(
                logging.WARNING if tries == 1 else logging.INFO, "schedule %s: %s", duty.id, problem
            )
            await self._write(
                duty,
                msgspec.structs.replace(kept, problem=problem, tries=tries),
                now + action_retry_delay(tries),
            )
            return True
        await self._write(duty, _moved_on(kept, kept.begun, done.session_id))
        return True

    async def _decided(
        self, kept: StoredSchedule, now: float
    ) -> tuple[StoredSchedule, float | None]:
        """What is to be done now: a moment is begun, or passed over, or has to wait; and when to
        look again.
        """
        when = kept.terms.when
        moment = kept.next
        assert moment is not None
        if kept.terms.catch_up == "one":
            moment = find_latest_time(when, moment, now, kept.since)
        elif kept.terms.catch_up == "none" and moment < now - MISSED_GRACE:
            following = find_next_time(when, now - MISSED_GRACE, kept.since)
            return _waiting(kept, following)
        if kept.terms.overlap != "allow" and await self._is_under_way(kept.last_session):
            if kept.terms.overlap == "queue":
                waited = (now - (kept.next or now)) / 10
                return kept, now + min(max(waited, QUEUE_POLL_RANGE[0]), QUEUE_POLL_RANGE[1])
            return _waiting(kept, find_next_time(when, moment, kept.since))
        return msgspec.structs.replace(kept, begun=moment, tries=0), now + TAKEOVER_SECONDS

    async def _is_under_way(self, session_id: str | None) -> bool:
        if session_id is None:
            return False
        try:
            return not (await self._store.load(session_id, since=-1)).head.ended
        except UnknownSession:
            return False

    async def _write(self, duty: Duty, kept: StoredSchedule, due: float | None = None) -> Duty:
        """Keep a schedule as it is now; it is due at its next moment unless `due` says
        otherwise.
        """
        at = None if kept.paused and kept.begun is None else kept.next if due is None else due
        if due is None and kept.begun is not None:
            at = duty.due_at  # its author changed it while a moment is being done
        body = msgspec.to_builtins(kept)
        await self._store.undertake([Duty(SCHEDULE_KIND, duty.id, body, at, duty.version)])
        return Duty(SCHEDULE_KIND, duty.id, body, at, duty.version + 1)


def get_running_key(duty: Duty) -> str | None:
    """The key of what a schedule does now: it may be done, and not noted yet."""
    kept = _read(duty)
    return None if kept.begun is None else _key(duty, kept)


def _key(duty: Duty, kept: StoredSchedule) -> str:
    return f"{SCHEDULE_KIND}:{duty.id}:{kept.incarnation}:{kept.begun:.3f}"


def build_schedule(name: str, kept: StoredSchedule) -> Schedule:
    terms = kept.terms
    over = kept.next is None and kept.begun is None
    return Schedule(
        name,
        format_recurrence(terms.when),
        terms.do,
        terms.overlap,
        terms.catch_up,
        "done" if over else "paused" if kept.paused else "active",
        None if kept.paused else kept.next,
        kept.last,
        kept.last_session,
        kept.problem,
        kept.revision,
    )


def _moved_on(kept: StoredSchedule, moment: float, session_id: str) -> StoredSchedule:
    following = kept.next
    if following is None or following <= moment:  # else its author has changed it meanwhile
        following = find_next_time(kept.terms.when, moment, kept.since)
    return msgspec.structs.replace(
        kept, begun=None, tries=0, problem="", last=moment, last_session=session_id, next=following
    )


def _waiting(kept: StoredSchedule, following: float | None) -> tuple[StoredSchedule, float | None]:
    return msgspec.structs.replace(kept, next=following), following


def _read(duty: Duty) -> StoredSchedule:
    return msgspec.convert(duty.body, StoredSchedule)


def _check(name: str, terms: ScheduleTerms) -> None:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > 200:
        raise BadArguments("schedule", f"a name has 1 to 200 printable characters, got {name!r}")
    if terms.overlap not in get_args(Overlap):
        raise BadArguments(
            "overlap", f"{terms.overlap!r} is none of {', '.join(get_args(Overlap))}"
        )
    if terms.catch_up not in get_args(CatchUp):
        raise BadArguments(
            "catch_up", f"{terms.catch_up!r} is none of {', '.join(get_args(CatchUp))}"
        )
    if (terms.overlap, terms.catch_up) == ("queue", "none"):
        raise BadSchedule(
            format_recurrence(terms.when), "overlap='queue' keeps what catch_up='none' would let go"
        )
