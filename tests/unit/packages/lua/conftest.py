"""A home and a project in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.packages import settings
from everhold.packages.lua import trust
from everhold.packages.lua.paths import AlcHome
from everhold.packages.lua.project import Project


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AlcHome:
    """The user's folder; nothing of the machine's own user is seen."""
    for name in (
        "ALC_PACKAGES_PATH",
        "ALC_PROJECT_ROOT",
        "ALC_PKG_STRICT",
        "ALC_LOG_DIR",
        "ALC_LOG_LEVEL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for room in (settings, trust):
        monkeypatch.setattr(room, "get_data_folder", lambda: tmp_path / "data")
    (tmp_path / "user").mkdir()
    return AlcHome(tmp_path / "home")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with an empty alc.toml; its folder is the current one."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "alc.toml").write_text("# ours\n[packages]\n")
    monkeypatch.chdir(root)
    return Project(root)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder without a project, which is the current one."""
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
