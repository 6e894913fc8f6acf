"""The commands `explain`, `info` and `doctor`."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everhold.cli.context import load_settings, open_command_runtime
from everhold.cli.options import add_common_options, json_option, session_argument
from everhold.cli.output import print_exception, print_footer, print_json, strip_controls
from everhold.errors import EverholdError, NoMaintenance
from everhold.wire import blocked_json

if TYPE_CHECKING:
    from everhold.packages.settings import Settings


@click.command("explain")
@session_argument
@add_common_options
def explain_(session: str, database: str | None, as_json: bool) -> None:
    """Explain the state of a session, and what to do next."""
    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        found = opened.runtime.explain(session_id)
        if as_json:
            import msgspec

            told = {"database": opened.database, **msgspec.to_builtins(found)}
            told["blocked"] = {id: blocked_json(one) for id, one in found.blocked.items()}
            return print_json(told)
        click.secho(f"{opened.name(session_id)} is {found.state}.", bold=True)
        for sentence in found.because:
            click.echo(f"  {strip_controls(sentence)}")
        print_exception(found.exception, indent="  ")
        if found.moves:
            click.echo("To continue:")
        for sentence in found.moves:
            click.echo(f"  {strip_controls(sentence)}")
        print_footer(opened.database)


@click.command("info")
@add_common_options
def info_(database: str | None, as_json: bool) -> None:
    """Print the database, settings and programs used here, and why."""
    from everhold.packages.find import list_known_programs

    found = load_settings(database)
    programs = list_known_programs(found.programs, root=found.root, folders=found.folders)
    files = [source for source in found.source.values() if source.endswith(".toml")]
    facts: dict[str, Any] = {
        "everhold": _version(),
        "python": platform.python_version(),
        "database": found.shown,
        "because": found.source.get("database"),
        "exists": found.path is None or found.path.exists(),
        "settings": files[0] if files else None,
        "llm": found.llm,
        "answer_with": found.answer_with,
        "programs": [
            {"name": one.name, "version": one.version, "ref": one.ref} for one in programs.programs
        ],
        "problems": [str(problem) for problem in programs.problems],
    }
    if as_json:
        return print_json(facts)
    for name in ("everhold", "python", "database", "settings", "llm", "answer_with"):
        click.echo(f"{name:<12} {facts[name] or 'none'}")
        if name == "database":
            absent = "" if facts["exists"] else "; the first session creates it"
            click.secho(f"{'':<12} from {facts['because']}{absent}", dim=True)
    for one in programs.programs:
        click.echo(f"{'program':<12} {one.name} version {one.version}  {one.ref}")
    for problem in programs.problems:
        click.secho(f"{'problem':<12} {problem}", fg="red")


@click.command("version")
@json_option
def version_(as_json: bool) -> None:
    """Print the version of everhold."""
    if as_json:
        return print_json({"everhold": _version(), "python": platform.python_version()})
    return click.echo(f"everhold {_version()}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("everhold")
    except PackageNotFoundError:
        return "not installed"


@click.command("doctor")
@add_common_options
def doctor_(database: str | None, as_json: bool) -> int:
    """Check settings, database, programs and the answering command."""
    from everhold.wire import ExitCode

    found = load_settings(database)
    results = [_run_check(name, check) for name, check in _list_checks(found, database)]
    if as_json:
        print_json(
            {
                "database": found.shown,
                "checks": results,
                "well": all(one["well"] for one in results),
            }
        )
    else:
        for one in results:
            click.secho(
                f"{'✓' if one['well'] else '✗'} {one['check']}: {one['detail']}",
                fg=None if one["well"] else "red",
            )
            if one["hint"]:
                click.echo(f"  hint: {one['hint']}")
        print_footer(found.shown)
    return ExitCode.OK if all(one["well"] for one in results) else ExitCode.FAILED


def _run_check(name: str, check: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"check": name, "well": True, "detail": check(), "hint": ""}
    except EverholdError as error:
        return {"check": name, "well": False, "detail": str(error), "hint": error.hint}


def _list_checks(found: Settings, database: str | None) -> Iterator[tuple[str, Callable[[], str]]]:
    from everhold.packages.find import list_known_programs
    from everhold.packages.lua.paths import list_unheeded_variables

    yield "database", lambda: _check_database(found, database)
    if found.path is not None:
        path = found.path
        yield "privacy", lambda: _check_privacy(path)
    everything = list_known_programs(found.programs, root=found.root, folders=found.folders)
    for problem in everything.problems:
        yield "programs", lambda problem=problem: _raise(problem)  # type: ignore[misc]
    yield "programs", lambda: f"{len(everything.programs)} of yours found by name"
    for note in list_unheeded_variables():
        yield "variables", lambda note=note: note  # type: ignore[misc]
    if found.answer_with is not None:
        words = found.answer_with
        yield "answer_with", lambda: _check_command(words)
    if found.llm is not None:
        words_ = found.llm
        yield "llm", lambda: _check_model(words_)


def _check_database(found: Settings, database: str | None) -> str:
    if found.path is not None and not found.path.exists():
        return _check_creatable(found.path)
    with open_command_runtime(database) as opened:
        try:
            found_problems = opened.runtime.archive.verify()
        except NoMaintenance:
            return "it opens; this store cannot be verified"
        facts = opened.stats()
        problems = [one for one in found_problems if not one.warning]
        warned = "".join(f"; warning: {one.detail}" for one in found_problems if one.warning)
        if problems:
            from everhold.errors import StoreDamaged

            raise StoreDamaged(
                opened.database, f"{problems[0].detail} (and {len(problems) - 1} more)"
            )
        return (
            f"it opens without problems, format {facts.get('format', '-')}, {facts.get('bytes', 0)}"
            f" bytes{warned}"
        )


def _check_creatable(path: Path) -> str:
    """A file that does not exist is not a problem if it can be created."""
    from everhold.errors import StoreUnavailable

    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        hint = "Allow this user to write there, or use another database: --database."
        raise StoreUnavailable(str(path), f"no file can be created in {folder}", hint)
    return "it does not exist yet; the first session creates it"


def _check_privacy(path: Path) -> str:
    """Raises if others can read the file."""
    from everhold.errors import BadSetting
    from everhold.portability import may_others_read

    if not path.exists():
        return "nothing is stored yet"
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if may_others_read(found):
        error = BadSetting("database", f"{path} can be read by others (mode {mode:o})")
        error.hint = f"chmod 600 {path}"
        raise error
    return f"only its owner can read the file (mode {mode:o})"


def _check_command(words: str) -> str:
    from everhold.models import CommandModel

    CommandModel(words).check()
    return f"{words!r} can be run"


def _check_model(name: str) -> str:
    from everhold.models import create_model

    create_model(name).check()
    return f"{name!r} is configured"


def _raise(problem: EverholdError) -> str:
    raise problem
