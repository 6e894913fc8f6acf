"""Whose an interrupt is.

Ctrl-C and what a signal's handler raises can come up in the middle of anybody's function, but only
in the main thread: there they are not the function's own, and go up. In any other thread, and in a
process that is told of its signals (a server, a worker), they cannot come: whoever raises them
means it, and has failed.
"""

from __future__ import annotations

import threading
from typing import Final

#: What a signal may raise.
INTERRUPTS: Final = (KeyboardInterrupt, SystemExit)

_told: Final = threading.Event()


def set_signals_handled(told: bool = True) -> None:
    """From now on no signal raises anything in this process; or it does again."""
    if told:
        _told.set()
    else:
        _told.clear()


def is_raised_by_code(error: BaseException) -> bool:
    """Whether whoever raised this means it, where it is caught."""
    if not isinstance(error, INTERRUPTS):
        return True
    return _told.is_set() or threading.current_thread() is not threading.main_thread()


def convert_interrupt(error: BaseException) -> RuntimeError:
    """What a function has failed with that raised an interrupt; nothing on the way up takes it for
    one.
    """
    return RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": "))
