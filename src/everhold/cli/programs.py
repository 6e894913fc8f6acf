"""`everhold programs`: what can be run by name, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from everhold.cli.candidates import complete_programs
from everhold.cli.context import load_settings, resolve_program
from everhold.cli.options import (
    add_common_options,
    hint_parameters,
    make_usage_error,
    parse_named_arguments,
)
from everhold.cli.output import print_json, print_table, strip_controls
from everhold.core.codec import JSON
from everhold.programs.lua.program import LuaProgram

if TYPE_CHECKING:
    from everhold.packages.catalog import ProgramEntry
    from everhold.packages.strategies.metadata import Estimate, Strategy, StrategyParameter
    from everhold.ports.program import Program


@click.command("programs")
@click.argument("name", required=False, shell_complete=complete_programs)
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@add_common_options
def programs_(
    name: str | None, arguments: tuple[str, ...], database: str | None, as_json: bool
) -> None:
    """List the programs that `run` knows by name, or describe one.

    With arguments, the cost is that of a call with them: everhold programs rank n=8
    """
    from everhold.packages.catalog import load_catalog

    if name is not None:
        return _describe(resolve_program(database, name), arguments, as_json)
    found = load_catalog(load_settings(database))
    if as_json:
        rows: list[JSON] = [_entry_to_json(entry) for entry in found.entries]
        return print_json(
            {"programs": rows, "problems": [str(problem) for problem in found.problems]}
        )
    print_table(
        ("name", "written in", "cost", "description"),
        map(_row, found.entries),
        wide=("description",),
    )
    for entry in found.entries:
        if entry.hidden:
            click.echo(
                f"the name {entry.name} means another program; to run this one:"
                f" everhold run {entry.ref}"
            )
    for problem in found.problems:
        click.secho(f"problem: {problem}", fg="red")
    return None


def _row(entry: ProgramEntry) -> tuple[str, ...]:
    written = (
        "everhold" if entry.kind == "strategy" else {"python": "Python", "lua": "Lua"}[entry.kind]
    )
    return entry.name, written, str(entry.estimate or ""), entry.summary


def _entry_to_json(entry: ProgramEntry) -> dict[str, JSON]:
    fields: dict[str, JSON] = msgspec.to_builtins(entry)
    return fields | {"estimate": None if entry.estimate is None else entry.estimate.plain}


def _describe(program: Program[Any, Any], arguments: tuple[str, ...], as_json: bool) -> None:
    from everhold.packages.catalog import describe_program, strategy_of

    about = strategy_of(program)
    entry = describe_program(program)
    if about is None and arguments:
        raise make_usage_error(
            f"the cost of {entry.name} is not known; describe it without arguments"
        )
    cost = None if about is None else _estimate(about, arguments)
    if as_json:
        facts = _entry_to_json(entry) | {
            "estimate": None if cost is None else cost.plain,
            **_strategy_to_json(about),
        }
        return print_json(facts | {"parameters": _parameters_to_json(program, about)})
    click.secho(entry.name, bold=True)
    click.echo(strip_controls(entry.summary or "It has no description."))
    if about is not None and cost is not None:
        _print_strategy(about, cost)
    else:
        click.echo(f"\nprogram     {entry.ref}")
        declared = program.declared if isinstance(program, LuaProgram) else ()
        if declared:
            click.echo("arguments")
        for one in declared:
            words = one.description + ("" if one.required else " (optional)")
            click.echo(strip_controls(f"  {one.name:<12}{words.strip()}"))
        if not declared:
            takes = [str(parameter) for parameter in program.signature.parameters.values()]
            click.echo(f"arguments   {strip_controls(', '.join(takes)) or 'none'}")


def _estimate(about: Strategy, arguments: tuple[str, ...]) -> Estimate:
    given: dict[str, Any] = {}
    with hint_parameters(about.program, given):
        given |= parse_named_arguments(about.program, arguments)
        return about.estimate(given)


def _print_strategy(about: Strategy, cost: Estimate) -> None:
    click.echo(
        f"\nuse it when {about.use_when}\nnot when    {about.not_when}\ncost        {cost}:"
        f" {about.formula}"
    )
    for paper in about.papers:
        click.echo(f"paper       {paper}")
    click.echo("arguments")
    for one in about.parameters:
        usual = (
            ""
            if one.required or one.default is None
            else f" (default: {msgspec.json.encode(one.default).decode()})"
        )
        click.echo(f"  {one.name:<12}{one.description}{usual}")


def _strategy_to_json(about: Strategy | None) -> dict[str, JSON]:
    if about is None:
        return {}
    papers = [str(paper) for paper in about.papers]
    return {"use_when": about.use_when, "not_when": about.not_when, "papers": papers}


def _parameters_to_json(program: Program[Any, Any], about: Strategy | None) -> list[JSON]:
    if about is None and isinstance(program, LuaProgram):
        return [
            {"name": one.name, "description": one.description, "required": one.required}
            for one in program.declared
        ]
    if about is None:
        return [{"name": name} for name in program.signature.parameters]
    return [_parameter_to_json(one) for one in about.parameters]


def _parameter_to_json(one: StrategyParameter) -> dict[str, JSON]:
    usual: dict[str, JSON] = {"required": True} if one.required else {"default": one.default}
    return {"name": one.name, "description": one.description, "schema": one.schema, **usual}
