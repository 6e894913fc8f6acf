"""Processes of commands: started without a shell, and ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from everhold.errors import BadSetting

T = TypeVar("T")

PATIENCE: Final = 5.0  # seconds for a killed command to be gone
STDERR_TIMEOUT: Final = 0.2  # seconds for what a command that has exited wrote before


class OutputTooLarge(Exception):
    """A command wrote more than anybody wants to read, and was ended."""


def split_command(command: str | Sequence[str], setting: str) -> list[str]:
    """A command's words; raises `BadSetting` if there are none."""
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise BadSetting(setting, f"{command!r} is not a command: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise BadSetting(setting, "it is empty")
    return argv


async def start_command(argv: Sequence[str], stdout: int = PIPE) -> Process:
    """A command with pipes to it, in a group of its own; raises `OSError`."""
    return await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=stdout, stderr=PIPE, start_new_session=True
    )


async def run_command(
    argv: Sequence[str], text: bytes, most: int, last: int
) -> tuple[int | None, bytes, bytes]:
    """Run a command to its end: its exit code, what it wrote, and the last it complained of.

    If this is cancelled, or if it writes more than `most` bytes, which is a `OutputTooLarge`, the
    command is killed. Raises `OSError` if it cannot be run.
    """
    tail = bytearray()

    async def heard(process: Process) -> bytes:
        hearing = asyncio.create_task(_hear(process, tail, last))
        feeding = asyncio.create_task(_feed(process, text))
        try:
            said = await _read(process, most)
            await hearing
            await process.wait()
            return said
        finally:
            await _leave(hearing, feeding)

    process, said = await _run(start_command(argv), heard)
    process._transport.close()  # type: ignore[attr-defined]
    return process.returncode, said, bytes(tail)


async def run_command_until_exit(
    argv: Sequence[str], text: bytes, most: int
) -> tuple[int | None, bytes]:
    """Run a command until it exits: its exit code, and the last it complained of. If this is
    cancelled, it is killed.

    What it started may go on, and keep its pipes. Raises `OSError` if it cannot be run.
    """
    tail = bytearray()

    async def watched(process: Process) -> None:
        hearing = asyncio.create_task(_hear(process, tail, most))
        feeding = asyncio.create_task(_feed(process, text))
        try:
            await _exit(process)
            await asyncio.wait([hearing], timeout=STDERR_TIMEOUT)
        finally:
            await _leave(hearing, feeding)

    process, _ = await _run(start_command(argv, DEVNULL), watched)
    process._transport.close()  # type: ignore[attr-defined]
    return process.returncode, bytes(tail)


async def _run(
    start: Coroutine[Any, Any, Process], use: Callable[[Process], Awaitable[T]]
) -> tuple[Process, T]:
    starting = asyncio.create_task(start)
    try:
        # asyncio cannot be stopped cleanly in the middle of a start
        process = await wait_uncancelled(starting)
        return process, await use(process)
    except BaseException:
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            kill_process_group(starting.result())
            await wait_uncancelled(asyncio.create_task(wait_for_exit(starting.result())))
        raise


async def _exit(process: Process) -> None:
    """Wait for its end, and not, as `Process.wait` of some Pythons does, for that of everybody who
    has its pipes.
    """
    wait = 0.005
    while process.returncode is None:
        await asyncio.sleep(wait)
        wait = min(wait * 2, 0.1)


async def _read(process: Process, most: int) -> bytes:
    """All that it says."""
    assert process.stdout is not None
    said = bytearray()
    while words := await process.stdout.read(65536):
        said += words
        if len(said) > most:
            raise OutputTooLarge
    return bytes(said)


async def _hear(process: Process, tail: bytearray, most: int) -> None:
    assert process.stderr is not None
    while words := await process.stderr.read(65536):
        tail += words
        del tail[:-most]


async def _feed(process: Process, text: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it need not listen
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()


async def _leave(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_uncancelled(task: asyncio.Task[T]) -> T:
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


def kill_process_group(process: Process) -> None:
    """End the command and all it started, also where only the latter are left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


async def wait_for_exit(process: Process) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:  # a process that left the group still holds the pipes
        pass
    finally:
        process._transport.close()  # type: ignore[attr-defined]
