"""A progress bar for the session of a command: what its program reports with `ctx.progress`; and a
line for each attempt that failed and is followed by another.

The reports of this process come as events, those of other processes with the status, which the
command reads again and again while it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from everhold.cli.output import ProgressBar, format_failed_attempt, format_line, show_progress
from everhold.core.observer import Observer
from everhold.core.progress import Progress

if TYPE_CHECKING:
    from everhold.core.query import FailedAttempt, Query
    from everhold.core.session import Birth
    from everhold.runtime import Runtime

#: Characters of the message behind the bar.
MAX_MESSAGE_LENGTH = 60


class SessionBar(Observer):
    """Shows the newest progress of one session on standard error. Hidden until there is any."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = None  # set when it is open
        self._is_wanted: Callable[[Birth], bool] = lambda birth: False
        self._lock = threading.Lock()  # reports come from the thread of the runtime
        self._open = ExitStack()
        self._bar: ProgressBar | None = None

    def follow(self, is_wanted: Callable[[Birth], bool]) -> None:
        """From now on, show the reports of this session."""
        self._is_wanted = is_wanted

    def progressed(self, session_id: str, progress: Progress) -> None:
        live = None if self.runtime is None else self.runtime.engine.sessions.cached(session_id)
        if live is not None and self._is_wanted(live.birth):
            self.show(progress)

    def attempt_failed(self, session_id: str, query: Query, failed: FailedAttempt) -> None:
        live = None if self.runtime is None else self.runtime.engine.sessions.cached(session_id)
        if live is not None and self._is_wanted(live.birth):
            self.hide()
            click.secho(format_failed_attempt(query, failed), dim=True, err=True)

    def show(self, progress: Progress) -> None:
        """Move the bar; the first call makes it."""
        with self._lock:
            if self._bar is None:
                self._bar = self._open.enter_context(show_progress("progress"))
            if self._bar is not None:
                note = format_line(progress.message or "", MAX_MESSAGE_LENGTH)
                count = f"{progress.step}/{progress.total}" if progress.total else progress.step
                self._bar(progress.step, progress.total, f"{count} {note}".rstrip())

    def hide(self) -> None:
        """Remove the bar, so that something else can be printed. The next report shows it again."""
        with self._lock:
            self._bar = None
            self._open.close()
