"""Commands that look at sessions and change nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import CommandRuntime, format_short_name, open_command_runtime
from everhold.cli.options import Duration, add_common_options, parse_pairs, session_argument
from everhold.cli.output import (
    format_ago,
    format_asked_text,
    format_count,
    format_headline,
    format_line,
    format_moment,
    format_plain_value,
    format_question,
    print_footer,
    print_json,
    print_table,
    record_to_wire,
    strip_controls,
)
from everhold.core.query import Query, QueryAnswer

if TYPE_CHECKING:
    from everhold.core.codec import JSON
    from everhold.core.journal import DeliveryNotes
    from everhold.engine.journal_reader import JournalStep
    from everhold.ports.store import SessionRecord


@click.command("sessions")
@click.option(
    "--state", multiple=True, help="running, paused, completed, failed, cancelled; may be repeated."
)
@click.option("--program", help="Only those of this program.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only those with this label."
)
@click.option("--older-than", type=Duration(), help="Not moved for so long: 90s, 15m, 12h, 30d.")
@click.option("--newer-than", type=Duration(), help="Moved since.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    metavar="N",
    show_default=True,
    help="At most so many.",
)
@click.option(
    "--after", metavar="SESSION", help="The next page: the last session of the one before."
)
@add_common_options
def sessions_(
    state: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    older_than: float | None,
    newer_than: float | None,
    limit: int,
    after: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """List sessions, newest first."""
    with open_command_runtime(database) as opened:
        listed = opened.runtime.sessions(
            state=list(state) or None,
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
        columns = ("session", "state", "program", "steps", "moved", "title")
        if listed:
            print_table(columns, [_row(info) for info in listed], wide=("program", "title"))
        else:
            click.echo("no sessions")
        print_footer(opened.database)


def _row(info: Any) -> tuple[str, ...]:
    name = format_short_name(info.session_id, info.key)
    program = _brief(info.program)
    return name, info.state, program, str(info.steps), format_ago(info.updated_at), info.title


def _brief(program: str) -> str:
    """A program's reference without the folders."""
    return program.replace("\\", "/").rpartition("/")[2]


@click.command("show")
@session_argument
@click.option("--full", is_flag=True, help="Questions and answers in full.")
@add_common_options
def show_(session: str, full: bool, database: str | None, as_json: bool) -> None:
    """Show one session: what was asked, what was answered, how it ended."""
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        record = opened.record(session_id)
        status = opened.runtime.status(session_id)
        if as_json:
            from everhold.engine.journal_reader import read_steps
            from everhold.wire import status_json

            steps = [_step_json(step) for step in read_steps(record.deliveries)]
            told = {"database": opened.database, "session": _facts(record), "steps": steps}
            return print_json({**told, "status": status_json(status)})
        _show_facts(record)
        _show_steps(record, full)
        click.secho(
            f"\n{format_headline(status, format_short_name(session_id, record.birth.key))}",
            bold=True,
        )
        _show_rest(opened, session_id, record)
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
    }
    return facts


def _step_json(step: JournalStep) -> dict[str, JSON]:
    import msgspec

    told: dict[str, JSON] = msgspec.to_builtins(step.delivery)
    return {**told, "at": int(step.at * 1000)}


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
        "forked from": f"{birth.origin} after step {birth.origin_n}" if birth.origin else "",
        "started": f"{format_moment(birth.created_at)} ({format_ago(birth.created_at)})",
        "moved": format_ago(record.head.updated_at),
    }
    for name, value in shown.items():
        if value:
            click.echo(f"{name:<12} {format_line(value, 200)}")


def _show_steps(record: SessionRecord, full: bool) -> None:
    from everhold.engine.journal_reader import read_steps

    rows = []
    for step in read_steps(record.deliveries):
        rows += [(str(step.n), *_exchange(one.query, one.answer)) for one in step.answered]
        rows += [(str(step.n), "", "", words, "") for words in _noted(step.notes)]
    if not rows:
        return
    click.echo()
    if not full:
        return print_table(
            ("step", "question", "kind", "asked", "answer"), rows, wide=("asked", "answer")
        )
    for n, query_id, kind, prompt, said in rows:
        click.secho(" · ".join(part for part in (f"step {n}", query_id, kind) if part), fg="cyan")
        click.echo(strip_controls(prompt) + (f"\n  → {strip_controls(said)}" if said else ""))


def _exchange(query: Query | None, answer: QueryAnswer) -> tuple[str, str, str, str]:
    said = (
        format_plain_value(answer.value)
        if answer.error is None
        else f"error: {answer.error.get('message')}"
    )
    if answer.expired:
        said = f"{said} (nobody answered in time)"
    who = f" (by {answer.by['user']})" if answer.by and answer.by.get("user") else ""
    words = "" if query is None else format_asked_text(query)
    return answer.id, str(query.kind) if query else "", words, said + who


def _noted(notes: DeliveryNotes) -> list[str]:
    words = [f"{entry.level}: {entry.message}" for entry in notes.log]
    words += ["timers fired"] * notes.fired + ["retried"] * notes.retry
    words += (
        []
        if notes.restart is None
        else [f"began again with {format_plain_value(notes.restart.args)}"]
    )
    return words + (
        [f"cancelled: {notes.cancel}".removesuffix(": ")] if notes.cancel is not None else []
    )


def _show_rest(opened: CommandRuntime, session_id: str, record: SessionRecord) -> None:
    """Open questions, or why it failed."""
    from everhold.core.status import Finished, Paused, Raised
    from everhold.engine.journal_reader import index_queries

    status = opened.runtime.status(session_id)
    if isinstance(status, Paused):
        for query in status.queries:
            click.echo(f"  {format_question(query)} ({format_ago(query.asked_at)})")
    elif isinstance(status, Finished) and isinstance(status.outcome, Raised):
        last = list(index_queries(record.deliveries).values())[-1:]
        if last:
            click.echo(
                f"  at step {status.outcome.step}, after {last[0].id}:"
                f" {format_line(last[0].prompt or last[0].name, 100)}"
            )
        click.echo(strip_controls(status.outcome.traceback.rstrip()))
    elif isinstance(status, Finished) and status.state == "completed":
        click.echo(f"  {strip_controls(format_plain_value(status.result))}")


@click.command("inbox")
@click.option("--kind", help="Only those of this kind, such as approval or input.")
@click.option("--to", help="Only those addressed to somebody.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    metavar="N",
    show_default=True,
    help="At most so many.",
)
@add_common_options
def inbox_(
    kind: str | None, to: str | None, limit: int, database: str | None, as_json: bool
) -> None:
    """List the open questions of all sessions, oldest first.

    A conversation that waits to be told something asks nobody: --kind signal lists those.
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
            columns = ("session", "question", "kind", "asked", "words")
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
            print_table(columns, rows_, wide=("words",))
        else:
            click.echo("no open questions")
        print_footer(opened.database)


@click.command("usage")
@click.option(
    "--by",
    default="program",
    show_default=True,
    metavar="GROUP",
    help="program, session, model or label:NAME.",
)
@click.option("--newer-than", type=Duration(), help="Only sessions that moved since: 12h, 30d.")
@add_common_options
def usage_(by: str, newer_than: float | None, database: str | None, as_json: bool) -> None:
    """Add up what sessions cost in model calls and tokens."""
    with open_command_runtime(database) as opened:
        rows = opened.runtime.usage(by, newer_than=newer_than)
        names = [
            format_short_name(one.name, one.key) if by == "session" else one.name for one in rows
        ]
        columns = ("sessions", "llm_calls", "prompt_tokens", "response_tokens")
        counts = [[getattr(one, column) for column in columns] for one in rows]
        if as_json:
            told = [
                {by: name, **dict(zip(columns, row, strict=True))}
                for name, row in zip(names, counts, strict=True)
            ]
            return print_json({"database": opened.database, "usage": told})
        if rows:
            print_table(
                (by, "sessions", "model calls", "prompt tokens", "answer tokens"),
                [(_brief(name), *map(str, row)) for name, row in zip(names, counts, strict=True)],
                wide=(by,),
            )
            calls = sum(one.llm_calls for one in rows)
            click.echo(f"together {format_count(calls, 'model call')}")
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
    metavar="S",
    help="Seconds between two looks.",
)
@add_common_options
def watch_(session: str, every: float, database: str | None, as_json: bool) -> int:
    """Follow a session until it ends: each step as it lands."""
    from everhold.core.status import Finished
    from everhold.engine.journal_reader import JournalReader
    from everhold.wire import status_exit_code, status_json

    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        name = opened.name(session_id)
        reader = JournalReader()
        told: JSON = None
        while True:
            record = opened.record(session_id, since=reader.next_n)
            for step in reader.read(record.deliveries):
                _tell_step(step, as_json)
            status = opened.runtime.status(session_id)
            now = status_json(status) if as_json else format_headline(status, name)
            if now != told:
                told = now
                print_json(now) if as_json else click.secho(now, bold=True)
            if isinstance(status, Finished):
                return int(status_exit_code(status))
            time.sleep(every)


def _tell_step(step: JournalStep, as_json: bool) -> None:
    if as_json:
        return print_json(_step_json(step))
    for one in step.answered:
        said = _exchange(None, one.answer)[3]
        click.echo(f"{step.n:>4}  {one.answer.id} ← {format_line(said, 100)}")
    for query in step.asked:
        click.echo(
            f"{step.n:>4}  {query.id} {query.kind}: {format_line(format_asked_text(query), 100)}"
        )
