"""The commands `replay` and `diff`: replaying a session, and comparing two sessions.

`replay --watch` replays in a new process after every change of the code, so that it always shows
what the code on disk does. That process writes the list of the files that it has
loaded; this one polls them.
"""

from __future__ import annotations

import bdb
import os
import pdb
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.candidates import complete_sessions
from everhold.cli.context import (
    CommandRuntime,
    at_terminal,
    format_short_name,
    load_settings,
    open_command_runtime,
)
from everhold.cli.options import add_common_options, make_usage_error, session_argument
from everhold.cli.output import (
    format_asked_text,
    format_count,
    format_line,
    format_plain_value,
    print_footer,
    print_json,
    strip_controls,
)
from everhold.errors import BadStep

if TYPE_CHECKING:
    from everhold.core.query import QueryAnswer
    from everhold.engine.journal_reader import JournalStep
    from everhold.engine.replay import ReplayedDelivery
    from everhold.ports.store import SessionRecord


#: Seconds between two checks of the files.
POLL_SECONDS: Final = 0.2
#: Names of the `sysconfig` paths whose modules are not the user's.
_FOREIGN_PATHS: Final = ("stdlib", "platstdlib", "purelib", "platlib")

FileStats = dict[str, tuple[int, int] | None]


def watch_and_replay(arguments: list[str], program: Path) -> None:
    """Runs `everhold replay` with these arguments, and again after every change, until Ctrl-C."""
    files = {str(program)}
    try:
        while True:
            before = stat_files(files)  # taken first, so that a change during the replay counts
            found = _replay_in_process(arguments)
            files |= (
                found if found is not None else {str(file) for file in program.parent.glob("*.py")}
            )
            before = {**stat_files(files), **before}
            click.secho(f"watching {_format_files(files)}; Ctrl-C stops", dim=True)
            changed = _wait_for_change(before)
            click.secho(f"\n{time.strftime('%H:%M:%S')} · {changed} has changed", fg="cyan")
    except KeyboardInterrupt:
        click.echo("")


def find_program_file(ref: str, root: Path) -> Path:
    """The file of a program's reference, which is a path or a module below `root`."""
    place = ref.rpartition(":")[0]
    if place.endswith((".py", ".lua")):
        return Path(place).resolve()
    module = (root / place.replace(".", "/")).resolve()
    return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


def _replay_in_process(arguments: list[str]) -> set[str] | None:
    """Replays in a new process; returns the user's files that it loaded, None if it failed."""
    with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
        listing = Path(folder) / "files"
        command = [
            *(sys.executable, "-m", "everhold", "replay"),
            *arguments,
            *("--files-to", str(listing)),
        ]
        subprocess.run(command, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        return set(listing.read_text(encoding="utf-8").splitlines()) if listing.exists() else None


def _wait_for_change(before: FileStats) -> str:
    """Waits until one of these files is changed, created or deleted; returns its name."""
    while True:
        time.sleep(POLL_SECONDS)
        now = stat_files(before)
        for file, state in now.items():
            if state != before[file]:
                return Path(file).name


def stat_files(files: Iterable[str]) -> FileStats:
    """The modification time and size of each file; None for one that does not exist."""
    found: FileStats = {}
    for file in files:
        try:
            state = os.stat(file)
            found[file] = (state.st_mtime_ns, state.st_size)
        except OSError:
            found[file] = None
    return found


def list_loaded_files() -> set[str]:
    """The files of the user's own modules in this process, without installed ones."""
    paths = sysconfig.get_paths()
    others = [os.path.realpath(paths[name]) + os.sep for name in _FOREIGN_PATHS] + [
        _get_own_folder()
    ]
    found = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            file = os.path.realpath(file)
            if not any(file.startswith(other) for other in others):
                found.add(file)
    return found


def _get_own_folder() -> str:
    import everhold

    return os.path.dirname(os.path.realpath(str(everhold.__file__))) + os.sep


def _format_files(files: set[str]) -> str:
    names = sorted(Path(file).name for file in files)
    return (
        format_line(", ".join(names), 60)
        if len(names) <= 3
        else f"{format_count(len(names), 'file')}"
    )


class Debugger(pdb.Pdb):
    """Stops at the first executed line of one file, and steps only through that file."""

    def __init__(self, file: str) -> None:
        super().__init__(nosigint=True)
        self._file = self.canonic(file)

    def _is_elsewhere(self, frame: FrameType) -> bool:
        return self.canonic(frame.f_code.co_filename) != self._file

    def user_line(self, frame: FrameType) -> None:
        if self._is_elsewhere(frame):
            self.set_step()
        else:
            super().user_line(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        if not self._is_elsewhere(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if not self._is_elsewhere(frame):
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        if not self._is_elsewhere(frame):
            super().user_exception(frame, exc_info)


def step_through(file: str, act: Callable[[], object]) -> None:
    """Calls `act` under the debugger. Errors that follow from quitting it are ignored."""
    from everhold.programs.python import determinism_guard

    determinism_guard.configure_guard(mode="off")  # the debugger reads files, not the program
    debugger = Debugger(file)
    try:
        debugger.runcall(act)
    except bdb.BdbQuit:
        pass
    except Exception:
        if not debugger.quitting:
            raise
    finally:
        sys.settrace(None)


@click.command("replay")
@session_argument
@click.option("--at", type=int, metavar="N", help="Stop after this step. Default: the newest.")
@click.option(
    "--pdb", "debug", is_flag=True, help="Stop in the debugger when the program gets step N."
)
@click.option(
    "--watch", is_flag=True, help="Replay again, in a new process, when the code changes."
)
@click.option("--files-to", metavar="FILE", hidden=True)
@add_common_options
def replay_(
    session: str,
    at: int | None,
    debug: bool,
    watch: bool,
    files_to: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Replay a session from its journal, without calls or questions.

    \b
    everhold replay refund-7 --at 3 --pdb
    everhold replay refund-7 --watch
    """
    if watch and (debug or as_json):
        raise make_usage_error(f"--watch cannot be combined with {'--pdb' if debug else '--json'}")
    with open_command_runtime(database) as opened:
        record = opened.record(opened.session(session))
        last = record.head.n if at is None else at
        if not 0 <= last <= record.head.n:
            raise BadStep(record.birth.id, last, f"it has steps 0 to {record.head.n}")
        if debug:
            if not at_terminal():
                raise make_usage_error("--pdb needs a terminal")
            _debug_step(opened, record, last)
        elif not watch:
            _replay(opened, record, last, as_json, files_to)
    if watch:
        _watch(record, at, database)


def _replay(
    opened: CommandRuntime, record: SessionRecord, last: int, as_json: bool, files_to: str | None
) -> None:
    steps = reworded = 0
    for one in _replay_deliveries(opened, record, last):
        if steps == 0 and files_to is not None:
            files = "\n".join(sorted(list_loaded_files()))
            Path(files_to).write_text(files, encoding="utf-8")
        if not as_json:
            _print_delivery(one)
        steps = steps + 1
        reworded = reworded + len(one.reworded)
    session_id = record.birth.id
    if as_json:
        counts = {"steps": steps, "calls_made": 0, "reworded": reworded}
        return print_json({"database": opened.database, "session_id": session_id, **counts})
    name = format_short_name(session_id, record.birth.key)
    click.secho(f"{name} replays as recorded: {format_count(steps, 'step')}, 0 calls", bold=True)
    print_footer(opened.database)


def _watch(record: SessionRecord, at: int | None, database: str | None) -> None:
    arguments = [record.birth.id, *(() if at is None else ("--at", str(at)))]
    arguments += () if database is None else ("--database", database)
    watch_and_replay(
        arguments, find_program_file(record.birth.program, load_settings(database).root)
    )


def _replay_deliveries(
    opened: CommandRuntime, record: SessionRecord, last: int
) -> Generator[ReplayedDelivery, None, None]:
    from everhold.engine.replay import replay_session

    for one in replay_session(record, opened.host, to=last):
        yield one
        if one.recorded.n >= last:
            return


def _print_delivery(one: ReplayedDelivery) -> None:
    for answer in one.given.answers:
        click.echo(f"{one.given.n:>4}  {answer.id} ← {format_line(_format_answer(answer), 100)}")
    for query in one.reply.asked:
        click.echo(
            f"{one.given.n:>4}  {query.id} {query.kind}:"
            f" {format_line(format_asked_text(query), 100)}"
        )
    for old, _ in one.reworded:
        click.secho(
            f"      {old.id} was recorded as: {format_line(old.prompt or old.name, 100)}",
            fg="yellow",
        )
    if one.reply.notes is not None and one.reply.notes.restart is not None:
        click.echo(
            f"{one.given.n:>4}  restarts with"
            f" {format_line(format_plain_value(one.reply.notes.restart.args), 100)}"
        )
    if one.reply.outcome is not None:
        from everhold.core.journal import describe_outcome

        click.echo(f"{one.given.n:>4}  {format_line(describe_outcome(one.reply.outcome), 100)}")


def _format_answer(answer: QueryAnswer) -> str:
    from everhold.core.query import format_answer_error

    return (
        format_plain_value(answer.value)
        if answer.error is None
        else f"error: {format_answer_error(answer)}"
    )


# ---- in the debugger


def _debug_step(opened: CommandRuntime, record: SessionRecord, last: int) -> None:
    """Replays up to the step before `last`, and delivers `last` under the debugger."""
    from everhold.core.journal import split_at_last_restart

    file = _find_source_file(opened, record)
    steps = _replay_deliveries(opened, record, last)
    restart = split_at_last_restart(record.deliveries[:last])[0]
    for _ in range(last if restart is None else last - restart.n - 1):
        next(steps, None)
    click.secho(
        f"step {last} of {format_short_name(record.birth.id, record.birth.key)} · n next line, c"
        " end of"
        " step, q quit",
        fg="cyan",
    )
    try:
        step_through(file, lambda: next(steps, None))
    finally:
        steps.close()


def _find_source_file(opened: CommandRuntime, record: SessionRecord) -> str:
    """The source file of the program; raises if it is not found here, or not in Python."""
    from everhold.core.metrics import Metrics
    from everhold.programs.python.execution import PythonExecution

    execution = opened.host.begin(record.birth, Metrics())
    execution.drop()
    if not isinstance(execution, PythonExecution):
        raise make_usage_error("--pdb needs a program in Python")
    return str(execution.program.body.__code__.co_filename)


# ---- diff


@click.command("diff")
@click.argument("one", metavar="SESSION", shell_complete=complete_sessions)
@click.argument("other", metavar="SESSION", shell_complete=complete_sessions)
@add_common_options
def diff_(one: str, other: str, database: str | None, as_json: bool) -> int:
    """Compare two sessions, first difference first.

    Exits with 1 if they differ.
    """
    from everhold.wire import ExitCode

    with open_command_runtime(database) as opened:
        records = [opened.record(opened.session(name)) for name in (one, other)]
        names = [format_short_name(record.birth.id, record.birth.key) for record in records]
        found = list(diff_records(*records))
        if as_json:
            rows = [
                {"step": step, "what": what, "one": a, "other": b} for step, what, a, b in found
            ]
            print_json({"database": opened.database, "same": not found, "differences": rows})
        else:
            _print_differences(names, found)
            print_footer(opened.database)
        return ExitCode.FAILED if found else ExitCode.OK


def _print_differences(names: list[str], found: list[tuple[int, str, str, str]]) -> None:
    if not found:
        return click.echo(f"{names[0]} and {names[1]} are the same at every step")
    width = max(map(len, names))
    for step, what, *values in found:
        click.secho(f"step {step} · {what}", fg="cyan")
        for name, value in zip(names, values, strict=True):
            click.echo(f"  {name:<{width}}  {strip_controls(value)}")
    return None


def diff_records(one: SessionRecord, other: SessionRecord) -> Iterator[tuple[int, str, str, str]]:
    """The differences, step by step: program, arguments, answers, questions, outcome."""
    from everhold.engine.journal_reader import read_steps

    if one.birth.program != other.birth.program or one.birth.version != other.birth.version:
        yield (
            0,
            "program",
            f"{one.birth.program} v{one.birth.version}",
            f"{other.birth.program} v{other.birth.version}",
        )
    for name in sorted({*one.birth.args, *other.birth.args}):
        a, b = (format_plain_value(record.birth.args.get(name)) for record in (one, other))
        if a != b:
            yield 0, f"argument {name}", a, b
    steps = zip_longest(read_steps(one.deliveries), read_steps(other.deliveries))
    for index, pair in enumerate(steps):
        first, second = (_describe_step(step) for step in pair)
        for what in dict.fromkeys([*first, *second]):
            a = first.get(what, "nothing")
            b = second.get(what, "nothing")
            if a != b:
                yield index, what, a, b


def _describe_step(step: JournalStep | None) -> dict[str, str]:
    """The answers, questions and outcome of a step as text, by name."""
    from everhold.core.status import Raised, Returned, Stopped

    if step is None:
        return {}
    parts = {f"answer to {one.answer.id}": _format_answer(one.answer) for one in step.answered}
    for query in step.asked:
        asked = query.prompt or query.name or format_plain_value(query.messages)
        parts[f"question {query.id}"] = f"{query.kind}: {asked}"
    match step.notes.outcome:
        case Returned(value=value):
            parts["outcome"] = format_plain_value(value)
        case Raised(error=error):
            parts["outcome"] = f"failed: {error}"
        case Stopped(reason=reason):
            parts["outcome"] = f"cancelled: {reason}".removesuffix(": ")
    return parts
