"""The official JSON Schema test suite, which the source package of `jsonschema` on PyPI carries.

    python tools/schema_suite.py      # downloads it if it is not there, and prints its folder

It is downloaded once with pip, checked against the hash below, and kept in a folder that git
ignores. `make setup` does so, so that tests need no network.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "4.26.0"
SHA256: Final = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "json-schema"


def suite() -> Path:
    """The folder with the tests of every draft; a first call downloads it, those beside it wait."""
    folder = CACHE / VERSION
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
                _unpacked(_downloaded(Path(fresh)), Path(fresh) / "tests")
                (Path(fresh) / "tests").rename(folder)
    return folder


def _downloaded(folder: Path) -> Path:
    """The source package, in this folder."""
    wanted = folder / "wanted.txt"
    wanted.write_text(f"jsonschema=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"]
    options = ["--no-deps", "--no-binary", "jsonschema", "--require-hashes", "--dest", str(folder)]
    done = subprocess.run(
        [*pip, *options, "--requirement", str(wanted)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(
            f"the JSON Schema test suite cannot be downloaded:\n{done.stdout}{done.stderr}"
        )
    return folder / f"jsonschema-{VERSION}.tar.gz"


def _unpacked(archive: Path, folder: Path) -> None:
    """The part of the package that is the suite."""
    with tarfile.open(archive) as packed, tempfile.TemporaryDirectory(dir=folder.parent) as whole:
        packed.extractall(whole, filter="data")
        shutil.move(Path(whole) / f"jsonschema-{VERSION}" / "json" / "tests", folder)


if __name__ == "__main__":
    print(suite())
