"""Guards determinism: finds outside effects and endless loops in the code of programs.

An audit hook sees threads, processes, sockets, files and blocking sleeps, on the thread where a
program runs and only while it runs. Threads and processes are always refused. The rest is handled
by `mode`: "off", "warn" (the default: one log line per source line) or "refuse" (for tests).
Imports, tracebacks and time zone data may read files. Reading the wall clock and drawing random
numbers raise no audit event and are not seen; replay finds those.

A watch thread measures each advance. An advance that uses more than `limit` seconds of its thread's
CPU time is stopped, if it runs Python code; a call into C cannot be stopped. An advance that takes
longer by the clock, because it blocks or the machine is busy, is logged once and continues. Time at
a debugger's prompt does not count.
"""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import BadSetting, ForeignCall, Spinning
from everhold.programs.call_names import find_call_name, find_program_line, make_foreign_call_error

if TYPE_CHECKING:
    from everhold.programs.python.execution import PythonExecution

log = logging.getLogger("everhold.program")

#: Audit events that are refused in every mode: a started thread or process cannot be undone.
REFUSED: Final = {
    "_thread.start_new_thread": "_thread.start_new_thread",
    "_thread.start_joinable_thread": "_thread.start_joinable_thread",
    "subprocess.Popen": "subprocess.Popen",
    "os.system": "os.system",
    "os.fork": "os.fork",
    "os.forkpty": "os.forkpty",
    "os.posix_spawn": "os.posix_spawn",
    "os.spawn": "os.spawnv",
    "os.exec": "os.execv",
    "os.startfile": "os.startfile",
    "pty.spawn": "pty.spawn",
}
#: Audit events that are handled by `mode`.
REPORTED: Final = {
    "open": "open",
    "builtins.input": "input",
    "time.sleep": "time.sleep",
    "sqlite3.connect": "sqlite3.connect",
    "dbm.open": "dbm.open",
    "mmap.__new__": "mmap.mmap",
    "urllib.Request": "urllib.request",
    "http.client.connect": "http.client",
    "ftplib.connect": "ftplib",
    "imaplib.open": "imaplib",
    "poplib.connect": "poplib",
    "smtplib.connect": "smtplib",
    "webbrowser.open": "webbrowser.open",
    **{
        f"socket.{verb}": f"socket.{verb}"
        for verb in ("connect", "bind", "sendto", "sendmsg", "getaddrinfo")
    },
    **{
        f"socket.{verb}": f"socket.{verb}"
        for verb in ("gethostbyname", "gethostbyaddr", "gethostname", "getnameinfo")
    },
    **{
        f"os.{verb}": f"os.{verb}"
        for verb in ("remove", "rename", "link", "symlink", "mkdir", "rmdir", "truncate")
    },
    **{
        f"os.{verb}": f"os.{verb}"
        for verb in ("listdir", "scandir", "chmod", "chown", "utime", "chdir", "kill")
    },
    **{f"os.{verb}": f"os.{verb}" for verb in ("putenv", "unsetenv")},
    **{
        f"shutil.{verb}": f"shutil.{verb}"
        for verb in ("copyfile", "copytree", "move", "rmtree", "make_archive")
    },
    **{f"tempfile.{verb}": f"tempfile.{verb}" for verb in ("mkstemp", "mkdtemp")},
}
MODES: Final = ("off", "warn", "refuse")
_WATCHED: Final = {**REPORTED, **REFUSED}
#: Modules that read files for Python itself (imports, tracebacks, time zones).
_READERS: Final = frozenset(
    {
        "_frozen_importlib",
        "_frozen_importlib_external",
        "importlib",
        "inspect",
        "linecache",
        "logging",
        "pkgutil",
        "tokenize",
        "traceback",
        "warnings",
        "zipimport",
        "zoneinfo",
    }
)
_DEBUGGERS: Final = (
    "bdb",
    "pdb",
    "pydevd",
    "debugpy",
    "_pydevd_bundle",
    "_pydev_bundle",
    "IPython",
)


class _Settings:
    mode = "warn"
    limit = 10.0
    hook_installed = False
    watch_started = False


class _ThreadState:
    """One thread: the execution that advances there, and what the watch has measured."""

    __slots__ = (
        "advance",
        "began",
        "clock",
        "executing",
        "since",
        "spent",
        "struck",
        "thread",
        "warned",
    )

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.clock = _get_thread_clock()
        self.executing: PythonExecution | None = None
        self.since = 0.0
        self.struck = False
        # Written by the watch thread alone. It counts from the moment it first sees an advance, so
        # that starting an advance does not read a CPU clock.
        self.advance: tuple[float, int] | None = None
        self.began = 0.0  # by the clock
        self.spent = 0.0  # CPU time of the thread at that moment
        self.warned = False


def _get_thread_clock() -> int | None:
    """The id of this thread's CPU clock, which other threads can read; None if there is none."""
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        time.clock_gettime(clock)
    except (AttributeError, OSError):
        return None
    return clock


class _Local(threading.local):
    """The state of the current thread, made on first use.

    Making it may trigger the garbage collector, whose finalizers may raise audit events. The hook
    then reads the class attribute, in which nothing executes.
    """

    state = _ThreadState(0)

    def __init__(self) -> None:
        thread = threading.get_ident()
        self.state = _states[thread] = _ThreadState(thread)


_states: dict[int, _ThreadState] = {}  # by thread id; the system reuses the ids of ended threads
_settings = _Settings()
_real_start_new_thread: Final = _thread.start_new_thread
_real_sleep: Final = time.sleep
_local = _Local()
_warned_lines: set[tuple[str, int]] = set()
_lock = threading.Lock()  # held while `Overtime` is thrown into a thread


class Overtime(SystemExit):
    """Thrown into an advance that takes too long.

    A SystemExit, because `except Exception` does not catch it and asyncio tasks let it pass.
    """


def configure_guard(*, mode: str | None = None, limit: float | None = None) -> str:
    """Set how reported events are handled, and the CPU seconds that one advance may use.

    Returns the mode that was set before.
    """
    before = _settings.mode
    if mode is not None:
        if mode not in MODES:
            raise BadSetting("mode", f"{mode!r} is not one of {', '.join(MODES)}")
        _settings.mode = mode
    if limit is not None:
        if not limit > 0:
            raise BadSetting("limit", f"it must be more than 0 seconds, got {limit!r}")
        _settings.limit = limit
    return before


def make_overtime_error() -> Spinning:
    return Spinning(f"{_settings.limit:g} s of CPU time")


class WatchedAdvance:
    """Marks the execution that advances on this thread.

    Raises `Overtime` on leaving if the program caught the one that was thrown into it.
    """

    __slots__ = ("_before", "_execution", "_state")

    def __init__(self, execution: PythonExecution) -> None:
        self._execution = execution

    def __enter__(self) -> None:
        if not _settings.watch_started:
            _install()
        state = self._state = _local.state
        self._before = state.executing
        state.since = time.monotonic()
        state.executing = self._execution

    def __exit__(self, kind: object, *_: object) -> None:
        state = self._state
        state.executing = self._before
        if state.struck:
            state.struck = False
            _absorb_overtime()
            if kind is None:
                raise Overtime


def clear_executing() -> None:
    """Mark that nothing advances on this thread: `Overtime` may have interrupted `__exit__`."""
    swap_executing(None)


def swap_executing(executing: PythonExecution | None) -> PythonExecution | None:
    """Set the execution that advances on this thread; returns the one before."""
    state = _local.state
    before = state.executing
    state.executing = executing
    return before


def _install() -> None:
    with _lock:
        if not _settings.hook_installed:
            sys.addaudithook(_audit)
            if sys.version_info < (3, 12):  # starting a thread raises no audit event there
                _thread.start_new_thread = threading._start_new_thread = _start_new_thread  # type: ignore[attr-defined]
            if sys.version_info < (3, 13):  # neither does time.sleep
                time.sleep = _sleep
            _settings.hook_installed = True
        if not _settings.watch_started:
            threading.Thread(target=_watch, name="everhold-watch", daemon=True).start()
            _settings.watch_started = True


def _start_new_thread(*args: Any) -> int:
    sys.audit("_thread.start_new_thread", *args)
    return _real_start_new_thread(*args)


def _sleep(seconds: Any, /) -> None:
    sys.audit("time.sleep", seconds)
    _real_sleep(seconds)


def _after_fork() -> None:
    """A forked child keeps the hook, but only this thread, which has another CPU clock."""
    global _lock
    _lock = threading.Lock()
    _settings.watch_started = False
    state = _local.state
    state.clock = _get_thread_clock()
    state.advance = None
    _states.clear()
    _states[state.thread] = state


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# An audit hook cannot be removed. When the interpreter exits it clears the globals of this module
# while audit events still arrive, so what every event needs is bound in the defaults.
def _audit(
    event: str, args: tuple[Any, ...], watched: Mapping[str, str] = _WATCHED, local: _Local = _local
) -> None:
    if event not in watched:
        return
    executing = local.state.executing
    if executing is None:
        return
    name = _WATCHED[event]
    frame = sys._getframe(1)
    if event in REFUSED:
        raise make_foreign_call_error(name, frame)
    if _settings.mode != "off" and not _is_read_by_python(frame):
        if event == "open" and args:
            if "/zoneinfo/" in str(args[0]):
                return  # zoneinfo is written in C and has no frame on the stack
            name = f"open({args[0]!r})"
        if _settings.mode == "refuse":
            raise ForeignCall(find_call_name(name, frame))
        line = find_program_line(frame)
        if line not in _warned_lines and not executing.loop.dropped:
            _warned_lines.add(line)
            words = "%s in a program (%s, line %d): replay repeats it; use ctx.call"
            log.warning(words, find_call_name(name, frame), line[0], line[1])


def _is_read_by_python(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _READERS:
            return True
        if module == "everhold.programs.python.event_loop":
            return False
        frame = frame.f_back
    return False


def _watch() -> None:
    while True:
        _real_sleep(min(0.25, _settings.limit / 4))
        _check_advances(time.monotonic())


def _check_advances(now: float) -> None:
    """Stop advances that used too much CPU time, and warn of those that take long by the clock."""
    for state in list(_states.values()):
        running = state.executing
        if running is None:
            continue
        spent = _read_cpu_time(state)
        # `running.n` too: a replay makes many advances without leaving `WatchedAdvance`.
        advance = (state.since, running.n)
        if advance != state.advance:
            state.advance = advance
            state.began = now
            state.spent = spent
            state.warned = False
        # Both clocks must pass the limit: the CPU time may be that of the whole process, see
        # `_read_cpu_time`.
        elif now - state.began > _settings.limit:
            if _is_debugged(state.thread):
                state.began = now
                state.spent = spent
            elif spent - state.spent > _settings.limit:
                _strike(state, running)
            elif not state.warned:
                state.warned = True
                _warn(state, running, now - state.began, spent - state.spent)


def _read_cpu_time(state: _ThreadState) -> float:
    """CPU seconds of the thread, or of the whole process where threads have no clock (macOS)."""
    if state.clock is None:
        return time.process_time()
    try:
        return time.clock_gettime(state.clock)
    except OSError:  # the thread has just ended
        return 0.0


def _warn(state: _ThreadState, running: PythonExecution, took: float, spent: float) -> None:
    """Log that an advance takes long.

    On a thread of its own: the program may hold the lock of a log handler, and the watch must not
    wait for it.
    """
    file, number = find_program_line(sys._current_frames().get(state.thread))
    words = (
        "session %s (%s) has advanced for %.0f s and used %.1f s of CPU time, now at %s, line %d:"
        " the program blocks, or the machine is busy; move blocking calls into ctx.call"
    )
    args = (words, running.birth.id, running.birth.program, took, spent, file, number)
    threading.Thread(target=log.warning, args=args, name="everhold-warning", daemon=True).start()


def _strike(state: _ThreadState, running: PythonExecution) -> None:
    """Throw `Overtime` into a thread.

    `WatchedAdvance.__exit__` clears `executing` and then reads `struck`; here the order is the
    opposite. So either this function sees that the advance is over, or `__exit__` sees `struck` and
    absorbs the exception: it never reaches the code after the advance.
    """
    with _lock:
        state.struck = True
        if state.executing is running:
            import ctypes

            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(state.thread), ctypes.py_object(Overtime)
            )
        else:
            state.struck = False


def _absorb_overtime() -> None:
    """Catch an `Overtime` that was thrown at this thread too late.

    PyThreadState_SetAsyncExc only marks the thread; the exception is raised some bytecodes later,
    so this function runs a few. Clearing the mark instead would leave the interpreter checking for
    it for ever: on Python 3.11 a profiled program would never get past its first line.
    """
    try:
        with _lock:
            pass  # the watch may be inside `_strike`: wait until it has thrown
        for _ in range(100):
            pass
    except Overtime:
        pass


def _is_debugged(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False
