"""Write constraints.txt: the exact version of everything the development environment installs.

The newest versions that pyproject.toml allows are installed into a throwaway environment and
listed. Nothing else may add a line to the file.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = (
    "# Exact versions of what .venv holds. Written by `make pins`; change pyproject.toml,"
    " then run it.\n"
)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        pip = [str(Path(scratch, "bin", "python")), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--editable", f"{ROOT}[dev]"], check=True)
        frozen = subprocess.run(
            [*pip, "freeze", "--exclude-editable"], check=True, capture_output=True, text=True
        ).stdout
    pins = ROOT / "constraints.txt"
    pins.write_text(HEAD + frozen)
    print(f"{pins.name}: {len(frozen.splitlines())} packages, from Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
