"""`runtime.evals`: run a program on the cases of a scenario, and list and compare the results.

An eval is a session of the program `evaluation.evaluate`, so everything that holds for sessions
holds for evals: they pause, they resume in another process, they are exported and deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON, to_plain
from everhold.core.session import ENDED, SessionId, SessionState
from everhold.core.status import Finished, OpenQuery, Paused, Running, Status
from everhold.engine.arguments import check_limit_arg, check_mapping_arg, parse_budget_arg
from everhold.engine.engine import Engine
from everhold.engine.journal_reader import read_steps
from everhold.engine.session_lookup import SessionRef, resolve_session_id
from everhold.errors import BadArguments, BadScenario, NotAnEval, Waiting
from everhold.evals.evaluation import TOTALS, Subject, Totals, describe_grader_fault, evaluate
from everhold.evals.graders import Custom
from everhold.evals.report import Comparison, EvalReport, compare_reports, read_report
from everhold.evals.scenario import Scenario, load_scenario, read_scenario
from everhold.packages.catalog import KnownPrograms
from everhold.ports.program import Program, StartVerb
from everhold.ports.store import SessionFilter, SessionSummary
from everhold.programs.lua.program import LuaProgram

#: Cases that run at the same time.
CONCURRENCY: Final = 4
#: Seconds between two looks at the sessions of an eval that is awaited.
POLL: Final = 0.1
#: The parameter of strategies, and of Lua packages, that takes the input of a case.
TASK: Final = "task"
_MOST_AT_ONCE: Final = 1000

#: A scenario as an argument: itself, plain data, or a file.
ScenarioRef = Scenario | Mapping[str, Any] | str | PathLike[str]


class EvalInfo(msgspec.Struct, frozen=True):
    """One eval in a listing. `mean_score` is that of the cases done so far."""

    session_id: str
    key: str | None
    scenario: str
    program: str
    state: str
    total: int
    done: int
    passed: int
    mean_score: float
    llm_calls: int
    total_tokens: int
    created_at: float
    updated_at: float


EvalProgress = Callable[[EvalInfo], None]


class Evals:
    """`runtime.evals`: evals of programs."""

    def __init__(self, engine: Engine, programs: KnownPrograms, start: StartVerb) -> None:
        self._engine = engine
        self._store = engine.store
        self._programs = programs
        self._start = start

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
        cases = self._load(scenario)
        subject = self._make_subject(cases, program, args, parameter, output)
        if type(concurrency) is not int or not 1 <= concurrency <= _MOST_AT_ONCE:
            raise BadArguments("evals.run", f"concurrency must be 1 to {_MOST_AT_ONCE}")
        limits = parse_budget_arg(budget)
        call = evaluate(
            scenario=cases.to_plain(),
            subject=msgspec.to_builtins(subject),
            concurrency=concurrency,
            budget=None if limits is None else limits.json(),
        )
        status = await self._start(
            call,
            key=key,
            title=title or f"{subject.name} on {cases.name}",
            labels=labels,
            metadata=metadata,
            again=again,
            wait=0,
        )
        if not isinstance(status, Finished):
            await self._offer_to_models(status.session_id)
        return status

    def _load(self, scenario: ScenarioRef) -> Scenario:
        """The scenario, checked; raises `BadScenario`, `BadGrader` or `UnknownGrader`."""
        if isinstance(scenario, Scenario | Mapping):
            found = read_scenario(scenario)
        else:
            found = load_scenario(scenario)
        for grader in [*found.graders, *(one for case in found.cases for one in case.graders)]:
            if isinstance(grader, Custom) and (fault := describe_grader_fault(grader.function)):
                raise BadScenario(found.name, f"grader {grader.function}: {fault}", fault.hint)
        return found

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
                return read_report(status.result)
            if not await self._is_moving(session_id, status):
                questions = await self.questions(session_id)
                # looked at again: a session may have moved between the two
                if questions and not await self._is_moving(session_id, status):
                    raise Waiting(session_id, tuple(questions))
            await asyncio.sleep(POLL)

    async def info(self, eval: SessionRef) -> EvalInfo:
        """One eval as `list` shows it: also one that has not ended."""
        record = await self._store.load(await self._resolve(eval), since=-1)
        return await self._describe(SessionSummary(record.birth, record.head))

    async def show(self, eval: SessionRef) -> EvalReport:
        """The report of an eval; raises `NotAnEval` if it has not ended."""
        session_id = await self._resolve(eval)
        status = await self._engine.status(session_id)
        if not isinstance(status, Finished):
            info = await self.info(session_id)
            raise NotAnEval(
                session_id,
                f"has no report yet: {info.done} of {info.total} cases are done",
                "Run it again with the same key, or answer its open questions.",
            )
        return read_report(status.result)

    async def compare(self, a: SessionRef, b: SessionRef) -> Comparison:
        """Compare two evals of one scenario; raises `EvalsDiffer` for others."""
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
        state: str | None = None,
        limit: int = 100,
    ) -> list[EvalInfo]:
        """Evals, newest first: of one scenario, program or state, if these are given."""
        check_limit_arg(limit)
        found: Any = []
        last: SessionId | None = None
        while len(found) < limit:
            rows = await self._store.list(
                SessionFilter(program=evaluate.ref, limit=100, after=last)
            )
            if not rows:
                break
            last = rows[-1].birth.id
            for row in rows:
                info = await self._describe(row)
                wanted = ((scenario, info.scenario), (program, info.program), (state, info.state))
                if all(one in (None, other) for one, other in wanted):
                    found.append(info)
        return [*found[:limit]]

    # ---- helpers

    async def _resolve(self, eval: SessionRef) -> SessionId:
        """The id of an eval; raises `UnknownSession` or `NotAnEval`."""
        session_id = await resolve_session_id(self._store, eval)
        birth = (await self._store.load(session_id, since=-1)).birth
        if birth.program != evaluate.ref:
            raise NotAnEval(session_id, f"is a session of {birth.program}, not an eval")
        return session_id

    async def _describe(self, row: SessionSummary) -> EvalInfo:
        birth, head = row.birth, row.head
        args: Any = birth.args
        totals = await self._read_totals(birth.id, ended=head.state in ENDED)
        return EvalInfo(
            birth.id,
            birth.key,
            args["scenario"]["name"],
            args["subject"]["name"],
            head.state.value,
            len(args["scenario"]["cases"]),
            totals.done,
            totals.passed,
            totals.score / totals.done if totals.done else 0.0,
            totals.llm_calls,
            totals.total_tokens,
            birth.created_at,
            head.updated_at,
        )

    async def _read_totals(self, session_id: str, *, ended: bool) -> Totals:
        found: dict[str, Any]
        if ended:
            status = await self._engine.status(session_id)
            found = dict(status.metrics["custom"]) if isinstance(status, Finished) else {}
        else:
            found = {}
            for step in read_steps((await self._store.load(session_id)).deliveries):
                found.update(step.notes.record)
        return msgspec.convert(found.get(TOTALS) or {}, Totals)

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
            for one in await self._list_cases(eval_id, SessionState.PAUSED):
                await self._engine.move(one)

    def _make_subject(
        self,
        scenario: Scenario,
        program: Program[..., Any] | str,
        args: Mapping[str, JSON] | None,
        parameter: str,
        output: str,
    ) -> Subject:
        """The program under evaluation; raises if an input of the scenario does not fit it."""
        found: Any = self._programs.find_newest(program) if isinstance(program, str) else program
        if not isinstance(found, Program):
            raise BadArguments("evals.run", f"{found!r:.100} is not a program, nor the name of one")
        self._programs.add(found)
        given: dict[str, Any] = {
            name: to_plain(value, f"args.{name}")
            for name, value in check_mapping_arg("args", args or {}).items()
        }
        text = isinstance(found, LuaProgram) and found.is_text
        subject = Subject(
            found.ref,
            found.name,
            found.version,
            given,
            parameter or _find_parameter(found),
            "ctx" if text else "",
            output,
        )
        by_name = msgspec.structs.replace(subject, parameter="")
        if not parameter and all(_has_arguments(found, case.input) for case in scenario.cases):
            subject = by_name
        for case in scenario.cases:
            try:
                found(**subject.make_args(case.input))
            except BadArguments as error:
                raise BadScenario(
                    scenario.name, f"case {case.id!r} does not fit {found.name}: {error}"
                ) from None
        return subject


def _find_parameter(program: Program[..., Any]) -> str:
    """The parameter that takes the input of a case."""
    if isinstance(program, LuaProgram):
        return TASK
    named = list(program.signature.parameters)
    if not named:
        raise BadArguments(program.name, "it has no parameter for the input of a case")
    return TASK if TASK in named else named[0]


def _has_arguments(program: Program[..., Any], given: JSON) -> bool:
    """Whether an input is an object with the arguments of the program by name."""
    if not isinstance(given, dict) or not given:
        return False
    return isinstance(program, LuaProgram) or given.keys() <= program.signature.parameters.keys()
