"""Answers from a command: the question on its standard input, the answer on its standard output.

    everhold.Command("claude -p")      everhold.Command(["llm", "-m", "small model"], at_once=2, timeout=60)

There is no shell in between. The command gets the system text, an empty line and the prompt; where the answer
has a schema, also that. Trailing newlines of the answer are dropped, as a shell does.

Rules
  1. It answers `llm` queries and nothing else.
  2. At most `at_once` of them run at the same time in one event loop.
  3. On a timeout, or when cancelled, the command is killed with all the processes it started.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from everhold.answerers.real import refuse_in_tests
from everhold.answerers.right import MODEL, refuse_others
from everhold.core.codec import JSON, dumps
from everhold.core.errors import AnswerFailed, BadSetting
from everhold.core.query import Query

T = TypeVar("T")

_TAIL: Final = 2000  # characters of stderr worth keeping
_PATIENCE: Final = 5.0  # seconds for a killed command to be gone


class Command:
    kinds = MODEL

    def __init__(self, command: str | Sequence[str], *, at_once: int = 4, timeout: float | None = 600.0) -> None:
        self.argv = _split(command)
        if at_once < 1:
            raise BadSetting("at_once", f"it should be at least 1, got {at_once}")
        if timeout is not None and not timeout > 0:
            raise BadSetting("timeout", f"it should be more than 0 seconds, or None, got {timeout}")
        self.at_once, self.timeout = at_once, timeout
        # A semaphore belongs to one event loop, and one command may serve several.
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"Command({shlex.join(self.argv)!r})"

    def check(self) -> None:
        """Raise `BadSetting` if there is no such command here, or where a test runs."""
        refuse_in_tests(repr(self))
        if shutil.which(self.argv[0]) is None:
            raise BadSetting("answer_with", f"there is no command {self.argv[0]!r} here that can be run")

    async def answer(self, query: Query, session_id: str) -> str:
        refuse_others(self.kinds, query)
        refuse_in_tests(repr(self))
        text = question(query).encode()
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(self.at_once)):
            starting = asyncio.create_task(self._started())
            try:
                process = await _finished(starting)  # asyncio cannot be stopped cleanly in the middle of a start
                async with asyncio.timeout(self.timeout):
                    said, complaint = await process.communicate(text)
            except (Exception, asyncio.CancelledError) as error:
                if starting.exception() is None:
                    _kill(starting.result())
                    await _finished(asyncio.create_task(_gone(starting.result())))
                if isinstance(error, TimeoutError):
                    raise AnswerFailed(f"{self.argv[0]} gave no answer in {self.timeout:g} s", "timeout") from None
                raise
        return self._read(process.returncode, said, complaint)

    async def _started(self) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self.argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except OSError as error:
            self.check()
            raise BadSetting("answer_with", f"{self.argv[0]!r} cannot be run: {error.strerror}") from None

    def _read(self, code: int | None, said: bytes, complaint: bytes) -> str:
        if code:
            how = f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            tail = complaint.decode(errors="replace").strip()[-_TAIL:]
            raise AnswerFailed(f"{self.argv[0]} {how}" + (f": {tail}" if tail else ""), "command_failed")
        try:
            return said.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise AnswerFailed(f"{self.argv[0]} wrote what is not UTF-8: {error}", "not_text") from None


def question(query: Query) -> str:
    """All that a model needs to know, as one text."""
    parts = [query.system or "", query.prompt, *(_message(message) for message in query.messages or ())]
    if query.schema is not None and query.schema.get("type") != "string":
        parts.append(f"Answer with JSON only, and nothing around it. It must fit this schema:\n{dumps(query.schema)}")
    return "\n\n".join(part for part in parts if part)


def _message(message: JSON) -> str:
    return f"{message['role']}: {_text(message['content'])}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if "text" not in part:
            raise AnswerFailed(
                f"a command takes text, and a message holds {part.get('type', 'something else')}", "not_text"
            )
    return "\n".join(part["text"] for part in content)


def _split(command: str | Sequence[str]) -> list[str]:
    try:
        argv = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise BadSetting("answer_with", f"{command!r} is not a command: {str(error).lower()}") from None
    if not argv or not argv[0]:
        raise BadSetting("answer_with", "it is empty")
    return argv


async def _finished(task: asyncio.Task[T]) -> T:
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


def _kill(process: Process) -> None:
    """End the command and all it started, also where only the latter are left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


async def _gone(process: Process) -> None:
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except TimeoutError:  # a process that left the group still holds the pipes
        pass
    finally:
        process._transport.close()  # type: ignore[attr-defined]
