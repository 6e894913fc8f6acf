"""What holds for every command: JSON where it is asked for, no network, nothing that others could
read.
"""

import json
import stat
from pathlib import Path

import pytest

from everhold.cli.app import GROUPS

from .conftest import EVERYTHING, Cli

#: Tried elsewhere: the demo takes seconds, and the others have tests of their own.
ELSEWHERE = {"chat", "command", "demo", "hub", "mcp", "pkg", "send", "tools", "worker"}


@pytest.fixture
def shop(cli: Cli) -> Cli:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    return cli


def test_every_command_is_in_the_list() -> None:
    named = {words[0] for words in EVERYTHING}
    assert named == {name for names in GROUPS.values() for name in names} - ELSEWHERE


@pytest.mark.process
def test_with_json_every_command_prints_json_and_nothing_else(shop: Cli) -> None:
    for words in EVERYTHING:
        said = shop(*words, "--json")
        assert said.err == "", words
        documents = [json.loads(line) for line in said.out.splitlines()]
        assert documents, words
        assert len(documents) == 1 or words[0] == "watch", words
        assert all(isinstance(document, dict) for document in documents), words


def test_what_a_program_prints_is_not_among_the_json(cli: Cli) -> None:
    Path("noisy.py").write_text(
        "import everhold\nprint('loading')\n\n@everhold.program\nasync def noisy(ctx):\n"
        "    print('running')\n    return await ctx.llm('?')\n"
    )
    said = cli("run", "noisy.py:noisy", "--key", "n", "--json")
    assert said.json["prompt"] == "?"
    assert said.err.split() == ["loading", "running"]
    assert cli("replay", "n", "--json").json["steps"] == 1


@pytest.mark.process
def test_everything_that_is_written_is_for_its_owner_alone(shop: Cli, tmp_path: Path) -> None:
    """What holds sessions has mode 0600, whichever command made it. (Code that `init` and --as-test
    write is code.)
    """
    for words in EVERYTHING:
        shop(*words)
    kept = [
        path
        for path in tmp_path.iterdir()
        if path.suffix in (".jsonl", ".db") or ".db-" in path.name
    ]
    assert {"shop.db", "out.jsonl", "there.db", "copy.db"} <= {path.name for path in kept}
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in kept} == {
        path.name: "0o600" for path in kept
    }
