"""Guards determinism: finds threads, processes, sockets, files and blocking sleeps in the code of
programs.

An audit hook sees threads, processes, sockets, files and blocking sleeps while a program advances,
on that thread and nowhere else. Threads and processes are always refused. The rest is reported by
`mode`: "off", "warn" (the default: one log line a place) or "refuse" (tests). What importing a
module, making a traceback or reading time zones touches is not reported. Reading the wall clock and
throwing dice raise no audit event and cannot be seen; replay is the net for those.

A second thread watches how long an advance takes. One that uses more than `limit` seconds of its
thread's CPU time is stopped, if it is Python code. A call into C cannot be stopped. One that takes
more than `limit` seconds by the clock, because it blocks or because the machine is busy or stood
still, is logged once and continues. Time at a debugger's prompt does not count.
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

#: Audit events that are refused whatever the mode: what they start cannot be called back.
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
#: Audit events that are reported.
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
#: Modules that read files for reasons that are not the program's.
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
    hooked = False
    patrolled = False


class _Place:
    """A thread: which execution advances there, and what the watch knows about the advance."""

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
        self.clock = _thread_clock()
        self.executing: PythonExecution | None = None
        self.since = 0.0
        self.struck = False
        # Written by the watch alone. It first sees an advance a moment after its beginning and
        # counts from there, so that an advance costs no reading of a CPU clock.
        self.advance: tuple[float, int] | None = None
        self.began = 0.0  # by the clock
        self.spent = 0.0  # CPU time of the thread at that moment
        self.warned = False


def _thread_clock() -> int | None:
    """The CPU clock of this thread, for other threads to read; None where the system has no such
    clock.
    """
    try:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        time.clock_gettime(clock)
    except (AttributeError, OSError):
        return None
    return clock


class _Mark(threading.local):
    """The place of the current thread, made when the thread first asks for it.

    Making it may run code that is watched itself: the garbage collector calls finalizers. That code
    finds a place where nothing executes.
    """

    place = _Place(0)

    def __init__(self) -> None:
        thread = threading.get_ident()
        self.place = _places[thread] = _Place(thread)


_places: dict[int, _Place] = {}  # by thread; the number of one that ended is given to another
_settings = _Settings()
_begin: Final = _thread.start_new_thread
_rest: Final = time.sleep
_mark = _Mark()
_seen: set[tuple[str, int]] = set()
_lock = threading.Lock()  # held while an advance is struck


class Overtime(SystemExit):
    """Thrown into an advance that takes too long.

    A kind of SystemExit, because that is what `except Exception` lets pass and what tasks pass on
    at once.
    """


def configure_guard(*, mode: str | None = None, limit: float | None = None) -> str:
    """Set what happens to reported events, and how many seconds of CPU time one advance may take.

    Returns the mode before.
    """
    before = _settings.mode
    if mode is not None:
        if mode not in MODES:
            raise BadSetting("mode", f"{mode!r} is none of {', '.join(MODES)}")
        _settings.mode = mode
    if limit is not None:
        if not limit > 0:
            raise BadSetting("limit", f"{limit!r} is not a number of seconds")
        _settings.limit = limit
    return before


def make_overtime_error() -> Spinning:
    return Spinning(f"{_settings.limit:g} s of CPU time")


class WatchedAdvance:
    """Marks that an execution advances on this thread. Raises `Overtime` at the end if it was
    struck and went on.
    """

    __slots__ = ("_before", "_execution", "_place")

    def __init__(self, execution: PythonExecution) -> None:
        self._execution = execution

    def __enter__(self) -> None:
        if not _settings.patrolled:
            _install()
        place = self._place = _mark.place
        self._before = place.executing
        place.since = time.monotonic()
        place.executing = self._execution

    def __exit__(self, kind: object, *_: object) -> None:
        place = self._place
        place.executing = self._before
        if place.struck:
            place.struck = False
            _take_back()
            if kind is None:
                raise Overtime


def clear_executing() -> None:
    """Make sure that nothing advances on this thread: what was thrown may have hit the leaving
    itself.
    """
    swap_executing(None)


def swap_executing(executing: PythonExecution | None) -> PythonExecution | None:
    """Say what advances on this thread from now on; returns what did so far."""
    place = _mark.place
    before = place.executing
    place.executing = executing
    return before


def _install() -> None:
    with _lock:
        if not _settings.hooked:
            sys.addaudithook(_hear)
            if sys.version_info < (3, 12):  # where starting a thread is no audit event
                _thread.start_new_thread = threading._start_new_thread = _start_new_thread  # type: ignore[attr-defined]
            if sys.version_info < (3, 13):  # nor is sleeping
                time.sleep = _sleep
            _settings.hooked = True
        if not _settings.patrolled:
            threading.Thread(target=_patrol, name="everhold-watch", daemon=True).start()
            _settings.patrolled = True


def _start_new_thread(*args: Any) -> int:
    sys.audit("_thread.start_new_thread", *args)
    return _begin(*args)


def _sleep(seconds: Any, /) -> None:
    sys.audit("time.sleep", seconds)
    _rest(seconds)


def _after_fork() -> None:
    """A child process has the hook, but of the threads only this one, with another CPU clock."""
    global _lock
    _lock = threading.Lock()
    _settings.patrolled = False
    place = _mark.place
    place.clock = _thread_clock()
    place.advance = None
    _places.clear()
    _places[place.thread] = place


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# At its end the interpreter clears the names of modules, and audit events still come: what is
# needed for the others is in the defaults.
def _hear(
    event: str, args: tuple[Any, ...], watched: Mapping[str, str] = _WATCHED, mark: _Mark = _mark
) -> None:
    if event not in watched:
        return
    executing = mark.place.executing
    if executing is None:
        return
    name = _WATCHED[event]
    frame = sys._getframe(1)
    if event in REFUSED:
        raise make_foreign_call_error(name, frame)
    if _settings.mode != "off" and not _is_read_by_others(frame):
        if event == "open" and args:
            if "/zoneinfo/" in str(args[0]):
                return  # read in C, where no frame tells
            name = f"open({args[0]!r})"
        _report(executing, name, frame)


def _is_read_by_others(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _READERS:
            return True
        if module == "everhold.programs.python.event_loop":
            return False
        frame = frame.f_back
    return False


def _report(executing: PythonExecution, name: str, frame: FrameType) -> None:
    if _settings.mode == "refuse":
        raise ForeignCall(find_call_name(name, frame))
    place = find_program_line(frame)
    if place in _seen or executing.loop.dropped:
        return
    _seen.add(place)
    words = "%s in a program (%s, line %d): replay repeats it; use ctx.call"
    log.warning(words, find_call_name(name, frame), place[0], place[1])


def _patrol() -> None:
    while True:
        _rest(min(0.25, _settings.limit / 4))
        _look(time.monotonic())


def _look(now: float) -> None:
    """Strike what has used too much CPU time, and warn of what takes long by the clock."""
    for place in list(_places.values()):
        running = place.executing
        if running is None:
            continue
        spent = _cpu_time(place)
        advance = (place.since, running.n)
        # also a replay, which goes from one advance to the next by itself
        if advance != place.advance:
            place.advance = advance
            place.began = now
            place.spent = spent
            place.warned = False
        # CPU time alone may be that of other threads: see `_cpu_time`
        elif now - place.began > _settings.limit:
            if _is_debugged(place.thread):
                place.began = now
                place.spent = spent
            elif spent - place.spent > _settings.limit:
                _strike(place, running)
            elif not place.warned:
                place.warned = True
                _warn(place, running, now - place.began, spent - place.spent)


def _cpu_time(place: _Place) -> float:
    """Seconds of CPU time its thread has used; of the whole process where a thread has no clock of
    its own.
    """
    if place.clock is None:
        return time.process_time()
    try:
        return time.clock_gettime(place.clock)
    except OSError:  # the thread has just ended
        return 0.0


def _warn(place: _Place, running: PythonExecution, took: float, spent: float) -> None:
    """Log that an advance takes long. On a thread of its own: the program may hold the lock of a
    log handler.
    """
    file, number = find_program_line(sys._current_frames().get(place.thread))
    words = (
        "session %s (%s) has advanced for %.0f s and used %.1f s of CPU time, now at %s, line %d:"
        " the program blocks, or the machine is busy; blocking calls belong in ctx.call"
    )
    args = (words, running.birth.id, running.birth.program, took, spent, file, number)
    threading.Thread(target=log.warning, args=args, name="everhold-warning", daemon=True).start()


def _strike(place: _Place, running: PythonExecution) -> None:
    """Throw `Overtime` into a thread. Whoever leaves an advance looks at `struck` after `executing`
    is cleared, so the order here means that nothing is thrown at what comes after it."""
    with _lock:
        place.struck = True
        if place.executing is running:
            _throw(place.thread, Overtime)
        else:
            place.struck = False


def _take_back() -> None:
    """Let what was thrown at this thread a moment too late hit here. (Setting it to nothing instead
    would leave the interpreter looking for it for ever, and a profiled program on Python 3.11 would
    never get past its first line.)"""
    try:
        with _lock:
            pass  # whoever is throwing has thrown
        for _ in range(100):
            pass
    except Overtime:
        pass


def _throw(thread: int, error: type[BaseException]) -> None:
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


def _is_debugged(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False
