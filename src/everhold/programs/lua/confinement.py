"""Confinement of the process that runs Lua: limits what code could do after an escape from Lua.

`confine_process` sets each protection that the system has, and returns the names of those that are
active. A protection that the system refuses is skipped. Windows has no workers.

    limits    setrlimit: no core dump, no data written to files, 32 descriptors, no new process, a
              limited address space. macOS may refuse or ignore the address space (RLIMIT_AS).
    parent    the process is killed when its parent dies (Linux)
    calls     seccomp: the kernel refuses every system call except reading, memory and time. No
              network, no exec, no fork, no file opened for writing, no signal to others, no
              executable memory (Linux on x86-64, 64-bit)
"""

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

# Numbers of the Linux kernel: prctl options, seccomp results, and BPF instructions.
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
#: System calls of x86-64 that a started worker needs, by purpose.
_CALLS: Final = {
    "read, write, close, inspect descriptors": "0 1 3 5 8 17 19 20 33 72 79 217 292",
    "inspect files": "4 6 21 89 262 267 269 332 439",
    "memory": "11 12 25 28",
    "signal handlers, locks": "13 14 15 24 131 202 219 273 334",
    "clocks and timers": "35 36 38 96 98 100 228 229 230",
    "own ids, system info, limits, random": "39 63 97 99 102 104 107 108 110 160 186 204 318",
    "exit": "60 231",
}
#: Calls that are allowed unless an argument has one of these bits: call, argument, bits.
_CAREFUL: Final = (
    (2, 1, _WRITING),
    (257, 2, _WRITING),
    (9, 2, _EXECUTABLE),
    (10, 2, _EXECUTABLE),
    (302, 0, 0xFFFFFFFF),  # prlimit64 of another process
)


def confine_process(space: int, parent: int) -> list[str]:
    """Confine this process; returns the active protections. Exits if the parent is already gone."""
    active = []
    if _set_limits(space):
        active.append("limits")
    if sys.platform == "linux":
        call = ctypes.CDLL(None, use_errno=True).prctl
        if call(_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0:
            active.append("parent")
        # The parent may have died before prctl; then no signal comes.
        if os.getppid() != parent:
            os._exit(0)
        if _install_filter(call):
            active.append("calls")
    return active


def _set_limits(space: int) -> bool:
    """Set the resource limits; False if the address space could not be limited."""
    wanted = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NOFILE": 32,
        "RLIMIT_NPROC": 0,
        "RLIMIT_AS": space,
    }
    is_limited = True
    for name, value in wanted.items():
        try:
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
        except (AttributeError, OSError, ValueError):
            is_limited = is_limited and name != "RLIMIT_AS"
    return is_limited


def _install_filter(call: Any) -> bool:
    """Install the seccomp filter, which cannot be removed; False if the kernel does not take it."""
    if os.uname().machine != "x86_64" or sys.maxsize < 2**32:
        return False
    # Without this the kernel allows filters for root only.
    if call(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    program = b"".join(_make_filter())
    text = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
    return bool(call(_SECCOMP, _FILTER, ctypes.create_string_buffer(head, len(head)), 0, 0) == 0)


def _make_filter() -> list[bytes]:
    """The BPF program: instructions of eight bytes, with the jumps for true and for false."""
    steps = [
        _step(_LOAD, 4),  # the architecture
        _step(_EQUAL, _ARCH_X86_64, 1, 0),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),  # the number of the system call
        # The x32 ABI has the same calls under other numbers, which would bypass the list.
        _step(_AT_LEAST, 0x40000000, 0, 1),
        _step(_RETURN, _REFUSE),
    ]
    # These read the low 32 bits of an argument; all flags that are tested here are in them.
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
