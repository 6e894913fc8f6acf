"""Deletes old sessions: on request (`gc`), or periodically if the settings ask for it.

Rules
  1. Only ended sessions are deleted. A failed session can be retried, so it is deleted only if the
     caller names that state.
  2. The store keeps steps that a fork shares, hidden, as long as the fork exists.
  3. A child is kept while its parent may still need its outcome: while the parent runs, is paused,
     or can be retried. A parent is kept while a child of it runs or is paused.
  4. A session is kept while it has queued input, and while a schedule or a trigger sends it input.
  5. A report holds what this call did. If the store fails, `SweepFailed` carries the report so far,
     so that an incomplete sweep never looks like a complete one.

Periodic sweeps (`AutoRetention`): one stored duty has the time of the next sweep. The process that
updates the duty runs the sweep. If it dies, the next sweep deletes the rest.

`load_retention` reads the table `[retention]` of the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Final

import msgspec

from everhold.archive.transfer import PAGE_SIZE, ensure_progress, iterate_sessions
from everhold.core.intake import Intake
from everhold.core.session import ENDED, Birth, SessionId, SessionState
from everhold.errors import (
    BadSetting,
    EverholdError,
    Overtaken,
    StillNeeded,
    StoreError,
    SweepFailed,
    UnknownSession,
)
from everhold.notify import outbox
from everhold.packages.settings import Settings, parse_duration
from everhold.ports.program import Clock
from everhold.ports.program_identity import list_filter_programs
from everhold.ports.store import (
    Duty,
    ProgressCallback,
    ReclaimResult,
    SessionFilter,
    SessionSummary,
    Store,
    require_maintenance,
)
from everhold.schedules.action import Feed, read_action
from everhold.schedules.schedule import SCHEDULE_KIND as SCHEDULE
from everhold.schedules.schedule import get_running_key
from everhold.schedules.trigger import HANDOVER, TRIGGER, get_handover_key

#: The states that are deleted by default.
DEFAULT_STATES: Final = (SessionState.COMPLETED, SessionState.CANCELLED)
_LIVING: Final = (SessionState.RUNNING, SessionState.PAUSED)
#: Larger than any number of duties.
NO_LIMIT: Final = 2**62


class SweepResult(StrEnum):
    """The result of a sweep."""

    SWEPT = "swept"  # all matching sessions were deleted
    INCOMPLETE = "incomplete"  # some matching sessions were kept; the report has the reasons
    NOTHING = "nothing"  # no session matched


class SweepReport(msgspec.Struct, frozen=True):
    """The deleted sessions (in a dry run: those that would be), and the kept ones with reasons."""

    deleted: list[SessionId]
    kept: dict[SessionId, str]
    shared_steps: int  # steps of deleted sessions that forks still share
    dry_run: bool
    result: SweepResult = SweepResult.NOTHING
    counts: dict[str, int] = {}  # deleted sessions by state
    # of steps and attachments, at least: shared ones are freed with the last fork
    bytes: int = 0
    reclaimed: ReclaimResult = ReclaimResult()  # data that no session could read
    vacuumed: int = 0  # completed items removed from the intakes of kept sessions
    forgotten: int = 0  # outbox entries of closed questions


class RetentionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to delete: the least age by state in seconds, and how many of the newest to keep."""

    ages: dict[SessionState, float]  # 0.0: any age
    keep_last: int = 0
    per_program: bool = False  # `keep_last` counts per program
    program: str | None = None
    labels: dict[str, str] = {}
    # seconds after which completed items are removed from the intakes of kept sessions
    intake: float | None = None


def parse_end_states(given: Iterable[str]) -> tuple[SessionState, ...]:
    """The named states. Raises `BadSetting` for one in which a session has not ended."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in set(ENDED):
            raise BadSetting(
                "states", f"{name!r} is not an ended state; give {', '.join(sorted(ENDED))}"
            )
    return tuple(SessionState(name) for name in names) or DEFAULT_STATES


async def sweep_sessions(
    store: Store,
    plan: RetentionPlan,
    now: float,
    *,
    dry_run: bool = False,
    progress: ProgressCallback | None = None,
) -> SweepReport:
    """Run a plan. Raises `SweepFailed`, with the report so far, if the store fails."""
    done = _Sweep(store, plan, now, dry_run)
    try:
        await done.run(ensure_progress(progress))
    except StoreError as error:
        raise SweepFailed(str(error), len(done.deleted), done.report()) from error
    return done.report()


class _Sweep:
    """One running sweep."""

    def __init__(self, store: Store, plan: RetentionPlan, now: float, dry_run: bool) -> None:
        self._store = store
        self._maintenance = require_maintenance(store, "gc")
        self._plan = plan
        self._now = now
        self._dry_run = dry_run
        self.deleted: dict[SessionId, int] = {}
        self._kept: dict[SessionId, str] = {}
        self._counts: Counter[str] = Counter()
        self._bytes = self._vacuumed = self._forgotten = 0
        self._reclaimed = ReclaimResult()
        self._fed: set[str] = set()

    def report(self) -> SweepReport:
        result = (
            SweepResult.INCOMPLETE
            if self._kept
            else SweepResult.SWEPT
            if self.deleted
            else SweepResult.NOTHING
        )
        return SweepReport(
            list(self.deleted),
            dict(self._kept),
            sum(self.deleted.values()),
            self._dry_run,
            result,
            dict(self._counts),
            self._bytes,
            self._reclaimed,
            self._vacuumed,
            self._forgotten,
        )

    async def run(self, progress: ProgressCallback) -> None:
        found = await self._chosen()
        self._fed = await list_fed_sessions(self._store) if found else set()
        for done, row in enumerate(reversed(found)):  # parents before their children
            progress(done, len(found))
            await asyncio.sleep(0)  # let other tasks run
            await self._delete_one(row)
        if self._dry_run:
            return
        if self._plan.intake is not None:
            self._vacuumed = await vacuum_all_intakes(self._store, self._plan.intake)
        self._forgotten = await outbox.forget_closed_entries(self._store)
        self._reclaimed = await self._maintenance.reclaim()

    async def _chosen(self) -> list[SessionSummary]:
        """The sessions to delete, newest first."""
        plan = self._plan
        wanted = SessionFilter(
            state=tuple(plan.ages),
            programs=list_filter_programs(plan.program),
            labels=plan.labels,
            older_than=self._now - min(plan.ages.values()) if all(plan.ages.values()) else None,
        )
        rows = [row async for row in iterate_sessions(self._store, wanted)]
        rows.sort(key=lambda row: (row.birth.created_at, row.birth.id), reverse=True)
        seen: Counter[str] = Counter()
        found = []
        for row in rows:
            age = plan.ages[row.head.state]
            if age == 0 or row.head.updated_at < self._now - age:
                group = row.birth.program if plan.per_program else ""
                seen[group] += 1
                if seen[group] > plan.keep_last:
                    found.append(row)
        return found

    async def _delete_one(self, row: SessionSummary) -> None:
        birth = row.birth
        head = row.head
        try:
            reason = await self._find_reason_to_keep(birth)
            size = 0 if reason else await self._maintenance.size(birth.id)
            if not reason:
                shared = 0 if self._dry_run else await self._store.delete(birth.id, head.revision)
        except UnknownSession:  # another process deleted it
            return
        except Overtaken:
            reason = "it has moved since it was listed"
        except StillNeeded as error:
            reason = str(error)
        if reason:
            self._kept[birth.id] = reason
            return
        self.deleted[birth.id] = shared
        self._counts[head.state.value] += 1
        self._bytes += size

    async def _find_reason_to_keep(self, birth: Birth) -> str:
        """Why a session must be kept; empty if it may be deleted."""
        if birth.id in self._fed or (birth.key is not None and birth.key in self._fed):
            return "a schedule or a trigger sends it input"
        if birth.parent is not None and birth.parent not in self.deleted:
            try:
                state = (await self._store.load(birth.parent, since=-1)).head.state
            except UnknownSession:
                state = None
            if state is not None and state not in DEFAULT_STATES:
                return f"its parent {birth.parent} is {state}"
        living = await self._store.list(SessionFilter(parent=birth.id, state=_LIVING, limit=1))
        if living:
            return f"its child {living[0].birth.id} is {living[0].head.state}"
        if await self._store.intake(birth.id, _waits):
            return "it has queued input"
        return ""


async def vacuum_all_intakes(store: Store, age: float) -> int:
    """Remove completed items older than `age` from all intakes. Returns how many."""
    gone = 0
    last = None
    while page := await store.list(SessionFilter(limit=PAGE_SIZE, after=last)):
        came = await store.standing([row.birth.id for row in page])
        gone += await vacuum_intakes(
            store, [session_id for session_id, stands in came.items() if stands.came], age
        )
        last = page[-1].birth.id
    return gone


async def vacuum_intakes(store: Store, sessions: Sequence[str], age: float) -> int:
    """Remove completed items older than `age` from the intakes of these sessions. Returns how many.

    An item of a schedule or an event is kept while its duty is running: its key prevents a second
    delivery. The running duties are listed after the items, so that none of them can start in
    between.
    """
    ended: dict[str, list[str]] = {}
    for session_id in sessions:
        await asyncio.sleep(0)  # let other tasks run
        with suppress(UnknownSession):
            ended[session_id] = await store.intake(
                session_id, lambda intake: intake.ended(intake.now - age), whole=True
            )
    kept = (
        await list_running_keys(store)
        if any(map(_is_fed, chain.from_iterable(ended.values())))
        else set()
    )
    gone = 0
    for session_id, names in ended.items():
        among = {*names} - kept
        if among:
            await asyncio.sleep(0)
            with suppress(UnknownSession):
                gone += await store.intake(
                    session_id, partial(Intake.vacuum, among=among), whole=True
                )
    return gone


async def list_running_keys(store: Store) -> set[str]:
    """The keys of running schedules and events. Their input may be delivered but not recorded
    yet.
    """
    begun, due = (
        await store.duties(SCHEDULE, due=inf, limit=NO_LIMIT),
        await store.duties(HANDOVER, due=inf, limit=NO_LIMIT),
    )
    return {key for duty in begun if (key := get_running_key(duty)) is not None} | {
        *map(get_handover_key, due)
    }


def _is_fed(name: str) -> bool:
    return name.startswith((f"{SCHEDULE}:", f"{TRIGGER}:"))


def _waits(intake: Intake) -> bool:
    return any(item.waits for item in intake.items.values())


async def list_fed_sessions(store: Store) -> set[str]:
    """The sessions, by id or key, that schedules, triggers or pending events send input to."""
    names: set[str] = set()
    for kind in (SCHEDULE, TRIGGER, HANDOVER):
        after = ""
        while page := await store.duties(kind, after=after, limit=500):
            wanted = [duty for duty in page if kind != HANDOVER or duty.due_at is not None]
            names.update(
                deed.session for duty in wanted if isinstance(deed := read_action(duty), Feed)
            )
            after = page[-1].id
    return names


def plan_ages(
    states: Iterable[str], older_than: float | Mapping[str, float] | None
) -> dict[SessionState, float]:
    """The least age of sessions to delete, by state. Raises `BadSetting`."""
    if isinstance(older_than, Mapping):
        if list(states):
            raise BadSetting("states", "older_than already names the states")
        if not older_than:
            raise BadSetting("older_than", "it names no state")
        ages: Mapping[SessionState, Any] = {
            state: older_than[state.value] for state in parse_end_states(older_than)
        }
    else:
        ages = dict.fromkeys(parse_end_states(states), 0.0 if older_than is None else older_than)
    for age in ages.values():
        if isinstance(age, bool) or not isinstance(age, int | float) or not age >= 0:
            raise BadSetting("older_than", f"{age!r} is not a number of seconds; give 0 or more")
    return {state: float(age) for state, age in ages.items()}


log = logging.getLogger("everhold")

SWEEP_KIND: Final = "sweep"
_ID: Final = "retention"


class AutoRetention:
    """Sweeps periodically in one of the processes of a database."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        plan: RetentionPlan,
        every: float,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._plan = plan
        self._every = every
        self._tasks = tasks  # closing waits for these, then cancels them
        self._next = 0.0
        self._busy = False

    async def see_to(self, now: float) -> bool:
        """A chore of reconciliation: start a sweep if it is due."""
        if now < self._next or self._busy:
            return False
        duty = await self._store.duty(SWEEP_KIND, _ID) or Duty(
            SWEEP_KIND, _ID, {"began_at": now - self._every}
        )
        self._next = duty.body["began_at"] + self._every  # another process may have swept since
        if now < self._next:
            return False
        self._next = now + self._every
        try:
            await self._store.undertake(
                [Duty(SWEEP_KIND, _ID, {"began_at": now}, self._next, duty.version)]
            )
        except Overtaken:
            return False
        self._busy = True
        task = asyncio.create_task(self._sweep())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return False

    async def _sweep(self) -> None:
        try:
            swept = await sweep_sessions(self._store, self._plan, self._clock.now())
            if swept.deleted:
                log.info("swept %d sessions, %d bytes", len(swept.deleted), swept.bytes)
        except EverholdError as error:
            log.warning("the sweep failed: %s", error)
        finally:
            self._busy = False


RETENTION_KEYS: Final = (
    "completed",
    "failed",
    "cancelled",
    "keep_last",
    "per_program",
    "intake",
    "every",
)


class RetentionSettings(msgspec.Struct, frozen=True):
    """What to delete, and the interval of periodic sweeps in seconds; None: only on request."""

    plan: RetentionPlan
    every: float | None = None


def load_retention(found: Settings | None) -> RetentionSettings | None:
    """The table `[retention]`; None if there is none. Raises `BadSetting`."""
    if found is None or not found.retention:
        return None
    where = f"retention in {found.source.get('retention', '')}"
    table = found.retention
    for key in table:
        if key not in RETENTION_KEYS:
            raise BadSetting(where, f"there is no {key!r}; there are {', '.join(RETENTION_KEYS)}")
    keep_last = _of(table, "keep_last", int, 0, where)
    ages = {
        state: parse_duration(table[state.value], f"{state} of {where}")
        for state in sorted(ENDED)
        if state in table
    }
    if not ages:
        if "keep_last" not in table:
            raise BadSetting(
                where, "give an age for completed, failed or cancelled sessions, or keep_last"
            )
        ages = dict.fromkeys(DEFAULT_STATES, 0.0)
    if keep_last < 0:
        raise BadSetting(where, f"keep_last cannot be {keep_last}")
    every = parse_duration(table["every"], f"every of {where}") if "every" in table else None
    if every is not None and every < 60:
        raise BadSetting(where, "every must be at least one minute")
    plan = RetentionPlan(
        ages={SessionState(state): age for state, age in ages.items()},
        keep_last=keep_last,
        per_program=_of(table, "per_program", bool, False, where),
        intake=parse_duration(table["intake"], f"intake of {where}") if "intake" in table else None,
    )
    return RetentionSettings(plan, every)


def _of(table: Mapping[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    found = table.get(key, default)
    if type(found) is not kind:
        raise BadSetting(where, f"{key} cannot be {found!r}")
    return found
