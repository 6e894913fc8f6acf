"""Carrying a whole database into one of another kind: every session with its children, forks and
durable values, and what starts sessions: schedules, triggers, and events that are remembered."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from everhold.archive.timetable_transfer import carry, kept
from everhold.cli.context import hinting, opened
from everhold.cli.output import footer, json_out, plural, progress
from everhold.errors import SessionExists


def across(target: str, database: str | None, as_json: bool) -> None:
    """Export everything, and take it in at `target`. Sessions that are there already refuse the
    whole copy.
    """
    with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
        file = Path(folder) / "all.jsonl"
        with opened(database) as house, progress("reading", quiet=as_json) as bar:
            source = house.database
            house.runtime.export(file, values=True, progress=bar)
            duties = house.ask(lambda runtime: kept(runtime.store))
        with opened(target, makes=True) as house, progress("writing", quiet=as_json) as bar:
            with hinting(
                SessionExists,
                "Nothing was copied. Copy to a database that has none of these sessions.",
            ):
                done = house.runtime.import_(file, progress=bar)
                where = house.database
            carried = house.ask(lambda runtime: carry(runtime.store, duties))
    if as_json:
        told = {"sessions": len(done.sessions), "values": done.values, **carried}
        return json_out({"database": source, "copy": where, **told})
    more = "".join(
        f", {plural(carried[kind], kind[:-1])}"
        for kind in ("schedules", "triggers")
        if carried[kind]
    )
    click.echo(f"copied {plural(len(done.sessions), 'session')}{more} to {where}")
    footer(source)
