"""The command `schedule`: what is started, or fed, when a moment comes round."""

from __future__ import annotations

import datetime as dates
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everhold.core.codec import JSON, loads
from everhold.core.errors import BadValue
from everhold.fronts.cli.house import SHORT, Duration, common, misused, opened, pairs, settings_of
from everhold.fronts.cli.paper import footer, json_out, milliseconds, plural, table, when

if TYPE_CHECKING:
    from everhold.timetable import Schedule, Start

F = TypeVar("F", bound=Callable[..., Any])


def deeds(command: F) -> F:
    """What is to be done: a program with arguments, or a session that is fed."""
    options = [
        click.argument("program", required=False),
        click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]..."),
        click.option("--feed", metavar="SESSION", help="Instead of a program: send something to this session."),
        click.option("--signal", metavar="NAME", help="What it receives; without it, a conversation is told."),
        click.option("--value", metavar="JSON", help="What is sent; without it, the moment or the event's payload."),
        click.option("--title", default="", help="What people call the sessions."),
        click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="To find them again."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def deed_of(
    database: str | None,
    program: str | None,
    arguments: Sequence[str],
    feed: str | None,
    signal: str | None,
    value: str | None,
    *,
    whole: bool,
) -> tuple[Any, dict[str, Any]]:
    """What was said with `deeds`: what to do, and the arguments; as a call where they are the `whole` of them."""
    from everhold.packages.catalog import named
    from everhold.timetable import Feed

    if (program is None) == (feed is None):
        raise misused("say what to do: a PROGRAM, or --feed SESSION")
    if feed is not None:
        given = {} if value is None else {"value": json_or_text(value)}
        return Feed(feed, signal or "", **given), {}
    if signal is not None or value is not None:
        raise misused("--signal and --value are for --feed")
    from everhold.fronts.cli.run import _called, valued

    found = named(program or "", settings_of(database))
    if whole:
        return _called(found, tuple(arguments), None), {}
    texts = pairs(tuple(arguments), "argument")
    return found, {name: valued(found, name, text) for name, text in texts.items()}


def json_or_text(value: str) -> JSON:
    try:
        return loads(value)
    except BadValue:
        return value


@click.group("schedule", invoke_without_command=True)
@common
@click.pass_context
def schedule_(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Start programs at certain times: list, add, next, pause, and more."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, database=database, as_json=as_json)
    elif database is not None or as_json:
        raise misused(f"say it after {ctx.invoked_subcommand}: everhold schedule {ctx.invoked_subcommand} …")


@schedule_.command("list")
@common
def list_(database: str | None = None, as_json: bool = False) -> None:
    """List the schedules: when, what, and what went wrong."""
    with opened(database) as house:
        found = house.runtime.schedules()
        if as_json:
            return json_out({"database": house.database, "schedules": [_json(one) for one in found]})
        rows = [(one.name, one.when, done(one.do), _stands(one), _last(one)) for one in found]
        if rows:
            table(("name", "when", "does", "next", "last"), rows, wide=("does", "last"))
        else:
            click.echo("no schedules; make one: everhold schedule add NAME PROGRAM --cron '0 3 * * *'")
        footer(house.database)


@schedule_.command("add")
@click.argument("name")
@deeds
@click.option("--cron", metavar="EXPR", help="Five fields: minute hour day month weekday, or @daily and the like.")
@click.option("--every", type=Duration(), help="Again and again after a pause: 90s, 15m, 12h.")
@click.option("--at", "moment", metavar="TIME", help="Once: 2026-03-01T09:00, in --timezone unless it says its own.")
@click.option("--timezone", default="UTC", show_default=True, help="Whose clock: Europe/Berlin.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "queue"]),
    default="allow",
    show_default=True,
    help="While the session before has not ended.",
)
@click.option(
    "--catch-up",
    type=click.Choice(["one", "all", "none"]),
    default="one",
    show_default=True,
    help="Moments that nobody was there for: the last one, all, or none.",
)
@click.option("--give", default="", metavar="ARGUMENT", help="The argument that is given the moment.")
@common
def add_(
    name: str,
    program: str | None,
    arguments: tuple[str, ...],
    feed: str | None,
    signal: str | None,
    value: str | None,
    title: str,
    labels: tuple[str, ...],
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
    """Make a schedule, or change the one of this name."""
    time = _when(cron, every, moment)
    do, args = deed_of(database, program, arguments, feed, signal, value, whole=not give)
    with opened(database, makes=True) as house:
        made = house.runtime.schedule(
            name,
            time,
            do,
            timezone=timezone,
            args=args,
            give=give,
            overlap=overlap,
            catch_up=catch_up,
            title=title,
            labels=pairs(labels, "--label"),
        )
        if as_json:
            return json_out({"database": house.database, **_json(made)})
        click.echo(f"{name}: {made.when}, next {_stands(made)}")
        footer(house.database)


def _when(cron: str | None, every: float | None, moment: str | None) -> Any:
    given = [one for one in (cron, every, moment) if one is not None]
    if len(given) != 1:
        raise misused("say when, with one of --cron, --every and --at")
    if every is not None:
        return dates.timedelta(seconds=every)
    if moment is None:
        return cron
    try:
        return dates.datetime.fromisoformat(moment)
    except ValueError:
        raise misused(f"{moment!r} is no time; say 2026-03-01T09:00") from None


@schedule_.command("next")
@click.argument("name")
@click.option("-n", "--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="How many.")
@common
def next_(name: str, count: int, database: str | None, as_json: bool) -> None:
    """Say when a schedule comes round next."""
    with opened(database) as house:
        moments = house.runtime.moments(name, count)
        if as_json:
            return json_out({"name": name, "moments": [int(at * 1000) for at in moments]})
        for at in moments:
            click.echo(when(at))


@schedule_.command("pause")
@click.argument("name")
@common
def pause_(name: str, database: str | None, as_json: bool) -> None:
    """Let a schedule rest until it is resumed."""
    with opened(database) as house:
        _tell(house.runtime.pause_schedule(name), as_json)


@schedule_.command("resume")
@click.argument("name")
@common
def resume_(name: str, database: str | None, as_json: bool) -> None:
    """Let a schedule go on with its next moment."""
    with opened(database) as house:
        _tell(house.runtime.resume_schedule(name), as_json)


@schedule_.command("remove")
@click.argument("name")
@common
def remove_(name: str, database: str | None, as_json: bool) -> None:
    """Forget a schedule; sessions that it has begun go on."""
    with opened(database) as house:
        house.runtime.unschedule(name)
        if as_json:
            return json_out({"removed": name})
        click.echo(f"removed {name}")


def _tell(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        return json_out(_json(schedule))
    click.echo(f"{schedule.name}: {'next ' if schedule.next_at else ''}{_stands(schedule)}")


def _json(schedule: Schedule) -> dict[str, JSON]:
    return milliseconds(schedule, "next_at", "last_at")


def _stands(schedule: Schedule) -> str:
    return when(schedule.next_at) if schedule.next_at is not None else schedule.state


def _last(schedule: Schedule) -> str:
    if schedule.problem:
        return schedule.problem
    return "" if schedule.last_session is None else schedule.last_session[:SHORT]


def done(deed: Any) -> str:
    """What is done, in a few words."""
    from everhold.timetable import Feed

    if isinstance(deed, Feed):
        return f"signal {deed.signal} to {deed.session}" if deed.signal else f"tell {deed.session}"
    start: Start = deed
    args = f" with {plural(len(start.args), 'argument')}" if start.args else ""
    return f"{start.program.rpartition('/')[2]}{args}"
