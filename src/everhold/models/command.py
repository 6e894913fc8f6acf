"""A command as a model: it reads the prompt from standard input and prints the answer.

    everhold.CommandModel("claude -p")
    everhold.CommandModel(["llm", "-m", "small model"], at_once=2, timeout=60)

The command runs without a shell. Its input is the system text, an empty line and the prompt, then
the answer's schema if there is one. Trailing newlines of the output are removed.

Rules
  1. It answers `llm` queries only.
  2. At most `at_once` commands run at the same time in one event loop.
  3. After a timeout, on cancellation, or after more than `MAX_ANSWER_BYTES` of output, the command
     and all processes it started are killed.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from everhold.core.codec import dumps
from everhold.core.query import MODEL_KINDS, Query, refuse_other_kinds
from everhold.core.schema import PositiveInt, PositiveSeconds, describe_misfit
from everhold.core.unknown_names import checks_keywords
from everhold.errors import AnswerFailed, BadSetting
from everhold.models.process import OutputTooLarge, run_command, split_command
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answerer

#: The longest answer that is accepted, in bytes.
MAX_ANSWER_BYTES: Final = 8 * 2**20
_STDERR_TAIL: Final = 2000  # characters of stderr in an error message


class CommandModel(Answerer):
    """A command as a model: the prompt is its standard input, the answer its standard output."""

    kinds = MODEL_KINDS

    @checks_keywords("CommandModel")
    def __init__(
        self, command: str | Sequence[str], *, at_once: int = 4, timeout: float | None = 600.0
    ) -> None:
        self.argv = split_command(command, "answer_with")
        if misfit := describe_misfit(at_once, PositiveInt):
            raise BadSetting("at_once", misfit)
        if timeout is not None and (misfit := describe_misfit(timeout, PositiveSeconds)):
            raise BadSetting("timeout", misfit)
        self.at_once = at_once
        self.timeout = timeout
        # A semaphore belongs to one event loop, and a CommandModel may be used on several.
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"CommandModel({shlex.join(self.argv)!r})"

    def check(self) -> None:
        """Raise `BadSetting` if the command is not found, or if a test refuses real models."""
        refuse_in_tests(repr(self))
        if shutil.which(self.argv[0]) is None:
            raise BadSetting(
                "answer_with", f"command {self.argv[0]!r} was not found, or is not executable"
            )

    async def answer(self, query: Query, session_id: str) -> str:
        refuse_other_kinds(self.kinds, query)
        refuse_in_tests(repr(self))
        text = format_model_prompt(query).encode()
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(self.at_once)):
            try:
                async with asyncio.timeout(self.timeout):
                    code, output, stderr = await run_command(
                        self.argv, text, MAX_ANSWER_BYTES, 4 * _STDERR_TAIL
                    )
            except OutputTooLarge:
                raise AnswerFailed(
                    f"{self.argv[0]} wrote more than {MAX_ANSWER_BYTES:,} bytes", "too_large"
                ) from None
            except TimeoutError:
                raise AnswerFailed(
                    f"{self.argv[0]} did not answer within {self.timeout:g} s", "timeout"
                ) from None
            except OSError as error:
                self.check()
                raise BadSetting(
                    "answer_with", f"command {self.argv[0]!r} cannot be run: {error.strerror}"
                ) from None
        return self._read_output(code, output, stderr)

    def _read_output(self, code: int | None, output: bytes, stderr: bytes) -> str:
        if code:
            how = (
                f"exited with {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
            )
            tail = stderr.decode(errors="replace").strip()[-_STDERR_TAIL:]
            raise AnswerFailed(
                f"{self.argv[0]} {how}" + (f": {tail}" if tail else ""), "command_failed"
            )
        try:
            return output.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise AnswerFailed(
                f"{self.argv[0]} wrote output that is not UTF-8: {error}", "not_text"
            ) from None


def format_model_prompt(query: Query) -> str:
    """A query as one text: system text, messages, prompt, and the schema of the answer."""
    parts = [
        query.system or "",
        query.prompt,
        *(
            f"{message['role']}: {_join_text(message['content'])}"
            for message in query.messages or ()
        ),
    ]
    if query.schema is not None and query.schema.get("type") != "string":
        parts.append(
            "Answer with JSON only, without any other text. It must match this"
            f" schema:\n{dumps(query.schema)}"
        )
    return "\n\n".join(part for part in parts if part)


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if "text" not in part:
            raise AnswerFailed(
                "a command accepts only text, but a message contains"
                f" {part.get('type', 'another kind of content')}",
                "not_text",
            )
    return "\n".join(part["text"] for part in content)
