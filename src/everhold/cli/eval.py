"""`everhold eval`: programs measured on the cases of a scenario, and compared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import (
    complete_files,
    complete_folders,
    complete_programs,
    complete_sessions,
)
from everhold.cli.context import (
    CommandRuntime,
    at_terminal,
    describe_user,
    format_short_name,
    open_command_runtime,
    resolve_program,
)
from everhold.cli.options import (
    AnswerOptions,
    add_answer_options,
    add_common_options,
    hint_parameters,
    invoke_default_command,
    json_option,
    make_usage_error,
    new_label_option,
    open_moving_runtime,
    parse_arguments,
    parse_pairs,
)
from everhold.cli.output import (
    describe_unanswered,
    format_ago,
    format_count,
    format_line,
    format_plain_value,
    print_footer,
    print_json,
    print_table,
    queries_to_json,
    record_to_wire,
    show_progress,
)
from everhold.cli.terminal import PromptQuit, prompt_for_answer
from everhold.core.codec import JSON
from everhold.core.query import MODEL_KINDS
from everhold.errors import AnswerConflict, AnswerRefused, QueryClosed, UnknownSession, Waiting
from everhold.ports.script_end import tell_interrupted
from everhold.shell_command import format_command
from everhold.wire import ExitCode

if TYPE_CHECKING:
    from everhold.core.status import OpenQuery
    from everhold.evals import CaseResult, Comparison, EvalInfo, EvalReport

#: The name that means the newest eval.
_LAST = "@last"


@click.group("eval", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def eval_(database: str | None, as_json: bool) -> None:
    """Measure programs on cases, and compare them: run, list, show."""
    invoke_default_command(list_evals, database=database, as_json=as_json)


@eval_.command("run")
@click.argument("scenario", required=False, shell_complete=complete_files)
@click.argument("program", required=False, shell_complete=complete_programs)
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option(
    "--key",
    metavar="TEXT",
    help="A name for the eval. Running it again with the same key resumes it: cases that have ended"
    " are not run again.",
)
@click.option(
    "--again",
    is_flag=True,
    help="With --key: start a new eval if the one with this key was deleted.",
)
@click.option(
    "-c",
    "--continue",
    "resumes",
    is_flag=True,
    help="Resume an eval: SCENARIO is an eval. Default: the newest eval.",
)
@click.option(
    "--input",
    "parameter",
    metavar="NAME",
    default="",
    help="The parameter that takes the input of a case. Default: task, else the first one.",
)
@click.option(
    "--output",
    metavar="PATH",
    default="",
    help="Where the answer is in the result of the program, such as verdict.text.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=4,
    show_default=True,
    metavar="N",
    help="How many cases run at the same time.",
)
@click.option(
    "--max-calls",
    "--max-llm-calls",
    type=click.IntRange(0),
    metavar="N",
    help="Begin no further case after this many model calls.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(0),
    metavar="N",
    help="Begin no further case after this many tokens.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 1),
    metavar="RATE",
    help="Exit with 1 if a smaller part of the cases passed, such as 0.9.",
)
@click.option("--title", metavar="TEXT", default="", help="A title for the session of the eval.")
@new_label_option
@add_answer_options
@add_common_options
def run_eval(
    scenario: str | None,
    program: str | None,
    arguments: tuple[str, ...],
    key: str | None,
    again: bool,
    resumes: bool,
    parameter: str,
    output: str,
    concurrency: int,
    max_calls: int | None,
    max_tokens: int | None,
    fail_under: float | None,
    title: str,
    labels: tuple[str, ...],
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Run PROGRAM on each case of SCENARIO and grade its answers, or resume an eval.

    SCENARIO is a .toml or .json file, or a scenario in Python: FILE.py or FILE.py:NAME. One in Lua
    (FILE.lua, or the name of an installed one) measures a Lua package. NAME=VALUE are arguments of
    the program besides the input of a case.

    \b
    everhold eval run capitals.toml shop.py:ask --model anthropic:claude-sonnet-4-6
    everhold eval run capitals.toml panel debates=2 --key panel-2
    everhold eval run -c panel-2
    """
    if resumes and program is not None:
        raise make_usage_error("-c resumes an eval, which has its program already")
    if not resumes and (scenario is None or program is None):
        missing = "SCENARIO" if scenario is None else "PROGRAM"
        raise make_usage_error(f"{missing} is missing; to resume the newest eval, use -c")
    with open_moving_runtime(database, answerer, creates=not resumes) as opened:
        if resumes:
            session_id = _find_eval(opened, scenario or _LAST)
        else:
            found = resolve_program(database, program or "")
            given = parse_arguments(found, arguments)
            limits = {"max_llm_calls": max_calls, "max_tokens": max_tokens}
            budget = {name: value for name, value in limits.items() if value is not None}
            with hint_parameters(found, given):
                status = opened.runtime.evals.start(
                    scenario or "",
                    found,
                    key=key,
                    args=given,
                    parameter=parameter,
                    output=output,
                    concurrency=concurrency,
                    budget=budget or None,
                    title=title,
                    labels=parse_pairs(labels, "--label"),
                    again=again,
                )
            session_id = status.session_id
        try:
            report = _drive(opened, session_id, as_json=as_json)
        except KeyboardInterrupt as error:
            tell_interrupted(_format_resume_command(opened, session_id), error)
            raise
        except Waiting as waiting:
            return _report_waiting(opened, waiting, as_json=as_json)
        if as_json:
            _print_report_as_json(report)
        else:
            _print_failures(report, with_sessions=False)
            _print_summary(report)
            click.secho(f"eval: {opened.name(report.eval_id)}", dim=True)
            print_footer(opened.database)
        failed = fail_under is not None and report.aggregated.pass_rate < fail_under
        return int(ExitCode.FAILED if failed else ExitCode.OK)


def _drive(opened: CommandRuntime, session_id: str, *, as_json: bool) -> EvalReport:
    """Wait for the end of an eval; a person at the terminal answers what no model does."""
    while True:
        try:
            with show_progress("evaluating", quiet=as_json) as bar:

                def tell(info: EvalInfo) -> None:
                    if bar is not None:
                        bar(info.done, info.total, _format_progress(info))

                return opened.runtime.evals.resume(session_id, progress=tell)
        except Waiting as waiting:
            if as_json or not at_terminal():
                raise
            try:
                for query in waiting.queries:
                    _answer_by_person(opened, query)
            except PromptQuit:
                raise waiting from None


def _answer_by_person(opened: CommandRuntime, query: OpenQuery) -> None:
    while True:
        typed = prompt_for_answer(query, opened.name(query.session_id))
        try:
            if typed.error is not None:
                opened.runtime.answer(query, error=typed.error, by=describe_user())
            else:
                opened.runtime.answer(query, typed.value, by=describe_user())
        except AnswerRefused as refused:
            click.secho(str(refused), fg="red", err=True)
        except (AnswerConflict, QueryClosed) as late:
            return click.secho(str(late), fg="red", err=True)
        else:
            return None


def _report_waiting(opened: CommandRuntime, waiting: Waiting, *, as_json: bool) -> int:
    """Prints what an eval waits for; returns the exit code."""
    session_id = waiting.session_id
    info = opened.runtime.evals.info(session_id)
    if as_json:
        print_json({**_info_to_json(info), "questions": _questions_to_json(waiting.queries)})
    else:
        name = opened.name(session_id)
        click.secho(
            f"waiting · {name} · {info.done} of {format_count(info.total, 'case')} done"
            f" · {format_count(len(waiting.queries), 'question')} open",
            err=True,
        )
        print_json(_questions_to_json(waiting.queries))
        reasons = {
            describe_unanswered(query) for query in waiting.queries if query.kind in MODEL_KINDS
        }
        for reason in sorted(reasons):
            click.echo(reason, err=True)
        _print_resume_command(opened, session_id)
    return int(ExitCode.WAITING)


def _questions_to_json(queries: Iterable[OpenQuery]) -> list[JSON]:
    shown = list(queries)
    told: Any = queries_to_json(shown)
    pairs = zip(shown, told, strict=True)
    return [{"session_id": query.session_id, **one} for query, one in pairs]


def _print_resume_command(opened: CommandRuntime, session_id: str) -> None:
    click.secho(_format_resume_command(opened, session_id), dim=True, err=True)


def _format_resume_command(opened: CommandRuntime, session_id: str) -> str:
    command = format_command("eval", "run", "-c", opened.name(session_id))
    return f"the eval is kept; to resume it: {command}{opened.database_option}"


@eval_.command("list")
@click.option("--scenario", metavar="NAME", help="Only evals of this scenario.")
@click.option("--program", metavar="NAME", help="Only evals of this program, by its name.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="How many evals to list.",
)
@add_common_options
def list_evals(
    scenario: str | None = None,
    program: str | None = None,
    limit: int = 20,
    database: str | None = None,
    as_json: bool = False,
) -> None:
    """List evals, newest first: how many cases passed, and the cost."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.evals.list(scenario=scenario, program=program, limit=limit)
        problems = opened.runtime.evals.problems()
        if as_json:
            return print_json(
                {
                    "database": opened.database,
                    "evals": [_info_to_json(one) for one in found],
                    "problems": [*problems],
                }
            )
        if found:
            print_table(
                ("eval", "scenario", "program", "state", "passed", "score", "tokens", "when"),
                [_format_row(one) for one in found],
                wide=("scenario", "program"),
            )
        else:
            click.echo("no evals; to run one: everhold eval run --help")
        _print_problems(problems)
        print_footer(opened.database)


@eval_.command("show")
@click.argument("name", metavar="EVAL", shell_complete=complete_sessions)
@click.option(
    "--failed", is_flag=True, help="Only cases that did not pass, with the session of each."
)
@add_common_options
def show_eval(name: str, failed: bool, database: str | None, as_json: bool) -> int:
    """Show the report of an eval: each case with its score, and why it did not pass."""
    with open_command_runtime(database) as opened:
        session_id = _find_eval(opened, name)
        info = opened.runtime.evals.info(session_id)
        if info.state in ("running", "paused"):
            if as_json:
                print_json(_info_to_json(info))
            else:
                click.echo(f"{info.state} · {_format_progress(info)}")
                _print_resume_command(opened, session_id)
            return int(ExitCode.WAITING)
        report = opened.runtime.evals.show(session_id)
        if as_json:
            _print_report_as_json(report)
            return int(ExitCode.OK)
        if failed:
            _print_failures(report, with_sessions=True)
        else:
            print_table(
                ("case", "passed", "score", "tokens", "answer", "why not"),
                [_format_result(one) for one in report.results],
                wide=("answer", "why not"),
            )
        _print_summary(report)
        print_footer(opened.database)
        return int(ExitCode.OK)


@eval_.command("compare")
@click.argument("a", metavar="A", shell_complete=complete_sessions)
@click.argument("b", metavar="B", shell_complete=complete_sessions)
@add_common_options
def compare_evals(a: str, b: str, database: str | None, as_json: bool) -> None:
    """Say whether one of two evals of a scenario is better, and how sure that is."""
    with open_command_runtime(database) as opened:
        first = _find_eval(opened, a)
        second = _find_eval(opened, b)
        found = opened.runtime.evals.compare(first, second)
        if as_json:
            import msgspec

            return print_json(msgspec.to_builtins(found))
        _print_comparison(found, opened)
        print_footer(opened.database)


@eval_.group("scenario", cls=SubcommandGroup, invoke_without_command=True)
@json_option
def scenario_(as_json: bool) -> None:
    """List, show and install scenarios in Lua, which lie in algocline's home."""
    invoke_default_command(list_lua_scenarios, as_json=as_json)


@scenario_.command("list")
@json_option
def list_lua_scenarios(as_json: bool) -> None:
    """List the installed scenarios. `everhold eval run NAME PACKAGE` runs one."""
    from everhold.packages import list_scenarios

    found = list_scenarios()
    if as_json:
        return print_json(found)
    if found["scenarios"]:
        rows = [
            (one["name"], format_count(one["size_bytes"], "byte")) for one in found["scenarios"]
        ]
        print_table(("scenario", "size"), rows, wide=())
        click.secho(f"folder: {Path(found['scenarios'][0]['path']).parent}", dim=True)
    else:
        click.echo("no scenarios; to install some: everhold eval scenario install --help")
    _print_problems(found["failures"])


@scenario_.command("show")
@click.argument("name", metavar="SCENARIO")
@json_option
def show_lua_scenario(name: str, as_json: bool) -> None:
    """Print the code of a scenario."""
    from everhold.packages import show_scenario

    found = show_scenario(name)
    if as_json:
        return print_json(found)
    return click.echo(found["content"], nl=not found["content"].endswith("\n"))


@scenario_.command("install")
@click.argument("url", shell_complete=complete_folders)
@json_option
def install_lua_scenarios(url: str, as_json: bool) -> int:
    """Install the scenarios of a folder or a git repository; files that exist stay.

    URL is a folder, or the address of a repository. Its .lua files are copied, or those in its
    folder scenarios/.
    """
    from everhold.packages import install_scenarios

    found = install_scenarios(str(Path(url).resolve()) if Path(url).is_dir() else url)
    if as_json:
        print_json(found)
    else:
        if found["installed"]:
            click.echo(f"installed: {', '.join(found['installed'])}")
        if found["skipped"]:
            click.echo(f"already there: {', '.join(found['skipped'])}")
        _print_problems(found["failures"])
    return int(ExitCode.FAILED if found["failures"] else ExitCode.OK)


# ---- output


def _find_eval(opened: CommandRuntime, name: str) -> str:
    """The id of an eval; `@last` is the newest one."""
    if name != _LAST:
        is_file = opened.runtime.evals.find_file(name) is not None
        return name if is_file else opened.session(name)
    for info in opened.runtime.evals.list(limit=1):
        return info.session_id
    raise UnknownSession(name, opened.database)


def _print_report_as_json(report: EvalReport) -> None:
    import msgspec

    print_json(msgspec.to_builtins(report))


def _print_failures(report: EvalReport, *, with_sessions: bool) -> None:
    rows = [
        (one.case.name, f"{one.score:.2f}", _explain(one), one.response.session_id)
        for one in report.failures
    ]
    columns = ("failed", "score", "why", "session")
    count = 4 if with_sessions and any(row[3] for row in rows) else 3
    if rows:
        print_table(columns[:count], [row[:count] for row in rows], wide=("why",))


def _print_summary(report: EvalReport) -> None:
    for tag, found in report.aggregated.by_tag.items():
        click.echo(f"{tag}: {found.passed} of {found.passed + found.fail}")
    click.secho(report.summary, bold=at_terminal())
    if report.not_run:
        click.echo(f"not run: {', '.join(report.not_run)}")


def _explain(result: CaseResult) -> str:
    from everhold.evals.report import explain_result

    return "" if result.passed else explain_result(result)[:400]


def _format_result(result: CaseResult) -> tuple[str, ...]:
    return (
        result.case.name,
        "yes" if result.passed else "no",
        f"{result.score:.2f}",
        str(result.usage.total_tokens),
        result.response.text[:400],
        _explain(result),
    )


def _print_problems(problems: Iterable[str]) -> None:
    for one in problems:
        click.secho(format_line(f"cannot be used: {one}"), fg="yellow", err=True)


def _format_name(opened: CommandRuntime, eval_id: str) -> str:
    info = opened.runtime.evals.info(eval_id)
    return format_short_name(info.session_id, info.key)


def _print_comparison(found: Comparison, opened: CommandRuntime) -> None:
    sides = (("A", found.a), ("B", found.b))
    print_table(
        ("", "eval", "program", "cases", "passed", "score", "95 % CI"),
        [
            (
                letter,
                _format_name(opened, side.eval_id),
                _format_subject(side.program, side.args),
                str(side.scores.n),
                f"{side.pass_rate:.0%}",
                f"{side.scores.mean:.2f}",
                f"{side.ci_95.lower:.2f} to {side.ci_95.upper:.2f}",
            )
            for letter, side in sides
        ],
        wide=("program",),
    )
    click.secho(found.summary, bold=at_terminal())


def _format_subject(program: str, args: dict[str, JSON]) -> str:
    """A program with its arguments, as they are typed."""
    return " ".join([program, *(f"{name}={format_plain_value(args[name])}" for name in args)])


def _format_row(info: EvalInfo) -> tuple[str, ...]:
    return (
        format_short_name(info.session_id, info.key),
        info.scenario,
        _format_subject(info.program, info.args),
        info.state,
        f"{info.passed} of {info.total if info.state != 'completed' else info.done}",
        f"{info.mean_score:.2f}" if info.done else "",
        str(info.total_tokens),
        format_ago(info.created_at),
    )


def _format_progress(info: EvalInfo) -> str:
    return (
        f"{info.done} of {format_count(info.total, 'case')}, {info.passed} passed,"
        f" {format_count(info.llm_calls, 'model answer')}, {info.total_tokens} tokens"
    )


def _info_to_json(info: EvalInfo) -> dict[str, JSON]:
    return record_to_wire(info, "created_at", "updated_at")
