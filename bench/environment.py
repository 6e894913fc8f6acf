"""The peers' virtual environments, made from the pins in bench/peers/*.txt by the Python that runs
the bench.

An environment is rebuilt when its pins or the Python change. A failure is an error, because the
table needs all peers.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

from bench.worker import ROOT

PLACE = ROOT / ".bench-venvs"
PINS = Path(__file__).resolve().parent / "peers"


class NoEnvironment(Exception):
    """A peer's environment could not be made."""

    def __init__(self, peer: str, said: str) -> None:
        super().__init__(
            f"the environment of {peer} could not be made from"
            f" bench/peers/{peer}.txt:\n{said.strip()}"
        )


def python_of(peer: str) -> str:
    """Return the interpreter of a peer's environment, making the environment first if it is not
    there.
    """
    pins = PINS / f"{peer}.txt"
    place = PLACE / peer
    python = place / "bin" / "python"
    stamp = place / "made-from"
    made_from = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == made_from:
        return str(python)
    print(f"making the environment of {peer}", file=sys.stderr)
    PLACE.mkdir(exist_ok=True)
    (PLACE / ".gitignore").write_text("*\n")
    _run(peer, [sys.executable, "-m", "venv", "--clear", str(place)])
    _run(
        peer,
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(pins)],
    )
    _run(peer, [str(python), "-m", "pip", "check"])
    stamp.write_text(made_from)
    return str(python)


def _run(peer: str, command: list[str]) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise NoEnvironment(peer, done.stdout)
