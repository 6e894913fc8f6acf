"""`everhold outbox`: notifications about questions, and their delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import CommandRuntime, format_short_name, open_command_runtime
from everhold.cli.options import (
    add_common_options,
    invoke_default_command,
    make_usage_error,
    optional_session_argument,
)
from everhold.cli.output import (
    format_ago,
    format_moment,
    print_footer,
    print_json,
    print_table,
    record_to_wire,
)

if TYPE_CHECKING:
    from everhold.notify import OutboxEntry

_NOTIFIER = click.option(
    "--notifier",
    metavar="NAME",
    help="Only notifications of this notifier: a `tell` table of the settings.",
)
_ALL = click.option("--all", "everything", is_flag=True, help="Those of all sessions.")


@click.group("outbox", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def outbox_(database: str | None, as_json: bool) -> None:
    """List notifications and their state; send them again, or drop them."""
    invoke_default_command(list_notifications, database=database, as_json=as_json)


@outbox_.command("list")
@optional_session_argument
@_NOTIFIER
@add_common_options
def list_notifications(
    session: str | None, notifier: str | None, database: str | None, as_json: bool
) -> None:
    """List notifications, in the order of their questions."""
    with open_command_runtime(database) as opened:
        _show(
            opened,
            opened.runtime.notifications.list(_find_session(opened, session), notifier=notifier),
            as_json,
            "no notifications",
        )


@outbox_.command("retry")
@optional_session_argument
@_NOTIFIER
@_ALL
@add_common_options
def retry_notifications(
    session: str | None, notifier: str | None, everything: bool, database: str | None, as_json: bool
) -> None:
    """Send notifications again; the next process that opens the database sends them."""
    _refuse_unnamed(session, everything)
    with open_command_runtime(database) as opened:
        moved = opened.runtime.notifications.retry(
            _find_session(opened, session), notifier=notifier
        )
        _show(opened, moved, as_json, "no notifications to send again")


@outbox_.command("drop")
@optional_session_argument
@_NOTIFIER
@_ALL
@add_common_options
def drop_notifications(
    session: str | None, notifier: str | None, everything: bool, database: str | None, as_json: bool
) -> None:
    """Drop notifications that were not sent; the questions stay open."""
    _refuse_unnamed(session, everything)
    with open_command_runtime(database) as opened:
        moved = opened.runtime.notifications.drop(_find_session(opened, session), notifier=notifier)
        _show(opened, moved, as_json, "no notifications to drop")


def _refuse_unnamed(session: str | None, everything: bool) -> None:
    if (session is None) is not everything:
        raise make_usage_error("name a SESSION, or use --all")


def _find_session(opened: CommandRuntime, session: str | None) -> str | None:
    return None if session is None else opened.session(session)


def _show(opened: CommandRuntime, found: list[OutboxEntry], as_json: bool, none: str) -> None:
    if as_json:
        rows = [
            record_to_wire(entry, "asked_at", "since", "due_at") | {"id": entry.id}
            for entry in found
        ]
        return print_json({"database": opened.database, "entries": rows})
    if found:
        columns = ("session", "question", "notifier", "state", "tries", "asked", "next", "error")
        print_table(columns, [_row(opened, entry) for entry in found], wide=("error",))
    else:
        click.echo(none)
    print_footer(opened.database)


def _row(opened: CommandRuntime, entry: OutboxEntry) -> tuple[str, ...]:
    from everhold.errors import UnknownSession
    from everhold.notify import OutboxState

    open_ends = (OutboxState.WAITING, OutboxState.SENDING)
    due = (
        format_moment(entry.due_at) if entry.state in open_ends and entry.due_at is not None else ""
    )
    try:
        name = opened.name(entry.session_id)
    except UnknownSession:  # deleted meanwhile
        name = format_short_name(entry.session_id, None)
    state = entry.state.value.replace("_", " ")
    return (
        name,
        entry.query_id,
        entry.teller,
        state,
        str(entry.tries),
        format_ago(entry.asked_at),
        due,
        entry.error,
    )
