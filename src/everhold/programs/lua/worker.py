"""The worker process: runs untrusted Lua, holds executions by number, and answers orders.

It is started by `worker_process.py`, reads orders from the socket on descriptor 0, confines itself
before the first order, and exits when the socket closes.

Rules
  1. One order at a time. An execution can be rebuilt from the journal, so the least recently used
     one is dropped if there are too many or they become too large; orders for it are answered with
     `gone`.
  2. The size of a reply is checked before it is sent; a reply that is too large fails the program.
     Between two questions a program may read and write as many bytes of durable values as a Lua
     state may hold, with the CPU time of a few advances.
  3. An advance that takes far too long ends the process, even if its parent is gone.
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

#: Seconds after which a long replay sends the replies that it has.
_SEND_EVERY: Final = 0.05
#: A program may use the CPU time of so many advances while it only reads and writes durable values.
_VALUE_ADVANCES: Final = 5
_OUT_OF_MEMORY: Final = 12

BeginExecution = Callable[[Birth, Metrics, list[str], LuaLimits, str], Any]


class HeldExecution:
    """An execution, with the usage of its session, which a budget limits."""

    def __init__(self, execution: Any, meter: Metrics, limits: LuaLimits) -> None:
        self.execution = execution
        self.limits = limits
        self.size = 0
        # bytes sent and received since the last question; one commit has all of them
        self.moved = 0
        self.spent = 0.0  # seconds of CPU, since then
        self._meter = meter
        self._opened: dict[int, Query] = {}

    def advance(self, step: WorkerStep) -> ProgramReply:
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
    """Runs orders one after the other. `send` gets the body of a frame; `alarm` is called when an
    advance begins.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        begin: BeginExecution,
        limits: LuaLimits,
        alarm: Callable[[float, float], None] = lambda now, wall: None,
    ) -> None:
        self._alarm = alarm
        self._send = send
        self._begin = begin
        self._limits = limits
        self._held: OrderedDict[int, HeldExecution] = OrderedDict()
        self._size = 0

    def do(self, order: WorkerOrder) -> None:
        """Run one order and send its result; an order without steps drops an execution."""
        if not order.steps:
            self._drop(order.number)
            return
        try:
            self._advance(order)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)  # the state of this process is not reliable any more
        except Exception as error:
            self._drop(order.number)
            self._send(encode_worker_json(OrderResult(trouble=_describe_error(error))))

    def _advance(self, order: WorkerOrder) -> None:
        number = order.number
        held = self._take(order)
        if held is None:
            self._send(encode_worker_json(OrderResult(gone=True)))
            return
        bodies: list[bytes] = []
        size = 0
        since = self._start_clock(held)
        last = len(order.steps) - 1
        held.execution.replaying = order.replaying
        for index, raw in enumerate(order.steps):
            if bodies and (
                size > MAX_SLICE_BYTES or index == last or monotonic() - since > _SEND_EVERY
            ):
                self._send(_encode_result(bodies, more=True))
                bodies = []
                size = 0
                since = self._start_clock(held)
            body, ended = self._step(held, raw)
            bodies.append(body)
            size += len(body)
            if ended:
                self._drop(number)
                break
        held.execution.replaying = False
        self._send(_encode_result(bodies, more=False))
        self._drop_excess(number)

    def _step(self, held: HeldExecution, raw: msgspec.Raw) -> tuple[bytes, bool]:
        """One advance: the encoded reply, and whether the program ended."""
        step = decode_step(raw)
        only_values = held.moved > 0
        since = process_time() if only_values else 0.0
        reply = held.advance(step)
        body = encode_worker_json(reply)
        if only_values:
            held.moved += len(bytes(raw)) + len(body)
            held.spent += process_time() - since
        error = self._check_limits(len(body), held)
        if error is not None:
            words = f"{type(error).__name__}: {error}"
            reply = ProgramReply([], [], None, Raised(words, error.code, "", step[0]), None)
            body = encode_worker_json(reply)
        if Kind.STATE not in [query.kind for query in reply.asked]:
            held.moved = 0
            held.spent = 0.0
        elif not only_values:
            held.moved = len(body)
        return body, reply.outcome is not None

    def _check_limits(self, size: int, held: HeldExecution) -> EverholdError | None:
        """The error of a program that exceeds a limit."""
        limits = held.limits
        if size > limits.largest:
            return TooLarge(size, limits.largest)
        if held.moved > limits.memory:
            return TooLarge(held.moved, limits.memory)
        if held.spent > limits.cpu * _VALUE_ADVANCES and not held.execution.replaying:
            return Spinning(limits.describe_cpu(limits.cpu * _VALUE_ADVANCES))
        return None

    def _start_clock(self, held: HeldExecution) -> float:
        """The time; starts the alarm."""
        now = monotonic()
        self._alarm(now, held.limits.wall)
        return now

    # ---- held executions

    def _take(self, order: WorkerOrder) -> HeldExecution | None:
        if order.birth is not None:
            self._drop(order.number)
            meter = Metrics()
            limits = order.limits or self._limits
            execution = self._begin(order.birth, meter, order.roots, limits, order.space)
            held = HeldExecution(execution, meter, limits)
            self._held[order.number] = held
            return held
        found = self._held.get(order.number)
        if found is not None:
            self._held.move_to_end(order.number)
        return found

    def _drop(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._size -= held.size
            held.execution.drop()

    def _drop_excess(self, number: int) -> None:
        """Drop the least recently used executions while there are too many, or too large ones."""
        held = self._held.get(number)
        if held is not None:
            size = held.execution.memory
            self._size += size - held.size
            held.size = size
        while len(self._held) > self._limits.held or (
            self._size > self._limits.kept and len(self._held) > 1
        ):
            self._drop(next(iter(self._held)))


class CpuAlarm:
    """Ends the process when it has used so many seconds of CPU time, about a second more or less,
    and one and a half times the limit of the advance at least.

    Waiting uses no CPU time, so the alarm need not be turned off, which saves two system calls for
    each order.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds + 1.0
        self._since = -inf
        self._set = 0.0

    def __call__(self, now: float, wall: float) -> None:
        """Starts to count, unless it started less than a second ago."""
        seconds = max(self._seconds, 1.5 * wall + 1.0)
        if now - self._since > 1.0 or seconds > self._set:
            self._since = now
            self._set = seconds
            signal.setitimer(signal.ITIMER_PROF, seconds)


def _encode_result(bodies: list[bytes], *, more: bool) -> bytes:
    """An `OrderResult` of encoded replies."""
    return b'{"replies":[' + b",".join(bodies) + (b'],"more":true}' if more else b"]}")


def _describe_error(error: Exception) -> RemoteError:
    if isinstance(error, EverholdError):
        return RemoteError(error.code, str(error), error.hint)
    return RemoteError("", f"{type(error).__name__}: {error}"[:1000])


def _begin(birth: Birth, meter: Metrics, roots: list[str], limits: LuaLimits, space: str) -> Any:
    from everhold.programs.lua.execution import LuaExecution
    from everhold.programs.lua.program import LuaProgram

    program = LuaProgram.found(birth.program, roots=roots)
    return LuaExecution(program, birth, meter, limits=limits, again=limits.again, space=space)


# ---- the process


def main() -> None:
    """Run a worker. The arguments are the limits and the process id of the parent."""
    from everhold.programs.lua import confinement

    limits = msgspec.json.decode(sys.argv[1], type=LuaLimits)
    # the socket gets another descriptor, so that nothing reads or writes it by mistake as 0 or 1
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
    """Send a greeting, then run orders until the channel closes."""

    def send(body: bytes) -> None:
        _write(channel, FRAME_HEADER.pack(len(body)) + body)

    send(encode_worker_json(OrderResult(walls=walls)))
    server = LuaWorkerServer(send, begin, limits, CpuAlarm(limits.wall * 10))
    for body in _frames(channel):
        server.do(decode_order(body))


def _frames(channel: int) -> Iterator[bytes]:
    """The frames of a channel, until it closes."""
    inbox = bytearray()
    reader = SocketReader(channel)
    while data := reader.read():
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
