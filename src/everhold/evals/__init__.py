"""Evals: measure how well a program does on a list of cases, and whether another does better.

Scenario, Case           what is asked, and what is expected
Exact, Judge, Custom …   graders: they score what a program returns
Evals                    `runtime.evals`: run, list, show, compare
EvalReport, Comparison   what they return
"""

from everhold.evals.evals import EvalInfo, Evals
from everhold.evals.graders import (
    Contains,
    Custom,
    Exact,
    Grade,
    Grader,
    JsonSchema,
    JsonValid,
    Judge,
    NotEmpty,
    Number,
    Regex,
    StartsWith,
    read_grader,
)
from everhold.evals.report import (
    Aggregate,
    CaseResult,
    Comparison,
    EvalReport,
    EvalUsage,
    compare_reports,
)
from everhold.evals.scenario import Case, Scenario, load_scenario, read_scenario

__all__ = [
    "Aggregate",
    "Case",
    "CaseResult",
    "Comparison",
    "Contains",
    "Custom",
    "EvalInfo",
    "EvalReport",
    "EvalUsage",
    "Evals",
    "Exact",
    "Grade",
    "Grader",
    "JsonSchema",
    "JsonValid",
    "Judge",
    "NotEmpty",
    "Number",
    "Regex",
    "Scenario",
    "StartsWith",
    "compare_reports",
    "load_scenario",
    "read_grader",
    "read_scenario",
]
