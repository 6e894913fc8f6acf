"""Code that a model writes: the interface between an agent and a code executor (row 25).

Rules
  1. An executor runs one stretch of a program per call: from the beginning, or from its last tool
     calls, to its next tool calls or its end. It MUST be able to run the whole again from the
     results alone.
  2. The same request, scope and results MUST give the same outcome: random numbers and time come
     from the scope.
  3. An error of the program is part of `CodeEnded`. If the executor cannot run the program, it
     raises `CodeExecutionUnavailable`; if it died while running, `CodeExecutionStopped`.
  4. `finish` ends the turn only if the request accepts it. Otherwise the program gets an error.
  5. An executor that keeps variables (`VariableKeeper`) gets those of the session with the request,
     and returns them at the end, also after an error. The programs of a session then run one after
     another.
  6. What a program prints is in the outcome of the stretch. An executor MAY also call `emit` with
     each piece while the program runs; then it MUST do so for everything that is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from everhold.core.codec import JSON


def _ignore(text: str) -> None:
    """Nobody listens."""


class CodeRequest(msgspec.Struct, frozen=True):
    """A program in some language; `accept_finish` says whether it may end its turn."""

    language: str
    code: str
    accept_finish: bool = False
    at: float = 0.0  # the time that the program sees
    history: list[JSON] = []  # the messages so far, in order: {"role", "text"}; read only
    keep_variables: bool = False  # whether the session keeps the variables of its programs
    variables: JSON = None  # as the last program of this language left them; None: there are none
    emit: Callable[[str], None] = _ignore  # streams what is printed


class CodeToolCall(msgspec.Struct, frozen=True):
    """A tool call that a program wants."""

    tool: str
    input: dict[str, JSON]


class CodeToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a tool call: a value or an error."""

    value: JSON = None
    error: str | None = None


class CodePaused(msgspec.Struct, frozen=True, omit_defaults=True, tag="asking"):
    """The program waits for the results of these calls."""

    wishes: list[CodeToolCall]
    printed: list[str] = []


class CodeEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The program has ended: with a value, an error, or a value that ends the turn."""

    value: JSON = None
    error: str | None = None
    finish: list[JSON] = []  # at most one
    printed: list[str] = []
    variables: JSON = None  # of an executor that keeps them; None: they are unchanged


#: The outcome of one stretch.
CodeRunResult = CodePaused | CodeEnded


@runtime_checkable
class CodeExecutor(Protocol):
    """Runs programs in one language."""

    @property
    def language(self) -> str:
        """The language, which is also the name of the tool for the model."""
        ...

    @property
    def description(self) -> str:
        """The tool description: what a model needs to know to write programs."""
        ...

    @property
    def accept_finish(self) -> bool:
        """Whether programs may end their turn."""
        ...

    async def run(
        self, request: CodeRequest, granted: Sequence[Sequence[CodeToolResult]], scope: str
    ) -> CodeRunResult:
        """Run the program with the results so far, to its next tool calls or its end.

        `scope` identifies the run: it is unique, and stays the same for all stretches of a run.
        """
        ...


@runtime_checkable
class VariableKeeper(Protocol):
    """An executor whose programs find the variables of earlier programs of the session."""

    @property
    def keeps_variables(self) -> bool:
        """Whether it does so now."""
        ...
