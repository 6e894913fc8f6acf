"""The shortest way through a journal: a program that is replayed goes from pause to pause without
its loop.

A pause is still a pause. The program's coroutine yields the future of its query and is sent on when
that has its answer, as its task would do it; what is left out is the way through the task, the loop
and the engine, and back.

Rules
  1. Only where that way leads nowhere else: the program's own task waits for the one query it has
     just asked, which is word for word the recorded one; the next delivery brings its answer and
     nothing more; nothing else is ready.
  2. Within one turn of the loop. After the first pause where rule 1 does not hold, things take
     their usual way.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from everhold.core.journal import Delivery
from everhold.programs.python.coroutine_close import INNER_AWAITS

if TYPE_CHECKING:
    from everhold.programs.python.execution import PythonExecution


class ReplayCoroutine:
    """The coroutine of a program that is replayed, as its task sees it."""

    def __init__(self, coro: Coroutine[Any, Any, Any], execution: PythonExecution) -> None:
        self._coro = coro
        self._execution = execution
        self.recorded: Sequence[Delivery] = ()
        self.place = self._last = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)

    def lay(self, recorded: Sequence[Delivery], place: int, last: int) -> None:
        """The delivery at `place` is handed over; the program may go on by itself as far as the one
        at `last`.
        """
        self.recorded = recorded
        self.place = place
        self._last = last

    def leave(self) -> None:
        """The replay is over: from now on the task has the coroutine itself."""
        self.send = self._coro.send  # type: ignore[method-assign, assignment]

    def send(self, value: None) -> Any:
        paused = self._coro.send(value)
        if self.place < self._last:
            last = self._last
            self._last = 0
            paused = self._execution.go_along(self, paused, self._coro, last)
        return paused


Coroutine.register(ReplayCoroutine)
INNER_AWAITS[ReplayCoroutine] = attrgetter("cr_await")
