"""A package over the limit is asked about before anything of it is installed."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from everhold.cli import pkg
from everhold.cli.app import main
from everhold.errors import BadSetting, PackageTooLarge
from everhold.mcp.algocline import package_tools as tools
from everhold.mcp.algocline.package_tools import InstallPackageArgs
from everhold.packages.lua.doctor import repair
from everhold.packages.lua.install import install
from everhold.packages.lua.installed import measure_package, remove_package_folder
from everhold.packages.lua.paths import AlcHome
from everhold.packages.settings import (
    DEFAULT_MAX_PACKAGE,
    format_size,
    parse_size,
    read_lua_options,
    settings,
)
from tests.unit.packages.lua.making import committed, package


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A package of 3000 bytes and a little, in two folders."""
    folder = package(tmp_path / "src" / "large")
    (folder / "data").mkdir()
    (folder / "data" / "table.txt").write_bytes(b"x" * 3000)
    return folder


def everything(home: AlcHome) -> list[Path]:
    return sorted(path for path in home.root.rglob("*") if path.name != "installed.json.lock")


def limited(nowhere: Path, given: str) -> None:
    (nowhere / "everhold.toml").write_text(f'[lua]\nmax_package = "{given}"\n')


@pytest.mark.process
@pytest.mark.parametrize("source", ["folder", "repository", "collection"])
def test_more_than_the_limit_is_refused_and_nothing_is_installed(
    large: Path, home: AlcHome, nowhere: Path, source: str
) -> None:
    """Whatever it comes from; of a collection all packages count together."""
    if source == "collection":
        package(large.parent / "small")
        committed(large.parent)
        url = f"file://{large.parent}"
    else:
        committed(large)
        url = str(large) if source == "folder" else f"file://{large}"
    before = everything(home)
    with pytest.raises(PackageTooLarge) as refused:
        install(url, limit=3000)
    assert everything(home) == before
    assert refused.value.code == "package_too_large"
    assert "would install 3." in str(refused.value) and "more than the limit of 3.0 kB" in str(
        refused.value
    )
    assert "--max-size" in refused.value.hint
    assert install(url, limit=4000)["installed"]


@pytest.mark.process
def test_what_is_not_copied_does_not_count(large: Path, home: AlcHome, nowhere: Path) -> None:
    """The history of a repository, and links that lead out."""
    committed(large)
    (large / "data" / "out").symlink_to("/etc")
    (large / "out.txt").symlink_to("/etc/passwd")
    exact = sum(path.stat().st_size for path in (large / "init.lua", large / "data" / "table.txt"))
    assert measure_package(large) == exact
    assert install(str(large), limit=exact)["installed"] == ["large"]


def test_scenarios_of_a_collection_count(large: Path, home: AlcHome, nowhere: Path) -> None:
    folder = large.parent
    (folder / "scenarios").mkdir()
    (folder / "scenarios" / "big.lua").write_bytes(b"-" * 5000)
    with pytest.raises(PackageTooLarge, match=r"8\.1 kB"):
        install(str(folder), limit=4000)


@pytest.mark.parametrize("says", [True, False])
def test_whoever_is_asked_decides(large: Path, home: AlcHome, nowhere: Path, says: bool) -> None:
    asked = []

    def accept(size: int, limit: int) -> bool:
        asked.append((size > 3000, limit))
        return says

    if says:
        install(str(large), limit=10, accept=accept)
    else:
        with pytest.raises(PackageTooLarge):
            install(str(large), limit=10, accept=accept)
    assert asked == [(True, 10)]
    assert (home.packages / "large").exists() is says
    install(str(large), accept=accept)
    assert len(asked) == 1, "what fits is not asked about"


def test_the_settings_name_the_limit(large: Path, home: AlcHome, nowhere: Path) -> None:
    limited(nowhere, "3kB")
    with pytest.raises(PackageTooLarge):
        install(str(large))
    limited(nowhere, "4kB")
    assert install(str(large))["installed"] == ["large"]


def test_a_model_is_refused_and_told_what_to_do(large: Path, home: AlcHome, nowhere: Path) -> None:
    """The tool of an MCP host has no way to insist: the user has."""
    limited(nowhere, "3kB")
    with pytest.raises(PackageTooLarge) as refused:
        asyncio.run(tools.run_package_verb("pkg_install", InstallPackageArgs(url=str(large))))
    assert f"everhold pkg install --max-size 1MB {large}" in refused.value.hint
    assert not (home.packages / "large").exists()


def test_a_repair_asks_for_no_more_than_an_installation(
    large: Path, home: AlcHome, nowhere: Path
) -> None:
    """What has grown where it came from is told as failed, with the reason."""
    install(str(large))
    remove_package_folder(home.packages / "large")
    limited(nowhere, "3kB")
    told = repair("large")
    assert "more than the limit of 3.0 kB" in told["failed"][0]["reason"]
    assert not (home.packages / "large").exists()


@pytest.mark.parametrize(
    ("words", "terminal", "typed", "is_there"),
    [
        ([], True, "y\nn\n", True),
        ([], True, "n\n", False),
        ([], False, "", False),
        (["--json"], True, "", False),
        (["--max-size", "4kB", "--no-trust"], True, "", True),
        (["--max-size", "3000B", "--no-trust"], True, "n\n", False),
    ],
)
def test_the_command_asks_at_a_terminal(
    large: Path,
    home: AlcHome,
    nowhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    terminal: bool,
    typed: str,
    is_there: bool,
) -> None:
    """Elsewhere it is refused; an option raises the limit."""
    limited(nowhere, "3kB")
    monkeypatch.setattr(pkg, "at_terminal", lambda: terminal)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    code = main(["pkg", "install", str(large), *words])
    assert (home.packages / "large").exists() is is_there
    assert code == (0 if is_there else 2)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("500kB", 500_000), ("1.5 MB", 1_500_000), ("2GB", 2 * 10**9), ("7B", 7), (7, 7), (0, 0)],
)
def test_sizes(given: str | int, meant: int) -> None:
    assert parse_size(given, "it") == meant


@pytest.mark.parametrize(
    "given", ["", "many", "-1MB", "1TB", "1", -1, 1.5, True, None, "nanMB", "1e9B"]
)
def test_what_is_not_a_size_is_refused(given: object) -> None:
    with pytest.raises(BadSetting, match="is not a size; use 500kB, 20MB or 1GB"):
        parse_size(given, "it")


def test_sizes_in_words() -> None:
    assert [format_size(one) for one in (0, 999, 1000, 20_000_000, 3 * 10**9)] == [
        *("0 B", "999 B", "1.0 kB", "20.0 MB", "3.0 GB")
    ]


def test_the_usual_limit(nowhere: Path) -> None:
    assert read_lua_options(settings()).max_package == DEFAULT_MAX_PACKAGE == 20_000_000
