"""The tools for sessions and logs: parameters, descriptions and handlers.

Rules
  1. A model answers `llm` questions only. Other questions have no id in this profile.
  2. All answers of a call are recorded, or none.
  3. Query ids repeat, so an id means what it meant when this process last reported the session. An
     answer that comes twice or too late is never recorded for a later question. The same answer
     again returns the status. After a restart, a call whose words equal the last answer counts as
     that answer sent again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta

from everhold.archive.archive import get_everhold_version
from everhold.archive.transfer import iterate_sessions
from everhold.core.budget import Budget
from everhold.core.codec import JSON, is_same_json
from everhold.core.query import Usage
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
from everhold.mcp import elicitation, instructions
from everhold.mcp.algocline import alc_wire, transcripts
from everhold.mcp.algocline.alc_wire import AlcRefused, AlcTool, ProjectRoot
from everhold.mcp.algocline.eval_tools import RunEvalArgs, add_eval_id
from everhold.mcp.algocline.package_tools import list_settings_folders
from everhold.mcp.algocline.query_ids import (
    QueryNames,
    load_open_names,
    read_query_names,
    read_query_names_at,
)
from everhold.mcp.protocol import RequestContext
from everhold.mcp.runtime_holder import MAX_CODE_BYTES, RuntimeHolder
from everhold.mcp.tool_call import DEFAULT_WAIT_SECONDS, ProgressObserver, ToolCall
from everhold.packages.lua import folder, paths
from everhold.packages.lua.listing import get_everhold_packages
from everhold.packages.lua.project import PackageRoots, find_package_roots
from everhold.packages.program_hosts import PROJECT_KEY
from everhold.ports.answerer import Answer
from everhold.ports.program import Call
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.programs.lua.program import EVAL_TEXT_REF, TEXT_REF, LuaProgram
from everhold.runtime import Runtime

if TYPE_CHECKING:
    from everhold.evals.lua_eval import LuaScenario

NonNegativeInt = Annotated[int, Meta(ge=0)]
SessionName = Annotated[
    str, Meta(description="The session's id, from `session_id` of an earlier result.")
]


class AlcRunArgs(msgspec.Struct):
    code: Annotated[
        str | None, Meta(description="Lua code. It `return`s its result, and uses `ctx` and `alc`.")
    ] = None
    code_file: Annotated[
        str | None,
        Meta(description="Path of a .lua file in the project, to run instead of `code`."),
    ] = None
    ctx: Annotated[
        Any,
        Meta(description="The value of `ctx` in the code. `ctx.budget` limits what it may spend."),
    ] = None
    project_root: ProjectRoot = None


class AdviceArgs(msgspec.Struct):
    strategy: Annotated[
        str,
        Meta(
            description="Name of a package or a built-in strategy. alc_pkg_list lists the packages."
        ),
    ]
    task: Annotated[str | None, Meta(description="The task for the strategy.")] = None
    opts: Annotated[
        Any,
        Meta(
            description="More values for the `ctx` of the strategy.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    project_root: ProjectRoot = None


class AlcUsage(msgspec.Struct):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class AlcResponse(msgspec.Struct):
    query_id: Annotated[str, Meta(description="The `query_id` or `id` of the question.")]
    response: Annotated[str, Meta(description="Your answer.")]
    usage: Annotated[
        AlcUsage | None, Meta(description="Tokens that the answer cost, if you know them.")
    ] = None


class ContinueArgs(msgspec.Struct):
    session_id: SessionName
    response: Annotated[str | None, Meta(description="Your answer to one question.")] = None
    query_id: Annotated[
        str | None,
        Meta(description="The `query_id` of the question. Required if several are open."),
    ] = None
    usage: Annotated[
        AlcUsage | None, Meta(description="Tokens that the answer cost, if you know them.")
    ] = None
    responses: Annotated[
        list[AlcResponse] | None,
        Meta(description="Answers to several questions. All are recorded, or none."),
    ] = None


class AlcStatusArgs(msgspec.Struct):
    session_id: Annotated[
        str | None,
        Meta(description="Only this session. Without it, all sessions that have not ended."),
    ] = None
    pending_filter: Annotated[
        Any,
        Meta(
            description='Show open questions: "meta", "preview", "full", or an object that selects'
            ' fields ({"query_id": true, "prompt": {"mode": "preview", "chars": 80}}).',
        ),
    ] = UNSET
    include_history: Annotated[
        bool, Meta(description="Also show the newest ten questions and answers.")
    ] = False


class AddNoteArgs(msgspec.Struct):
    session_id: SessionName
    content: Annotated[str, Meta(description="The text of the note.")]
    title: Annotated[str | None, Meta(description="A title for the note.")] = None


class ViewLogArgs(msgspec.Struct):
    session_id: Annotated[
        str | None, Meta(description="Show the log of this session. Without it, list logs.")
    ] = None
    limit: Annotated[
        NonNegativeInt | None, Meta(description="How many logs to list. Default 50.")
    ] = None
    max_chars: Annotated[
        NonNegativeInt | None,
        Meta(
            description="Longest log in bytes, without the oldest rounds. Default 100000, 0: any."
        ),
    ] = None


class LogStatsArgs(msgspec.Struct):
    strategy: Annotated[str | None, Meta(description="Only sessions of this strategy.")] = None
    days: Annotated[
        NonNegativeInt | None,
        Meta(description="Only sessions that ended in this number of days before now."),
    ] = None


class NoArgs(msgspec.Struct):
    pass


_STATUSES: Final = (
    "The status of the result is needs_response (answer with alc_continue), completed (see"
    " `result`) or error. Sessions are stored on disk: they survive restarts, and alc_status shows"
    " their open questions."
)

SESSION_TOOLS: Final = (
    AlcTool(
        "alc_run",
        "Run Lua code that can ask you questions (alc.llm). It runs until it has questions: answer"
        " each of them yourself with alc_continue, until the status is completed. Give code or"
        f" code_file. {_STATUSES} The code runs in a sandbox without files or network.",
        AlcRunArgs,
    ),
    AlcTool(
        "alc_advice",
        "Apply an installed package or a built-in strategy (such as reflect, panel, cot) to a"
        " task. Answer each question that it returns yourself with alc_continue, until the status"
        f" is completed. {_STATUSES}",
        AdviceArgs,
    ),
    AlcTool(
        "alc_continue",
        "Answer open questions of a session: one (`response`, with `query_id` if several are open)"
        f" or several (`responses`). The program then continues. {_STATUSES} accepted: the answers"
        " are recorded, and other questions are still open. Sending the same answer again changes"
        " nothing.",
        ContinueArgs,
    ),
    AlcTool(
        "alc_status",
        "Show the sessions that have not ended, or one session, also after its end. pending_filter"
        " shows open questions.",
        AlcStatusArgs,
        reads=True,
    ),
    AlcTool("alc_note", "Add a note to the log of a session that has ended.", AddNoteArgs),
    AlcTool(
        "alc_log_view",
        "List logs of sessions that have ended, or show one log with its transcript.",
        ViewLogArgs,
        reads=True,
    ),
    AlcTool(
        "alc_stats",
        "Show the costs of sessions by strategy, from their logs.",
        LogStatsArgs,
        reads=True,
    ),
    AlcTool("alc_info", "Show the version, folders and search paths.", NoArgs, reads=True),
)


#: Sessions in a list of those that have not ended. The newest are listed.
MAX_LISTED: Final = 100
_LIVE: Final = (SessionState.RUNNING, SessionState.PAUSED)
_WAIT: Final = DEFAULT_WAIT_SECONDS


class ReportedSteps:
    """The last step of each session that this process has reported to a client.

    The oldest entries are dropped.
    """

    MAX_SESSIONS: Final = 10_000

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}

    def of(self, session_id: str) -> int:
        return self._steps.get(session_id, -1)

    def note(self, session_id: str, step: int) -> None:
        self._steps.pop(session_id, None)
        self._steps[session_id] = step
        if len(self._steps) > self.MAX_SESSIONS:
            del self._steps[next(iter(self._steps))]


class AlcToolHandlers:
    """Handles one call."""

    def __init__(
        self,
        holder: RuntimeHolder,
        observer: ProgressObserver,
        runtime: Runtime,
        context: RequestContext,
        heard: int = -1,
    ) -> None:
        self._holder = holder
        self._runtime = runtime
        self._context = context
        self._heard = heard  # the last step of the session that its client knew when it called
        self._call = ToolCall(holder, observer, runtime, context)
        self.reported: dict[str, int] = {}  # session -> the last step that the result reports

    # ---- start

    async def run(self, given: AlcRunArgs) -> str:
        code = self._code(given.code, given.code_file)
        ctx = {} if given.ctx is None else given.ctx
        # our ctx is always an object: another value is wrapped, and unwrapped on the first line
        if not isinstance(ctx, dict):
            code = f"ctx = ctx.value; {code}"
            ctx = {"value": ctx}
        found = _roots(given.project_root)
        call = LuaProgram.text(code, ctx, roots=self._holder.folders.all)
        return await self._start(call, ctx, "alc_run", None, given.project_root, found)

    def _code(self, code: str | None, file: str | None) -> str:
        if code is not None and file is not None:
            raise AlcRefused("Both `code` and `code_file` are given; only one of them can run.")
        if code is None and file is None:
            raise AlcRefused("Nothing to run: give `code` or `code_file`.")
        if file is not None:
            try:
                return self._holder.read_lua_file(file)
            except OSError as error:
                raise AlcRefused(f"{file} cannot be read: {error.strerror}") from None
            except NotAllowed as error:
                raise AlcRefused(
                    f"{file} cannot be read: {error}", error.code, error.hint
                ) from None
        if len((code or "").encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise AlcRefused(f"The code is longer than the limit of {MAX_CODE_BYTES} bytes.")
        return code or ""

    async def advice(self, given: AdviceArgs) -> str:
        ctx = dict(given.opts) if isinstance(given.opts, dict) else {}
        if given.task is not None:
            ctx["task"] = given.task
        found = _roots(given.project_root)
        try:
            program = folder.find_package(
                given.strategy, found.pinned, self._holder.folders.all
            ) or self._holder.program(given.strategy)
        except (UnknownProgram, NotAllowed) as error:
            words = f"Package '{given.strategy}' not found; alc_pkg_install installs packages"
            raise AlcRefused(
                words, error.code, _NO_PACKAGE if isinstance(error, NotAllowed) else error.hint
            ) from None
        is_lua = isinstance(program, LuaProgram)
        call = (
            program.call_unchecked(ctx)
            if is_lua
            else program(**{name: ctx[name] for name in ctx if name != "budget"})
        )
        title = instructions.make_session_title(given.strategy, ctx)
        return await self._start(call, ctx, title, given.strategy, given.project_root, found)

    async def eval(self, given: RunEvalArgs) -> str:
        from everhold.evals.lua_eval import make_lua_eval  # a server starts without it

        scenario = self._scenario(given)
        found = _roots(None)
        roots = self._holder.folders.all
        if folder.find_package(given.strategy, (*found.pinned, *roots), roots) is None:
            words = f"Package '{given.strategy}' not found; alc_pkg_install installs packages"
            raise AlcRefused(words, "unknown_program", _ONLY_PACKAGES)
        opts = given.strategy_opts if isinstance(given.strategy_opts, dict) else {}
        call = make_lua_eval(
            scenario, given.strategy, strategy_opts=opts, auto_card=given.auto_card, roots=roots
        )
        title = f"{given.strategy} on {scenario.name}"
        return await self._start(call, {}, title, given.strategy, None, found)

    def _scenario(self, given: RunEvalArgs) -> LuaScenario:
        from everhold.evals.lua_eval import LuaScenario, load_lua_scenario

        code, file, name = given.scenario, given.scenario_file, given.scenario_name
        if [code, file, name].count(None) != 2:
            raise AlcRefused("Give one of `scenario`, `scenario_file` and `scenario_name`.")
        if name is not None:
            return load_lua_scenario(name)
        if file is not None:
            return LuaScenario(self._code(None, file), Path(file).stem, Path(file).name)
        text = self._code(code, None)
        if text.strip().isidentifier():
            words = f"`scenario` is the code of a scenario; for the name {text!r} use scenario_name"
            raise AlcRefused(words)
        return LuaScenario(text)

    async def _start(
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
        if found.pinned:  # otherwise a resumed session finds the same packages without its project
            metadata[PROJECT_KEY] = str(paths.find_project_root(project))
        status = await self._runtime.start(
            call,
            title=title,
            labels=transcripts.LABELS,
            metadata=metadata,
            budget=Budget.read(ctx.get("budget")),
            wait=0,
        )
        shown = await self._settle(status, seen=-1)
        if missing := [
            f"{root.folder} does not exist" for root in found.all[:-1] if not root.folder.is_dir()
        ]:
            shown["lib_path_warnings"] = missing
        return alc_wire.dump_compact(shown)

    # ---- answer

    async def continue_(self, given: ContinueArgs) -> str:
        if given.responses is not None:
            responses = given.responses
            if not responses:
                raise AlcRefused("`responses` has no answers")
        elif given.response is not None:
            responses = [AlcResponse(given.query_id or "", given.response, given.usage)]
        else:
            raise AlcRefused("No answer is given: use `response`, or `responses` for several")
        try:
            return alc_wire.dump_compact(await self._answered(given.session_id, responses))
        except UnknownSession as error:
            raise AlcRefused(
                f"Continue failed: session '{given.session_id}' not found", error.code, _NOT_FOUND
            ) from None
        except EverholdError as error:
            raise AlcRefused(f"Continue failed: {error}", error.code, error.hint) from None

    async def _answered(self, session_id: str, responses: list[AlcResponse]) -> dict[str, JSON]:
        record, known = await load_open_names(self._runtime.store, session_id)
        is_behind = self._heard < record.head.n
        if is_behind or not all(
            one.query_id in known.open or not one.query_id for one in responses
        ):
            record = await self._runtime.store.load(session_id)
            known = read_query_names(record)
        if (record.head.ended or self._heard < 0) and is_repeated(known, responses):
            return await self._settle(await self._runtime.status(session_id), seen=record.head.n)
        if record.head.state == SessionState.CANCELLED:  # by a person: its client should know
            return await self._settle(await self._runtime.status(session_id), seen=record.head.n)
        if record.head.ended:
            raise UnknownSession(session_id)
        taken = match_answers(
            known,
            responses,
            read_query_names_at(record, self._heard) if is_behind and self._heard >= 0 else None,
        )
        if not taken:
            return await self._settle(await self._runtime.status(session_id), seen=record.head.n)
        by = elicitation.describe_client(self._context)
        try:
            status = await self._runtime.answer_many(session_id, taken, by=by, wait=0)
        except (AnswerConflict, QueryClosed) as error:  # another answer came first
            words = f"Continue failed: already responded to query_id: {known[error.query_id]}"
            raise AlcRefused(words, error.code, error.hint) from None
        return await self._settle(status, seen=record.head.n)

    async def _settle(self, status: Status, *, seen: int) -> dict[str, JSON]:
        """Wait until the session ends or has questions. Write its log if it has ended."""
        standing = await self._call.settle(status, "", seen=seen, wait=_WAIT)
        status = standing.status
        store, warning = self._runtime.store, ""
        if isinstance(status, Finished):
            record = await store.load(status.session_id)
            known = read_query_names(record)
            warning = transcripts.write_transcript(record)
        else:
            record, known = await load_open_names(store, status.session_id)
        shown = alc_wire.render_alc_status(status, known, option=self._holder.option)
        if isinstance(status, Finished) and record.birth.program == EVAL_TEXT_REF:
            shown = add_eval_id(status, shown)
        self.reported[status.session_id] = record.head.n
        return {**shown, "transcript_warning": warning} if warning else shown

    # ---- status

    async def status(self, given: AlcStatusArgs) -> str:
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
                words = f"session '{given.session_id}' not found"
                raise AlcRefused(words, error.code, _NOT_FOUND) from None
            self.reported[record.birth.id] = record.head.n
            return alc_wire.dump_pretty(self._snapshot(record, pending, given.include_history))
        store = self._runtime.store
        ids: list[SessionId] = [
            row.birth.id async for row in iterate_sessions(store, SessionFilter(state=_LIVE))
        ]
        records = [await store.load(session_id) for session_id in ids[:MAX_LISTED]]
        self.reported = (
            {record.birth.id: record.head.n for record in records} if pending is not None else {}
        )
        listed: dict[str, JSON] = {
            "active_sessions": len(ids),
            "sessions": [
                self._snapshot(record, pending, given.include_history) for record in records
            ],
        }
        if len(ids) > MAX_LISTED:
            listed["truncated"] = True
        return alc_wire.dump_pretty(listed) if ids else alc_wire.dump_compact(listed)

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
        shown = alc_wire.rename_query_ids(
            snapshot_session(facts, pending), read_query_names(record), record.head.metrics.pauses
        )
        return (
            {**shown, **alc_wire.render_alc_outcome(make_finished_status(record))}
            if record.head.ended
            else shown
        )

    # ---- logs

    async def note(self, given: AddNoteArgs) -> str:
        await self._write_missing_logs()
        return alc_wire.dump_compact(
            transcripts.add_log_note(given.session_id, given.content, given.title)
        )

    async def log_view(self, given: ViewLogArgs) -> str:
        await self._write_missing_logs()
        if given.session_id is not None:
            return transcripts.read_log(given.session_id, given.max_chars)
        return alc_wire.dump_compact(transcripts.list_logs(given.limit))

    async def stats(self, given: LogStatsArgs) -> str:
        await self._write_missing_logs()
        found = transcripts.compute_log_stats(given.strategy, given.days)
        return alc_wire.dump_compact({**found, "card_sinks": self._runtime.cards.sinks()})

    async def _write_missing_logs(self) -> None:
        await transcripts.write_missing_transcripts(self._runtime.store, self._runtime.clock.now())

    # ---- folders

    async def info(self, given: NoArgs) -> str:
        where, source = paths.log_dir()
        packages = paths.get_alc_home().packages
        info: dict[str, JSON] = {
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
            info["packages_dir"] = str(packages)
        return alc_wire.dump_pretty(info)


_PRESETS: Final = "preset-catalog@2026-04-23"
_NOT_FOUND: Final = "alc_status lists the sessions that have not ended."
_ONLY_PACKAGES: Final = (
    "alc_pkg_list lists the packages. Programs in Python are measured by `everhold eval run`."
)
_NO_PACKAGE: Final = "alc_pkg_list lists the packages; a path is not a name."
_SOURCES: Final = {"home": "~/.algocline/logs", "cwd": "current_dir", "none": "none (stderr only)"}


def list_search_paths(found: PackageRoots) -> list[JSON]:
    """The folders that are searched for packages, in order."""
    rows = [
        *((root.folder, "project") for root in found.pinned),
        *list_settings_folders(),
        *((root.folder, "ALC_PACKAGES_PATH") for root in found.path),
        (found.home.folder, "default"),
    ]
    if get_everhold_packages()[0] != found.home.folder:
        rows.append(get_everhold_packages())
    first: dict[Path, str] = {}
    for path, source in rows:
        first.setdefault(path, source)
    return [{"path": str(path), "source": source} for path, source in first.items()]


def _roots(project: str | None) -> PackageRoots:
    try:
        return find_package_roots(project)
    except EverholdError as error:
        raise AlcRefused.of(error) from None


def is_repeated(known: QueryNames, responses: list[AlcResponse]) -> bool:
    """Whether these answers equal the last recorded ones."""
    if not known.latest:
        return False
    if len(responses) == 1 and not responses[0].query_id:
        return len(known.latest) == 1 and is_same_json(
            known.answered[known.latest[0]].value, responses[0].response
        )
    return all(
        one.query_id in known.latest
        and is_same_json(known.answered[one.query_id].value, one.response)
        for one in responses
    )


def match_answers(
    known: QueryNames, responses: list[AlcResponse], heard: QueryNames | None = None
) -> dict[str, Answer]:
    """The answers by everhold's query ids, without those that are recorded already.

    `heard` has the names at the step that the client knows, if the session has moved since.
    Raises `AlcRefused` for an unknown id, and for a second answer that differs.
    """
    found: dict[str, Answer] = {}
    meanings = known if heard is None else heard
    for one in responses:
        q = meanings.meant(one.query_id) if one.query_id else _get_sole_query(meanings)
        before = known.answered.get(one.query_id)
        if q is not None and q not in known.open.values():
            if q not in known.said or not is_same_json(known.said[q].value, one.response):
                raise AlcRefused(
                    f"Continue failed: already responded to query_id: {meanings.all[q]}",
                    "answer_conflict",
                )
            continue
        if q is None:
            is_same = (
                before is not None
                and one.query_id in known.latest
                and is_same_json(before.value, one.response)
            )
            if before is None or not (is_same or known.is_of_now(before)):
                raise AlcRefused(
                    f"Continue failed: unknown query_id: {one.query_id}", "unknown_query"
                )
            if not is_same_json(before.value, one.response):
                raise AlcRefused(
                    f"Continue failed: already responded to query_id: {one.query_id}",
                    "answer_conflict",
                )
            continue
        usage = (
            None
            if one.usage is None
            else Usage(one.usage.prompt_tokens, one.usage.completion_tokens)
        )
        there = found.setdefault(f"q-{q}", Answer(one.response, usage))
        if there.value != one.response:
            raise AlcRefused(
                f"Continue failed: already responded to query_id: {one.query_id}", "answer_conflict"
            )
    return found


def _get_sole_query(known: QueryNames) -> int:
    if len(known.open) == 1:
        return next(iter(known.open.values()))
    if known.open:
        words = f"{len(known.open)} queries pending, so an answer needs its query_id"
        raise AlcRefused(f"Continue failed: {words}", "many_open_queries")
    raise AlcRefused("Continue failed: no pending queries", "no_open_query")
