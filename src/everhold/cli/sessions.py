"""The commands `sessions`, `show`, `inbox`, `usage` and `watch`. They change nothing."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.candidates import complete_kinds, complete_sessions
from everhold.cli.context import at_terminal, format_short_name, open_command_runtime
from everhold.cli.options import (
    Duration,
    add_common_options,
    label_option,
    parse_pairs,
    program_option,
    session_argument,
    state_option,
)
from everhold.cli.output import (
    MAX_ATTEMPT_LENGTH,
    describe_unanswered,
    format_ago,
    format_asked_text,
    format_count,
    format_headline,
    format_line,
    format_moment,
    format_plain_value,
    format_progress,
    format_question,
    page_output,
    print_footer,
    print_json,
    print_table,
    record_to_wire,
    strip_controls,
)
from everhold.core.query import HOOK_CALL, Kind, Query, QueryAnswer, format_answer_error
from everhold.core.status import Finished, Paused, Raised
from everhold.core.tool import HANDED_OVER, LATER, NEEDS_CONFIRM
from everhold.core.turn import TurnFailed
from everhold.exception_info import format_exception

if TYPE_CHECKING:
    from everhold.core.codec import JSON
    from everhold.core.journal import DeliveryNotes
    from everhold.core.status import Status
    from everhold.engine.journal_reader import AnsweredQuery, JournalStep
    from everhold.ports.store import SessionRecord

#: Codes of answers that are not the result of a tool: what comes next.
UNFINISHED: Final = {
    NEEDS_CONFIRM: "(needs an approval)",
    LATER: "(finishes later)",
    HANDED_OVER: "(finishes in another session)",
}
#: Characters of an open question that `show` prints without `--full`.
MAX_PROMPT_CHARS: Final = 400


@click.command("sessions")
@state_option("Only sessions in this state: running, paused, completed, failed or cancelled.")
@program_option
@label_option
@click.option(
    "--older-than",
    type=Duration(),
    help="Only sessions that last moved longer ago: 90s, 15m, 12h, 30d.",
)
@click.option(
    "--newer-than", type=Duration(), help="Only sessions that moved within this time: 12h."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    metavar="N",
    show_default=True,
    help="The most sessions to list.",
)
@click.option(
    "--after",
    metavar="SESSION",
    shell_complete=complete_sessions,
    help="List the next page: the sessions after this one, the last of the page before.",
)
@add_common_options
def sessions_(
    states: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    older_than: float | None,
    newer_than: float | None,
    limit: int,
    after: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """List sessions, newest first.

    \b
    everhold sessions --state failed --newer-than 1d
    everhold sessions --program shop.py:refund --label team=red
    """
    with open_command_runtime(database) as opened:
        listed = opened.runtime.sessions(
            state=list(states) or None,
            program=program,
            labels=parse_pairs(labels, "--label"),
            older_than=older_than,
            newer_than=newer_than,
            limit=limit,
            after=opened.session(after) if after else None,
        )
        if as_json:
            rows = [record_to_wire(info, "created_at", "updated_at", "due_at") for info in listed]
            return print_json({"database": opened.database, "sessions": rows})
        columns = ["session", "state", "program", "steps", "moved", "title", "progress"]
        wide = ["program", "title", "progress"]
        cells = [_row(info) for info in listed]
        if all(info.progress is None for info in listed):
            columns.pop()
            wide.pop()
            cells = [row[:-1] for row in cells]
        if listed:
            print_table(columns, cells, wide=wide)
        else:
            click.echo("no sessions")
        print_footer(opened.database)


def _row(info: Any) -> tuple[str, ...]:
    name = format_short_name(info.session_id, info.key)
    program = _strip_folders(info.program)
    moved = format_ago(info.updated_at)
    progress = format_progress(info.progress)
    return name, info.state, program, str(info.steps), moved, info.title, progress


def _strip_folders(program: str) -> str:
    """A program's reference without the folders."""
    return program.replace("\\", "/").rpartition("/")[2]


@click.command("show")
@session_argument
@click.option(
    "--full",
    is_flag=True,
    help="Print questions and answers in full, and the steps of hooks of plugins.",
)
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N steps.")
@click.option("--failed", is_flag=True, help="Only steps with an error.")
@click.option("--since", type=Duration(), help="Only steps recorded within this time: 90s, 12h.")
@add_common_options
def show_(
    session: str,
    full: bool,
    tail: int | None,
    failed: bool,
    since: float | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show a session: its questions, its answers, and how it ended.

    At a terminal, a long session is shown in the pager of the variable PAGER.

    \b
    everhold show batch-1 --failed
    everhold show batch-1 --tail 20 --full
    """
    from everhold.engine.journal_reader import read_steps

    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        record = opened.record(session_id)
        status = opened.runtime.status(session_id)
        every = list(read_steps(record.deliveries))
        chosen = [step for step in every if not failed or _has_failed(step)]
        if since is not None:
            chosen = [step for step in chosen if step.at >= time.time() - since]
        chosen = chosen[-tail:] if tail is not None else chosen
        if as_json:
            from everhold.wire import status_json

            steps = [_step_json(step) for step in chosen]
            facts = {"database": opened.database, "session": _facts(record), "steps": steps}
            return print_json({**facts, "status": status_json(status, opened.database_option)})
        with page_output(paged=at_terminal()):
            _show_facts(record)
            _show_counts(every)
            name = format_short_name(session_id, record.birth.key)
            click.secho(f"\n{format_headline(status, name)}", bold=True)
            _show_end(status, record, full)
            _show_steps(chosen, full)
            if len(chosen) < len(every):
                words = f"{len(chosen) or 'none'} of its {format_count(len(every), 'step')}"
                click.secho(words, dim=True)
            print_footer(opened.database)


def _facts(record: SessionRecord) -> dict[str, JSON]:
    birth = record.birth
    head = record.head
    facts: dict[str, JSON] = {
        "session_id": birth.id,
        "key": birth.key,
        "title": birth.title,
        "program": birth.program,
        "version": birth.version,
        "arguments": birth.args,
        "labels": birth.labels,
        "state": head.state,
        "steps": head.n,
        "created_at": int(birth.created_at * 1000),
        "updated_at": int(head.updated_at * 1000),
        "parent": birth.parent,
        "origin": birth.origin,
        "forked_by": birth.forked_by,
        "progress": None if head.metrics.progress is None else head.metrics.progress.json(),
    }
    return facts


def _step_json(step: JournalStep) -> dict[str, JSON]:
    import msgspec

    fields: dict[str, JSON] = msgspec.to_builtins(step.delivery)
    return {**fields, "at": int(step.at * 1000)}


def _show_facts(record: SessionRecord) -> None:
    birth = record.birth
    shown = {
        "session": birth.id,
        "key": birth.key,
        "title": birth.title,
        "program": f"{birth.program} version {birth.version}",
        "arguments": ", ".join(
            f"{name}={format_plain_value(value)}" for name, value in birth.args.items()
        ),
        "labels": ", ".join(f"{name}={value}" for name, value in birth.labels.items()),
        "parent": birth.parent,
        "forked from": f"{birth.origin} after step {birth.origin_n}{_format_by(birth.forked_by)}"
        if birth.origin
        else "",
        "started": f"{format_moment(birth.created_at)} ({format_ago(birth.created_at)})",
        "moved": format_ago(record.head.updated_at),
        "progress": format_progress(record.head.metrics.progress),
    }
    for name, value in shown.items():
        if value:
            click.echo(f"{name:<12} {format_line(value, 200)}")


def _show_counts(steps: list[JournalStep]) -> None:
    """How many questions were answered, by kind, and how many steps have an error."""
    kinds = Counter(
        str(one.query.kind)
        for step in steps
        for one in step.answered
        if one.query is not None and not _is_of_hook(one)
    )
    failed = sum(map(_has_failed, steps))
    if kinds:
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        errors = f" · {failed} with an error" if failed else ""
        click.echo(f"{'answers':<12} {words}{errors}")


def _has_failed(step: JournalStep) -> bool:
    """Whether a step has an error: of an answer, of a turn, or of the program."""
    errors = [one.answer.error for one in step.answered if one.answer.error is not None]
    settled = step.notes.settled
    return (
        any(error.get("code") not in UNFINISHED for error in errors)
        or isinstance(step.notes.outcome, Raised)
        or (settled is not None and isinstance(settled.outcome, TurnFailed))
    )


def _is_of_hook(answered: AnsweredQuery) -> bool:
    """Whether a hook of a plugin was called, without an error."""
    query = answered.query
    return (
        query is not None
        and query.kind is Kind.CALL
        and query.name.startswith(HOOK_CALL)
        and answered.answer.error is None
    )


def _show_steps(steps: list[JournalStep], full: bool) -> None:
    rows = []
    hidden = 0
    for step in steps:
        shown = [one for one in step.answered if full or not _is_of_hook(one)]
        hidden += len(step.answered) - len(shown)
        rows += [(str(step.n), *_format_exchange(one.query, one.answer, full)) for one in shown]
        rows += [(str(step.n), "", "", note, "") for note in _format_notes(step.notes, full)]
    if rows:
        click.echo()
        _print_rows(rows, full)
    if hidden:
        words = f"{format_count(hidden, 'call')} of hooks not shown; to see them: --full"
        click.secho(words, dim=True)


def _print_rows(rows: list[tuple[str, str, str, str, str]], full: bool) -> None:
    if not full:
        return print_table(
            ("step", "question", "kind", "asked", "answer"), rows, wide=("asked", "answer")
        )
    for n, query_id, kind, prompt, text in rows:
        click.secho(" · ".join(part for part in (f"step {n}", query_id, kind) if part), fg="cyan")
        click.echo(strip_controls(prompt) + (f"\n  → {strip_controls(text)}" if text else ""))


def _format_exchange(
    query: Query | None, answer: QueryAnswer, full: bool = False
) -> tuple[str, str, str, str]:
    text = (
        format_plain_value(answer.value)
        if answer.error is None
        else UNFINISHED.get(answer.error.get("code", "")) or f"error: {format_answer_error(answer)}"
    )
    if answer.expired:
        text = f"{text} (no answer came in time)"
    if answer.attempts > 1:
        text = f"{text} (attempt {answer.attempts})"
    asked = "" if query is None else format_asked_text(query)
    text += _format_by(answer.by)
    if full and answer.exception is not None:
        text += f"\n{format_exception(answer.exception)}"
    return answer.id, str(query.kind) if query else "", asked, text


def _format_by(by: dict[str, JSON] | None) -> str:
    return f" (by {by['user']})" if by and by.get("user") else ""


def _format_notes(notes: DeliveryNotes, full: bool) -> list[str]:
    lines = [f"{entry.level}: {entry.message}" for entry in notes.log]
    user = _format_by(notes.by)
    lines += ["timers fired"] * notes.fired + [f"retried{user}"] * notes.retry
    if notes.budget is not None:
        lines.append(
            f"budget: {format_plain_value(notes.budget.json())}{'' if notes.retry else user}"
        )
    if notes.restart is not None:
        lines.append(f"restarted with {format_plain_value(notes.restart.args)}")
    if notes.cancel is not None:
        lines.append(f"cancelled: {notes.cancel}".removesuffix(": ") + user)
    if notes.settled is not None and isinstance(notes.settled.outcome, TurnFailed):
        failed = notes.settled.outcome
        place = "" if failed.exception is None else f" ({failed.exception.place})"
        lines.append(f"turn {notes.settled.turn} failed: {failed.error}{place}")
        if full and failed.exception is not None:
            lines[-1] += f"\n{format_exception(failed.exception)}"
    return lines


def _show_end(status: Status, record: SessionRecord, full: bool) -> None:
    """Open questions, the result, or the error with its traceback."""
    from everhold.engine.journal_reader import index_queries

    for effect in record.effects:
        failed = effect.failed
        if failed is not None:
            click.echo(
                f"  q-{effect.q}: attempt {failed.number} of {failed.of} failed"
                f" ({format_ago(failed.at)}): {format_line(failed.error, MAX_ATTEMPT_LENGTH)}"
            )
    if isinstance(status, Paused):
        for query in status.queries:
            limit = 0 if full else MAX_PROMPT_CHARS
            click.echo(f"  {format_question(query, limit)} ({format_ago(query.asked_at)})")
            if query.blocked is not None:
                click.echo(f"    could not be answered: {describe_unanswered(query)}")
    elif isinstance(status, Finished) and isinstance(status.outcome, Raised):
        last = list(index_queries(record.deliveries).values())[-1:]
        if last:
            click.echo(
                f"  at step {status.outcome.step}, after {last[0].id}:"
                f" {format_line(last[0].prompt or last[0].name, 100)}"
            )
        if traceback := status.outcome.traceback.rstrip():
            click.echo(strip_controls(traceback))
    elif isinstance(status, Finished) and status.state == "completed":
        click.echo(f"  {strip_controls(format_plain_value(status.result))}")


@click.command("inbox")
@click.option(
    "--kind",
    metavar="KIND",
    shell_complete=complete_kinds,
    help="Only questions of this kind: approval, input, llm, signal, and more.",
)
@click.option("--to", metavar="NAME", help="Only questions addressed to this person.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    metavar="N",
    show_default=True,
    help="The most questions to list.",
)
@add_common_options
def inbox_(
    kind: str | None, to: str | None, limit: int, database: str | None, as_json: bool
) -> None:
    """List the open questions of all sessions, the oldest session first.

    What waits for a signal is not listed, such as a conversation that waits for input. To list
    those: --kind signal
    """
    with open_command_runtime(database) as opened:
        queries = opened.runtime.inbox(kind=kind, to=to, limit=limit)
        if as_json:
            from everhold.wire import query_json

            rows = [
                {"session_id": one.session_id, "query_id": one.id, **query_json(one)}
                for one in queries
            ]
            return print_json({"database": opened.database, "queries": rows})
        if queries:
            names = {one.session_id: opened.name(one.session_id) for one in queries}
            columns = ("session", "id", "kind", "asked", "question")
            rows_ = [
                (
                    names[one.session_id],
                    one.id,
                    str(one.kind),
                    format_ago(one.asked_at),
                    one.prompt or one.name,
                )
                for one in queries
            ]
            print_table(columns, rows_, wide=("question",))
            for one in queries:
                if one.blocked is not None:
                    words = f"{names[one.session_id]} {one.id} could not be answered"
                    click.echo(f"{words}: {describe_unanswered(one)}")
        else:
            click.echo("no open questions")
        print_footer(opened.database)


@click.command("usage")
@click.option(
    "--by",
    default="program",
    show_default=True,
    metavar="GROUP",
    help="Group by program, session, model, or a label: label:team.",
)
@click.option(
    "--newer-than", type=Duration(), help="Only sessions that moved within this time: 12h, 30d."
)
@add_common_options
def usage_(by: str, newer_than: float | None, database: str | None, as_json: bool) -> None:
    """Sum up the model calls and tokens of sessions."""
    with open_command_runtime(database) as opened:
        rows = opened.runtime.usage(by, newer_than=newer_than)
        names = [
            format_short_name(one.name, one.key) if by == "session" else one.name for one in rows
        ]
        columns = ("sessions", "llm_calls", "prompt_tokens", "response_tokens")
        counts = [[getattr(one, column) for column in columns] for one in rows]
        if as_json:
            groups = [
                {by: name, **dict(zip(columns, row, strict=True))}
                for name, row in zip(names, counts, strict=True)
            ]
            return print_json({"database": opened.database, "usage": groups})
        if rows:
            print_table(
                (by, "sessions", "model calls", "prompt tokens", "answer tokens"),
                [
                    (_strip_folders(name), *map(str, row))
                    for name, row in zip(names, counts, strict=True)
                ],
                wide=(by,),
            )
            calls = sum(one.llm_calls for one in rows)
            click.echo(f"total: {format_count(calls, 'model call')}")
        else:
            click.echo("no sessions")
        print_footer(opened.database)


@click.command("watch")
@session_argument
@click.option(
    "--every",
    type=Duration(),
    default=0.3,
    show_default=True,
    metavar="TIME",
    help="How often to read the session.",
)
@add_common_options
def watch_(session: str, every: float, database: str | None, as_json: bool) -> int:
    """Follow a session until it ends: each step as it is recorded.

    The exit code is that of `everhold run`: 0 if the session completes.
    """
    from everhold.core.status import Finished
    from everhold.engine.journal_reader import JournalReader
    from everhold.wire import status_exit_code, status_json

    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        name = opened.name(session_id)
        reader = JournalReader()
        last: JSON = None
        while True:
            record = opened.record(session_id, since=reader.next_n)
            for step in reader.read(record.deliveries):
                _print_step(step, as_json)
            status = opened.runtime.status(session_id)
            if as_json:
                now: JSON = status_json(status, opened.database_option)
            else:  # the steps have shown its progress
                now = format_headline(status, name, progress=False)
            if now != last:
                last = now
                print_json(now) if as_json else click.secho(now, bold=True)
            if isinstance(status, Finished):
                return int(status_exit_code(status))
            time.sleep(every)


def _print_step(step: JournalStep, as_json: bool) -> None:
    if as_json:
        return print_json(_step_json(step))
    for one in step.answered:
        text = _format_exchange(None, one.answer)[3]
        click.echo(f"{step.n:>4}  {one.answer.id} ← {format_line(text, 100)}")
    if step.notes.progress is not None:
        click.echo(f"{step.n:>4}  {format_progress(step.notes.progress)}")
    for query in step.asked:
        click.echo(
            f"{step.n:>4}  {query.id} {query.kind}: {format_line(format_asked_text(query), 100)}"
        )
