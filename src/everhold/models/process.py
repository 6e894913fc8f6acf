"""Command processes: started without a shell, and killed with all processes they started.

The group is killed, not the process alone: each command runs in a session of its own
(`start_new_session`), so that one `killpg` reaches everything it started.
"""

from __future__ import annotations

import asyncio
import shlex
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from everhold.errors import BadSetting
from everhold.portability import kill_process_group

T = TypeVar("T")

PATIENCE: Final = 5.0  # seconds to wait for a killed command to exit
STDERR_TIMEOUT: Final = 0.2  # seconds to read the stderr of a command that has exited


class OutputTooLarge(Exception):
    """A command wrote more than the limit and was killed."""


def split_command(command: str | Sequence[str], setting: str) -> list[str]:
    """Split a command into its arguments; raises `BadSetting` if it has none."""
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise BadSetting(setting, f"{command!r} is not a command: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise BadSetting(setting, "it is empty")
    return argv


async def start_command(argv: Sequence[str], stdout: int = PIPE) -> Process:
    """Start a command with pipes, in a process group of its own; raises `OSError`."""
    return await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=stdout, stderr=PIPE, start_new_session=True
    )


async def run_command(
    argv: Sequence[str], text: bytes, most: int, last: int
) -> tuple[int | None, bytes, bytes]:
    """Run a command with `text` as its input; returns exit code, stdout and the end of stderr.

    The command is killed on cancellation, and after more than `most` bytes of output
    (`OutputTooLarge`). Raises `OSError` if it cannot be run.
    """
    tail = bytearray()

    async def communicate(process: Process) -> bytes:
        reading = asyncio.create_task(_read_stderr(process, tail, last))
        writing = asyncio.create_task(_write_stdin(process, text))
        try:
            output = await _read_stdout(process, most)
            await reading
            await process.wait()
            return output
        finally:
            await _cancel_all(reading, writing)

    process, output = await _run(start_command(argv), communicate)
    # asyncio closes the transport only when all pipes have ended; a grandchild may hold one open.
    process._transport.close()  # type: ignore[attr-defined]
    return process.returncode, output, bytes(tail)


async def run_command_until_exit(
    argv: Sequence[str], text: bytes, most: int
) -> tuple[int | None, bytes]:
    """Run a command until it exits; returns its exit code and the end of its stderr.

    Processes it started may continue and keep its pipes open. On cancellation all are killed.
    Raises `OSError` if the command cannot be run.
    """
    tail = bytearray()

    async def communicate(process: Process) -> None:
        reading = asyncio.create_task(_read_stderr(process, tail, most))
        writing = asyncio.create_task(_write_stdin(process, text))
        try:
            await _poll_exit(process)
            await asyncio.wait([reading], timeout=STDERR_TIMEOUT)
        finally:
            await _cancel_all(reading, writing)

    process, _ = await _run(start_command(argv, DEVNULL), communicate)
    process._transport.close()  # type: ignore[attr-defined]
    return process.returncode, bytes(tail)


async def _run(
    start: Coroutine[Any, Any, Process], use: Callable[[Process], Awaitable[T]]
) -> tuple[Process, T]:
    starting = asyncio.create_task(start)
    try:
        # A cancelled create_subprocess_exec loses the process it has started: nobody could kill it.
        process = await wait_uncancelled(starting)
        return process, await use(process)
    except BaseException:
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            kill_process_group(starting.result())
            await wait_uncancelled(asyncio.create_task(wait_for_exit(starting.result())))
        raise


async def _poll_exit(process: Process) -> None:
    # On some Pythons `Process.wait` also waits until every holder of the pipes has closed them.
    wait = 0.005
    while process.returncode is None:
        await asyncio.sleep(wait)
        wait = min(wait * 2, 0.1)


async def _read_stdout(process: Process, most: int) -> bytes:
    assert process.stdout is not None
    output = bytearray()
    while chunk := await process.stdout.read(65536):
        output += chunk
        if len(output) > most:
            raise OutputTooLarge
    return bytes(output)


async def _read_stderr(process: Process, tail: bytearray, most: int) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(65536):
        tail += chunk
        del tail[:-most]


async def _write_stdin(process: Process, text: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # a command may close its input without reading it
        process.stdin.write(text)
        await process.stdin.drain()
        process.stdin.close()


async def _cancel_all(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def wait_uncancelled(task: asyncio.Task[T]) -> T:
    """Wait for a task even if cancelled; the cancellation is raised when the task is done."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


async def wait_for_exit(process: Process) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            await process.wait()
    except TimeoutError:  # a process that left the group still holds the pipes open
        pass
    finally:
        process._transport.close()  # type: ignore[attr-defined]
