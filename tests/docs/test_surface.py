"""The public surface is exact and short, and everything on it is documented."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import everhold
from everhold.cli.app import GROUPS, HELP
from everhold.cli.app import everhold as command_line
from everhold.errors import leaves

ROOT = Path(__file__).resolve().parents[2]
CLI = (ROOT / "docs" / "reference" / "cli.md").read_text()
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text()
PROMISES = (ROOT / "docs" / "promises.md").read_text()
COMMANDS = [name for names in GROUPS.values() for name in names]


def test_there_are_about_forty_names_of_every_day() -> None:
    assert len(everhold.__all__) <= 46
    assert everhold.__all__ == sorted(set(everhold.__all__))


def test_every_public_name_is_there_and_typed() -> None:
    """At run time it is loaded from its home; a type checker reads it from the import of the same
    name.
    """
    text = (ROOT / "src" / "everhold" / "__init__.py").read_text()
    for name in everhold.__all__:
        assert getattr(everhold, name) is not None, name
        home = importlib.import_module(f"everhold.{everhold._HOMES[name]}")
        assert getattr(home, name) is getattr(everhold, name), name
        assert f"import {name} as {name}\n" in text


def test_a_type_checker_knows_no_other_names() -> None:
    text = (ROOT / "src" / "everhold" / "__init__.py").read_text()
    assert sorted(re.findall(r"import (\w+) as \1\n", text)) == everhold.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Workflow'"):
        _ = everhold.Workflow  # type: ignore[attr-defined]


def test_every_error_is_documented() -> None:
    """Those of the core: other modules, which other tests may have imported, have errors of their
    own.
    """
    errors = [error for error in leaves() if error.__module__ == "everhold.errors"]
    rows = [f"| `{error.code}` | `{error.__name__}` |" for error in errors]
    assert len(rows) > 80
    assert [row for row in rows if row not in ERRORS] == []


def commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = command_line.get_command(click.Context(command_line), name)
        assert command is not None, name
        yield name, command


def test_every_command_is_documented_with_all_its_options() -> None:
    for name, command in commands():
        page = CLI.partition(f"### everhold {name}\n")[2].partition("\n### ")[0]
        shown = [
            parameter for parameter in command.params if not getattr(parameter, "hidden", False)
        ]
        options = [
            option for parameter in shown for option in parameter.opts if option.startswith("--")
        ]
        assert [option for option in options if option not in page] == [], name


def test_every_command_says_what_it_does_in_one_line() -> None:
    for name, command in commands():
        short = command.get_short_help_str(70)
        assert short.endswith("."), name
        assert not short.endswith("..."), name
        assert short == HELP[name]


def test_every_command_takes_json_and_database_if_it_reads_one() -> None:
    """All but `mcp`, which is spoken to in JSON anyhow."""
    for name, command in commands():
        parts = (
            list(command.commands.values())
            if name in ("hub", "pkg") and isinstance(command, click.Group)
            else [command]
        )
        wanted = (
            {"as_json"}
            if name in ("completion", "demo", "hub", "init", "pkg", "version")
            else {"as_json", "database"}
        )
        for part in parts if name != "mcp" else ():
            assert wanted <= {parameter.name for parameter in part.params}, (name, part.name)


def test_the_evidence_of_the_promises_exists() -> None:
    named = re.findall(r"`((?:tests|src)/[\w/.]+)`", PROMISES)
    assert len(named) >= 7
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_evidence_of_every_failure_exists() -> None:
    """Each row of the page names a test that is there."""
    page = (ROOT / "docs" / "explanation" / "failures.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "shown by" not in line]
    named = [re.findall(r"`(tests/[\w/.]+)::(test_\w+)`", row.split(" | ")[-1]) for row in rows]
    assert len(rows) >= 25 and all(named)
    missing = [
        test
        for tests in named
        for path, test in tests
        if f"def {test}(" not in (ROOT / path).read_text()
    ]
    assert missing == []


def test_there_are_ten_promises() -> None:
    assert re.findall(r"^\*\*(P\d+)\.", PROMISES, re.MULTILINE) == [f"P{n}" for n in range(1, 11)]
