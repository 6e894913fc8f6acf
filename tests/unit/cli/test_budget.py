"""`everhold budget`, and the limits of `run`, `retry` and `fork`."""

import json
from pathlib import Path

import pytest

from everhold.wire import ExitCode

from .conftest import Cli

ASKS = """
import everhold

@everhold.program
async def asks(ctx: everhold.Context) -> list:
    return [await ctx.llm(f"{n}?") for n in range(3)]
"""


@pytest.fixture
def spent(cli: Cli) -> Cli:
    """A session that failed at its limit of one question."""
    Path("asks.py").write_text(ASKS)
    Path("a.json").write_text(json.dumps(["a"] * 9))
    said = cli("run", "asks.py:asks", "--key", "k", "--max-llm-calls", "1", "--answers", "a.json")
    assert said.code == ExitCode.FAILED
    assert "everhold budget k --max-llm-calls 2" in said.err
    return cli


def test_it_shows_limits_and_what_is_left(spent: Cli) -> None:
    """A limit that is not set has no rest."""
    shown = [line.split() for line in spent("budget", "k").out.splitlines()]
    assert shown[:2] == [["limit", "budget", "used", "left"], ["max_llm_calls", "1", "1", "0"]]
    assert shown[3][:3] == ["max_tokens", "no", "limit"]
    said = spent("budget", "k", "--json").json
    assert (said["budget"], said["used"]["max_llm_calls"]) == ({"max_llm_calls": 1}, 1)


@pytest.mark.parametrize(
    "words",
    [
        ["budget", "k", "--max-llm-calls", "3"],
        ["budget", "k", "--max-llm-calls", "none"],
        ["retry", "k", "--max-llm-calls", "3", "--max-elapsed", "1h"],
        ["run", "asks.py:asks", "--key", "k", "--max-llm-calls", "3"],
        ["run", "-c", "k", "--max-llm-calls", "3"],
        ["fork", "k", "--max-llm-calls", "3"],
    ],
)
def test_a_larger_limit_resumes_the_session(spent: Cli, words: list[str]) -> None:
    said = spent(*words, "--answers", "a.json")
    assert (said.code, json.loads(said.out)) == (ExitCode.OK, ["a", "a", "a"])


@pytest.mark.parametrize("limit", [["--max-tokens", "x"], ["--max-llm-calls", "-1"]])
def test_a_wrong_limit_changes_nothing(spent: Cli, limit: list[str]) -> None:
    assert spent("budget", "k", *limit).code == ExitCode.USAGE
    assert spent("budget", "k", "--json").json["budget"] == {"max_llm_calls": 1}


@pytest.mark.process
def test_the_limits_of_a_lua_context_are_shown(cli: Cli) -> None:
    """They hold for a session without a budget."""
    Path("talk.lua").write_text("return {run = function() return alc.llm('?') end}")
    Path("ctx.json").write_text('{"budget": {"max_tokens": 70}}')
    cli("run", "talk.lua", "--json-args", "ctx.json", "--key", "k")
    assert cli("budget", "k", "--json").json["budget"] == {"max_tokens": 70}
