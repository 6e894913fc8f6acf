"""Confinement of the process that runs Lua: what it could still do to this machine after an escape
from the sandbox.

Each wall is put up where the system has it; `confine_process` returns the names of those that
stand. Windows has none, and no workers either.

    limits    no core file, no file written, few descriptors, no process of its own, a bounded address space
    parent    it dies with whoever started it (Linux)
    calls     the kernel refuses every call beside reading, memory and time: no network, no exec, no fork, no file
              opened for writing, no signal sent, no executable memory (Linux on x86-64)
"""  # noqa: E501

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from typing import Any, Final

try:
    import resource
except ImportError:  # Windows, which has no worker processes
    resource = None  # type: ignore[assignment]

_PDEATHSIG = 1
_NO_NEW_PRIVS = 38
_SECCOMP = 22
_FILTER = 2
_ARCH_X86_64: Final = 0xC000003E
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050001  # with EPERM
_KILL = 0x80000000
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND
_WRITING: Final = 0o1 | 0o2 | 0o100 | 0o1000 | 0o2000
_EXECUTABLE: Final = 4
#: Calls of x86-64 that a worker needs when it has started, by what they are for.
_CALLS: Final = {
    "read, write, close, look at what is open": "0 1 3 5 8 17 19 20 33 72 79 217 292",
    "look at files": "4 6 21 89 262 267 269 332 439",
    "memory": "11 12 25 28",
    "signals to itself, locks": "13 14 15 24 131 202 219 273 334",
    "clocks and timers": "35 36 38 96 98 100 228 229 230",
    "who and where it is, limits, random bytes": "39 63 97 99 102 104 107 108 110 160 186 204 318",
    "exit": "60 231",
}
#: Calls that are allowed unless an argument has one of these bits: call, argument, bits.
_CAREFUL: Final = (
    (2, 1, _WRITING),
    (257, 2, _WRITING),
    (9, 2, _EXECUTABLE),
    (10, 2, _EXECUTABLE),
    (302, 0, 0xFFFFFFFF),  # limits of any process but its own
)


def confine_process(space: int, parent: int) -> list[str]:
    """Put up the walls; returns which of them stand. Ends the process if its parent has gone
    already.
    """
    standing = []
    if _limited(space):
        standing.append("limits")
    if sys.platform == "linux":
        call = ctypes.CDLL(None, use_errno=True).prctl
        if call(_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            standing.append("parent")
        if os.getppid() != parent:
            os._exit(0)
        if _filtered(call):
            standing.append("calls")
    return standing


def _limited(space: int) -> bool:
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": 32,
        "RLIMIT_NPROC": 0,
        "RLIMIT_AS": space,
    }
    whole = True
    for name, value in wanted.items():
        try:
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
        except (AttributeError, OSError, ValueError):
            whole = whole and name != "RLIMIT_AS"
    return whole


def _filtered(call: Any) -> bool:
    """Have the kernel refuse all other calls, from now on and for good."""
    if os.uname().machine != "x86_64" or sys.maxsize < 2**32:
        return False
    if call(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    program = b"".join(_program())
    text = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    return bool(call(_SECCOMP, _FILTER, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0)


def _program() -> list[bytes]:
    """The filter: instructions of eight bytes, each with how far to jump if it holds and if not."""
    steps = [
        _step(_LOAD, 4),  # the architecture
        _step(_EQUAL, _ARCH_X86_64, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),  # the call
        _step(_AT_LEAST, 0x40000000, 0, 1),  # the other numbering of the same calls
        _step(_RETURN, _REFUSE),
    ]
    for number, argument, bits in _CAREFUL:
        steps += [
            _step(_EQUAL, number, 0, 4),
            _step(_LOAD, 16 + 8 * argument),
            _step(_ANY_BIT, bits, 0, 1),
            _step(_RETURN, _REFUSE),
            _step(_RETURN, _ALLOW),
        ]
    for number in (int(word) for words in _CALLS.values() for word in words.split()):
        steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ALLOW)]
    return [*steps, _step(_RETURN, _REFUSE)]


def _step(code: int, value: int, so: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, so, otherwise, value)
