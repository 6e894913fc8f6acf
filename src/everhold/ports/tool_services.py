"""What tools and plugins get besides their arguments: the state of the conversation (`Moment`),
durable values, other sessions, events, and resources kept open between calls.

Rules
  1. Values are read as they are now. Writes are committed with the result: once, however often the
     work runs, and not at all if it fails. So are events, signals, messages and nodes.
  2. A session is started under a key derived from the work, so that work that runs again finds the
     session that it started.
  3. Only sessions started by this one may be inspected, awaited and cancelled; others raise
     `NotAllowed`. Any session may be sent a signal.
  4. A resource (a process, a connection) is registered with the function that closes it. It is
     shared by one event loop, and closed with the loop's last runtime. Without a runtime, it ends
     with the process.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from everhold.core.codec import JSON, to_plain
from everhold.core.graph import Frame, Node, to_blocks
from everhold.core.intake import INPUT
from everhold.core.ledger import Ledger
from everhold.core.message import Role
from everhold.core.status import Status
from everhold.core.turn import check_event_name
from everhold.errors import BadArguments, BadValue, ForeignCall, NotAllowed, UnknownExtension
from everhold.ports.context import State
from everhold.ports.process_environment import NO_ENVIRONMENT, ProcessEnvironment
from everhold.ports.program import Call
from everhold.ports.stream import Delta

T = TypeVar("T")

#: What lands with a result: a verb and three parts. `set`, `delete` and `incr` have a namespace, a
#: key and an argument; `emit` an event, a key and a payload; `signal` a session, a name and a
#: value; `message` a role and content; `node` a type and a body; `turn` a name and a value.
StateWrite = list[JSON]
#: The verbs that change durable values.
_STATE_VERBS: Final = ("set", "delete", "incr")
#: Authors of a message that is added to a conversation. The results of tools are added by tools.
INJECTED_ROLES: Final = (Role.USER, Role.SYSTEM, Role.ASSISTANT)
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

    async def wait(self, session_id: str, timeout: float | None) -> Status: ...

    async def begun(self) -> list[str]:
        """The ids of the sessions that this one has started, newest first."""
        ...

    async def find(self, session: str) -> str:
        """The id of a session, by id or key; raises `UnknownSession`."""
        ...

    async def signal(self, session_id: str, name: str, value: JSON, key: str) -> None:
        """Send a signal to a session, once for each key."""
        ...

    async def emit(self, event: str, payload: JSON, key: str) -> JSON:
        """Emit an event, once for each key; returns an `EventOutcome` as data."""
        ...

    def output(self, delta: Delta) -> None:
        """Stream a piece of a program's output. Callable from any thread."""
        ...

    async def events(self) -> list[str]:
        """The names of the events that a trigger acts on, sorted."""
        ...


#: The services of the running call.
CURRENT_SERVICES: ContextVar[SessionServices] = ContextVar("everhold_work")


def get_services(what: str) -> SessionServices:
    """The services of the running call; raises `ForeignCall` outside of one."""
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
        found = await get_services("a durable value").value(self._in, key)
        for verb, namespace, name, given in self._writes or ():
            if (namespace, name) == (self._in, key) and verb in _STATE_VERBS:
                found = _after(found, verb, given)
        return default if found is None else found[0]

    async def keys(self) -> list[str]:
        """The current keys of the namespace, sorted, without writes of this call."""
        return await get_services("a durable value").keys(self._in)

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
        _ask(self._writes, f"state {key!r}", verb, self._in, to_plain(key, "a key"), value)


def _ask(writes: list[StateWrite] | None, what: str, *parts: JSON) -> None:
    """Add what lands with the result; raises `NotAllowed` where there is none."""
    if writes is None:
        raise NotAllowed(
            f"{what} cannot be written here, since there is no result to commit it with",
            "Write it in a before_* hook or in a tool.",
        )
    writes.append(list(parts))


def ask_emit(writes: list[StateWrite] | None, event: str, payload: JSON, key: str | None) -> None:
    """Add an event; see `ToolContext.emit`."""
    check_event_name(event)
    if key is not None and not (isinstance(key, str) and key.strip() and key.isprintable()):
        raise BadArguments("emit", "a key should be printable and not blank")
    payload = to_plain(payload, f"the payload of {event!r}")
    _ask(writes, f"event {event!r}", "emit", event, key or "", payload)


def ask_message(
    writes: list[StateWrite] | None, content: JSON, role: str, roles: Sequence[str]
) -> None:
    """Add a message; see `ToolContext.say`."""
    if role not in roles:
        raise BadArguments(
            "say", f"a message here may have a role of {', '.join(roles)}, got {role!r}"
        )
    blocks: JSON = to_plain(content, "what is said")
    if not to_blocks(blocks) or not all(isinstance(one, dict) for one in to_blocks(blocks)):
        raise BadArguments("say", f"{content!r:.100} is neither text nor a list of blocks")
    _ask(writes, "a message", "message", str(role), "", blocks)


def ask_node(writes: list[StateWrite] | None, type: str, body: JSON) -> None:
    """Add a node; see `ToolContext.append`."""
    if not isinstance(type, str) or not type.strip() or len(type) > 200:
        raise BadArguments("append", f"the type of a node must be a name, got {type!r:.100}")
    _ask(writes, f"a node {type!r}", "node", type, "", to_plain(body, f"the node {type!r}"))


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

    def __init__(self, writes: list[StateWrite] | None = None) -> None:
        self._writes = writes
        self._begun = itertools.count()

    def with_writes(self, writes: list[StateWrite] | None) -> ToolSessions:
        """The same sessions, with signals that land with another result."""
        found = ToolSessions(writes)
        found._begun = self._begun
        return found

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
        ordinal = next(self._begun)
        name = key or str(ordinal)
        return await get_services("a session").begin(call, name, title)

    async def status(self, session_id: str) -> Status:
        """The status of a session that this one has started."""
        return await get_services("a session").status(session_id)

    async def cancel(self, session_id: str, reason: str = "") -> Status:
        """Cancel a session that this one has started."""
        return await get_services("a session").cancel(session_id, reason)

    async def wait(self, session_id: str, timeout: float | None = None) -> Status:
        """Wait until a session that this one has started ends, or needs an answer from outside; at
        most `timeout` seconds.

        The call waits in this process: after a crash it runs again, if it may. Return a call of the
        program instead to wait across crashes.
        """
        return await get_services("a session").wait(session_id, timeout)

    async def signal(self, session: str, name: str, value: JSON = None) -> None:
        """Send a signal to a session, by its id or key. It is sent with the result: once, however
        often the work runs, and not at all if it fails. Raises `UnknownSession`.
        """
        if not isinstance(name, str) or not name.strip():
            raise BadArguments("signal", f"the name of a signal must be text, got {name!r:.100}")
        if name == INPUT or name.partition(":")[0] == "process":
            raise BadArguments("signal", f"{name!r} is a name that everhold uses itself")
        found = await get_services("a session").find(session)
        plain = to_plain(value, f"the signal {name!r}")
        _ask(self._writes, f"signal {name!r}", "signal", found, name, plain)

    async def all(self) -> list[str]:
        """The ids of the sessions that this one has started, newest first."""
        return await get_services("a session").begun()


class Moment:
    """The state of a conversation when a hook or tool is called. Read-only, except `state`,
    `sessions`, and what `emit`, `say`, `append` and `set_turn_value` add to the decision of a
    `before_*` hook.
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
        plugin_options: dict[str, JSON] | None = None,
        turn_values: dict[str, JSON] | None = None,
        nodes: Callable[[str | None], list[Node]] = lambda type: [],
        environment: ProcessEnvironment = NO_ENVIRONMENT,
        extensions: Sequence[Any] = (),
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
        #: options that the session was started with: in a hook, those for this plugin
        self.plugin_options = plugin_options or {}
        self.writes: list[StateWrite] | None = [] if decides else None
        #: durable values: read now, written with the decision of a `before_*` hook
        self.state = ToolValues(self.writes)
        #: other sessions, which a `before_*` hook may start
        self.sessions = ToolSessions(self.writes)
        #: the environment of what tools start
        self.environment = environment
        #: roles of messages that `say` may add
        self.roles: Sequence[str] = INJECTED_ROLES
        self._messages = messages
        self._turn_values = turn_values or {}
        self._nodes = nodes
        self._extensions = extensions

    def of_plugin(self, name: str) -> Moment:
        """A copy for one plugin, with its own options."""
        found = copy.copy(self)
        found.plugin_options = to_plain(self.plugin_options.get(name) or {}, "plugin options")
        return found

    def apart(
        self,
        written: Sequence[StateWrite],
        said: tuple[JSON, ...] = (),
        options: dict[str, JSON] | None = None,
        roles: Sequence[str] = INJECTED_ROLES,
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
            found.sessions = self.sessions.with_writes(found.writes)
        found.roles = roles
        return found

    @property
    def turn_values(self) -> dict[str, JSON]:
        """The values that plugins have set for this turn."""
        written = {one[1]: one[3] for one in self.writes or () if one[0] == "turn"}
        found: dict[str, JSON] = to_plain({**self._turn_values, **written}, "turn values")
        return found

    def set_turn_value(self, name: str, value: JSON) -> None:
        """Set a value for the rest of this turn: hooks of all plugins see it, and tools do. It is
        recorded with the decision.
        """
        plain = to_plain(value, f"turn value {name!r}")
        _ask(self.writes, f"turn value {name!r}", "turn", to_plain(name, "a name"), "", plain)

    def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> None:
        """Emit an event with the decision; see `ToolContext.emit`."""
        ask_emit(self.writes, event, payload, key)

    def say(self, content: JSON, role: str = Role.USER) -> None:
        """Add a message at the next checkpoint, with a role that the plugin may give (`roles`)."""
        ask_message(self.writes, content, role, self.roles)

    def append(self, type: str, body: JSON) -> None:
        """Add a node to the conversation; see `ToolContext.append`."""
        ask_node(self.writes, type, body)

    def nodes(self, type: str | None = None) -> list[Node]:
        """The nodes that tools and plugins have added, oldest first: all, or those of one type."""
        return self._nodes(type)

    def extension(self, kind: type[T]) -> T:
        """The object of this type that a plugin offers (`Plugin.extensions`); raises
        `UnknownExtension`.
        """
        for one in self._extensions:
            if isinstance(one, kind):
                return one
        raise UnknownExtension(
            kind.__name__, sorted({type(one).__name__ for one in self._extensions})
        )

    @property
    def messages(self) -> list[JSON]:
        """The messages of the current frame, oldest first. They are not copied: do not change
        them.
        """
        return self._messages()


log = logging.getLogger("everhold")


class _LoopResources:
    """The runtimes of one event loop, and the resources that its tools have opened."""

    def __init__(self) -> None:
        self.runtimes = 0
        self.closers: dict[object, Callable[[], Awaitable[None]]] = {}


_RESOURCES: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopResources] = WeakKeyDictionary()


def _get_loop_resources() -> _LoopResources:
    return _RESOURCES.setdefault(asyncio.get_running_loop(), _LoopResources())


def retain_resources() -> None:
    """Count a runtime on this event loop."""
    _get_loop_resources().runtimes += 1


async def release_resources() -> None:
    """Uncount a runtime; the last one closes all resources."""
    resources = _get_loop_resources()
    resources.runtimes -= 1
    while resources.runtimes <= 0 and resources.closers:
        _, close = resources.closers.popitem()
        try:
            await close()
        except Exception:
            log.exception("a tool's resource could not be closed")


def register_closer(owner: object, close: Callable[[], Awaitable[None]]) -> None:
    """Register `close`, to be called with the last runtime. An owner has one closer, the last
    one.
    """
    _get_loop_resources().closers[owner] = close


def unregister_closer(owner: object) -> None:
    """Remove the closer of a resource that is closed already."""
    _get_loop_resources().closers.pop(owner, None)
