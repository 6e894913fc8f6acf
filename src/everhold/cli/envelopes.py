"""`import --fluers` and `export --fluers`: sessions of fluers as conversations, and back."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import (
    CommandRuntime,
    open_command_runtime,
    override_hint,
    resolve_agent,
)
from everhold.cli.options import make_usage_error, parse_pairs
from everhold.cli.output import format_count, print_footer, print_json, show_progress
from everhold.errors import KeyConflict, KeyDeleted, MissingExtra

if TYPE_CHECKING:
    from everhold.agents import EnvelopeImport


def import_fluers_sessions(
    where: str,
    agent: str | None,
    *,
    models: tuple[str, ...],
    skip: bool,
    skip_invalid: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Imports the envelopes in a directory, a file or a database of fluers."""
    from everhold.agents.envelopes import fluers
    from everhold.stores import BadEnvelopes

    holder = None if agent is None else resolve_agent(database, agent)
    renamed = parse_pairs(models, "--model")
    nothing = "Nothing was imported."
    skip_it = f"{nothing} To skip the sessions that exist here: --skip."
    with (
        open_command_runtime(database, creates=True) as opened,
        _locate_envelopes(opened, where) as source,
        override_hint(KeyConflict, skip_it),
        override_hint(KeyDeleted, skip_it),
        override_hint(BadEnvelopes, f"{nothing} To import the others: --skip-invalid."),
    ):
        with show_progress("importing", quiet=as_json) as bar:
            done = opened.runtime.envelopes.import_(
                source,
                agent=holder,
                models=renamed,
                existing="skip" if skip else "refuse",
                invalid="skip" if skip_invalid else "refuse",
                progress=bar,
            )
        if as_json:
            facts = {
                "agent": (holder or fluers).ref,
                "sessions": done.sessions,
                "existing": done.existing,
                "skipped": done.skipped,
                "models": done.models,
                "failed": done.failed,
                "invalid": [
                    {"name": one.name, "reason": one.reason, "code": one.code}
                    for one in done.invalid
                ],
            }
            return print_json({"database": opened.database, **facts})
        _print_import(opened, done, agent or fluers.ref)
        print_footer(opened.database)


def _print_import(opened: CommandRuntime, done: EnvelopeImport, agent: str) -> None:
    from everhold.models.provider_access import is_model_name

    counts = {
        "here already": len(done.existing),
        "skipped": len(done.skipped),
        "invalid": len(done.invalid),
    }
    more = "".join(f"; {words}: {count}" for words, count in counts.items() if count)
    click.echo(f"imported {format_count(len(done.sessions), 'session')} of fluers{more}")
    for one in done.invalid:
        click.secho(f"invalid: {one.name}: {one.reason}", fg="yellow", err=True)
    for uuid, reason in done.failed.items():
        click.secho(f"{uuid}: the agent did not take it in: {reason}", fg="yellow", err=True)
    unknown = [name for name in done.models if not is_model_name(name)]
    for name in unknown:
        click.echo(
            f"model {name!r} is not a provider:name; import with `--model {name}=PROVIDER:NAME`, or"
            " let the agent's options name another one",
            err=True,
        )
    if done.sessions:
        name = next(iter(done.sessions))
        command = f"everhold chat {shlex.quote(agent)} --session {name}{opened.database_option}"
        click.echo(f"to resume one: {command}")


def export_fluers_sessions(
    sessions: tuple[str, ...], where: str, *, database: str | None, as_json: bool
) -> None:
    """Writes conversations as envelopes: to standard output, a file, a directory or a database."""
    from everhold.stores import pack
    from everhold.stores.envelope import encode_file

    if not sessions:
        raise make_usage_error("--fluers needs SESSION: name the conversations")
    if where == "-" and len(sessions) > 1:
        raise make_usage_error("several sessions need a directory: --out DIRECTORY")
    with open_command_runtime(database) as opened:
        ids = [opened.session(name) for name in sessions]
        if where == "-":
            session = opened.runtime.envelopes.read(ids[0])
            sys.stdout.buffer.write(encode_file(str(session.id), pack(session)) + b"\n")
            return _print_left_out(opened, ids[0], list(session.left_out))
        with _locate_envelopes(opened, where) as target:
            done = opened.runtime.envelopes.export(target, ids)
        if as_json:
            facts = {"out": where, "sessions": done.sessions, "left_out": done.left_out}
            return print_json({"database": opened.database, **facts})
        click.echo(f"wrote {format_count(len(done.sessions), 'session')} of fluers to {where}")
        for session_id, left_out in done.left_out.items():
            _print_left_out(opened, session_id, left_out)
        print_footer(opened.database)


def _print_left_out(opened: CommandRuntime, session_id: str, left_out: list[str]) -> None:
    if left_out:
        words = f"{opened.name(session_id)}: not in the envelope: {'; '.join(left_out)}"
        click.echo(words, err=True)


@contextmanager
def _locate_envelopes(opened: CommandRuntime, where: str) -> Iterator[Any]:
    """A path, or the adapter of a database address, which is closed at the end."""
    path = where.removeprefix("sqlite:///")
    if path != where or Path(where).suffix in (".db", ".sqlite", ".sqlite3"):
        from everhold.stores import SQLiteEnvelopes

        yield SQLiteEnvelopes(path)
        return
    if not where.startswith(("postgresql://", "postgres://")):
        yield where
        return
    try:
        from everhold.stores import PostgresEnvelopes
    except ImportError:
        raise MissingExtra("postgres", "a postgresql:// database") from None
    adapter = PostgresEnvelopes(where)
    try:
        yield adapter
    finally:
        opened.ask(lambda _: adapter.close())
