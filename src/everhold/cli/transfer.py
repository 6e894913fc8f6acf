"""Commands that take sessions elsewhere, and that ask whether they would go on: export, import,
check.

A session as a test: one file of JSON, and one of Python that replays it.

Taking over what algocline left: `everhold import --algocline HOME`.
"""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.context import (
    SHORT_ID_LENGTH,
    CommandRuntime,
    load_settings,
    open_command_runtime,
    override_hint,
)
from everhold.cli.options import add_common_options, make_usage_error, parse_pairs
from everhold.cli.output import format_count, format_line, print_footer, print_json, show_progress
from everhold.errors import BadSetting, Overtaken, SessionExists

if TYPE_CHECKING:
    from everhold.archive.check import CheckReport, SessionCheck
    from everhold.packages.lua.legacy_import import LegacyData, LegacyPart
    from everhold.ports.store import Change, SessionRecord, Store
    from everhold.runtime import Runtime


def import_algocline_home(
    opened: CommandRuntime, home: str, *, dry_run: bool, as_json: bool, where: str
) -> None:
    """Take values and cards over that are not here yet, all at once or none, and say what was
    done.
    """
    from everhold.packages.lua.legacy_import import read_legacy_data
    from everhold.packages.lua.paths import AlcHome
    from everhold.packages.settings import read_lua_options

    root = Path(home).expanduser().absolute()
    if not root.is_dir():
        raise BadSetting("--algocline", f"there is no folder {root}")
    shares = read_lua_options(opened.settings).shares
    found = read_legacy_data(AlcHome(root), shares)
    fresh, session_id = opened.ask(lambda runtime: _taken(runtime, root, found.parts, dry_run))
    told = _told(found, fresh)
    if as_json:
        facts = {"database": where, "home": str(root), "dry_run": dry_run, "session_id": session_id}
        return print_json({**facts, **told})
    _say(told, "would take over" if dry_run else "took over")
    print_footer(where)


async def _taken(
    runtime: Runtime, root: Path, parts: list[LegacyPart], dry_run: bool
) -> tuple[list[LegacyPart], str | None]:
    while True:
        fresh = [part for part in parts if (await runtime.store.value(*part.values[0][:2]))[1] == 0]
        if dry_run or not fresh:
            return fresh, None
        change = await _change(runtime.store, root, fresh, runtime.clock.now())
        try:
            await runtime.store.commit(change, 0)
        except Overtaken:  # somebody writes at this moment: look again
            continue
        return fresh, change.id


async def _change(store: Store, root: Path, fresh: list[LegacyPart], now: float) -> Change:
    """A session that has ended, with everything it brought: values come into a database with a
    session only.
    """
    from everhold.archive.archive import get_everhold_version
    from everhold.core.journal import Delivery, DeliveryNotes
    from everhold.core.metrics import Metrics
    from everhold.core.session import Birth, Head, Seed, SessionState, mint
    from everhold.core.status import Returned
    from everhold.ports.store import Change, ValueWrite

    birth = Birth(
        id=mint(now, secrets.randbits(96)),
        program="everhold:import-algocline",
        args={"home": str(root)},
        created_at=now,
        seeds=[Seed(0, secrets.token_hex(12))],
        title=f"taken over from {root}",
        everhold=get_everhold_version(),
    )
    writes = [
        ValueWrite(namespace, key, [value], 0)
        for part in fresh
        for namespace, key, value in part.values
        if (await store.value(namespace, key))[1] == 0
    ]
    notes = DeliveryNotes(outcome=Returned({"values": len(writes)}))
    head = Head(0, 1, SessionState.COMPLETED, 0, 0, None, now, Metrics())
    return Change(
        id=birth.id,
        head=head,
        deliveries=[Delivery(0, now, notes=notes)],
        birth=birth,
        writes=writes,
        durable=True,
    )


def _told(found: LegacyData, fresh: list[LegacyPart]) -> dict[str, Any]:
    """How much of each there was, and how much of it is new."""
    told: dict[str, Any] = {}
    for kind, name in (("value", "values"), ("card", "cards"), ("alias", "aliases")):
        new = [part.name for part in fresh if part.kind == kind]
        told[name] = {
            "taken": new,
            "skipped": sum(part.kind == kind for part in found.parts) - len(new),
        }
    return {**told, "logs": found.logs, "problems": found.problems}


def _say(told: dict[str, Any], did: str) -> None:
    parts = (
        format_count(len(told["values"]["taken"]), "value"),
        format_count(len(told["cards"]["taken"]), "card"),
    )
    aliases = len(told["aliases"]["taken"])
    named = f" and {aliases} alias{'' if aliases == 1 else 'es'} of cards" if aliases else ""
    skipped = sum(told[name]["skipped"] for name in ("values", "cards", "aliases"))
    click.echo(
        f"{did} {', '.join(parts)}{named}" + (f"; here already: {skipped}" if skipped else "")
    )
    if told["logs"]:
        click.echo(
            f"{format_count(told['logs'], 'log')} can be read in place: `everhold mcp --profile"
            " algocline`"
        )
    for problem in told["problems"]:
        click.secho(f"passed over: {problem}", fg="yellow", err=True)


_TEST: Final = '''\
"""Made by `everhold export {name} --as-test`: {program} asks and ends as it did then.

`pytest --everhold-update` accepts how it is now.
"""

from pathlib import Path
from typing import Any


def test_{word}(everhold: Any) -> None:
    everhold.replays(Path(__file__).with_suffix(".json"))
'''


def write_test(record: SessionRecord, folder: str) -> list[str]:
    """Write both files; overwrites nothing."""
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
                f"{file} is there already; `pytest --everhold-update` brings it up to date",
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
_HIDDEN = "The file is redacted: a program that decides by texts may only seem to diverge."
_ARGUMENTS = "To write it with the arguments of programs: everhold export --redact --keep-arguments"


@click.command("export")
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("-o", "--out", "file", metavar="FILE", help="Where to write; - is standard output.")
@click.option(
    "--as-test",
    "folder",
    metavar="FOLDER",
    help="Write a test that replays the session, and its JSON.",
)
@click.option(
    "--state", multiple=True, help="All in this state, instead of naming sessions; may be repeated."
)
@click.option("--program", help="All of this program.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="All with this label.")
@click.option("--values", is_flag=True, help="Also the durable values that they used.")
@click.option("--redact", is_flag=True, help="Without texts: enough for `check`, not for `import`.")
@click.option(
    "--keep-arguments", is_flag=True, help="With --redact: the arguments of programs stay."
)
@click.option(
    "--redact-part",
    "parts",
    multiple=True,
    type=click.Choice(_PARTS),
    help="Only these; may be repeated.",
)
@add_common_options
def export_(
    sessions: tuple[str, ...],
    file: str | None,
    folder: str | None,
    state: tuple[str, ...],
    program: str | None,
    labels: tuple[str, ...],
    values: bool,
    redact: bool,
    keep_arguments: bool,
    parts: tuple[str, ...],
    database: str | None,
    as_json: bool,
) -> None:
    """Write sessions and their children to a file.

    `everhold import` takes it in elsewhere; `everhold check --file` reads it where there is no
    database.
    """
    if (file is None) == (folder is None):
        raise make_usage_error("say where to: --out FILE, or --as-test FOLDER")
    _refuse_both(sessions, state, program, labels)
    if keep_arguments and (parts or not redact):
        raise make_usage_error(
            "--keep-arguments goes with --redact; --redact-part redacts what you name, and no more"
        )
    with open_command_runtime(database) as opened:
        ids = [opened.session(name) for name in sessions]
        if folder is not None:
            return _as_test(opened, ids, folder, as_json)
        target: Any = sys.stdout.buffer if file in (None, "-") else file
        with show_progress("exporting", quiet=as_json) as bar:
            done = opened.runtime.archive.export(
                target,
                ids or None,
                state=list(state) or None,
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
            told = {"file": file, "sessions": done.sessions, "redacted": done.redacted}
            return print_json({"database": opened.database, **told})
        click.echo(f"wrote {format_count(len(done.sessions), 'session')} to {file}")
        if redact and "arguments" in done.redacted:
            click.echo("arguments of programs are redacted, too; to keep them: --keep-arguments")
        print_footer(opened.database)


def _refuse_both(sessions: tuple[str, ...], *which: object) -> None:
    if sessions and any(which):
        raise make_usage_error("name sessions, or say which fit; not both")


def _as_test(opened: CommandRuntime, ids: list[str], folder: str, as_json: bool) -> None:

    if len(ids) != 1:
        raise make_usage_error("a test is made of one session; name it")
    made = write_test(opened.record(ids[0]), folder)
    if as_json:
        return print_json({"database": opened.database, "written": made})
    click.echo(f"wrote {' and '.join(made)}")
    print_footer(opened.database)


@click.command("import")
@click.argument("file", required=False)
@click.option(
    "--skip",
    is_flag=True,
    help="Leave sessions that are here already as they are, instead of refusing.",
)
@click.option(
    "--algocline",
    "home",
    metavar="HOME",
    help="Take over values and cards of algocline, instead of a file.",
)
@click.option(
    "--dry-run", is_flag=True, help="With --algocline: only say what would be taken over."
)
@add_common_options
def import_(
    file: str | None,
    skip: bool,
    home: str | None,
    dry_run: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Take in the sessions of an exported file; they go on here. - is standard input."""
    if (file is None) == (home is None):
        raise make_usage_error("say what to take in: FILE, or --algocline HOME")
    if home is not None:
        if skip:
            raise make_usage_error("--skip is for files; what is here already always stays")

        found = load_settings(database)
        is_new = found.path is not None and not found.path.exists()
        with open_command_runtime(
            "memory://" if dry_run and is_new else database, makes=True
        ) as opened:
            return import_algocline_home(
                opened, home, dry_run=dry_run, as_json=as_json, where=found.shown
            )
    if dry_run:
        raise make_usage_error("--dry-run goes with --algocline")
    source: Any = sys.stdin.buffer if file == "-" else file
    with open_command_runtime(database, makes=True) as opened:
        skip_them = "It is left as it is. To skip those that are here already: --skip."
        with (
            override_hint(SessionExists, skip_them),
            show_progress("importing", quiet=as_json) as bar,
        ):
            done = opened.runtime.archive.import_(
                source, existing="skip" if skip else "refuse", progress=bar
            )
        if as_json:
            told = {"sessions": done.sessions, "skipped": done.skipped, "values": done.values}
            return print_json({"database": opened.database, **told})
        more = f"; here already: {len(done.skipped)}" if done.skipped else ""
        click.echo(f"took in {format_count(len(done.sessions), 'session')}{more}")
        print_footer(opened.database)


@click.command("check")
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option(
    "--file", metavar="FILE", help="Sessions of an exported file, instead of the database."
)
@click.option("--program", help="Only those of this program.")
@click.option(
    "--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only those with this label."
)
@click.option("--all", "all_", is_flag=True, help="Also those that have ended.")
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
    """Say which sessions would not go on with the code as it is now.

    Run it before a deploy. Every session that runs or waits is replayed without effects, and
    nothing is changed. Exits with 5 if one would not go on.
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
            _as_json(report)
        else:
            _in_words(report)
        return ExitCode.OK if report.ok else ExitCode.PROGRAM


def _as_json(report: CheckReport) -> None:
    import msgspec

    print_json(
        {
            "database": report.source,
            "ok": report.ok,
            "counts": report.counts,
            **_rows(msgspec.to_builtins(report)),
        }
    )


def _rows(told: dict[str, Any]) -> dict[str, Any]:
    return {name: told[name] for name in ("checked", "redacted", "python", "hash_seed")}


def _in_words(report: CheckReport) -> None:
    for one in report.checked:
        if one.verdict != "ok":
            _tell(one)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(report.counts.items()))
    click.secho(
        f"{format_count(len(report.checked), 'session')} checked: {counts or 'nothing to check'}",
        bold=True,
    )
    if report.redacted and not report.ok:
        click.echo(
            f"hint: {_HIDDEN}" + (f" {_ARGUMENTS}" if "arguments" in report.redacted else "")
        )
    print_footer(report.source)


def _tell(one: SessionCheck) -> None:
    color = None if one.goes_on else "red"
    click.secho(f"{one.verdict} · {one.session_id[:SHORT_ID_LENGTH]} · {one.program}", fg=color)
    for word in one.reworded[:5]:
        click.echo(
            f"  step {word.step}, {word.query_id}: {format_line(word.recorded, 60)!r} is now"
            f" {format_line(word.asked, 60)!r}"
        )
    if one.reason:
        click.echo(f"  {one.reason}")
    if one.hint:
        click.echo(f"  hint: {one.hint}")
