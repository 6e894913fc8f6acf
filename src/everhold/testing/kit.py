"""What the fixture `everhold` gives a test: sessions in memory, a clock of its own, answers written down beforehand.

    def test_refund(everhold):
        everhold.answers({"Why*": "it broke"})
        everhold.start(refund(order="7"))
        assert everhold.approve().result == "receipt-7"

Rules
  1. No model is asked: a question without an answer stays open, and is in `open`.
  2. Time passes when the test says so: `skip(days=3)` fires every timer on the way, in order.
  3. Every session is replayed once at the end. A program that then asks or returns something else has a clock,
     dice or I/O of its own, and the test fails with the step.
  4. Blocking I/O inside a program is refused on the spot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from everhold.answerers import Script
from everhold.blocking import BlockingRuntime
from everhold.core.errors import NotAllowed
from everhold.core.query import Query
from everhold.core.status import Finished, OpenQuery, Paused, Status
from everhold.drive.tape import Tape, compared
from everhold.ports.program import Call
from everhold.ports.store import Filter, Record
from everhold.runtime import Runtime
from everhold.runtime import _result as typed_result
from everhold.runtime import _waiting as waiting
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock

R = TypeVar("R")
_UNSET: Any = msgspec.UNSET


class _Model:
    """Answers from the script of the test; without one it leaves questions open."""

    def __init__(self) -> None:
        self.script: Script | None = None
        self.asked: list[Query] = []

    async def answer(self, query: Query, session_id: str) -> Any:
        if self.script is None:
            raise NotAllowed("this test has no answers", "Give some: everhold.answers({…}).")
        self.asked.append(query)
        return await self.script.answer(query, session_id)


class Kit:
    """Programs under test. Made by the fixture `everhold`."""

    def __init__(self, *, update: bool = False) -> None:
        self.clock = ManualClock()
        self._update = update
        self._model = _Model()
        self._inner = Runtime(MemoryStore(), llm=self._model, clock=self.clock, recover=False)
        self.runtime = BlockingRuntime(self._inner)
        self._last = ""

    # ---- run

    def answers(self, answers: Any) -> None:
        """From now on model questions are answered: by a list, a dict of patterns, or a function of the query."""
        self._model.script = Script(answers)

    def start(self, call: Call[Any], **more: Any) -> Status:
        """Begin a session, and let it come as far as it can."""
        status = self.runtime.start(call, **more)
        self._last = status.session_id
        return status

    def run(self, call: Call[R], **more: Any) -> R:
        """Run a program to its end; raises `Waiting` where it waits for a person, time or a signal."""
        status = self.start(call, **more)
        if isinstance(status, Finished):
            return typed_result(call, status)
        raise waiting(status)

    @property
    def status(self) -> Status:
        """Where the session that was started last stands."""
        return self.runtime.status(self._last)

    @property
    def open(self) -> list[OpenQuery]:
        """The open questions of that session."""
        status = self.status
        return list(status.queries) if isinstance(status, Paused) else []

    @property
    def asked(self) -> list[str]:
        """What models were asked so far, in words."""
        return [query.prompt for query in self._model.asked]

    # ---- what comes from outside

    def answer(self, value: Any = _UNSET, *, query_id: str | None = None, error: str | None = None) -> Status:
        """Answer the open question of the last session, as somebody would."""
        return self.runtime.answer(self._last, value, query_id=query_id, error=error, by={"front": "test"})

    def approve(self, yes: bool = True) -> Status:
        """Say yes, or no, to the open approval."""
        return self.answer(yes)

    def signal(self, name: str, value: Any = None) -> Status:
        return self.runtime.signal(self._last, name, value)

    def skip(self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0) -> Status:
        """Let time pass; every timer and expiry on the way fires at its moment."""
        return self.runtime._wait(self._skip(days * 86400 + hours * 3600 + minutes * 60 + seconds))

    async def _skip(self, seconds: float) -> Status:
        target, before = self.clock.now() + seconds, None
        while True:
            due = await self._inner.store.next_due()
            if due is None or due >= target or due == before:
                break
            before = due
            self.clock.advance(max(due - self.clock.now(), 0) + 1e-3)
            await self._move()
        self.clock.advance(max(target - self.clock.now(), 0))
        await self._move()
        return await self._inner.status(self._last)

    async def _move(self) -> None:
        while await self._inner._caretaker.move():
            pass
        for session_id in list(self._inner._sessions.jobs):
            await self._inner._settled(session_id, None)

    # ---- replay

    def replays(self, file: str | Path) -> None:
        """Replay a session that was exported as a test; fails if the program asks or returns something else."""
        tape, host = Tape.read(Path(file)), self._inner._sessions.host
        if self._update:
            tape.updated(host).write(Path(file))
        else:
            tape.check(host)

    def check_replays(self) -> None:
        """Replay every session of the test once; raises `AssertionError` with the first step that differs."""
        for record in self.runtime._wait(self._records()):
            difference = compared(record, self._inner._sessions.host)
            if difference:
                raise AssertionError(
                    f"{record.birth.program} is not the same when it is replayed: {difference}\n"
                    "A clock, dice or I/O of its own is in it; use ctx.now(), ctx.random(), ctx.call()."
                )

    async def _records(self) -> list[Record]:
        rows = await self._inner.store.list(Filter(limit=10_000))
        return [await self._inner.store.load(row.birth.id) for row in rows]
