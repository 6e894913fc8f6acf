"""What a program is written against: `ctx`.

Every verb that waits is a coroutine, so that `gather`, `TaskGroup`, `timeout` and the rest of
asyncio work with it. Verbs that do not wait (`now`, `random`, `log`, …) cost nothing and are the
same on replay.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, overload

from everhold.core.codec import JSON
from everhold.ports.call import Call

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
