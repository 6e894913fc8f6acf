"""A call of a program: which program, with which arguments. Nothing runs yet."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from everhold.core.codec import JSON
from everhold.errors import NotAProgram

R_co = TypeVar("R_co", covariant=True)


class CalledProgram(Protocol):
    """What a call has to know of its program."""

    @property
    def name(self) -> str: ...

    @property
    def ref(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def digest(self) -> str: ...

    @property
    def types(self) -> Mapping[str, Any]:
        """The annotations of its parameters, and of its result under "return"."""
        ...

    @property
    def body(self) -> Callable[..., Any]:
        """The function that runs, given `ctx` and the arguments."""
        ...

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """The stored arguments as the body takes them."""
        ...


class Call(Generic[R_co]):
    """A program and its arguments; nothing runs until a runtime takes it."""

    __slots__ = ("args", "program")

    def __init__(self, program: CalledProgram, args: dict[str, JSON]) -> None:
        self.program = program
        self.args = args

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.program.name}({shown})"

    if not typing.TYPE_CHECKING:  # to a type checker a call is not awaitable at all

        def __await__(self) -> typing.NoReturn:
            raise NotAProgram(
                self.program.name,
                "a call is not awaitable; use ctx.run(call), ctx.spawn(call) or runtime.run(call)",
            )
