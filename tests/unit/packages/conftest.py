"""Folders with programs in them, and a process that forgets what it loaded from them."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everhold.ports.program import REGISTRY
from tests.warm import start

Write = Callable[..., Path]
Fresh = Callable[..., str]


@pytest.fixture(autouse=True)
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path, registry = list(sys.path), dict(REGISTRY)
    REGISTRY.clear()  # of what other tests left in this process
    # text: there are thousands of modules, and a test is short
    passing = f"{tmp_path_factory.getbasetemp()}{os.sep}"
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(passing):
            del sys.modules[name]
    sys.path[:] = [folder for folder in path if not folder.startswith(passing)]
    modules = set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] != "everhold":  # others still hold classes of these
            del sys.modules[name]
    REGISTRY.clear()
    REGISTRY.update(registry)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.fixture
def write(here: Path) -> Write:
    """Write a file below the current folder; one with programs begins with the import they need."""

    def write(name: str, text: str = "") -> Path:
        file = here / name
        file.parent.mkdir(parents=True, exist_ok=True)
        head = "from everhold.ports.program import program\n" if "@program" in text else ""
        file.write_text(head + textwrap.dedent(text))
        return file

    return write


@pytest.fixture
def fresh(here: Path) -> Fresh:
    """Run Python in a process of its own in the current folder; return what it printed."""

    def fresh(*arguments: str) -> str:
        done = subprocess.run(
            [*start.python(), *arguments], cwd=here, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return fresh
