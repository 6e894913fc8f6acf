"""Programs as their authors write them, and executions as the engine runs them.

`@program` makes an `async def` callable for later: calling it returns a `Call`, and nothing runs
yet. A `Call` is plain data (program and arguments), so that it can be stored and started anywhere.

An `Execution` is one life of a program in memory. It has one verb, `advance`: no I/O, no clock, no
randomness inside.

`is_raised_by_code` tells a user's Ctrl-C from a KeyboardInterrupt raised by program code.
"""

from __future__ import annotations

import inspect
import sys
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

from everhold.core.codec import JSON
from everhold.core.journal import Delivery, DeliveryNotes, ProgramReply, Restart
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import QueryAnswer
from everhold.core.schema import decode_value_as, encode_value_as
from everhold.core.session import Birth
from everhold.core.status import Status
from everhold.errors import AnswerRefused, BadArguments, BadSchema, BadValue, NotAProgram
from everhold.ports.context import Call as Call
from everhold.ports.context import Context

#: What a signal may raise.
INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)

_told: Final = threading.Event()


def set_signals_handled(told: bool = True) -> None:
    """From now on no signal raises anything in this process; or it does again."""
    if told:
        _told.set()
    else:
        _told.clear()


def is_raised_by_code(error: BaseException) -> bool:
    """Whether whoever raised this means it, where it is caught."""
    if not isinstance(error, INTERRUPTS):
        return True
    return _told.is_set() or threading.current_thread() is not threading.main_thread()


def convert_interrupt(error: BaseException) -> RuntimeError:
    """What a function has failed with that raised an interrupt; nothing on the way up takes it for
    one.
    """
    return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))


P = ParamSpec("P")
R = TypeVar("R")


class KeptEffect:
    """An effect whose outcome is written down as `keep` returns it."""

    __slots__ = ("_effect", "func", "keep")

    def __init__(self, effect: Callable[[], Any], keep: Callable[[JSON], JSON]) -> None:
        self._effect = effect
        self.func = effect.func if isinstance(effect, partial) else effect
        self.keep = keep

    def __call__(self) -> Any:
        return self._effect()


class Program(Generic[P, R]):
    """Code that can be stopped at a query and started again."""

    #: Whether a runtime has to say where it finds what it requires; so with programs in Lua.
    is_alone: bool = False

    def __init__(
        self, body: Callable[..., Awaitable[R]], *, name: str, version: int, strict: bool
    ) -> None:
        if not inspect.iscoroutinefunction(body):
            raise NotAProgram(getattr(body, "__name__", repr(body)), "it is not an `async def`")
        if type(version) is not int or not 0 <= version < 2**63:
            raise NotAProgram(name, f"its version is {version!r}, not a whole number")
        self.body = body
        self.name = name
        self.version = version
        self.strict = strict
        self.ref = make_program_reference(body)
        self.__doc__ = body.__doc__
        self.__name__ = body.__name__
        self.__module__ = body.__module__
        self.__wrapped__ = body
        self._signature: inspect.Signature | None = None
        self._types: dict[str, Any] | None = None
        self._digest = ""
        register_program(self)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        return Call(self, self.bind(args, kwargs))

    def __repr__(self) -> str:
        return f"<program {self.ref} version {self.version}>"

    @property
    def qualname(self) -> str:
        """What it is called in its module."""
        return self.body.__qualname__

    @property
    def is_named(self) -> bool:
        """Whether its reference is known without looking for it."""
        return True

    @property
    def signature(self) -> inspect.Signature:
        """The parameters without `ctx`."""
        if self._signature is None:
            whole = inspect.signature(self.body)
            parameters = list(whole.parameters.values())
            if not parameters:
                raise NotAProgram(self.name, "it has no parameter for ctx")
            self._signature = whole.replace(parameters=parameters[1:])
        return self._signature

    @property
    def _ctx(self) -> str | None:
        """What the parameter for `ctx` is called, if something that is given by name could be taken
        for it.
        """
        first = next(iter(inspect.signature(self.body).parameters.values()))
        return None if first.kind is inspect.Parameter.POSITIONAL_ONLY else first.name

    @property
    def types(self) -> dict[str, Any]:
        """The annotations, as far as they can be resolved."""
        if self._types is None:
            try:
                self._types = typing.get_type_hints(self.body, include_extras=True)
            # a name that exists only for the type checker: such parameters stay plain JSON
            except Exception:
                self._types = {}
        return self._types

    @property
    def digest(self) -> str:
        """A fingerprint of the source, for `explain` and `check`."""
        if not self._digest:
            try:
                source = inspect.getsource(self.body).encode()
            except (OSError, TypeError):
                source = self.body.__code__.co_code
            self._digest = sha256(source).hexdigest()[:16]
        return self._digest

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, JSON]:
        """Arguments as plain JSON by name; raises `BadArguments` if they do not fit the
        parameters.
        """
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadArguments(self.name, str(error)) from None
        plain: dict[str, JSON] = {}
        for name, value in bound.arguments.items():
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                for key, item in value.items():
                    if key == self._ctx:
                        raise BadArguments(
                            self.name, f"{key!r} is given by everhold; choose another name"
                        )
                    plain[key] = self._plain(key, item, self.types.get(name))
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                raise BadArguments(self.name, f"*{name} is not supported; use a list parameter")
            else:
                plain[name] = self._plain(name, value, self.types.get(name))
        self.arguments(plain)
        return plain

    def _plain(self, name: str, value: object, type_: Any) -> JSON:
        try:
            return encode_value_as(value, type_, name)
        except (BadSchema, BadValue, AnswerRefused) as error:
            raise BadArguments(self.name, str(error)) from None

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """The stored arguments as the body wants them: validated and coerced by its annotations."""
        try:
            self.signature.bind(**args)
        except TypeError as error:
            raise BadArguments(self.name, str(error)) from None
        typed = {}
        parameters = self.signature.parameters
        for name, value in args.items():
            wanted = self.types.get(name, Any) if name in parameters else Any
            try:
                typed[name] = value if wanted is Any else decode_value_as(value, wanted)
            except AnswerRefused as error:
                where = error.path.replace("answer", name, 1)
                raise BadArguments(
                    self.name, f"{where} should be {error.expected}, got {error.got}"
                ) from None
        return typed


#: Programs of this process by reference and version: what is decorated here can be found here.
REGISTRY: Final[dict[tuple[str, int], Program[Any, Any]]] = {}


def register_program(program: Program[Any, Any]) -> None:
    REGISTRY[(program.ref, program.version)] = program
    module, _, name = program.ref.rpartition(":")
    if program.name != name:
        REGISTRY[(f"{module}:{program.name}", program.version)] = program


def make_program_reference(body: Callable[..., Any]) -> str:
    """How any process can load this function: module:function, or the file of a script."""
    module = body.__module__
    name = body.__qualname__
    if module == "__main__":
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name and not spec.name.endswith("__main__"):
            module = spec.name  # started with python -m
        elif file is not None:
            module = str(Path(file).resolve())
    return f"{module}:{name}"


@overload
def program(body: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Program[P, R]: ...
@overload
def program(
    *, name: str | None = None, version: int = 1, strict: bool = False
) -> Callable[[Callable[Concatenate[Context, P], Awaitable[R]]], Program[P, R]]: ...
def program(
    body: Any = None, /, *, name: str | None = None, version: int = 1, strict: bool = False
) -> Any:
    """Make an `async def` whose first parameter is `ctx` into a program.

    `version` tells intended changes apart; `strict` makes a change of wording a divergence.
    """
    if body is None:
        return lambda given: Program(
            given, name=name or str(given.__name__), version=version, strict=strict
        )
    return Program(
        body, name=name or str(getattr(body, "__name__", body)), version=version, strict=strict
    )


AdvanceArgs = tuple[int, float, list[QueryAnswer], bool, str | None]


class Execution(Protocol):
    """One life of a program in memory. Synchronous: no I/O, no clock, no dice.

    One that lives in another process is a `OutOfProcessExecution`, and says so: its `advance`
    blocks until that process has answered.
    """

    meter: Metrics
    remote: bool  # whether it is an `OutOfProcessExecution`
    bare: bool  # whether it needs no stage: then `entered` may be left out
    # Replay says with these what it hands over; `advance` and `follow` only read them.
    replaying: bool  # whether it was recorded: then nothing is done again
    recorded: DeliveryNotes | None  # what is noted of it
    recorded_versions: dict[str, int]  # which versions of changed parts of the program it took

    @property
    def program(self) -> Program[Any, Any]:
        """The program that lives."""
        ...

    @property
    def keep(self) -> Callable[[JSON], JSON] | None:
        """How answers from outside are written down; None: as they are."""
        ...

    @property
    def spent(self) -> Ledger | None:
        """What the answers of this life cost, if it is counted."""
        ...

    @property
    def after(self) -> Sequence[Callable[[], Any]]:
        """What is to be done once the last reply is committed."""
        ...

    def take_after(self) -> list[Callable[[], Any]]:
        """Return `after`, and empty it."""
        ...

    def entered(self) -> AbstractContextManager[Any]:
        """Set the stage; `advance` MUST be called inside, and may be called many times."""
        ...

    def advance(
        self, n: int, at: float, answers: list[QueryAnswer], fired: bool, cancel: str | None
    ) -> ProgramReply:
        """Hand over one delivery and run to the next pause or the end."""
        ...

    def follow(
        self, recorded: Sequence[Delivery], place: int, last: int
    ) -> tuple[int, ProgramReply]:
        """Hand over the recorded delivery at `place`, which is nothing but answers, and run to the
        next pause.

        It MAY go on with those after it, up to `last`, as long as what the program asks is one
        query, the recorded one, and the next delivery is the answer to it alone. Returns the place
        of the last one, and the reply to that.
        """
        ...

    def effect(self, q: int) -> Callable[[], Any] | None:
        """What an open `call` query wants done, if this execution knows."""
        ...

    def child(self, q: int) -> Call[Any] | None:
        """What an open `session` query wants started."""
        ...

    def drop(self) -> None:
        """Let go of everything: silent, without effects."""
        ...


@runtime_checkable
class RestartableExecution(Execution, Protocol):
    """An execution whose program may begin again: its reply then has a `restart` in its notes, and
    it is dropped.
    """

    def again(self, restart: Restart, meter: Metrics) -> Execution:
        """The next life of the program, not begun yet."""
        ...


class OutOfProcessExecution(Execution, Protocol):
    """An execution in another process. Its verbs raise `Overtaken` when that process, or what it
    held, is gone.

    Where the birth has a budget, the other process counts for itself, by the same rules: `meter` is
    for this one.
    """

    async def advance_there(
        self, n: int, at: float, answers: list[QueryAnswer], fired: bool, cancel: str | None
    ) -> ProgramReply:
        """`advance`, without blocking."""
        ...

    async def replay_there(self, steps: list[AdvanceArgs]) -> list[ProgramReply]:
        """Many advances at once; ends after the one that ended the program."""
        ...


class ProgramHost(Protocol):
    """One way of writing programs (Python, Lua, …)."""

    def begin(self, birth: Birth, meter: Metrics) -> Execution:
        """Start a life of the program of this birth; raises `UnknownProgram` or
        `VersionMissing`.
        """
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class StartVerb(Protocol):
    """Starts a session; see `Runtime.start`."""

    async def __call__(
        self,
        call: Call[Any],
        *,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...


class ForkVerb(Protocol):
    """Forks a session; see `Runtime.fork`."""

    async def __call__(
        self,
        session: str,
        *,
        at: int | None = None,
        key: str | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...
