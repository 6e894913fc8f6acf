"""Commands that look after what is stored: delete, and `db`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.app import Verbs
from everhold.cli.context import (
    SHORT,
    Duration,
    alone,
    common,
    confirm,
    misused,
    opened,
    pairs,
    session_argument,
    settings_of,
)
from everhold.cli.output import footer, json_out, plural, progress, table

if TYPE_CHECKING:
    from everhold.archive.archive import Swept
    from everhold.errors import SweepFailed
    from everhold.ports.store import Reclaimed


@click.command("delete")
@session_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
def delete_(session: str, yes: bool, database: str | None, as_json: bool) -> None:
    """Forget a session for good. Steps that a fork shares are kept."""
    with opened(database) as house:
        session_id = house.session(session)
        name = house.name(session_id)
        confirm(f"Forget {name} for good?", yes)
        kept = house.runtime.delete(session_id)
        if as_json:
            return json_out({"deleted": session_id, "kept_steps": kept})
        more = f"; {plural(kept, 'step')} kept, because a fork shares them" if kept else ""
        click.echo(f"deleted {name}{more}")


@click.group("db", cls=Verbs, invoke_without_command=True)
@common
def db_(database: str | None, as_json: bool) -> None:
    """Look after the database: path, verify, gc, vacuum, migrate, copy."""
    alone(path_, database=database, as_json=as_json)


@db_.command("path")
@common
def path_(database: str | None = None, as_json: bool = False) -> None:
    """Say which database is used, and why."""
    found = settings_of(database)
    where = str(found.path) if found.path is not None else found.shown
    if as_json:
        return json_out(
            {"database": found.shown, "path": where, "source": found.source.get("database")}
        )
    click.echo(where)


@db_.command("verify")
@common
def verify_(database: str | None, as_json: bool) -> int:
    """Look for gaps, dangling references and damage; exits with 4 if there is any."""
    from everhold.wire import Exit

    with opened(database) as house:
        with progress("verifying", quiet=as_json) as bar:
            found = house.runtime.verify(bar)
        problems = [one for one in found if not one.warning]
        if as_json:
            import msgspec

            json_out({"database": house.database, "problems": msgspec.to_builtins(found)})
        elif problems:
            table(
                ("session", "code", "detail"),
                [(one.session, one.code, one.detail) for one in problems],
                wide=("detail",),
            )
        else:
            click.echo("sound: no gaps, no dangling references, every seal fits")
        if not as_json:
            for one in found:
                if one.warning:
                    click.secho(f"warning: {one.detail}", fg="yellow")
            footer(house.database)
        return Exit.STORE if problems else Exit.OK


class Age(Duration):
    """A duration, or one for a state: 30d, failed=90d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        state, equals, rest = value.rpartition("=")
        return state if equals else None, super().convert(rest, param, ctx)


@db_.command("gc")
@click.option(
    "--older-than",
    type=Age(),
    multiple=True,
    help="Those that did not move for so long: 12h, 30d; or by state, repeated: completed=30d.",
)
@click.option("--keep-last", type=int, metavar="N", help="Those before the newest N.")
@click.option("--per-program", is_flag=True, help="The newest N of each program.")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="completed and cancelled, unless you say which; may be repeated.",
)
@click.option("--program", help="Only those of this program.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only those with this label."
)
@click.option("--intake", type=Duration(), help="Forget ended inputs of the others after so long.")
@click.option(
    "--left-over", is_flag=True, help="Delete no session, only what none can read any more."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@common
def gc_(
    older_than: tuple[tuple[str | None, float], ...],
    keep_last: int | None,
    per_program: bool,
    states: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    intake: float | None,
    left_over: bool,
    yes: bool,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> int:
    """Delete sessions that have ended: those you say, else those of [retention] in the settings."""
    from everhold.errors import SweepFailed

    if left_over:
        if older_than or keep_last is not None or states or dry_run:
            raise misused("--left-over deletes no session; give it alone")
        return _reclaim(database, as_json)
    ages = _ages(older_than)
    if ages is None and keep_last is None and not settings_of(database).retention:
        raise misused("say --older-than or --keep-last; nothing is deleted unasked")
    if keep_last is not None and keep_last < 0:
        raise misused(f"--keep-last cannot be {keep_last}")
    told = pairs(labels, "--label")
    with opened(database) as house:

        def sweep(words: str, *, only_look: bool) -> Swept:
            with progress(words, quiet=as_json) as bar:
                return house.runtime.sweep(
                    states,
                    older_than=ages,
                    keep_last=keep_last,
                    per_program=per_program,
                    program=program,
                    labels=told,
                    intake=intake,
                    dry_run=only_look,
                    progress=bar,
                )

        failed: SweepFailed | None = None
        swept = sweep("looking", only_look=True)
        if not dry_run:
            if swept.deleted:
                confirm(f"Forget {_counted(swept)} for good?", yes)
            try:
                swept = sweep("deleting", only_look=False)
            except SweepFailed as error:
                swept = error.report
                failed = error
        if as_json:
            return _swept_json(house.database, swept, failed)
        _show_swept(swept)
        footer(house.database)
        if failed is not None:
            raise failed
        return 0


def _ages(given: tuple[tuple[str | None, float], ...]) -> float | dict[str, float] | None:
    if not given:
        return None
    named = {state: age for state, age in given if state is not None}
    if not named and len(given) == 1:
        return given[0][1]
    if len(named) < len(given):
        raise misused("say --older-than once for all, or once for each state: completed=30d")
    return named


def _counted(swept: Swept) -> str:
    states = ", ".join(f"{count} {state}" for state, count in swept.counts.items())
    return f"{plural(len(swept.deleted), 'session')} ({states}), {swept.bytes} bytes"


def _show_swept(swept: Swept) -> None:
    done = "would be deleted" if swept.dry_run else "deleted"
    click.echo(f"{_counted(swept)} {done}" if swept.deleted else f"0 sessions {done}")
    for session_id, why in swept.kept.items():
        click.echo(f"  kept {session_id[:SHORT]}: {why}")
    if swept.shared_steps:
        click.echo(f"  {plural(swept.shared_steps, 'step')} stay, because a fork has them too")
    if swept.vacuumed:
        click.echo(f"  {plural(swept.vacuumed, 'ended input')} forgotten")
    _show_reclaimed(swept.reclaimed)


def _show_reclaimed(found: Reclaimed) -> None:
    if found.blobs:
        click.echo(f"  {plural(found.blobs, 'attachment')} left over removed, {found.bytes} bytes")
    if found.rows:
        click.echo(f"  {plural(found.rows, 'row')} left over removed")


def _swept_json(database: str, swept: Swept, failed: SweepFailed | None) -> int:
    import msgspec

    from everhold.wire import Exit, error_json, exit_code

    told = {"database": database, **msgspec.to_builtins(swept)}
    if failed is None:
        json_out(told)
        return Exit.OK
    json_out({**told, "result": "failed", **error_json(failed)})
    return exit_code(failed)


def _reclaim(database: str | None, as_json: bool) -> int:
    with opened(database) as house:
        found = house.runtime.reclaim()
        if as_json:
            import msgspec

            json_out({"database": house.database, "reclaimed": msgspec.to_builtins(found)})
        else:
            if not found.blobs and not found.rows:
                click.echo("nothing was left over")
            _show_reclaimed(found)
            footer(house.database)
    return 0


@db_.command("vacuum")
@click.argument("session", required=False, metavar="[SESSION]")
@click.option("--older-than", type=Duration(), default=0.0, help="What came so long ago: 12h, 30d.")
@common
def vacuum_(session: str | None, older_than: float, database: str | None, as_json: bool) -> None:
    """Forget inputs and commands that have ended, of one conversation or of all; what was said
    stays.
    """
    with opened(database) as house:
        session_id = None if session is None else house.session(session)
        removed = house.runtime.vacuum(session_id, older_than=older_than)
        if as_json:
            return json_out({"removed": removed})
        click.echo(f"forgotten: {removed}")
        footer(house.database)


@db_.command("migrate")
@click.option("--print-sql", is_flag=True, help="Only print the SQL, for who may run it; Postgres.")
@common
def migrate_(print_sql: bool, database: str | None, as_json: bool) -> None:
    """Bring the database to this version's format; of a file, a copy is made first."""
    if print_sql:
        from everhold.stores.registry import pending_sql

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
    """Copy the database into a new file, whole, also while others write; or to the address of
    another database.
    """
    from everhold.stores.sqlite.copy import copy

    found = settings_of(database)
    if found.path is None or "://" in target:
        from everhold.cli.db_copy import across

        return across(target, database, as_json)
    with opened(database), progress("copying", quiet=as_json) as bar:
        size = copy(found.path, Path(target), bar)
    if as_json:
        return json_out(
            {"database": found.shown, "copy": str(Path(target).resolve()), "bytes": size}
        )
    click.echo(f"copied to {target} ({size} bytes)")
    footer(found.shown)
