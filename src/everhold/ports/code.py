"""Code that a model writes, and who runs it: the seam between an agent and an executor (row 25).

Rules
  1. An executor is asked for one stretch at a time: from the beginning, or from where what the
     program asked for is answered, up to where it asks for more or ends. It MUST be able to run the
     whole again from the answers alone.
  2. Given the same request, scope and answers it MUST come to the same end: dice and clocks come
     from the scope.
  3. A program's own error is a part of `CodeEnded`. What it cannot run at all raises
     `CodeExecutionUnavailable`; where it died while running, `CodeExecutionStopped`.
  4. `finish` ends the turn only if the request accepts it. Else the program is told that it does
     not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from everhold.core.codec import JSON


class CodeRequest(msgspec.Struct, frozen=True):
    """A program in some language; `accept_finish` says whether it may end the turn that it runs
    in.
    """

    language: str
    code: str
    accept_finish: bool = False
    at: float = 0.0  # the time that the program sees
    history: list[JSON] = []  # what was said before, in order: {"role", "text"}; to be read only


class CodeToolCall(msgspec.Struct, frozen=True):
    """A tool that a program wants called."""

    tool: str
    input: dict[str, JSON]


class CodeToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a wish: a value, or what went wrong."""

    value: JSON = None
    error: str | None = None


class CodePaused(msgspec.Struct, frozen=True, omit_defaults=True, tag="asking"):
    """The program stands still until all of these are answered."""

    wishes: list[CodeToolCall]
    printed: list[str] = []


class CodeEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="ended"):
    """The program has ended: with a value, with an error of its own, or with what the turn is to
    end with.
    """

    value: JSON = None
    error: str | None = None
    finish: list[JSON] = []  # at most one
    printed: list[str] = []


#: How far a program of a model came.
CodeRunResult = CodePaused | CodeEnded


@runtime_checkable
class CodeExecutor(Protocol):
    """Runs programs in one language."""

    @property
    def language(self) -> str:
        """What it runs, which is also the name of the tool that a model is given."""
        ...

    @property
    def description(self) -> str:
        """What a model has to know to write for it."""
        ...

    @property
    def accept_finish(self) -> bool:
        """Whether programs may end the turn that they run in."""
        ...

    async def run(
        self, request: CodeRequest, granted: Sequence[Sequence[CodeToolResult]], scope: str
    ) -> CodeRunResult:
        """Run the program up to where it asks for more than was granted, or to its end.

        `scope` names the run: no two have the same, and it stays the same for as long as one lasts.
        """
        ...
