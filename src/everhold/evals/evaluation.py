"""The program of an eval: it runs a program on each case of a scenario, and grades what it returns.

Rules
  1. It uses the public `ctx` only. Each case is a child session of the program under evaluation,
     and so is each question to a judge. What has ended is never run again.
  2. A case never ends the eval: a program that fails, a grader that raises and a judge without a
     verdict are failures of that case.
  3. A budget is checked before each case begins. Cases that run then still end, so the eval may
     spend a little more.
  4. The program under evaluation is named by reference. A process that does not have it can move
     the eval, but not its cases.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON, dumps
from everhold.core.status import Finished
from everhold.errors import AnswerFailed, BudgetExceeded, ChildFailed, EverholdError, UnknownGrader
from everhold.evals.graders import FUNCTIONS, Custom, Grade, Grader, Judge, Output, quote_value
from everhold.evals.judge import Verdict, judge_answer, make_judge_prompt
from everhold.evals.report import (
    CaseResponse,
    CaseResult,
    EvaluatedCase,
    EvalUsage,
    explain_result,
    make_case_result,
    make_report,
)
from everhold.evals.scenario import Case, Scenario, read_scenario
from everhold.evals.totals import TOTALS, Totals
from everhold.packages.find import is_path_ref
from everhold.packages.load import load_file, load_module
from everhold.ports.context import Call, Context
from everhold.ports.program import program
from everhold.ports.tool_services import ToolSessions

#: Characters of an output that a report keeps; the session of the case has all.
MAX_OUTPUT_CHARS: Final = 4000
#: Fields of a result in which programs put their answer, in the order they are tried.
_ANSWER_FIELDS: Final = ("answer", "summary", "output", "text")


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The program under evaluation, and how it takes the input of a case.

    `parameter` takes the input; "" means that the input has the arguments by name. With `wraps`,
    the input goes into the argument of this name, as the `ctx` of Lua text. `output` is the path of
    the answer in the result, such as "verdict.text".
    """

    ref: str
    name: str
    version: int = 1
    args: dict[str, JSON] = {}
    parameter: str = ""
    wraps: str = ""
    output: str = ""

    def make_args(self, given: JSON) -> dict[str, JSON]:
        """The arguments of the program for the input of one case."""
        own: dict[str, JSON] = {self.parameter: given} if self.parameter else dict(given)
        if not self.wraps:
            return {**self.args, **own}
        return {**self.args, self.wraps: {**(self.args.get(self.wraps) or {}), **own}}


class SubjectProgram:
    """A program of which only the reference is needed: its own session finds it."""

    digest = ""
    types: Mapping[str, Any] = {}

    def __init__(self, subject: Subject) -> None:
        self.ref = subject.ref
        self.name = subject.name
        self.version = subject.version

    @property
    def body(self) -> Any:
        raise AssertionError("the program under evaluation runs in a session of its own")

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        return args


@program(name="eval")
async def evaluate(
    ctx: Context,
    scenario: dict[str, Any],
    subject: dict[str, Any],
    concurrency: int,
    budget: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a program on every case of a scenario, and report how well it did."""
    run = _Evaluation(
        ctx,
        read_scenario(scenario),
        msgspec.convert(subject, Subject),
        Budget.read(budget) or Budget(),
    )
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(run.scenario.cases))):
            group.create_task(run.work())
    return run.report()


class _Evaluation:
    """One run of `evaluate`."""

    def __init__(self, ctx: Context, scenario: Scenario, subject: Subject, budget: Budget) -> None:
        self.scenario = scenario
        self._ctx = ctx
        self._subject = subject
        self._budget = budget
        self._results: dict[int, CaseResult] = {}
        self._next = 0
        self._usage = EvalUsage()
        self._began = ctx.now()
        self._stopped = ""
        self._totals = Totals(total=len(scenario.cases))
        self._tell()

    async def work(self) -> None:
        """Evaluate cases until none is left, or the budget is spent."""
        while self._next < len(self.scenario.cases) and not self._stopped:
            self._stopped = self._find_limit()
            if not self._stopped:
                place = self._next
                self._next += 1
                self._results[place] = await self._evaluate_case(self.scenario.cases[place])
                self._count(self._results[place])

    def report(self) -> dict[str, Any]:
        cases = self.scenario.cases
        found = make_report(
            [self._results[place] for place in sorted(self._results)],
            eval_id=self._ctx.session_id,
            scenario=self.scenario.name,
            program=self._subject.name,
            args=self._subject.args,
            usage=self._usage,
            stopped=self._stopped,
            not_run=[case.id for place, case in enumerate(cases) if place not in self._results],
        )
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain

    # ---- one case

    async def _evaluate_case(self, case: Case) -> CaseResult:
        shown = EvaluatedCase(case.id, case.input, case.expected, list(case.tags))
        call: Call[Any] = Call(SubjectProgram(self._subject), self._subject.make_args(case.input))
        child = self._ctx.spawn(call, title=case.id)
        grades: list[Grade] = []
        usage = EvalUsage()
        try:
            output = find_output(await child, self._subject.output)
        except ChildFailed as error:
            response = CaseResponse("", child.session_id, f"{error.state}: {error.error}")
        except LookupError as error:
            response = CaseResponse("", child.session_id, str(error))
        else:
            response = CaseResponse(_cut(output.text), child.session_id)
            for grader in self.scenario.graders_of(case):
                grade, more = await self._grade(grader, output, case)
                grades.append(grade)
                usage = usage.plus(more)
        usage = usage.plus(await self._measure(child.session_id))
        return make_case_result(shown, response, grades, self.scenario.pass_score, usage)

    async def _grade(self, grader: Grader, output: Output, case: Case) -> tuple[Grade, EvalUsage]:
        try:
            if isinstance(grader, Judge):
                return await self._ask_judge(grader, output, case)
            if isinstance(grader, Custom):
                told = {**_describe_case(case), "value": output.value}
                verdict = await self._ctx.call(
                    run_custom_grader, grader.function, output.text, told
                )
                grade = Grade(grader.name, verdict.score, grader.weight, verdict.reason)
                return grade, EvalUsage()
            return grader.grade(output, case.expected), EvalUsage()
        except AnswerFailed as error:
            reason = f"the grader {grader.name} raised {error.kind or 'an error'}: {error}"
            return Grade(grader.name, 0.0, grader.weight, error=reason), EvalUsage()

    async def _ask_judge(self, judge: Judge, output: Output, case: Case) -> tuple[Grade, EvalUsage]:
        prompt = make_judge_prompt(judge, case.input, case.expected, output.text)
        child = self._ctx.spawn(
            judge_answer(prompt, judge.scale, judge.model, judge.max_tokens),
            title=f"{case.id}: {judge.name}",
        )
        try:
            verdict = msgspec.convert(await child, Verdict)
        except ChildFailed as error:
            verdict = Verdict(error=f"the judge {error.state}: {error.error}")
        grade = Grade(judge.name, verdict.score, judge.weight, verdict.reason, verdict.error)
        return grade, await self._measure(child.session_id)

    # ---- figures

    async def _measure(self, session_id: str) -> EvalUsage:
        try:
            return await self._ctx.call(measure_session, session_id)
        except AnswerFailed:  # the session was deleted
            return EvalUsage()

    def _count(self, result: CaseResult) -> None:
        self._usage = self._usage.plus(result.usage)
        self._totals.done += 1
        self._totals.passed += result.passed
        self._totals.score += result.score
        self._totals.llm_calls = self._usage.llm_calls
        self._totals.total_tokens = self._usage.total_tokens
        self._tell()
        if not result.passed:
            self._ctx.log(f"case {result.case.name} did not pass: {explain_result(result)}")

    def _tell(self) -> None:
        totals = self._totals
        self._ctx.record(TOTALS, msgspec.to_builtins(totals))
        self._ctx.progress(
            totals.done,
            totals.total,
            f"{totals.passed} passed, {totals.llm_calls} model calls, {totals.total_tokens} tokens",
        )

    def _find_limit(self) -> str:
        """Why no further case may begin; empty if one may."""
        elapsed = (self._ctx.now() - self._began).total_seconds()
        try:
            self._budget.check(
                1,
                llm_calls=self._usage.llm_calls,
                elapsed_ms=int(elapsed * 1000),
                tokens=self._usage.total_tokens,
            )
        except BudgetExceeded as error:
            return str(error).removeprefix(f"{error.code}: ")
        return ""


# ---- outputs


def find_output(value: JSON, path: str = "") -> Output:
    """The answer in the result of a program; raises `LookupError` if `path` is not in it.

    Without a `path`: a text is the answer. Of an object, `result` is read if there is one, then the
    first text among `answer`, `summary`, `output` and `text`. Any other value is shown as JSON.
    """
    if path:
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                raise LookupError(f"the result {quote_value(value)} has no {path!r}")
            value = value[part]
    else:
        if isinstance(value, dict) and value.get("result") is not None:
            value = value["result"]
        if isinstance(value, dict):
            texts = (value.get(field) for field in _ANSWER_FIELDS)
            value = next((text for text in texts if isinstance(text, str)), value)
    text = value if isinstance(value, str) else "" if value is None else dumps(value)
    return Output(text, value)


def _cut(text: str) -> str:
    if len(text) <= MAX_OUTPUT_CHARS:
        return text
    return f"{text[:MAX_OUTPUT_CHARS]} … (cut: it has {len(text)} characters)"


def _describe_case(case: Case) -> dict[str, JSON]:
    return {
        "id": case.id,
        "input": case.input,
        "expected": case.expected,
        "tags": list(case.tags),
    }


# ---- calls


async def measure_session(session_id: str) -> EvalUsage:
    """The cost of an ended session."""
    status = await ToolSessions().status(session_id)
    return read_usage(status) if isinstance(status, Finished) else EvalUsage()


def read_usage(status: Finished) -> EvalUsage:
    """The cost in a status."""
    auto: Any = status.metrics["auto"]
    return EvalUsage(
        auto["llm_calls"],
        auto["prompt_tokens"]["tokens"],
        auto["response_tokens"]["tokens"],
        auto["total_tokens"]["tokens"],
        auto["elapsed_ms"],
    )


async def run_custom_grader(ref: str, text: str, case: dict[str, Any]) -> Verdict:
    """The verdict of a function on an output. One that is not async runs in a thread."""
    function = find_function(ref)
    if inspect.iscoroutinefunction(function):
        return read_custom_verdict(await function(text, case))
    return read_custom_verdict(await asyncio.to_thread(function, text, case))


def find_function(ref: str) -> Any:
    """The function of a reference; raises `UnknownGrader`."""
    if ref in FUNCTIONS:
        return FUNCTIONS[ref]
    place, _, name = ref.rpartition(":")
    module: Any = load_file_or_module(place, ref)
    for part in name.split("."):
        module = getattr(module, part, None)
    if not callable(module):
        known = [
            each for each, one in vars(load_file_or_module(place, ref)).items() if callable(one)
        ]
        raise UnknownGrader(ref, "", sorted(known))
    return module


def load_file_or_module(place: str, ref: str) -> Any:
    """The module of a reference."""
    from pathlib import Path

    if is_path_ref(place):
        return load_file(Path(place).expanduser().resolve(), ref)
    return load_module(place, ref)


def read_custom_verdict(verdict: Any) -> Verdict:
    """What a function returned; raises `ValueError` if it is no verdict."""
    reason = ""
    if isinstance(verdict, list | tuple) and len(verdict) == 2 and isinstance(verdict[1], str):
        verdict, reason = verdict
    if isinstance(verdict, bool):
        return Verdict(float(verdict), reason)
    if isinstance(verdict, int | float) and 0 <= verdict <= 1:
        return Verdict(float(verdict), reason)
    raise ValueError(
        f"it must return a score from 0 to 1, a bool, or a pair of one of them and a reason, not"
        f" {quote_value(verdict)}"
    )


def describe_grader_fault(ref: str) -> EverholdError | None:
    """Why the function of a custom grader cannot be used; None if it can."""
    try:
        find_function(ref)
    except EverholdError as error:
        return error
    return None
