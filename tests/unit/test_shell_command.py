"""Commands that messages tell."""

import ast
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import everhold
from everhold.cli.app import GROUPS
from everhold.packages.settings import settings
from everhold.shell_command import add_database_option, format_command


def test_a_command_is_quoted_for_a_shell():
    """A key with a space, a quote or a dollar is one word of the command."""
    assert format_command("retry", "batch 1") == "everhold retry 'batch 1'"
    assert format_command("retry", "it's $5") == "everhold retry 'it'\"'\"'s $5'"
    assert format_command("inbox") == "everhold inbox"


def test_a_command_names_the_database_that_it_needs():
    """The option is left out where commands find the database by default."""
    address = "sqlite:////data/my app.db"
    assert format_command("show", "k", database=address) == f"everhold show k -d '{address}'"
    assert format_command("show", "k", database="") == "everhold show k"


def test_only_a_database_that_commands_do_not_find_is_named(tmp_path, monkeypatch):
    """The database of the settings file, of the variable and of the data folder need no option."""
    monkeypatch.delenv("EVERHOLD_DATABASE_URL", raising=False)
    assert settings(start=tmp_path).command_database == ""
    other = settings(tmp_path / "other.db", start=tmp_path)
    assert other.command_database == f"sqlite:///{tmp_path / 'other.db'}"
    (tmp_path / "everhold.toml").write_text('database = "other.db"')
    assert settings("other.db", start=tmp_path).command_database == ""
    secret = settings("postgresql://ana:hunter2@db/app", start=tmp_path)
    assert secret.command_database == "postgresql://ana:***@db/app"


@pytest.mark.parametrize(
    ("sentence", "said"),
    [
        ("Answer it: everhold answer s-1 VALUE", "Answer it: everhold answer s-1 VALUE -d x.db"),
        ("Run `everhold db verify`; or not.", "Run `everhold db verify -d x.db`; or not."),
        ("Say so: everhold show. A retry helps.", "Say so: everhold show. A retry helps."),
        (
            "Print it: everhold mcp install HOST --print",
            "Print it: everhold mcp install HOST --print",
        ),
        ("`everhold pkg list` says what is there.", "`everhold pkg list` says what is there."),
        ("See: everhold show s-1 -d x.db", "See: everhold show s-1 -d x.db"),
        ("Nothing was changed.", "Nothing was changed."),
    ],
)
def test_commands_in_a_sentence_are_about_the_same_database(sentence, said):
    assert add_database_option(sentence, " -d x.db") == said
    assert add_database_option(sentence, "") == sentence


#: What says in one expression what a command in a sentence is; it takes a square of the sentence's
#: length.
COMMAND = re.compile(
    r"(?<=`)everhold (?!mcp |pkg |init|demo)[^`]*(?=`)|(?<=: )everhold (?!mcp |pkg"
    r" |init|demo)(?:(?!\. )[^`])*$"
)


def test_commands_are_found_as_one_expression_would_in_any_text():
    dice = random.Random(7)
    parts = [
        "everhold ",
        "`",
        ": ",
        ". ",
        ":",
        ".",
        " ",
        "mcp ",
        "init",
        "show",
        "everhold",
        "\n",
        "x",
    ]
    for _ in range(20_000):
        sentence = "".join(dice.choices(parts, k=dice.randrange(12)))
        assert add_database_option(sentence, " -d y") == COMMAND.sub(
            lambda found: found[0] + " -d y", sentence
        ), sentence


@pytest.mark.parametrize("part", [": everhold x", "`everhold ", "`", ": everhold . "])
def test_a_long_sentence_is_read_in_no_time(part):
    since = time.process_time()
    add_database_option(part * 100_000 + "`", " -d y")
    assert time.process_time() - since < 2


#: A command in a message: between backticks, or after a colon.
_TOLD = re.compile(r"(?:`|: )everhold (?!has )[^`]*")
#: Words of a usage, for which a person would have to think of something.
_TO_FILL_IN = re.compile(r"\b[A-Z]{2,}\b|<[a-z]+>|\{\}|…")
SOURCES = Path(everhold.__file__).parent
GROUPED = {name for names in GROUPS.values() for name in names}


def list_texts(file: Path) -> Iterator[str]:
    """The texts of a file that are not docstrings, help of commands, or descriptions of options."""
    tree = ast.parse(file.read_bytes())
    usage = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring
            usage.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "epilog", "description"):
            usage.update(ast.walk(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node not in usage:
            parts = [one.value if isinstance(one, ast.Constant) else "x" for one in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in usage:
            yield node.value


def test_no_command_that_is_told_has_anything_to_fill_in():
    """Neither in a sentence, nor in the words that are given to `format_command`."""
    wrong = []
    count = 0
    for file in sorted(SOURCES.rglob("*.py")):
        for text in list_texts(file):
            for told in _TOLD.findall(text):
                count += 1
                if _TO_FILL_IN.search(told):
                    wrong.append(f"{file.relative_to(SOURCES)}: {told}")
        for node in ast.walk(ast.parse(file.read_bytes())):
            words = node.elts if isinstance(node, ast.Tuple) else ()
            words = node.args if isinstance(node, ast.Call) else words
            given = [one.value for one in words if isinstance(one, ast.Constant)]
            if given and given[0] in GROUPED and any(map(str.isupper, map(str, given[1:]))):
                wrong.append(f"{file.relative_to(SOURCES)}: {given}")
    assert count > 60  # it finds them
    assert wrong == []
