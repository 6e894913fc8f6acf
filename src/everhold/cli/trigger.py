"""The commands `trigger` and `emit`: what an event starts or feeds, and emitting one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import SHORT_ID_LENGTH, open_command_runtime, read_text_argument
from everhold.cli.options import (
    ActionOptions,
    add_action_options,
    add_common_options,
    describe_action,
    invoke_default_command,
    open_moving_runtime,
    parse_json_or_text,
    parse_pairs,
    wait_option,
)
from everhold.cli.output import format_moment, print_footer, print_json, print_table, record_to_wire
from everhold.core.codec import JSON, loads
from everhold.errors import BadSetting, BadValue

if TYPE_CHECKING:
    from everhold.schedules import Handover, Trigger


@click.group("trigger", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def trigger_(database: str | None, as_json: bool) -> None:
    """Start programs when an event happens: list, add, log, and more."""
    invoke_default_command(list_triggers, database=database, as_json=as_json)


@trigger_.command("list")
@add_common_options
def list_triggers(database: str | None = None, as_json: bool = False) -> None:
    """List triggers: the event, and what it starts or feeds."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.triggers.list()
        if as_json:
            return print_json(
                {"database": opened.database, "triggers": [_to_json(one) for one in found]}
            )
        rows = [
            (
                one.event,
                one.name,
                describe_action(one.do),
                _format_where(one),
                "" if one.enabled else "disabled",
            )
            for one in found
        ]
        if rows:
            print_table(("event", "name", "does", "where", ""), rows, wide=("does", "where"))
        else:
            click.echo("no triggers; to add one: everhold trigger add --help")
        print_footer(opened.database)


@trigger_.command("add")
@click.argument("event")
@add_action_options
@click.option(
    "--name", metavar="TEXT", help="The name of the trigger. Default: the name of its program."
)
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only events whose payload has this value: customer.tier=gold. May be repeated.",
)
@click.option(
    "--give",
    default="*",
    metavar="NAME",
    help="Pass the whole payload to this argument. Default: its fields, by name.",
)
@add_common_options
def add_trigger(
    event: str,
    action: ActionOptions,
    name: str | None,
    where: tuple[str, ...],
    give: str,
    database: str | None,
    as_json: bool,
) -> None:
    """Add a trigger: an event starts PROGRAM, or with --feed sends something to a session.

    \b
    everhold trigger add order.paid shop.py:ship --where country=DE
    """
    do, args = action.parse(database, whole=False)
    wanted = {
        field: parse_json_or_text(text) for field, text in parse_pairs(where, "--where").items()
    }
    with open_command_runtime(database, creates=True) as opened:
        made = opened.runtime.triggers.add(
            event, do, name=name, where=wanted, args=args, give=give, **action.describe()
        )
        if as_json:
            return print_json({"database": opened.database, **_to_json(made)})
        click.echo(f"{event} → {describe_action(made.do)} ({made.name})")
        print_footer(opened.database)


@trigger_.command("enable")
@click.argument("event")
@click.argument("name")
@add_common_options
def enable_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Enable a trigger again."""
    _enable(event, name, True, database, as_json)


@trigger_.command("disable")
@click.argument("event")
@click.argument("name")
@add_common_options
def disable_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Disable a trigger, without removing it."""
    _enable(event, name, False, database, as_json)


def _enable(event: str, name: str, enabled: bool, database: str | None, as_json: bool) -> None:
    with open_command_runtime(database) as opened:
        found = (opened.runtime.triggers.enable if enabled else opened.runtime.triggers.disable)(
            event, name
        )
        if as_json:
            return print_json(_to_json(found))
        click.echo(f"{event} → {name}: {'enabled' if enabled else 'disabled'}")


@trigger_.command("remove")
@click.argument("event")
@click.argument("name")
@add_common_options
def remove_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Remove a trigger; the sessions that it started stay."""
    with open_command_runtime(database) as opened:
        opened.runtime.triggers.remove(event, name)
        if as_json:
            return print_json({"removed": name, "event": event})
        click.echo(f"removed {name} of {event}")


@trigger_.command("log")
@click.argument("event", required=False)
@click.option(
    "--state",
    type=click.Choice(["started", "already", "waiting", "failed"]),
    help="Only handovers in this state.",
)
@add_common_options
def list_handovers(
    event: str | None, state: str | None, database: str | None, as_json: bool
) -> None:
    """List recent handovers: what events have started, or failed to start."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.triggers.handovers(event, state=state)
        if as_json:
            rows = [record_to_wire(one, "due_at") for one in found]
            return print_json({"database": opened.database, "handovers": rows})
        if found:
            print_table(
                ("handover", "state", "session", "error"),
                [_row(one) for one in found],
                wide=("handover", "error"),
            )
        else:
            click.echo("no handovers")
        print_footer(opened.database)


@trigger_.command("retry")
@click.argument("handover")
@add_common_options
def retry_handover(handover: str, database: str | None, as_json: bool) -> None:
    """Retry a handover now. `everhold trigger log` lists their ids."""
    with open_moving_runtime(database) as opened:
        _print_handovers([opened.runtime.triggers.retry(handover)], as_json)


@trigger_.command("drop")
@click.argument("handover")
@add_common_options
def drop_handover(handover: str, database: str | None, as_json: bool) -> None:
    """Drop a handover: what it should start is not started."""
    with open_command_runtime(database) as opened:
        opened.runtime.triggers.drop(handover)
        if as_json:
            return print_json({"dropped": handover})
        click.echo(f"dropped {handover}")


@click.command("emit")
@click.argument("event")
@click.argument("payload", required=False, metavar="[JSON]")
@click.option(
    "--key",
    metavar="TEXT",
    help="Emit it once: the same event with the same key triggers nothing again.",
)
@wait_option(
    "How long to move the sessions that were started. Default: until they end, or need an answer."
)
@add_common_options
def emit_(
    event: str,
    payload: str | None,
    key: str | None,
    wait: float | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Emit an event; what it triggers is started once.

    JSON is the payload; - reads it from standard input.

    \b
    everhold emit order.paid '{"order": "7", "country": "DE"}' --key order-7
    """
    parsed = _parse_payload(payload)
    with open_moving_runtime(database) as opened:
        found = opened.runtime.triggers.emit(event, parsed, key=key)
        for one in found.handovers if found.new else ():
            if one.session_id is not None:
                opened.runtime.wait(one.session_id, wait, settled=True)
        if as_json:
            handovers = [record_to_wire(one, "due_at") for one in found.handovers]
            return print_json(
                {**record_to_wire(found, "at"), "handovers": handovers, "database": opened.database}
            )
        again = "" if found.new else f" (emitted before, {format_moment(found.at)})"
        click.echo(f"{event} {found.key}{again}")
        _print_handovers(list(found.handovers), as_json)
        print_footer(opened.database)


def _parse_payload(text: str | None) -> JSON:
    if text is None:
        return None
    source = read_text_argument("-", "payload") if text == "-" else text
    try:
        return loads(source)
    except BadValue as error:
        raise BadSetting("payload", f"it is not JSON: {error.reason}") from None


def _print_handovers(handovers: list[Handover], as_json: bool) -> None:
    if as_json:
        return print_json({"handovers": [record_to_wire(one, "due_at") for one in handovers]})
    for one in handovers:
        more = one.error or (one.session_id or "")[:SHORT_ID_LENGTH]
        click.echo(f"  {one.trigger}: {one.state}" + (f" · {more}" if more else ""))
    if not handovers:
        click.echo("  no trigger matches")


def _row(one: Handover) -> tuple[str, ...]:
    return one.id, one.state, (one.session_id or "")[:SHORT_ID_LENGTH], one.error


def _to_json(trigger: Trigger) -> dict[str, JSON]:
    import msgspec

    fields: dict[str, JSON] = msgspec.to_builtins(trigger)
    return fields


def _format_where(trigger: Trigger) -> str:
    from everhold.wire import dump_wire_json

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else dump_wire_json(value)

    return ", ".join(f"{field}={shown(value)}" for field, value in trigger.where.items())
