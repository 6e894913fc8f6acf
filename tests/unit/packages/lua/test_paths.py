"""Where algocline's files are, and what its variables say."""

from pathlib import Path

import pytest

from everhold.errors import BadPackage, BadSetting
from everhold.packages import settings
from everhold.packages.lua import paths as room
from everhold.packages.lua.paths import (
    find_project_root,
    get_alc_home,
    is_log_enabled,
    is_strict,
    list_unheeded_variables,
    log_dir,
    read_card_sinks,
    read_packages_path,
    read_preview_chars,
)


def test_alc_home_is_the_home(tmp_path: Path) -> None:
    assert get_alc_home({"ALC_HOME": str(tmp_path / "x")}).packages == tmp_path / "x" / "packages"


def test_a_home_of_algocline_that_is_there_is_used(tmp_path: Path) -> None:
    before = get_alc_home({}).root
    (tmp_path / "user" / ".algocline").mkdir()
    assert (before, get_alc_home({}).root) == (
        settings.get_data_folder(),
        tmp_path / "user" / ".algocline",
    )


def test_everything_has_its_place() -> None:
    found = get_alc_home({"ALC_HOME": "/h"})
    places = (
        found.cards,
        found.state,
        found.evals,
        found.logs,
        found.scenarios,
        found.types,
        found.installed,
    )
    assert [str(place) for place in places] == [
        "/h/cards",
        "/h/state",
        "/h/evals",
        "/h/logs",
        "/h/scenarios",
        "/h/types",
        "/h/installed.json",
    ]
    assert str(found.pinned("panel", "1.2")) == "/h/packages/panel@1.2"


def test_more_folders_of_packages(tmp_path: Path) -> None:
    assert read_packages_path({"ALC_PACKAGES_PATH": f"/a:{tmp_path}::~/b"}) == (
        Path("/a"),
        tmp_path,
        tmp_path / "user" / "b",
    )
    assert read_packages_path({}) == ()


def test_what_does_nothing_here_says_so() -> None:
    """A variable that is heeded is not named."""
    (said,) = list_unheeded_variables(
        {"ALC_SHAPE_CHECK": "1", "ALC_CARD_SINKS": "file:///mirror|here", "ALC_HOME": "/h"}
    )
    assert said.startswith("ALC_CARD_SINKS: 'here' is not a sink")
    assert list_unheeded_variables({"ALC_SHAPE_CHECK": "1"}) == []


def test_sinks() -> None:
    """Folders by their address; blanks around them, and empty parts, are ignored."""
    sinks, problems = read_card_sinks({"ALC_CARD_SINKS": " file:///a/b | |file:///c%20d|"})
    assert sinks == {"file:///a/b": Path("/a/b"), "file:///c%20d": Path("/c d")}
    assert problems == []
    assert read_card_sinks({}) == ({}, [])


@pytest.mark.parametrize(
    "word",
    [
        "/a",
        "s3://bucket/x",
        "file://host/x",
        "file:/x",
        "file:///%zz",
        "file:///%ff",
        "file:///%2",
        "file:///%00",
    ],
)
def test_what_is_not_a_sink_is_named(word: str) -> None:
    """And the others are sinks."""
    sinks, (problem,) = read_card_sinks({"ALC_CARD_SINKS": f"{word}|file:///a"})
    assert list(sinks) == ["file:///a"]
    assert problem.startswith(f"{word!r} is not a sink")
    assert list_unheeded_variables({"ALC_CARD_SINKS": word}) == [f"ALC_CARD_SINKS: {problem}"]


def test_a_sink_that_is_named_twice_is_one_sink() -> None:
    sinks, (problem,) = read_card_sinks({"ALC_CARD_SINKS": "file:///a%62|file:///ab"})
    assert list(sinks) == ["file:///ab"] and problem == "'file:///ab' is named twice"


@pytest.mark.parametrize(
    ("said", "meant"), [("1", True), ("true", True), ("TRUE", True), ("0", False), ("", False)]
)
def test_strictness(said: str, meant: bool) -> None:
    assert is_strict({"ALC_PKG_STRICT": said}) is meant


@pytest.mark.parametrize(
    ("said", "meant"), [("", 200), ("50", 50), ("0", 0), ("many", 200), ("-3", 200), ("٣", 200)]
)
def test_letters_of_a_preview(said: str, meant: int) -> None:
    assert read_preview_chars({"ALC_PROMPT_PREVIEW_CHARS": said}) == meant


def test_logs_can_be_off() -> None:
    assert [
        is_log_enabled({}),
        is_log_enabled({"ALC_LOG_LEVEL": "debug"}),
        is_log_enabled({"ALC_LOG_LEVEL": "OFF"}),
    ] == [
        True,
        True,
        False,
    ]


def test_logs_go_where_there_is_room(
    tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    env = {"ALC_HOME": str(tmp_path / "h")}
    assert log_dir(env | {"ALC_LOG_DIR": str(tmp_path / "logs")}) == (
        tmp_path / "logs",
        "ALC_LOG_DIR",
    )
    assert log_dir(env) == (tmp_path / "h" / "logs", "home")
    bad = {"ALC_HOME": str(tmp_path / "file"), "XDG_STATE_HOME": str(tmp_path / "state")}
    assert log_dir(bad) == (tmp_path / "state" / "algocline" / "logs", "state_dir")
    bad["XDG_STATE_HOME"] = str(tmp_path / "file")
    assert log_dir(bad) == (nowhere / "algocline-logs", "cwd")
    monkeypatch.setattr(room, "_is_writable", lambda folder: False)
    assert log_dir(bad) == (None, "none")


def test_the_project_is_named_or_found_upwards(tmp_path: Path) -> None:
    (tmp_path / "p" / "deep").mkdir(parents=True)
    (tmp_path / "p" / "alc.toml").touch()
    assert find_project_root(tmp_path, env={"ALC_PROJECT_ROOT": str(tmp_path / "p")}) == tmp_path
    assert (
        find_project_root(start=tmp_path, env={"ALC_PROJECT_ROOT": str(tmp_path / "p")})
        == tmp_path / "p"
    )
    assert find_project_root(start=tmp_path / "p" / "deep", env={}) == tmp_path / "p"
    assert find_project_root(start=tmp_path, env={}) is None


def test_a_project_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(BadPackage, match="is not a directory, so it is no project"):
        find_project_root(tmp_path / "gone")
    with pytest.raises(BadSetting, match="ALC_PROJECT_ROOT"):
        find_project_root(env={"ALC_PROJECT_ROOT": str(tmp_path / "gone")})
