"""What programs are written against: `ctx`, and calls of other programs.

Every verb that waits is a coroutine, so that `gather`, `TaskGroup`, `timeout` and the rest of
asyncio work with it. Verbs that do not wait (`now`, `random`, `log`, …) are free, and return the
same values on replay.

`Context` is for programs. `AgentContext` adds what the agent loop needs.
"""

from __future__ import annotations

import datetime
import typing
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Protocol, TypeVar, overload

from msgspec import UnsetType

from everhold.core.codec import JSON
from everhold.core.graph import Node
from everhold.core.journal import DeliveryNotes
from everhold.core.query import Kind, Rerun, Usage
from everhold.core.turn import SettledTurn
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


if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    # type checkers bring it along; at run time nobody needs it
    from typing_extensions import TypeForm

    # Literal[…], int | None, a JSON Schema: as good as untyped
    Form = _SpecialForm | UnionType | Mapping[str, Any]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
RerunName = Literal["safe", "never", "ask"]


class TypeAdapterLike(Protocol[T_co]):
    """What pydantic's `TypeAdapter` looks like from here."""

    def validate_python(self, value: Any, /) -> T_co: ...


class Child(Protocol[T_co]):
    """A child session: await it for its result; raises `ChildFailed` if it failed or was
    cancelled.
    """

    @property
    def session_id(self) -> str: ...
    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Process(Protocol):
    """A child session in the background: it goes on by itself, and its end is a signal `process` to
    its parent.
    """

    @property
    def session_id(self) -> str: ...
    async def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for its end: `state`, and `value` or `error`. Raises `Expired` after `timeout`
        seconds.
        """
        ...

    async def look(self) -> dict[str, Any]:
        """Where it stands: `state`, and once it has ended `value` or `error`."""
        ...

    async def signal(self, name: str, value: JSON = None) -> bool:
        """Send it a signal; False if it has ended."""
        ...

    async def cancel(self, reason: str = "") -> bool:
        """Stop it; False if it has ended."""
        ...


class State(Protocol):
    """Durable values shared between sessions, by namespace. Reads are journaled; writes land with
    the step.
    """

    def __call__(self, namespace: str) -> State: ...
    async def get(self, key: str, default: JSON = None) -> JSON: ...
    async def set(self, key: str, value: JSON) -> None: ...
    async def delete(self, key: str) -> bool: ...
    async def has(self, key: str) -> bool: ...
    async def keys(self) -> list[str]: ...
    async def set_nx(self, key: str, value: JSON) -> bool: ...
    async def incr(self, key: str, delta: float = 1, default: float = 0) -> float: ...
    async def update(
        self, key: str, change: Callable[[Any], JSON], default: JSON = None
    ) -> JSON: ...


class Context(Protocol):
    """What a program holds to reach the world: everything that it asks begins here."""

    @property
    def session_id(self) -> str: ...

    @property
    def state(self) -> State: ...

    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        max_tokens: int = 1024,
        grounded: bool = False,
        underspecified: bool = False,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = ...,
        **options: Any,
    ) -> T: ...
    @overload
    async def llm(self, prompt: str = "", *, returns: Form, **options: Any) -> Any: ...
    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        max_tokens: int = 1024,
        grounded: bool = False,
        underspecified: bool = False,
        to: str | None = None,
        timeout: float | None = None,
        default: str = ...,
        **options: Any,
    ) -> str: ...
    async def llm(self, prompt: str = "", **options: Any) -> Any:
        """Ask a model. `returns` names the type of the answer; other options are passed through."""
        ...

    async def llm_batch(
        self, items: Sequence[str | Mapping[str, Any]], **options: Any
    ) -> list[Any]:
        """Ask many at once; answers come back in the order asked."""
        ...

    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        rerun: RerunName = "safe",
        retries: int = 0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        rerun: RerunName = "safe",
        retries: int = 0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do something outside, once as far as the journal knows. Sync functions run in a thread.

        `rerun` says what happens when the process died before the result was recorded: do it again
        ("safe"), raise `OutcomeUnknown` ("never"), or ask a person ("ask").
        """
        ...

    async def approval(
        self,
        prompt: str,
        *,
        to: str | None = None,
        timeout: float | None = None,
        default: bool = ...,
    ) -> bool:
        """Ask a person for a yes or no."""
        ...

    async def input(
        self,
        prompt: str,
        *,
        returns: Any = None,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = ...,
    ) -> Any:
        """Ask a person for words (or for a value of the type `returns`)."""
        ...

    async def receive(
        self, name: str, *, returns: Any = None, timeout: float | None = None, default: Any = ...
    ) -> Any:
        """Wait for a signal; one sent before is kept until it is received."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; a second or a month, across restarts."""
        ...

    async def run(self, call: Call[T]) -> T:
        """Run another program inline, as part of this session."""
        ...

    async def restart(self, /, **args: Any) -> NoReturn:
        """Begin again from the first line with these arguments, in the same session. It never
        returns.

        What was answered so far is kept and never replayed again, so that coming back does not take
        ever longer. What is still open is withdrawn, as at the end. Raises `BadArguments`, and
        nothing has happened.
        """
        ...

    def spawn(self, call: Call[T], *, title: str = "") -> Child[T]:
        """Start a child session; await what comes back for its end."""
        ...

    async def background(self, call: Call[Any], *, title: str = "") -> Process:
        """Start a child session that nobody has to wait for; what it says comes as the signal
        `process`.
        """
        ...

    async def processes(self) -> list[dict[str, Any]]:
        """The child sessions in the background, oldest first: `process` (its id), `title`,
        `program` and `state`.
        """
        ...

    async def tell(self, value: JSON) -> bool:
        """Tell the parent of this session something, at once; False if it has none."""
        ...

    def now(self) -> datetime.datetime: ...
    def random(self) -> float: ...
    def rng(self) -> Random: ...
    def uuid(self) -> uuid.UUID: ...
    def log(self, message: str, level: str = "info") -> None: ...
    def progress(self, step: int, total: int = 0, message: str | None = None) -> None: ...
    def record(self, name: str, value: JSON) -> None: ...
    def budget_remaining(self) -> dict[str, int | None] | None: ...
    def version(self, name: str, number: int) -> int:
        """Mark an intended change: sessions that passed here before it get 1, later ones
        `number`.
        """
        ...


class AgentContext(Context, Protocol):
    """`ctx` for the loop of an agent."""

    async def put(
        self,
        kind: Kind,
        effect: Callable[[], Any] | None = None,
        *,
        name: str = "",
        args: JSON = None,
        prompt: str = "",
        schema: dict[str, JSON] | None = None,
        options: dict[str, JSON] | None = None,
        rerun: Rerun = ...,
        timeout: float | None = None,
        to: str | None = None,
    ) -> tuple[int, Any]:
        """Ask something, and return the number of the query with its answer.

        `effect` does a `call`; for a question to a model it gives the query in full, of which
        `args` is the view.
        """
        ...

    def keep_with(self, keep: Callable[[JSON], JSON]) -> None:
        """Have what somebody outside answers written down as `keep` returns it."""
        ...

    def note(
        self, *nodes: Node, leaf: str | UnsetType | None = ..., settled: SettledTurn | None = None
    ) -> None:
        """Add to the conversation, with the step that is under way."""
        ...

    async def delegate(
        self, call: Call[Any], *, title: str = "", source: str = ""
    ) -> tuple[int, Any]:
        """Begin a child session, and return the number of the query with how the child ended.

        What it costs is entered under `source`; it is cancelled as soon as nobody waits for it.
        """
        ...

    cost: Usage | None  #: what the last answer to `put` or `delegate` cost, if that was counted

    @property
    def parent(self) -> str | None:
        """The session that began this one, if one did."""
        ...

    def recorded(self) -> DeliveryNotes | None:
        """What the step that is replayed noted; None where nothing is replayed."""
        ...

    def fact(self, name: str, value: JSON, default: JSON = None) -> JSON:
        """Something that the loop takes for given: `value`, which is noted if it is new; on replay,
        what was noted.

        So may an agent's author change a limit or a plugin without changing what was said before.
        """
        ...

    def after(self, effect: Callable[[], Any]) -> None:
        """Do something once this step is kept. It is not done on replay, and not if the process
        dies between.
        """
        ...
