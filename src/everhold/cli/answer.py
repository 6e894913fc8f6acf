"""The commands `answer`, `signal` and `cancel`.

Only a person answers a question for people: at a terminal, or by name (`--as NAME`, and `--yes` or
`--no` for an approval). A model that answers by plain `everhold answer` commands is refused.
"""

from __future__ import annotations

from typing import Any

import click
from msgspec import UNSET

from everhold.cli.candidates import complete_files
from everhold.cli.context import (
    CommandRuntime,
    at_terminal,
    describe_user,
    open_command_runtime,
    read_text_argument,
)
from everhold.cli.options import (
    AnswerOptions,
    add_answer_options,
    add_common_options,
    as_option,
    make_usage_error,
    open_moving_runtime,
    parse_json_or_text,
    session_argument,
    wait_option,
)
from everhold.cli.output import report_status
from everhold.cli.terminal import (
    drive_until_blocked,
    is_no,
    parse_typed_answer,
)
from everhold.core.query import FOR_PEOPLE, KINDS
from everhold.core.status import OpenQuery, Paused, require_sole_query
from everhold.errors import NotAllowed
from everhold.shell_command import format_command


@click.command("answer")
@session_argument
@click.argument("value", required=False)
@click.option(
    "-q", "--query", "query_id", metavar="ID", help="The question, if several are open: q-3."
)
@click.option(
    "-f",
    "--file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Read the answer from a file; - is standard input.",
)
@click.option("--error", metavar="TEXT", help="Answer with an error instead of a value.")
@click.option("--yes/--no", "verdict", default=None, help="Answer an approval.")
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="The person who answers. Needed without a terminal, if the question is for a person.",
)
@click.option(
    "--tokens",
    nargs=2,
    type=int,
    metavar="PROMPT ANSWER",
    help="The tokens that the answer used, of the prompt and of the answer.",
)
@wait_option("How long to wait for timers and other processes. Default: do not wait.")
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
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Answer a question; without a VALUE, at the terminal.

    VALUE is text, or JSON if the question has a schema. Without one, everhold shows the question
    and reads your answer.

    \b
    everhold answer @last "Ship it on Friday"
    everhold answer refund-7 --yes --as ana
    everhold answer s-18e9 --query q-3 --file reply.json
    """
    given = [one for one in (value, file, error, verdict) if one is not None]
    if len(given) > 1:
        raise make_usage_error("give one of VALUE, --file, --error, --yes and --no")
    with open_moving_runtime(database, answerer, shows=not as_json) as opened:
        session_id = opened.session(session)
        status = opened.runtime.status(session_id)
        if given or not (at_terminal() and isinstance(status, Paused) and status.queries):
            query = _find_open_query(opened, session_id, query_id)
            if query is not None:
                _refuse_verdict(query, verdict)
                _refuse_without_person(query, opened.name(session_id), name, value, verdict)
            usage = (
                None
                if tokens is None
                else {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
            )
            answer = UNSET if error is not None else _read_value(query, value, file, verdict)
            status = opened.runtime.answer(
                session_id,
                answer,
                query_id=query_id,
                error=error,
                usage=usage,
                by=describe_user(name),
                wait=wait,
            )
        return drive_until_blocked(
            opened,
            status,
            wait=0 if wait is None else wait,
            as_json=as_json,
            talks=not given,
            answered=bool(given),
        )


def _find_open_query(
    opened: CommandRuntime, session_id: str, query_id: str | None
) -> OpenQuery | None:
    """The open question with this id, or the only one; None for an id that is no longer open."""
    status = opened.runtime.status(session_id)
    queries = status.queries if isinstance(status, Paused) else ()
    if query_id is None:
        return require_sole_query(session_id, status.state, queries)
    return next((query for query in queries if query.id == query_id), None)


def _refuse_verdict(query: OpenQuery, verdict: bool | None) -> None:
    """Refuse --yes and --no for a question that is not answered with yes or no."""
    schema = query.query.schema or {}
    if verdict is None or KINDS[query.kind].verdict or schema.get("type") == "boolean":
        return
    raise make_usage_error(f"--yes and --no answer an approval; {query.id} is of kind {query.kind}")


def _refuse_without_person(
    query: OpenQuery, session: str, name: str | None, value: str | None, verdict: bool | None
) -> None:
    if query.kind not in FOR_PEOPLE or at_terminal():
        return
    wants_verdict = KINDS[query.kind].verdict
    if name is None or (wants_verdict and verdict is None):
        more = ""
        if wants_verdict:
            refused = verdict is False or is_no(value or "")
            answer = ["--no" if refused else "--yes"]
            more = ", and --yes or --no"
        elif value is None or value.startswith("-"):
            answer = ["-"]
            more = ", and the answer on standard input"
        else:
            answer = [value]
        user = str(describe_user()["user"]) if name is None else name
        command = format_command("answer", session, "--query", query.id, "--as", user, *answer)
        raise NotAllowed(
            f"{query.id} is an {query.kind}: only a person answers it, and there is no terminal",
            f"Answer at a terminal, or give the person's name{more}: {command}",
        )


def _read_value(
    query: OpenQuery | None, value: str | None, file: str | None, verdict: bool | None
) -> Any:
    if verdict is not None:
        return verdict
    if file is not None or value == "-":
        value = read_text_argument(file or "-", "--file").rstrip("\n")
    if value is None:
        raise make_usage_error("VALUE is missing, and there is no terminal to read it from")
    return value if query is None else parse_typed_answer(query.query, value)


@click.command("signal")
@session_argument
@click.argument("name")
@click.argument("value", required=False)
@click.option("--key", metavar="TEXT", help="Send it once, however often the command runs with it.")
@add_common_options
def signal_(
    session: str,
    name: str,
    value: str | None,
    key: str | None,
    database: str | None,
    as_json: bool,
) -> int:
    """Send a signal; it is kept until the program receives it.

    VALUE is JSON, or else text: everhold signal order-7 paid '{"amount": 30}'
    """
    with open_moving_runtime(database) as opened:
        sent = None if value is None else parse_json_or_text(value)
        status = opened.runtime.signal(opened.session(session), name, sent, key=key)
        return report_status(
            status,
            opened.name(status.session_id),
            as_json=as_json,
            terminal=at_terminal(),
            option=opened.database_option,
        )


@click.command("cancel")
@session_argument
@click.option("--reason", metavar="TEXT", default="", help="Why; recorded with the session.")
@as_option
@add_common_options
def cancel_(
    session: str, reason: str, name: str | None, database: str | None, as_json: bool
) -> None:
    """Cancel a session and its children."""
    with open_command_runtime(database) as opened:
        status = opened.runtime.cancel(opened.session(session), reason, by=describe_user(name))
        report_status(
            status,
            opened.name(status.session_id),
            as_json=as_json,
            terminal=at_terminal(),
            option=opened.database_option,
        )
