"""Which processes live, as far as this machine can tell.

A process id means something only where it was given: on one machine, since it was started, in one container. Two
containers may share a name, and two machines too; neither can tell whether a process of the other lives.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path


@cache
def here() -> str:
    """The name of this machine, a slash, and what tells apart those of the same name whose process ids are others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # not on Linux
        return f"{socket.gethostname()}/"


def named(place: str) -> str:
    """The name of the machine, for people."""
    return place.partition("/")[0]


def gone(pid: int) -> bool:
    """Whether the process of that id has ended; its id has to be one of `here`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _undead(pid)


def _undead(pid: int) -> bool:
    """Whether a process has ended and only nobody has taken note of it: common where a container has no init."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return False
