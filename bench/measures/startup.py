"""The cost of a new process over that of bare Python: the import, and commands."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import everhold
from bench.figure import Figure
from bench.programs import chain
from bench.stage import Stage
from bench.worker import ROOT, WorkerFailed

#: Sessions that `everhold sessions` lists.
SESSIONS = 20
BARE = [sys.executable, "-c", "pass"]
EVERHOLD = str(Path(sys.executable).with_name("everhold"))
COMMANDS = {
    "import": [sys.executable, "-c", "import everhold"],
    # The import is lazy, so what using it then costs is recorded as well.
    "import_all": [
        sys.executable,
        "-c",
        "import everhold; [getattr(everhold, name) for name in everhold.__all__]",
    ],
    "help": [EVERHOLD, "--help"],
    "sessions": [EVERHOLD, "sessions"],
}


def measure(stage: Stage) -> Iterator[Figure]:
    """All commands in turn, a bare Python first in each round."""
    if not stage.has_ours:
        return
    database = f"sqlite:///{stage.file('startup')}"
    asyncio.run(_fill(database))
    environment = {**os.environ, "EVERHOLD_DATABASE_URL": database}
    taken: dict[str, list[float]] = {name: [] for name in ("bare", *COMMANDS)}
    for number in range(stage.scale.starts + 1):
        for name, command in {"bare": BARE, **COMMANDS}.items():
            seconds = _seconds(command, environment)
            if number:
                taken[name].append(seconds)
    for name, times in taken.items():
        yield Figure.of(f"startup.{name}_ms", "ms", [seconds * 1e3 for seconds in times])
        if name != "bare":
            yield Figure.of(f"startup.{name}_over_python", "×", _over(times, taken["bare"]))
    yield Figure.of("startup.sessions_over_help", "×", _over(taken["sessions"], taken["help"]))


def _over(above: list[float], below: list[float]) -> list[float]:
    return [one / other for one, other in zip(above, below, strict=True)]


async def _fill(database: str) -> None:
    async with everhold.open(database, recover=False) as runtime:
        for _ in range(SESSIONS):
            await runtime.start(chain(1))


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    before = perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise WorkerFailed(
            "everhold", f"there is no command {Path(command[0]).name} in this environment"
        ) from None
    if done.returncode:
        raise WorkerFailed("everhold", done.stderr)
    if "sessions" in command and done.stdout.count("chain") < SESSIONS:
        raise WorkerFailed("everhold", f"it should list {SESSIONS} sessions: {done.stdout}")
    return perf_counter() - before
