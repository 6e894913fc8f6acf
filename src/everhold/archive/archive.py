"""Verbs for stored sessions: export, import, check, verify and gc.

`check` starts a process of its own: `everhold.archive.check_process`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from everhold.archive import redact as redaction
from everhold.archive import transfer
from everhold.archive.check import CheckReport, SessionCheck
from everhold.archive.export_format import ExportHeader
from everhold.archive.retention import (
    AutoRetention,
    RetentionPlan,
    SweepReport,
    load_retention,
    plan_ages,
    sweep_sessions,
    vacuum_all_intakes,
    vacuum_intakes,
)
from everhold.archive.transfer import ExportFile, ExportResult, ImportResult
from everhold.core.codec import JSON
from everhold.core.schema import Seconds, describe_misfit
from everhold.core.session import Birth, SessionState
from everhold.engine.arguments import check_seconds_arg
from everhold.engine.engine import Engine
from everhold.engine.session_lookup import SessionHandle, SessionRef, resolve_session_id
from everhold.errors import BadArguments, BadSetting, EverholdError, StoreUnavailable, leaves
from everhold.packages.settings import Settings
from everhold.ports.program_identity import list_filter_programs
from everhold.ports.store import (
    DELETED_BY,
    ProgressCallback,
    ReclaimResult,
    SessionFilter,
    StoreProblem,
    require_maintenance,
)


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions to check. `everhold.archive.check_process` reads one from its standard input."""

    database: str = ""  # the path of an SQLite file
    file: str = ""  # an exported file
    sessions: list[str] | None = None
    state: list[SessionState] = []
    program: list[str] = []  # references of one program, or the name of a function
    labels: dict[str, str] = {}
    programs: list[str] = []  # of the settings
    #: Folders of Lua packages: the project's, and the user's.
    packages: list[list[str]] = msgspec.field(default_factory=lambda: [[], []])
    root: str = ""
    path: list[str] = []  # `sys.path` of this process


class Archive:
    """`runtime.archive`: export and import, checks, and deletion of old sessions."""

    def __init__(self, engine: Engine, settings: Settings | None) -> None:
        self._engine = engine
        self._store = engine.store
        self._settings = settings

    # ---- export and import

    async def export(
        self,
        file: ExportFile,
        sessions: SessionRef | Iterable[SessionRef] | None = None,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        values: bool = False,
        redact: bool | Collection[str] = False,
        progress: ProgressCallback | None = None,
    ) -> ExportResult:
        """Write sessions and their children to a file: a path, or one opened in binary mode.

        Without `sessions`, all that match the filter. `values` adds the durable values of their
        namespaces. `redact` replaces texts by placeholders of the same length; such a file can be
        checked but not imported. True redacts all texts; a list names the parts to redact:
        "prompts", "answers", "notes", "arguments". `progress` is called with the amount done and
        the total.
        """
        ids, wanted = await self._choose(sessions, state, program, labels)
        births = await transfer.select_births(self._store, ids, wanted)
        return await self._export(file, births, values, redaction.select_parts(redact), progress)

    async def import_(
        self,
        file: ExportFile,
        *,
        existing: str = "refuse",
        progress: ProgressCallback | None = None,
    ) -> ImportResult:
        """Import the sessions of an exported file; they resume here.

        Raises `BadExport`, `KeyConflict` or `SessionExists` before anything changes.
        `existing="skip"` leaves sessions that already exist here unchanged.
        """
        return await self._engine.complete(
            transfer.import_sessions(self._store, file, existing=existing, progress=progress)
        )

    async def _export(
        self,
        file: ExportFile,
        births: Iterable[Birth],
        values: bool = False,
        parts: Collection[str] = (),
        progress: ProgressCallback | None = None,
    ) -> ExportResult:
        header = ExportHeader(
            version=get_everhold_version(),
            written_at=self._engine.clock.now(),
            redacted=list(parts),
        )
        return await transfer.export_sessions(
            self._store, file, births, header=header, values=values, progress=progress
        )

    # ---- check

    async def check(
        self,
        sessions: SessionRef | Iterable[SessionRef] | None = None,
        *,
        file: str | PathLike[str] | None = None,
        state: str | Sequence[str] | None = ("running", "paused"),
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> CheckReport:
        """Replay sessions with the code on disk, in a new process, without effects or changes.

        Checks all running and paused sessions, or the given ones, or those of an exported `file`.
        """
        states = None if sessions is not None else state
        ids, wanted = await self._choose(sessions, states, program, labels, here=file is None)
        found = self._settings
        request = CheckRequest(
            sessions=ids,
            state=list(wanted.state),
            program=list(wanted.programs),
            labels=wanted.labels,
            programs=list(found.programs) if found is not None else [],
            packages=found.folders.plain if found is not None else [[], []],
            root=str(found.root) if found is not None else "",
            path=[str(Path(entry).resolve()) for entry in sys.path],
        )
        if file is not None:
            return await _checked(
                msgspec.structs.replace(request, file=str(Path(file).resolve())),
                str(file),
                progress,
            )
        maintenance = self._store.maintenance
        file_of_store = None if maintenance is None else maintenance.path
        path = found.path if found is not None else file_of_store
        if path is not None:
            source = found.shown if found is not None else self._store.where
            request = msgspec.structs.replace(request, database=str(Path(path).resolve()))
            return await _checked(request, source, progress)
        return await self._check_copy(request, ids, wanted, progress)

    async def _check_copy(
        self,
        request: CheckRequest,
        ids: list[str] | None,
        wanted: SessionFilter,
        progress: ProgressCallback | None,
    ) -> CheckReport:
        """Check sessions of a store that another process cannot open, by a temporary export."""
        births = await transfer.select_births(self._store, ids, wanted)
        with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
            copy = Path(folder) / "sessions.jsonl"
            await self._export(copy, births)
            request = msgspec.structs.replace(
                request, file=str(copy), sessions=[birth.id for birth in births]
            )
            return await _checked(request, self._store.where, progress)

    async def _choose(
        self,
        sessions: SessionRef | Iterable[SessionRef] | None,
        state: str | Sequence[str] | None,
        program: str | None,
        labels: Mapping[str, str] | None,
        *,
        here: bool = True,
    ) -> tuple[list[str] | None, SessionFilter]:
        """The ids of the given sessions, or a filter. Keys are resolved if the sessions are `here`,
        not in a file.
        """
        states = () if state is None else (state,) if isinstance(state, str) else tuple(state)
        for name in states:
            if name not in set(SessionState):
                raise BadSetting("state", f"{name!r} is not one of {', '.join(SessionState)}")
        wanted = SessionFilter(
            state=tuple(SessionState(name) for name in states),
            programs=list_filter_programs(program),
            labels=dict(labels or {}),
        )
        if sessions is None:
            return None, wanted
        if states or program is not None or labels:
            raise BadArguments("sessions", "give sessions or a filter, not both")
        named = [sessions] if isinstance(sessions, str | SessionHandle) else sessions
        ids = [
            await resolve_session_id(self._store, one) if here or not isinstance(one, str) else one
            for one in named
        ]
        return ids, wanted

    # ---- clean up

    async def gc(
        self,
        states: str | Iterable[str] = (),
        *,
        older_than: float | Mapping[str, float] | None = None,
        keep_last: int | None = None,
        per_program: bool = False,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        intake: float | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> SweepReport:
        """Delete ended sessions; by default completed and cancelled ones, else those in `states`.

        `older_than` is their age in seconds since their last step, for all or by state
        (`{"completed": 2592000, "failed": …}`). `keep_last` keeps that many of the newest
        (`per_program`: of each program). At least one is needed; without both, the settings apply.
        `intake` also removes completed items older than so many seconds from the intakes of the
        remaining sessions. Raises `SweepFailed`, with the report so far, if the store fails.
        """
        plan = self._plan(states, older_than, keep_last, per_program, program, labels, intake)
        return await sweep_sessions(
            self._store, plan, self._engine.clock.now(), dry_run=dry_run, progress=progress
        )

    def _plan(
        self,
        states: str | Iterable[str],
        older_than: float | Mapping[str, float] | None,
        keep_last: int | None,
        per_program: bool,
        program: str | None,
        labels: Mapping[str, str] | None,
        intake: float | None,
    ) -> RetentionPlan:
        if keep_last is not None and keep_last < 0:
            raise BadArguments("gc", f"keep_last={keep_last} is negative; give 0 or more")
        check_seconds_arg("intake", intake)
        names = [states] if isinstance(states, str) else list(states)
        if older_than is None and keep_last is None:
            found = load_retention(self._settings)
            if found is None or names:
                raise BadArguments(
                    "gc", "give older_than or keep_last; without them, nothing is deleted"
                )
            plan = found.plan
            intake = plan.intake if intake is None else intake
            per_program = per_program or plan.per_program
            return msgspec.structs.replace(
                plan,
                program=program,
                labels=dict(labels or {}),
                intake=intake,
                per_program=per_program,
            )
        return RetentionPlan(
            ages=plan_ages(names, older_than),
            keep_last=keep_last or 0,
            per_program=per_program,
            program=program,
            labels=dict(labels or {}),
            intake=intake,
        )

    async def reclaim(self) -> ReclaimResult:
        """Delete data that no session can read, such as remains of a crash. `gc` does this, too."""
        return await require_maintenance(self._store, "gc").reclaim()

    async def deleted_by(self, session_id: str) -> dict[str, JSON] | None:
        """Who deleted a session, as told to `runtime.delete(by=…)`; None if nobody said so."""
        found, _ = await self._store.value(DELETED_BY, session_id)
        return None if found is None else found[0]

    async def vacuum(self, session: SessionRef | None = None, *, older_than: float = 0.0) -> int:
        """Remove completed items older than `older_than` seconds from the intake of one session, or
        of all. Returns how many.

        The journal still knows the key of a delivered input.
        """
        if misfit := describe_misfit(older_than, Seconds):
            raise BadArguments("vacuum", f"older_than {misfit} (in seconds)")
        if session is None:
            return await vacuum_all_intakes(self._store, older_than)
        session_id = await resolve_session_id(self._store, session)
        await self._store.load(session_id, since=-1)  # raises UnknownSession
        return await vacuum_intakes(self._store, [session_id], older_than)

    def start(self) -> None:
        """Start the periodic deletion of old sessions, if the settings ask for it."""
        found = load_retention(self._settings)
        if found is not None and found.every is not None:
            engine = self._engine
            retention = AutoRetention(
                self._store, engine.clock, found.plan, found.every, engine.effects.tasks
            )
            engine.reconciler.add_chore(retention.see_to)

    async def verify(self, progress: ProgressCallback | None = None) -> list[StoreProblem]:
        """Look for gaps, dangling references and damage. An empty list means that none was found.

        A problem with `warning` is not damage: the database may be incomplete, such as a copy
        without its write-ahead log.
        """
        return await require_maintenance(self._store, "verify").verify(progress)


async def _checked(
    request: CheckRequest, source: str, progress: ProgressCallback | None
) -> CheckReport:
    """Check in a new process, with another hash seed, to reveal programs that depend on it."""
    seed = secrets.randbelow(2**32 - 2) + 1
    if str(seed) == os.environ.get("PYTHONHASHSEED"):
        seed += 1
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "everhold.archive.check_process",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        limit=sys.maxsize,  # of a line
    )
    try:
        lines, stderr = await _run_request(process, msgspec.json.encode(request), progress)
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise _decode_error(lines) or StoreUnavailable(
            source, _last_line(stderr) or f"the check process exited with {process.returncode}"
        )
    first, *rows = lines
    redacted = msgspec.json.decode(first, type=dict[str, list[str]])["redacted"]
    checked = [msgspec.json.decode(line, type=SessionCheck) for line in rows]
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return CheckReport(source, checked, redacted, python, seed)


async def _run_request(
    process: asyncio.subprocess.Process, request: bytes, progress: ProgressCallback | None
) -> tuple[list[bytes], bytes]:
    """Send the request. Returns the lines of the reply and the text of standard error.

    Lines about progress go to `progress` instead.
    """
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(request)
    process.stdin.close()
    # read at the same time: a full pipe would block the process
    stderr = asyncio.ensure_future(process.stderr.read())
    lines: list[bytes] = []
    try:
        async for line in process.stdout:
            if not line.startswith(b"["):
                lines.append(line)
            elif progress is not None:
                progress(*msgspec.json.decode(line, type=tuple[int, int]))
        await process.wait()
        return lines, await stderr
    finally:
        stderr.cancel()


def _decode_error(lines: list[bytes]) -> EverholdError | None:
    """The everhold error of the check process: the last line has its code and its arguments."""
    try:
        found = msgspec.json.decode(lines[-1], type=dict[str, Any])
        leaf = next(leaf for leaf in leaves() if leaf.code == found["error"])
        names = inspect.signature(leaf).parameters
        return leaf(**{name: fact for name, fact in found["facts"].items() if name in names})
    except (IndexError, KeyError, StopIteration, TypeError, msgspec.MsgspecError):
        return None


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


_found_version = ""


def get_everhold_version() -> str:
    """The installed version of everhold."""
    global _found_version
    if not _found_version:
        from importlib.metadata import version as installed

        try:
            _found_version = installed("everhold")
        except Exception:  # not installed, such as run from a source folder
            _found_version = "0"
    return _found_version


__all__ = [
    "Archive",
    "CheckReport",
    "CheckRequest",
    "ExportFile",
    "ExportResult",
    "ImportResult",
    "SessionCheck",
    "SweepReport",
    "get_everhold_version",
]
