"""Finds the name of a refused call as the program's author wrote it.

A call is refused deep inside a library: `asyncio.to_thread` becomes `loop.run_in_executor`, a
pool's `submit` becomes an audit event of `_thread`. This module walks the stack back to the
program's own code; the outermost library call is what the author wrote. It runs only when a call is
refused or reported.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

from everhold.errors import ForeignCall

_STDLIB: Final = sys.stdlib_module_names - {"__main__", "test"}
#: Modules that only forward a call: their names would say nothing to the author.
_FORWARDING: Final = frozenset({"contextlib", "functools", "everhold.core.unknown_names"})
_HERE: Final = "everhold.programs."
_GUARD: Final = "everhold.programs.python.determinism_guard"


def make_foreign_call_error(plain: str, frame: FrameType | None) -> ForeignCall:
    """The error for a call that was refused in `frame`.

    Coroutines among the arguments are closed: they will not run, and Python would warn about them.
    """
    for library in _library_frames(frame):
        for value in list(library.f_locals.values()):
            for item in value if type(value) in (tuple, list) else (value,):
                close_unstarted(item)
    return ForeignCall(find_call_name(plain, frame))


def find_call_name(plain: str, frame: FrameType | None) -> str:
    """The outermost library call above `frame`, or `plain` if the program itself made the call."""
    outermost = None
    for library in _library_frames(frame):
        if _module(library) not in _FORWARDING:
            outermost = library
    if outermost is None:
        return plain
    name = _name(outermost)
    module = _module(outermost)
    if module.startswith("everhold."):
        return f"{name} (see ctx.run and ctx.spawn)"
    return name if _is_stdlib(module) else f"{name} ({plain})"


def find_program_line(frame: FrameType | None) -> tuple[str, int]:
    """The file and line of the program's own code that made the call."""
    while frame is not None and (_is_library(frame) or _module(frame) == _GUARD):
        frame = frame.f_back
    return ("?", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _library_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames between a refused call and the program's own code, innermost first."""
    while frame is not None and _module(frame) == _GUARD:
        frame = frame.f_back
    while frame is not None and _is_library(frame):
        yield frame
        frame = frame.f_back


def _is_library(frame: FrameType) -> bool:
    module = _module(frame)
    if module.startswith("everhold."):
        return not module.startswith(_HERE)
    return _is_stdlib(module) or "site-packages" in frame.f_code.co_filename


def _is_stdlib(module: str) -> bool:
    return module.partition(".")[0] in _STDLIB


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _name(frame: FrameType) -> str:
    """A function's public name: `multiprocessing.Process.start`, not the module that defines it."""
    code = frame.f_code
    module = _module(frame)
    qualname = code.co_qualname
    # The frame has the code object only, so a method's class is found through its first argument.
    if "." in qualname and code.co_argcount and code.co_varnames[0] in ("self", "cls"):
        owner: Any = frame.f_locals.get(code.co_varnames[0])
        kind: Any = owner if isinstance(owner, type) else type(owner)
        module = kind.__module__
        qualname = f"{kind.__qualname__}.{code.co_name}"
    qualname = qualname.removesuffix(".__init__").removesuffix(".__enter__")
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        shorter = ".".join(parts[:length])
        home = sys.modules.get(shorter)
        same = getattr(home, code.co_name, None)
        if getattr(same, "__code__", None) is code:
            return f"{shorter}.{code.co_name}"
        if hasattr(home, qualname.partition(".")[0]):
            return f"{shorter}.{qualname}"
    return f"{module}.{qualname}"


def close_unstarted(value: object) -> None:
    """Close a coroutine that has not started, so that Python does not warn that it never was."""
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()
