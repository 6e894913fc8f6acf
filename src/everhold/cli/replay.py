"""The journal is a tape: replay steps through a session without effects, diff shows where two of
them part.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import (
    House,
    at_terminal,
    called,
    common,
    misused,
    opened,
    session_argument,
    settings_of,
)
from everhold.cli.output import asked_words, clean, footer, json_out, line, plural, value_text
from everhold.errors import BadStep

if TYPE_CHECKING:
    from everhold.core.journal import Delivery
    from everhold.core.query import Answer, Query
    from everhold.engine.replay import Played
    from everhold.ports.store import Record


@click.command("replay")
@session_argument
@click.option("--at", type=int, metavar="N", help="Stop after this step; the newest by default.")
@click.option(
    "--pdb", "debug", is_flag=True, help="Stop in the debugger as the program is handed step N."
)
@click.option(
    "--watch", is_flag=True, help="Replay again, in a fresh process, whenever its code is changed."
)
@click.option("--files-to", metavar="FILE", hidden=True)
@common
def replay_(
    session: str,
    at: int | None,
    debug: bool,
    watch: bool,
    files_to: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Run a program along its journal: nothing is asked or called."""
    if watch and (debug or as_json):
        raise misused(f"--watch does not go together with {'--pdb' if debug else '--json'}")
    with opened(database) as house:
        record = house.record(house.session(session))
        last = record.head.n if at is None else at
        if not 0 <= last <= record.head.n:
            raise BadStep(record.birth.id, last, f"it has steps 0 to {record.head.n}")
        if debug:
            _refuse_blind()
            _stop_at(house, record, last)
        elif not watch:
            _replay(house, record, last, as_json, files_to)
    if watch:
        _watch(record, at, database)


def _replay(house: House, record: Record, last: int, as_json: bool, files_to: str | None) -> None:
    steps = reworded = 0
    for one in _played(house, record, last):
        if steps == 0 and files_to is not None:
            _write_files(files_to)
        if not as_json:
            _tell(one)
        steps = steps + 1
        reworded = reworded + len(one.reworded)
    session_id = record.birth.id
    if as_json:
        counts = {"steps": steps, "calls_made": 0, "reworded": reworded}
        return json_out({"database": house.database, "session_id": session_id, **counts})
    name = called(session_id, record.birth.key)
    click.secho(
        f"{name} asks what it asked, over {plural(steps, 'step')}; calls made: 0", bold=True
    )
    footer(house.database)


def _write_files(path: str) -> None:
    from everhold.cli.replay_watch import loaded

    Path(path).write_text("\n".join(sorted(loaded())), encoding="utf-8")


def _watch(record: Record, at: int | None, database: str | None) -> None:
    from everhold.cli.replay_watch import file_of, follow

    words = [record.birth.id, *(() if at is None else ("--at", str(at)))]
    words += () if database is None else ("--database", database)
    follow(words, file_of(record.birth.program, settings_of(database).root))


def _played(house: House, record: Record, last: int) -> Generator[Played, None, None]:
    from everhold.engine.replay import replay

    for one in replay(record, house.host, to=last):
        yield one
        if one.recorded.n >= last:
            return


def _tell(one: Played) -> None:
    for answer in one.given.answers:
        click.echo(f"{one.given.n:>4}  {answer.id} ← {line(_said(answer), 100)}")
    for query in one.reply.asked:
        click.echo(f"{one.given.n:>4}  {query.id} {query.kind}: {line(asked_words(query), 100)}")
    for old, _ in one.reworded:
        click.secho(f"      {old.id} was worded: {line(old.prompt or old.name, 100)}", fg="yellow")
    if one.reply.notes is not None and one.reply.notes.restart is not None:
        click.echo(
            f"{one.given.n:>4}  begins again with"
            f" {line(value_text(one.reply.notes.restart.args), 100)}"
        )
    if one.reply.outcome is not None:
        from everhold.core.journal import ended

        click.echo(f"{one.given.n:>4}  {line(ended(one.reply.outcome), 100)}")


def _said(answer: Answer) -> str:
    return (
        value_text(answer.value)
        if answer.error is None
        else f"error: {answer.error.get('message')}"
    )


# ---- in the debugger


def _refuse_blind() -> None:
    if not at_terminal():
        raise misused("--pdb needs a terminal")


def _stop_at(house: House, record: Record, last: int) -> None:
    """Replay up to the step before, then hand over step `last` under the debugger."""
    from everhold.cli.debug import step_through
    from everhold.core.journal import lately

    file = _file(house, record)
    steps = _played(house, record, last)
    begun = lately(record.deliveries[:last])[0]
    for _ in range(last if begun is None else last - begun.n - 1):
        next(steps, None)
    click.secho(
        f"step {last} of {called(record.birth.id, record.birth.key)} · n next line, c end of"
        " step, q quit",
        fg="cyan",
    )
    try:
        step_through(file, lambda: next(steps, None))
    finally:
        steps.close()


def _file(house: House, record: Record) -> str:
    """Where the program is written; raises if it is not here, or not in Python."""
    from everhold.core.metrics import Metrics

    execution: Any = house.host.begin(record.birth, Metrics())
    execution.drop()
    body = getattr(execution.program, "body", None)
    if body is None:
        raise misused("--pdb is for programs in Python")
    return str(body.__code__.co_filename)


# ---- diff


@click.command("diff")
@click.argument("one", metavar="SESSION")
@click.argument("other", metavar="SESSION")
@common
def diff_(one: str, other: str, database: str | None, as_json: bool) -> int:
    """Show where two sessions part, first difference first.

    Exits with 1 if they differ.
    """
    from everhold.wire import Exit

    with opened(database) as house:
        records = [house.record(house.session(name)) for name in (one, other)]
        names = [called(record.birth.id, record.birth.key) for record in records]
        found = list(differences(*records))
        if as_json:
            rows = [
                {"step": step, "what": what, "one": a, "other": b} for step, what, a, b in found
            ]
            json_out({"database": house.database, "same": not found, "differences": rows})
        else:
            _tell_differences(names, found)
            footer(house.database)
        return Exit.FAILED if found else Exit.OK


def _tell_differences(names: list[str], found: list[tuple[int, str, str, str]]) -> None:
    if not found:
        return click.echo(f"{names[0]} and {names[1]} say the same at every step")
    width = max(map(len, names))
    for step, what, *values in found:
        click.secho(f"step {step} · {what}", fg="cyan")
        for name, value in zip(names, values, strict=True):
            click.echo(f"  {name:<{width}}  {clean(value)}")
    return None


def differences(one: Record, other: Record) -> Iterator[tuple[int, str, str, str]]:
    """What differs, step by step: the program, arguments, answers, questions, the end."""
    if one.birth.program != other.birth.program or one.birth.version != other.birth.version:
        yield (
            0,
            "program",
            f"{one.birth.program} v{one.birth.version}",
            f"{other.birth.program} v{other.birth.version}",
        )
    for name in sorted({*one.birth.args, *other.birth.args}):
        a, b = (value_text(record.birth.args.get(name)) for record in (one, other))
        if a != b:
            yield 0, f"argument {name}", a, b
    for index in range(max(len(one.deliveries), len(other.deliveries))):
        pair = [
            record.deliveries[index] if index < len(record.deliveries) else None
            for record in (one, other)
        ]
        first, second = (_lines(delivery) for delivery in pair)
        for what in dict.fromkeys([*first, *second]):
            a = first.get(what, "nothing")
            b = second.get(what, "nothing")
            if a != b:
                yield index, what, a, b


def _lines(delivery: Delivery | None) -> dict[str, str]:
    """What one step says, by what it is about."""
    if delivery is None:
        return {}
    told = {f"answer to {answer.id}": _said(answer) for answer in delivery.answers}
    told |= {f"question {query.id}": _words(query) for query in delivery.asked}
    notes = delivery.notes
    if notes is not None and notes.outcome is not None:
        from everhold.core.status import Raised, Returned

        outcome = notes.outcome
        match outcome:
            case Returned(value=value):
                told["the end"] = value_text(value)
            case Raised(error=error):
                told["the end"] = f"failed: {error}"
            case _:
                told["the end"] = f"cancelled: {outcome.reason}".removesuffix(": ")
    return told


def _words(query: Query) -> str:
    return f"{query.kind}: {query.prompt or query.name or value_text(query.messages)}"
