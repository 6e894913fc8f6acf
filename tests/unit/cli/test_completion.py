"""Shell completion: what is offered, in a real bash, and that it reads a database without touching
it.
"""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from everhold.cli import candidates
from everhold.cli.app import GROUPS, everhold

from .conftest import Cli

BREAKS = " \t\n\"'@><=;|&(:"


@pytest.fixture
def shop(cli: Cli) -> Cli:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--label", "team=red")
    cli("run", "shop.py:chat")
    return cli


def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    """The words that bash is offered for a line."""
    with monkeypatch.context() as patch:
        patch.setenv("_EVERHOLD_COMPLETE", "bash_complete")
        patch.setenv("COMP_LINE", line)
        patch.setenv("COMP_WORDBREAKS", BREAKS)
        said = cli()
    assert said.err == "" and said.code == 0
    return [row.partition(",")[2] for row in said.out.splitlines() if row]


def test_commands_subcommands_and_options(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for names in GROUPS.values() for name in names]
    assert complete(cli, monkeypatch, "everhold ") == names
    assert complete(cli, monkeypatch, "everhold sess") == ["sessions"]
    assert complete(cli, monkeypatch, "everhold schedule p") == ["pause"]
    assert complete(cli, monkeypatch, "everhold send --n") == ["--no-wait"]
    assert complete(cli, monkeypatch, "everhold send s --busy f") == ["fork"]
    assert complete(cli, monkeypatch, "everhold completion f") == ["fish"]


def test_names_of_sessions_labels_programs_and_states(
    shop: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = complete(shop, monkeypatch, "everhold show ")
    assert found[0] == "@last" and found[1].startswith("s-") and found[2:] == ["seven"]
    assert complete(shop, monkeypatch, "everhold answer sev") == ["seven"]
    assert complete(shop, monkeypatch, "everhold run -c sev") == ["seven"]
    (by_id,) = complete(shop, monkeypatch, f"everhold show {found[1]}")
    assert by_id == found[1]
    assert complete(shop, monkeypatch, "everhold sessions --program ") == [
        "shop.py:chat",
        "shop.py:refund",
    ]
    assert complete(shop, monkeypatch, "everhold sessions --state pa") == ["paused"]
    assert complete(shop, monkeypatch, "everhold inbox --kind app") == ["approval"]


def test_programs_come_from_files_that_are_not_run(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.py").write_text(
        "raise SystemExit\nimport everhold\n\n@everhold.program\nasync def one(ctx): ...\n\n"
        "desk = everhold.Agent()\n"
    )
    Path("named").mkdir()
    Path("named/jobs.py").write_text(
        "import everhold\n@everhold.program\nasync def job(ctx): ...\n"
    )
    Path("everhold.toml").write_text('programs = ["named.jobs"]\n')
    assert complete(cli, monkeypatch, "everhold run o") == ["other.py:desk", "other.py:one"]
    assert complete(cli, monkeypatch, "everhold chat ") == ["other.py:desk"]
    assert complete(cli, monkeypatch, "everhold run jo") == ["job"]
    assert "panel" in complete(cli, monkeypatch, "everhold run ")


def test_bash_gets_only_what_follows_its_last_word_break(
    shop: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete(shop, monkeypatch, "everhold run shop.py:re") == ["refund"]
    assert complete(shop, monkeypatch, "everhold sessions --label team=r") == ["red"]
    assert complete(shop, monkeypatch, "everhold show @l") == ["last"]
    assert complete(shop, monkeypatch, "everhold sessions --state=fa") == ["failed"]
    shop("run", "shop.py:waits", "--key", "two words")
    assert complete(shop, monkeypatch, "everhold show two") == ["'two words'"]


@pytest.mark.parametrize(
    "line",
    [
        "everhold show ",
        "everhold show -d nothere.db ",
        "everhold show -d text.db ",
        "everhold show -d newer.db ",
        "everhold show -d postgresql://127.0.0.1:9/db ",
        "everhold show -d mysql://here ",
        "everhold show --nonsense ",
        "everhold nonsense ",
        "everhold show 'unclosed ",
        "",
    ],
)
def test_completion_never_fails_and_never_creates_a_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    import sqlite3

    Path("text.db").write_text("no database\n" * 100)
    with closing(sqlite3.connect("newer.db")) as newer, newer:
        newer.execute("PRAGMA user_version = 99")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    offered = complete(cli, monkeypatch, line)
    assert offered in ([], ["@last"]) or not line.startswith("everhold show")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_completion_leaves_the_database_as_it_is_and_makes_one_read(
    shop: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from everhold.stores.sqlite import database

    reads = []
    read = database.read_view

    def count(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
        reads.append(sql)
        return read(path, sql, *values)

    monkeypatch.setattr(database, "read_view", count)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert "seven" in complete(shop, monkeypatch, "everhold show ")
    assert len(reads) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_slow_read_is_cut_short(shop: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One instruction is too few for any row: the read ends, and `@last` is all there is."""
    monkeypatch.setattr("everhold.stores.sqlite.database.VIEW_STEPS", 1)
    assert complete(shop, monkeypatch, "everhold show ") == ["@last"]


@pytest.mark.process
def test_a_real_bash_completes_a_line(shop: Cli, tmp_path: Path) -> None:
    """Bash sources the script and calls its function as at a terminal."""
    (tmp_path / "completion.bash").write_text(shop("completion", "bash").out)
    (tmp_path / "everhold").write_text(f'#!/bin/sh\nexec {sys.executable} -m everhold "$@"\n')
    (tmp_path / "everhold").chmod(0o755)
    script = """
        source ./completion.bash
        tab() {
            COMP_LINE="$1"; COMP_POINT=${#1}; COMPREPLY=()
            _everhold_completion everhold
            printf '%s\\n' "$1 -> ${COMPREPLY[*]}"
        }
        tab "everhold sess"; tab "everhold show sev"; tab "everhold run shop.py:re"
        tab "everhold sessions --label team="
        complete -p everhold
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.stdout.splitlines() == [
        "everhold sess -> sessions",
        "everhold show sev -> seven",
        "everhold run shop.py:re -> refund",
        "everhold sessions --label team= -> red",
        "complete -o nosort -F _everhold_completion everhold",
    ]
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_zsh_and_fish_are_those_of_click(cli: Cli, shell: str) -> None:
    """Neither shell is on every machine: that the scripts are click's own is what is checked."""
    script = cli("completion", shell).out
    kind = get_completion_class(shell)
    assert kind is not None
    assert script.strip() == kind(everhold, {}, "everhold", "_EVERHOLD_COMPLETE").source().strip()
    assert f"_EVERHOLD_COMPLETE={shell}_complete" in script


def test_every_candidate_function_survives_a_context_without_settings(tmp_path: Path) -> None:
    context = click.Context(everhold)
    context.params["database"] = "mysql://nowhere"
    parameter = click.Option(["--x"])
    found = {
        name: getattr(candidates, name)(context, parameter, "zzz")
        for name in dir(candidates)
        if name.startswith("complete_")
    }
    names = {
        name: [item.value for item in items if item.type == "plain"]
        for name, items in found.items()
    }
    assert len(names) == 10 and not any(names.values()), names
