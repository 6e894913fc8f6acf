"""A fleet of real worker processes on one database, to be killed, stopped and told to leave; and
what they did outside.

with Fleet(tmp_path, url) as fleet:
    fleet.begin(key="a", name="a", count=3)        # a session whose errands are left for workers
    one, two = fleet.start(), fleet.start()        # processes
    fleet.until(lambda: fleet.began("a-0"))
    one.kill()                                     # or fleet.stop(one), fleet.resume(one), fleet.leave(one)
    fleet.finish(["a"])                            # every session has ended
    assert fleet.began("a-0") == 1
"""  # noqa: E501

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from everhold.core.status import Status
from everhold.runtime import Runtime
from everhold.testing.faults import ChildProcess, Nursery
from tests.fault.crowd import at

#: Seconds until something that must come to pass has to; generous, for machines that are busy.
PATIENCE = 90.0


class Fleet:
    def __init__(self, folder: Path, url: str, victim: str = "tests.fault.workers_victim") -> None:
        self.folder, self.url = folder, url
        self.log = folder / "effects.log"
        self.log.touch()
        self._nursery = Nursery(victim)
        self._children: list[ChildProcess] = []
        self._said: dict[int, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            child.close()
        self._nursery.close()

    # ---- sessions

    def begin(self, *calls: dict[str, Any], **call: Any) -> None:
        """Begin sessions whose first errands are left for workers."""
        given = [{"log": str(self.log), **one} for one in (calls or (call,))]
        code, _ = self._nursery.run("begin", path=self.url, calls=given)
        assert code == 0

    def finish(self, keys: list[str]) -> list[Status]:
        """Wait until all these sessions have ended; returns how."""
        return asyncio.run(self._finish(keys))

    async def _finish(self, keys: list[str]) -> list[Status]:
        async with Runtime(at(self.url), recover=False) as runtime:
            ids = [str(await runtime.store.find(key)) for key in keys]
            found = [await runtime.wait(id, PATIENCE) for id in ids]
            assert await runtime.archive.verify() == []
            return found

    def result(self, key: str) -> Any:
        """What a session returned in the end."""
        (found,) = self.finish([key])
        assert found.state == "completed", found
        return found.result  # type: ignore[union-attr]

    # ---- workers

    def start(self, **options: Any) -> ChildProcess:
        """A worker, as soon as it works."""
        child = self._nursery.start("work", path=self.url, **options)
        self._children.append(child)
        self.until(lambda: self.told(child, "started"))
        return child

    def told(self, child: ChildProcess, event: str) -> int:
        """How often a worker told of an event."""
        said = self._said.setdefault(child.pid, [])
        said += [line.split(" ")[0] for line in child.heard()]
        return said.count(event)

    def stop(self, child: ChildProcess) -> None:
        """Stop a process as a busy machine may: SIGSTOP."""
        os.kill(child.pid, signal.SIGSTOP)

    def resume(self, child: ChildProcess) -> None:
        os.kill(child.pid, signal.SIGCONT)

    def leave(self, child: ChildProcess) -> None:
        """Tell a worker to leave: SIGTERM."""
        os.kill(child.pid, signal.SIGTERM)

    # ---- what they did

    def noted(self) -> list[tuple[str, str, int]]:
        """What was begun and ended, by which process, in order."""
        words = [line.split(" ") for line in self.log.read_text().splitlines()]
        return [(what, name, int(pid)) for what, name, pid in words]

    def began(self, name: str) -> int:
        """How often an errand was begun."""
        return sum(what == "begin" and each == name for what, each, _ in self.noted())

    def ended(self, name: str) -> int:
        return sum(what == "end" and each == name for what, each, _ in self.noted())

    def hold(self, name: str) -> Path:
        """Let an errand last until the file that this returns is removed."""
        gate = self.folder / f"{name}.wait"
        gate.touch()
        return gate

    def until(self, what: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """Wait for something to be so; returns it."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError("it did not come to pass")
