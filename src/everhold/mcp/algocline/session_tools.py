"""What the tools for sessions do, in verbs of the runtime.

Rules
  1. What is asked may be answered by a model only if it is an `llm` question; the others have no
     name here.
  2. Answers in one call are all taken or none.
  3. As names repeat, a name means what it meant when this process last told of the session: an
     answer that comes twice, or too late, never lands on a question that nobody has seen. The same
     again returns where the session stands. Where this process has told nothing of the session yet,
     what is word for word the last answer is that one again.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

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
from everhold.mcp.algocline.package_tools import list_settings_folders
from everhold.mcp.algocline.query_ids import (
    QueryNames,
    load_open_names,
    read_query_names,
    read_query_names_at,
)
from everhold.mcp.runtime_holder import MAX_CODE_BYTES, RuntimeHolder
from everhold.mcp.tool_call import DEFAULT_WAIT_SECONDS, ProgressObserver, RequestContext, ToolCall
from everhold.packages.lua import folder, paths
from everhold.packages.lua.listing import get_everhold_packages
from everhold.packages.lua.project import PackageRoots, find_package_roots
from everhold.packages.program_hosts import PROJECT_KEY
from everhold.ports.answerer import Answer
from everhold.ports.program import Call
from everhold.ports.store import SessionFilter, SessionRecord
from everhold.programs.lua.program import TEXT_REF, LuaProgram
from everhold.runtime import Runtime

NonNegativeInt = Annotated[int, Meta(ge=0)]
SessionName = Annotated[
    str, Meta(description="The session's id, from `session_id` of an earlier result.")
]


class AlcRunArgs(msgspec.Struct):
    code: Annotated[
        str | None, Meta(description="Lua code; `return` its result. It sees `ctx` and `alc`.")
    ] = None
    code_file: Annotated[
        str | None, Meta(description="Instead of code: path of a .lua file of the project.")
    ] = None
    ctx: Annotated[
        Any, Meta(description="What the code sees as `ctx`; `ctx.budget` limits what it may spend.")
    ] = None
    project_root: ProjectRoot = None


class AdviceArgs(msgspec.Struct):
    strategy: Annotated[
        str,
        Meta(description="Name of a package or a built-in strategy; alc_pkg_list lists packages."),
    ]
    task: Annotated[str | None, Meta(description="What to think about.")] = None
    opts: Annotated[
        Any,
        Meta(
            description="More of what the strategy sees in its ctx.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    project_root: ProjectRoot = None


class AlcUsage(msgspec.Struct):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class AlcResponse(msgspec.Struct):
    query_id: Annotated[str, Meta(description="Which question: its query_id or id.")]
    response: Annotated[str, Meta(description="Your answer.")]
    usage: Annotated[AlcUsage | None, Meta(description="Tokens it cost, if you know them.")] = None


class ContinueArgs(msgspec.Struct):
    session_id: SessionName
    response: Annotated[str | None, Meta(description="Your answer to one question.")] = None
    query_id: Annotated[
        str | None, Meta(description="Which question; needed if several are open.")
    ] = None
    usage: Annotated[
        AlcUsage | None, Meta(description="Tokens the answer cost, if you know them.")
    ] = None
    responses: Annotated[
        list[AlcResponse] | None,
        Meta(
            description="Answers to several questions at once; all are parse_alc_arguments or none."
        ),
    ] = None


class AlcStatusArgs(msgspec.Struct):
    session_id: Annotated[
        str | None, Meta(description="Only this session; without it, all that have not ended.")
    ] = None
    pending_filter: Annotated[
        Any,
        Meta(
            description='Show open questions: "meta", "preview", "full", or an object of what to'
            " show"
            ' ({"query_id": true, "prompt": {"mode": "preview", "chars": 80}}).',
        ),
    ] = UNSET
    include_history: Annotated[bool, Meta(description="Also the newest ten exchanges.")] = False


class AddNoteArgs(msgspec.Struct):
    session_id: SessionName
    content: Annotated[str, Meta(description="What to note.")]
    title: Annotated[str | None, Meta(description="A title for it.")] = None


class ViewLogArgs(msgspec.Struct):
    session_id: Annotated[
        str | None, Meta(description="The log of this session; without it, logs are listed.")
    ] = None
    limit: Annotated[NonNegativeInt | None, Meta(description="How many to list; default 50.")] = (
        None
    )
    max_chars: Annotated[
        NonNegativeInt | None,
        Meta(
            description="Longest log; the oldest rounds are left out. Default 100000, 0: no limit."
        ),
    ] = None


class LogStatsArgs(msgspec.Struct):
    strategy: Annotated[str | None, Meta(description="Only sessions of this strategy.")] = None
    days: Annotated[
        NonNegativeInt | None,
        Meta(description="Only sessions that ended in the last so many days."),
    ] = None


class NoArgs(msgspec.Struct):
    pass


_LOOP = (
    "Returns status needs_response (answer with alc_continue), completed (`result`), or error."
    " Sessions are kept on"
    " disk: they survive restarts, and alc_status shows what is open."
)

SESSION_TOOLS: Final = (
    AlcTool(
        "alc_run",
        "Run Lua code that may ask you (alc.llm). It runs until it needs you: answer each prompt"
        " yourself with"
        f" alc_continue until status is completed. Give code or code_file. {_LOOP} It runs in a"
        " sandbox without files"
        " or network.",
        AlcRunArgs,
    ),
    AlcTool(
        "alc_advice",
        "Apply an installed package or a built-in strategy (such as reflect, panel, cot) to a"
        " task. Answer each prompt"
        f" it returns yourself with alc_continue until status is completed. {_LOOP}",
        AdviceArgs,
    ),
    AlcTool(
        "alc_continue",
        "Answer open questions of a session, one (`response`, with `query_id` if several are"
        " open) or several"
        f" (`responses`); the program then goes on. {_LOOP} accepted: kept, and others are still"
        " open. Sending the"
        " same answer again is harmless.",
        ContinueArgs,
    ),
    AlcTool(
        "alc_status",
        "Show sessions that have not ended, or one session, also after its end. pending_filter"
        " shows open questions.",
        AlcStatusArgs,
        reads=True,
    ),
    AlcTool("alc_note", "Add a note to the log of a session that has ended.", AddNoteArgs),
    AlcTool(
        "alc_log_view",
        "List logs of sessions that have ended, or show one with its transcript.",
        ViewLogArgs,
        reads=True,
    ),
    AlcTool(
        "alc_stats",
        "What sessions cost, strategy by strategy, from their logs.",
        LogStatsArgs,
        reads=True,
    ),
    AlcTool("alc_info", "Version, folders and search paths.", NoArgs, reads=True),
)


#: Sessions in a list of those that have not ended, the newest.
MAX_LISTED: Final = 100
_LIVE: Final = (SessionState.RUNNING, SessionState.PAUSED)
_WAIT: Final = DEFAULT_WAIT_SECONDS


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
        holder: RuntimeHolder,
        observer: ProgressObserver,
        runtime: Runtime,
        context: RequestContext,
        heard: int = -1,
    ) -> None:
        self._holder = holder
        self._runtime = runtime
        self._context = context
        self._heard = heard  # the step of the session up to which its client knew it when it called
        self._common = ToolCall(holder, observer, runtime, context)
        self.telling: dict[str, int] = {}  # which steps of which sessions the result tells of

    # ---- begin

    async def run(self, given: AlcRunArgs) -> str:
        code = self._code(given.code, given.code_file)
        ctx = {} if given.ctx is None else given.ctx
        # a program's ctx is an object to us: unwrap it on its first line
        if not isinstance(ctx, dict):
            code = f"ctx = ctx.value; {code}"
            ctx = {"value": ctx}
        found = _roots(given.project_root)
        call = LuaProgram.text(code, ctx, roots=self._holder.folders.all)
        return await self._begun(call, ctx, "alc_run", None, given.project_root, found)

    def _code(self, code: str | None, file: str | None) -> str:
        if code is not None and file is not None:
            raise AlcRefused("Provide either `code` or `code_file`, not both.")
        if code is None and file is None:
            raise AlcRefused("Either `code` or `code_file` must be provided.")
        if file is not None:
            try:
                return self._holder.read_lua_file(file)
            except OSError as error:
                raise AlcRefused(f"Failed to read {file}: {error.strerror}") from None
            except NotAllowed as error:
                raise AlcRefused(
                    f"Failed to read {file}: {error}", error.code, error.hint
                ) from None
        if len((code or "").encode("utf-8", "surrogatepass")) > MAX_CODE_BYTES:
            raise AlcRefused(f"The code is longer than {MAX_CODE_BYTES} bytes.")
        return code or ""

    async def advice(self, given: AdviceArgs) -> str:
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
                name, found.pinned, self._holder.folders.all
            ) or self._holder.program(name)
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
        return alc_wire.dump_compact(shown)

    # ---- answer

    async def continue_(self, given: ContinueArgs) -> str:
        if given.responses is not None:
            said = given.responses
            if not said:
                raise AlcRefused("Empty responses array")
        elif given.response is not None:
            said = [AlcResponse(given.query_id or "", given.response, given.usage)]
        else:
            raise AlcRefused("Either 'response' or 'responses' must be provided")
        try:
            return alc_wire.dump_compact(await self._answered(given.session_id, said))
        except UnknownSession as error:
            raise AlcRefused(
                f"Continue failed: session '{given.session_id}' not found", error.code, _NOT_FOUND
            ) from None
        except EverholdError as error:
            raise AlcRefused(f"Continue failed: {error}", error.code, error.hint) from None

    async def _answered(self, session_id: str, said: list[AlcResponse]) -> dict[str, JSON]:
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
        standing = await self._common.settle(status, "", seen=seen, wait=_WAIT)
        status = standing.status
        record, known = await load_open_names(self._runtime.store, status.session_id)
        warning = transcripts.write_transcript(record) if isinstance(status, Finished) else ""
        shown = alc_wire.render_alc_status(status, known, option=self._holder.option)
        self.telling[status.session_id] = record.head.n
        return {**shown, "transcript_warning": warning} if warning else shown

    # ---- look

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
                words = f"session '{given.session_id}' not found (may have completed)"
                raise AlcRefused(words, error.code, _NOT_FOUND) from None
            self.telling[record.birth.id] = record.head.n
            return alc_wire.dump_pretty(self._snapshot(record, pending, given.include_history))
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
        return alc_wire.dump_pretty(told) if ids else alc_wire.dump_compact(told)

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
        await self._caught_up()
        return alc_wire.dump_compact(
            transcripts.add_log_note(given.session_id, given.content, given.title)
        )

    async def log_view(self, given: ViewLogArgs) -> str:
        await self._caught_up()
        if given.session_id is not None:
            return transcripts.read_log(given.session_id, given.max_chars)
        return alc_wire.dump_compact(transcripts.list_logs(given.limit))

    async def stats(self, given: LogStatsArgs) -> str:
        await self._caught_up()
        return alc_wire.dump_compact(transcripts.compute_log_stats(given.strategy, given.days))

    async def _caught_up(self) -> None:
        await transcripts.write_missing_transcripts(self._runtime.store, self._runtime.clock.now())

    # ---- folders

    async def info(self, given: NoArgs) -> str:
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
        return alc_wire.dump_pretty(told)


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


def is_repeated(known: QueryNames, said: list[AlcResponse]) -> bool:
    """Whether this is what was answered last, word for word."""
    if not known.latest:
        return False
    if len(said) == 1 and not said[0].query_id:
        return len(known.latest) == 1 and is_same_json(
            known.answered[known.latest[0]].value, said[0].response
        )
    return all(
        one.query_id in known.latest
        and is_same_json(known.answered[one.query_id].value, one.response)
        for one in said
    )


def match_answers(
    known: QueryNames, said: list[AlcResponse], heard: QueryNames | None = None
) -> dict[str, Answer]:
    """The answers by our ids, without those that were given before.

    `heard` are the names as those who answer know them, if that was at an earlier step.
    """
    found: dict[str, Answer] = {}
    meanings = known if heard is None else heard
    for one in said:
        q = meanings.meant(one.query_id) if one.query_id else _sole(meanings)
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


def _sole(known: QueryNames) -> int:
    if len(known.open) == 1:
        return next(iter(known.open.values()))
    if known.open:
        words = f"{len(known.open)} queries pending; specify query_id explicitly"
        raise AlcRefused(f"Continue failed: invalid transition: {words}", "many_open_queries")
    raise AlcRefused("Continue failed: invalid transition: no pending queries", "no_open_query")
