"""`everhold worker`: a process that moves the sessions of a database until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.candidates import complete_programs
from everhold.cli.context import SHORT_ID_LENGTH, resolve_program
from everhold.cli.options import (
    AnswerOptions,
    Duration,
    add_answer_options,
    add_common_options,
    make_usage_error,
    parse_pairs,
)
from everhold.cli.output import (
    format_count,
    format_failed_attempt,
    format_line,
    print_exception,
    print_json,
    strip_controls,
)
from everhold.core.observer import Observer
from everhold.core.query import HOOK_CALL, Kind
from everhold.errors import BadSetting
from everhold.portability import on_stop_signals, restore_stop_signals
from everhold.ports.program import set_signals_handled
from everhold.ports.script_end import leave_threads
from everhold.shell_command import add_database_option
from everhold.wire import ExitCode, exception_json

if TYPE_CHECKING:
    from everhold.core.metrics import Metrics
    from everhold.core.query import FailedAttempt, Query, QueryAnswer
    from everhold.core.usage import TokenCost
    from everhold.exception_info import ExceptionInfo
    from everhold.movers import Limits, Worker, WorkerEvent
    from everhold.runtime import Runtime


#: Characters of a session's name that are shown.
MAX_NAME_LENGTH: Final = 40
#: Seconds for sending notifications, with --once and without --for.
NOTIFY_SECONDS: Final = 5.0


@click.command("worker")
@click.argument("programs", nargs=-1, metavar="[PROGRAM]...", shell_complete=complete_programs)
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="How many sessions it moves at the same time. Default: 16.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Do what can be done now, then exit: with code 11 if work is left, with 12 if only work is"
    " left that this worker cannot do.",
)
@click.option(
    "--for",
    "within",
    type=Duration(),
    metavar="TIME",
    help="With --once: exit after this time at the latest.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="A concurrency limit: session=N, program.NAME=N, tool.NAME=N or tool.llm=N. May be"
    " repeated.",
)
@click.option(
    "--lease-ttl",
    type=Duration(),
    metavar="TIME",
    help="After how long other workers claim its sessions if it dies. Default: 10s.",
)
@click.option(
    "--grace",
    type=Duration(),
    metavar="TIME",
    help="How long running calls may take when it stops. Default: 10s.",
)
@click.option(
    "--poll",
    type=Duration(),
    metavar="TIME",
    help="How often to look for work at least, also without a notification.",
)
@click.option(
    "--adopt-parked",
    is_flag=True,
    help="Also answer open model questions of old sessions, for which no answerer was recorded.",
)
@add_answer_options
@add_common_options
def worker_(
    programs: tuple[str, ...],
    concurrency: int | None,
    once: bool,
    within: float | None,
    limits: tuple[str, ...],
    lease_ttl: float | None,
    grace: float | None,
    poll: float | None,
    adopt_parked: bool,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Start a worker: it moves the sessions of a database.

    It claims sessions that can move, also those of a worker that died. It serves the PROGRAMs that
    you name, or all that it finds. Start as many workers as you like on one database. On SIGTERM or
    Ctrl-C it claims nothing more, lets running calls end, releases its sessions, and exits with 0.

    With --once the exit code is 0 if nothing is left to do now, 11 if a session can move or a
    notification is not yet sent, and 12 if only sessions are left that this worker cannot move,
    because it does not have their program or model. It names each of them once, with the reason.
    With --json, each event is a line.

    \b
    everhold worker --model anthropic:claude-sonnet-4-6 --concurrency 32
    everhold worker shop.py:refund --once --for 50s
    """
    if within is not None and not once:
        raise make_usage_error("--for needs --once")
    wanted = {
        "concurrency": concurrency,
        "limits": parse_limits(limits),
        "ttl": lease_ttl,
        "grace": grace,
        "poll": poll,
        "adopt_parked": adopt_parked or None,
        "programs": _resolve_references(database, programs),
    }
    llm = answerer.llm(database)
    output = WorkerOutput(as_json)
    with output.log_warnings():
        return asyncio.run(_work(database, llm, wanted, output, once=once, within=within))


async def _work(
    database: str | None,
    llm: Any,
    wanted: dict[str, Any],
    output: WorkerOutput,
    *,
    once: bool,
    within: float | None,
) -> int:
    import everhold
    from everhold.engine.arguments import UNSET

    async with everhold.open(
        database, llm=UNSET if llm is None else llm, observers=[output], recover=False
    ) as runtime:
        output.runtime = runtime
        worker = output.worker = runtime.workers.worker(tell=output.print_worker_event, **wanted)
        with _handle_signals(worker):
            output.print_event("opened", runtime.database, database=runtime.database)
            code = (
                await _run_once(runtime, worker, output, within)
                if once
                else await _run_until_stopped(worker)
            )
    if output.gave_up:
        leave_threads(code)
    return code


async def _run_until_stopped(worker: Worker) -> int:
    await worker.run()
    return ExitCode.OK


async def _run_once(
    runtime: Runtime, worker: Worker, output: WorkerOutput, within: float | None
) -> int:
    began = time.monotonic()
    left = await worker.once(within)
    rest = NOTIFY_SECONDS if within is None else max(0.0, within - (time.monotonic() - began))
    unsent = await runtime.notifications.flush(rest)
    due = await runtime.store.next_due()
    parts = [f"{format_count(left, 'session')} can move"] if left else []
    parts += [f"{format_count(unsent, 'notification')} to send"] if unsent else []
    cannot = worker.cannot
    parts += [f"{format_count(cannot, 'session')} cannot move here"] if cannot else []
    output.print_event(
        "done",
        ", ".join(parts) or "nothing is left to do now",
        left=left,
        untold=unsent,
        cannot=cannot,
        **output.count_work(),
        next_due=due,
    )
    if left or unsent:
        return ExitCode.LEFT
    return ExitCode.CANNOT if cannot else ExitCode.OK


@contextmanager
def _handle_signals(worker: Worker) -> Iterator[None]:
    """Stops the worker on the first signal; the second one has its usual effect."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        restore_stop_signals(loop)
        set_signals_handled(False)
        worker.stop()

    on_stop_signals(loop, stop)
    set_signals_handled()
    try:
        yield
    finally:
        set_signals_handled(False)


def _resolve_references(database: str | None, names: tuple[str, ...]) -> list[str]:
    return [resolve_program(database, name).ref for name in names]


def parse_limits(words: tuple[str, ...]) -> Limits | None:
    """The concurrency limits of `--limit`; None if there are none."""
    from everhold.movers import Limits

    tables: dict[str, dict[str, int]] = {"program": {}, "tool": {}}
    session = None
    for name, text in parse_pairs(words, "--limit").items():
        kind, _, what = name.partition(".")
        if not (text.isascii() and text.isdigit()):
            raise BadSetting("--limit", f"{text!r} is not a number; the least is 1")
        most = int(text)
        if name == "session":
            session = most
        elif what and kind in tables:
            tables[kind][what] = most
        else:
            raise BadSetting("--limit", f"{name!r} is not session, program.NAME or tool.NAME")
    return Limits(session=session, **tables) if words else None


_WORK: Final = {
    "moved": "move",
    "turns": "turn",
    "model_calls": "model call",
    "tool_calls": "tool call",
    "calls": "call",
}


class WorkerOutput(Observer):
    """Prints each event on a line, as text or JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._has_reader = True
        self.gave_up = False  # whether calls did not end in time
        self.runtime: Runtime | None = None  # for the names of its sessions
        self.worker: Worker | None = None
        self._answers = Counter[Kind]()  # recorded answers, by the kind of their question

    def print_event(
        self, event: str, text: str, session_id: str | None = None, name: str = "", **facts: Any
    ) -> None:
        """Prints an event. The worker continues silently if standard output was closed."""
        if self._has_reader:
            try:
                self._print(event, text, session_id, name or self._name(session_id), facts)
            except OSError:
                self._has_reader = False

    def _print(
        self, event: str, text: str, session_id: str | None, name: str, facts: dict[str, Any]
    ) -> None:
        exception: ExceptionInfo | None = facts.pop("exception", None)
        if self._as_json:
            facts |= exception_json(exception)
            named = (
                {}
                if session_id is None
                else {"session_id": session_id, **({"name": name} if name else {})}
            )
            return print_json(
                {"at": round(time.time(), 3), "event": event, "text": text, **named, **facts}
            )
        shown_name = ""
        if session_id is not None:
            shown = format_line(strip_controls(name), MAX_NAME_LENGTH)
            shown_name = f"{shown or session_id[:SHORT_ID_LENGTH]} "
        click.echo(f"{event:<9} {shown_name}{format_line(strip_controls(text))}".rstrip())
        print_exception(exception, indent=" " * 10)
        return None

    def _name(self, session_id: str | None) -> str:
        """The key or the title of a session that is in memory."""
        if session_id is None or self.runtime is None:
            return ""
        live = self.runtime.engine.sessions.cached(session_id)
        return "" if live is None else live.birth.key or live.birth.title

    def print_worker_event(self, one: WorkerEvent) -> None:
        self.gave_up = self.gave_up or one.event == "gave_up"
        if one.event == "stopped":
            work = self.count_work()
            shown = [
                format_count(number, _WORK[name])
                for name, number in work.items()
                if number or name == "moved"
            ]
            self.print_event("stopped", f"{', '.join(shown)}; everything is handed over", **work)
        else:
            told = {} if one.exception is None else {"exception": one.exception}
            option = "" if self.runtime is None else self.runtime.database_option
            text = add_database_option(one.text, option)
            self.print_event(one.event, text, one.session_id, one.name, **told)

    def count_work(self) -> dict[str, Any]:
        """What was done until now: moves, turns of agents, model calls, tool calls and calls."""
        worker = self.worker
        return {
            "moved": 0 if worker is None else worker.moved,
            "turns": 0 if worker is None else worker.turns,
            "model_calls": self._answers[Kind.LLM],
            "tool_calls": self._answers[Kind.TOOL],
            "calls": self._answers[Kind.CALL],
        }

    def answered(
        self, session_id: str, query: Query, answer: QueryAnswer, usage: TokenCost | None
    ) -> None:
        from everhold.agents.events import is_tool_call, is_unfinished

        kind = query.kind
        if kind is Kind.CALL:
            if query.name.startswith(HOOK_CALL) or is_unfinished(answer):
                return
            if is_tool_call(query):
                kind = Kind.TOOL
        self._answers[kind] += 1

    def attempt_failed(self, session_id: str, query: Query, failed: FailedAttempt) -> None:
        self.print_event(
            "retrying",
            format_failed_attempt(query, failed),
            session_id,
            query_id=query.id,
            attempt=failed.number,
            next_at=round(failed.next_at, 3),
        )

    def completed(self, session_id: str, value: Any, metrics: Metrics) -> None:
        self.print_event("completed", "", session_id)

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        self.print_event("failed", error, session_id)

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        self.print_event("cancelled", reason, session_id)

    @contextmanager
    def log_warnings(self) -> Iterator[None]:
        """Prints logged warnings as events, such as that a store must be polled."""
        log = logging.getLogger("everhold")
        handler = _WarningHandler(self)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


class _WarningHandler(logging.Handler):
    def __init__(self, output: WorkerOutput) -> None:
        super().__init__(logging.WARNING)
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.print_event("warning", self.format(record))
