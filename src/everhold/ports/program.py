"""Programs as their authors write them, and executions as the engine runs them.

`@program` makes an `async def` callable for later: calling it returns a `Call`, and nothing runs
yet. A `Call` is plain data (program and arguments), so that it can be stored and started anywhere.

An `Execution` is one life of a program in memory. It has one verb, `advance`: no I/O, no clock, no
randomness inside.

`is_raised_by_code` tells a user's Ctrl-C from a KeyboardInterrupt raised by program code.
"""

from __future__ import annotations

import inspect
import itertools
import linecache
import os
import re
import sys
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType
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

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import Delivery, ProgramReply, Restart
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import QueryAnswer
from everhold.core.retry import Retry, parse_retry, parse_timeout
from everhold.core.schema import decode_value_as, encode_value_as
from everhold.core.session import Birth
from everhold.core.status import Status
from everhold.core.unknown_names import checks_keywords, refuse_unknown_names
from everhold.errors import (
    AnswerRefused,
    BadArguments,
    BadSchema,
    BadValue,
    DuplicateProgram,
    LocalProgram,
    NotAProgram,
)
from everhold.ports.context import Call as Call
from everhold.ports.context import Context
from everhold.ports.script_end import show_errors_plainly

#: Exceptions that a signal may raise.
INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)

#: In the reference of a program that is defined inside a function.
LOCAL: Final = "<locals>"
#: The environment variable that Lua programs can read: 1 makes packages check values. A session
#: records it when it starts, so that a replay, also on another machine, sees the same.
SHAPE_CHECK: Final = "ALC_SHAPE_CHECK"


def read_program_variables() -> dict[str, str]:
    """What a new session records of the environment."""
    value = os.environ.get(SHAPE_CHECK, "")
    return {SHAPE_CHECK: value} if value and value.isascii() else {}


_told: Final = threading.Event()


def set_signals_handled(told: bool = True) -> None:
    """Declare that signals raise nothing in this process, or that they do again."""
    if told:
        _told.set()
    else:
        _told.clear()


def is_raised_by_code(error: BaseException) -> bool:
    """Whether the code that was called raised this exception, and not a signal handler (Ctrl-C)."""
    if not isinstance(error, INTERRUPTS):
        return True
    return _told.is_set() or threading.current_thread() is not threading.main_thread()


def convert_interrupt(error: BaseException) -> RuntimeError:
    """An interrupt that a function raised, as an error that nothing mistakes for Ctrl-C."""
    found = RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))
    return found.with_traceback(error.__traceback__)


P = ParamSpec("P")
R = TypeVar("R")


class ProgramEffect(partial[Any]):
    """A call that a program or a model asked for, with its arguments; other effects are everhold's
    own.
    """


class KeptEffect:
    """An effect whose outcome is stored as `keep` returns it."""

    __slots__ = ("effect", "func", "keep")

    def __init__(self, effect: Callable[[], Any], keep: Callable[[JSON], JSON]) -> None:
        self.effect = effect
        self.func = effect.func if isinstance(effect, partial) else effect
        self.keep = keep

    def __call__(self) -> Any:
        return self.effect()


class KeptErrors(KeptEffect):
    """An effect whose error is stored as `keep` returns it, and whose value as it is."""

    __slots__ = ()


class Program(Generic[P, R]):
    """A function that can pause at a query and be rebuilt by replay."""

    #: Whether a runtime has to configure where it finds its modules, as for Lua programs.
    is_alone: bool = False

    #: The defaults of its model questions and calls: see `program`.
    retry: Retry | None = None
    timeout: float | None = None

    def __init__(
        self,
        body: Callable[..., Awaitable[R]],
        *,
        name: str,
        version: int,
        strict: bool,
        retry: Retry | None = None,
        timeout: float | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(body):
            raise NotAProgram(getattr(body, "__name__", repr(body)), "it is not an `async def`")
        if type(version) is not int or not 0 <= version < 2**63:
            raise NotAProgram(name, f"its version is {version!r}, not a whole number")
        _require_ctx(body, name)
        self.body = body
        self.name = name
        self.version = version
        self.strict = strict
        if retry is not None or timeout is not None:
            self.retry, self.timeout = parse_retry(retry), parse_timeout(timeout)
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
        """Make a call: the program with these arguments. Nothing runs yet. Raises `BadArguments`
        for arguments that do not fit.
        """
        return Call(self, self.bind(args, kwargs))

    def __repr__(self) -> str:
        return f"<program {self.ref} version {self.version}>"

    @property
    def qualname(self) -> str:
        """Its name in its module."""
        return self.body.__qualname__

    @property
    def is_named(self) -> bool:
        """Whether its reference is known without a search for its variable."""
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
        """The name of the `ctx` parameter, if a keyword argument could be taken for it."""
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
        """Arguments as plain JSON by name; raises `BadArguments`."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            self._refuse_unknown_arguments(kwargs)
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

    def _refuse_unknown_arguments(self, given: Mapping[str, Any]) -> None:
        """Raise `BadArguments` for a name that is not a parameter, with the one that was probably
        meant: Python complains of the missing one first.
        """
        parameters = self.signature.parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            otherwise = f"its arguments: {', '.join(parameters)}" if parameters else "it takes none"
            refuse_unknown_names(self.name, given, parameters, otherwise, "argument")

    def _plain(self, name: str, value: object, type_: Any) -> JSON:
        try:
            return encode_value_as(value, type_, name)
        except (BadSchema, BadValue, AnswerRefused) as error:
            raise BadArguments(self.name, str(error)) from None

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """The stored arguments as the body takes them: validated and converted by its
        annotations.
        """
        try:
            self.signature.bind(**args)
        except TypeError as error:
            self._refuse_unknown_arguments(args)
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


#: The programs that were decorated in this process, by reference and version.
REGISTRY: Final[dict[tuple[str, int], Program[Any, Any]]] = {}


def register_program(program: Program[Any, Any]) -> None:
    REGISTRY[(program.ref, program.version)] = program
    module, _, name = program.ref.rpartition(":")
    if program.name != name:
        REGISTRY[(f"{module}:{program.name}", program.version)] = program


def _require_ctx(body: Callable[..., Any], name: str) -> None:
    """Raise `NotAProgram` if the function has no parameter for ctx, or another one comes first."""
    code = inspect.unwrap(body).__code__
    if not code.co_argcount and not code.co_flags & inspect.CO_VARARGS:
        raise NotAProgram(name, "it has no parameter for ctx")
    if not code.co_argcount:
        return
    first = code.co_varnames[0]
    wanted = getattr(body, "__annotations__", {}).get(first, "")
    kind = wanted.__name__ if isinstance(wanted, type) else str(wanted)
    if _CTX_TYPE.search(kind) or (_CTX_NAME.fullmatch(first) and kind not in _PLAIN_TYPES):
        return
    of_type = f", of type {kind}" if kind else ""
    raise NotAProgram(name, f"its first parameter is {first!r}{of_type}, not ctx")


_CTX_NAME: Final = re.compile("_*(ctx|context)?_*")
_CTX_TYPE: Final = re.compile("ctx|context", re.IGNORECASE)
_PLAIN_TYPES: Final = ("str", "int", "float", "bool", "bytes", "list", "dict")


def _refuse_second_program(body: Callable[..., Any], name: str, version: int) -> None:
    """Raise `DuplicateProgram` if another function of the same module has this name and version.

    The same function again is not another one: a module that is reloaded or a notebook cell that
    runs again defines it anew.
    """
    place, _, qualname = make_program_reference(body).rpartition(":")
    if LOCAL in qualname:
        return  # no other process can load it, so no reference can mean the wrong one
    for known_as in dict.fromkeys((qualname, name)):
        other = REGISTRY.get((f"{place}:{known_as}", version))
        if other is None or not isinstance(other.body, FunctionType) or LOCAL in other.qualname:
            continue
        old, new = other.body.__code__, body.__code__
        is_redefined = other.qualname == qualname and (
            old.co_filename != new.co_filename
            or old.co_firstlineno == new.co_firstlineno
            or not _defines(old, body.__name__)
        )
        if other.body.__globals__ is body.__globals__ and not is_redefined:
            raise DuplicateProgram(
                known_as,
                new.co_filename,
                f"line {old.co_firstlineno}",
                f"line {new.co_firstlineno}",
            )


def refuse_local_program(ref: str, durability: str) -> None:
    """Raise `LocalProgram` if the program is defined inside a function and the store, of this
    durability, outlives the process.
    """
    if LOCAL in ref and durability != "none":
        raise LocalProgram(ref)


def refuse_same_reference(program: Program[Any, Any]) -> None:
    """Raise `DuplicateProgram` if another variable of its module holds another program, such as an
    agent, of the same name and version. Two functions are refused when they are decorated.
    """
    module = sys.modules.get(program.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return  # a prompt or notebook: a cell that runs again leaves old objects
    same: dict[int, tuple[str, Program[Any, Any]]] = {}
    for variable, one in list(vars(module).items()):
        if (
            isinstance(one, Program)
            and one.__module__ == program.__module__
            and one.version == program.version
            and one.ref == program.ref
        ):
            same.setdefault(id(one), (variable, one))
    if any(not isinstance(one.body, FunctionType) for _, one in same.values()) and len(same) > 1:
        names = [variable for variable, _ in same.values()]
        raise DuplicateProgram(program.name, file, names[0], names[1])


def _defines(code: CodeType, name: str) -> bool:
    """Whether the file still defines this function at the line of this code."""
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    if not lines or not lines[0].lstrip().startswith(("@", "async def ", "def ")):
        return False
    after = list(itertools.dropwhile(lambda line: "def " not in line, lines[:50]))
    return bool(after) and f"def {name}(" in after[0]


def make_program_reference(body: Callable[..., Any]) -> str:
    """The reference by which any process can load this function: module:function, or the file of a
    script.
    """
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
    *,
    name: str | None = None,
    version: int = 1,
    strict: bool = False,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> Callable[[Callable[Concatenate[Context, P], Awaitable[R]]], Program[P, R]]: ...
@checks_keywords("program")
def program(
    body: Any = None,
    /,
    *,
    name: str | None = None,
    version: int = 1,
    strict: bool = False,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> Any:
    """Make a program of an `async def` whose first parameter is `ctx`.

    `version` marks intended changes; with `strict`, a change of wording is a divergence. `retry`
    and `timeout` are the defaults of its model questions, and of its calls with `rerun="safe"`.
    """

    def make(given: Any) -> Program[Any, Any]:
        known_as = name or str(getattr(given, "__name__", given))
        if getattr(given, "__module__", "") == "__main__":
            show_errors_plainly()
        if isinstance(given, FunctionType):
            _refuse_second_program(given, known_as, version)
        return Program(
            given, name=known_as, version=version, strict=strict, retry=retry, timeout=timeout
        )

    return make if body is None else make(body)


AdvanceArgs = tuple[int, float, list[QueryAnswer], bool, str | None, Budget | None]


class Execution(Protocol):
    """One life of a program in memory. Synchronous: no I/O, no clock, no randomness.

    An execution in another process is an `OutOfProcessExecution`; its `advance` blocks until that
    process answers.
    """

    meter: Metrics
    remote: bool  # whether it is an `OutOfProcessExecution`
    bare: bool  # whether `entered` may be left out
    # Replay sets these about the current delivery; `advance` and `follow` only read them.
    replaying: bool  # whether it is recorded: then nothing runs again
    recorded: Delivery | None  # it, with the reply that the program must repeat
    recorded_versions: dict[str, int]  # the `ctx.version` marks that it recorded

    @property
    def program(self) -> Program[Any, Any]:
        """The program."""
        ...

    @property
    def keep(self) -> Callable[[JSON], JSON] | None:
        """How answers from outside are stored; None: unchanged."""
        ...

    @property
    def spent(self) -> Ledger | None:
        """The usage of this life, if it is counted."""
        ...

    @property
    def after(self) -> Sequence[Callable[[], Any]]:
        """Functions to run after the last reply is committed."""
        ...

    def take_after(self) -> list[Callable[[], Any]]:
        """Return `after`, and empty it."""
        ...

    def entered(self) -> AbstractContextManager[Any]:
        """Enter the execution; `advance` MUST be called inside, and may be called many times."""
        ...

    @property
    def budget(self) -> Budget | None:
        """What the session may spend; None: no limits."""
        ...

    def advance(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        """Deliver answers, and run to the next pause or the end. A `budget` holds from now on."""
        ...

    def follow(
        self, recorded: Sequence[Delivery], place: int, last: int
    ) -> tuple[int, ProgramReply]:
        """Replay the recorded delivery at `place`, which has only answers, and run to the next
        pause.

        It MAY continue with later deliveries up to `last`, as long as the program makes one query,
        the recorded one, and the next delivery answers only it. Returns the place of the last
        delivery, and the reply to it.
        """
        ...

    def effect(self, q: int) -> Callable[[], Any] | None:
        """The function of an open `call` query, if this execution has it."""
        ...

    def child(self, q: int) -> Call[Any] | None:
        """The call that an open `session` query starts."""
        ...

    def drop(self) -> None:
        """Release everything, without effects."""
        ...


@runtime_checkable
class RestartableExecution(Execution, Protocol):
    """An execution whose program may restart: its reply then has a `restart` in its notes, and the
    execution is dropped.
    """

    def again(self, restart: Restart, meter: Metrics) -> Execution:
        """The next life of the program, not started yet."""
        ...


class OutOfProcessExecution(Execution, Protocol):
    """An execution in another process. Its verbs raise `Overtaken` when that process or its state
    is gone.

    The other process counts by itself, by the same rules; `meter` counts for this process.
    """

    async def advance_there(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        """`advance`, without blocking."""
        ...

    async def replay_there(self, steps: list[AdvanceArgs]) -> list[ProgramReply]:
        """Many advances at once; stops after the one that ends the program."""
        ...


class ProgramHost(Protocol):
    """A language in which programs are written (Python, Lua)."""

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
    """`Runtime.start`, for features that must not depend on the runtime."""

    async def __call__(
        self,
        call: Call[Any],
        *,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...


class ForkVerb(Protocol):
    """`Runtime.fork`, for features that must not depend on the runtime."""

    async def __call__(
        self,
        session: str,
        *,
        at: int | None = None,
        key: str | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status: ...
