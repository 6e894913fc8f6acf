"""Where `require` finds its files: in the roots of a program, and nowhere else.

Rules
  1. The roots are looked through in their order; `root.py` says what is where in one.
  2. Files are looked at when they are required, and again on replay: what is on the disk is the program, as for
     Python. They are read if they have changed. A state has each of them once. What programs are told of files are
     their names in the root, never whole paths.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from everhold.programs.lua.look import Look, is_settled, look
from everhold.programs.lua.root import Root

#: The largest file that is read, in bytes.
LARGEST: Final = 4 * 2**20

#: How many texts are remembered, and how long one of them may be, in bytes.
_MANY, _SMALL = 256, 64 * 2**10
_known: dict[Path, tuple[Look, bytes]] = {}

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")


def find(name: str, roots: tuple[str, ...], allowed: Callable[[Path], bool] | None = None) -> tuple[bytes, str] | None:
    """The source of a module, and its name in its root.

    Raises `PermissionError` if its package is not `allowed`, where somebody has to allow it.
    """
    if _NAME.fullmatch(name) is None:
        return None
    name = name.replace("/", ".")  # some write the path
    for root in map(Root.of, roots):
        for place in root.places(name):
            if place.file.is_file() and root.keeps(place):
                if allowed is not None and not allowed(place.package):
                    raise PermissionError(errno.EACCES, "its package is not trusted; see `everhold pkg trust`")
                return source(place.file), place.title
        if root.ends(name):
            return None
    return None


def source(path: Path) -> bytes:
    """A file's text as Lua wants it."""
    seen, now = look(os.stat(path)), time.time_ns()
    known = _known.get(path)
    if known is not None and known[0] == seen:
        return known[1]
    text = _text(path)
    if len(text) <= _SMALL and is_settled(seen, now):
        if len(_known) >= _MANY:
            _known.clear()
        _known[path] = seen, text
    return text


def _text(path: Path) -> bytes:
    read = _bytes(path)
    if len(read) > LARGEST:
        return b"error('this file is too large to be loaded', 0)"
    return cleaned(read)


def cleaned(text: bytes) -> bytes:
    """A text without a byte order mark, and with a first line for the shell made a comment."""
    text = text.removeprefix(b"\xef\xbb\xbf")
    return b"--" + text if text.startswith(b"#") else text


def _bytes(path: Path) -> bytes:
    """What is in a file, as far as it may be read and a byte more. A file object would cost more than the reading."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found, rest = b"", min(os.fstat(file).st_size, LARGEST) + 1
        while rest and (more := os.read(file, rest)):
            found, rest = found + more, rest - len(more)
        return found
    finally:
        os.close(file)
