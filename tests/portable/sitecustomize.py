"""Takes away what Windows does not have. Python loads this file at its start from PYTHONPATH.

`tools/portable.py` runs tests with it, here, so that a module which needs one of these fails here
too. It does not turn this system into Windows: paths, signals and file locks stay as they are.
"""

import asyncio
import os
import signal
import sys

MODULES = ("fcntl", "grp", "posix_spawn", "pty", "pwd", "resource", "syslog", "termios", "tty")
FUNCTIONS = (
    "chown",
    "fchmod",
    "fork",
    "forkpty",
    "getegid",
    "geteuid",
    "getgid",
    "getloadavg",
    "getpgid",
    "getuid",
    "killpg",
    "setpgid",
    "setsid",
    "uname",
)
FLAGS = ("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC")
SIGNALS = ("SIGHUP", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGALRM")

# What the standard library and pytest keep for themselves they load first.
import logging.handlers  # noqa: E402, F401
import multiprocessing.util  # noqa: E402, F401
import shutil  # noqa: E402, F401
import subprocess  # noqa: E402, F401
import tempfile  # noqa: E402, F401

for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]
for name in (*FUNCTIONS, *FLAGS):
    if hasattr(os, name):
        delattr(os, name)
for name in SIGNALS:
    if hasattr(signal, name):
        delattr(signal, name)


def _refuse(self: object, *args: object) -> None:
    raise NotImplementedError


asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = _refuse
asyncio.unix_events._UnixSelectorEventLoop.remove_signal_handler = _refuse
os.supports_dir_fd = set()
_real_open = os.open


def _open(path, flags, mode=0o777, *, dir_fd=None):  # type: ignore[no-untyped-def]
    """A folder cannot be opened, and no file relative to one."""
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return _real_open(path, flags, mode)


os.open = _open
