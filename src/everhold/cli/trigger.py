"""The commands `trigger` and `emit`: what an event starts or feeds, and saying that it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import SHORT_ID_LENGTH, open_command_runtime, read_text_argument
from everhold.cli.options import (
    ActionOptions,
    Duration,
    add_action_options,
    add_common_options,
    describe_action,
    invoke_default_command,
    open_moving_runtime,
    parse_json_or_text,
    parse_pairs,
)
from everhold.cli.output import format_moment, print_footer, print_json, print_table, record_to_wire
from everhold.core.codec import JSON, loads
from everhold.errors import BadSetting, BadValue

if TYPE_CHECKING:
    from everhold.schedules import Handover, Trigger


@click.group("trigger", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def trigger_(database: str | None, as_json: bool) -> None:
    """Start programs when something happens: list, add, log, and more."""
    invoke_default_command(list_triggers, database=database, as_json=as_json)


@trigger_.command("list")
@add_common_options
def list_triggers(database: str | None = None, as_json: bool = False) -> None:
    """List what is triggered, and by which event."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.triggers.list()
        if as_json:
            return print_json(
                {"database": opened.database, "triggers": [_json(one) for one in found]}
            )
        rows = [
            (
                one.event,
                one.name,
                describe_action(one.do),
                _where(one),
                "" if one.enabled else "disabled",
            )
            for one in found
        ]
        if rows:
            print_table(("event", "name", "does", "where", ""), rows, wide=("does", "where"))
        else:
            click.echo("no triggers; make one: everhold trigger add EVENT PROGRAM")
        print_footer(opened.database)


@trigger_.command("add")
@click.argument("event")
@add_action_options
@click.option("--name", help="What the trigger is called; after its program, by itself.")
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="What the payload must have: customer.tier=gold; JSON or text.",
)
@click.option(
    "--give",
    default="*",
    metavar="ARGUMENT",
    help="The argument that is given the payload; by itself, its fields are.",
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
    """Let an event start a program or feed a session."""
    do, args = action.read(database, whole=False)
    wanted = {
        field: parse_json_or_text(text) for field, text in parse_pairs(where, "--where").items()
    }
    with open_command_runtime(database, makes=True) as opened:
        made = opened.runtime.triggers.add(
            event, do, name=name, where=wanted, args=args, give=give, **action.told()
        )
        if as_json:
            return print_json({"database": opened.database, **_json(made)})
        click.echo(f"{event} → {describe_action(made.do)} ({made.name})")
        print_footer(opened.database)


@trigger_.command("enable")
@click.argument("event")
@click.argument("name")
@add_common_options
def enable_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Let an event trigger this again."""
    _enable(event, name, True, database, as_json)


@trigger_.command("disable")
@click.argument("event")
@click.argument("name")
@add_common_options
def disable_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Let an event not trigger this any more."""
    _enable(event, name, False, database, as_json)


def _enable(event: str, name: str, enabled: bool, database: str | None, as_json: bool) -> None:
    with open_command_runtime(database) as opened:
        found = (opened.runtime.triggers.enable if enabled else opened.runtime.triggers.disable)(
            event, name
        )
        if as_json:
            return print_json(_json(found))
        click.echo(f"{event} → {name}: {'enabled' if enabled else 'disabled'}")


@trigger_.command("remove")
@click.argument("event")
@click.argument("name")
@add_common_options
def remove_trigger(event: str, name: str, database: str | None, as_json: bool) -> None:
    """Forget a trigger; what it has started goes on."""
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
    help="Only those that came to this.",
)
@add_common_options
def list_handovers(
    event: str | None, state: str | None, database: str | None, as_json: bool
) -> None:
    """List what events have lately started, or could not."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.triggers.handovers(event, state=state)
        if as_json:
            told = [record_to_wire(one, "due_at") for one in found]
            return print_json({"database": opened.database, "handovers": told})
        if found:
            print_table(
                ("handover", "state", "session", "error"),
                [_row(one) for one in found],
                wide=("handover", "error"),
            )
        else:
            click.echo("nothing was handed over")
        print_footer(opened.database)


@trigger_.command("retry")
@click.argument("handover")
@add_common_options
def retry_handover(handover: str, database: str | None, as_json: bool) -> None:
    """Try a handover again, now."""
    with open_moving_runtime(database) as opened:
        _tell([opened.runtime.triggers.retry(handover)], as_json)


@trigger_.command("drop")
@click.argument("handover")
@add_common_options
def drop_handover(handover: str, database: str | None, as_json: bool) -> None:
    """Forget a handover: what it should have started is not started."""
    with open_command_runtime(database) as opened:
        opened.runtime.triggers.drop(handover)
        if as_json:
            return print_json({"dropped": handover})
        click.echo(f"dropped {handover}")


@click.command("emit")
@click.argument("event")
@click.argument("payload", required=False, metavar="[JSON]")
@click.option("--key", help="Same key, same event: emit it again and nothing happens twice.")
@click.option(
    "--wait",
    type=Duration(),
    metavar="S",
    help="Seconds to let what was started go on; as far as it can here.",
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
    """Say that something happened; what it triggers is started once.

    JSON is the payload; - reads it from standard input.
    """
    given = _payload(payload)
    with open_moving_runtime(database) as opened:
        found = opened.runtime.triggers.emit(event, given, key=key)
        for one in found.handovers if found.new else ():
            if one.session_id is not None:
                opened.runtime.wait(one.session_id, wait, settled=True)
        if as_json:
            handovers = [record_to_wire(one, "due_at") for one in found.handovers]
            return print_json(
                {**record_to_wire(found, "at"), "handovers": handovers, "database": opened.database}
            )
        again = "" if found.new else f" (it happened before, {format_moment(found.at)})"
        click.echo(f"{event} {found.key}{again}")
        _tell(list(found.handovers), as_json)
        print_footer(opened.database)


def _payload(text: str | None) -> JSON:
    if text is None:
        return None
    source = read_text_argument("-", "payload") if text == "-" else text
    try:
        return loads(source)
    except BadValue as error:
        raise BadSetting("payload", f"it is not JSON: {error.reason}") from None


def _tell(handovers: list[Handover], as_json: bool) -> None:
    if as_json:
        return print_json({"handovers": [record_to_wire(one, "due_at") for one in handovers]})
    for one in handovers:
        more = one.error or (one.session_id or "")[:SHORT_ID_LENGTH]
        click.echo(f"  {one.trigger}: {one.state}" + (f" · {more}" if more else ""))
    if not handovers:
        click.echo("  nothing is triggered by it")


def _row(one: Handover) -> tuple[str, ...]:
    return one.id, one.state, (one.session_id or "")[:SHORT_ID_LENGTH], one.error


def _json(trigger: Trigger) -> dict[str, JSON]:
    import msgspec

    told: dict[str, JSON] = msgspec.to_builtins(trigger)
    return told


def _where(trigger: Trigger) -> str:
    from everhold.wire import dump_wire_json

    def shown(value: Any) -> str:
        return value if isinstance(value, str) else dump_wire_json(value)

    return ", ".join(f"{field}={shown(value)}" for field, value in trigger.where.items())
