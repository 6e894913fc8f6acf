"""The cost of a new process beyond bare Python: the import, and the command's help."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.figure import Figure
from bench.stage import Stage
from bench.worker import ROOT, WorkerFailed

BARE = [sys.executable, "-c", "pass"]
COMMANDS = {
    "startup.import_ms": [sys.executable, "-c", "import everhold"],
    # The import is lazy, so what using it then costs is recorded as well.
    "startup.import_all_ms": [
        sys.executable,
        "-c",
        "import everhold; [getattr(everhold, name) for name in everhold.__all__]",
    ],
    "startup.help_ms": [str(Path(sys.executable).with_name("everhold")), "--help"],
}


def measure(stage: Stage) -> Iterator[Figure]:
    """Each command beside a bare Python of its own; the figure is the difference."""
    if not stage.has_ours:
        return
    bare: list[float] = []
    for name, command in COMMANDS.items():
        pairs = [(_seconds(BARE), _seconds(command)) for _ in range(stage.scale.starts + 1)][1:]
        bare += [empty for empty, _ in pairs]
        yield Figure.of(name, "ms", [(full - empty) * 1e3 for empty, full in pairs])
    yield Figure.of("startup.bare_python_ms", "ms", [empty * 1e3 for empty in bare])


def _seconds(command: list[str]) -> float:
    before = perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise WorkerFailed(
            "everhold", f"there is no command {Path(command[0]).name} in this environment"
        ) from None
    if done.returncode:
        raise WorkerFailed("everhold", done.stderr)
    return perf_counter() - before
