"""The output of commands: text, tables that fit the terminal, progress bars, statuses, and JSON."""

from __future__ import annotations

import datetime
import io
import os
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

import click

from everhold.core.codec import JSON
from everhold.core.intake import INPUT
from everhold.core.progress import Progress
from everhold.core.query import MODEL_KINDS, FailedAttempt, Kind, Query
from everhold.core.status import (
    LATEST,
    Accepted,
    Finished,
    OpenQuery,
    Paused,
    Raised,
    Running,
    Status,
    Stopped,
    describe_signals,
)
from everhold.shell_command import format_command

if TYPE_CHECKING:
    from everhold.agents import Turn
    from everhold.exception_info import ExceptionInfo

#: Spaces between two columns.
COLUMN_GAP: Final = 2
#: The least width of a cell that is wide enough to need it.
MIN_COLUMN_WIDTH: Final = 8
#: Below this width, a progress bar shows no remaining time.
NARROW_TERMINAL: Final = 60
#: Work that takes less than this many seconds shows no progress bar.
MOMENT: Final = 0.5
#: Characters of an error in a line about a session; `show` and `--json` have all of it.
MAX_ERROR_LENGTH: Final = 400
#: Characters of the error of an attempt that is followed by another.
MAX_ATTEMPT_LENGTH: Final = 160
#: Of more questions, or things to wait for, this many are shown after a command; `show` has all.
MAX_ALIKE: Final = 5
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def strip_controls(text: str) -> str:
    """Text without control characters, with which a program or model could change the terminal."""
    return _CONTROL.sub("�", text.replace("\r\n", "\n"))


def format_line(text: str, limit: int = 0) -> str:
    """Text on one line, cut to `limit` characters; 0 means no limit."""
    flat = " ".join(strip_controls(text).split())
    return flat if not limit or len(flat) <= limit else flat[: limit - 1] + "…"


def format_plain_value(value: JSON) -> str:
    """A value for people: text as it is, other values as JSON."""
    from everhold.wire import dump_wire_json

    return value if isinstance(value, str) else dump_wire_json(value)


class _Out:
    stream: TextIO | None = None  # for JSON alone


@contextmanager
def reserve_stdout_for_json() -> Iterator[None]:
    """Keeps standard output for JSON. What programs and their child processes print there goes to
    standard error.
    """
    stream = sys.stdout
    stream.flush()
    if stream is sys.__stdout__:
        stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
    _Out.stream = stream
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Out.stream = None
        if stream is not sys.stdout:
            with suppress(BrokenPipeError):
                stream.close()


def get_stdout() -> TextIO:
    """The stream for the result of a command."""
    return sys.stdout if _Out.stream is None else _Out.stream


def print_json(value: JSON) -> None:
    from everhold.wire import dump_wire_json

    click.echo(dump_wire_json(value), file=get_stdout())


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, wide: Sequence[str]
) -> None:
    """Prints a table as wide as the terminal. The columns in `wide` share the width that the others
    leave. In a narrow terminal, each row takes several lines.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    cells = [[format_line(cell) for cell in row] for row in rows]
    needed = [
        max(cell_len(text) for text in (name, *texts))
        for name, *texts in zip(columns, *cells, strict=True)
    ]
    widths = _fit_widths(dict(zip(columns, needed, strict=True)), wide, console.width)
    if widths is None:
        return _print_stacked(columns, cells, console.width)
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, COLUMN_GAP, 0, 0))
    for name in columns:
        grid.add_column(name, no_wrap=True, overflow="ellipsis", width=widths[name])
    for row in cells:
        grid.add_row(*row)
    with console.capture() as printed:  # rich would end the process if the reader has gone
        console.print(grid)
    click.echo("\n".join(row.rstrip() for row in printed.get().splitlines()))
    return None


def _fit_widths(needed: dict[str, int], wide: Sequence[str], room: int) -> dict[str, int] | None:
    """The width of each column; None if there is not enough room for the columns in `wide`."""
    widths = {name: width for name, width in needed.items() if name not in wide}
    left = room - sum(widths.values()) - COLUMN_GAP * len(needed)
    if left < sum(min(needed[name], MIN_COLUMN_WIDTH) for name in wide):
        return None
    for count, name in enumerate(sorted(wide, key=needed.__getitem__)):
        widths[name] = min(needed[name], left // (len(wide) - count))
        left -= widths[name]
    return widths


def _print_stacked(columns: Sequence[str], cells: list[list[str]], width: int) -> None:
    """Prints rows for a narrow terminal: the first cell, and below it the other cells that are not
    empty, each with the name of its column.
    """
    label = max(map(len, columns)) + COLUMN_GAP
    for first, *rest in cells:
        click.echo(format_line(f"{columns[0]} {first}", width))
        for name, cell in zip(columns[1:], rest, strict=True):
            if cell:
                room = max(width - label - 2, MIN_COLUMN_WIDTH)
                click.echo(f"  {name:<{label}}{format_line(cell, room)}")


class _TerminalText(io.StringIO):
    """Text that is kept as a terminal would get it, with its colours."""

    def isatty(self) -> bool:
        return True


@contextmanager
def page_output(*, paged: bool) -> Iterator[None]:
    """Shows what is printed in a pager if it is longer than the terminal."""
    if not paged:
        yield
        return
    kept = _TerminalText()
    with redirect_stdout(kept):
        yield
    text = kept.getvalue()
    if text.count("\n") < shutil.get_terminal_size().lines:
        click.echo(text, nl=False)
    else:
        click.echo_via_pager(text)


class ProgressBar(Protocol):
    """Moves a progress bar; a total of 0 is not known. The note stands behind it, such as the cost
    so far.
    """

    def __call__(self, done: int, total: int, note: str = "") -> object: ...


@contextmanager
def show_progress(text: str, *, quiet: bool = False) -> Iterator[ProgressBar | None]:
    """Progress bar on standard error; hidden without a terminal and for short work."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    percent = TextColumn("{task.percentage:>3.0f}%")
    left = [TimeRemainingColumn(compact=True)] if console.width >= NARROW_TERMINAL else []
    width = min(40, max(console.width - len(text) - 20, 5))
    note = TextColumn("{task.fields[note]}", markup=False)
    columns = (TextColumn(text), BarColumn(width), percent, *left, note)
    bar = Bar(*columns, console=console, transient=True)
    task = bar.add_task(text, total=None, note="")
    late = threading.Timer(MOMENT, bar.start)
    late.start()
    try:
        yield lambda done, total, note="": bar.update(
            task, completed=done, total=total or None, note=note
        )
    finally:
        late.cancel()
        late.join()
        bar.stop()


def print_exception(
    exception: ExceptionInfo | None, *, indent: str = "", err: bool = False
) -> None:
    """Prints an exception as Python does; nothing if there is none."""
    if exception is not None:
        from everhold.exception_info import format_exception

        lines = strip_controls(format_exception(exception)).split("\n")
        click.echo("\n".join(f"{indent}{line}".rstrip() for line in lines), err=err)


def print_footer(database: str) -> None:
    click.secho(f"database: {database}", dim=True)


def format_ago(moment: float, now: float | None = None) -> str:
    """Time since a moment, in its largest unit: `3 hours ago`."""
    seconds = max((time.time() if now is None else now) - moment, 0)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"


def format_failed_attempt(query: Query, failed: FailedAttempt) -> str:
    """A failed attempt that is followed by another, in one line."""
    what = f"{query.kind} {query.name}".strip()
    error = format_line(failed.error, MAX_ATTEMPT_LENGTH)
    return (
        f"attempt {failed.number} of {failed.of} of {what} failed: {error};"
        f" the next one starts at {format_moment(failed.next_at)}"
    )


def format_moment(moment: float) -> str:
    """A moment in the local time zone."""
    return (
        datetime.datetime.fromtimestamp(min(moment, LATEST))
        .astimezone()
        .strftime("%Y-%m-%d %H:%M:%S %Z")
        .strip()
    )


def format_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def record_to_wire(record: Any, *names: str) -> dict[str, JSON]:
    """A record as JSON; the named times become whole milliseconds, as in all JSON output."""
    import msgspec

    fields: dict[str, JSON] = msgspec.to_builtins(record)
    times = {name: None if fields[name] is None else int(fields[name] * 1000) for name in names}
    return fields | times


# ---- statuses


def report_status(
    status: Status, name: str, *, as_json: bool, terminal: bool, option: str = ""
) -> int:
    """Prints the status of a session; returns the exit code.

    The result of the program and the open questions go to standard output (without a terminal, the
    questions are JSON). The line about the session goes to standard error.
    """
    from everhold.wire import status_exit_code, status_json

    if as_json:
        print_json(status_json(status, option))
    else:
        click.secho(format_headline(status, name), err=True, bold=terminal)
        _print_details(status, terminal)
    return int(status_exit_code(status))


def _print_details(status: Status, terminal: bool) -> None:
    from everhold.wire import status_json

    match status:
        case Finished(outcome=Raised(traceback=lines)):
            if lines.strip():  # a program that could not start has no frames
                click.echo(strip_controls(lines.rstrip()), err=True)
        case Finished(outcome=Stopped()):
            pass
        case Finished():
            click.echo(strip_controls(format_plain_value(status.result)))
        case Paused(queries=queries, signals=signals) if not terminal:
            if queries or set(signals) - {INPUT}:  # an idle conversation asks nothing
                print_json(status_json(status))
        case Paused(queries=queries):
            shown = queries if len(queries) <= MAX_ALIKE + 1 else queries[:MAX_ALIKE]
            for query in shown:
                click.echo(f"  {format_question(query)}")
            if rest := len(queries) - len(shown):
                click.echo(f"  and {rest} more")


def format_headline(status: Status, name: str, *, progress: bool = True) -> str:
    """One line about the status of a session."""
    line = _format_state(status, name)
    if progress and isinstance(status, Paused | Running) and status.progress is not None:
        line += f" · {format_progress(status.progress)}"
    return line


def format_progress(progress: Progress | None, limit: int = 0) -> str:
    """The progress that a program reported, on one line: `137 of 200 (68%): documents`."""
    if progress is None:
        return ""
    if not progress.total:
        return format_line(str(progress), limit)
    share = f" ({100 * progress.step // progress.total}%)"
    of = f"{progress.step} of {progress.total}{share}"
    return format_line(f"{of}: {progress.message}" if progress.message else of, limit)


def _format_state(status: Status, name: str) -> str:
    match status:
        case Finished(outcome=Raised(error=error)):
            return f"failed · {name} · {format_line(error, MAX_ERROR_LENGTH)}"
        case Finished(outcome=Stopped(reason=reason)):
            return f"cancelled · {name}" + (f" · {format_line(reason)}" if reason else "")
        case Finished(metrics=metrics):
            return f"completed · {name}{format_cost(metrics)}"
        case Paused(queries=queries) if queries:
            return f"waiting · {name} · {format_count(len(queries), 'question')} open"
        case Paused(until=until, waiting_for=names, signals=signals):
            names += describe_signals(signals)
            moment = f" · until {format_moment(until)}" if until is not None else ""
            return f"waiting · {name} · for {_format_names(names) or 'time'}{moment}"
        case Accepted(remaining=remaining):
            more = (
                f"{format_count(remaining, 'question')} still open"
                if remaining
                else "another process has its program and resumes it"
            )
            return f"accepted · {name} · {more}"
        case Running(waiting_for=names):
            return f"running · {name}" + (f" · {_format_names(names)}" if names else "")
    raise AssertionError(status)


def _format_names(names: Sequence[str]) -> str:
    """What a session waits for, each name once: `419 × llm, call shop:pay`."""
    counts = Counter(names)
    shown = list(counts)[: len(counts) if len(counts) <= MAX_ALIKE + 1 else MAX_ALIKE]
    parts = [name if counts[name] == 1 else f"{counts[name]} × {name}" for name in shown]
    if rest := len(names) - sum(counts[name] for name in shown):
        parts.append(f"and {rest} more")
    return ", ".join(parts)


def format_cost(metrics: dict[str, Any]) -> str:
    """Model calls and tokens of a session; empty if it made no model call."""
    auto = metrics["auto"]
    calls = auto["llm_calls"]
    tokens = auto["total_tokens"]["tokens"]
    return f" · {format_count(calls, 'model answer')} · {tokens} tokens" if calls else ""


def format_question(query: OpenQuery, limit: int = 0) -> str:
    """An open question on one line."""
    return (
        f"{query.id} {query.kind}{f' to {query.to}' if query.to else ''}:"
        f" {format_line(format_asked_text(query), limit)}"
    )


def format_asked_text(query: OpenQuery | Query) -> str:
    """The text of a question. A model query may have only messages, and no text."""
    return query.prompt or query.name or ("a conversation" if query.kind is Kind.LLM else "")


# ---- turns of a conversation


NO_MODEL: Final = "no model answers here; name one, such as --model anthropic:claude-sonnet-4-6"


def describe_unanswered(query: OpenQuery) -> str:
    """Why a model question is open: the error of the process that tried, or that none could."""
    blocked = query.blocked
    if blocked is None:
        return NO_MODEL
    place = "" if blocked.exception is None else f" ({blocked.exception.place})"
    return strip_controls(f"{blocked.message} [{blocked.code}]{place} {blocked.hint}".strip())


def get_outcome_tag(turn: Turn) -> str:
    return "waiting" if turn.outcome is None else str(type(turn.outcome).__struct_config__.tag)


def format_turn(turn: Turn) -> str:
    """The text of a turn that has ended; without one, its outcome and the reason in brackets."""
    tag = get_outcome_tag(turn)
    if tag == "answered":
        return strip_controls(turn.text)
    why = getattr(turn.outcome, "error", "") or getattr(turn.outcome, "reason", "")
    return strip_controls(f"({tag}: {why})" if why else f"({tag})")


def get_turn_exception(turn: Turn) -> ExceptionInfo | None:
    """The exception behind a turn that failed, if code of a user raised it."""
    return getattr(turn.outcome, "exception", None)


def turn_to_json(turn: Turn) -> dict[str, JSON]:
    """The outcome and the text of a turn; of one that failed, also the error."""
    from everhold.wire import exception_json

    told: dict[str, JSON] = {"outcome": get_outcome_tag(turn), "text": turn.text}
    if told["outcome"] == "failed":
        told["error"] = getattr(turn.outcome, "error", "")
        told["code"] = getattr(turn.outcome, "code", "")
    return told | exception_json(get_turn_exception(turn))


def queries_to_json(queries: Iterable[OpenQuery]) -> list[JSON]:
    from everhold.wire import query_json

    return [{"id": query.id, **query_json(query)} for query in queries]


def print_waiting(queries: Iterable[OpenQuery], name: str, database_option: str) -> None:
    """Print open questions, and for each the command that answers it."""
    for query in queries:
        asked = f"{query.kind} {query.id}: {format_line(query.prompt or query.name, 200)}"
        reason = describe_unanswered(query) if query.kind in MODEL_KINDS else asked
        click.echo(f"waiting: {reason}", err=True)
        print_answer_command(query, name, database_option)


def print_answer_command(query: OpenQuery, name: str, database_option: str) -> None:
    command = format_command("answer", name, "--query", query.id)
    click.secho(f"to answer it: {command}{database_option}", dim=True, err=True)
