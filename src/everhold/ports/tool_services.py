"""What tools and plugins get besides their arguments: the state of the conversation (`Moment`),
durable values, other sessions, and resources kept open between calls.

Rules
  1. Values are read as they are now. Writes are committed with the result: once, however often the
     work runs, and not at all if it fails.
  2. A session is started under a key derived from the work, so that work that runs again finds the
     session that it started.
  3. Only sessions started by this one may be inspected and cancelled; others raise `NotAllowed`.
  4. A resource (a process, a connection) is registered with the function that closes it. It is
     shared by one event loop, and closed with the loop's last runtime. Without a runtime, it ends
     with the process.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from everhold.core.codec import JSON, to_plain
from everhold.core.graph import Frame
from everhold.core.ledger import Ledger
from everhold.core.status import Status
from everhold.errors import BadArguments, BadValue, ForeignCall, NotAllowed
from everhold.ports.context import State
from everhold.ports.program import Call

#: A change of one value: verb, namespace, key, argument.
StateWrite = list[JSON]
#: Parts that are not allowed in a namespace, which may be a path.
_NO_NAMES: Final = ("/", "\\", "..", "\0")


class SessionServices(Protocol):
    """The services for the running call of a session."""

    async def value(self, namespace: str, key: str) -> list[JSON] | None:
        """A durable value in a list; None if there is none."""
        ...

    async def keys(self, namespace: str) -> list[str]: ...

    async def begin(self, call: Call[Any], name: str, title: str) -> str:
        """Start a session, or find the one that was started under this name; returns its id."""
        ...

    async def status(self, session_id: str) -> Status: ...

    async def cancel(self, session_id: str, reason: str) -> Status: ...

    async def begun(self) -> list[str]:
        """The ids of the sessions that this one has started, newest first."""
        ...


#: The services of the running call.
CURRENT_SERVICES: ContextVar[SessionServices] = ContextVar("everhold_work")


def _work(what: str) -> SessionServices:
    found = CURRENT_SERVICES.get(None)
    if found is None:
        raise ForeignCall(what, "can be used only while a session runs a call")
    return found


class ToolValues:
    """Durable values for tools and plugins, by namespace, as `ctx.state` for programs.

    Changes are appended to `writes` and committed with the result. None makes the values read-only.
    """

    def __init__(self, writes: list[StateWrite] | None, namespace: str = "default") -> None:
        if not namespace or any(part in namespace for part in _NO_NAMES):
            raise BadArguments("state", f"Invalid namespace: '{namespace}'")
        self._writes = writes
        self._in = namespace

    def __call__(self, namespace: str) -> ToolValues:
        return ToolValues(self._writes, namespace)

    async def get(self, key: str, default: JSON = None) -> JSON:
        """The current value, including writes of this call."""
        found = await _work("a durable value").value(self._in, key)
        for verb, namespace, name, given in self._writes or ():
            if (namespace, name) == (self._in, key):
                found = _after(found, verb, given)
        return default if found is None else found[0]

    async def keys(self) -> list[str]:
        """The current keys of the namespace, sorted, without writes of this call."""
        return await _work("a durable value").keys(self._in)

    def set(self, key: str, value: JSON) -> None:
        """Set a value, with the result."""
        self._write("set", key, to_plain(value, f"state {key!r}"))

    def delete(self, key: str) -> None:
        """Delete a value, with the result."""
        self._write("delete", key, None)

    def incr(self, key: str, delta: float = 1) -> None:
        """Add to a number, which starts at 0, with the result. Concurrent additions all count."""
        if isinstance(delta, bool) or not isinstance(delta, int | float):
            raise BadValue("incr", f"{delta!r} is not a number")
        self._write("incr", key, delta)

    def _write(self, verb: str, key: str, value: JSON) -> None:
        if self._writes is None:
            raise NotAllowed(
                f"state {key!r} cannot be written here, since there is no result to commit it with",
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
    """Apply the writes of a call to the values of a program: all or none (`BadValue`)."""
    for verb, namespace, key, _ in writes:
        if verb == "incr":
            found = await state(str(namespace)).get(str(key), 0)
            if isinstance(found, bool) or not isinstance(found, int | float):
                raise BadValue(f"state {key!r}", "it is not a number, so incr cannot add to it")
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
    """Other sessions for tools and plugins: start, inspect and cancel them without waiting.

    A tool that waits for a session returns its call instead.
    """

    def __init__(self) -> None:
        self._begun = 0

    async def begin(self, call: Call[Any], *, key: str | None = None, title: str = "") -> str:
        """Start a session of a program, and return its id. It runs independently, and its usage is
        its own.

        Work that runs again finds the same sessions, by order or by `key`. Other arguments raise
        `KeyConflict`.
        """
        if not isinstance(call, Call):
            raise BadArguments(
                "begin", f"{call!r} is not a call; call a program: begin(my_program(x=1))"
            )
        name = key or str(self._begun)
        self._begun = self._begun + 1
        return await _work("a session").begin(call, name, title)

    async def status(self, session_id: str) -> Status:
        """The status of a session that this one has started."""
        return await _work("a session").status(session_id)

    async def cancel(self, session_id: str, reason: str = "") -> Status:
        """Cancel a session that this one has started."""
        return await _work("a session").cancel(session_id, reason)

    async def all(self) -> list[str]:
        """The ids of the sessions that this one has started, newest first."""
        return await _work("a session").begun()


class Moment:
    """The state of a conversation when a hook or tool is called. Read-only, except `state` and
    `sessions`.
    """

    def __init__(
        self,
        *,
        session_id: str,
        root: bool,
        turn: int,
        round: int,
        now: float,
        started: float,
        began: float,
        frame: Frame,
        options: dict[str, JSON],
        usage: Ledger,
        turn_usage: Ledger,
        messages: Callable[[], list[JSON]],
        context: int = 0,
        completing: bool = False,
        in_program: bool = False,
        instructions: str = "",
        said: tuple[JSON, ...] = (),
        decides: bool = False,
    ) -> None:
        #: root: whether the session has no parent
        self.session_id = session_id
        self.root = root
        #: both count from 1; 0 is before the first
        self.turn = turn
        self.round = round
        #: seconds since 1970: now, start of the turn, start of the session
        self.now = now
        self.started = started
        self.began = began
        self.frame = frame
        self.options = options
        #: usage of the session and of this turn
        self.usage = usage
        self.turn_usage = turn_usage
        #: tokens of the context at the last model call; 0 if unknown
        self.context = context
        #: whether the turn is about to end; otherwise the model is asked again
        self.completing = completing
        #: whether a program that the model wrote calls the tool, not the model itself
        self.in_program = in_program
        self.instructions = instructions  #: instructions of the caller, for a compaction
        self.said = said  #: answers to `Ask`
        self.writes: list[StateWrite] | None = [] if decides else None
        #: durable values: read now, written with the decision of a `before_*` hook
        self.state = ToolValues(self.writes)
        self.sessions = ToolSessions()  #: other sessions, which a `before_*` hook may start
        self._messages = messages

    def apart(
        self,
        written: Sequence[StateWrite],
        said: tuple[JSON, ...] = (),
        options: dict[str, JSON] | None = None,
    ) -> Moment:
        """A copy for one plugin: its writes follow those of the others, and it has its own
        answers.
        """
        found = copy.copy(self)
        found.said, found.options = (
            said,
            to_plain(self.options if options is None else options, "options"),
        )
        if self.writes is not None:
            found.writes = list(written)
            found.state = ToolValues(found.writes)
        return found

    @property
    def messages(self) -> list[JSON]:
        """The messages of the current frame, oldest first."""
        return self._messages()


log = logging.getLogger("everhold")


class _House:
    def __init__(self) -> None:
        self.inside = 0
        self.closes: dict[object, Callable[[], Awaitable[None]]] = {}


_HOUSES: WeakKeyDictionary[asyncio.AbstractEventLoop, _House] = WeakKeyDictionary()


def _house() -> _House:
    return _HOUSES.setdefault(asyncio.get_running_loop(), _House())


def retain_resources() -> None:
    """Count a runtime on this event loop."""
    _house().inside += 1


async def release_resources() -> None:
    """Uncount a runtime; the last one closes all resources."""
    house = _house()
    house.inside -= 1
    while house.inside <= 0 and house.closes:
        _, close = house.closes.popitem()
        try:
            await close()
        except Exception:
            log.exception("a tool's resource could not be closed")


def register_closer(owner: object, close: Callable[[], Awaitable[None]]) -> None:
    """Register `close`, to be called with the last runtime. An owner has one closer, the last
    one.
    """
    _house().closes[owner] = close


def unregister_closer(owner: object) -> None:
    """Remove the closer of a resource that is closed already."""
    _house().closes.pop(owner, None)
