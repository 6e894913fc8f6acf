"""Fault injection: stores that end their process or are slow, and processes that a test kills.

    store = CrashingStore(SQLiteStore(path), at=7, when="before")    # the process ends instead of commit 7

    with Nursery("tests.fault.story") as nursery:                    # imports the module once
        child = nursery.start("play", path=str(path), at=7)          # forks a real process that calls play(...)
        for line in child.lines(): ...                               # its output, line by line
        child.kill()                                                 # SIGKILL
        assert child.wait() == -9

A nursery is a process with one thread, so that forking it is safe. A child starts within
milliseconds because the nursery has imported everything. Arguments are JSON. Needs a system with
`fork`.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from everhold.ports.store import Change, Store
from everhold.testing.store_wrapper import StoreWrapper

T = TypeVar("T")

#: The exit code of a process that ended at its crash point.
CRASHED: Final = 86


def die() -> None:
    """End this process now: no buffer is flushed, no `finally` runs."""
    os._exit(CRASHED)


class CrashingStore(StoreWrapper):
    """A store that dies at its commit number `at` (the first is 1), before or after it lands.

    Other verbs work normally. `commits` counts; without `at` nothing is broken. `die` can be
    replaced by a function that raises, to test a process that survives a commit with an unknown
    outcome.
    """

    def __init__(
        self,
        store: Store,
        *,
        at: int = 0,
        when: Literal["before", "after"] = "before",
        die: Callable[[], None] = die,
        seen: Callable[[int, Change], None] | None = None,
    ) -> None:
        super().__init__(store)
        self.commits = 0
        self._at = at
        self._when = when
        self._die = die
        self._seen = seen

    def commit_now(self, change: Change, fence: int) -> bool:
        return False  # all of them are counted in `commit`

    async def commit(self, change: Change, fence: int) -> None:
        self.commits += 1
        mine = self.commits == self._at
        if self._seen is not None:
            self._seen(self.commits, change)
        if mine and self._when == "before":
            self._die()
        await self.store.commit(change, fence)
        if mine and self._when == "after":
            self._die()


class SlowStore(StoreWrapper):
    """A store that yields to the event loop before and after each verb, like a store behind a
    network.

    Each await of a verb is thus a suspension at which its caller can be cancelled. In between, the
    inner store runs the verb: a commit that has landed is acknowledged only after the second turn.
    """

    def commit_now(self, change: Change, fence: int) -> bool:
        return False  # nothing lands without a turn

    async def forward(self, verb: Callable[..., Awaitable[T]], *given: Any, **options: Any) -> T:
        await asyncio.sleep(0)
        found = await verb(*given, **options)
        await asyncio.sleep(0)
        return found


class ChildProcess:
    """A process forked by a nursery."""

    def __init__(self, nursery: Nursery, pid: int, output: int) -> None:
        self.pid = pid
        self.output = output  # the reading end of its standard output
        self._nursery = nursery
        self._code: int | None = None
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """Its output, line by line, until it ends. An unfinished last line is left out."""
        while chunk := os.read(self.output, 65536):
            yield from self._split(chunk)

    def heard(self) -> list[str]:
        """The complete lines that have arrived, without waiting for more."""
        os.set_blocking(self.output, False)
        found: list[str] = []
        try:
            while chunk := os.read(self.output, 65536):
                found += self._split(chunk)
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(self.output, True)
        return found

    def _split(self, chunk: bytes) -> list[str]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode() for line in whole]

    def kill(self) -> None:
        """SIGKILL, now."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code; a negative signal number if a signal ended it."""
        if self._code is None:
            self._code = int(self._nursery._say({"wait": self.pid}))
        return self._code

    def close(self) -> None:
        os.close(self.output)


class Nursery:
    """A process that has imported `module` and forks children that call its functions."""

    def __init__(self, module: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._socket = ours

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, function: str, **arguments: Any) -> ChildProcess:
        """Fork a process that calls a function of the module; `child.lines()` is its output."""
        reading, writing = os.pipe()
        try:
            pid = int(self._say({"call": function, "with": arguments}, writing))
        finally:
            os.close(writing)
        return ChildProcess(self, pid, reading)

    def run(self, function: str, **arguments: Any) -> tuple[int, list[str]]:
        """Start a child, wait for its end, and return its exit code and its output lines."""
        child = self.start(function, **arguments)
        try:
            printed = list(child.lines())
            return child.wait(), printed
        finally:
            child.close()

    def close(self) -> None:
        """End the nursery, and the children that still run."""
        self._socket.close()
        self._process.wait()

    def _say(self, message: dict[str, Any], descriptor: int | None = None) -> str:
        text = json.dumps(message).encode() + b"\n"
        try:
            if descriptor is not None:
                socket.send_fds(self._socket, [text[:1]], [descriptor])
                text = text[1:]
            self._socket.sendall(text)
            said = self._socket.recv(65536)
        except ConnectionError:
            said = b""
        if not said:
            raise ChildProcessError("the nursery has ended; see its standard error")
        return said.decode()


def read_all_lines(children: Sequence[ChildProcess]) -> list[list[str]]:
    """The output of several children until all have ended, read in parallel so that no child blocks
    on a full pipe.
    """
    printed: list[list[str]] = [[] for _ in children]
    with selectors.DefaultSelector() as selector:
        for index, child in enumerate(children):
            selector.register(child.output, selectors.EVENT_READ, index)
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, 65536)
                if chunk:
                    printed[key.data] += children[key.data]._split(chunk)
                else:
                    selector.unregister(key.fd)
    return printed


def _serve(module: str, descriptor: int) -> None:
    """The main loop of a nursery: fork on request, and report exit codes."""
    loaded = importlib.import_module(module)
    living: set[int] = set()
    with socket.socket(fileno=descriptor) as line:
        while True:
            text, descriptors, _, _ = socket.recv_fds(line, 65536, 1)
            while text and not text.endswith(b"\n"):
                text += line.recv(65536)
            if not text:
                break
            message = json.loads(text)
            if "wait" in message:
                _, status = os.waitpid(message["wait"], 0)
                living.discard(message["wait"])
                line.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                continue
            pid = os.fork()
            if pid == 0:
                line.close()
                os.dup2(descriptors[0], 1)
                os.close(descriptors[0])
                _live(getattr(loaded, message["call"]), message["with"])
            os.close(descriptors[0])
            living.add(pid)
            line.sendall(str(pid).encode())
    for pid in living:
        os.kill(pid, signal.SIGKILL)


def _live(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """The main function of a child: call the function, and exit with 0, or with 1 if it raised."""
    code = 0
    try:
        found = function(**arguments)
        if inspect.iscoroutine(found):
            asyncio.run(found)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
