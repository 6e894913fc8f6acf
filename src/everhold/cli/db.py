"""The commands `delete` and `db`: deleting sessions, and maintaining and copying a database."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.archive.transfer import copy_timetable, load_timetable
from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import complete_files
from everhold.cli.context import (
    SHORT_ID_LENGTH,
    confirm,
    describe_user,
    load_settings,
    open_command_runtime,
    override_hint,
)
from everhold.cli.options import (
    Duration,
    add_common_options,
    as_option,
    invoke_default_command,
    label_option,
    make_usage_error,
    optional_session_argument,
    parse_pairs,
    program_option,
    session_argument,
    state_option,
)
from everhold.cli.output import format_count, print_footer, print_json, print_table, show_progress
from everhold.errors import SessionExists

if TYPE_CHECKING:
    from everhold.archive.archive import SweepReport
    from everhold.errors import SweepFailed
    from everhold.ports.store import ReclaimResult


def copy_across_stores(target: str, database: str | None, as_json: bool) -> None:
    """Copies a database into one of any kind: sessions with children, forks and durable values, and
    schedules, triggers and recorded events. It is refused if one of the sessions exists there.
    """
    with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
        file = Path(folder) / "all.jsonl"
        with (
            open_command_runtime(database) as opened,
            show_progress("reading", quiet=as_json) as bar,
        ):
            source = opened.database
            opened.runtime.archive.export(file, values=True, progress=bar)
            timetable = opened.ask(lambda runtime: load_timetable(runtime.store))
        with (
            open_command_runtime(target, creates=True) as opened,
            show_progress("writing", quiet=as_json) as bar,
        ):
            with override_hint(
                SessionExists,
                "Nothing was copied. Copy to a database that has none of these sessions.",
            ):
                done = opened.runtime.archive.import_(file, progress=bar)
                where = opened.database
            carried = opened.ask(lambda runtime: copy_timetable(runtime.store, timetable))
    if as_json:
        counts = {"sessions": len(done.sessions), "values": done.values, **carried}
        return print_json({"database": source, "copy": where, **counts})
    more = "".join(
        f", {format_count(carried[kind], kind[:-1])}"
        for kind in ("schedules", "triggers")
        if carried[kind]
    )
    click.echo(f"copied {format_count(len(done.sessions), 'session')}{more} to {where}")
    print_footer(source)


@click.command("delete")
@session_argument
@click.option("--yes", is_flag=True, help="Delete without asking.")
@as_option
@add_common_options
def delete_(session: str, yes: bool, name: str | None, database: str | None, as_json: bool) -> None:
    """Delete a session for good. Steps that a fork shares are kept."""
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        shown = opened.name(session_id)
        confirm(f"Delete {shown} for good?", yes)
        kept = opened.runtime.delete(session_id, by=describe_user(name))
        if as_json:
            return print_json({"deleted": session_id, "kept_steps": kept})
        more = f"; {format_count(kept, 'step')} kept, because a fork shares them" if kept else ""
        click.echo(f"deleted {shown}{more}")


@click.group("db", cls=SubcommandGroup, invoke_without_command=True)
@add_common_options
def db_(database: str | None, as_json: bool) -> None:
    """Maintain the database: path, verify, gc, vacuum, migrate, copy."""
    invoke_default_command(show_database_path, database=database, as_json=as_json)


@db_.command("path")
@add_common_options
def show_database_path(database: str | None = None, as_json: bool = False) -> None:
    """Print where the database is."""
    found = load_settings(database)
    where = str(found.path) if found.path is not None else found.shown
    if as_json:
        return print_json(
            {"database": found.shown, "path": where, "source": found.source.get("database")}
        )
    click.echo(where)


@db_.command("verify")
@add_common_options
def verify_database(database: str | None, as_json: bool) -> int:
    """Check the database for gaps, dangling references and damage; exits with 4 if it finds any."""
    from everhold.wire import ExitCode

    with open_command_runtime(database) as opened:
        with show_progress("verifying", quiet=as_json) as bar:
            found = opened.runtime.archive.verify(bar)
        problems = [one for one in found if not one.warning]
        if as_json:
            import msgspec

            print_json({"database": opened.database, "problems": msgspec.to_builtins(found)})
        elif problems:
            print_table(
                ("session", "code", "detail"),
                [(one.session, one.code, one.detail) for one in problems],
                wide=("detail",),
            )
        else:
            click.echo("no problems: no gaps, no dangling references, all checksums match")
        if not as_json:
            for one in found:
                if one.warning:
                    click.secho(f"warning: {one.detail}", fg="yellow")
            print_footer(opened.database)
        return ExitCode.STORE if problems else ExitCode.OK


class StateAgeParam(Duration):
    """A duration, also for one state: 30d, failed=90d."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        state, equals, rest = value.rpartition("=")
        return state if equals else None, super().convert(rest, param, ctx)


@db_.command("gc")
@click.option(
    "--older-than",
    type=StateAgeParam(),
    multiple=True,
    help="Delete sessions that did not move for this time: 30d. Per state, and repeated:"
    " completed=30d.",
)
@click.option("--keep-last", type=int, metavar="N", help="Delete all but the newest N sessions.")
@click.option(
    "--per-program", is_flag=True, help="With --keep-last: keep the newest N of each program."
)
@state_option("Only sessions in this state. Default: completed and cancelled.")
@program_option
@label_option
@click.option(
    "--intake",
    type=Duration(),
    help="Also delete inputs that ended longer ago, of sessions that stay.",
)
@click.option(
    "--left-over",
    is_flag=True,
    help="Delete no session, only attachments and rows that none refers to any more.",
)
@click.option("--yes", is_flag=True, help="Delete without asking.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@add_common_options
def gc_sessions(
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
    """Delete sessions that have ended: by the options, else by [retention] of the settings.

    \b
    everhold db gc --older-than 30d --dry-run
    everhold db gc --older-than completed=7d --older-than failed=90d --yes
    """
    from everhold.errors import SweepFailed

    if left_over:
        if older_than or keep_last is not None or states or dry_run:
            raise make_usage_error("--left-over deletes no session; use it alone")
        return _reclaim(database, as_json)
    ages = _parse_ages(older_than)
    if ages is None and keep_last is None and not load_settings(database).retention:
        raise make_usage_error("name what to delete: --older-than or --keep-last")
    if keep_last is not None and keep_last < 0:
        raise make_usage_error(f"--keep-last cannot be {keep_last}")
    label_values = parse_pairs(labels, "--label")
    with open_command_runtime(database) as opened:

        def sweep(progress: str, *, dry: bool) -> SweepReport:
            with show_progress(progress, quiet=as_json) as bar:
                return opened.runtime.archive.gc(
                    states,
                    older_than=ages,
                    keep_last=keep_last,
                    per_program=per_program,
                    program=program,
                    labels=label_values,
                    intake=intake,
                    dry_run=dry,
                    progress=bar,
                )

        failed: SweepFailed | None = None
        swept = sweep("searching", dry=True)
        if not dry_run:
            if swept.deleted:
                confirm(f"Delete {_format_counts(swept)} for good?", yes)
            try:
                swept = sweep("deleting", dry=False)
            except SweepFailed as error:
                swept = error.report
                failed = error
        if as_json:
            return _swept_json(opened.database, swept, failed)
        _show_swept(swept)
        print_footer(opened.database)
        if failed is not None:
            raise failed
        return 0


def _parse_ages(given: tuple[tuple[str | None, float], ...]) -> float | dict[str, float] | None:
    if not given:
        return None
    named = {state: age for state, age in given if state is not None}
    if not named and len(given) == 1:
        return given[0][1]
    if len(named) < len(given):
        raise make_usage_error(
            "give --older-than once for all states, or once for each state: completed=30d"
        )
    return named


def _format_counts(swept: SweepReport) -> str:
    states = ", ".join(f"{count} {state}" for state, count in swept.counts.items())
    return f"{format_count(len(swept.deleted), 'session')} ({states}), {swept.bytes} bytes"


def _show_swept(swept: SweepReport) -> None:
    done = "would be deleted" if swept.dry_run else "deleted"
    click.echo(f"{_format_counts(swept)} {done}" if swept.deleted else f"0 sessions {done}")
    for session_id, why in swept.kept.items():
        click.echo(f"  kept {session_id[:SHORT_ID_LENGTH]}: {why}")
    if swept.shared_steps:
        click.echo(f"  {format_count(swept.shared_steps, 'step')} kept, because a fork shares them")
    if swept.vacuumed:
        click.echo(f"  {format_count(swept.vacuumed, 'ended input')} deleted")
    _show_reclaimed(swept.reclaimed)


def _show_reclaimed(found: ReclaimResult) -> None:
    if found.blobs:
        click.echo(
            f"  {format_count(found.blobs, 'left-over attachment')} deleted, {found.bytes} bytes"
        )
    if found.rows:
        click.echo(f"  {format_count(found.rows, 'left-over row')} deleted")


def _swept_json(database: str, swept: SweepReport, failed: SweepFailed | None) -> int:
    import msgspec

    from everhold.wire import ExitCode, error_json, exit_code

    facts = {"database": database, **msgspec.to_builtins(swept)}
    if failed is None:
        print_json(facts)
        return ExitCode.OK
    print_json({**facts, "result": "failed", **error_json(failed)})
    return exit_code(failed)


def _reclaim(database: str | None, as_json: bool) -> int:
    with open_command_runtime(database) as opened:
        found = opened.runtime.archive.reclaim()
        if as_json:
            import msgspec

            print_json({"database": opened.database, "reclaimed": msgspec.to_builtins(found)})
        else:
            if not found.blobs and not found.rows:
                click.echo("nothing is left over")
            _show_reclaimed(found)
            print_footer(opened.database)
    return 0


@db_.command("vacuum")
@optional_session_argument
@click.option(
    "--older-than", type=Duration(), default=0.0, help="Only those that came longer ago: 12h, 30d."
)
@add_common_options
def vacuum_intake(
    session: str | None, older_than: float, database: str | None, as_json: bool
) -> None:
    """Delete ended inputs and commands of one conversation, or of all. The messages stay."""
    with open_command_runtime(database) as opened:
        session_id = None if session is None else opened.session(session)
        removed = opened.runtime.archive.vacuum(session_id, older_than=older_than)
        if as_json:
            return print_json({"removed": removed})
        click.echo(f"{format_count(removed, 'ended input')} deleted")
        print_footer(opened.database)


@db_.command("migrate")
@click.option(
    "--print-sql",
    is_flag=True,
    help="PostgreSQL: only print the SQL, for an administrator to run.",
)
@add_common_options
def migrate_database(print_sql: bool, database: str | None, as_json: bool) -> None:
    """Migrate the database to the format of this version; a file is backed up first."""
    if print_sql:
        from everhold.stores.registry import get_pending_sql

        return click.echo(get_pending_sql(load_settings(database).database), nl=False)
    with open_command_runtime(database) as opened:
        facts = opened.stats()
        if as_json:
            return print_json({"database": opened.database, "format": facts.get("format")})
        click.echo(f"format {facts.get('format', 'of memory')}: up to date")
        print_footer(opened.database)


@db_.command("copy")
@click.argument("target", shell_complete=complete_files)
@add_common_options
def copy_database_to(target: str, database: str | None, as_json: bool) -> None:
    """Copy the database to TARGET: a new file, or the address of another database.

    The copy is complete and consistent, also while other processes write.

    \b
    everhold db copy backup.db
    everhold db copy postgresql://localhost/everhold
    """
    from everhold.stores.sqlite.database import copy_database

    found = load_settings(database)
    if found.path is None or "://" in target:
        return copy_across_stores(target, database, as_json)
    with open_command_runtime(database), show_progress("copying", quiet=as_json) as bar:
        size = copy_database(found.path, Path(target), bar)
    if as_json:
        return print_json(
            {"database": found.shown, "copy": str(Path(target).resolve()), "bytes": size}
        )
    click.echo(f"copied to {target} ({size} bytes)")
    print_footer(found.shown)
