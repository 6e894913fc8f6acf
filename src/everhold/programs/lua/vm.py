"""A Lua state with one program: the sandbox that confines it, and its memory and time limits.

Rules
  1. No Python object enters a state. Only bytes, numbers and booleans are passed, in both
     directions, so nothing in the state leads into this process. (A Python function in a state
     could also block the process: when lupa runs out of memory while calling it, the GIL is never
     released.)
  2. A request of the program is the result of `go`: a kind and its arguments. The answer is an
     argument of the next `go`.
  3. Our own Lua is compiled once per process. Each session has its own state, so a part that few
     programs need is loaded on its first use: merging the parts would cost every session their
     memory and load time.
  4. An answer may exceed the memory limit once, while it is passed in. A program that keeps it has
     no memory left.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from everhold.errors import MissingExtra

#: Default memory of one state.
DEFAULT_MEMORY_BYTES: Final = 64 * 2**20
#: Default CPU seconds of one advance in this process.
DEFAULT_CPU_SECONDS: Final = 1.0
#: The same for replay of an advance that has paused before, perhaps in a worker with more time.
REPLAY_CPU_SECONDS: Final = 3.0

#: Bytes above the limit that let a full state report its error, and the part of them that one
#: `go` may use.
_ROOM: Final = 256 * 2**10
_LITTLE: Final = 64 * 2**10
#: The error of Lua beyond the memory limit, which programs may catch.
OUT_OF_MEMORY: Final = "not enough memory"
_FULL: Final = (None, b"failed", OUT_OF_MEMORY.encode(), b"")
_OWN: Final = frozenset({b"part", b"where"})  # requests of the sandbox itself
_BAD: Final = frozenset({b"failed", b"overtime"})
_AT_THE_END: Final = ("json", "json_decode", "tostring", "pairs", "failure")
_LIBRARY: Final = ("text", "alc_math", "layer1", "cards", "eval")
#: Parts that add names to `alc.math`; they are listed only when a program reads one of these.
_MATH: Final = ("math_random", "math_samples", "math_statistics", "math_special", "math_tests")
_CHUNKS: Final = frozenset({*_LIBRARY, *_MATH, "math_ziggurat"})
#: Names that the parts of the sandbox add to `alc`.
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
return chunk(layer0.libraries, layer0.host)"""
_DUMP: Final = b"""
local source, title, bare = ...
local chunk = load(source, title, "t")
return chunk and string.dump(chunk, bare)
"""
#: Lists the names that a part of the library adds to `alc`: runs it with tables that accept any
#: access and record assignments.
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
    """A sandboxed state: `go` with a `make_vm_opening`, then with answers until it is done.

    `shape_check` is the value of ALC_SHAPE_CHECK, the only variable that its program can read.
    """

    __slots__ = ("_aside", "_go", "_memory", "_raised", "_runtime")

    def __init__(
        self,
        *,
        memory: int = DEFAULT_MEMORY_BYTES,
        namespace: bytes = b"default",
        dice: tuple[int, int] = (0, 0),
        alc: bool = True,
        shape_check: bytes | None = None,
    ) -> None:
        self._runtime = create_lua_state(memory)
        self._memory = memory
        self._raised = False
        self._go, self._aside = self._runtime.execute(
            _code("sandbox"), _version(), namespace, alc, *dice, shape_check, mode=b"b"
        )

    def go(self, now: float | None, allowed: float, *given: Any) -> tuple[Any, ...]:
        """Run until the program makes a request or ends.

        Returns whether there is output to `take`, the kind of the request, and its arguments. `now`
        is None for an answer within the same advance: the time limit is not reset.
        """
        return self.supplied(self.run(now, allowed, given))

    def run(self, now: float | None, allowed: float, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Like `go`, but returns requests of the sandbox itself too; pass them to `supplied`."""
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
        """Replay many answers in one call; `given` has time, answer and next question of each.

        Returns how many were delivered, and the result of the last `go`; 0 if the memory limit has
        no room for all of them.
        """
        size = sum([len(item) for item in given if type(item) is bytes])
        if self._raised or self.memory + size + _LITTLE > self._memory:
            return 0, ()
        # The waiting answers do not count against the program's limit: answers that are delivered
        # one by one would not be in the state together.
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
        """Answer requests of the sandbox itself until the program makes one or ends."""
        while came[1] in _OWN:
            answer = (
                _code(came[2].decode())
                if came[1] == b"part"
                else _places(came[2] == b"math").get((came[2], came[3]))
            )
            came = self.run(None, 0.0, (True, answer))
        return came

    def take(self) -> tuple[Any, ...]:
        """Take the output: whether there is more, progress (step, total, message), the number of
        records, the records, and the log lines.
        """
        self._limit(max(self._memory, self.memory) + _ROOM)
        taken: tuple[Any, ...] = self._aside(b"take")
        return taken

    def seed(self, dice: tuple[int, int]) -> None:
        """Seed `math.random`, unless the program has set a seed itself."""
        self._aside(b"seed", *dice)

    @property
    def memory(self) -> int:
        """Bytes that the state uses."""
        used: int = self._runtime.get_memory_used(total=True)
        return used

    def _failed(self, came: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add message and traceback to a failure."""
        self._limit(self.memory + 2 * _ROOM)
        return (*came, *self._aside(b"told", *_ending()))

    def _has_room(self, size: int) -> bool:
        """Whether an answer of this size fits. The limit is raised for the answer alone."""
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
    """Arguments of the first `go`: `how` is "text", "file" or "package"; see `encode_lua_ctx`.

    The mode is b"b" for a source of `compile_lua`.
    """
    return _code("launch"), born, how, name, source, title, mode, *ctx


def compile_lua(source: bytes, title: bytes) -> bytes | None:
    """Compile a source, with its line numbers; None if it is not valid Lua."""
    try:
        return _dumped(source, title, False)
    except _lua_error():  # not enough memory
        return None


def create_lua_state(memory: int) -> Any:
    """A plain Lua state without access to Python; raises `MissingExtra` without lupa."""
    return _lua()(
        encoding=None,
        attribute_filter=_deny,
        register_eval=False,
        register_builtins=False,
        max_memory=memory,
    )


def _deny(_object: object, _name: object, _is_setting: bool) -> str:
    raise AttributeError("Python objects are not accessible from Lua")


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
    # A state chooses this name, so it must not lead out of this folder.
    if not name.replace("_", "").isalnum():
        raise LookupError(name)
    from importlib.resources import files

    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


@cache
def _code(name: str) -> bytes:
    text = _text(name)
    source = _LIBRARY_PART % text if name in _CHUNKS else text
    code = _dumped(source.encode(), b"=[everhold]", True)
    assert code is not None, name
    return code


def _dumped(source: bytes, title: bytes, bare: bool) -> bytes | None:
    """Compile a text to bytecode; `bare` drops names and lines. None if it is not valid Lua."""
    code: bytes | None = create_lua_state(DEFAULT_MEMORY_BYTES).execute(_DUMP, source, title, bare)
    return code


@cache
def _ending() -> tuple[bytes, ...]:
    """The parts that format an error. They are passed in, because a failed state cannot ask."""
    return tuple(given for name in _AT_THE_END for given in (name.encode(), _code(name)))


@cache
def _places(math: bool = False) -> dict[tuple[bytes, bytes], bytes]:
    """For each name of each table, or of `alc.math` alone: the part that defines it."""
    found = {
        (b"alc", name.encode()): part.encode() for part, names in _LAYER0.items() for name in names
    }
    for part in _MATH if math else _LIBRARY:
        listed = (
            create_lua_state(DEFAULT_MEMORY_BYTES).compile(_LISTING)(_text(part).encode()) or ()
        )
        for home, name in zip(listed[::2], listed[1::2], strict=True):
            found[(home, name)] = part.encode()
    return found
