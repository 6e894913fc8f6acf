"""Reads the traceback of a Lua program, so that its frames are shown like those of Python.

t.lua:2: in upvalue 'inner'          the frame that raised the error comes first
t.lua:4: in function <t.lua:4>
"""

from __future__ import annotations

import re
from typing import Final

from everhold.exception_info import MAX_FRAMES, ExceptionInfo, FrameInfo, keep_frames, limit_size

#: The type of an error that Lua code raised.
LUA_ERROR: Final = "LuaError"
#: Characters of the message and of each name that a frame holds.
_MOST: Final = 500
_FRAME: Final = re.compile(r"(?P<file>[^\n]+?):(?P<line>\d+): in (?P<function>[^\n]+)")


def read_lua_exception(message: str, lines: str) -> ExceptionInfo | None:
    """The error of a Lua program with its frames; None if no frame is known."""
    frames = [
        FrameInfo(found["file"][:_MOST], int(found["line"][:9]), found["function"][:_MOST])
        for found in map(_FRAME.fullmatch, map(str.strip, lines.split("\n")))
        if found
    ]
    if not frames:
        return None
    info = ExceptionInfo(LUA_ERROR, message[:_MOST], frames[::-1])
    return limit_size(keep_frames(info, MAX_FRAMES))
