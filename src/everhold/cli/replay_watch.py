"""`everhold replay --watch`: a session is replayed in a fresh process whenever the code that it ran
is changed.

The process that replays tells which files it had loaded; this one looks at them, and begins anew
when one of them is another. Nothing is kept between two replays, so that what is shown is what the
code on disk does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from everhold.cli.output import format_count, format_line

#: Seconds between two looks at the files.
POLL_SECONDS: Final = 0.2
#: What of the settings of Python the modules of others are in.
_OTHERS: Final = ("stdlib", "platstdlib", "purelib", "platlib")

FileStats = dict[str, tuple[int, int] | None]


def watch_and_replay(words: list[str], program: Path) -> None:
    """Run `everhold replay` with these words, and again after every change, until Ctrl-C."""
    files = {str(program)}
    try:
        while True:
            before = stat_files(files)  # a change while it is replayed counts
            found = _replayed(words)
            files |= (
                found if found is not None else {str(file) for file in program.parent.glob("*.py")}
            )
            before = {**stat_files(files), **before}
            click.secho(f"watching {_told(files)}; Ctrl-C ends it", dim=True)
            changed = _changed(before)
            click.secho(f"\n{time.strftime('%H:%M:%S')} · {changed} has changed", fg="cyan")
    except KeyboardInterrupt:
        click.echo("")


def find_program_file(ref: str, root: Path) -> Path:
    """The file that a program's reference means: that of a path, or of a module below `root`."""
    place = ref.rpartition(":")[0]
    if place.endswith((".py", ".lua")):
        return Path(place).resolve()
    module = (root / place.replace(".", "/")).resolve()
    return module / "__init__.py" if module.is_dir() else module.with_suffix(".py")


def _replayed(words: list[str]) -> set[str] | None:
    """Replay in a fresh process; returns the files of the user's that it had loaded, None if it
    could not load them.
    """
    with tempfile.TemporaryDirectory(prefix="everhold-") as folder:
        told = Path(folder) / "files"
        command = [sys.executable, "-m", "everhold", "replay", *words, "--files-to", str(told)]
        subprocess.run(command, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        return set(told.read_text(encoding="utf-8").splitlines()) if told.exists() else None


def _changed(before: FileStats) -> str:
    """Wait until one of these files is another, or is there or gone; returns its name."""
    while True:
        time.sleep(POLL_SECONDS)
        now = stat_files(before)
        for file, state in now.items():
            if state != before[file]:
                return Path(file).name


def stat_files(files: Iterable[str]) -> FileStats:
    """How files are now: when each was written, and its size; None for one that is not there."""
    found: FileStats = {}
    for file in files:
        try:
            state = os.stat(file)
            found[file] = (state.st_mtime_ns, state.st_size)
        except OSError:
            found[file] = None
    return found


def list_loaded_files() -> set[str]:
    """The files of the modules in this process that are the user's own: neither Python's, nor
    installed, nor ours.
    """
    paths = sysconfig.get_paths()
    others = [os.path.realpath(paths[name]) + os.sep for name in _OTHERS] + [_ours()]
    found = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            file = os.path.realpath(file)
            if not any(file.startswith(other) for other in others):
                found.add(file)
    return found


def _ours() -> str:
    import everhold

    return os.path.dirname(os.path.realpath(str(everhold.__file__))) + os.sep


def _told(files: set[str]) -> str:
    names = sorted(Path(file).name for file in files)
    return (
        format_line(", ".join(names), 60)
        if len(names) <= 3
        else f"{format_count(len(names), 'file')}"
    )
