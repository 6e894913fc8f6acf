"""The commands `export`, `import` and `check`: files of sessions, sessions as tests, data of
algocline, sessions of fluers, and replaying sessions with the present code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.candidates import complete_agents, complete_files, complete_folders
from everhold.cli.context import (
    CommandRuntime,
    format_short_name,
    load_settings,
    open_command_runtime,
    override_hint,
)
from everhold.cli.envelopes import export_fluers_sessions, import_fluers_sessions
from everhold.cli.options import (
    add_common_options,
    label_option,
    make_usage_error,
    parse_pairs,
    program_option,
    sessions_argument,
    state_option,
)
from everhold.cli.output import (
    format_count,
    format_line,
    print_exception,
    print_footer,
    print_json,
    show_progress,
)
from everhold.errors import BadSetting, Overtaken, SessionExists
from everhold.shell_command import add_database_option

if TYPE_CHECKING:
    from everhold.archive.check import CheckReport, SessionCheck
    from everhold.packages.lua.legacy_import import LegacyData, LegacyPart
    from everhold.ports.store import Change, SessionRecord, Store
    from everhold.runtime import Runtime


def import_algocline_home(
    opened: CommandRuntime, home: str, *, dry_run: bool, as_json: bool, where: str
) -> None:
    """Imports the values and cards of an algocline home that are not here yet, all or none."""
    from everhold.packages.lua.legacy_import import read_legacy_data
    from everhold.packages.lua.paths import AlcHome
    from everhold.packages.settings import read_lua_options

    root = Path(home).expanduser().absolute()
    if not root.is_dir():
        raise BadSetting("--algocline", f"there is no folder {root}")
    shares = read_lua_options(opened.settings).shares
    found = read_legacy_data(AlcHome(root), shares)
    fresh, session_id = opened.ask(
        lambda runtime: _import_new_parts(runtime, root, found.parts, dry_run)
    )
    counts = _count_parts(found, fresh)
    if as_json:
        facts = {"database": where, "home": str(root), "dry_run": dry_run, "session_id": session_id}
        return print_json({**facts, **counts})
    _print_import(counts, "would import" if dry_run else "imported")
    print_footer(where)


async def _import_new_parts(
    runtime: Runtime, root: Path, parts: list[LegacyPart], dry_run: bool
) -> tuple[list[LegacyPart], str | None]:
    while True:
        fresh = [part for part in parts if (await runtime.store.value(*part.values[0][:2]))[1] == 0]
        if dry_run or not fresh:
            return fresh, None
        change = await _build_import(runtime.store, root, fresh, runtime.clock.now())
        try:
            await runtime.store.commit(change, 0)
        except Overtaken:  # another process wrote at the same time: read again
            continue
        return fresh, change.id


async def _build_import(store: Store, root: Path, fresh: list[LegacyPart], now: float) -> Change:
    """An ended session that holds the values."""
    from everhold.archive.archive import get_everhold_version
    from everhold.engine.value_session import build_value_session
    from everhold.ports.store import ValueWrite

    writes = [
        ValueWrite(namespace, key, [value], 0)
        for part in fresh
        for namespace, key, value in part.values
        if (await store.value(namespace, key))[1] == 0
    ]
    return build_value_session(
        "everhold:import-algocline",
        {"home": str(root)},
        f"imported from {root}",
        writes,
        result={"values": len(writes)},
        now=now,
        everhold=get_everhold_version(),
    )


def _count_parts(found: LegacyData, fresh: list[LegacyPart]) -> dict[str, Any]:
    """Per kind: the names that are new, and how many are here already."""
    counts: dict[str, Any] = {}
    for kind, name in (("value", "values"), ("card", "cards"), ("alias", "aliases")):
        new = [part.name for part in fresh if part.kind == kind]
        counts[name] = {
            "taken": new,
            "skipped": sum(part.kind == kind for part in found.parts) - len(new),
        }
    return {**counts, "logs": found.logs, "problems": found.problems}


def _print_import(counts: dict[str, Any], did: str) -> None:
    parts = (
        format_count(len(counts["values"]["taken"]), "value"),
        format_count(len(counts["cards"]["taken"]), "card"),
    )
    aliases = len(counts["aliases"]["taken"])
    named = f" and {aliases} alias{'' if aliases == 1 else 'es'} of cards" if aliases else ""
    skipped = sum(counts[name]["skipped"] for name in ("values", "cards", "aliases"))
    click.echo(
        f"{did} {', '.join(parts)}{named}" + (f"; here already: {skipped}" if skipped else "")
    )
    if counts["logs"]:
        click.echo(
            f"{format_count(counts['logs'], 'log')} stay in place; `everhold mcp --profile"
            " algocline` reads them"
        )
    for problem in counts["problems"]:
        click.secho(f"skipped: {problem}", fg="yellow", err=True)


_TEST: Final = '''\
"""Made by `everhold export {name} --as-test`: {program} asks and ends as recorded.

`pytest --everhold-update` records it again.
"""

from pathlib import Path
from typing import Any


def test_{word}(everhold: Any) -> None:
    everhold.replays(Path(__file__).with_suffix(".json"))
'''


def write_test(record: SessionRecord, folder: str) -> list[str]:
    """Writes a test and its recording; overwrites nothing."""
    from everhold.archive.recording import Recording

    birth = record.birth
    name = birth.key or birth.id
    word = re.sub(r"\W+", "_", f"{birth.program.rpartition(':')[2]}_{name}").strip("_").lower()
    test = Path(folder) / f"test_{word}.py"
    data = test.with_suffix(".json")
    for file in (test, data):
        if file.exists():
            raise BadSetting(
                "--as-test",
                f"{file} already exists; `pytest --everhold-update` updates it",
            )
    try:
        test.parent.mkdir(parents=True, exist_ok=True)
        Recording.of(record).write(data)
        facts: dict[str, Any] = {
            "name": name,
            "program": birth.program.replace("\\", "/").rpartition("/")[2],
            "word": word,
        }
        test.write_text(_TEST.format(**facts), encoding="utf-8")
    except OSError as error:
        raise BadSetting("--as-test", f"{folder} cannot be written: {error.strerror}") from None
    return [str(test), str(data)]


_PARTS = ("prompts", "answers", "notes", "arguments")
_REDACTED_HINT = (
    "The file is redacted: a program that branches on texts may diverge for that reason alone."
)
_ARGUMENTS_HINT = "To keep the arguments of programs: everhold export --redact --keep-arguments"


@click.command("export")
@sessions_argument
@click.option(
    "-o",
    "--out",
    "file",
    metavar="FILE",
    shell_complete=complete_files,
    help="The file to write; - is standard output.",
)
@click.option(
    "--as-test",
    "folder",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="Write a test that replays the session, and its recording.",
)
@state_option("Instead of naming sessions: all in this state.")
@program_option
@label_option
@click.option(
    "--fluers",
    "to_fluers",
    is_flag=True,
    help="Write conversations as sessions of fluers, to a directory, a .json file or a database.",
)
@click.option("--values", is_flag=True, help="Also write the durable values that they used.")
@click.option(
    "--redact",
    is_flag=True,
    help="Leave out all texts. The file is enough for `check`, but not for `import`.",
)
@click.option(
    "--keep-arguments", is_flag=True, help="With --redact: keep the arguments of programs."
)
@click.option(
    "--redact-part",
    "parts",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Leave out only these texts. May be repeated.",
)
@add_common_options
def export_(
    sessions: tuple[str, ...],
    file: str | None,
    folder: str | None,
    states: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    to_fluers: bool,
    values: bool,
    redact: bool,
    keep_arguments: bool,
    parts: tuple[str, ...],
    database: str | None,
    as_json: bool,
) -> None:
    """Write sessions and their children to a file.

    `everhold import` reads the file into another database; `everhold check --file` checks it
    without one.

    \b
    everhold export refund-7 -o refund.jsonl
    everhold export --state failed --redact -o failed.jsonl
    everhold export refund-7 --as-test tests
    everhold export chat-7 --fluers -o ~/.fluers/sessions
    """
    if to_fluers:
        others = (folder, states, program, labels, values, redact, keep_arguments, parts)
        if any(others):
            raise make_usage_error("--fluers can only be combined with SESSION and --out")
        return export_fluers_sessions(sessions, file or "-", database=database, as_json=as_json)
    if (file is None) == (folder is None):
        raise make_usage_error("name where to write: --out FILE, or --as-test FOLDER")
    _refuse_both(sessions, states, program, labels)
    if keep_arguments and (parts or not redact):
        raise make_usage_error(
            "--keep-arguments needs --redact; --redact-part leaves out only what you name"
        )
    with open_command_runtime(database) as opened:
        ids = [opened.session(name) for name in sessions]
        if folder is not None:
            return _export_test(opened, ids, folder, as_json)
        target: Any = sys.stdout.buffer if file in (None, "-") else file
        with show_progress("exporting", quiet=as_json) as bar:
            done = opened.runtime.archive.export(
                target,
                ids or None,
                state=list(states) or None,
                program=program,
                labels=parse_pairs(labels, "--label"),
                values=values,
                redact=list(parts)
                or ([one for one in _PARTS if one != "arguments"] if keep_arguments else redact),
                progress=bar,
            )
        if file == "-":
            return
        if as_json:
            facts = {"file": file, "sessions": done.sessions, "redacted": done.redacted}
            return print_json({"database": opened.database, **facts})
        click.echo(f"wrote {format_count(len(done.sessions), 'session')} to {file}")
        if redact and "arguments" in done.redacted:
            click.echo(
                "the arguments of programs are left out, too; to keep them: --keep-arguments"
            )
        print_footer(opened.database)


def _refuse_both(sessions: tuple[str, ...], *which: object) -> None:
    if sessions and any(which):
        raise make_usage_error("name sessions, or choose them by options; not both")


def _export_test(opened: CommandRuntime, ids: list[str], folder: str, as_json: bool) -> None:

    if len(ids) != 1:
        raise make_usage_error("--as-test needs exactly one SESSION")
    made = write_test(opened.record(ids[0]), folder)
    if as_json:
        return print_json({"database": opened.database, "written": made})
    click.echo(f"wrote {' and '.join(made)}")
    print_footer(opened.database)


@click.command("import")
@click.argument("file", required=False, shell_complete=complete_files)
@click.option(
    "--skip",
    is_flag=True,
    help="Skip sessions that exist here, instead of refusing the file.",
)
@click.option(
    "--algocline",
    "home",
    metavar="FOLDER",
    shell_complete=complete_folders,
    help="Instead of a file: import the values and cards of an algocline home.",
)
@click.option(
    "--fluers",
    "fluers_home",
    metavar="WHERE",
    shell_complete=complete_folders,
    help="Instead of a file: import the sessions of fluers in this directory, .json file, .db file"
    " or postgresql:// database.",
)
@click.option(
    "--agent",
    metavar="AGENT",
    shell_complete=complete_agents,
    help="With --fluers: the agent that holds the conversations. Default: one without tools.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="OLD=NEW",
    help="With --fluers: a model of fluers, and its name here, such as"
    " gpt-4o=openai:gpt-4o. May be repeated.",
)
@click.option(
    "--skip-invalid",
    is_flag=True,
    help="With --fluers: skip invalid sessions, instead of refusing all.",
)
@click.option(
    "--dry-run", is_flag=True, help="With --algocline: only print what would be imported."
)
@add_common_options
def import_(
    file: str | None,
    skip: bool,
    home: str | None,
    fluers_home: str | None,
    agent: str | None,
    models: tuple[str, ...],
    skip_invalid: bool,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Import the sessions of an exported file; they resume here.

    FILE may be - for standard input.
    """
    if sum(one is not None for one in (file, home, fluers_home)) != 1:
        raise make_usage_error("name what to import: FILE, --algocline FOLDER, or --fluers WHERE")
    if fluers_home is not None:
        if dry_run:
            raise make_usage_error("--dry-run needs --algocline")
        return import_fluers_sessions(
            fluers_home,
            agent,
            models=models,
            skip=skip,
            skip_invalid=skip_invalid,
            database=database,
            as_json=as_json,
        )
    if agent is not None or models or skip_invalid:
        raise make_usage_error("--agent, --model and --skip-invalid need --fluers")
    if home is not None:
        if skip:
            raise make_usage_error("--skip is for files; --algocline always skips what exists")

        found = load_settings(database)
        is_new = found.path is not None and not found.path.exists()
        with open_command_runtime(
            "memory://" if dry_run and is_new else database, creates=True
        ) as opened:
            return import_algocline_home(
                opened, home, dry_run=dry_run, as_json=as_json, where=found.shown
            )
    if dry_run:
        raise make_usage_error("--dry-run needs --algocline")
    source: Any = sys.stdin.buffer if file == "-" else file
    with open_command_runtime(database, creates=True) as opened:
        skip_them = "Nothing was imported. To skip the sessions that exist here: --skip."
        with (
            override_hint(SessionExists, skip_them),
            show_progress("importing", quiet=as_json) as bar,
        ):
            done = opened.runtime.archive.import_(
                source, existing="skip" if skip else "refuse", progress=bar
            )
        if as_json:
            facts = {"sessions": done.sessions, "skipped": done.skipped, "values": done.values}
            return print_json({"database": opened.database, **facts})
        more = f"; here already: {len(done.skipped)}" if done.skipped else ""
        click.echo(f"imported {format_count(len(done.sessions), 'session')}{more}")
        print_footer(opened.database)


@click.command("check")
@sessions_argument
@click.option(
    "--file",
    metavar="FILE",
    shell_complete=complete_files,
    help="Check the sessions of an exported file, instead of the database.",
)
@program_option
@label_option
@click.option("--all", "all_", is_flag=True, help="Also check sessions that have ended.")
@add_common_options
def check_(
    sessions: tuple[str, ...],
    file: str | None,
    program: str | None,
    labels: tuple[str, ...],
    all_: bool,
    database: str | None,
    as_json: bool,
) -> int:
    """Check which sessions would break with the code as it is now.

    Run it before a deploy. It replays every running or paused session, without effects and without
    changing anything. Exits with 5 if one of them would diverge.
    """
    from everhold.wire import ExitCode

    _refuse_both(sessions, all_, program, labels)
    with open_command_runtime(
        "memory://" if file is not None and database is None else database
    ) as opened:
        ids = [opened.session(name) for name in sessions] if file is None else list(sessions)
        with show_progress("checking", quiet=as_json) as bar:
            report = opened.runtime.archive.check(
                ids or None,
                file=file,
                state=None if all_ else ("running", "paused"),
                program=program,
                labels=parse_pairs(labels, "--label"),
                progress=bar,
            )
        if as_json:
            _print_report_json(report)
        else:
            _print_report(report, "" if file is not None else opened.database_option)
        return ExitCode.OK if report.ok else ExitCode.PROGRAM


def _print_report_json(report: CheckReport) -> None:
    import msgspec

    fields = msgspec.to_builtins(report)
    print_json(
        {
            "database": report.source,
            "ok": report.ok,
            "counts": report.counts,
            **{name: fields[name] for name in ("checked", "redacted", "python", "hash_seed")},
        }
    )


def _print_report(report: CheckReport, database_option: str) -> None:
    for one in report.checked:
        if one.verdict != "ok":
            _print_check(one, database_option)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(report.counts.items()))
    click.secho(
        f"{format_count(len(report.checked), 'session')} checked: {counts or 'nothing to check'}",
        bold=True,
    )
    if report.redacted and not report.ok:
        click.echo(
            f"hint: {_REDACTED_HINT}"
            + (f" {_ARGUMENTS_HINT}" if "arguments" in report.redacted else "")
        )
    print_footer(report.source)


def _print_check(one: SessionCheck, database_option: str) -> None:
    color = None if one.goes_on else "red"
    name = format_short_name(one.session_id, one.key)
    click.secho(f"{one.verdict} · {name} · {one.program}", fg=color)
    for word in one.reworded[:5]:
        click.echo(
            f"  step {word.step}, {word.query_id}: {format_line(word.recorded, 60)!r} is now"
            f" {format_line(word.asked, 60)!r}"
        )
    if one.reason:
        click.echo(f"  {one.reason}")
    print_exception(one.exception, indent="  ")
    if one.hint:
        click.echo(f"  hint: {add_database_option(one.hint, database_option)}")
