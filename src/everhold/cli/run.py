"""The commands `run`, `retry` and `fork`."""

from __future__ import annotations

import time
from typing import Any

import click

from everhold.cli.candidates import complete_files, complete_run
from everhold.cli.context import (
    CommandRuntime,
    describe_user,
    resolve_program,
)
from everhold.cli.options import (
    AnswerOptions,
    BudgetOptions,
    UnknownOption,
    add_answer_options,
    add_budget_options,
    add_common_options,
    as_option,
    build_call,
    make_usage_error,
    new_label_option,
    open_moving_runtime,
    parse_pairs,
    session_argument,
    wait_option,
)
from everhold.cli.terminal import drive_until_blocked
from everhold.errors import UnknownProgram, UnknownSession


@click.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("program", required=False, shell_complete=complete_run)
@click.argument("arguments", nargs=-1, metavar="[ARGUMENT]...", type=click.UNPROCESSED)
@click.option(
    "--json-args",
    metavar="FILE",
    shell_complete=complete_files,
    help="Read the arguments from a file with a JSON object; - is standard input.",
)
@click.option(
    "--key",
    metavar="TEXT",
    help="A name for the session. Running it again with the same key resumes the session.",
)
@click.option(
    "--again",
    is_flag=True,
    help="With --key: start a new session if the one with this key was deleted.",
)
@click.option(
    "-c",
    "--continue",
    "resumes",
    is_flag=True,
    help="Resume a session: PROGRAM is a session, or a program whose newest session resumes."
    " Default: the newest session.",
)
@click.option("--title", metavar="TEXT", default="", help="A title for the session.")
@new_label_option
@add_budget_options
@wait_option("How long to wait for timers and other processes. Default: until they are done.")
@add_answer_options
@add_common_options
def run_(
    program: str | None,
    arguments: tuple[str, ...],
    json_args: str | None,
    key: str | None,
    again: bool,
    resumes: bool,
    title: str,
    labels: tuple[str, ...],
    limits: BudgetOptions,
    wait: float | None,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Run a program, or resume a session.

    PROGRAM is a name (`everhold programs` lists them), module:function, path/file.py:function, or a
    Lua file. At a terminal, everhold asks you the questions of the program. Without one, it prints
    the open questions as JSON and exits with 10.

    An ARGUMENT of the program is NAME=VALUE, --NAME VALUE, or only the value, in the order of its
    parameters. A name that is also an option below is written NAME=VALUE.

    The limits are the budget of the session. If it exists, larger limits replace its own; with -c,
    all that are named do.

    \b
    everhold run shop.py:refund order=7 --key refund-7
    everhold run panel task="Tabs or spaces?" --model anthropic:claude-sonnet-4-6
    everhold run -c refund-7
    """
    if program is not None and program.startswith("-"):
        raise UnknownOption(program)
    if resumes and arguments:
        raise make_usage_error(f"-c resumes a session as it is: {arguments[0]!r} has no effect")
    if not resumes and program is None:
        raise make_usage_error("PROGRAM is missing; to resume the newest session, use -c")
    with open_moving_runtime(database, answerer, creates=True, shows=not as_json) as opened:
        if resumes:
            session_id = _find_session_to_resume(opened, database, program or "@last")
            if limits.change:
                status = opened.runtime.set_budget(session_id, limits.change, wait=wait)
            else:
                status = opened.runtime.status(session_id)
        else:
            found = resolve_program(database, program or "")
            call = build_call(found, arguments, json_args)
            label_values = parse_pairs(labels, "--label")
            since = time.time()
            if opened.bar is not None:
                opened.bar.follow(
                    lambda birth: (
                        birth.parent is None
                        and birth.program == found.ref
                        and (birth.created_at >= since if key is None else birth.key == key)
                    )
                )
            status = opened.runtime.start(
                call,
                key=key,
                title=title,
                labels=label_values,
                budget=limits.budget,
                wait=wait,
                again=again,
            )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json, tried=not resumes)


def _find_session_to_resume(opened: CommandRuntime, database: str | None, name: str) -> str:
    """The session of this name, else the newest session of the program of this name."""
    try:
        return opened.session(name)
    except UnknownSession:
        if name == "@last":
            raise
    try:
        wanted = resolve_program(database, name).ref
    except UnknownProgram:
        if not name.isidentifier():
            raise
        raise UnknownSession(name, opened.database) from None
    for info in opened.runtime.sessions(program=wanted):
        if info.parent is None:
            return info.session_id
    raise UnknownSession(f"of {name}", opened.database)


@click.command("retry")
@session_argument
@add_budget_options
@as_option
@wait_option("How long to wait for timers and other processes. Default: until they are done.")
@add_answer_options
@add_common_options
def retry_(
    session: str,
    limits: BudgetOptions,
    name: str | None,
    wait: float | None,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Retry a failed session from its last answer, with fixed code.

    Recorded answers are kept, and errors among them too. To ask again, use `everhold fork --at N`.
    The limits change the budget of the session.
    """
    with open_moving_runtime(database, answerer, shows=not as_json) as opened:
        session_id = opened.session(session)
        status = opened.runtime.retry(
            session_id, budget=limits.change or None, by=describe_user(name), wait=wait
        )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json)


@click.command("fork")
@session_argument
@click.option(
    "--at",
    type=int,
    metavar="N",
    help="The last step that both share; `everhold show` numbers them. Default: the newest.",
)
@click.option("--answer", metavar="VALUE", help="Replace the answer of that step.")
@click.option(
    "--query",
    "query_id",
    metavar="ID",
    help="The answer to replace, if the step has several: q-3.",
)
@click.option("--key", metavar="TEXT", help="A key for the new session.")
@click.option(
    "--again", is_flag=True, help="With --key: also if a session that had this key was deleted."
)
@click.option("--title", metavar="TEXT", default="", help="A title for the new session.")
@add_budget_options
@as_option
@wait_option("How long to wait for timers and other processes. Default: until they are done.")
@add_answer_options
@add_common_options
def fork_(
    session: str,
    name: str | None,
    at: int | None,
    answer: str | None,
    query_id: str | None,
    key: str | None,
    again: bool,
    title: str,
    limits: BudgetOptions,
    wait: float | None,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Start a session from a step of another; the answer may differ.

    It has the budget of the other session, changed by the limits; the shared steps count in it.

    \b
    everhold fork refund-7 --at 2 --answer "It arrived broken"
    """
    with open_moving_runtime(database, answerer, shows=not as_json) as opened:
        session_id = opened.session(session)
        if answer is None:
            status = opened.runtime.fork(
                session_id,
                at=at,
                key=key,
                title=title,
                budget=limits.change or None,
                by=describe_user(name),
                wait=wait,
                again=again,
            )
        else:
            at, value = _parse_replacement(opened, session_id, at, query_id, answer)
            status = opened.runtime.fork(
                session_id,
                at=at,
                answer=value,
                query_id=query_id,
                key=key,
                title=title,
                budget=limits.change or None,
                by=describe_user(name),
                wait=wait,
                again=again,
            )
        return drive_until_blocked(opened, status, wait=wait, as_json=as_json)


def _parse_replacement(
    opened: CommandRuntime, session_id: str, at: int | None, query_id: str | None, text: str
) -> tuple[int, Any]:
    """The step, by default the last one with an answer, and the new answer as its question wants
    it.
    """
    from everhold.cli.terminal import parse_typed_answer
    from everhold.engine.journal_reader import read_steps

    deliveries = opened.record(session_id).deliveries
    answered = [step for step in read_steps(deliveries) if step.answered and at in (None, step.n)]
    if not answered:
        return at or 0, text
    replaced = [
        one.query
        for one in answered[-1].answered
        if one.query is not None and query_id in (None, one.answer.id)
    ]
    return answered[-1].n, parse_typed_answer(replaced[0], text) if replaced else text
