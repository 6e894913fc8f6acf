"""Keeps standard output for the protocol.

Before any code of the user is loaded, file descriptor 1 is pointed at standard error, and the
protocol gets a private copy of the old one. So the output of programs, libraries, warnings and
child processes cannot reach the client.
"""

from __future__ import annotations

import os
import sys
from typing import Final

#: The private copy of standard output.
_PRIVATE: Final[list[int]] = []


def guard_stdout() -> None:
    """Point file descriptor 1 at standard error, once per process.

    Only `take_client_descriptors` then reaches the client.
    """
    if not _PRIVATE:
        sys.stdout.flush()
        # If standard error is closed, point it at the null device.
        # Otherwise the next file that is opened would get its number.
        try:
            os.fstat(2)
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            if nothing != 2:
                os.dup2(nothing, 2)
                os.close(nothing)
        _PRIVATE.append(os.dup(1))  # not inheritable, so no child process has it
        os.dup2(2, 1)


def take_client_descriptors() -> tuple[int, int]:
    """The descriptors that the client writes to and reads from.

    From now on, standard input is empty for all other code.
    """
    guard_stdout()
    incoming = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return incoming, _PRIVATE[0]
