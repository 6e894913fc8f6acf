"""Evals: measure how well a program does on a list of cases, and whether another does better.

Scenario, Case           what is asked, and what is expected
Exact, Judge, Custom …   graders: they score what a program returns
Evals                    `runtime.evals`: run, list, show, compare
EvalReport, Comparison   what they return

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.evals.evals import Evals as Evals
    from everhold.evals.graders import Contains as Contains
    from everhold.evals.graders import Custom as Custom
    from everhold.evals.graders import Exact as Exact
    from everhold.evals.graders import Grade as Grade
    from everhold.evals.graders import Grader as Grader
    from everhold.evals.graders import JsonSchema as JsonSchema
    from everhold.evals.graders import JsonValid as JsonValid
    from everhold.evals.graders import Judge as Judge
    from everhold.evals.graders import NotEmpty as NotEmpty
    from everhold.evals.graders import Number as Number
    from everhold.evals.graders import Regex as Regex
    from everhold.evals.graders import StartsWith as StartsWith
    from everhold.evals.graders import read_grader as read_grader
    from everhold.evals.report import Aggregate as Aggregate
    from everhold.evals.report import CaseResult as CaseResult
    from everhold.evals.report import Comparison as Comparison
    from everhold.evals.report import EvalReport as EvalReport
    from everhold.evals.report import EvalUsage as EvalUsage
    from everhold.evals.report import compare_reports as compare_reports
    from everhold.evals.scenario import Case as Case
    from everhold.evals.scenario import Scenario as Scenario
    from everhold.evals.scenario import load_scenario as load_scenario
    from everhold.evals.scenario import read_scenario as read_scenario
    from everhold.evals.totals import EvalInfo as EvalInfo

_HOMES = {
    "Aggregate": "evals.report",
    "Case": "evals.scenario",
    "CaseResult": "evals.report",
    "Comparison": "evals.report",
    "Contains": "evals.graders",
    "Custom": "evals.graders",
    "EvalInfo": "evals.totals",
    "EvalReport": "evals.report",
    "EvalUsage": "evals.report",
    "Evals": "evals.evals",
    "Exact": "evals.graders",
    "Grade": "evals.graders",
    "Grader": "evals.graders",
    "JsonSchema": "evals.graders",
    "JsonValid": "evals.graders",
    "Judge": "evals.graders",
    "NotEmpty": "evals.graders",
    "Number": "evals.graders",
    "Regex": "evals.graders",
    "Scenario": "evals.scenario",
    "StartsWith": "evals.graders",
    "compare_reports": "evals.report",
    "load_scenario": "evals.scenario",
    "read_grader": "evals.graders",
    "read_scenario": "evals.scenario",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
