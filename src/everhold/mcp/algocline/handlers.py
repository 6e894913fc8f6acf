"""What the tools for sessions do, in verbs of the runtime.

Rules
  1. What is asked may be answered by a model only if it is an `llm` question; the others have no
     name here.
  2. Answers in one call are all taken or none.
  3. As names repeat, a name means what it meant when this process last told of the session: an
     answer that comes twice, or too late, never lands on a question that nobody has seen. The same
     again returns where the session stands. Where this process has told nothing of the session yet,
     what is word for word the last answer is that one again.

The tools for packages: verbs of `packages/lua`, in a thread, for they read files and fetch
repositories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold import packages
from everhold.archive.archive import get_everhold_version
from everhold.archive.transfer import iterate_sessions
from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.session import SessionId, SessionState
from everhold.core.status import Finished, PendingFilter, Status, snapshot_session
from everhold.engine import session_view
from everhold.engine.session_view import make_finished_status
from everhold.errors import (
    AnswerConflict,
    BadSetting,
    EverholdError,
    NotAllowed,
    QueryClosed,
    UnknownProgram,
    UnknownSession,
)
from everhold.mcp import elicitation, handlers, instructions
from everhold.mcp.algocline import render, tools, transcripts
from everhold.mcp.algocline.answer import is_repeated, match_answers
from everhold.mcp.algocline.query_ids import load_open_names, read_query_names, read_query_names_at
from everhold.mcp.algocline.render import AlcRefused
from everhold.mcp.progress_notes import ProgressObserver
from everhold.mcp.runtime_holder import MAX_CODE_BYTES, RuntimeHolder
from everhold.packages.lua import folder, paths
from everhold.packages.lua.listing import DEFAULT_LIMIT, DEFAULT_SORT, get_everhold_packages
from everhold.packages.lua.project import PackageRoots, find_package_roots
from everhold.packages.program_hosts import PROJECT_KEY
from everhold.packages.settings import PACKAGES_FOLDER, settings
from everhold.ports.program import Call
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.programs.lua.program import TEXT_REF, LuaProgram
from everhold.runtime import Runtime


def list_settings_folders() -> list[tuple[Path, str]]:
    """Folders of packages that our own settings name, if they are there, and who names them."""
    found = settings()
    return [
        (path, "settings")
        for path in (*found.packages_path, found.root / PACKAGES_FOLDER)
        if path.is_dir()
    ]


def _list(given: tools.ListPackagesArgs) -> dict[str, JSON]:
    return packages.list_packages(
        given.project_root,
        limit=DEFAULT_LIMIT if given.limit is None else given.limit,
        sort=DEFAULT_SORT if given.sort is None else given.sort,
        filter=given.filter,
        fields=given.fields,
        verbose=given.verbose,
        more=list_settings_folders(),
    )


def _link(given: tools.LinkPackageArgs) -> dict[str, JSON]:
    scope = given.scope or "global"
    return packages.link(
        given.path, given.name, force=given.force, scope=scope, project=given.project_root
    )


def _remove(given: tools.RemovePackageArgs) -> dict[str, JSON]:
    scope = given.scope or "project"
    return packages.remove(
        given.name, scope=scope, version=given.version, project=given.project_root
    )


def _scaffold(given: tools.ScaffoldPackageArgs) -> dict[str, JSON]:
    about = {"category": given.category, "description": given.description}
    return packages.scaffold(
        given.name, given.target_dir or ".", **{key: text for key, text in about.items() if text}
    )


_VERBS: Final[dict[str, Callable[[Any], dict[str, JSON]]]] = {
    "init": lambda given: packages.init(given.project_root),
    "update": lambda given: packages.update(given.project_root),
    "migrate": lambda given: packages.migrate(given.project_root),
    "pkg_link": _link,
    "pkg_unlink": lambda given: packages.unlink(given.name),
    "pkg_list": _list,
    "pkg_install": lambda given: packages.install(given.url, given.name),
    "pkg_remove": _remove,
    "pkg_repair": lambda given: packages.repair(given.name, given.project_root),
    "pkg_doctor": lambda given: packages.doctor(given.name, given.project_root),
    "pkg_scaffold": _scaffold,
}


def is_package_verb(verb: str) -> bool:
    return verb in _VERBS


async def run_package_verb(verb: str, given: Any) -> dict[str, JSON]:
    """Do it, and say what was done; raises `BadPackage`, `BadPackageFile` and the like."""
    return await asyncio.to_thread(_VERBS[verb], given)


#: Sessions in a list of those that have not ended, the newest.
MAX_LISTED: Final = 100
_LIVE: Final = (SessionState.RUNNING, SessionState.PAUSED)
_WAIT: Final = handlers.DEFAULT_WAIT_SECONDS


class ReportedSteps:
    """Which step of each session clients of this process have been told of; of the sessions told of
    last.
    """

    MOST: Final = 10_000

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def of(self, session_id: str) -> int:
        return self._steps.get(session_id, -1)

    def note(self, session_id: str, step: int) -> None:
        self._steps.pop(session_id, None)
        self._steps[session_id] = step
        if len(self._steps) > self.MOST:
            del self._steps[next(iter(self._steps))]


class AlcToolHandlers:
    """One call's way to the runtime."""

    def __init__(
        self,
        house: RuntimeHolder,
        pulse: ProgressObserver,
        runtime: Runtime,
        context: handlers.RequestContext,
        heard: int = -1,
    ) -> None:
        self._house = house
        self._runtime = runtime
        self._context = context
        self._heard = heard  # the step of the session up to which its client knew it when it called
        self._common = handlers.ToolHandlers(house, pulse, runtime, context)
        self.telling: dict[str, int] = {}  # which steps of which sessions the result tells of

    # ---- begin

    async def run(self, given: tools.AlcRunArgs) -> str:
        code = self._code(given.code, given.code_file)
        ctx = {} if given.ctx is None else given.ctx
        # a program's ctx is an object to us: unwrap it on its first line
        if not isinstance(ctx, dict):
            code = f"ctx = ctx.value; {code}"
            ctx = {"value": ctx}
        found = _roots(given.project_root)
        call = LuaProgram.text(code, ctx, roots=self._house.folders.all)
        return await self._begun(call, ctx, "alc_run", None, given.project_root, found)

    def _code(self, code: str | None, file: str | None) -> str:
        if code is not None and file is not None:
            raise AlcRefused("Provide either `code` or `code_file`, not both.")
        if code is None and file is None:
            raise AlcRefused("Either `code` or `code_file` must be provided.")
        if file is not None:
            try:
                return self._house.text(file)
            except OSError as error:
                raise AlcRefused(f"Failed to read {file}: {error.strerror}") from None
            except NotAllowed as error:
                raise AlcRefused(
                    f"Failed to read {file}: {error}", error.code, error.hint
                ) from None
        if len((code or "").encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise AlcRefused(f"The code is longer than {MAX_CODE_BYTES} bytes.")
        return code or ""

    async def advice(self, given: tools.AdviceArgs) -> str:
        ctx = dict(given.opts) if isinstance(given.opts, dict) else {}
        if given.task is not None:
            ctx["task"] = given.task
        found = _roots(given.project_root)
        program = self._program(given.strategy, found)
        is_lua = isinstance(program, LuaProgram)
        call = (
            program(ctx)
            if is_lua
            else program(**{name: ctx[name] for name in ctx if name != "budget"})
        )
        title = instructions.make_session_title(given.strategy, ctx)
        return await self._begun(call, ctx, title, given.strategy, given.project_root, found)

    def _program(self, name: str, found: PackageRoots) -> Any:
        try:
            return folder.find_package(
                name, found.pinned, self._house.folders.all
            ) or self._house.program(name)
        except (UnknownProgram, NotAllowed) as error:
            words = f"Package '{name}' not found. Use alc_pkg_install to install it."
            raise AlcRefused(
                words, error.code, _NO_PACKAGE if isinstance(error, NotAllowed) else error.hint
            ) from None

    async def _begun(
        self,
        call: Call[Any],
        ctx: dict[str, Any],
        title: str,
        strategy: str | None,
        project: str | None,
        found: PackageRoots,
    ) -> str:
        metadata = {} if strategy is None else {"strategy": strategy}
        metadata |= {} if paths.is_log_enabled() else transcripts.UNLOGGED_LABELS
        if found.pinned:  # else it finds the same without its project
            metadata[PROJECT_KEY] = str(paths.find_project_root(project))
        status = await self._runtime.start(
            call,
            title=title,
            labels=transcripts.LABELS,
            metadata=metadata,
            budget=Budget.read(ctx.get("budget")),
            wait=0,
        )
        shown = await self._settled(status, seen=-1)
        if missing := [
            f"{root.folder} does not exist" for root in found.all[:-1] if not root.folder.is_dir()
        ]:
            shown["lib_path_warnings"] = missing
        return render.dump_compact(shown)

    # ---- answer

    async def continue_(self, given: tools.ContinueArgs) -> str:
        if given.responses is not None:
            said = given.responses
            if not said:
                raise AlcRefused("Empty responses array")
        elif given.response is not None:
            said = [tools.AlcResponse(given.query_id or "", given.response, given.usage)]
        else:
            raise AlcRefused("Either 'response' or 'responses' must be provided")
        try:
            return render.dump_compact(await self._answered(given.session_id, said))
        except UnknownSession as error:
            raise AlcRefused(
                f"Continue failed: session '{given.session_id}' not found", error.code, _NOT_FOUND
            ) from None
        except EverholdError as error:
            raise AlcRefused(f"Continue failed: {error}", error.code, error.hint) from None

    async def _answered(self, session_id: str, said: list[tools.AlcResponse]) -> dict[str, JSON]:
        record, known = await load_open_names(self._runtime.store, session_id)
        is_behind = self._heard < record.head.n
        if is_behind or not all(one.query_id in known.open or not one.query_id for one in said):
            record = await self._runtime.store.load(session_id)
            known = read_query_names(record)
        if (record.head.ended or self._heard < 0) and is_repeated(known, said):
            return await self._settled(await self._runtime.status(session_id), seen=record.head.n)
        if record.head.ended:
            raise UnknownSession(session_id)
        taken = match_answers(
            known,
            said,
            read_query_names_at(record, self._heard) if is_behind and self._heard >= 0 else None,
        )
        if not taken:
            return await self._settled(await self._runtime.status(session_id), seen=record.head.n)
        by = elicitation.describe_client(self._context)
        try:
            status = await self._runtime.answer_many(session_id, taken, by=by, wait=0)
        except (AnswerConflict, QueryClosed) as error:  # somebody was quicker
            words = f"Continue failed: already responded to query_id: {known[error.query_id]}"
            raise AlcRefused(words, error.code, error.hint) from None
        return await self._settled(status, seen=record.head.n)

    async def _settled(self, status: Status, *, seen: int) -> dict[str, JSON]:
        """Wait for what moves by itself; then where the session stands, and its log if it has
        ended.
        """
        standing = await self._common.settled(status, "", seen=seen, wait=_WAIT)
        status = standing.status
        record, known = await load_open_names(self._runtime.store, status.session_id)
        warning = transcripts.write_transcript(record) if isinstance(status, Finished) else ""
        shown = render.render_alc_status(status, known, option=self._house.option)
        self.telling[status.session_id] = record.head.n
        return {**shown, "transcript_warning": warning} if warning else shown

    # ---- look

    async def status(self, given: tools.AlcStatusArgs) -> str:
        try:
            pending = PendingFilter.read(
                given.pending_filter, preview_chars=paths.read_preview_chars()
            )
        except BadSetting as error:
            raise AlcRefused(error.reason, error.code) from None
        if given.session_id is not None:
            try:
                record = await self._runtime.store.load(given.session_id)
            except UnknownSession as error:
                words = f"session '{given.session_id}' not found (may have completed)"
                raise AlcRefused(words, error.code, _NOT_FOUND) from None
            self.telling[record.birth.id] = record.head.n
            return render.dump_pretty(self._snapshot(record, pending, given.include_history))
        return await self._listed(pending, given.include_history)

    async def _listed(self, pending: PendingFilter | None, history: bool) -> str:
        store = self._runtime.store
        ids: list[SessionId] = [
            row.birth.id async for row in iterate_sessions(store, SessionFilter(state=_LIVE))
        ]
        records = [await store.load(session_id) for session_id in ids[:MAX_LISTED]]
        self.telling = (
            {record.birth.id: record.head.n for record in records} if pending is not None else {}
        )
        told: dict[str, JSON] = {
            "active_sessions": len(ids),
            "sessions": [self._snapshot(record, pending, history) for record in records],
        }
        if len(ids) > MAX_LISTED:
            told["truncated"] = True
        return render.dump_pretty(told) if ids else render.dump_compact(told)

    def _snapshot(
        self, record: SessionRecord, pending: PendingFilter | None, history: bool
    ) -> dict[str, Any]:
        facts = session_view.collect_session_facts(
            record, self._runtime.clock.now(), history=history
        )
        strategy = record.birth.metadata.get("strategy") or facts.strategy
        facts = msgspec.structs.replace(
            facts, strategy=None if record.birth.program == TEXT_REF else strategy
        )
        shown = render.rename_query_ids(
            snapshot_session(facts, pending), read_query_names(record), record.head.metrics.pauses
        )
        return (
            {**shown, **render.render_alc_outcome(make_finished_status(record))}
            if record.head.ended
            else shown
        )

    # ---- logs

    async def note(self, given: tools.AddNoteArgs) -> str:
        await self._caught_up()
        return render.dump_compact(
            transcripts.add_log_note(given.session_id, given.content, given.title)
        )

    async def log_view(self, given: tools.ViewLogArgs) -> str:
        await self._caught_up()
        if given.session_id is not None:
            return transcripts.read_log(given.session_id, given.max_chars)
        return render.dump_compact(transcripts.list_logs(given.limit))

    async def stats(self, given: tools.LogStatsArgs) -> str:
        await self._caught_up()
        return render.dump_compact(transcripts.compute_log_stats(given.strategy, given.days))

    async def _caught_up(self) -> None:
        await transcripts.write_missing_transcripts(self._runtime.store, self._runtime.clock.now())

    # ---- the house

    async def info(self, given: tools.NoArgs) -> str:
        where, source = paths.log_dir()
        packages = paths.get_alc_home().packages
        told: dict[str, JSON] = {
            "version": get_everhold_version(),
            "preset_catalog_version": _PRESETS,
            "log_dir": {
                "resolved": None if where is None else str(where),
                "source": _SOURCES.get(source, source),
            },
            "log_enabled": paths.is_log_enabled(),
            "tracing": "stderr only",
            "search_paths": list_search_paths(_roots(None)),
        }
        if packages.is_dir():
            told["packages_dir"] = str(packages)
        return render.dump_pretty(told)


_PRESETS: Final = "preset-catalog@2026-04-23"
_NOT_FOUND: Final = "alc_status lists the sessions that have not ended."
_NO_PACKAGE: Final = "alc_pkg_list lists the packages; a path is not a name."
_SOURCES: Final = {"home": "~/.algocline/logs", "cwd": "current_dir", "none": "none (stderr only)"}


def list_search_paths(found: PackageRoots) -> list[JSON]:
    """Where packages are looked for, in this order."""
    rows = [
        *((root.folder, "project") for root in found.pinned),
        *list_settings_folders(),
        *((root.folder, "env") for root in found.path),
        (found.home.folder, "default"),
    ]
    if get_everhold_packages()[0] != found.home.folder:
        rows.append(get_everhold_packages())
    return [{"path": str(path), "source": source} for path, source in rows]


def _roots(project: str | None) -> PackageRoots:
    try:
        return find_package_roots(project)
    except EverholdError as error:
        raise AlcRefused.of(error) from None
