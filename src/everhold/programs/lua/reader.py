"""Where `require` finds its files: in the roots of a program, and nowhere else.

Rules
  1. `a.b` is `<root>/a/b.lua` or `<root>/a/b/init.lua`, in the first root that has one.
  2. The first name may be a link: whoever put it into the root meant it. Below that nothing may leave the folder it
     is in, so that a package cannot carry links to other files.
  3. Files are read when they are required, and again on replay: what is on the disk is the program, as for Python.
     A state has each of them once. What programs are told of files are their names in the root, never whole paths.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

#: The largest file that is read, in bytes.
LARGEST: Final = 4 * 2**20

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def find(name: str, roots: tuple[str, ...], allowed: Callable[[Path], bool] | None = None) -> tuple[bytes, str] | None:
    """The source of a module, and its name in its root.

    Raises `PermissionError` if its package is not `allowed`, where somebody has to allow it.
    """
    if _NAME.fullmatch(name) is None:
        return None
    place = name.replace(".", "/")
    for root in roots:
        for candidate in (f"{place}.lua", f"{place}/init.lua"):
            path = Path(root, candidate)
            if path.is_file() and _stays(path, Path(root)):
                if allowed is not None and not allowed(Path(root, path.relative_to(root).parts[0])):
                    raise PermissionError(errno.EACCES, "its package is not trusted; see `everhold pkg trust`")
                return source(path), candidate
    return None


def source(path: Path) -> bytes:
    """A file's text as Lua wants it: without a byte order mark, and with a first line for the shell made a comment."""
    with path.open("rb") as file:
        read = file.read(LARGEST + 1)
    if len(read) > LARGEST:
        return b"error('this file is too large to be loaded', 0)"
    read = read.removeprefix(b"\xef\xbb\xbf")
    return b"--" + read if read.startswith(b"#") else read


def _stays(path: Path, root: Path) -> bool:
    top = root / path.relative_to(root).parts[0]
    return top == path or path.resolve().is_relative_to(top.resolve())
