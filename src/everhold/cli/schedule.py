"""`everhold schedule`: programs that start, and sessions that are fed, at certain times."""

from __future__ import annotations

import datetime as dates
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import SHORT_ID_LENGTH, open_command_runtime
from everhold.cli.options import (
    ActionOptions,
    Duration,
    add_action_options,
    add_common_options,
    describe_action,
    invoke_default_command,
    make_usage_error,
)
from everhold.cli.output import format_moment, print_footer, print_json, print_table, record_to_wire
from everhold.core.codec import JSON

if TYPE_CHECKING:
    from everhold.schedules import Schedule

F = TypeVar("F", bound=Callable[..., Any])


@click.group("schedule", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def schedule_(database: str | None, as_json: bool) -> None:
    """Start programs at certain times: list, add, next, pause, and more."""
    invoke_default_command(list_schedules, database=database, as_json=as_json)


@schedule_.command("list")
@add_common_options
def list_schedules(database: str | None = None, as_json: bool = False) -> None:
    """List schedules: when they fire, what they do, and their last session or problem."""
    with open_command_runtime(database) as opened:
        found = opened.runtime.schedules.list()
        if as_json:
            return print_json(
                {"database": opened.database, "schedules": [_to_json(one) for one in found]}
            )
        rows = [
            (one.name, one.when, describe_action(one.do), _format_next(one), _format_last(one))
            for one in found
        ]
        if rows:
            print_table(("name", "when", "does", "next", "last"), rows, wide=("does", "last"))
        else:
            click.echo("no schedules; to add one: everhold schedule add --help")
        print_footer(opened.database)


@schedule_.command("add")
@click.argument("name")
@add_action_options
@click.option(
    "--cron",
    metavar="EXPR",
    help="When: minute hour day month weekday, or @hourly, @daily, @weekly, @monthly, @yearly.",
)
@click.option("--every", type=Duration(), help="Repeat after this time: 90s, 15m, 12h.")
@click.option(
    "--at",
    "moment",
    metavar="TIME",
    help="Once, at this time: 2026-03-01T09:00. In --timezone, unless it has an offset.",
)
@click.option(
    "--timezone",
    metavar="ZONE",
    default="UTC",
    show_default=True,
    help="The time zone of --cron and --at: Europe/Berlin.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue"]),
    default="allow",
    show_default=True,
    help="If the previous session has not ended: start another, skip this time, or start after it.",
)
@click.option(
    "--catch-up",
    type=click.Choice(["one", "all", "none"]),
    default="one",
    show_default=True,
    help="Times missed while no process was running: start for the last one, for all, or for none.",
)
@click.option(
    "--give", default="", metavar="NAME", help="Pass the time to this argument of the program."
)
@add_common_options
def add_schedule(
    name: str,
    action: ActionOptions,
    cron: str | None,
    every: float | None,
    moment: str | None,
    timezone: str,
    overlap: Any,
    catch_up: Any,
    give: str,
    database: str | None,
    as_json: bool,
) -> None:
    """Add a schedule, or replace the one of this name.

    It starts PROGRAM, or with --feed sends something to a session.

    \b
    everhold schedule add nightly report.py:report team=red --cron "0 3 * * *"
    everhold schedule add wake --feed support-ana --value '"Good morning"' --every 1d
    """
    time = _parse_when(cron, every, moment)
    do, args = action.parse(database, whole=not give)
    with open_command_runtime(database, creates=True) as opened:
        made = opened.runtime.schedules.add(
            name,
            time,
            do,
            timezone=timezone,
            args=args,
            give=give,
            overlap=overlap,
            catch_up=catch_up,
            **action.describe(),
        )
        if as_json:
            return print_json({"database": opened.database, **_to_json(made)})
        click.echo(f"{name}: {made.when}, next {_format_next(made)}")
        print_footer(opened.database)


def _parse_when(cron: str | None, every: float | None, moment: str | None) -> Any:
    given = [one for one in (cron, every, moment) if one is not None]
    if len(given) != 1:
        raise make_usage_error("say when: give one of --cron, --every and --at")
    if every is not None:
        return dates.timedelta(seconds=every)
    if moment is None:
        return cron
    try:
        return dates.datetime.fromisoformat(moment)
    except ValueError:
        raise make_usage_error(f"{moment!r} is not a time; write 2026-03-01T09:00") from None


@schedule_.command("next")
@click.argument("name")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="How many times to print.",
)
@add_common_options
def list_next_times(name: str, count: int, database: str | None, as_json: bool) -> None:
    """Print when a schedule fires next."""
    with open_command_runtime(database) as opened:
        moments = opened.runtime.schedules.next_runs(name, count)
        if as_json:
            return print_json({"name": name, "moments": [int(at * 1000) for at in moments]})
        for at in moments:
            click.echo(format_moment(at))


@schedule_.command("pause")
@click.argument("name")
@add_common_options
def pause_schedule(name: str, database: str | None, as_json: bool) -> None:
    """Pause a schedule until it is resumed."""
    with open_command_runtime(database) as opened:
        _print_schedule(opened.runtime.schedules.pause(name), as_json)


@schedule_.command("resume")
@click.argument("name")
@add_common_options
def resume_schedule(name: str, database: str | None, as_json: bool) -> None:
    """Resume a schedule with its next time."""
    with open_command_runtime(database) as opened:
        _print_schedule(opened.runtime.schedules.resume(name), as_json)


@schedule_.command("remove")
@click.argument("name")
@add_common_options
def remove_schedule(name: str, database: str | None, as_json: bool) -> None:
    """Remove a schedule; the sessions that it started stay."""
    with open_command_runtime(database) as opened:
        opened.runtime.schedules.remove(name)
        if as_json:
            return print_json({"removed": name})
        click.echo(f"removed {name}")


def _print_schedule(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        return print_json(_to_json(schedule))
    click.echo(f"{schedule.name}: {'next ' if schedule.next_at else ''}{_format_next(schedule)}")


def _to_json(schedule: Schedule) -> dict[str, JSON]:
    return record_to_wire(schedule, "next_at", "last_at")


def _format_next(schedule: Schedule) -> str:
    return format_moment(schedule.next_at) if schedule.next_at is not None else schedule.state


def _format_last(schedule: Schedule) -> str:
    if schedule.problem:
        return schedule.problem
    return "" if schedule.last_session is None else schedule.last_session[:SHORT_ID_LENGTH]
