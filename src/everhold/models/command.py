"""Answers from a command: the question on its standard input, the answer on its standard output.

    everhold.CommandModel("claude -p")      everhold.CommandModel(["llm", "-m", "small model"], at_once=2, timeout=60)

There is no shell in between. The command gets the system text, an empty line and the prompt; where
the answer has a schema, also that. Trailing newlines of the answer are dropped, as a shell does.

Rules
  1. It answers `llm` queries and nothing else.
  2. At most `at_once` of them run at the same time in one event loop.
  3. On a timeout, when cancelled, or when it writes more than `MAX_ANSWER_BYTES` bytes, the command
     is killed with all the processes it started.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from everhold.core.codec import JSON, dumps
from everhold.core.query import MODEL_KINDS, Query, refuse_other_kinds
from everhold.errors import AnswerFailed, BadSetting
from everhold.models.process import OutputTooLarge, run_command, split_command
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answerer

#: Bytes of an answer.
MAX_ANSWER_BYTES: Final = 8 * 2**20
_TAIL: Final = 2000  # characters of stderr worth keeping


class CommandModel(Answerer):
    """Asks a command: the prompt goes to its standard input, the answer is what it prints."""

    kinds = MODEL_KINDS

    def __init__(
        self, command: str | Sequence[str], *, at_once: int = 4, timeout: float | None = 600.0
    ) -> None:
        self.argv = split_command(command, "answer_with")
        if at_once < 1:
            raise BadSetting("at_once", f"it should be at least 1, got {at_once}")
        if timeout is not None and not timeout > 0:
            raise BadSetting("timeout", f"it should be more than 0 seconds, or None, got {timeout}")
        self.at_once = at_once
        self.timeout = timeout
        # A semaphore belongs to one event loop, and one command may serve several.
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"CommandModel({shlex.join(self.argv)!r})"

    def check(self) -> None:
        """Raise `BadSetting` if there is no such command here, or where a test runs."""
        refuse_in_tests(repr(self))
        if shutil.which(self.argv[0]) is None:
            raise BadSetting(
                "answer_with", f"there is no command {self.argv[0]!r} here that can be run"
            )

    async def answer(self, query: Query, session_id: str) -> str:
        refuse_other_kinds(self.kinds, query)
        refuse_in_tests(repr(self))
        text = format_model_prompt(query).encode()
        loop = asyncio.get_running_loop()
        async with self._slots.setdefault(loop, asyncio.Semaphore(self.at_once)):
            try:
                async with asyncio.timeout(self.timeout):
                    code, said, complaint = await run_command(
                        self.argv, text, MAX_ANSWER_BYTES, 4 * _TAIL
                    )
            except OutputTooLarge:
                raise AnswerFailed(
                    f"{self.argv[0]} wrote more than {MAX_ANSWER_BYTES:,} bytes", "too_large"
                ) from None
            except TimeoutError:
                raise AnswerFailed(
                    f"{self.argv[0]} gave no answer in {self.timeout:g} s", "timeout"
                ) from None
            except OSError as error:
                self.check()
                raise BadSetting(
                    "answer_with", f"{self.argv[0]!r} cannot be run: {error.strerror}"
                ) from None
        return self._read(code, said, complaint)

    def _read(self, code: int | None, said: bytes, complaint: bytes) -> str:
        if code:
            how = (
                f"exited with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            )
            tail = complaint.decode(errors="replace").strip()[-_TAIL:]
            raise AnswerFailed(
                f"{self.argv[0]} {how}" + (f": {tail}" if tail else ""), "command_failed"
            )
        try:
            return said.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise AnswerFailed(
                f"{self.argv[0]} wrote what is not UTF-8: {error}", "not_text"
            ) from None


def format_model_prompt(query: Query) -> str:
    """All that a model needs to know, as one text."""
    parts = [
        query.system or "",
        query.prompt,
        *(_message(message) for message in query.messages or ()),
    ]
    if query.schema is not None and query.schema.get("type") != "string":
        parts.append(
            "Answer with JSON only, and nothing around it. It must fit this"
            f" schema:\n{dumps(query.schema)}"
        )
    return "\n\n".join(part for part in parts if part)


def _message(message: JSON) -> str:
    return f"{message['role']}: {_text(message['content'])}"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if "text" not in part:
            raise AnswerFailed(
                f"a command takes text, and a message holds {part.get('type', 'something else')}",
                "not_text",
            )
    return "\n".join(part["text"] for part in content)
