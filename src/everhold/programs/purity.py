"""A watch over what programs must not do themselves.

An audit hook sees threads, processes, sockets, files and blocking sleeps while a program advances. Threads and
processes are always refused. The rest is reported by `mode`: "off", "warn" (the default: one log line a place) or
"refuse" (tests). Reading the wall clock or throwing dice through the C library raises no audit event and cannot be
seen; replay in tests is the net for those.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from everhold.core.errors import BadSetting, ForeignCall, Spinning

if TYPE_CHECKING:
    from everhold.programs.python import PythonExecution

log = logging.getLogger("everhold.program")

#: Audit events that are refused whatever the mode: what they start cannot be called back.
REFUSED: Final = {
    "_thread.start_new_thread": "starting a thread",
    "_thread.start_joinable_thread": "starting a thread",
    "subprocess.Popen": "subprocess.Popen",
    "os.system": "os.system",
    "os.fork": "os.fork",
    "os.forkpty": "os.forkpty",
    "os.posix_spawn": "os.posix_spawn",
    "os.spawn": "os.spawn",
    "os.exec": "os.exec",
    "os.startfile": "os.startfile",
    "pty.spawn": "pty.spawn",
}
#: Audit events that are reported.
REPORTED: Final = {
    "open": "open",
    "socket.connect": "socket.connect",
    "socket.bind": "socket.bind",
    "socket.getaddrinfo": "socket.getaddrinfo",
    "socket.gethostbyname": "socket.gethostbyname",
    "socket.sendto": "socket.sendto",
    "time.sleep": "time.sleep",
    "sqlite3.connect": "sqlite3.connect",
    "urllib.Request": "urllib.request",
    "os.remove": "os.remove",
    "os.rename": "os.rename",
    "os.mkdir": "os.mkdir",
    "os.rmdir": "os.rmdir",
    "os.listdir": "os.listdir",
    "os.scandir": "os.scandir",
    "os.putenv": "os.putenv",
    "shutil.copyfile": "shutil.copyfile",
}
MODES: Final = ("off", "warn", "refuse")


class _Settings:
    mode = "warn"
    limit = 10.0
    installed = False


class Mark(threading.local):
    """Which execution advances in this thread, and since when."""

    def __init__(self) -> None:
        self.place = _Place(threading.get_ident())
        _places.append(self.place)


class _Place:
    __slots__ = ("executing", "since", "struck", "thread")

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.executing: PythonExecution | None = None
        self.since = 0.0
        self.struck = False


_places: list[_Place] = []
_settings = _Settings()
_mark = Mark()
_seen: set[tuple[str, int]] = set()
_lock = threading.Lock()
_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Overtime(BaseException):
    """Thrown into an advance that takes too long; not an Exception, so that `except Exception` lets it pass."""


def configure(*, mode: str | None = None, limit: float | None = None) -> None:
    """Set what happens to reported events, and how many seconds one advance may take."""
    if mode is not None:
        if mode not in MODES:
            raise BadSetting("purity", f"{mode!r} is none of {', '.join(MODES)}")
        _settings.mode = mode
    if limit is not None:
        _settings.limit = limit


def overtime() -> Spinning:
    return Spinning(f"{_settings.limit:g} s")


class watched:
    """Marks that an execution advances on this thread."""

    __slots__ = ("_before", "_execution", "_place")

    def __init__(self, execution: PythonExecution) -> None:
        self._execution = execution

    def __enter__(self) -> None:
        if not _settings.installed:
            _install()
        place = self._place = _mark.place
        self._before = place.executing
        place.since = time.monotonic()
        place.executing = self._execution

    def __exit__(self, *_: object) -> None:
        place = self._place
        place.executing = self._before
        if place.struck:  # take back what was thrown a moment too late
            _interrupt(ctypes.c_ulong(place.thread), None)
            place.struck = False


def _install() -> None:
    with _lock:
        if not _settings.installed:
            sys.addaudithook(_hear)
            threading.Thread(target=_patrol, name="everhold-watch", daemon=True).start()
            _settings.installed = True


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if (event not in REFUSED and event not in REPORTED) or _mark.place.executing is None:
        return
    refused = REFUSED.get(event)
    if refused is not None:
        raise ForeignCall(refused)
    reported = REPORTED.get(event)
    if reported is not None and _settings.mode != "off":
        _report(reported, event, args)


def _report(name: str, event: str, args: tuple[Any, ...]) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib") or file.endswith(("linecache.py", "traceback.py", "inspect.py")):
            return  # an import, or the making of a traceback
        if frame.f_code.co_name in ("fire", "drain") and "everhold" in file:
            break
        frame = frame.f_back
    if _settings.mode == "refuse":
        raise ForeignCall(name + (f"({args[0]!r})" if event == "open" and args else ""))
    caller: Any = sys._getframe(2)
    place = (caller.f_code.co_filename, caller.f_lineno)
    if place not in _seen:
        _seen.add(place)
        log.warning(
            "%s in a program (%s, line %d): replay repeats it; use ctx.call",
            name,
            place[0],
            place[1],
            stacklevel=2,
        )


def _patrol() -> None:
    """Stop an advance that runs too long. A call into C cannot be stopped."""
    while True:
        time.sleep(min(0.25, _settings.limit / 4))
        now = time.monotonic()
        for place in _places:
            running = place.executing
            if running is not None and now - place.since > _settings.limit and place.executing is running:
                place.struck = True
                _interrupt(ctypes.c_ulong(place.thread), ctypes.py_object(Overtime))
