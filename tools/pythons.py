"""Run the unit and scenario tests on every other Python that this machine has.

The deterministic loop depends on asyncio's internals, and stores on those of sqlite3; both differ
between versions. An interpreter counts when it starts, is 3.11 or newer, has sqlite3, and is not a
version already covered. Each gets an environment under .venvs/, kept until pyproject.toml or the
pins change. They run side by side, and each prints its result when it is done. Arguments are other
tests, or other options of pytest.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/unit", "tests/scenario")
OLDEST = (3, 11)
NEWEST = (3, 16)
PROBE = (
    "import json, sqlite3, sys, venv; print(json.dumps([*sys.version_info[:3], sys.executable]))"
)

Version = tuple[int, int]


def candidates() -> Iterator[str]:
    """Commands that may be a Python: by name on PATH, then in pyenv's folder, whose shims may
    refuse.
    """
    for minor in range(OLDEST[1], NEWEST[1]):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True).stdout.strip()
        if root:
            yield from sorted(map(str, Path(root, "versions").glob("3.*/bin/python")), reverse=True)


def probe(command: str) -> tuple[Version, str, str] | None:
    """Start an interpreter and return its version, its full version and its path; None if it will
    not do.
    """
    try:
        done = subprocess.run([command, "-c", PROBE], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    major, minor, micro, executable = json.loads(done.stdout)
    if (major, minor) < OLDEST:
        return None
    return (major, minor), f"{major}.{minor}.{micro}", executable


def others() -> dict[Version, tuple[str, str]]:
    """The first working interpreter of each version other than the one in use."""
    found: dict[Version, tuple[str, str]] = {}
    for command in candidates():
        answer = probe(command)
        if answer and answer[0] != sys.version_info[:2]:
            found.setdefault(answer[0], answer[1:])
    return dict(sorted(found.items()))


def environment(full: str, executable: str) -> Path:
    """Make, or find warm, the environment of one interpreter and return its Python."""
    home = ROOT / ".venvs" / full
    python = home / "bin" / "python"
    stamp = home / "ready.stamp"
    sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)]
    if stamp.exists() and stamp.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return python
    # Our own pip installs there: unpacking another one takes longer than the tests do.
    subprocess.run([executable, "-m", "venv", "--clear", "--without-pip", str(home)], check=True)
    install = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-compile",
    ]
    pins = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*install, *pins, "--editable", f"{ROOT}[dev]"], check=True)
    stamp.touch()
    return python


def tried(full: str, executable: str, tests: Sequence[str]) -> tuple[str, str, bool]:
    """Run the tests on one interpreter; returns its version, its output, and whether all is
    well.
    """
    python = environment(full, executable)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return full, done.stdout, done.returncode == 0


def main(arguments: Sequence[str]) -> int:
    tests = arguments or TESTS
    here = ".".join(map(str, sys.version_info[:3]))
    found = others()
    if not found:
        print(f"pythons: only {here} is here; the tests were not run on any other version")
        return 0
    failed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in as_completed([pool.submit(tried, *each, tests) for each in found.values()]):
            full, said, is_well = one.result()
            print(f"pythons: {' '.join(tests)} on {full}\n{said}", flush=True)
            if not is_well:
                failed.append(full)
    ran = ", ".join(full for full, _ in found.values())
    print(
        f"pythons: {here} is in use; also ran {ran}; "
        + (f"failed: {', '.join(failed)}" if failed else "all passed")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
