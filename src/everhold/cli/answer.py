"""Commands that tell sessions something: answer, signal, cancel.

A question for a person is answered by one: at a terminal, or under a name (`--as NAME`, and `--yes`
or `--no` for an approval). A model that can only run commands has neither.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from everhold.cli.context import (
    CommandRuntime,
    at_terminal,
    describe_user,
    open_command_runtime,
    read_text_argument,
)
from everhold.cli.options import (
    AnswerOptions,
    Duration,
    add_answer_options,
    add_common_options,
    make_usage_error,
    open_moving_runtime,
    parse_json_or_text,
    session_argument,
)
from everhold.cli.output import report_status
from everhold.cli.terminal import drive_until_blocked, parse_typed_answer, report_on_interrupt
from everhold.core.query import FOR_PEOPLE, KINDS
from everhold.core.status import OpenQuery, Paused, require_sole_query
from everhold.errors import NotAllowed


@click.command("answer")
@session_argument
@click.argument("value", required=False)
@click.option(
    "-q", "--query", "query_id", metavar="ID", help="Which question, if several are open."
)
@click.option(
    "-f", "--file", metavar="FILE", help="Take the answer from a file; - is standard input."
)
@click.option("--error", metavar="TEXT", help="Answer with an error instead of a value.")
@click.option("--yes/--no", "verdict", default=None, help="Answer an approval.")
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="Who answers; needed for people's questions without a terminal.",
)
@click.option(
    "--tokens", nargs=2, type=int, metavar="PROMPT ANSWER", help="What the answer cost, in tokens."
)
@click.option(
    "--wait", type=Duration(), metavar="S", help="Seconds to wait for timers and other processes."
)
@add_answer_options
@add_common_options
def answer_(
    session: str,
    value: str | None,
    query_id: str | None,
    file: str | None,
    error: str | None,
    verdict: bool | None,
    name: str | None,
    tokens: tuple[int, int] | None,
    wait: float | None,
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Answer a question; without a VALUE you are asked at the terminal.

    A value is text, or JSON where the question wants more than text; yes and no answer an approval.
    """
    given = [one for one in (value, file, error, verdict) if one is not None]
    if len(given) > 1:
        raise make_usage_error("give one of VALUE, --file, --error, --yes and --no")
    with open_moving_runtime(database, who) as opened:
        session_id = opened.session(session)
        status = opened.runtime.status(session_id)
        if given or not (at_terminal() and isinstance(status, Paused)):
            query = _meant(opened, session_id, query_id)
            if query is not None:
                _refuse_nobody(query, name, verdict)
            counted = (
                None
                if tokens is None
                else {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
            )
            said = UNSET if error is not None else _value(query, value, file, verdict)
            with report_on_interrupt(opened, lambda: opened.name(session_id)):
                status = opened.runtime.answer(
                    session_id,
                    said,
                    query_id=query_id,
                    error=error,
                    usage=counted,
                    by=describe_user(name),
                    wait=wait,
                )
        return drive_until_blocked(
            opened, status, wait=0 if wait is None else wait, as_json=as_json, talks=not given
        )


def _meant(opened: CommandRuntime, session_id: str, query_id: str | None) -> OpenQuery | None:
    """The open question that is meant; None for one that is not open any more."""
    status = opened.runtime.status(session_id)
    queries = status.queries if isinstance(status, Paused) else ()
    if query_id is None:
        return require_sole_query(session_id, status.state, queries)
    return next((query for query in queries if query.id == query_id), None)


def _refuse_nobody(query: OpenQuery, name: str | None, verdict: bool | None) -> None:
    if query.kind not in FOR_PEOPLE or at_terminal():
        return
    wants_verdict = KINDS[query.kind].verdict
    if name is None or (wants_verdict and verdict is None):
        how = "--as NAME --yes (or --no)" if wants_verdict else "--as NAME"
        raise NotAllowed(
            f"{query.id} is an {query.kind}: a person answers it, and nobody is at a terminal here",
            f"Answer at a terminal, or say who answers: {how}.",
        )


def _value(
    query: OpenQuery | None, value: str | None, file: str | None, verdict: bool | None
) -> Any:
    if verdict is not None:
        return verdict
    if file is not None or value == "-":
        value = read_text_argument(file or "-", "--file").rstrip("\n")
    if value is None:
        raise make_usage_error("it needs a VALUE, and nobody is at a terminal here to be asked")
    return value if query is None else parse_typed_answer(query.query, value)


@click.command("signal")
@session_argument
@click.argument("name")
@click.argument("value", required=False)
@add_common_options
def signal_(session: str, name: str, value: str | None, database: str | None, as_json: bool) -> int:
    """Send a signal; it is kept until the program receives it. VALUE is JSON, or else text."""
    with open_moving_runtime(database) as opened:
        said = None if value is None else parse_json_or_text(value)
        status = opened.runtime.signal(opened.session(session), name, said)
        return report_status(
            status, opened.name(status.session_id), as_json=as_json, terminal=at_terminal()
        )


@click.command("cancel")
@session_argument
@click.option("--reason", default="", help="Kept with the session.")
@add_common_options
def cancel_(session: str, reason: str, database: str | None, as_json: bool) -> None:
    """Stop a session and its children."""
    with open_command_runtime(database) as opened:
        status = opened.runtime.cancel(opened.session(session), reason)
        report_status(
            status, opened.name(status.session_id), as_json=as_json, terminal=at_terminal()
        )
