"""The worker process: runs untrusted Lua, holds executions by number, and answers orders.

It is started by `worker_process.py`, reads orders from the socket on descriptor 0, confines itself
before the first order, and exits when the socket closes.

Rules
  1. One order at a time. What it holds can be made again from the journal, so the least recently
     used is let go when there are too many or they grow too large: whoever asks for it is told that
     it is gone.
  2. What a program says is measured before it is sent; too much of it is the program's end, not the
     reader's. Durable values it may read and write between two questions as much as a state holds,
     and for a few advances' time.
  3. An advance that takes far too long ends the process even if nobody is left who would.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf
from time import monotonic, process_time
from typing import Any, Final

import msgspec

from everhold.core.journal import ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query
from everhold.core.session import Birth
from everhold.core.status import Raised
from everhold.errors import EverholdError, Spinning, TooLarge
from everhold.programs.lua.protocol import (
    FRAME_HEADER,
    MAX_SLICE_BYTES,
    LuaLimits,
    OrderResult,
    RemoteError,
    SocketReader,
    WorkerOrder,
    WorkerStep,
    decode_order,
    decode_step,
    encode_worker_json,
)

#: Seconds after which a long replay tells how far it is.
_BREATH: Final = 0.05
#: Advances whose CPU a program may use up while it deals with its durable values alone.
_PATIENT: Final = 5
_OUT_OF_MEMORY: Final = 12

BeginExecution = Callable[[Birth, Metrics, list[str], LuaLimits, str], Any]


class HeldExecution:
    """An execution, and what its session has cost so far if it has a budget, which is looked at
    while it runs.
    """

    def __init__(self, execution: Any, meter: Metrics | None) -> None:
        self.execution = execution
        self.size = 0
        # bytes that went to and fro since only the store is asked: all of it lands in one commit
        self.moved = 0
        self.spent = 0.0  # seconds of CPU, since then
        self._meter = meter
        self._opened: dict[int, Query] = {}

    def advance(self, step: WorkerStep) -> ProgramReply:
        if self._meter is None:
            return self.execution.advance(*step)  # type: ignore[no-any-return]
        answers = step[2]
        waited = step[3]
        for answer in answers:
            query = self._opened.pop(answer.q, None)
            if query is not None:
                waited = waited or query.kind is not Kind.STATE
                self._meter.answered(query, answer)
        if waited:
            self._meter.resumed()
        reply: ProgramReply = self.execution.advance(*step)
        for q in reply.withdrawn:
            self._opened.pop(q, None)
        if reply.asked:
            self._meter.paused(reply.asked)
            for query in reply.asked:
                self._opened[query.q] = query
        elif waited and not step[3] and self._opened and not (reply.withdrawn or reply.outcome):
            self._meter.rounds -= 1  # several answers are one round: the last one counts
        return reply


class LuaWorkerServer:
    """Does orders, one after another. `send` takes the body of a frame, `alarm` is told when an
    advance begins.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        begin: BeginExecution,
        limits: LuaLimits,
        alarm: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._alarm = alarm
        self._send = send
        self._begin = begin
        self._limits = limits
        self._held: OrderedDict[int, HeldExecution] = OrderedDict()
        self._size = 0

    def do(self, order: WorkerOrder) -> None:
        """Do one order and tell what came of it; one that drops is not answered."""
        if not order.steps:
            self._let_go(order.number)
            return
        try:
            self._advance(order)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)  # half done: nothing here can be trusted to go on
        except Exception as error:
            self._let_go(order.number)
            self._send(encode_worker_json(OrderResult(trouble=_trouble(error))))

    def _advance(self, order: WorkerOrder) -> None:
        number = order.number
        held = self._take(order)
        if held is None:
            self._send(encode_worker_json(OrderResult(gone=True)))
            return
        bodies: list[bytes] = []
        size = 0
        since = self._now()
        last = len(order.steps) - 1
        held.execution.replaying = order.replaying
        for index, raw in enumerate(order.steps):
            if bodies and (
                size > MAX_SLICE_BYTES or index == last or monotonic() - since > _BREATH
            ):
                self._send(_told(bodies, more=True))
                bodies = []
                size = 0
                since = self._now()
            body, ended = self._step(held, raw)
            bodies.append(body)
            size += len(body)
            if ended:
                self._let_go(number)
                break
        held.execution.replaying = False
        self._send(_told(bodies, more=False))
        self._weigh(number)

    def _step(self, held: HeldExecution, raw: msgspec.Raw) -> tuple[bytes, bool]:
        """One advance: what was said, encoded, and whether the program ended."""
        step = decode_step(raw)
        goes_on = held.moved > 0
        since = process_time() if goes_on else 0.0
        reply = held.advance(step)
        body = encode_worker_json(reply)
        if goes_on:
            held.moved += len(bytes(raw)) + len(body)
            held.spent += process_time() - since
        error = self._excess(len(body), held)
        if error is not None:
            words = f"{type(error).__name__}: {error}"
            reply = ProgramReply([], [], None, Raised(words, error.code, "", step[0]), None)
            body = encode_worker_json(reply)
        if Kind.STATE not in [query.kind for query in reply.asked]:
            held.moved = 0
            held.spent = 0.0
        elif not goes_on:
            held.moved = len(body)
        return body, reply.outcome is not None

    def _excess(self, size: int, held: HeldExecution) -> EverholdError | None:
        """What a program did too much of."""
        limits = self._limits
        if size > limits.largest:
            return TooLarge(size, limits.largest)
        if held.moved > limits.memory:
            return TooLarge(held.moved, limits.memory)
        if held.spent > limits.cpu * _PATIENT and not held.execution.replaying:
            return Spinning(f"{limits.cpu * _PATIENT:g} s of CPU time")
        return None

    def _now(self) -> float:
        """The time, from which on nothing may take far too long."""
        now = monotonic()
        self._alarm(now)
        return now

    # ---- what is held

    def _take(self, order: WorkerOrder) -> HeldExecution | None:
        if order.birth is not None:
            self._let_go(order.number)
            meter = Metrics()
            execution = self._begin(order.birth, meter, order.roots, self._limits, order.space)
            held = HeldExecution(execution, meter if order.birth.budget is not None else None)
            self._held[order.number] = held
            return held
        found = self._held.get(order.number)
        if found is not None:
            self._held.move_to_end(order.number)
        return found

    def _let_go(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._size -= held.size
            held.execution.drop()

    def _weigh(self, number: int) -> None:
        """Let go of what was not used for longest, if all together is too much."""
        held = self._held.get(number)
        if held is not None:
            size = held.execution.memory
            self._size += size - held.size
            held.size = size
        while len(self._held) > self._limits.held or (
            self._size > self._limits.kept and len(self._held) > 1
        ):
            self._let_go(next(iter(self._held)))


class CpuAlarm:
    """Ends the process when it has computed for so many seconds; a second more or less does not
    matter.

    Time in which it waits does not count, so that nobody has to turn it off, and two calls of the
    system are saved with each order.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds + 1.0
        self._since = -inf

    def __call__(self, now: float) -> None:
        """From now on."""
        if now - self._since > 1.0:
            self._since = now
            signal.setitimer(signal.ITIMER_PROF, self._seconds)


def _told(bodies: list[bytes], *, more: bool) -> bytes:
    """`OrderResult` with replies that are encoded already."""
    return b'{"replies":[' + b",".join(bodies) + (b'],"more":true}' if more else b"]}")


def _trouble(error: Exception) -> RemoteError:
    if isinstance(error, EverholdError):
        return RemoteError(error.code, str(error), error.hint)
    return RemoteError("", f"{type(error).__name__}: {error}"[:1000])


def _begin(birth: Birth, meter: Metrics, roots: list[str], limits: LuaLimits, space: str) -> Any:
    from everhold.programs.lua.execution import LuaExecution
    from everhold.programs.lua.program import LuaProgram

    program = LuaProgram.found(birth.program, roots=roots)
    again = (limits.cpu + limits.wall) / 2
    return LuaExecution(
        program, birth, meter, memory=limits.memory, cpu=limits.cpu, again=again, space=space
    )


# ---- the process


def main() -> None:
    """Be a worker: the arguments are the limits and the parent's number."""
    from everhold.programs.lua import confinement

    limits = msgspec.json.decode(sys.argv[1], type=LuaLimits)
    # The socket under a number of its own; nothing stands on 0 and 1 that could be read or
    # written by mistake.
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    _load()
    walls = confinement.confine_process(limits.space, int(sys.argv[2]))
    os.dup2(1, 2)  # the pool reads the complaint of a worker only until it is ready
    serve_orders(channel, _begin, limits, walls)


def serve_orders(channel: int, begin: BeginExecution, limits: LuaLimits, walls: list[str]) -> None:
    """Say that we are here, then do orders until there are no more."""

    def send(body: bytes) -> None:
        _write(channel, FRAME_HEADER.pack(len(body)) + body)

    send(encode_worker_json(OrderResult(walls=walls)))
    server = LuaWorkerServer(send, begin, limits, CpuAlarm(limits.wall * 10))
    for body in _frames(channel):
        server.do(decode_order(body))


def _frames(channel: int) -> Iterator[bytes]:
    """The frames that come in, until nobody is left to send any."""
    inbox = bytearray()
    inlet = SocketReader(channel)
    while data := inlet.read():
        inbox += data
        while len(inbox) >= FRAME_HEADER.size:
            end = FRAME_HEADER.size + FRAME_HEADER.unpack_from(inbox)[0]
            if len(inbox) < end:
                break
            body = bytes(inbox[FRAME_HEADER.size : end])
            del inbox[:end]
            yield body


def _write(channel: int, text: bytes) -> None:
    sent = os.write(channel, text)
    if sent < len(text):
        rest = memoryview(text)[sent:]
        while rest:
            rest = rest[os.write(channel, rest) :]


def _load() -> None:
    """Load what programs need while files and libraries can still be opened freely."""
    import traceback  # noqa: F401  (errors are formatted with it)

    import lupa.lua54  # type: ignore[import-untyped]  # noqa: F401

    from everhold.programs.lua import execution, program  # noqa: F401
    from everhold.programs.lua.vm import LuaVm

    LuaVm()  # compiles our own Lua


if __name__ == "__main__":
    main()
