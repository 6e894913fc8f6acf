"""The commands of Lua packages: whom the user trusts."""

import shutil
from pathlib import Path

import pytest

from .conftest import Cli


@pytest.fixture
def package(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `panel` in the project, and a data folder that nobody else has."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = Path.cwd() / "packages" / "panel2"
    folder.mkdir(parents=True)
    (folder / "init.lua").write_text("return {run = function(ctx) return 1 end}")
    return folder


def test_a_package_is_trusted_by_name_and_no_longer_by_its_folder(cli: Cli, package: Path) -> None:
    assert cli("pkg", "trust", "panel2").out == (
        f"trusted until it changes: {package}\nIt runs in the process of everhold.\n"
        "There, a step may take 1 s of CPU time; with a higher cpu in [lua.packages.panel2] of the"
        " settings it runs in a worker.\n"
    )
    assert cli("pkg", "untrust", "packages/panel2").out == f"no longer trusted: {package}\n"
    assert cli("pkg", "untrust", "panel2").out == f"it was not trusted: {package}\n"


def test_the_list_says_which_package_changed(cli: Cli, package: Path) -> None:
    assert (
        cli("pkg", "trusted").out == "No package is trusted; each runs in a process of its own.\n"
    )
    cli("pkg", "trust", "panel2")
    assert cli("pkg", "trusted", "--json").json["packages"][0]["trusted"] is True
    (package / "more.lua").write_text("return 1")
    assert "changed: not trusted" in cli("pkg", "trusted").out


def test_with_json_there_is_one_document(cli: Cli, package: Path) -> None:
    told = [cli("pkg", verb, "panel2", "--json").json for verb in ("trust", "untrust")]
    assert [sorted(one) for one in told] == [
        ["digest", "needed", "runs_in", "trusted", "why_in_worker"],
        ["untrusted", "was_trusted"],
    ]


def test_a_package_that_is_gone_can_still_be_forgotten(cli: Cli, package: Path) -> None:
    cli("pkg", "trust", "panel2")
    (package / "init.lua").unlink()
    assert cli("pkg", "untrust", str(package)).out == f"no longer trusted: {package}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("trust nowhere", "unknown_program"),
        ("trust ./nowhere", "unknown_program"),
        ("trust cot", "not_allowed"),
    ],
)
def test_what_is_no_lua_package_cannot_be_trusted(
    cli: Cli, package: Path, words: str, code: str
) -> None:
    said = cli("pkg", *words.split())
    assert said.code == 2
    assert f"[{code}]" in said.err


def test_a_name_is_the_package_that_runs_and_not_the_folder_it_was_installed_from(
    cli: Cli, package: Path
) -> None:
    """As after `pkg install ./panel2`: what is trusted or not is what `run panel2` starts."""
    shutil.copytree(package, "panel2")
    assert cli("pkg", "trust", "panel2").out == (
        f"trusted until it changes: {package}\nIt runs in the process of everhold.\n"
        "There, a step may take 1 s of CPU time; with a higher cpu in [lua.packages.panel2] of the"
        " settings it runs in a worker.\n"
    )
    assert cli("pkg", "untrust", "panel2").out == f"no longer trusted: {package}\n"
    shutil.copytree(package, "alone")
    assert cli("pkg", "trust", "alone").out.startswith(
        f"trusted until it changes: {Path('alone').resolve()}\n"
    )


def test_trust_says_where_a_package_will_run_and_why_not_here(cli: Cli, package: Path) -> None:
    """And with --needed it trusts what is missing."""
    other = package.parent / "judge"
    other.mkdir()
    (other / "init.lua").write_text("return 1")
    (package / "init.lua").write_text("local j = require('judge') return {run = function() end}")
    said = cli("pkg", "trust", "panel2").out
    assert "still runs in a worker process:\n  judge: it is not trusted" in said
    assert "everhold pkg trust panel2 --needed" in said
    assert "panel2 is trusted, but runs in a worker: judge" in cli("pkg", "list").out
    rows = {row["name"]: row for row in cli("pkg", "list", "--json").json["packages"]}
    assert [rows[name]["runs_in"] for name in ("panel2", "judge")] == ["worker", "worker"]
    trusted = cli("pkg", "trust", "panel2", "--needed", "--json").json
    assert (trusted["needed"], trusted["runs_in"]) == ([str(other)], "process")
