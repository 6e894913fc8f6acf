"""`everhold card`: the immutable records of runs, with their samples, names and ancestors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import complete_folders
from everhold.cli.context import CommandRuntime, open_command_runtime
from everhold.cli.options import (
    add_common_options,
    invoke_default_command,
    parse_pairs,
)
from everhold.cli.output import (
    format_count,
    format_line,
    format_plain_value,
    print_footer,
    print_json,
    print_table,
)
from everhold.core.codec import JSON, loads
from everhold.errors import BadCardQuery, BadValue

if TYPE_CHECKING:
    from everhold.cards import CardProblem

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: Final = ("card", "package", "created", "model", "scenario", "pass rate")
_PACKAGE = click.option("--pkg", metavar="NAME", help="Only cards of this package.")
_WHERE = click.option(
    "--where",
    metavar="JSON",
    help='Conditions in the shape of a card: \'{"stats": {"pass_rate": {"gte": 0.8}}}\'.',
)
_LIMIT = click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="At most N rows.")
_OFFSET = click.option(
    "--offset", type=click.IntRange(0), metavar="N", help="Leave out the first N rows."
)


@click.group("card", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def card_(database: str | None, as_json: bool) -> None:
    """List, search, name and install cards, the records of runs."""
    invoke_default_command(list_cards, pkg=None, database=database, as_json=as_json)


@card_.command("list")
@_PACKAGE
@add_common_options
def list_cards(pkg: str | None, database: str | None, as_json: bool) -> None:
    """List cards, newest first."""
    with open_command_runtime(database, creates=True) as opened:
        _show_cards(opened, opened.runtime.cards.list(pkg), pkg, as_json, "no cards")


@card_.command("find")
@_PACKAGE
@_WHERE
@click.option(
    "--order-by",
    "order_by",
    multiple=True,
    metavar="PATH",
    help="Such as created_at, or -stats.pass_rate for descending order. May be repeated.",
)
@_LIMIT
@_OFFSET
@add_common_options
def find_cards(
    pkg: str | None,
    where: str | None,
    order_by: tuple[str, ...],
    limit: int | None,
    offset: int | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Search among cards.

    \b
    everhold card find --where '{"stats": {"pass_rate": {"gte": 0.8}}}' --order-by=-created_at
    """
    with open_command_runtime(database, creates=True) as opened:
        found = opened.runtime.cards.find(
            pkg=pkg,
            where=_parse_where(where),
            order_by=list(order_by) or None,
            limit=limit,
            offset=offset,
        )
        _show_cards(opened, found, pkg, as_json, "no card fits")


@card_.command("show")
@click.argument("card")
@add_common_options
def show_card(card: str, database: str | None, as_json: bool) -> None:
    """Show a card; CARD is its id or one of its names."""
    with open_command_runtime(database, creates=True) as opened:
        _show_card(_load(opened, card), as_json)


@card_.command("append")
@click.argument("card")
@click.argument("fields", nargs=-1, required=True, metavar="KEY=VALUE...")
@add_common_options
def append_to_card(card: str, fields: tuple[str, ...], database: str | None, as_json: bool) -> None:
    """Add keys to a card; what it has is never changed.

    A value is JSON if it can be read as JSON, otherwise text.
    """
    given = {key: _parse_value(text) for key, text in parse_pairs(fields, "a field").items()}
    with open_command_runtime(database, creates=True) as opened:
        card_id = _load(opened, card)["card_id"]
        _show_card(opened.runtime.cards.append(card_id, given), as_json)


@card_.command("samples")
@click.argument("card")
@_WHERE
@_LIMIT
@_OFFSET
@add_common_options
def show_samples(
    card: str,
    where: str | None,
    limit: int | None,
    offset: int | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Print the samples of a card, one JSON value per line."""
    with open_command_runtime(database, creates=True) as opened:
        card_id = _load(opened, card)["card_id"]
        rows = opened.runtime.cards.samples(
            card_id, where=_parse_where(where), limit=limit, offset=offset
        )
        if as_json:
            return print_json({"card_id": card_id, "samples": rows})
        for row in rows:
            print_json(row)
        if not rows:
            click.echo(f"no samples of {card_id}", err=True)


@card_.command("lineage")
@click.argument("card")
@click.option(
    "--direction",
    type=click.Choice(["up", "down", "both"]),
    default="up",
    show_default=True,
    help="up: the cards that it comes from; down: those that come from it.",
)
@click.option(
    "--depth",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many generations.",
)
@click.option(
    "--relation",
    "relations",
    multiple=True,
    metavar="NAME",
    help="Follow only this relation. May be repeated.",
)
@add_common_options
def show_lineage(
    card: str,
    direction: Any,
    depth: int,
    relations: tuple[str, ...],
    database: str | None,
    as_json: bool,
) -> None:
    """Show which cards a card comes from, or which come from it."""
    with open_command_runtime(database, creates=True) as opened:
        found = opened.runtime.cards.lineage(
            _load(opened, card)["card_id"],
            direction=direction,
            depth=depth,
            relations=list(relations) or None,
        )
        if as_json:
            return print_json(found)
        rows = [
            (
                f"{node['depth']:+d}" if node["depth"] else "0",
                node["card_id"],
                node["pkg"],
                node.get("prior_relation", ""),
                _format_rate(node.get("stats", {})),
            )
            for node in sorted(found["nodes"], key=lambda node: node["depth"])
        ]
        print_table(
            ("depth", "card", "package", "relation", "pass rate"), rows, wide=("card", "package")
        )
        if found["truncated"]:
            click.echo(f"cut at depth {depth}; give --depth for more", err=True)


@card_.group("alias", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def alias_(database: str | None, as_json: bool) -> None:
    """List the names of cards, or set one."""
    invoke_default_command(list_aliases, pkg=None, database=database, as_json=as_json)


@alias_.command("list")
@_PACKAGE
@add_common_options
def list_aliases(pkg: str | None, database: str | None, as_json: bool) -> None:
    """List the names of cards."""
    with open_command_runtime(database, creates=True) as opened:
        found = opened.runtime.cards.aliases(pkg)
        if as_json:
            return print_json({"database": opened.database, "aliases": found})
        rows = [
            (row["name"], row["card_id"], row.get("pkg", ""), row.get("note", "")) for row in found
        ]
        if rows:
            print_table(("name", "card", "package", "note"), rows, wide=("card", "note"))
        else:
            click.echo("no aliases; to set one: everhold card alias set --help")
        _print_problems(opened.runtime.cards.problems(pkg))
        print_footer(opened.database)


@alias_.command("set")
@click.argument("name")
@click.argument("card")
@click.option("--pkg", metavar="NAME", help="The package that the name is for.")
@click.option("--note", metavar="TEXT", help="Why the name means this card.")
@add_common_options
def set_alias(
    name: str,
    card: str,
    pkg: str | None,
    note: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Name a card; a NAME that is used already then means this card.

    CARD is its id, or another of its names.
    """
    with open_command_runtime(database, creates=True) as opened:
        card_id = _load(opened, card)["card_id"]
        made = opened.runtime.cards.set_alias(name, card_id, pkg=pkg, note=note)
        if as_json:
            return print_json(made)
        click.echo(f"{name}: {card_id}")


@card_.command("install")
@click.argument("source", metavar="FOLDER|URL", shell_complete=complete_folders)
@add_common_options
def install_cards(source: str, database: str | None, as_json: bool) -> int:
    """Install a collection of cards; what is here already is skipped.

    A collection is a folder or a git repository with an alc_cards.toml, and a folder of cards for
    each package.
    """
    from pathlib import Path

    from everhold.wire import ExitCode

    url = str(Path(source).absolute()) if Path(source).is_dir() else source
    with open_command_runtime(database, creates=True) as opened:
        made = opened.runtime.cards.install(url)
        failed: Any = made.get("failed_cards", [])
        code = ExitCode.FAILED if failed else ExitCode.OK
        if as_json:
            print_json(made)
            return code
        new: Any = made["installed_cards"]
        skipped: Any = made["skipped_cards"]
        click.echo(
            f"installed {format_count(len(new), 'card')}"
            + (f"; here already: {len(skipped)}" if skipped else "")
        )
        for one in failed:
            words = f"not installed: {one['pkg']}/{one['card_id']}: {one['error']}"
            click.secho(format_line(words), fg="yellow", err=True)
        return code


@card_.command("backfill")
@click.argument("sink", required=False)
@click.option("--dry-run", is_flag=True, help="Only print what would be copied.")
@add_common_options
def backfill_sink(sink: str | None, dry_run: bool, database: str | None, as_json: bool) -> int:
    """Copy the cards that a sink lacks to it; without SINK, list the sinks.

    ALC_CARD_SINKS names the sinks: file:///srv/cards|file:///mnt/team/cards
    """
    from everhold.wire import ExitCode

    with open_command_runtime(database, creates=True) as opened:
        if sink is None:
            named = [one["sink"] for one in opened.runtime.cards.sinks()]
            if as_json:
                print_json({"sinks": named})
            elif named:
                click.echo("\n".join(named))
            else:
                click.echo("no sinks; ALC_CARD_SINKS names them: file:///srv/cards")
            return ExitCode.OK
        report = opened.runtime.cards.backfill(sink, dry_run=dry_run)
        code = ExitCode.FAILED if report.failed else ExitCode.OK
        if as_json:
            print_json(report.to_json())
            return code
        click.echo(
            f"{'would copy' if dry_run else 'copied'} {format_count(len(report.pushed), 'card')}"
            f" and the samples of {len(report.pushed_samples)}; there already:"
            f" {len(report.skipped)}"
        )
        if report.pushed_aliases:
            click.echo(f"aliases: {', '.join(map(format_line, report.pushed_aliases))}")
        for card_id, reason in report.failed:
            click.secho(format_line(f"failed: {card_id}: {reason}"), fg="yellow", err=True)
        return code


# ---- helpers


def _load(opened: CommandRuntime, card: str) -> dict[str, Any]:
    """A card by its id or by a name; raises `UnknownCard`."""
    from everhold.errors import UnknownCard, UnknownCardAlias

    try:
        return opened.runtime.cards.get(card)
    except UnknownCard:
        try:
            return opened.runtime.cards.get_by_alias(card)
        except UnknownCardAlias as error:
            if error.card_id:
                raise
        raise


def _show_cards(
    opened: CommandRuntime,
    found: list[dict[str, Any]],
    pkg: str | None,
    as_json: bool,
    none: str,
) -> None:
    problems = opened.runtime.cards.problems(pkg)
    if as_json:
        rows: list[JSON] = [
            {"path": one.path, "card_id": one.card_id, "pkg": one.pkg, "reason": one.reason}
            for one in problems
        ]
        return print_json({"database": opened.database, "cards": found, "problems": rows})
    if found:
        print_table(_COLUMNS, [_row(one) for one in found], wide=("card",))
    else:
        click.echo(none)
    _print_problems(problems)
    print_footer(opened.database)


def _print_problems(problems: list[CardProblem]) -> None:
    for one in problems:
        click.secho(format_line(f"cannot be read: {one}"), fg="yellow", err=True)


def _row(card: dict[str, Any]) -> tuple[str, ...]:
    return (
        card["card_id"],
        card["pkg"],
        card.get("created_at", ""),
        card.get("model", ""),
        card.get("scenario", ""),
        _format_rate(card),
    )


def _format_rate(of: Any) -> str:
    rate = of.get("pass_rate") if isinstance(of, dict) else None
    return f"{rate:.3g}" if type(rate) in (int, float) else ""


def _show_card(card: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return print_json(card)
    for key in sorted(card):
        click.echo(f"{key}: {format_line(format_plain_value(card[key]))}")


def _parse_where(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return loads(text)
    except BadValue:
        raise BadCardQuery(
            "--where is not JSON", 'Write it as \'{"stats": {"pass_rate": {"gte": 0.8}}}\'.'
        ) from None


def _parse_value(text: str) -> JSON:
    try:
        return loads(text)
    except BadValue:
        return text
