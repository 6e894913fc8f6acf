"""How a script ends that an error of everhold or Ctrl-C ends: frames of its own code, and a hint.

Rules
  1. A process with a prompt, or with a `sys.excepthook` of its own, is left as it is.
  2. All other exceptions are shown as they were.
  3. After Ctrl-C, the process does not wait for calls in threads that were left alone.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from everhold.errors import Cancelled, EverholdError, Failed, Waiting
from everhold.exception_info import format_exception
from everhold.ports.exception_reader import describe_exception

#: Characters of an error in its line; `everhold show` and `Failed.error` have all of it.
MAX_ERROR_LENGTH: Final = 1000
#: What ends a session. The frames of its program say more than those of the script.
_OUTCOMES: Final = (Cancelled, Failed)


#: Hooks that may be replaced: Python's own, and the one that Ubuntu installs in its Python.
_REPLACED: Final = ("sys", "apport_python_hook")


#: The attribute of an interrupt that was told.
_TOLD: Final = "_everhold_told"


class _End:
    """What this process has to show if its script ends now."""

    brief: BaseException | None = None  # an error of `run`, whose one call needs no frames
    interrupted = False  # it was said what Ctrl-C leaves
    before = staticmethod(sys.__excepthook__)  # shows other exceptions


def show_errors_plainly(brief: BaseException | None = None) -> None:
    """Show an uncaught error of everhold without the frames of everhold. An outcome that is the
    error `brief` is shown without the frames of the script, too.
    """
    _End.brief = brief
    hook = sys.excepthook
    if hook is not _excepthook and hook.__module__ in _REPLACED and not hasattr(sys, "ps1"):
        _End.before = staticmethod(hook)
        sys.excepthook = _excepthook


def is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C ends a block that is left with this error."""
    if isinstance(error, asyncio.CancelledError):  # `asyncio.run` cancels its task
        handler = signal.getsignal(signal.SIGINT)
        runner = getattr(getattr(handler, "func", None), "__self__", None)
        return bool(getattr(runner, "_interrupt_count", 0))
    return isinstance(error, KeyboardInterrupt)


def tell_interrupted(text: str, error: BaseException | None) -> None:
    """Say now what Ctrl-C leaves, in place of a traceback later: closing may take a while. Does
    nothing if it was said when `error` passed before.
    """
    if not getattr(error, _TOLD, False):
        setattr(error, _TOLD, True)
        show_errors_plainly()
        _End.interrupted = True
        sys.stderr.write(f"\n{text}\n")


@contextmanager
def let_interrupts_kill() -> Iterator[None]:
    """Inside this block, another Ctrl-C ends the process at once. A KeyboardInterrupt in the middle
    of asyncio could lose a callback, for which closing would wait for ever.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def abandon_threads() -> None:
    """Let `asyncio.run` not wait for calls in threads after Ctrl-C: they get no successors."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, KeyboardInterrupt) and _End.interrupted:
        return leave_threads()
    if isinstance(error, EverholdError):
        sys.stderr.write("\n".join(_describe_end(error)) + "\n")
    else:
        _End.before(kind, error, trace)
    return None


def _describe_end(error: EverholdError) -> list[str]:
    lines = []
    if isinstance(error, Waiting):
        count = f"{len(error.queries)} question{'' if len(error.queries) == 1 else 's'} open"
        shown = "; ".join((query.prompt or query.name) for query in error.queries[:3])
        lines.append(f"waiting · {error.name} · {count}" + (f": {shown}" if shown else ""))
    else:
        if isinstance(error, _OUTCOMES) and error is _End.brief:
            frames = error.traceback if isinstance(error, Failed) else ""
        else:
            info = describe_exception(error)
            frames = "" if info is None else format_exception(info)
            if info is not None:  # the line of the error says it
                frames = frames.removesuffix(info.summary).rstrip("\n")
        lines += [frames] if frames else []
        message = str(error)
        if len(message) > MAX_ERROR_LENGTH:
            message = f"{message[:MAX_ERROR_LENGTH]}…"
        lines.append(f"error: {message} [{error.code}]")
    return lines + ([f"hint: {error.hint}"] if error.hint else [])


def leave_threads(code: int | None = None) -> None:
    """End the process if a call still runs in a thread, for which Python would wait: with this exit
    code, or else as Ctrl-C does. Functions that were registered with `atexit` run before.
    """
    if not any(thread.name.startswith("asyncio_") for thread in threading.enumerate()):
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if code is not None:
        os._exit(code)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)
