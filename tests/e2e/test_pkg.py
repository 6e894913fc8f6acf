"""Packages through the command line: real processes, real repositories, a home of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everhold.cli.app import main
from tests.failures import collect_failures
from tests.warm import start

DEBATE = """
local M = {}
M.meta = { name = "debate", version = "VERSION", description = "Two sides talk." }
function M.run(ctx)
  local judge = require("debate.judge")
  return judge.say(alc.llm("Who is right about " .. ctx.task .. "?"))
end
return M
"""
JUDGE = 'return { say = function(text) return "VERSION: " .. text end }'


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Said]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Run everhold in the folder `project`."""
    (tmp_path / "project").mkdir()
    (tmp_path / "user").mkdir()
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("EVERHOLD", "ALC_", "XDG_"))
    }
    env = {
        **kept,
        "HOME": str(tmp_path / "user"),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "COLUMNS": "140",
    }

    def run(*words: str, python: str | None = None, **more: str) -> Said:
        done = subprocess.run(
            [*([python, "-m", "everhold"] if python else start.everhold()), *words],
            cwd=tmp_path / "project",
            env={**env, **more},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=250,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Said(done.returncode, done.stdout, done.stderr)

    return run


def debate(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "init.lua").write_text(DEBATE.replace("VERSION", version))
    (folder / "judge.lua").write_text(JUDGE.replace("VERSION", version))
    return folder


def commit(folder: Path, tag: str) -> str:
    def git(*words: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        told = subprocess.run(
            ["git", *own, *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return told.stdout.strip()

    if not (folder / ".git").exists():
        git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", tag)
    git("tag", tag)
    return git("rev-parse", "HEAD")


def ran(shell: Shell, *words: str, **more: str) -> str:
    """What the package `debate` says here."""
    answers = ["--answer-with", "echo the bees"]
    done = shell("run", "debate", "task=honey", "-d", "memory://", *answers, *words, **more)
    assert done.code == 0, done.err
    return done.out.strip()


def test_a_repository_is_installed_run_updated_and_removed(shell: Shell, tmp_path: Path) -> None:
    folder = debate(tmp_path / "src" / "debate", "1.0")
    first = commit(folder, "v1")
    done = shell("pkg", "install", f"file://{folder}", "--json")
    assert (done.json["installed"], done.json["rev"], done.json["trusted"]) == (
        ["debate"],
        first,
        [],
    )
    assert ran(shell) == "1.0: the bees"
    debate(folder, "2.0")
    commit(folder, "v2")
    assert "updated: debate" in shell("pkg", "install", f"file://{folder}").out
    assert ran(shell) == "2.0: the bees"
    assert shell("pkg", "install", f"file://{folder}", "--rev", "v1", "--json").json["rev"] == first
    assert ran(shell) == "1.0: the bees"
    assert "Two sides talk." in shell("pkg", "list").out
    assert shell("pkg", "remove", "debate", "--global", "--yes").out == "removed: debate\n"
    assert shell("run", "debate").code == 2
    assert "no packages; to install some" in shell("pkg").out


def test_a_project_pins_what_it_needs(shell: Shell, tmp_path: Path) -> None:
    """A path, a version and a revision each run under the name `debate`; a variant goes before
    them.
    """
    project = tmp_path / "project"
    folder = debate(tmp_path / "src" / "debate", "1.0")
    commit(folder, "v1.0")
    debate(folder, "2.0")
    commit(folder, "v2.0")
    assert shell("pkg", "init").code == 0
    assert shell("pkg", "install", f"file://{folder}").code == 0
    assert (project / "alc.toml").read_text() == '[packages]\ndebate = "*"\n'
    heard = [ran(shell)]
    for need in (
        '"1.0"',
        f'{{ git = "file://{folder}", rev = "v1.0" }}',
        '{ path = "../elsewhere" }',
    ):
        debate(tmp_path / "elsewhere", "3.0")
        (project / "alc.toml").write_text(f"[packages]\ndebate = {need}  # ours\n")
        done = shell("pkg", "update", "--json")
        assert (done.code, done.json["errors"]) == (0, [])
        heard.append(ran(shell))
    shell("pkg", "link", str(debate(tmp_path / "mine", "4.0")), "--name", "debate", "--variant")
    heard.append(ran(shell))
    shell("pkg", "unlink", "debate")
    heard.append(ran(shell))
    assert [one.partition(":")[0] for one in heard] == ["2.0", "1.0", "1.0", "3.0", "4.0", "3.0"]


def test_a_paused_session_keeps_its_package(shell: Shell, tmp_path: Path) -> None:
    """It was started from a pinned path; afterwards the name means another."""
    debate(tmp_path / "elsewhere", "1.0")
    (tmp_path / "project" / "alc.toml").write_text(
        '[packages]\ndebate = { path = "../elsewhere" }\n'
    )
    shell("pkg", "update")
    assert shell("run", "debate", "task=honey", "--key", "k", "-d", "a.db").code == 10
    shell("pkg", "link", str(debate(tmp_path / "mine", "9.0")), "--name", "debate", "--variant")
    assert shell("answer", "k", "the bees", "-d", "a.db").out == "1.0: the bees\n"


def test_the_variables_of_algocline_count(shell: Shell, tmp_path: Path) -> None:
    debate(tmp_path / "more" / "debate", "5.0")
    assert ran(shell, ALC_PACKAGES_PATH=str(tmp_path / "more")) == "5.0: the bees"
    home = {"ALC_HOME": str(tmp_path / "home")}
    shell("pkg", "install", str(debate(tmp_path / "src" / "debate", "6.0")), **home)
    assert (tmp_path / "home" / "packages" / "debate" / "judge.lua").is_file()
    assert ran(shell, **home) == "6.0: the bees"
    assert shell("run", "debate").code == 2


def test_links_are_refused_where_it_is_strict(shell: Shell, tmp_path: Path) -> None:
    shell("pkg", "link", str(debate(tmp_path / "src" / "debate", "1.0")))
    assert ran(shell) == "1.0: the bees"
    assert shell("run", "debate", ALC_PKG_STRICT="1").code == 2


def test_trust_is_given_at_the_installation_and_lost_with_the_next(
    shell: Shell, tmp_path: Path
) -> None:
    folder = debate(tmp_path / "src" / "debate", "1.0")
    done = shell("pkg", "install", str(folder), "--trust", "--json")
    assert done.json["trusted"] == [
        str(tmp_path / "user" / ".local/share/everhold/packages/debate")
    ]
    assert shell("pkg", "trusted", "--json").json["packages"][0]["trusted"] is True
    assert ran(shell) == "1.0: the bees"
    shell("pkg", "install", str(debate(folder, "2.0")))
    assert shell("pkg", "trusted", "--json").json["packages"][0]["trusted"] is False


def test_what_is_broken_is_found_and_mended(shell: Shell, tmp_path: Path) -> None:
    shell("pkg", "install", str(debate(tmp_path / "src" / "debate", "1.0")))
    assert shell("pkg", "doctor").out == "✓ debate\nno problems\n"
    (tmp_path / "user" / ".local/share/everhold/packages/debate/judge.lua").unlink()
    found = shell("pkg", "doctor")
    assert (found.code, "missing: debate.judge" in found.out) == (1, True)
    assert shell("pkg", "repair").code == 0
    assert ran(shell) == "1.0: the bees"


def test_a_new_package_can_be_made_tested_and_installed(shell: Shell, tmp_path: Path) -> None:
    made = shell("pkg", "scaffold", "debate", "--description", "Two sides talk.", "--json").json
    tested = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            made["test_path"],
        ],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
    )
    assert tested.returncode == 0, tested.stdout
    shell("pkg", "install", "debate")
    assert json.loads(ran(shell))["result"] == "the bees"


MISTAKES = [
    ("install /no/such", "bad_package"),
    ("install ext::sh", "bad_package"),
    ("install file:///no/such", "bad_package"),
    ("link /no/such", "bad_package"),
    ("unlink debate", "bad_package"),
    ("remove debate", "bad_package"),
    ("remove debate --global", "not_allowed"),
    ("remove debate --global --yes", "bad_package"),
    ("remove debate --global --all --yes", "usage"),
    ("remove nobody --python --yes", "bad_package"),
    ("doctor debate", "bad_package"),
    ("repair debate", "bad_package"),
    ("scaffold Debate", "bad_package"),
    ("update", "bad_package"),
    ("list --sort -", "bad_package"),
    ("list --project /no/such", "bad_package"),
    ("list --filter x", "bad_setting"),
    ("install x --python --trust", "usage"),
    ("link x --python --variant", "usage"),
    ("link /no/such --python", "bad_package"),
    ("install --python -- -x", "bad_package"),
]


def test_every_mistake_is_one_line_with_a_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, where it is the same: the tests around this one have processes enough."""
    for name in [name for name in os.environ if name.startswith(("EVERHOLD", "ALC_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with collect_failures() as row:
        for words, code in MISTAKES:
            before, dashes, after = words.partition(" -- ")
            with row(words):
                assert (
                    main(["pkg", *before.split(), "--json", *dashes.split(), *after.split()]) == 2
                )
                assert json.loads(capsys.readouterr().out)["code"] == code


def test_a_mistake_in_a_process_is_one_line_with_a_code(shell: Shell) -> None:
    said = shell("pkg", "install", "--python", "--", "-x")
    assert (said.code, "[bad_package]" in said.err) == (2, True)


# Python packages

BACKEND = '''
"""Builds the package without any other; writes down that it ran."""
import pathlib, zipfile
NAME = "everhold_shop-{version}"

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None, code=None):
    pathlib.Path(__file__).with_name("built").touch()
    code = code or pathlib.Path(__file__).with_name("shop.py").read_text()
    wheel = pathlib.Path(wheel_directory, NAME + "-py3-none-any.whl")
    info = NAME + ".dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("shop_programs.py", code)
        file.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: everhold-shop\\nVersion: {version}\\n")
        wheel_facts = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        file.writestr(info + "/WHEEL", wheel_facts)
        file.writestr(info + "/entry_points.txt", "[everhold.programs]\\nbuy = shop_programs:buy\\n")
        file.writestr(info + "/RECORD", "shop_programs.py,,\\n" + info + "/METADATA,,\\n")
    return wheel.name

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    code = "from everhold import program\\n@program\\nasync def buy(ctx): return 'linked'\\n"
    return build_wheel(wheel_directory, code=code)
'''  # noqa: E501
SHOP = """
import everhold

@everhold.program
async def buy(ctx: everhold.Context) -> str:
    return "bought VERSION"
"""


def shop(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "backend.py").write_text(BACKEND.replace("{version}", version))
    (folder / "shop.py").write_text(SHOP.replace("VERSION", version))
    (folder / "pyproject.toml").write_text(
        textwrap.dedent(
            """
            [build-system]
            requires = []
            build-backend = "backend"
            backend-path = ["."]
            """
        )
    )
    return folder


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python with an environment of its own, which has everhold and its libraries, pip among
    them.
    """
    words = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")]
    subprocess.run(words, check=True, capture_output=True)
    own = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    paths = [path for path in sys.path if path.endswith("src")] + [sysconfig.get_path("purelib")]
    (own / "ours.pth").write_text("\n".join(paths))
    return str(tmp_path / "venv" / "bin" / "python")


@pytest.mark.timeout(600)
def test_a_python_package_is_installed_only_where_somebody_says_so(
    shell: Shell, python: str, tmp_path: Path
) -> None:
    """From a folder, from a repository at a revision, in place; it is listed, checked and
    removed.
    """
    folder = shop(tmp_path / "src" / "shop", "1.0")
    said = shell("pkg", "install", str(folder), python=python)
    assert (said.code, "--python" in said.err, (folder / "built").exists()) == (2, True, False)
    first = commit(folder, "v1")
    shop(folder, "2.0")
    commit(folder, "v2")
    done = shell(
        "pkg", "install", f"file://{folder}", "--rev", "v1", "--python", "--json", python=python
    )
    assert (done.code, done.json["installed"]) == (0, ["everhold-shop"]), done.out
    [row] = shell("pkg", "list", "--json", python=python).json["python"]
    assert (row["version"], row["programs"], row["rev"]) == (
        "1.0",
        {"buy": "shop_programs:buy"},
        first,
    )
    assert shell("run", "buy", "-d", "memory://", python=python).out == "bought 1.0\n"
    assert (
        "updated: everhold-shop (buy)"
        in shell("pkg", "install", str(folder), "--python", python=python).out
    )
    assert shell("run", "buy", "-d", "memory://", python=python).out == "bought 2.0\n"
    assert shell("pkg", "link", str(folder), "--python", python=python).code == 0
    assert shell("run", "buy", "-d", "memory://", python=python).out == "linked\n"
    assert shell("pkg", "list", "--json", python=python).json["python"][0]["linked"] is True
    assert shell("pkg", "doctor", python=python).code == 0
    next((tmp_path / "venv").glob("lib/python*/site-packages/shop_programs.py")).unlink()
    assert "missing: shop_programs.py" in shell("pkg", "doctor", python=python).out
    assert (
        shell("pkg", "remove", "Everhold.Shop", "--python", "--yes", python=python).out
        == "removed: everhold-shop\n"
    )
    assert shell("pkg", "list", "--json", python=python).json["python"] == []


@pytest.mark.timeout(600)
def test_what_brings_no_programs_is_not_removed(shell: Shell, python: str) -> None:
    said = shell("pkg", "remove", "pip", "--python", "--yes", "--json", python=python)
    assert (said.code, said.json["code"]) == (2, "bad_package")
