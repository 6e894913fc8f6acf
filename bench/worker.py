"""The process of a contender: requests a slice and reads its measurements.

A worker without a request is stopped (SIGSTOP), so that no contender's pollers and timers run in
another's slice.
"""

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.speak import Reply

PATIENCE = 3600.0
ROOT = Path(__file__).resolve().parent.parent


class WorkerFailed(Exception):
    """A contender could not do the work, so there is no figure."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} could not do the work: {reason}")


class Worker:
    """One process. `ask` is `tell` and `hear`; two workers that are told before either is heard
    run at once.
    """

    def __init__(self, name: str, command: Sequence[str], *, env: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **env},
        )

    def ask(self, verb: str, **args: Any) -> Reply:
        self.tell(verb, **args)
        return self.hear()

    def tell(self, verb: str, **args: Any) -> None:
        self.process.send_signal(signal.SIGCONT)
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({"verb": verb, **args}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self.name, "its process ended; what it said is above") from None

    def hear(self) -> Reply:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise WorkerFailed(self.name, f"no word in {PATIENCE:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise WorkerFailed(self.name, "its process ended; what it said is above")
        self.process.send_signal(signal.SIGSTOP)
        reply: Reply = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(self.name, reply["error"])
        return reply

    def end(self) -> None:
        """End the process, by force if necessary."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
