"""Evals of Lua packages, as `alc.eval` runs them: in one session, one case after another.

The scenario is code, so it may have graders in Lua. It is stored with the session: the eval resumes
although the file has changed. What the session returns is a table of `evalframe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.errors import UnknownScenario
from everhold.evals.graders import Grade
from everhold.evals.report import (
    INLINE,
    Aggregate,
    CaseResponse,
    CaseResult,
    EvalReport,
    EvaluatedCase,
    EvalUsage,
    make_report,
)
from everhold.packages.find import is_path_ref
from everhold.packages.lua.scenario_files import (
    SUFFIX,
    find_scenario_file,
    read_scenario_file,
)
from everhold.ports.program import Call
from everhold.programs.lua.program import EVAL_TEXT_REF, LuaProgram
from everhold.programs.lua.search_path import SearchRoot


class LuaScenario(msgspec.Struct, frozen=True):
    """A scenario as Lua code: a chunk that returns a table, an expression, or JSON.

    `name` is that of a table without one, and `title` stands in errors of the code.
    """

    code: str
    name: str = INLINE
    title: str = "scenario"


def is_lua_scenario(source: str) -> bool:
    """Whether this is a .lua file, or the name of a scenario in algocline's home."""
    if source.endswith(SUFFIX):
        return True
    if Path(source).suffix or is_path_ref(source) or Path(source).exists():
        return False
    try:
        find_scenario_file(source)
    except UnknownScenario:
        return False
    return True


def load_lua_scenario(source: str) -> LuaScenario:
    """Load a scenario from a .lua file, or by its name in the home of algocline.

    Raises `BadScenario` or `UnknownScenario`.
    """
    file = Path(source).expanduser() if source.endswith(SUFFIX) else find_scenario_file(source)
    return LuaScenario(read_scenario_file(file), file.stem, file.name)


def make_lua_eval(
    scenario: LuaScenario,
    strategy: str,
    *,
    strategy_opts: Mapping[str, JSON] | None = None,
    auto_card: bool = False,
    roots: Iterable[str | Path | SearchRoot] = (),
) -> Call[Any]:
    """The call that measures the package `strategy`. With `auto_card` it writes a card."""
    ctx: dict[str, JSON] = {
        "scenario": msgspec.to_builtins(scenario),
        "strategy": strategy,
        "strategy_opts": dict(strategy_opts or {}),
        "auto_card": auto_card,
    }
    return LuaProgram.text(_load_code(), ctx, roots=roots, ref=EVAL_TEXT_REF)


@cache
def _load_code() -> str:
    return files("everhold.evals").joinpath("lua_eval.lua").read_text(encoding="utf-8")


# ---- reports


class _LuaCase(msgspec.Struct, frozen=True):
    input: JSON = None
    expected: JSON = None
    name: str = ""
    tags: list[str] | dict[str, JSON] = []  # an empty list may be written as an object


class _LuaResponse(msgspec.Struct, frozen=True):
    text: str = ""
    error: str = ""


class _LuaGrade(msgspec.Struct, frozen=True):
    grader: str = ""
    score: float = 0.0
    weight: float = 1.0
    error: str = ""
    warning: str = ""


class _LuaResult(msgspec.Struct, frozen=True):
    case: _LuaCase
    score: float
    passed: bool
    response: _LuaResponse = _LuaResponse()
    grades: list[_LuaGrade] | dict[str, JSON] = []


class _LuaReport(msgspec.Struct, frozen=True):
    aggregated: dict[str, JSON]
    results: list[_LuaResult] | dict[str, JSON]
    name: str = ""


def read_lua_report(
    plain: JSON,
    *,
    eval_id: str,
    strategy: str,
    args: dict[str, JSON],
    usage: EvalUsage,
    session_id: str = "",
) -> EvalReport:
    """The report of evalframe as one of everhold; raises `msgspec.ValidationError` for other data.

    Its figures stay as they are, if it has them all.
    """
    found = msgspec.convert(plain, _LuaReport)
    results = [_read_result(one, n, session_id) for n, one in enumerate(_as_list(found.results), 1)]
    scenario = found.name.removeprefix(f"{strategy}:") or INLINE
    report = make_report(
        results, eval_id=eval_id, scenario=scenario, program=strategy, args=args, usage=usage
    )
    try:
        figures = msgspec.convert({"by_tag": {}, **found.aggregated}, Aggregate)
    except msgspec.ValidationError:
        return report
    return msgspec.structs.replace(report, aggregated=figures)


def _read_result(found: _LuaResult, n: int, session_id: str) -> CaseResult:
    case = found.case
    return CaseResult(
        EvaluatedCase(case.name or f"case-{n}", case.input, case.expected, _as_list(case.tags)),
        CaseResponse(found.response.text, session_id, found.response.error),
        [
            Grade(one.grader, one.score, one.weight, one.warning, one.error)
            for one in _as_list(found.grades)
        ],
        found.score,
        found.passed,
    )


def _as_list(value: Any) -> list[Any]:
    """An empty table of Lua may have become an object."""
    return value if isinstance(value, list) else []
