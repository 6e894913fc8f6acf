"""Telling by a command: the question as JSON on its standard input; it has told if it exits with 0.

There is no shell in between. On a timeout the command is killed with all the processes it started;
when it has exited, what it started may go on. What it writes is kept only if it fails: the last
words of its standard error.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Final

from everhold.models.process import run_command_until_exit, split_command
from everhold.notify.filter import TIMEOUT, NotifierBase, make_notifier_name
from everhold.notify.outbox import NotificationFailed

_TAIL: Final = 200  # characters of a complaint worth keeping


class ByCommand(NotifierBase):
    """Notifies by a command, which reads the notification as JSON from its standard input."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        name: str | None = None,
        kinds: Iterable[str] = (),
        to: Iterable[str] = (),
        timeout: float = TIMEOUT,
        max_age: float | None = None,
    ) -> None:
        self._argv = split_command(command, "command")
        own = (
            make_notifier_name(PurePath(self._argv[0]).name, shlex.join(self._argv))
            if name is None
            else name
        )
        super().__init__(own, kinds, to, timeout, max_age)

    async def tell(self, id: str, message: bytes, now: float) -> None:
        try:
            code, complaint = await run_command_until_exit(self._argv, message, 4 * _TAIL)
        except OSError as error:
            raise NotificationFailed(
                f"{PurePath(self._argv[0]).name} cannot be run: {error.strerror}"
            ) from None
        if code:
            how = (
                f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            )
            tail = complaint.decode(errors="replace").strip()[-_TAIL:]
            raise NotificationFailed(f"it {how}" + (f": {tail}" if tail else ""))
