"""Processes of commands: started without a shell, and ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Final, TypeVar

from everhold.core.errors import BadSetting

T = TypeVar("T")

PATIENCE: Final = 5.0  # seconds for a killed command to be gone


def split(command: str | Sequence[str], setting: str) -> list[str]:
    """A command's words; raises `BadSetting` if there are none."""
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise BadSetting(setting, f"{command!r} is not a command: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise BadSetting(setting, "it is empty")
    return argv


async def started(argv: Sequence[str]) -> Process:
    """A command with pipes to it, in a group of its own; raises `OSError`."""
    return await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)


async def conversed(argv: Sequence[str], text: bytes) -> tuple[int | None, bytes, bytes]:
    """Run a command to its end: its exit code, and what it wrote. If this is cancelled, the command is killed.

    Raises `OSError` if it cannot be run.
    """
    starting = asyncio.create_task(started(argv))
    try:
        process = await finished(starting)  # asyncio cannot be stopped cleanly in the middle of a start
        said, complaint = await process.communicate(text)
    except BaseException:
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            kill(starting.result())
            await finished(asyncio.create_task(gone(starting.result())))
        raise
    return process.returncode, said, complaint


async def finished(task: asyncio.Task[T]) -> T:
    """Wait for the end of a task through any cancellation, and only then be cancelled."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def kill(process: Process) -> None:
    """End the command and all it started, also where only the latter are left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


async def gone(process: Process) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:  # a process that left the group still holds the pipes
        pass
    finally:
        process._transport.close()  # type: ignore[attr-defined]
