"""One Lua state with a program in it: the sandbox, and the limits on what it may use.

Rules
  1. Bytes, numbers and truth values go in and come out. The one Python object in a state is `_fetch`, which reads our
     own compiled Lua; it stays an upvalue of the sandbox, and nothing of Python can be looked up on it.
  2. Whatever the program asks comes out of `go` as a kind and its arguments; what is said goes in with the next `go`.
  3. Our own Lua is compiled once in a process. What of it is rarely needed is loaded into a state with its first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

from everhold.core.errors import MissingExtra

#: Bytes that one state may hold, unless somebody says otherwise.
MEMORY: Final = 64 * 2**20
#: Seconds of CPU that one advance may take in this process, unless somebody says otherwise.
CPU: Final = 1.0

_LIBRARY: Final = ("text", "numbers", "layer1", "cards")
#: What the parts of the sandbox add to `alc`.
_LAYER0: Final = {
    "bridge": ("_dirs", "budget_remaining", "fork", "json_decode", "json_encode", "llm_batch", "null", "state"),
    "saying": ("log", "progress", "stats"),
}
_LIBRARY_PART: Final = """local kit = ...
local function chunk(...) %s
end
chunk(kit.libraries, kit.part("bridge").host)"""
#: Runs a chunk of the library where everything it touches is a shadow, and tells what it adds to `alc`.
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
"""


class Vm:
    """A sandboxed state. `begin` once, then `go` until it is done."""

    __slots__ = ("_runtime", "begin", "go", "seed", "take")

    begin: Callable[..., None]
    go: Callable[..., tuple[Any, ...]]
    seed: Callable[[int, int], None]
    take: Callable[[], tuple[Any, ...]]

    def __init__(self, *, memory: int = MEMORY, namespace: bytes = b"default", alc: bool = True) -> None:
        self._runtime = runtime(memory)
        boot = self._runtime.compile(_code("sandbox"), mode=b"b")
        self.begin, self.go, self.seed, self.take = boot(_fetch, _version(), namespace, alc)

    @property
    def memory(self) -> int:
        """How many bytes its state holds."""
        used: int = self._runtime.get_memory_used(total=True)
        return used


def runtime(memory: int) -> Any:
    """A bare Lua state, from which nothing of Python can be looked up; `MissingExtra` if there is no Lua."""
    try:
        from lupa.lua54 import LuaRuntime  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("lua", "a Lua program") from None
    return LuaRuntime(
        encoding=None,
        attribute_filter=_deny,
        register_eval=False,
        register_builtins=False,
        max_memory=memory,
    )


def _deny(_object: object, _name: object, _is_setting: bool) -> str:
    raise AttributeError("nothing of Python is reachable from here")


def _fetch(of: bytes, name: bytes | None = None) -> bytes | None:
    """A compiled part of our own Lua; or, for a table in `alc` and a name in it, the part that has it."""
    if name is None:
        return _code(of.decode())
    return _places().get((of, name))


# ---- our own Lua, compiled once


@cache
def _version() -> bytes:
    return version("everhold").encode()


def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text("utf-8")


@cache
def _code(name: str) -> bytes:
    text = _text(name)
    source = _LIBRARY_PART % text if name in _LIBRARY else text
    dump = runtime(MEMORY).execute(b"return function(code) return string.dump(load(code, '=[everhold]'), true) end")
    compiled: bytes = dump(source.encode())
    return compiled


@cache
def _places() -> dict[tuple[bytes, bytes], bytes]:
    """Which part has which name of which table."""
    found = {(b"alc", name.encode()): part.encode() for part, names in _LAYER0.items() for name in names}
    for part in _LIBRARY:
        listed = runtime(MEMORY).compile(_LISTING)(_text(part).encode()) or ()
        for home, name in zip(listed[::2], listed[1::2], strict=True):
            found[(home, name)] = part.encode()
    return found
