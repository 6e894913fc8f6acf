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
        raise ForeignCall(what, "can be used only while a session runs a call")
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


class Moment:
    """Where a conversation stands when a hook is called. It is for reading, but for `state` and
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
        #: root: no other session began this one
        self.session_id = session_id
        self.root = root
        #: both are counted from 1; 0 is before the first
        self.turn = turn
        self.round = round
        #: seconds: now, and when turn and session began
        self.now = now
        self.started = started
        self.began = began
        self.frame = frame
        self.options = options
        #: what was spent, in all and in this turn
        self.usage = usage
        self.turn_usage = turn_usage
        #: tokens that the model last had before its eyes, if they were counted
        self.context = context
        #: the model has nothing more to do; else it will be asked again
        self.completing = completing
        #: the tool is called by a program that the model wrote, not by the model
        self.in_program = in_program
        self.instructions = instructions  #: for a compaction, of whoever asked for it
        self.said = said  #: answers to `Ask`
        self.writes: list[StateWrite] | None = [] if decides else None
        #: durable values: read now, written with what a `before_*` decides
        self.state = ToolValues(self.writes)
        self.sessions = ToolSessions()  #: other sessions, which a `before_*` begins
        self._messages = messages

    def apart(
        self,
        written: Sequence[StateWrite],
        said: tuple[JSON, ...] = (),
        options: dict[str, JSON] | None = None,
    ) -> Moment:
        """The same moment for one plugin: it writes after what others have written, and has answers
        of its own.
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
        """What was said in the current frame, oldest first."""
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
    """Somebody came who will leave."""
    _house().inside += 1


async def release_resources() -> None:
    """Somebody left; the last one closes everything."""
    house = _house()
    house.inside -= 1
    while house.inside <= 0 and house.closes:
        _, close = house.closes.popitem()
        try:
            await close()
        except Exception:
            log.exception("a tool's resource could not be closed")


def register_closer(owner: object, close: Callable[[], Awaitable[None]]) -> None:
    """Have `close` called when everybody has left; of one owner only the last is kept."""
    _house().closes[owner] = close


def unregister_closer(owner: object) -> None:
    """Its resource is closed already."""
    _house().closes.pop(owner, None)
