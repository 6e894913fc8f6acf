"""`everhold worker`: a process that works for the sessions of a database until it is told to
stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.context import SHORT_ID_LENGTH, resolve_program
from everhold.cli.options import (
    AnswerOptions,
    Duration,
    add_answer_options,
    add_common_options,
    make_usage_error,
    parse_pairs,
)
from everhold.cli.output import format_count, format_line, print_json, strip_controls
from everhold.core.observer import Observer
from everhold.errors import BadSetting
from everhold.portability import on_stop_signals, restore_stop_signals
from everhold.ports.program import set_signals_handled
from everhold.wire import ExitCode

if TYPE_CHECKING:
    from everhold.core.metrics import Metrics
    from everhold.movers import Limits, Worker, WorkerEvent
    from everhold.runtime import Runtime


#: Characters of a session's name that are shown.
MAX_NAME_LENGTH: Final = 40
#: Seconds that people may take to be told, with --once and without --for.
GRACE: Final = 5.0


@click.command("worker")
@click.argument("programs", nargs=-1, metavar="[PROGRAM]...")
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="How many sessions it drives at once; 16 by default.",
)
@click.option(
    "--once", is_flag=True, help="Do what is due, then leave; exit code 11 if work is left."
)
@click.option(
    "--for",
    "within",
    type=Duration(),
    metavar="TIME",
    help="With --once: leave after this time at the latest.",
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="At most N jobs at once: session=N, program.NAME=N, tool.NAME=N, tool.llm=N; may be"
    " repeated.",
)
@click.option(
    "--lease-ttl",
    type=Duration(),
    metavar="TIME",
    help="After how long others take over if it dies; 10s.",
)
@click.option(
    "--grace",
    type=Duration(),
    metavar="TIME",
    help="How long work under way may take when it stops; 10s.",
)
@click.option(
    "--poll",
    type=Duration(),
    metavar="TIME",
    help="Look this often at least, also if nothing is heard.",
)
@click.option(
    "--adopt-parked",
    is_flag=True,
    help="Also answer open model questions of sessions made before everhold recorded who answers"
    " them.",
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
    who: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Drive the sessions that can go on; take over from the dead.

    It works for the PROGRAMs that are named, or for all it finds. Start as many as you like on one
    database. SIGTERM or Ctrl-C: it claims nothing more, lets running calls get to their commit,
    hands over, and exits with 0.

    With --once the exit code is 0 if nothing is left to do now, and 11 if a session can go on or a
    person could be told of a question. With --json each event is a line.
    """
    if within is not None and not once:
        raise make_usage_error("--for says how long --once may take; it needs --once")
    wanted = {
        "concurrency": concurrency,
        "limits": _limits(limits),
        "ttl": lease_ttl,
        "grace": grace,
        "poll": poll,
        "adopt_parked": adopt_parked or None,
        "programs": _references(database, programs),
    }
    llm = who.llm(database)
    voice = WorkerOutput(as_json)
    with voice.hearing_warnings():
        return asyncio.run(_work(database, llm, wanted, voice, once=once, within=within))


async def _work(
    database: str | None,
    llm: Any,
    wanted: dict[str, Any],
    voice: WorkerOutput,
    *,
    once: bool,
    within: float | None,
) -> int:
    import everhold
    from everhold.engine.arguments import UNSET

    async with everhold.open(
        database, llm=UNSET if llm is None else llm, observers=[voice], recover=False
    ) as runtime:
        voice.runtime = runtime
        worker = runtime.workers.worker(tell=voice.told, **wanted)
        with _hearing_signals(worker):
            voice.say("opened", f"working on {runtime.database}", database=runtime.database)
            code = (
                await _until_left(runtime, worker, voice, within)
                if once
                else await _until_stopped(worker)
            )
    if voice.gave_up:
        _leave_threads(code)
    return code


async def _until_stopped(worker: Worker) -> int:
    await worker.run()
    return ExitCode.OK


async def _until_left(
    runtime: Runtime, worker: Worker, voice: WorkerOutput, within: float | None
) -> int:
    began = time.monotonic()
    left = await worker.once(within)
    rest = GRACE if within is None else max(0.0, within - (time.monotonic() - began))
    untold = await runtime.notifications.flush(rest)
    due = await runtime.store.next_due()
    voice.say(
        "done", _left(left, untold), left=left, untold=untold, moved=worker.moved, next_due=due
    )
    return ExitCode.LEFT if left or untold else ExitCode.OK


def _left(sessions: int, untold: int) -> str:
    words = [f"{format_count(sessions, 'session')} can go on"] if sessions else []
    words += [f"{format_count(untold, 'question')} to tell people of"] if untold else []
    return ", ".join(words) or "nothing is left to do now"


def _leave_threads(code: int) -> None:
    """End the process now: a call that was given up may be in a thread, for which Python would
    wait.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _hearing_signals(worker: Worker) -> Iterator[None]:
    """Stop on the first signal; the second one has its usual effect."""
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


def _references(database: str | None, names: tuple[str, ...]) -> list[str]:
    return [resolve_program(database, name).ref for name in names]


def _limits(words: tuple[str, ...]) -> Limits | None:
    """Limits as they are written on the command line; None if there are none."""
    from everhold.movers import Limits

    tables: dict[str, dict[str, int]] = {"program": {}, "tool": {}}
    session = None
    for name, text in parse_pairs(words, "--limit").items():
        kind, _, what = name.partition(".")
        if not (text.isascii() and text.isdigit()):
            raise BadSetting("--limit", f"{text!r} is not a number of jobs; it is 1 or more")
        most = int(text)
        if name == "session":
            session = most
        elif what and kind in tables:
            tables[kind][what] = most
        else:
            raise BadSetting("--limit", f"{name!r} is none of session, program.NAME and tool.NAME")
    return Limits(session=session, **tables) if words else None


class WorkerOutput(Observer):
    """Prints one line for each event worth knowing, or one JSON document."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._heard = True
        self.gave_up = False  # whether calls did not end in time
        self.runtime: Runtime | None = None  # whose sessions these are

    def say(
        self, event: str, text: str, session_id: str | None = None, name: str = "", **facts: Any
    ) -> None:
        """Print it; where nobody reads any more, the work goes on in silence."""
        if self._heard:
            try:
                self._print(event, text, session_id, name or self._name(session_id), facts)
            except OSError:
                self._heard = False

    def _print(
        self, event: str, text: str, session_id: str | None, name: str, facts: dict[str, Any]
    ) -> None:
        if self._as_json:
            named = (
                {}
                if session_id is None
                else {"session_id": session_id, **({"name": name} if name else {})}
            )
            return print_json(
                {"at": round(time.time(), 3), "event": event, "text": text, **named, **facts}
            )
        who = ""
        if session_id is not None:
            shown = format_line(strip_controls(name), MAX_NAME_LENGTH)
            who = f"{shown or session_id[:SHORT_ID_LENGTH]} "
        click.echo(f"{event:<9} {who}{format_line(strip_controls(text))}".rstrip())
        return None

    def _name(self, session_id: str | None) -> str:
        """What people call a session that is in memory: its key, or its title."""
        if session_id is None or self.runtime is None:
            return ""
        live = self.runtime.engine.sessions.cached(session_id)
        return "" if live is None else live.birth.key or live.birth.title

    def told(self, one: WorkerEvent) -> None:
        self.gave_up = self.gave_up or one.event == "gave_up"
        self.say(one.event, one.text, one.session_id, one.name)

    def completed(self, session_id: str, value: Any, metrics: Metrics) -> None:
        self.say("completed", "", session_id)

    def failed(self, session_id: str, error: str, metrics: Metrics) -> None:
        self.say("failed", error, session_id)

    def cancelled(self, session_id: str, reason: str, metrics: Metrics) -> None:
        self.say("cancelled", reason, session_id)

    @contextmanager
    def hearing_warnings(self) -> Iterator[None]:
        """Tell what is logged as a warning, such as that a store has to be polled, as everything
        else.
        """
        log = logging.getLogger("everhold")
        handler = _Handler(self)
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, voice: WorkerOutput) -> None:
        super().__init__(logging.WARNING)
        self._voice = voice

    def emit(self, record: logging.LogRecord) -> None:
        self._voice.say("warning", self.format(record))
