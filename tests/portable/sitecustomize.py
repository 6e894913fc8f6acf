"""Takes away from everhold what Windows does not have. Python loads this file at its start from
PYTHONPATH.

`tools/portable.py` runs tests with it on this system. A module of everhold that needs one of these
modules, functions, flags or signals then fails here too. Other packages see the whole system. It
does not turn this system into Windows: paths and the rules of open files stay as they are.
"""

import asyncio
import builtins
import fcntl
import os
import signal
import types

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
MISSING = {
    "os": {
        *("chown", "fchmod", "fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg"),
        *("getpgid", "getuid", "killpg", "setpgid", "setsid", "uname", "O_CLOEXEC", "O_DIRECTORY"),
        *("O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC"),
    },
    "signal": {
        *("SIGALRM", "SIGCONT", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2"),
        *("alarm", "pthread_sigmask", "setitimer"),
    },
}


def _open(path, flags, mode=0o777, *, dir_fd=None):  # type: ignore[no-untyped-def]
    """A folder cannot be opened, and no file relative to one."""
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, flags, mode)


def _kill(pid, number):  # type: ignore[no-untyped-def]
    """There, any other number than these two kills the process."""
    raise AssertionError(f"os.kill({pid}, {number}) would not only look on Windows")


REPLACED = {"os": {"open": _open, "kill": _kill, "supports_dir_fd": set()}, "signal": {}}


class Reduced(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__(real.__name__)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> object:
        module = self.__dict__["_real"]
        if name in MISSING[module.__name__]:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        if name in REPLACED[module.__name__]:
            return REPLACED[module.__name__][name]
        return getattr(module, name)


def _locking(handle: int, mode: int, count: int) -> None:
    """Like the real one: a region that another handle has locked is a `PermissionError`."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.locking = 2, _locking
reduced = {"os": Reduced(os), "signal": Reduced(signal)}
whole_import = builtins.__import__


def _import(name, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]
    if globals and globals.get("__name__", "").partition(".")[0] == "everhold":
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in reduced:
            return reduced[name]
        if name == "msvcrt":
            return msvcrt
    return whole_import(name, globals, locals, fromlist, level)


def _refuse(self: object, *args: object) -> None:
    raise NotImplementedError


builtins.__import__ = _import
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = _refuse
asyncio.unix_events._UnixSelectorEventLoop.remove_signal_handler = _refuse
