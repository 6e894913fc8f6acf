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
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from msgspec import UnsetType

from everhold.core.codec import JSON
from everhold.core.graph import Node
from everhold.core.journal import DeliveryNotes
from everhold.core.model_settings import ModelSettings
from everhold.core.query import Kind, Rerun, Usage
from everhold.core.retry import Retry
from everhold.core.turn import SettledTurn
from everhold.errors import NotAProgram

R_co = TypeVar("R_co", covariant=True)


class CalledProgram(Protocol):
    """The program of a call, as far as the call needs it."""

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
        """The function to run, with `ctx` and the arguments."""
        ...

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """The stored arguments as the body takes them."""
        ...


class Call(Generic[R_co]):
    """A program and its arguments. Nothing runs until a runtime starts it."""

    __slots__ = ("args", "program")

    def __init__(self, program: CalledProgram, args: dict[str, JSON]) -> None:
        self.program = program
        self.args = args

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.args.items())
        return f"{self.program.name}({shown})"

    if not typing.TYPE_CHECKING:  # a type checker reports the missing __await__ itself

        def __await__(self) -> typing.NoReturn:
            raise NotAProgram(
                self.program.name,
                "a call is not awaitable; use ctx.run(call), ctx.spawn(call) or runtime.run(call)",
            )


if TYPE_CHECKING:
    from types import UnionType
    from typing import _SpecialForm

    # only for type checkers; not installed at run time
    from typing_extensions import TypeForm

    # Literal[…], int | None, a JSON Schema: not typed further
    Form = _SpecialForm | UnionType | Mapping[str, Any]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
RerunName = Literal["safe", "never", "ask"]


class QuestionOptions(ModelSettings, total=False):
    """The options of `ctx.llm` and `ctx.llm_batch`, besides `returns` and `default`."""

    messages: Sequence[Mapping[str, Any]] | None
    """earlier messages, which come before the prompt: `{"role": …, "content": …}`"""
    system: str | None
    """the system prompt"""
    max_tokens: int
    """the most tokens of the answer; 1024 by default"""
    model: str | Sequence[str] | None
    """the model to ask, as `"provider:name"`; by default that of the runtime"""
    on_unavailable: Literal["wait", "fail"] | None
    """what happens if no model can be asked: the question waits for one, or it fails"""
    grounded: bool
    """the answer may state only what was checked"""
    underspecified: bool
    """the prompt lacks something: who answers should look for it, or ask"""
    to: str | None
    """who should answer, for answers from outside"""
    retry: Retry | None
    """what is tried again, how often and after which wait; by default that of the program, then of
    the runtime
    """
    timeout: float | None
    """seconds of one attempt; without `retry`, until the question expires"""
    total_timeout: float | None
    """seconds until the question expires, with all attempts and waits"""


class TypeAdapterLike(Protocol[T_co]):
    """The part of pydantic's `TypeAdapter` that is used here."""

    def validate_python(self, value: Any, /) -> T_co: ...


class Child(Protocol[T_co]):
    """A child session: await it for its result. Raises `ChildFailed` if it failed or was
    cancelled.
    """

    @property
    def session_id(self) -> str:
        """The id of the child session."""
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class Process(Protocol):
    """A background child session: it runs independently, and its end is a signal `process` to its
    parent.
    """

    @property
    def session_id(self) -> str:
        """The id of the child session."""
        ...

    async def wait(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for its end: `state`, and `value` or `error`. Raises `Expired` after `timeout`
        seconds.
        """
        ...

    async def look(self) -> dict[str, Any]:
        """Its current `state`, and after its end `value` or `error`."""
        ...

    async def signal(self, name: str, value: JSON = None) -> bool:
        """Send it a signal; False if it has ended."""
        ...

    async def cancel(self, reason: str = "") -> bool:
        """Cancel it; False if it has ended."""
        ...


class State(Protocol):
    """Durable values shared between sessions, by namespace. Reads are recorded; writes are
    committed with the step.
    """

    def __call__(self, namespace: str) -> State:
        """The values of another namespace."""
        ...

    async def get(self, key: str, default: JSON = None) -> JSON:
        """The value of a key, or `default`."""
        ...

    async def set(self, key: str, value: JSON) -> None:
        """Set a value."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete a key; False if there is none."""
        ...

    async def has(self, key: str) -> bool:
        """Whether there is a value, also None."""
        ...

    async def keys(self) -> list[str]:
        """The keys of the namespace, in order."""
        ...

    async def set_nx(self, key: str, value: JSON) -> bool:
        """Set a value if the key has none; False if it has one."""
        ...

    async def incr(self, key: str, delta: float = 1, default: float = 0) -> float:
        """Add to a number, which begins at `default`; returns the sum."""
        ...

    async def update(self, key: str, change: Callable[[Any], JSON], default: JSON = None) -> JSON:
        """Replace a value by `change(value)`, atomically, and return the new one."""
        ...


class Context(Protocol):
    """The interface of a program to everything outside itself."""

    @property
    def session_id(self) -> str:
        """The id of this session."""
        ...

    @property
    def state(self) -> State:
        """Durable values of the namespace "default", shared between sessions. `ctx.state("shop")`
        is another namespace.
        """
        ...

    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        default: T = ...,
        **options: Unpack[QuestionOptions],
    ) -> T: ...
    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: Form,
        default: Any = ...,
        **options: Unpack[QuestionOptions],
    ) -> Any: ...
    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: None = None,
        default: str = ...,
        **options: Unpack[QuestionOptions],
    ) -> str: ...
    @overload
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: None = None,
        default: None,
        **options: Unpack[QuestionOptions],
    ) -> str | None: ...
    async def llm(
        self,
        prompt: str = "",
        *,
        returns: Any = None,
        default: Any = ...,
        **options: Unpack[QuestionOptions],
    ) -> Any:
        """Ask a model. The answer is text, or a value of the type `returns`.

            verdict = await ctx.llm("Is this spam? " + text, returns=Verdict, temperature=0)

        The options are those of `everhold.models.QuestionOptions`; options of a single provider go
        into `extra`. An option that does not exist raises `BadArguments`, and a model that fails
        `AnswerFailed`. When the question expires, after `total_timeout` seconds, the answer is
        `default`; without one, `Expired` is raised.
        """
        ...

    @overload
    async def llm_batch(
        self,
        items: Sequence[str | Mapping[str, Any]],
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        default: T = ...,
        **options: Unpack[QuestionOptions],
    ) -> list[T]: ...
    @overload
    async def llm_batch(
        self,
        items: Sequence[str],
        *,
        returns: None = None,
        default: str = ...,
        **options: Unpack[QuestionOptions],
    ) -> list[str]: ...
    @overload
    async def llm_batch(
        self,
        items: Sequence[str | Mapping[str, Any]],
        *,
        returns: Form | None = None,
        default: Any = ...,
        **options: Unpack[QuestionOptions],
    ) -> list[Any]: ...
    async def llm_batch(
        self,
        items: Sequence[str | Mapping[str, Any]],
        *,
        returns: Any = None,
        default: Any = ...,
        **options: Unpack[QuestionOptions],
    ) -> list[Any]:
        """Ask many questions at once; the answers come in the same order.

            short = await ctx.llm_batch([f"Summarise: {text}" for text in texts], max_tokens=200)

        An item is a prompt, or a dict with a `prompt` and options of its own, which override those
        of the call.
        """
        ...

    # A type checker cannot separate these options from the arguments of the function, and does not
    # check those then. Each overload requires an option, so that a call without options fits none.
    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        rerun: RerunName,
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        rerun: RerunName,
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: Retry | None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        retry: Retry | None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        timeout: float | None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout: float | None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        total_timeout: float | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self,
        function: Callable[..., T],
        *args: Any,
        total_timeout: float | None,
        **kwargs: Any,
    ) -> T: ...
    @overload
    async def call(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def call(  # type: ignore[misc]  # a function may have options of these names, too
        self,
        function: Callable[..., Any],
        *args: Any,
        rerun: RerunName = "safe",
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function outside the program, once as far as the journal knows, and return its
        result. Sync functions run in a thread.

            receipt = await ctx.call(send_money, order, cents=500, rerun="never")

        `rerun` decides what happens if the process died before the result was recorded: run it
        again ("safe"), raise `OutcomeUnknown` ("never"), or ask a person ("ask").

        With `retry`, a function that raised is tried again. `timeout` limits one attempt, in
        seconds; a function in a thread cannot be stopped, so its result is ignored. After
        `total_timeout` seconds, with all attempts and waits, `Expired` is raised.
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
        """Ask a person for a yes or no.

        `to` names who should answer. After `timeout` seconds the answer is `default`; without one,
        `Expired` is raised.
        """
        ...

    @overload
    async def input(
        self,
        prompt: str,
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        to: str | None = None,
        timeout: float | None = None,
        default: Any = ...,
    ) -> T: ...
    @overload
    async def input(
        self,
        prompt: str,
        *,
        returns: Form,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = ...,
    ) -> Any: ...
    @overload
    async def input(
        self,
        prompt: str,
        *,
        returns: None = None,
        to: str | None = None,
        timeout: float | None = None,
        default: str = ...,
    ) -> str: ...
    @overload
    async def input(
        self,
        prompt: str,
        *,
        returns: None = None,
        to: str | None = None,
        timeout: float | None = None,
        default: None,
    ) -> str | None: ...
    async def input(
        self,
        prompt: str,
        *,
        returns: Any = None,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = ...,
    ) -> Any:
        """Ask a person for text, or for a value of the type `returns`.

        After `timeout` seconds the answer is `default`; without one, `Expired` is raised.
        """
        ...

    @overload
    async def receive(
        self,
        name: str,
        *,
        returns: TypeForm[T] | TypeAdapterLike[T],
        timeout: float | None = None,
        default: Any = ...,
    ) -> T: ...
    @overload
    async def receive(
        self,
        name: str,
        *,
        returns: Form | None = None,
        timeout: float | None = None,
        default: Any = ...,
    ) -> Any: ...
    async def receive(
        self, name: str, *, returns: Any = None, timeout: float | None = None, default: Any = ...
    ) -> Any:
        """Wait for a signal, and return its value. A signal that was sent earlier is stored until
        it is received.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait, for a second or a month, across process restarts."""
        ...

    async def run(self, call: Call[T]) -> T:
        """Run another program inline, as part of this session."""
        ...

    async def restart(self, /, **args: Any) -> NoReturn:
        """Begin again from the first line with these arguments, in the same session. Never
        returns.

        Earlier answers stay in the journal and are not replayed again, so that rebuilding stays
        fast. Open queries are withdrawn. Raises `BadArguments`, and then nothing has happened.
        """
        ...

    def spawn(self, call: Call[T], *, title: str = "") -> Child[T]:
        """Start a child session; await the returned `Child` for its result."""
        ...

    async def background(self, call: Call[Any], *, title: str = "") -> Process:
        """Start a child session without waiting for it. Its messages arrive as the signal
        `process`.
        """
        ...

    async def processes(self) -> list[dict[str, Any]]:
        """The background child sessions, oldest first: `process` (its id), `title`, `program` and
        `state`.
        """
        ...

    async def tell(self, value: JSON) -> bool:
        """Send a message to the parent session at once; False if there is none."""
        ...

    def now(self) -> datetime.datetime:
        """The time of the current step, in UTC; the same on replay."""
        ...

    def random(self) -> float:
        """A random number from 0 to 1; the same on replay."""
        ...

    def rng(self) -> Random:
        """A random generator with a seed of its own; it draws the same numbers on replay."""
        ...

    def uuid(self) -> uuid.UUID:
        """A random UUID; the same on replay."""
        ...

    def log(self, message: str, level: str = "info") -> None:
        """Write a line into the log of the session, with a level: "debug", "info", "warn" or
        "error". Nothing is written on replay.
        """
        ...

    def progress(self, step: int, total: int = 0, message: str | None = None) -> None:
        """Report how far the program is: `step` of `total`, and a message. A `total` of 0 means
        unknown. Listings and `everhold watch` show the last report.
        """
        ...

    def record(self, name: str, value: JSON) -> None:
        """Store a value under a name in the session, for exports and reports."""
        ...

    def budget_remaining(self) -> dict[str, int | None] | None:
        """What is left of each limit of the session's budget, None where there is no limit; None
        without a budget.
        """
        ...

    def version(self, name: str, number: int) -> int:
        """Mark an intended change: sessions that passed this point before it get 1, later ones
        `number`.
        """
        ...


class AgentContext(Context, Protocol):
    """`ctx` for the agent loop."""

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
        retry: Retry | None = None,
        attempt_timeout: float | None = None,
    ) -> tuple[int, Any]:
        """Make a query, and return its number and its answer. It expires after `timeout` seconds.

        `effect` runs a `call`. For a question to a model it returns the full query, of which `args`
        is the view.
        """
        ...

    def keep_with(self, keep: Callable[[JSON], JSON]) -> None:
        """Store answers from outside as `keep` returns them."""
        ...

    def note(
        self, *nodes: Node, leaf: str | UnsetType | None = ..., settled: SettledTurn | None = None
    ) -> None:
        """Add nodes to the conversation, with the current step."""
        ...

    async def delegate(
        self, call: Call[Any], *, title: str = "", source: str = ""
    ) -> tuple[int, Any]:
        """Start a child session and wait for it; returns the number of the query and the result.

        Its usage is counted under `source`. It is cancelled when the waiting task is cancelled.
        """
        ...

    cost: Usage | None  #: usage of the last answer to `put` or `delegate`, if it is known

    @property
    def parent(self) -> str | None:
        """The parent session, or None."""
        ...

    def recorded(self) -> DeliveryNotes | None:
        """The notes of the replayed step; None if nothing is replayed."""
        ...

    def fact(self, name: str, value: JSON, default: JSON = None) -> JSON:
        """A value that the loop depends on: `value`, which is recorded if it is new; on replay, the
        recorded one.

        So an author can change a limit or a plugin without changing earlier turns.
        """
        ...

    def after(self, effect: Callable[[], Any]) -> None:
        """Run `effect` after this step is committed. It does not run on replay, nor if the process
        dies before.
        """
        ...
