"""`runtime.evals`: run a program on the cases of a scenario, and list and compare the results.

An eval is a session of the program `evaluation.evaluate`, or of `lua_eval.lua` if its scenario is
in Lua. So everything that holds for sessions holds for evals: they pause, they resume in another
process, they are exported and deleted. Evals that algocline has stored in files are read, too.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import find_open_queries
from everhold.core.session import ENDED, Birth, SessionId, SessionState
from everhold.core.status import Finished, OpenQuery, Paused, Running, Status
from everhold.engine.arguments import check_limit_arg, parse_states_arg
from everhold.engine.engine import Engine
from everhold.engine.journal_reader import read_steps
from everhold.engine.session_lookup import SessionRef, is_session_id, resolve_session_id
from everhold.errors import NotAnEval, Waiting
from everhold.evals.totals import EVAL_REF, TOTALS, EvalInfo, Totals
from everhold.packages.catalog import KnownPrograms
from everhold.packages.lua.paths import get_alc_home
from everhold.ports.program import Program, StartVerb
from everhold.ports.store import SessionFilter, SessionSummary
from everhold.programs.lua.program import EVAL_TEXT_REF

if TYPE_CHECKING:  # every runtime has this module, and few run evals
    from everhold.evals.eval_files import EvalFile, EvalFolder
    from everhold.evals.report import Comparison, EvalReport
    from everhold.evals.scenario import Scenario

    #: A scenario as an argument: itself, plain data, or a file.
    ScenarioRef = Scenario | Mapping[str, Any] | str | PathLike[str]

#: Cases that run at the same time.
CONCURRENCY: Final = 4
#: Seconds between two looks at the sessions of an eval that is awaited.
POLL: Final = 0.1
#: Sessions that are read at once for a listing.
_PAGE: Final = 100


EvalProgress = Callable[[EvalInfo], None]


class Evals:
    """`runtime.evals`: evals of programs. With `files`, those in algocline's home are read, too."""

    def __init__(
        self, engine: Engine, programs: KnownPrograms, start: StartVerb, *, files: bool = False
    ) -> None:
        self._engine = engine
        self._store = engine.store
        self._programs = programs
        self._start = start
        self._files = files

    async def run(
        self,
        scenario: ScenarioRef,
        program: Program[..., Any] | str,
        *,
        key: str | None = None,
        args: Mapping[str, JSON] | None = None,
        parameter: str = "",
        output: str = "",
        concurrency: int = CONCURRENCY,
        budget: Budget | Mapping[str, int] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        again: bool = False,
        progress: EvalProgress | None = None,
    ) -> EvalReport:
        """Run a program on every case of a scenario, and return the report.

        `scenario` is a `Scenario`, the same as plain data, or its file; `program` a program or its
        name. With a `key`, resumes the eval that was started with it: cases that have ended are not
        run again. Raises `Waiting` if cases need answers from outside, with these questions.

        `args` are arguments of the program besides the input of a case, which goes to `parameter`
        (default: `task`, else its first parameter). `output` is the path of the answer in the
        result. At most `concurrency` cases run at once. When the `budget` is spent, no further case
        begins. `progress` is called with an `EvalInfo` after each change.

        A scenario in Lua (a .lua file, or a name in algocline's home) measures a Lua package, one
        case after another; it takes no `parameter`, `output` or `budget`.
        """
        status = await self.start(
            scenario,
            program,
            key=key,
            args=args,
            parameter=parameter,
            output=output,
            concurrency=concurrency,
            budget=budget,
            title=title,
            labels=labels,
            again=again,
        )
        return await self.wait(status, progress=progress)

    async def resume(self, eval: SessionRef, *, progress: EvalProgress | None = None) -> EvalReport:
        """Resume an eval, and return its report as `run` does. Models of this process are asked
        the questions that are open.
        """
        session_id = await self._resolve(eval)
        await self._engine.move(session_id)
        await self._offer_to_models(session_id)
        return await self.wait(session_id, progress=progress)

    async def start(
        self,
        scenario: ScenarioRef,
        program: Program[..., Any] | str,
        *,
        key: str | None = None,
        args: Mapping[str, JSON] | None = None,
        parameter: str = "",
        output: str = "",
        concurrency: int = CONCURRENCY,
        budget: Budget | Mapping[str, int] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Status:
        """Start an eval as `run` does, and return the status of its session without waiting."""
        from everhold.evals.preparation import prepare_eval  # loads all that an eval needs

        call, described = prepare_eval(
            self._programs, scenario, program, args, parameter, output, concurrency, budget
        )
        status = await self._start(
            call,
            key=key,
            title=title or described,
            labels=labels,
            metadata=metadata,
            again=again,
            wait=0,
        )
        if not isinstance(status, Finished):
            await self._offer_to_models(status.session_id)
        return status

    async def wait(self, eval: SessionRef, *, progress: EvalProgress | None = None) -> EvalReport:
        """Wait until an eval has ended, and return its report.

        Raises `Waiting` if it cannot end without answers from outside, `Failed` or `Cancelled`.
        """
        session_id = await self._resolve(eval)
        told: EvalInfo | None = None
        while True:
            status = await self._engine.status(session_id)
            if progress is not None:
                info = await self.info(session_id)
                if told is None or info.done != told.done or info.state != told.state:
                    progress(info)
                told = info
            if isinstance(status, Finished):
                return await self._read_report(session_id, status)
            if not await self._is_moving(session_id, status):
                questions = await self.questions(session_id)
                # looked at again: a session may have moved between the two
                if questions and not await self._is_moving(session_id, status):
                    raise Waiting(session_id, tuple(questions))
            await asyncio.sleep(POLL)

    async def info(self, eval: SessionRef) -> EvalInfo:
        """One eval as `list` shows it: also one that has not ended."""
        if (stored := await self.find_file(eval)) is not None:
            return stored.describe()
        record = await self._store.load(await self._resolve(eval), since=-1)
        return await self._describe(SessionSummary(record.birth, record.head))

    async def show(self, eval: SessionRef) -> EvalReport:
        """The report of an eval; raises `NotAnEval` if it has not ended."""
        if (stored := await self.find_file(eval)) is not None:
            return stored.read_report()
        session_id = await self._resolve(eval)
        status = await self._engine.status(session_id)
        if not isinstance(status, Finished):
            info = await self.info(session_id)
            raise NotAnEval(
                session_id,
                f"has no report yet: {info.done} of {info.total} cases are done",
                "Run it again with the same key, or answer its open questions.",
            )
        return await self._read_report(session_id, status)

    async def compare(self, a: SessionRef, b: SessionRef) -> Comparison:
        """Compare two evals of one scenario; raises `EvalsDiffer` for others."""
        from everhold.evals.report import compare_reports

        return compare_reports(await self.show(a), await self.show(b))

    async def questions(self, eval: SessionRef) -> list[OpenQuery]:
        """The open questions of an eval and of its cases, oldest first."""
        session_id = await self._resolve(eval)
        found: list[OpenQuery] = []
        for one in [session_id, *await self._list_cases(session_id, SessionState.PAUSED)]:
            status = await self._engine.status(one)
            if isinstance(status, Paused):
                found += status.queries
        return sorted(found, key=lambda query: query.asked_at)

    async def list(
        self,
        *,
        scenario: str | None = None,
        program: str | None = None,
        state: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> list[EvalInfo]:
        """Evals, newest first: of one scenario, one program or some states, if these are given."""
        check_limit_arg(limit)
        states = parse_states_arg(state)

        def is_wanted(info: EvalInfo) -> bool:
            wanted = ((scenario, info.scenario), (program, info.program))
            return all(one in (None, other) for one, other in wanted)

        found: Any = []
        last: SessionId | None = None
        while len(found) < limit:
            rows = await self._store.list(
                SessionFilter(
                    programs=(EVAL_REF, EVAL_TEXT_REF),
                    state=states,
                    limit=min(limit, _PAGE),
                    after=last,
                )
            )
            if not rows:
                break
            last = rows[-1].birth.id
            infos = [await self._describe(row) for row in rows]
            found += [info for info in infos if is_wanted(info)]
        stored, _ = await self._list_files()
        infos = [one.describe() for one in stored]
        found += [
            info for info in infos if is_wanted(info) and info.state in (states or (info.state,))
        ]
        found.sort(key=lambda info: info.created_at, reverse=True)
        return [*found[:limit]]

    async def problems(self) -> builtins.list[str]:
        """Why files in algocline's folder of evals cannot be read."""
        return (await self._list_files())[1]

    async def find_file(self, eval: SessionRef) -> EvalFile | None:
        """The eval of this name in algocline's folder; None if there is none."""
        if not isinstance(eval, str) or is_session_id(eval):
            return None
        folder = self._find_folder()
        return None if folder is None else await asyncio.to_thread(folder.find, eval)

    # ---- helpers

    async def _resolve(self, eval: SessionRef) -> SessionId:
        """The id of an eval; raises `UnknownSession` or `NotAnEval`."""
        session_id = await resolve_session_id(self._store, eval)
        birth = (await self._store.load(session_id, since=-1)).birth
        if birth.program not in (EVAL_REF, EVAL_TEXT_REF):
            raise NotAnEval(session_id, f"is a session of {birth.program}, not an eval")
        return session_id

    def _find_folder(self) -> EvalFolder | None:
        if not self._files or not (root := get_alc_home().evals).is_dir():
            return None
        from everhold.evals.eval_files import EvalFolder  # few users have such files

        return EvalFolder(root)

    async def _list_files(self) -> tuple[Sequence[EvalFile], builtins.list[str]]:
        folder = self._find_folder()
        return ((), []) if folder is None else await asyncio.to_thread(folder.load)

    async def _describe(self, row: SessionSummary) -> EvalInfo:
        birth, head = row.birth, row.head
        args: Any = birth.args
        if head.state in ENDED:
            status = await self._engine.status(birth.id)
            custom = status.metrics["custom"] if isinstance(status, Finished) else {}
            asking = 0
        else:
            record = await self._store.load(birth.id)
            custom = {}
            for step in read_steps(record.deliveries):
                custom.update(step.notes.record)
            asking = len(find_open_queries(record.deliveries))
        totals = msgspec.convert(custom.get(TOTALS) or {}, Totals)
        if birth.program == EVAL_TEXT_REF:
            scenario, program, given = _read_lua_subject(birth)
            scenario, total = totals.scenario or scenario, totals.total
            metrics = head.metrics
            costs = (metrics.llm_calls - asking, metrics.prompt_tokens + metrics.response_tokens)
        else:
            scenario, program = args["scenario"]["name"], args["subject"]["name"]
            given, total = args["subject"].get("args", {}), len(args["scenario"]["cases"])
            costs = (totals.llm_calls, totals.total_tokens)
        return EvalInfo(
            birth.id,
            birth.key,
            scenario,
            program,
            given,
            head.state.value,
            total,
            totals.done,
            totals.passed,
            totals.score / totals.done if totals.done else 0.0,
            *costs,
            birth.created_at,
            head.updated_at,
        )

    async def _read_report(self, session_id: SessionId, status: Finished) -> EvalReport:
        """The report of an eval that has ended; raises `Failed` or `Cancelled` if it has none."""
        birth = (await self._store.load(session_id, since=-1)).birth
        if birth.program == EVAL_REF:
            from everhold.evals.report import read_report

            return read_report(status.result)
        from everhold.evals.evaluation import read_usage
        from everhold.evals.lua_eval import read_lua_report

        _, strategy, args = _read_lua_subject(birth)
        try:
            return read_lua_report(
                status.result,
                eval_id=session_id,
                strategy=strategy,
                args=args,
                usage=read_usage(status),
                session_id=session_id,
            )
        except msgspec.ValidationError as error:  # a package evalframe of the user's own
            reason = f"has no report that can be read: {error}"
            raise NotAnEval(session_id, reason) from None

    async def _list_cases(self, session_id: SessionId, state: SessionState) -> Sequence[SessionId]:
        """The sessions of cases and judges in a state, oldest first."""
        found: Any = []
        while rows := await self._store.list(
            SessionFilter(
                parent=session_id, state=(state,), limit=100, after=found[-1] if found else None
            )
        ):
            found += [row.birth.id for row in rows]
        return tuple(found[::-1])

    async def _is_moving(self, session_id: SessionId, status: Status) -> bool:
        """Whether some process works on the eval or on one of its cases."""
        if isinstance(status, Running) or self._engine.sessions.jobs.get(session_id):
            return True
        return bool(
            await self._store.list(
                SessionFilter(parent=session_id, state=(SessionState.RUNNING,), limit=1)
            )
        )

    async def _offer_to_models(self, session_id: str) -> None:
        """Ask the models of this process the questions that were left open before."""
        eval_id = SessionId(session_id)
        if self._engine.policy.answers_models:
            await self._engine.move(eval_id)
            for one in await self._list_cases(eval_id, SessionState.PAUSED):
                await self._engine.move(one)


def _read_lua_subject(birth: Birth) -> tuple[str, str, dict[str, JSON]]:
    """Scenario, program and arguments of an eval of a Lua package."""
    ctx: Any = birth.args["ctx"]
    return ctx["scenario"]["name"], ctx["strategy"], ctx["strategy_opts"]
