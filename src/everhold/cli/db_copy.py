"""Carrying a whole database into one of another kind: every session with its children, forks and
durable values, and what starts sessions: schedules, triggers, and events that are remembered."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from everhold.archive.timetable_transfer import copy_timetable, load_timetable
from everhold.cli.context import open_command_runtime, override_hint
from everhold.cli.output import format_count, print_footer, print_json, show_progress
from everhold.errors import SessionExists


def copy_across_stores(target: str, database: str | None, as_json: bool) -> None:
    """Export everything, and take it in at `target`. Sessions that are there already refuse the
    whole copy.
    """
    with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
        file = Path(folder) / "all.jsonl"
        with (
            open_command_runtime(database) as house,
            show_progress("reading", quiet=as_json) as bar,
        ):
            source = house.database
            house.runtime.archive.export(file, values=True, progress=bar)
            duties = house.ask(lambda runtime: load_timetable(runtime.store))
        with (
            open_command_runtime(target, makes=True) as house,
            show_progress("writing", quiet=as_json) as bar,
        ):
            with override_hint(
                SessionExists,
                "Nothing was copied. Copy to a database that has none of these sessions.",
            ):
                done = house.runtime.archive.import_(file, progress=bar)
                where = house.database
            carried = house.ask(lambda runtime: copy_timetable(runtime.store, duties))
    if as_json:
        told = {"sessions": len(done.sessions), "values": done.values, **carried}
        return print_json({"database": source, "copy": where, **told})
    more = "".join(
        f", {format_count(carried[kind], kind[:-1])}"
        for kind in ("schedules", "triggers")
        if carried[kind]
    )
    click.echo(f"copied {format_count(len(done.sessions), 'session')}{more} to {where}")
    print_footer(source)
