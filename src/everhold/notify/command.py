"""Notifies by a command: the question as JSON on standard input. Exit code 0 means delivered.

The command runs without a shell. On a timeout it is killed with all its child processes; after a
normal exit, children may keep running. If it fails, the end of its standard error is recorded.
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

_TAIL: Final = 200  # characters of standard error in an error


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
            code, stderr = await run_command_until_exit(self._argv, message, 4 * _TAIL)
        except OSError as error:
            raise NotificationFailed(
                f"{PurePath(self._argv[0]).name} cannot be run: {error.strerror}"
            ) from None
        if code:
            how = (
                f"exited with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
            )
            tail = stderr.decode(errors="replace").strip()[-_TAIL:]
            raise NotificationFailed(f"the command {how}" + (f": {tail}" if tail else ""))
