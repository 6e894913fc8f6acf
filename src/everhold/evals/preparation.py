"""What an eval begins with: the scenario, checked, and the program that takes its inputs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON, to_plain
from everhold.engine.arguments import check_mapping_arg, parse_budget_arg
from everhold.errors import BadArguments, BadScenario, UnknownProgram
from everhold.evals.evaluation import Subject, describe_grader_fault, evaluate
from everhold.evals.graders import Custom
from everhold.evals.lua_eval import (
    LuaScenario,
    is_lua_scenario,
    load_lua_scenario,
    make_lua_eval,
)
from everhold.evals.scenario import Scenario, load_scenario, read_scenario
from everhold.packages.catalog import KnownPrograms
from everhold.ports.program import Call, Program
from everhold.programs.lua.program import LuaProgram

#: The parameter of strategies, and of Lua packages, that takes the input of a case.
TASK: Final = "task"
_MOST_AT_ONCE: Final = 1000


def prepare_eval(
    programs: KnownPrograms,
    scenario: Scenario | Mapping[str, Any] | str | PathLike[str],
    program: Program[..., Any] | str,
    args: Mapping[str, JSON] | None,
    parameter: str,
    output: str,
    concurrency: int,
    budget: Budget | Mapping[str, int] | None,
) -> tuple[Call[Any], str]:
    """The call of an eval and its title. Raises if the eval cannot work: nothing has begun then."""
    if isinstance(scenario, str | PathLike) and is_lua_scenario(str(scenario)):
        given = {"parameter": parameter, "output": output, "budget": budget}
        return _prepare_lua_eval(programs, load_lua_scenario(str(scenario)), program, args, given)
    cases = _load_scenario(scenario)
    subject = _make_subject(programs, cases, program, args, parameter, output)
    if type(concurrency) is not int or not 1 <= concurrency <= _MOST_AT_ONCE:
        raise BadArguments("evals.run", f"concurrency must be 1 to {_MOST_AT_ONCE}")
    limits = parse_budget_arg(budget)
    call = evaluate(
        scenario=cases.to_plain(),
        subject=msgspec.to_builtins(subject),
        concurrency=concurrency,
        budget=None if limits is None else limits.json(),
    )
    return call, f"{subject.name} on {cases.name}"


def _prepare_lua_eval(
    programs: KnownPrograms,
    scenario: LuaScenario,
    program: Program[..., Any] | str,
    args: Mapping[str, JSON] | None,
    given: Mapping[str, Any],
) -> tuple[Call[Any], str]:
    """The call of an eval whose scenario is in Lua: it requires the package by its name."""
    for name, value in given.items():
        if value:
            raise BadScenario(scenario.name, f"it is in Lua, so {name} has no effect on it")
    found: Any = programs.find_newest(program) if isinstance(program, str) else program
    if not isinstance(found, LuaProgram) or not found.is_package:
        shown = getattr(found, "name", repr(found)[:100])
        raise BadScenario(
            scenario.name,
            f"it is in Lua, so it measures Lua packages, and {shown} is not one",
            "Write the scenario as a .toml file.",
        )
    try:
        named = programs.find_newest(found.name).ref
    except UnknownProgram:
        named = ""
    if named != found.ref:  # another process could not resume it
        raise BadScenario(
            scenario.name,
            f"it is in Lua, and the name {found.name!r} does not mean {found.home} here",
            f"everhold pkg link {shlex.quote(found.home)}",
        )
    opts = {
        name: to_plain(value, f"args.{name}")
        for name, value in check_mapping_arg("args", args or {}).items()
    }
    call = make_lua_eval(scenario, found.name, strategy_opts=opts, roots=found.roots)
    return call, f"{found.name} on {scenario.name}"


def _load_scenario(scenario: Scenario | Mapping[str, Any] | str | PathLike[str]) -> Scenario:
    """The scenario; raises `BadScenario`, also for a function of a grader that is not there."""
    if isinstance(scenario, Scenario | Mapping):
        found = read_scenario(scenario)
    else:
        found = load_scenario(scenario)
    for grader in [*found.graders, *(one for case in found.cases for one in case.graders)]:
        if isinstance(grader, Custom) and (fault := describe_grader_fault(grader.function)):
            raise BadScenario(found.name, f"grader {grader.function}: {fault}", fault.hint)
    return found


def _make_subject(
    programs: KnownPrograms,
    scenario: Scenario,
    program: Program[..., Any] | str,
    args: Mapping[str, JSON] | None,
    parameter: str,
    output: str,
) -> Subject:
    """The program under evaluation; raises if an input of the scenario does not fit it."""
    found: Any = programs.find_newest(program) if isinstance(program, str) else program
    if not isinstance(found, Program):
        raise BadArguments("evals.run", f"{found!r:.100} is not a program, nor the name of one")
    programs.add(found)
    given: dict[str, Any] = {
        name: to_plain(value, f"args.{name}")
        for name, value in check_mapping_arg("args", args or {}).items()
    }
    parameters = found.signature.parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in parameters):
        for name in sorted(given.keys() - {one.name for one in parameters}):
            raise BadArguments(found.name, f"it has no parameter {name!r}")
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
