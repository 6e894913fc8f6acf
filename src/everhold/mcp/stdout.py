"""Over standard output goes the protocol and nothing else.

Before anything of the user's is loaded, file descriptor 1 is made to point at standard error, and
the protocol gets a private copy of what it was: what a program, a library, a warning or a child
process prints cannot reach the client.
"""

from __future__ import annotations

import os
import sys
from typing import Final

#: The private copy, once it has been made.
_PRIVATE: Final[list[int]] = []


def guard_stdout() -> None:
    """Point file descriptor 1 at standard error; the client is reached by `take_client_descriptors`
    only. Once a process.
    """
    if not _PRIVATE:
        sys.stdout.flush()
        _open_standard_error()
        _PRIVATE.append(os.dup(1))  # not inheritable: no child has it
        os.dup2(2, 1)


def _open_standard_error() -> None:
    """Where it was closed, let it lead nowhere; else the next file we open would be taken for
    it.
    """
    try:
        os.fstat(2)
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        if nothing != 2:
            os.dup2(nothing, 2)
            os.close(nothing)


def take_client_descriptors() -> tuple[int, int]:
    """Descriptors of what the client writes and of what it reads; standard input is empty for all
    others from now.
    """
    guard_stdout()
    incoming = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return incoming, _PRIVATE[0]
