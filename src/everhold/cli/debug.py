"""A debugger that stops in one file only: the program's own, not the loop that runs it."""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Debugger(pdb.Pdb):
    """Stops at the first line of `file` that is run, and from then on as one steps."""

    def __init__(self, file: str) -> None:
        super().__init__(nosigint=True)
        self._file = self.canonic(file)

    def _is_elsewhere(self, frame: FrameType) -> bool:
        return self.canonic(frame.f_code.co_filename) != self._file

    def user_line(self, frame: FrameType) -> None:
        if self._is_elsewhere(frame):
            self.set_step()
        else:
            super().user_line(frame)

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        if not self._is_elsewhere(frame):
            super().user_call(frame, argument_list)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        if not self._is_elsewhere(frame):
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        if not self._is_elsewhere(frame):
            super().user_exception(frame, exc_info)


def step_through(file: str, act: Callable[[], object]) -> None:
    """Do something under the debugger; what a quit leaves half done is nobody's mistake."""
    from everhold.programs.python import determinism_guard

    determinism_guard.configure_guard(mode="off")  # the debugger reads files, not the program
    debugger = Debugger(file)
    try:
        debugger.runcall(act)
    except bdb.BdbQuit:
        pass
    except Exception:
        if not debugger.quitting:
            raise
    finally:
        sys.settrace(None)
