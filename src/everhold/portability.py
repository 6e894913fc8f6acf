"""What differs between operating systems: file locks, processes, signals, and rights of files.

Only this module asks which system it runs on, beside the sandbox of Lua workers, which exists on
POSIX systems only. Every name can be imported everywhere. What a system cannot do is left out, as
each function says, or refused by its caller.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

#: Whether Lua programs can run in worker processes: they need descriptors that are inherited.
HAS_LUA_WORKERS: Final = fcntl is not None
#: Flags of `os.open` that Windows lacks. There, descriptors are never inherited anyway.
CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
#: The return code of a process that was killed.
KILLED: Final = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1
#: Windows reports fixed mode bits and no owner; rights there are kept in access control lists.
HAS_OWNERS: Final = hasattr(os, "getuid")


# ---- files


def lock_file(handle: int) -> None:
    """Take the exclusive lock of an open file, until it is closed; raises `BlockingIOError` if
    another process holds it.
    """
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    locking: Any = msvcrt
    try:
        locking.locking(handle, locking.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(error.errno, error.strerror) from None


def open_inside(folder: Path, parts: Sequence[str]) -> int:
    """Open a file below a folder for reading. No part of the path may be a link that leads out of
    the folder.
    """
    if os.open not in os.supports_dir_fd:  # Windows: checked by name, where links need a privilege
        place = folder.resolve().joinpath(*parts)
        if place.resolve() != place:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(place))
        if place.exists() and not place.is_file():  # opening a pipe or device could wait for ever
            raise OSError(errno.EINVAL, "the path is not a plain file", str(place))
        return os.open(place, os.O_RDONLY)
    place_handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:  # each part by itself, so that none is replaced in between
            flags = os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW
            below = os.open(part, flags, dir_fd=place_handle)
            os.close(place_handle)
            place_handle = below
        return os.open(parts[-1], os.O_RDONLY | NO_FOLLOW, dir_fd=place_handle)
    finally:
        os.close(place_handle)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Does nothing where a folder cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def may_others_write(found: os.stat_result) -> bool:
    """Whether users other than this one and root may change a file. Never, without owners."""
    if not HAS_OWNERS:
        return False
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return bool(shared) or found.st_uid not in (os.getuid(), 0)


def may_others_read(found: os.stat_result) -> bool:
    """Whether users other than this one may read or change a file. Never, without owners."""
    return HAS_OWNERS and bool(found.st_mode & 0o077)


# ---- processes


def has_process_ended(pid: int) -> bool:
    """Whether a process of this machine has ended. False where that cannot be known: the process
    then counts as alive until its heartbeat is late.
    """
    if not HAS_OWNERS:  # on Windows, os.kill(pid, 0) would interrupt the process
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:  # a zombie: common where a container has no init
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return False


def kill_process_group(process: subprocess.Popen[bytes] | asyncio.subprocess.Process) -> None:
    """Kill a process that was started with `start_new_session=True`, and all that it started, also
    if it has ended itself. Where there are no process groups, kill the process alone.
    """
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode is None:
            process.kill()


def on_stop_signals(loop: asyncio.AbstractEventLoop, call: Callable[[int], None]) -> None:
    """Call a function on the loop when the process is asked to stop (SIGINT, SIGTERM)."""
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, call, number)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda got, _: loop.call_soon_threadsafe(call, got))


def restore_stop_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Give SIGINT and SIGTERM their usual effect again."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        try:
            loop.remove_signal_handler(number)
        except NotImplementedError:
            signal.signal(number, usual)
