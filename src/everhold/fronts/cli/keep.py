"""Commands that look after what is stored: delete, and `db`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from everhold.core.errors import NotAllowed
from everhold.fronts.cli.house import (
    SHORT,
    Duration,
    at_terminal,
    common,
    misused,
    opened,
    pairs,
    session_argument,
    settings_of,
)
from everhold.fronts.cli.paper import footer, json_out, plural, progress, table

if TYPE_CHECKING:
    from everhold.archive import Swept


@click.command("delete")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
def delete_(session: str, yes: bool, database: str | None, as_json: bool) -> None:
    """Forget a session for good. Steps that a fork shares are kept."""
    with opened(database) as house:
        session_id = house.session(session)
        name = house.name(session_id)
        _confirm(f"Forget {name} for good?", yes)
        kept = house.runtime.delete(session_id)
        if as_json:
            return json_out({"deleted": session_id, "kept_steps": kept})
        more = f"; {plural(kept, 'step')} kept, because a fork shares them" if kept else ""
        click.echo(f"deleted {name}{more}")


def _confirm(words: str, yes: bool) -> None:
    if yes:
        return
    if not at_terminal():
        raise NotAllowed("nobody is at a terminal here to confirm it", "Say --yes.")
    click.confirm(words, abort=True)


@click.group("db", invoke_without_command=True)
@common
@click.pass_context
def db_(ctx: click.Context, database: str | None, as_json: bool) -> None:
    """Look after the database: path, verify, gc, migrate, copy."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(path_, database=database, as_json=as_json)
    elif database is not None or as_json:
        raise misused(f"say it after {ctx.invoked_subcommand}: everhold db {ctx.invoked_subcommand} …")


@db_.command("path")
@common
def path_(database: str | None = None, as_json: bool = False) -> None:
    """Say which database is used, and why."""
    found = settings_of(database)
    where = str(found.path) if found.path is not None else found.shown
    if as_json:
        return json_out({"database": found.shown, "path": where, "source": found.source.get("database")})
    click.echo(where)


@db_.command("verify")
@common
def verify_(database: str | None, as_json: bool) -> int:
    """Look for gaps, dangling references and damage; exits with 4 if there is any."""
    from everhold.fronts.wire import Exit

    with opened(database) as house:
        with progress("verifying", quiet=as_json) as bar:
            problems = house.runtime.verify(bar)
        if as_json:
            import msgspec

            json_out({"database": house.database, "problems": msgspec.to_builtins(problems)})
        elif problems:
            table(
                ("session", "code", "detail"),
                [(one.session, one.code, one.detail) for one in problems],
                wide=("detail",),
            )
        else:
            click.echo("sound: no gaps, no dangling references, every seal fits")
        if not as_json:
            footer(house.database)
        return Exit.STORE if problems else Exit.OK


@db_.command("gc")
@click.option("--older-than", type=Duration(), help="Those that did not move for so long: 12h, 30d.")
@click.option("--keep-last", type=int, metavar="N", help="Those before the newest N.")
@click.option(
    "--state", "states", multiple=True, help="completed and cancelled, unless you say which; may be repeated."
)
@click.option("--program", help="Only those of this program.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only those with this label.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@common
def gc_(
    older_than: float | None,
    keep_last: int | None,
    states: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Delete sessions that have ended. Nothing is ever deleted unless you ask."""
    if older_than is None and keep_last is None:
        raise misused("say --older-than or --keep-last; nothing is deleted unasked")
    if keep_last is not None and keep_last < 0:
        raise misused(f"--keep-last cannot be {keep_last}")
    told = pairs(labels, "--label")
    with opened(database) as house:

        def sweep(words: str, *, only_look: bool) -> Swept:
            with progress(words, quiet=as_json) as bar:
                return house.runtime.sweep(
                    states,
                    older_than=older_than,
                    keep_last=keep_last,
                    program=program,
                    labels=told,
                    dry_run=only_look,
                    progress=bar,
                )

        swept = sweep("looking", only_look=True)
        if swept.deleted and not dry_run:
            _confirm(f"Forget {plural(len(swept.deleted), 'session')} for good?", yes)
            swept = sweep("deleting", only_look=False)
        if as_json:
            import msgspec

            return json_out({"database": house.database, **msgspec.to_builtins(swept), "dry_run": dry_run})
        click.echo(f"{plural(len(swept.deleted), 'session')} {'would be deleted' if dry_run else 'deleted'}")
        for session_id, why in swept.kept.items():
            click.echo(f"  kept {session_id[:SHORT]}: {why}")
        footer(house.database)


@db_.command("migrate")
@click.option("--print-sql", is_flag=True, help="Only print the SQL, for who may run it; Postgres.")
@common
def migrate_(print_sql: bool, database: str | None, as_json: bool) -> None:
    """Bring the database to this version's format; of a file, a copy is made first."""
    if print_sql:
        from everhold.stores.choice import pending_sql

        return click.echo(pending_sql(settings_of(database).database), nl=False)
    with opened(database) as house:
        facts = house.stats()
        if as_json:
            return json_out({"database": house.database, "format": facts.get("format")})
        click.echo(f"format {facts.get('format', 'of memory')}: up to date")
        footer(house.database)


@db_.command("copy")
@click.argument("target")
@common
def copy_(target: str, database: str | None, as_json: bool) -> None:
    """Copy the database into a new file, whole, also while others write; or to the address of another database."""
    from everhold.stores.sqlite.copy import copy

    found = settings_of(database)
    if found.path is None or "://" in target:
        from everhold.fronts.cli.across import across

        return across(target, database, as_json)
    with opened(database), progress("copying", quiet=as_json) as bar:
        size = copy(found.path, Path(target), bar)
    if as_json:
        return json_out({"database": found.shown, "copy": str(Path(target).resolve()), "bytes": size})
    click.echo(f"copied to {target} ({size} bytes)")
    footer(found.shown)
