"""One Lua state with a program in it: the sandbox that confines it, and the limits on what it may
use.

Rules
  1. No Python object ever enters a state: bytes, numbers and truth values go in and come out,
     nothing else. So there is nothing in it through which a program could reach this process. (A
     function of Python in it could also stop the whole process: where memory is short, what calls
     it never gives the interpreter's lock back.)
  2. Whatever the program asks comes out of `go` as a kind and its arguments; what is said goes in
     with the next `go`.
  3. Our own Lua is compiled once in a process. What of it is rarely needed is asked for with its
     first use, because each session has a state of its own.
  4. What is handed over finds room above the limit, once: a program that keeps it there has no
     memory left.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from everhold.errors import MissingExtra

#: Bytes that one state may hold, unless somebody says otherwise.
DEFAULT_MEMORY_BYTES: Final = 64 * 2**20
#: Seconds of CPU that one advance may take in this process, unless somebody says otherwise.
DEFAULT_CPU_SECONDS: Final = 1.0
#: The same for an advance on replay that did pause before: perhaps in a worker, which has more
#: time.
REPLAY_CPU_SECONDS: Final = 3.0

#: Bytes above the limit, so that a full state can be heard out; and how many of them one handing
#: over takes at most.
_ROOM: Final = 256 * 2**10
_LITTLE: Final = 64 * 2**10
_FULL: Final = (None, b"failed", b"not enough memory", b"")
_OWN: Final = frozenset({b"part", b"where"})  # what the sandbox asks for itself
_BAD: Final = frozenset({b"failed", b"overtime"})
_AT_THE_END: Final = ("json", "json_decode", "tostring", "pairs", "failure")
_LIBRARY: Final = ("text", "alc_math", "layer1", "cards")
#: What the parts of the sandbox add to `alc`.
_LAYER0: Final = {
    "layer0": (
        "_dirs",
        "budget_remaining",
        "fork",
        "json_decode",
        "json_encode",
        "llm_batch",
        "null",
        "state",
    ),
    "output": ("log", "progress", "stats"),
}
_LIBRARY_PART: Final = """local kit = ...
local function chunk(...) %s
end
local layer0 = kit.part("layer0")
chunk(layer0.libraries, layer0.host)"""
_DUMP: Final = b"""
local source, title, bare = ...
local chunk = load(source, title, "t")
return chunk and string.dump(chunk, bare)
"""
#: Runs a chunk of the library where everything it touches is a shadow, and tells what it adds to
#: `alc`.
_LISTING: Final = b"""
local code = ...
local out, shadow = {}, nil
local function made(home)
  return setmetatable({}, {
    __index = function(_, name) return shadow(home == "alc" and name or "") end,
    __newindex = function(t, name, value) rawset(t, name, value); out[#out + 1] = home; out[#out + 1] = name end,
    __call = function() return shadow("") end,
  })
end
function shadow(home) return made(home) end
load(code)(made("alc"), made(""))
return table.unpack(out)
"""  # noqa: E501


class LuaVm:
    """A sandboxed state: `go` with a `make_vm_opening`, then with answers until it is done."""

    __slots__ = ("_aside", "_go", "_memory", "_raised", "_runtime")

    def __init__(
        self,
        *,
        memory: int = DEFAULT_MEMORY_BYTES,
        namespace: bytes = b"default",
        dice: tuple[int, int] = (0, 0),
        alc: bool = True,
    ) -> None:
        self._runtime = create_lua_state(memory)
        self._memory = memory
        self._raised = False
        self._go, self._aside = self._runtime.execute(
            _code("sandbox"), _version(), namespace, alc, *dice, mode=b"b"
        )

    def go(self, now: float | None, allowed: float, *given: Any) -> tuple[Any, ...]:
        """Run until the program asks something or ends: whether it said anything, a kind, and what
        belongs to it.

        `now` is None where an answer is given at once: then the time that is allowed goes on.
        """
        return self.supplied(self.run(now, allowed, given))

    def run(self, now: float | None, allowed: float, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """`go`, but also what the sandbox asks for itself comes out: then it has to be
        `supplied`.
        """
        size = _LITTLE
        for item in given:
            if type(item) is bytes:
                size += len(item)
        if (
            self._raised or self._runtime.get_memory_used(total=True) + size > self._memory
        ) and not self._has_room(size):
            return _FULL
        try:
            came: tuple[Any, ...] = self._go(now, allowed, *given)
            return self._failed(came) if came[1] in _BAD else came
        except _lua_error():
            return _FULL

    def go_along(self, allowed: float, given: list[Any]) -> tuple[int, tuple[Any, ...]]:
        """`go` for many answers, each with its time before it and the question that should come
        next behind it.

        Returns how many were handed over, and what came of the last one: 0 if there is not room for
        all of them.
        """
        size = sum([len(item) for item in given if type(item) is bytes])
        if self._raised or self.memory + size + _LITTLE > self._memory:
            return 0, ()
        # What waits there is not the program's, and whoever is nearly full had the room when he was
        # asked one by one.
        self._runtime.set_max_memory(self._memory + size + _ROOM, total=True)
        try:
            steps, *rest = self._runtime.compile(_code("replay"), mode=b"b")(
                self._go, allowed, *given
            )
            came = self._failed(tuple(rest)) if rest[1] in _BAD else tuple(rest)
        except _lua_error():
            return len(given) // 3, _FULL
        finally:
            if not self._raised:
                self._runtime.set_max_memory(self._memory, total=True)
        return steps, self.supplied(came)

    def supplied(self, came: tuple[Any, ...]) -> tuple[Any, ...]:
        """Go on with what the sandbox asks for itself, until the program asks something."""
        while came[1] in _OWN:
            answer = (
                _code(came[2].decode()) if came[1] == b"part" else _places().get((came[2], came[3]))
            )
            came = self.run(None, 0.0, (True, answer))
        return came

    def take(self) -> tuple[Any, ...]:
        """What was said: whether there is more, progress (step, total, message), how many records,
        these, and lines.
        """
        self._limit(max(self._memory, self.memory) + _ROOM)
        taken: tuple[Any, ...] = self._aside(b"take")
        return taken

    def seed(self, dice: tuple[int, int]) -> None:
        """Let the dice fall from this seed from now on, unless the program has chosen one."""
        self._aside(b"seed", *dice)

    @property
    def memory(self) -> int:
        """How many bytes its state holds."""
        used: int = self._runtime.get_memory_used(total=True)
        return used

    def _failed(self, came: tuple[Any, ...]) -> tuple[Any, ...]:
        """A failure, with its words."""
        self._limit(self.memory + 2 * _ROOM)
        return (*came, *self._aside(b"told", *_ending()))

    def _has_room(self, size: int) -> bool:
        """Whether there is room for what is handed over: the limit is raised for it, but not for
        what was before.
        """
        used = self.memory
        most = self._memory
        if used > most + _ROOM - _LITTLE:
            self._runtime.gccollect()
            used = self.memory
            if used > most + _ROOM - _LITTLE:
                return False
        if used + size > most or self._raised:
            self._limit(most + size - _LITTLE + _ROOM)
        return True

    def _limit(self, most: int) -> None:
        self._raised = True
        self._runtime.set_max_memory(most, total=True)


def make_vm_opening(
    born: float,
    how: bytes,
    name: bytes,
    source: bytes | None,
    title: bytes | None,
    *ctx: Any,
    mode: bytes = b"t",
) -> tuple[Any, ...]:
    """What a state begins with: a "text", a "file" or a "package"; its ctx as JSON, or as names and
    plain values.

    The mode is "b" for a source that `compile_lua` made.
    """
    return _code("launch"), born, how, name, source, title, mode, *ctx


def compile_lua(source: bytes, title: bytes) -> bytes | None:
    """A text as Lua loads it quickest, with all by which an error names its place; None if it is no
    program.
    """
    try:
        return _dumped(source, title, False)
    except _lua_error():  # it takes more memory than there is
        return None


def create_lua_state(memory: int) -> Any:
    """A bare Lua state, from which nothing of Python can be looked up; `MissingExtra` if there is
    no Lua.
    """
    return _lua()(
        encoding=None,
        attribute_filter=_deny,
        register_eval=False,
        register_builtins=False,
        max_memory=memory,
    )


def _deny(_object: object, _name: object, _is_setting: bool) -> str:
    raise AttributeError("nothing of Python is reachable from here")


@cache
def _lua() -> Any:
    try:
        from lupa.lua54 import LuaRuntime  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("lua", "a Lua program") from None
    return LuaRuntime


@cache
def _lua_error() -> type[Exception]:
    from lupa.lua54 import LuaError

    kind: type[Exception] = LuaError
    return kind


# ---- our own Lua, compiled once


@cache
def _version() -> bytes:
    from importlib.metadata import version

    return version("everhold").encode()


def _text(name: str) -> str:
    if not name.replace("_", "").isalnum():  # whatever a state asks for, it is one of our files
        raise LookupError(name)
    from importlib.resources import files

    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


@cache
def _code(name: str) -> bytes:
    text = _text(name)
    source = _LIBRARY_PART % text if name in _LIBRARY else text
    code = _dumped(source.encode(), b"=[everhold]", True)
    assert code is not None, name
    return code


def _dumped(source: bytes, title: bytes, bare: bool) -> bytes | None:
    """A text as bytes of Lua's own, `bare` without the names and lines; None if it is no
    program.
    """
    code: bytes | None = create_lua_state(DEFAULT_MEMORY_BYTES).execute(_DUMP, source, title, bare)
    return code


@cache
def _ending() -> tuple[bytes, ...]:
    """What has to be there when a program fails: nothing can be asked for any more."""
    return tuple(given for name in _AT_THE_END for given in (name.encode(), _code(name)))


@cache
def _places() -> dict[tuple[bytes, bytes], bytes]:
    """Which part has which name of which table."""
    found = {
        (b"alc", name.encode()): part.encode() for part, names in _LAYER0.items() for name in names
    }
    for part in _LIBRARY:
        listed = (
            create_lua_state(DEFAULT_MEMORY_BYTES).compile(_LISTING)(_text(part).encode()) or ()
        )
        for home, name in zip(listed[::2], listed[1::2], strict=True):
            found[(home, name)] = part.encode()
    return found
