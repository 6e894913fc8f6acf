"""Over standard output goes the protocol and nothing else.

Before anything of the user's is loaded, file descriptor 1 is made to point at standard error, and the protocol gets a
private copy of what it was: what a program, a library, a warning or a child process prints cannot reach the client.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Final, TextIO

#: The private copy, once it has been made.
_PRIVATE: Final[list[int]] = []


def guard() -> None:
    """Point file descriptor 1 at standard error; the client is reached by `wires` only. Once a process."""
    if not _PRIVATE:
        sys.stdout.flush()
        private = os.dup(1)  # not inheritable: no child has it
        os.dup2(2, 1)
        _PRIVATE.append(private)


def wires() -> tuple[TextIO, TextIO]:
    """What the client writes, and what it reads. Nothing else that runs here reads from standard input either."""
    guard()
    reader = io.TextIOWrapper(os.fdopen(os.dup(0), "rb"), encoding="utf-8", errors="replace")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    writer = io.TextIOWrapper(os.fdopen(_PRIVATE[0], "wb", closefd=False), encoding="utf-8", newline="\n")
    return reader, writer
