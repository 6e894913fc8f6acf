"""Where `require` finds its files: in the roots of a program, and nowhere else.

Rules
  1. The roots are looked through in their order; `search_path.py` says what is where in one.
  2. Files are looked at when they are required, and again on replay: what is on the disk is the
     program, as for Python. They are read if they have changed, and compiled when they are wanted
     again. A state has each of them once. What programs are told of files are their names in the
     root, never whole paths.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from everhold.programs.lua.search_path import (
    FileFingerprint,
    SearchRoot,
    is_settled,
    make_file_fingerprint,
)
from everhold.programs.lua.vm import compile_lua

#: The largest file that is read, in bytes.
MAX_SOURCE_BYTES: Final = 4 * 2**20

#: How many texts are remembered, and how long one of them may be, in bytes.
_MANY = 256
_SMALL = 64 * 2**10
_known: dict[tuple[str, str], tuple[FileFingerprint, LuaSource]] = {}

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")


class LuaSource(msgspec.Struct):
    """A file as Lua loads it."""

    title: str
    code: bytes
    # "t" for text, "b" for what was compiled; None for text that was not compiled yet
    mode: bytes | None = None


def find_lua_module(
    name: str, roots: tuple[str, ...], allowed: Callable[[Path], object] | None = None
) -> LuaSource | None:
    """The source of a module; its title is its name in its root.

    Raises `PermissionError` if its package is not `allowed`, where somebody has to allow it.
    """
    if _NAME.fullmatch(name) is None:
        return None
    name = name.replace("/", ".")  # some write the path
    for root in map(SearchRoot.of, roots):
        for place in root.places(name):
            if place.file.is_file() and root.keeps(place):
                if allowed is not None and not allowed(place.package):
                    raise PermissionError(
                        errno.EACCES, "its package is not trusted; see `everhold pkg trust`"
                    )
                return load_lua_source(place.file, place.title)
        if root.ends(name):
            return None
    return None


def load_lua_source(path: Path, title: str) -> LuaSource:
    """A file under the name that errors in it tell."""
    place = str(path)
    seen = make_file_fingerprint(os.stat(place))
    known = _known.get((place, title))
    if known is None or known[0] != seen:
        return _read(place, title, seen)
    found = known[1]
    if found.mode is None:
        code = compile_lua(found.code, f"@{title}".encode())
        found.code, found.mode = (found.code, b"t") if code is None else (code, b"b")
    return found


def _read(place: str, title: str, seen: FileFingerprint) -> LuaSource:
    now = time.time_ns()
    found = LuaSource(title, _text(place))
    if len(found.code) <= _SMALL and is_settled(seen, now):
        if len(_known) >= _MANY:
            _known.clear()
        _known[place, title] = seen, found
    return found


def _text(path: str) -> bytes:
    read = _bytes(path)
    if len(read) > MAX_SOURCE_BYTES:
        return b"error('this file is too large to be loaded', 0)"
    return clean_lua_source(read)


def clean_lua_source(text: bytes) -> bytes:
    """A text without a byte order mark, and with a first line for the shell made a comment."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    return b"--" + text if text.startswith(b"#") else text


def _bytes(path: str) -> bytes:
    """What is in a file, as far as it may be read and a byte more. A file object would cost more
    than the reading.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        rest = min(os.fstat(file).st_size, MAX_SOURCE_BYTES) + 1
        while rest and (more := os.read(file, rest)):
            found = found + more
            rest = rest - len(more)
        return found
    finally:
        os.close(file)
