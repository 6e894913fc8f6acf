"""The tools for scenarios and evals: parameters, descriptions and handlers.

Rules
  1. An eval is a session: `alc_eval` pauses with its questions, and `alc_continue` answers them.
     Its id is that of its session; evals in files of algocline are named as their files.
  2. Evals that were started through other fronts are listed, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from everhold import packages
from everhold.core.codec import JSON
from everhold.core.metrics import Metrics
from everhold.core.session import ENDED
from everhold.core.status import Finished, Raised, Returned
from everhold.errors import EverholdError, NotAnEval, UnknownSession
from everhold.evals.totals import EvalInfo
from everhold.mcp.algocline.alc_wire import (
    AlcRefused,
    AlcTool,
    dump_compact,
    render_alc_status,
)
from everhold.mcp.algocline.query_ids import load_open_names
from everhold.runtime import Runtime

if TYPE_CHECKING:  # a server starts without what only evals need
    from everhold.evals.report import Comparison, EvalSide

Limit = Annotated[int, Meta(ge=0)]
EvalId = Annotated[
    str, Meta(description="The id of an eval, from alc_eval_history or the result of alc_eval.")
]


class RunEvalArgs(msgspec.Struct):
    strategy: Annotated[
        str, Meta(description="Name of the package to measure. alc_pkg_list lists the packages.")
    ]
    scenario: Annotated[
        str | None,
        Meta(
            description="Lua code of a scenario, such as return { cases = { { input = '2 + 2?',"
            " expected = '4' } }, graders = { 'contains' } }. Graders: exact_match (the default),"
            " contains, starts_with, regex, json_valid, not_empty."
        ),
    ] = None
    scenario_file: Annotated[
        str | None, Meta(description="Path of a .lua file in the project with a scenario.")
    ] = None
    scenario_name: Annotated[
        str | None, Meta(description="Name of an installed scenario, from alc_scenario_list.")
    ] = None
    strategy_opts: Annotated[
        Any,
        Meta(
            description="More values for the `ctx` of the strategy, in every case.",
            extra_json_schema={"type": "object"},
        ),
    ] = None
    auto_card: Annotated[bool, Meta(description="Also record the scores as a card.")] = False


class EvalHistoryArgs(msgspec.Struct):
    strategy: Annotated[str | None, Meta(description="Only evals of this strategy.")] = None
    limit: Annotated[Limit | None, Meta(description="How many evals to list. Default 20.")] = None


class EvalDetailArgs(msgspec.Struct):
    eval_id: EvalId


class CompareEvalsArgs(msgspec.Struct):
    eval_id_a: EvalId
    eval_id_b: EvalId


class ListScenariosArgs(msgspec.Struct):
    pass


class ScenarioArgs(msgspec.Struct):
    name: Annotated[str, Meta(description="The scenario's name.")]


class InstallScenariosArgs(msgspec.Struct):
    url: Annotated[
        str,
        Meta(
            description="Absolute path of a folder, or URL of a git repository, with .lua files of"
            " scenarios, or with a folder scenarios/ of them."
        ),
    ]


EVAL_TOOLS: Final = (
    AlcTool(
        "alc_eval",
        "Measure a package on the cases of a scenario. Give one of scenario, scenario_file and"
        " scenario_name. Answer each question that it returns yourself with alc_continue, as the"
        " model that is measured, until the status is completed. The result has the scores, and"
        " eval_id names it for alc_eval_compare. Answered cases are stored: after a restart only"
        " the others are asked.",
        RunEvalArgs,
    ),
    AlcTool(
        "alc_eval_history",
        "List the evals that have ended, newest first.",
        EvalHistoryArgs,
        reads=True,
    ),
    AlcTool(
        "alc_eval_detail", "Show the result of an eval: each case.", EvalDetailArgs, reads=True
    ),
    AlcTool(
        "alc_eval_compare",
        "Say whether one of two evals of a scenario is better, and how sure that is.",
        CompareEvalsArgs,
        reads=False,
    ),
    AlcTool("alc_scenario_list", "List the installed scenarios.", ListScenariosArgs, reads=True),
    AlcTool(
        "alc_scenario_show", "Show the code of an installed scenario.", ScenarioArgs, reads=True
    ),
    AlcTool(
        "alc_scenario_install",
        "Install scenarios from a folder or a git repository. Those that are here already are"
        " skipped.",
        InstallScenariosArgs,
    ),
)
DEFAULT_LISTED: Final = 20

# ---- evals


async def _list(runtime: Runtime, given: EvalHistoryArgs) -> str:
    limit = DEFAULT_LISTED if given.limit is None else given.limit
    found = (
        await runtime.evals.list(program=given.strategy, state=ENDED, limit=limit) if limit else []
    )
    shown: dict[str, JSON] = {"evals": [await _describe(runtime, info) for info in found]}
    if problems := await runtime.evals.problems():
        shown["warnings"] = [*problems]
    return dump_compact(shown)


async def _describe(runtime: Runtime, info: EvalInfo) -> JSON:
    """A row of the history: of a file with the figures that lie beside it."""
    row: dict[str, JSON] = {
        "eval_id": info.session_id,
        "strategy": info.program,
        "scenario": info.scenario,
        "timestamp": int(info.created_at),
        "pass_rate": info.passed / info.done if info.done else None,
        "mean_score": info.mean_score if info.done else None,
        "total_cases": info.total,
        "passed": info.passed,
        "llm_calls": info.llm_calls,
        "elapsed_ms": 0,
        "summary": "",
    }
    if (stored := await runtime.evals.find_file(info.session_id)) is not None:
        summary = stored.report.get("summary", "")
        return {**row, "summary": summary, **stored.meta}
    status = await runtime.status(info.session_id)
    if isinstance(status, Finished):
        row["elapsed_ms"] = status.metrics["auto"]["elapsed_ms"]
        row |= _describe_outcome(status)
    return row


def _describe_outcome(status: Finished) -> dict[str, JSON]:
    match status.outcome:
        case Returned(dict() as report):
            return {"summary": report.get("summary", "")}
        case Raised(error):
            return {"pass_rate": None, "mean_score": None, "summary": f"failed: {error}"}
    return {"pass_rate": None, "mean_score": None, "summary": str(status.state)}


async def read_eval(runtime: Runtime, eval_id: str) -> str:
    """The result of an eval as its tool returned it; raises `AlcRefused`."""
    if (stored := await runtime.evals.find_file(eval_id)) is not None:
        return stored.text
    info = await _find_eval(runtime, eval_id)
    status = await runtime.status(info.session_id)
    if not isinstance(status, Finished):
        words = f"Eval '{eval_id}' has not ended: {info.done} of {info.total} cases are done"
        raise AlcRefused(words, "not_an_eval", "alc_status shows its open questions.")
    _, names = await load_open_names(runtime.store, info.session_id)
    return dump_compact(add_eval_id(status, render_alc_status(status, names)))


def add_eval_id(status: Finished, shown: dict[str, JSON]) -> dict[str, JSON]:
    """The result of an eval, with the name by which it can be read again."""
    completed = isinstance(status.outcome, Returned)
    return {**shown, "eval_id": status.session_id} if completed else shown


async def _find_eval(runtime: Runtime, eval_id: str) -> EvalInfo:
    try:
        return await runtime.evals.info(eval_id)
    except UnknownSession as error:
        raise AlcRefused(f"Eval result not found: {eval_id}", error.code, _LIST) from None
    except NotAnEval as error:
        raise AlcRefused(str(error), error.code, _LIST) from None


_LIST: Final = "alc_eval_history lists the evals that have ended."


async def _compare(runtime: Runtime, given: CompareEvalsArgs) -> str:
    a, b = [
        (await _find_eval(runtime, eval_id)).session_id
        for eval_id in (given.eval_id_a, given.eval_id_b)
    ]
    try:
        found = await runtime.evals.compare(a, b)
    except NotAnEval as error:
        words = f"Eval {error.session_id!r} {error.reason}"
        raise AlcRefused(words, error.code, "alc_status shows its open questions.") from None
    except EverholdError as error:
        raise AlcRefused.of(error) from None
    made: dict[str, JSON] = {
        "status": "completed",
        "result": render_comparison(found),
        "stats": Metrics().stats(0),
    }
    return dump_compact(made)


def render_comparison(found: Comparison) -> dict[str, JSON]:
    """A comparison with algocline's keys; `scenario` and those of the method are added."""
    return {
        "a": _render_side(found.a),
        "b": _render_side(found.b),
        "scenario": found.scenario,
        "comparison": {
            "delta_mean": found.delta_mean,
            "welch_t": msgspec.to_builtins(found.welch_t),
            "winner": found.better,
            "summary": found.summary,
            "method": found.method,
            "pairs": found.pairs,
            "ci_95": msgspec.to_builtins(found.ci_95),
            "p_value": found.p_value,
        },
    }


def _render_side(side: EvalSide) -> dict[str, JSON]:
    plain: dict[str, JSON] = msgspec.to_builtins(side)
    plain["strategy"] = plain.pop("program")
    return plain


EVAL_VERBS: Final[dict[str, Callable[[Runtime, Any], Awaitable[str]]]] = {
    "eval_history": _list,
    "eval_detail": lambda runtime, given: read_eval(runtime, given.eval_id),
    "eval_compare": _compare,
}

# ---- scenarios: they run in a thread, because they read files and fetch repositories

SCENARIO_VERBS: Final[dict[str, Callable[[Any], dict[str, JSON]]]] = {
    "scenario_list": lambda given: packages.list_scenarios(),
    "scenario_show": lambda given: packages.show_scenario(given.name),
    "scenario_install": lambda given: packages.install_scenarios(given.url),
}
