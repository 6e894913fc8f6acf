"""Build the source archive and the wheel, and test the wheel in an empty environment.

The wheel is built from the source archive, so both hold the same. It must hold each file of
src/everhold that git tracks and nothing else. Then it is installed into an empty environment, with
the newest versions that its bounds allow, and used from an empty folder with an empty home: the
version, the imports of all public paths, the message about a missing extra, `everhold demo`.
Nothing is uploaded: the last lines say what to push.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
#: Loads every public name. A name may ask for an extra, and the test kit for pytest.
PROBE = """
import importlib, sys
from everhold.errors import MissingExtra
for path in sys.argv[1:]:
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not (path.startswith("everhold.testing") and error.name == "pytest"):
            raise
        continue
    for name in module.__all__:
        try:
            getattr(module, name)
        except MissingExtra as error:
            print(f"{path}.{name}: {error}")
        except ModuleNotFoundError as error:
            if not (path.startswith("everhold.testing") and error.name == "pytest"):
                raise
"""


class Refused(SystemExit):
    """The release is not sound; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"release: {reason}")


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command and return what it prints on standard output; refuse if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        words = " ".join(map(str, command))
        raise Refused(f"`{words}` exited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(version: str) -> tuple[Path, Path]:
    """Build both files into dist/, in place of earlier ones of this version."""
    DIST.mkdir(exist_ok=True)
    for old in DIST.glob(f"everhold-{version}*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    return DIST / f"everhold-{version}.tar.gz", DIST / f"everhold-{version}-py3-none-any.whl"


def check_contents(wheel: Path) -> int:
    """Compare the files of the wheel with those that git tracks, and return their number."""
    tracked = run("git", "ls-files", "-z", "src/everhold").split("\0")
    wanted = {name.removeprefix("src/") for name in tracked if name}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    if found != wanted:
        missing, extra = sorted(wanted - found), sorted(found - wanted)
        raise Refused(f"the wheel lacks {missing} and holds {extra}, which git does not track")
    return len(found)


def read_public_paths() -> list[str]:
    """The public import paths, from docs/stability.md."""
    text = (ROOT / "docs" / "stability.md").read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| `ever")]
    return [row.strip("`") for row in rows]


def check_in_empty_environment(wheel: Path, version: str) -> None:
    """Install the wheel where nothing else is, and use it."""
    with tempfile.TemporaryDirectory(prefix="everhold-release-") as scratch:
        home, work = Path(scratch, "home"), Path(scratch, "work")
        home.mkdir()
        work.mkdir()
        run(sys.executable, "-m", "venv", Path(scratch, "venv"))
        bin_ = Path(scratch, "venv", "bin")
        kept = ("PATH", "LANG", "LC_ALL", "TMPDIR")
        clean = {name: os.environ[name] for name in kept if name in os.environ}
        env = {**clean, "HOME": str(home), "XDG_DATA_HOME": str(home / "data")}
        run(bin_ / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q", wheel)
        run(bin_ / "python", "-m", "pip", "--disable-pip-version-check", "check")
        said = run(bin_ / "everhold", "--version", cwd=work, env=env).strip()
        if said != f"everhold {version}":
            raise Refused(f"`everhold --version` prints {said!r}")
        run(bin_ / "python", "-W", "error", "-c", PROBE, *read_public_paths(), cwd=work, env=env)
        missing = subprocess.run(
            [bin_ / "everhold", "mcp"],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if not missing.returncode or "pip install" not in missing.stderr:
            raise Refused(f"without its extra `everhold mcp` prints {missing.stderr!r}")
        run(bin_ / "everhold", "demo", cwd=work, env=env)
        shutil.rmtree(work)


def read_state(version: str) -> list[str]:
    """What still stands between these files and a published release."""
    open_ = []
    if run("git", "status", "--porcelain"):
        open_.append("commit or remove the changes that `git status` lists; the wheel holds them")
    if "not yet released" in (ROOT / "CHANGELOG.md").read_text().split("\n### ")[0]:
        open_.append(f"put the date of the release behind {version} in CHANGELOG.md")
    if run("git", "tag", "--list", f"v{version}"):
        open_.append(f"raise `version` in pyproject.toml: the tag v{version} exists")
    return open_


def main(arguments: Sequence[str]) -> int:
    if arguments:
        raise Refused("takes no arguments")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = build(version)
    count = check_contents(files[1])
    check_in_empty_environment(files[1], version)
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(ROOT)}")
    print(f"release: the wheel of {version} holds {count} files and works in an empty environment")
    if still := read_state(version):
        print("release: before you publish it:\n" + "\n".join(f"  - {line}" for line in still))
        return 0
    names = " ".join(str(file.relative_to(ROOT)) for file in files)
    print(
        "release: to publish it:\n"
        f"  git tag -a v{version} -m 'everhold {version}'\n"
        f"  git push origin main v{version}\n"
        f"  python -m twine upload {names}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
