"""What tools and plugins may do with their session beside their result: durable values, and other
sessions (row 11).

Rules
  1. Values are read as they are now. What is written lands with the result, in the same commit:
     once, however often the work is run, and not at all if it fails.
  2. A session is begun under a key that is the work's own, so that work that is run again finds the
     one that it began.
  3. Only what this session has begun may be looked at and cancelled; anything else is `NotAllowed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

from everhold.core.codec import JSON, to_plain
from everhold.core.status import Status
from everhold.errors import BadArguments, BadValue, ForeignCall, NotAllowed
from everhold.ports.context import State
from everhold.ports.program import Call

#: A change of one value: what is done, in which namespace, to which key, and with what.
StateWrite = list[JSON]
#: Parts of a name that would be a path.
_NO_NAMES: Final = ("/", "\\", "..", "\0")


class SessionServices(Protocol):
    """The work that is done for one query of a session."""

    async def value(self, namespace: str, key: str) -> list[JSON] | None:
        """A durable value, in a list; None if there is none."""
        ...

    async def keys(self, namespace: str) -> list[str]: ...

    async def begin(self, call: Call[Any], name: str, title: str) -> str:
        """Begin a session, or find the one that was begun under this name; returns its id."""
        ...

    async def status(self, session_id: str) -> Status: ...

    async def cancel(self, session_id: str, reason: str) -> Status: ...

    async def begun(self) -> list[str]:
        """The ids of the sessions that this one has begun, newest first."""
        ...


#: The work that is under way.
CURRENT_SERVICES: ContextVar[SessionServices] = ContextVar("everhold_work")


def _work(what: str) -> SessionServices:
    found = CURRENT_SERVICES.get(None)
    if found is None:
        raise ForeignCall(f"{what} outside the work of a session")
    return found


class ToolValues:
    """Durable values for tools and plugins, by namespace, as `ctx.state` has them for programs.

    `writes` takes what is to land with the result; None where there is no result that it could land
    with.
    """

    def __init__(self, writes: list[StateWrite] | None, namespace: str = "default") -> None:
        if not namespace or any(part in namespace for part in _NO_NAMES):
            raise BadArguments("state", f"Invalid namespace: '{namespace}'")
        self._writes = writes
        self._in = namespace

    def __call__(self, namespace: str) -> ToolValues:
        return ToolValues(self._writes, namespace)

    async def get(self, key: str, default: JSON = None) -> JSON:
        """The value now, with what this work has written."""
        found = await _work("a durable value").value(self._in, key)
        for verb, namespace, name, given in self._writes or ():
            if (namespace, name) == (self._in, key):
                found = _after(found, verb, given)
        return default if found is None else found[0]

    async def keys(self) -> list[str]:
        """The keys of the namespace now, in order; without what this work has written."""
        return await _work("a durable value").keys(self._in)

    def set(self, key: str, value: JSON) -> None:
        """Set it, with the result."""
        self._write("set", key, to_plain(value, f"state {key!r}"))

    def delete(self, key: str) -> None:
        """Delete it, with the result."""
        self._write("delete", key, None)

    def incr(self, key: str, delta: float = 1) -> None:
        """Add to a number, which begins with 0, with the result: nobody's addition is lost."""
        if isinstance(delta, bool) or not isinstance(delta, int | float):
            raise BadValue("incr", f"{delta!r} is not a number")
        self._write("incr", key, delta)

    def _write(self, verb: str, key: str, value: JSON) -> None:
        if self._writes is None:
            raise NotAllowed(
                f"state {key!r} cannot be written here: there is no result that it could land with",
                "Write it in a before_* hook or in a tool.",
            )
        self._writes.append([verb, self._in, to_plain(key, "a key"), value])


def _after(found: list[JSON] | None, verb: JSON, given: JSON) -> list[JSON] | None:
    match verb:
        case "set":
            return [given]
        case "delete":
            return None
    return [(0 if found is None else found[0]) + given]


async def apply_writes(writes: Sequence[StateWrite], state: State) -> None:
    """Do to the values of a program what was written beside a result: all of it, or nothing
    (`BadValue`).
    """
    for verb, namespace, key, _ in writes:
        if verb == "incr":
            found = await state(str(namespace)).get(str(key), 0)
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise BadValue(f"state {key!r}", "is not a number, and nothing can be added to it")
    for verb, namespace, key, value in writes:
        place = state(str(namespace))
        match verb:
            case "set":
                await place.set(str(key), value)
            case "delete":
                await place.delete(str(key))
            case "incr":
                await place.incr(str(key), value)


class ToolSessions:
    """Other sessions for tools and plugins: begun, looked at, cancelled. Nobody waits for them.

    A tool that wants to wait for a session returns its call instead.
    """

    def __init__(self) -> None:
        self._begun = 0

    async def begin(self, call: Call[Any], *, key: str | None = None, title: str = "") -> str:
        """Begin a session of a program, and return its id. It goes on by itself, and costs on its
        own account.

        Work that is run again begins the same ones: by their order, or by `key`. Other arguments
        are a `KeyConflict`.
        """
        if not isinstance(call, Call):
            raise BadArguments(
                "begin", f"{call!r} is not a call; call a program: begin(my_program(x=1))"
            )
        name = key or str(self._begun)
        self._begun = self._begun + 1
        return await _work("a session").begin(call, name, title)

    async def status(self, session_id: str) -> Status:
        """Where a session stands that this one has begun."""
        return await _work("a session").status(session_id)

    async def cancel(self, session_id: str, reason: str = "") -> Status:
        """Stop a session that this one has begun."""
        return await _work("a session").cancel(session_id, reason)

    async def all(self) -> list[str]:
        """The ids of the sessions that this one has begun, newest first."""
        return await _work("a session").begun()
