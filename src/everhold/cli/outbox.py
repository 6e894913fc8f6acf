"""`everhold outbox`: what people were told, or could not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from everhold.cli.app import Verbs
from everhold.cli.context import House, alone, called, common, misused, opened
from everhold.cli.output import ago, footer, json_out, milliseconds, table, when

if TYPE_CHECKING:
    from everhold.notify import Entry

_SESSION = click.argument("session", metavar="[SESSION]", required=False)
_TELLER = click.option("--teller", metavar="NAME", help="Only those of this teller.")
_ALL = click.option("--all", "everything", is_flag=True, help="Those of all sessions.")


@click.group("outbox", cls=Verbs, invoke_without_command=True)
@common
def outbox_(database: str | None, as_json: bool) -> None:
    """List what people were told, or could not be; tell them again."""
    alone(list_, database=database, as_json=as_json)


@outbox_.command("list")
@_SESSION
@_TELLER
@common
def list_(session: str | None, teller: str | None, database: str | None, as_json: bool) -> None:
    """List what was told or is going to be, in the order asked."""
    with opened(database) as house:
        _show(
            house,
            house.runtime.outbox(_meant(house, session), teller=teller),
            as_json,
            "nothing was told",
        )


@outbox_.command("retry")
@_SESSION
@_TELLER
@_ALL
@common
def retry_(
    session: str | None, teller: str | None, everything: bool, database: str | None, as_json: bool
) -> None:
    """Have people told again; whoever keeps the database open sends it."""
    _refuse_unnamed(session, everything)
    with opened(database) as house:
        moved = house.runtime.outbox_retry(_meant(house, session), teller=teller)
        _show(house, moved, as_json, "nothing to tell again")


@outbox_.command("drop")
@_SESSION
@_TELLER
@_ALL
@common
def drop_(
    session: str | None, teller: str | None, everything: bool, database: str | None, as_json: bool
) -> None:
    """Have people not told any more; the questions stay open."""
    _refuse_unnamed(session, everything)
    with opened(database) as house:
        moved = house.runtime.outbox_drop(_meant(house, session), teller=teller)
        _show(house, moved, as_json, "nothing to drop")


def _refuse_unnamed(session: str | None, everything: bool) -> None:
    if (session is None) is not everything:
        raise misused("say which SESSION, or --all")


def _meant(house: House, session: str | None) -> str:
    return "" if session is None else house.session(session)


def _show(house: House, found: list[Entry], as_json: bool, none: str) -> None:
    if as_json:
        rows = [
            milliseconds(entry, "asked_at", "since", "due_at") | {"id": entry.id} for entry in found
        ]
        return json_out({"database": house.database, "entries": rows})
    if found:
        columns = ("session", "question", "teller", "state", "tries", "asked", "next", "error")
        table(columns, [_row(house, entry) for entry in found], wide=("error",))
    else:
        click.echo(none)
    footer(house.database)


def _row(house: House, entry: Entry) -> tuple[str, ...]:
    from everhold.notify import EntryState

    open_ends = (EntryState.WAITING, EntryState.SENDING)
    due = when(entry.due_at) if entry.state in open_ends and entry.due_at is not None else ""
    name = _name(house, entry.session_id)
    state = entry.state.value.replace("_", " ")
    return (
        name,
        entry.query_id,
        entry.teller,
        state,
        str(entry.tries),
        ago(entry.asked_at),
        due,
        entry.error,
    )


def _name(house: House, session_id: str) -> str:
    from everhold.errors import UnknownSession

    try:
        return house.name(session_id)
    except UnknownSession:  # deleted meanwhile
        return called(session_id, None)
