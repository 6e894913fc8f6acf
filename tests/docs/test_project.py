"""The project keeps its own rules: setup, pins, layers, words and decisions."""

import asyncio
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.failures import collect_failures
from tools import freshness, pythons
from tools.lowest import read_lower_bounds

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


# Setting up


def test_bare_make_lists_each_target_on_one_line() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == [
        "setup",
        "demo",
        "quick",
        "test",
        "test-all",
        "check",
        "fix",
        "bench",
        "soak",
        "release",
    ]


def test_ci_runs_make_test() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    assert run.read_text().splitlines()[-1] == "make test"


def test_the_base_install_asks_for_five_libraries() -> None:
    assert names(PROJECT["dependencies"]) == {"msgspec", "click", "rich", "platformdirs", "cronsim"}


def test_the_base_install_is_at_most_nine_packages() -> None:
    """Counted with everything that the five libraries bring along, and everhold itself."""
    installed, waiting = set(), ["everhold"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in installed:
            installed.add(name)
            needs = map(Requirement, importlib.metadata.requires(name) or ())
            waiting += [
                need.name
                for need in needs
                if not need.marker or need.marker.evaluate({"extra": ""})
            ]
    assert len(installed) <= 9, installed


def test_every_extra_opens_a_package_that_exists() -> None:
    opened = {
        "mcp": "mcp",
        "lua": "programs/lua",
        "postgres": "stores/postgres",
        "models": "models",
    }
    assert set(PROJECT["optional-dependencies"]) == opened.keys() | {"dev"}
    source = ROOT / "src" / "everhold"
    assert [place for place in opened.values() if not (source / place).is_dir()] == []


def test_every_requirement_has_a_lower_bound() -> None:
    everything = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]
    # extras of our own
    everything = [line for line in everything if not line.startswith("everhold[")]
    assert [line for line in everything if not re.search(r"[>~]=", line)] == []


def test_a_major_version_that_may_change_recorded_messages_is_not_installed() -> None:
    pinned = next(pin for pin in PINS if pin.startswith("pydantic-ai-slim=="))
    major = int(pinned.partition("==")[2].partition(".")[0])
    [models] = map(Requirement, PROJECT["optional-dependencies"]["models"])
    assert models.specifier.contains(pinned.partition("==")[2])
    assert not models.specifier.contains(f"{major + 1}.0")


def test_the_project_links_its_home_docs_changes_and_issues() -> None:
    assert PROJECT["urls"].keys() == {"Homepage", "Documentation", "Changelog", "Issues"}
    home = PROJECT["urls"]["Homepage"]
    assert [url for url in PROJECT["urls"].values() if not url.startswith(home)] == []
    pages = [url.partition("/blob/main/")[2] for url in PROJECT["urls"].values() if "/blob/" in url]
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_a_pin_is_a_name_and_a_version_and_nothing_else() -> None:
    assert [
        line for line in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)
    ] == []


def test_everything_that_setup_asks_for_is_pinned() -> None:
    asked = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["dev"])
    assert (
        asked - {"everhold"} - {canonicalize_name(pin.partition("==")[0]) for pin in PINS} == set()
    )


def test_the_environment_holds_what_is_pinned() -> None:
    pinned = {
        canonicalize_name(name): version
        for name, _, version in (pin.partition("==") for pin in PINS)
    }
    installed = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions()}
    assert {name: installed[name] for name in pinned.keys() & installed} == {
        name: pinned[name] for name in pinned.keys() & installed
    }


def test_the_command_and_the_types_are_shipped() -> None:
    assert PROJECT["scripts"] == {"everhold": "everhold.__main__:main"}
    assert (ROOT / "src" / "everhold" / "py.typed").is_file()


# How tests run


async def test_an_async_test_runs_on_a_loop_of_its_own(tmp_path: Path) -> None:
    assert asyncio.get_running_loop().is_running()
    assert tmp_path.is_dir()


def test_an_async_test_that_fails_is_a_failure(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_pair.py").write_text(
        "async def test_true():\n    assert True\n\nasync def test_false():\n    assert False\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout


STARTING = """
import os
import subprocess
import sys

import pytest

def begin(*words):
    subprocess.run([*words, sys.executable, "-c", ""] if words else [sys.executable, "-c", ""])

@pytest.fixture
def begun():
    begin()

def test_still():
    pass

def test_popen():
    begin()

def test_fixture(begun):
    pass

def test_fork():
    if (fork := os.fork()) == 0:
        os._exit(0)
    os.waitpid(fork, 0)

@pytest.mark.process
def test_declared():
    begin()

@pytest.mark.process
def test_node():
    with pytest.raises(FileNotFoundError):
        begin("/nowhere/bin/node")

@pytest.mark.process
@pytest.mark.full
def test_node_declared():
    with pytest.raises(FileNotFoundError):
        begin("/nowhere/bin/node")
"""


def test_a_test_that_starts_a_process_and_does_not_say_so_fails(tmp_path: Path) -> None:
    """In unit, scenario and conformance tests, whatever starts it; the error has the name of the
    test.
    """
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    for folder in ("unit", "e2e"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"test_{folder}.py").write_text(STARTING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    errors = re.findall(r"^(\S+): it starts .* is not marked `(\w+)`$", done.stdout, re.MULTILINE)
    assert sorted(errors) == [
        ("e2e/test_e2e.py::test_node", "full"),
        ("unit/test_unit.py::test_fixture", "process"),
        ("unit/test_unit.py::test_fork", "process"),
        ("unit/test_unit.py::test_node", "full"),
        ("unit/test_unit.py::test_popen", "process"),
    ], done.stdout
    assert "14 passed, 5 errors" in " ".join(done.stdout.splitlines()[-1:])


def test_a_test_that_needs_a_quiet_machine_is_not_for_make_test(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_one.py").write_text(
        "import pytest\n@pytest.mark.alone\ndef test_one():\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_one is marked `alone`: mark it `full` or `soak`, too" in done.stderr


GROUPED = """
import os
import pathlib
import pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("n", range(8))
def test_one(n):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).touch()
"""


def test_tests_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """As `make test` runs them: what they share is started once."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_group.py").write_text(GROUPED)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            "2",
            "--dist",
            "loadgroup",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    assert len(list(tmp_path.glob("gw*"))) == 1


def test_a_warning_is_an_error() -> None:
    with pytest.raises(UserWarning):
        warnings.warn("look out", stacklevel=1)


# Layers and doors

BROKEN = {
    "core/clock.py": "import time",
    "core/up.py": "import everhold.stores.memory",
    "stores/memory/store.py": "",
    "stores/sqlite.py": "import sqlite3",
    "stores/sideways.py": "import everhold.engine",
    "engine/__init__.py": "import sqlite3, platformdirs, psycopg, lupa, starlette, pydantic_ai",
    "engine/limits.py": "import tomlkit",
    "packages/__init__.py": "import platformdirs, cronsim",
    "mcp/__init__.py": "import click, mcp",
    "cli/__init__.py": "import click, rich",
    "attic.py": "",
    "agents/loop.py": "import everhold.agents.turn",
    "agents/turn.py": "import typing\nif typing.TYPE_CHECKING:\n    import everhold.agents.loop",
    **{
        f"{name}/__init__.py": ""
        for name in (
            *("archive", "cards", "evals", "models", "movers", "notify", "plugins"),
            *("ports", "programs", "schedules", "testing"),
        )
    },
}


def linted(package: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    shutil.copy(ROOT / ".importlinter", package.parent)
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache"],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    ).stdout


def test_each_import_rule_bites(tmp_path: Path) -> None:
    said = linted(tmp_path / "everhold", BROKEN)
    assert "Contracts: 0 kept, 12 broken." in said
    for crossing in (
        "everhold.core is not allowed to import everhold.stores",
        "everhold.stores is not allowed to import everhold.engine",
        "everhold.core is not allowed to import time",
        "everhold.engine -> sqlite3",
        "everhold.packages -> cronsim",
        "everhold.mcp -> click",
        "everhold.attic",
        "No cycles inside packages BROKEN",
    ):
        assert crossing in said
    for door in (
        "everhold.stores.sqlite -> sqlite3",
        "everhold.packages -> platformdirs",
        "everhold.cli -> rich",
    ):
        assert door not in said


def test_a_house_that_keeps_the_rules_is_let_through(tmp_path: Path) -> None:
    kept = {
        "core/query.py": "import msgspec",
        "stores/sqlite.py": "import sqlite3, everhold.core.query",
    }
    assert "12 kept, 0 broken." in linted(tmp_path / "everhold", kept)


# Freshness, Pythons


def test_docs_without_generated_parts_are_fresh(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Hello\n")
    assert freshness.main([], tmp_path) == 0


def test_a_stale_page_is_found_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "reference" / "sum.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"<!-- {freshness.MARK} print(1 + 1) ]]] -->\n3\n<!-- [[[end]]] -->\n")
    assert freshness.main([], tmp_path) != 0
    assert freshness.main(["--write"], tmp_path) == 0
    assert page.read_text().splitlines()[1] == "2"
    assert freshness.main([], tmp_path) == 0


def test_a_python_that_does_not_start_does_not_count(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert pythons.probe(str(shim)) is None
    assert pythons.probe(str(tmp_path / "absent")) is None


@pytest.mark.full
def test_the_python_in_use_is_not_run_twice() -> None:
    assert sys.version_info[:2] not in pythons.others()


# Words and decisions


def glossary() -> Iterator[tuple[str, str, str]]:
    for line in (ROOT / "GLOSSARY.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] != "word" and not cells[0].startswith("---"):
            yield cells[0], cells[1], cells[2]


def test_the_glossary_has_fewer_than_fifty_words_each_once() -> None:
    words = [word for word, _, _ in glossary()]
    assert len(words) < 50
    assert len(words) == len(set(words))


def test_every_word_says_which_words_not_to_use() -> None:
    assert [word for word, meaning, avoid in glossary() if not meaning or not avoid] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "util", "helpers", "helper", "common", "base", "manager", "service", "misc"}
    assert [
        path
        for path in (ROOT / "src").rglob("*.py")
        if path.stem in empty or path.parent.name in empty
    ] == []


def test_decisions_are_numbered_without_gaps() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{n:04}" for n in range(1, len(DECISIONS) + 1)
    ]


def test_a_decision_is_a_sentence_and_at_most_sixty_lines() -> None:
    with collect_failures() as row:
        for decision in DECISIONS:
            with row(decision.stem):
                lines = decision.read_text().splitlines()
                title = re.sub(r"[^a-z0-9]+", "-", lines[0].lower().replace("'", "")).strip("-")
                assert title == decision.stem
                assert any(line.startswith("Status: ") for line in lines[1:6])
                assert len(lines) <= 60


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_links_between_pages_lead_somewhere() -> None:
    found = {
        page: re.findall(r"\]\((?!https?:|mailto:|#)([^)\s#]+)", page.read_text())
        for page in pages()
    }
    assert sum(map(len, found.values())) > 100
    broken = [
        (page.name, link)
        for page, links in found.items()
        for link in links
        if not (page.parent / link).exists()
    ]
    assert broken == []


def test_all_pages_say_how_long_the_tutorial_takes_in_the_same_minutes() -> None:
    readme = re.search(r"\[tutorial, (\d+) minutes\]", (ROOT / "README.md").read_text())
    tutorial = re.search(r"about (\d+) minutes", (ROOT / "docs" / "tutorial.md").read_text())
    assert readme is not None and tutorial is not None
    assert readme[1] == tutorial[1]


def anchors(page: Path) -> set[str]:
    """Where a link into a page can lead: its headings, as GitHub makes anchors of them, and ids."""
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in plain}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_into_a_page_lead_to_a_heading() -> None:
    known: dict[Path, set[str]] = {}
    broken = []
    for page in pages():
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for file, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*)#([^)\s]+)\)", text):
            target = (page.parent / file).resolve() if file else page
            if target.suffix == ".md" and anchor not in known.setdefault(target, anchors(target)):
                broken.append((page.name, f"{file}#{anchor}"))
    assert sum(map(len, known.values())) > 500
    assert broken == []


def test_no_page_installs_everhold_from_an_index_that_does_not_have_it() -> None:
    """Until the first release. `install.md` says how to add an extra to an installed everhold."""
    assert "not yet released" in (ROOT / "CHANGELOG.md").read_text(), "then change these pages"
    index = re.compile(r"pip install (?:-\S+ )*'?everhold\b")
    pages_ = [page for page in pages() if page.name not in ("install.md", "CHANGELOG.md")]
    assert [page.name for page in pages_ if index.search(page.read_text())] == []


def test_nothing_names_the_machine_it_was_written_on() -> None:
    rooms = ("src", "tools", "docs", "examples", "bench", ".ci")
    files = [path for room in rooms for path in (ROOT / room).rglob("*") if path.is_file()]
    files += [
        path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith(".coverage")
    ]
    texts = [
        path
        for path in files
        if path.suffix in {"", ".md", ".py", ".toml", ".txt", ".sql", ".ipynb"}
    ]
    places = [f"{place}/" for place in (Path.home(), ROOT) if len(place.parts) > 1]
    read = {path: path.read_text(encoding="utf-8", errors="ignore") for path in texts}
    assert [path for path, text in read.items() if any(place in text for place in places)] == []


# What runs for each push, and what people find before they write to us


WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_ci_runs_every_python_that_the_project_names() -> None:
    named = {line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if ":: 3." in line}
    [linux] = re.findall(r"linux:.*?python: \[(.*?)\]", WORKFLOW, re.DOTALL)
    assert set(re.findall(r'"([\d.]+)"', linux)) == named


def test_ci_calls_targets_and_tools_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = re.findall(r"run: make PYTHON=python (.*)", WORKFLOW)
    assert called and set(" ".join(called).split()) <= targets
    tools = re.findall(r"run: python (tools/\S+)", WORKFLOW)
    assert tools and all((ROOT / tool).is_file() for tool in tools)


def test_pages_for_visitors_link_to_pages_that_exist() -> None:
    pages = [ROOT / "SECURITY.md", *ROOT.glob(".github/**/*.md"), *ROOT.glob(".github/**/*.yml")]
    linked = [
        (page.name, link)
        for page in pages
        for link in re.findall(r"\]\((?!https:)([^)#]+)", page.read_text())
    ]
    assert linked
    assert [(page, link) for page, link in linked if not (ROOT / link).is_file()] == []


def test_the_lower_bounds_that_are_tried_are_those_of_the_project() -> None:
    bounds = read_lower_bounds(ROOT / "pyproject.toml")
    assert bounds["msgspec"] == "0.21"
    asked = {
        name
        for extra in ("mcp", "lua", "postgres", "models")
        for name in names(PROJECT["optional-dependencies"][extra])
    }
    assert set(bounds) == asked | names(PROJECT["dependencies"])
