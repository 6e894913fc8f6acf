"""The report of an eval, from the results of its cases, and the comparison of two reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, is_same_json
from everhold.errors import EvalsDiffer
from everhold.evals.graders import Grade
from everhold.evals.statistics import (
    Difference,
    Interval,
    ScoreStats,
    WelchTest,
    compare_groups,
    compare_pairs,
    describe_scores,
    find_mean_interval,
    find_pass_at,
    run_welch_test,
)

#: The part of the cases of each eval that must match, so that they are compared as pairs.
PAIRED_SHARE: Final = 0.5
#: Fewer pairs than this that differ cannot show a difference: the smallest p-value is 2 / 2^5.
LEAST_DIFFERENT: Final = 6
#: The name of a scenario that has none.
INLINE: Final = "inline"
_NEARLY: Final = 1e-6


class EvalUsage(msgspec.Struct, frozen=True):
    """What sessions cost: model calls and tokens, as the sessions counted or estimated them."""

    llm_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    total_tokens: int = 0
    elapsed_ms: int = 0

    def plus(self, other: EvalUsage) -> EvalUsage:
        """The sum of two usages."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return EvalUsage(*(one + more for one, more in pairs))


class EvaluatedCase(msgspec.Struct, frozen=True):
    """The case of a result. `name` is its id."""

    name: str
    input: JSON
    expected: JSON = None
    tags: list[str] = []


class CaseResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the program answered to a case, and in which session; or why there is no answer."""

    text: str
    session_id: str = ""
    error: str = ""


class CaseResult(msgspec.Struct, frozen=True):
    """One case: its answer, its grades, and whether their weighted mean passed."""

    case: EvaluatedCase
    response: CaseResponse
    grades: list[Grade]
    score: float
    passed: bool
    usage: EvalUsage = EvalUsage()


class TagResult(msgspec.Struct, frozen=True):
    """The cases with one tag."""

    passed: int = msgspec.field(name="pass")
    fail: int
    rate: float
    stats: ScoreStats


class Aggregate(msgspec.Struct, frozen=True, omit_defaults=True):
    """All cases in figures. `pass_at_k` is the chance of a pass among k results of this eval."""

    total: int
    passed: int
    pass_rate: float
    pass_at_1: float
    scores: ScoreStats
    ci_95: Interval
    pass_at_5: float | None = None
    pass_at_10: float | None = None
    by_tag: dict[str, TagResult] = {}


class EvalReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an eval. `failures` are the results that did not pass, and `args` the arguments
    that the program got besides the input of each case.

    If the eval stopped before its last case, `stopped` says why, and `not_run` lists the cases.
    """

    name: str
    eval_id: str
    scenario: str
    program: str
    args: dict[str, JSON]
    aggregated: Aggregate
    failures: list[CaseResult]
    results: list[CaseResult]
    summary: str
    usage: EvalUsage
    stopped: str = ""
    not_run: list[str] = []


class EvalSide(msgspec.Struct, frozen=True):
    """One of two evals that are compared."""

    eval_id: str
    program: str
    args: dict[str, JSON]
    scores: ScoreStats
    pass_rate: float
    pass_at_1: float
    ci_95: Interval


class Comparison(msgspec.Struct, frozen=True):
    """Whether one of two evals is better. `better` is "a", "b" or "none".

    `method` is "paired bootstrap" or "welch"; `pairs` counts the cases that both have. `delta_mean`
    is the mean score of b minus that of a, over the cases compared, with its interval.
    """

    scenario: str
    a: EvalSide
    b: EvalSide
    method: str
    pairs: int
    delta_mean: float
    ci_95: Interval
    p_value: float
    better: str
    welch_t: WelchTest
    summary: str


def make_case_result(
    case: EvaluatedCase,
    response: CaseResponse,
    grades: Sequence[Grade],
    pass_score: float,
    usage: EvalUsage,
) -> CaseResult:
    """The result of a case: the weighted mean of its grades, or 0 without an answer."""
    weight = sum(grade.weight for grade in grades)
    score = sum(grade.score * grade.weight for grade in grades) / weight if weight else 0.0
    passed = bool(grades) and score >= pass_score - _NEARLY
    return CaseResult(case, response, list(grades), score, passed, usage)


def make_report(
    results: Sequence[CaseResult],
    *,
    eval_id: str,
    scenario: str,
    program: str,
    args: dict[str, JSON],
    usage: EvalUsage,
    stopped: str = "",
    not_run: Sequence[str] = (),
) -> EvalReport:
    """The report on these results."""
    name = f"{program}:{scenario}"
    aggregated = aggregate_results(results)
    return EvalReport(
        name=name,
        eval_id=eval_id,
        scenario=scenario,
        program=program,
        args=args,
        aggregated=aggregated,
        failures=[result for result in results if not result.passed],
        results=list(results),
        summary=_summarize(name, aggregated, usage, stopped),
        usage=usage,
        stopped=stopped,
        not_run=list(not_run),
    )


def read_report(plain: Any) -> EvalReport:
    """The report that an eval returned."""
    return msgspec.convert(plain, EvalReport)


def aggregate_results(results: Sequence[CaseResult]) -> Aggregate:
    """The figures of a list of results."""
    n = len(results)
    passed = sum(result.passed for result in results)
    scores = [result.score for result in results]
    tags = sorted({tag for result in results for tag in result.case.tags})
    return Aggregate(
        n,
        passed,
        passed / n if n else 0.0,
        find_pass_at(n, passed, 1),
        describe_scores(scores),
        find_mean_interval(scores),
        find_pass_at(n, passed, 5) if n >= 5 else None,
        find_pass_at(n, passed, 10) if n >= 10 else None,
        {tag: _describe_tag([one for one in results if tag in one.case.tags]) for tag in tags},
    )


def _describe_tag(results: Sequence[CaseResult]) -> TagResult:
    passed = sum(result.passed for result in results)
    scores = describe_scores([result.score for result in results])
    return TagResult(passed, len(results) - passed, passed / len(results), scores)


def _summarize(name: str, found: Aggregate, usage: EvalUsage, stopped: str) -> str:
    cases = f"{found.total} case{'' if found.total == 1 else 's'}"
    interval = f"{found.ci_95.lower:.2f} to {found.ci_95.upper:.2f}"
    words = (
        f"{name}: {found.passed} of {cases} passed ({found.pass_rate:.0%});"
        f" mean score {found.scores.mean:.2f} (95 % CI {interval})"
        f"; {usage.llm_calls} model call{'' if usage.llm_calls == 1 else 's'},"
        f" {usage.total_tokens} tokens"
    )
    return f"{words}; stopped early: {stopped}" if stopped else words


def explain_result(result: CaseResult) -> str:
    """Why a case did not pass, in one line."""
    if result.response.error:
        return result.response.error
    return "; ".join(
        grade.error or grade.reason or f"{grade.grader} gave {grade.score:g}"
        for grade in result.grades
        if grade.score < 1
    )


# ---- comparing


def compare_reports(a: EvalReport, b: EvalReport) -> Comparison:
    """Compare two reports on one scenario; raises `EvalsDiffer` for any others."""
    if a.scenario != b.scenario:
        raise EvalsDiffer(f"they measured different scenarios, {a.scenario!r} and {b.scenario!r}")
    for report in (a, b):
        if not report.results:
            raise EvalsDiffer(f"{report.eval_id} evaluated no case")
    of_a = [result.score for result in a.results]
    of_b = [result.score for result in b.results]
    pairs = pair_scores(a, b)
    if a.scenario == INLINE and not pairs:
        raise EvalsDiffer("their scenarios have no name, and no case in common")
    paired = len(pairs) >= PAIRED_SHARE * max(len(of_a), len(of_b))
    if paired:
        differences = [second - first for first, second in pairs]
        found = compare_pairs(differences)
        reason = _describe_pairs(differences, len(of_a), len(of_b))
    else:
        found = compare_groups(of_a, of_b)
        reason = f"{len(of_a)} and {len(of_b)} cases, most of them not the same"
    better = "none" if not found.shown else "b" if found.delta > 0 else "a"
    return Comparison(
        a.scenario,
        _describe_side(a),
        _describe_side(b),
        "paired bootstrap" if paired else "welch",
        len(pairs),
        found.delta,
        found.interval,
        found.p_value,
        better,
        run_welch_test(of_a, of_b),
        _describe_difference(found, better, reason),
    )


def pair_scores(a: EvalReport, b: EvalReport) -> list[tuple[float, float]]:
    """The scores of the cases that both reports have: of one id, input and expected output."""
    known = {result.case.name: result for result in a.results}
    return [
        (known[two.case.name].score, two.score)
        for two in b.results
        if two.case.name in known
        and is_same_json(known[two.case.name].case.input, two.case.input)
        and is_same_json(known[two.case.name].case.expected, two.case.expected)
    ]


def _describe_side(report: EvalReport) -> EvalSide:
    found = report.aggregated
    return EvalSide(
        report.eval_id,
        report.program,
        report.args,
        found.scores,
        found.pass_rate,
        found.pass_at_1,
        found.ci_95,
    )


def _describe_difference(found: Difference, better: str, reason: str) -> str:
    delta = found.delta
    interval = found.interval
    if better != "none":
        low, high = sorted((abs(interval.lower), abs(interval.upper)))
        return (
            f"{better.upper()} is better by {_points(abs(delta))} points"
            f" (95 % CI {_points(low)} to {_points(high)}; {reason})"
        )
    points = _points(abs(delta))
    found_one = f"B scored {points} points {'less' if delta < 0 else 'more'} than A"
    return (
        f"no difference can be shown: {'both scored the same' if points == '0' else found_one}"
        f" (95 % CI {_points(interval.lower)} to {_points(interval.upper)}; {reason})"
    )


def _describe_pairs(differences: Sequence[float], of_a: int, of_b: int) -> str:
    n = len(differences)
    differ = sum(abs(one) > _NEARLY for one in differences)
    words = f"{n} case{'' if n == 1 else 's'} in both"
    left = of_a + of_b - 2 * n
    words += f", {left} only in one" if left else ""
    words += f", {differ} scored differently"
    if 0 < differ < LEAST_DIFFERENT:
        words += f"; fewer than {LEAST_DIFFERENT} of these cannot show a difference"
    return words


def _points(share: float) -> str:
    """A score in points of 100, without needless digits."""
    points = round(share * 100, 1)
    shown = f"{points:.0f}" if points == int(points) else f"{points:.1f}"
    return "0" if shown == "-0" else shown.replace("-", "−")
