"""Instructions of the processor, in user space: they do not depend on the machine's load.

Counted by callgrind, which is a part of valgrind; without it these figures are not measured. The
kernel's part (reads, writes, fsync) is not among them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.counted import WORKS, steps
from bench.figure import Figure
from bench.stage import Stage, say
from bench.worker import ROOT, WorkerFailed

#: Whole commands, from the start of the process.
COMMANDS = {
    "python": ["-c", "pass"],
    "import": ["-c", "import everhold"],
    "help": ["-m", "everhold", "--help"],
}


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    if shutil.which("valgrind") is None:
        say("  not measured: there is no valgrind")
        return
    counted = {what: _count(stage, what) for what in WORKS}
    for what, instructions in counted.items():
        yield Figure.of(f"instructions.{what}", "instructions", [instructions])
        if what != "floor":
            over = [instructions / counted["floor"]]
            yield Figure.of(f"instructions.{what}_over_floor", "×", over)
    commands = {name: _count_command(stage, name, command) for name, command in COMMANDS.items()}
    for name, instructions in commands.items():
        yield Figure.of(f"instructions.command.{name}", "instructions", [instructions])
        if name != "python":
            over = [instructions / commands["python"]]
            yield Figure.of(f"instructions.command.{name}_over_python", "×", over)


def _count(stage: Stage, what: str) -> float:
    """Instructions of one step."""
    out = stage.data / f"callgrind-{what}"
    options = ["--dump-before=getloadavg"]
    _callgrind(out, options, ["-m", "bench.counted", what, str(stage.file(f"counted-{what}"))])
    # the first dump is what came before the first mark, the second what lies between the two
    return _read_total(Path(f"{out}.2")) / steps(what)


def _count_command(stage: Stage, name: str, command: list[str]) -> float:
    out = stage.data / f"callgrind-{name}"
    _callgrind(out, [], command)
    return _read_total(out)


def _callgrind(out: Path, options: list[str], command: list[str]) -> None:
    done = subprocess.run(
        [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options),
            *(sys.executable, *command),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkerFailed("everhold", done.stderr)


def _read_total(path: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE)
    if found is None:
        raise WorkerFailed("everhold", f"callgrind wrote no total to {path.name}")
    return int(found.group(1))
