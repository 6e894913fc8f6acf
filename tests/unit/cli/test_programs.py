"""`everhold programs` says what can be run and what it costs, and `run` starts it by name."""

from pathlib import Path

import pytest

from .conftest import Cli

LUA = (
    'local M = {}\nM.meta = { description = "Debates it." }\nfunction M.run(ctx) return ctx'
    " end\nreturn M\n"
)


@pytest.fixture(autouse=True)
def away_from_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("share")))


def test_the_strategies_are_listed_with_their_cost(cli: Cli) -> None:
    said = cli("programs")
    assert said.code == 0
    assert "self_consistency  everhold    5–6 answers in 1–2 rounds" in said.out


def test_what_the_project_has_is_listed(cli: Cli) -> None:
    Path("packages/debate").mkdir(parents=True)
    Path("packages/debate/init.lua").write_text(LUA)
    listed = {one["name"]: one for one in cli("programs", "--json").json["programs"]}
    assert listed["debate"]["kind"] == "lua"
    assert listed["debate"]["summary"] == "Debates it."
    assert listed["cot"]["estimate"] == {
        "answers": {"min": 2, "max": 4},
        "rounds": {"min": 2, "max": 4},
    }


def test_a_hidden_one_is_told_with_its_place(cli: Cli) -> None:
    Path("packages/panel").mkdir(parents=True)
    Path("packages/panel/init.lua").write_text(LUA)
    said = cli("programs")
    assert "to run this one: everhold run everhold.packages.strategies.panel:panel" in said.out


def test_one_is_described_with_the_cost_of_a_call(cli: Cli) -> None:
    said = cli("programs", "rank", "n=8")
    assert "8–22 answers in 1–4 rounds" in said.out
    assert "Pairwise Ranking Prompting" in said.out
    told = cli("programs", "ucb", "pulls=3", "--json").json
    assert told["estimate"] == {"answers": 7, "rounds": 3}
    assert told["parameters"][0] == {
        "name": "task",
        "description": "What is to be solved or written.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }


def test_an_argument_that_a_strategy_does_not_take_is_told_with_those_it_takes(cli: Cli) -> None:
    said = cli("programs", "self_consistency", "smaples=3")
    assert (
        said.code,
        "hint: It takes task: str, samples: int = 5, not 'smaples'." in said.err,
    ) == (2, True)


def test_the_cost_of_what_says_none_is_not_made_up(cli: Cli) -> None:
    said = cli("programs", "shop.py:refund", "order=7")
    assert said.code == 2 and "the cost of refund is not known" in said.err


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["run", "cot", "--key"], "everhold run"),
        (["pkg", "install", "--rev"], "everhold pkg install"),
        (["pkg", "--nothing"], "everhold pkg"),
        (["--nothing"], "everhold"),
    ],
)
def test_whoever_types_an_option_wrongly_is_shown_the_help_of_that_command(
    words: list[str], path: str, cli: Cli
):
    assert cli(*words).err.endswith(f"hint: {path} --help\n")


def test_a_program_of_ones_own_is_described_by_its_reference(cli: Cli) -> None:
    said = cli("programs", "shop.py:refund")
    assert "shop.py:refund" in said.out
    assert "order: str, times: int = 1" in said.out
    told = cli("programs", "shop.py:refund", "--json").json
    assert (told["kind"], told["parameters"]) == ("python", [{"name": "order"}, {"name": "times"}])


@pytest.mark.parametrize(
    ("words", "code", "tells"),
    [
        (("programs", "refelct"), "unknown_program", "Did you mean 'reflect'?"),
        (("programs", "cot", "steps=none"), "bad_arguments", "steps should be"),
        (("programs", "cot", "steps"), "bad_setting", "must look like name=value"),
    ],
)
def test_mistakes(cli: Cli, words: tuple[str, ...], code: str, tells: str) -> None:
    said = cli(*words)
    assert said.code == 2
    assert f"[{code}]" in said.err and tells in said.err


def test_a_strategy_is_run_by_its_name_and_stored_by_its_place(cli: Cli) -> None:
    """A task that looks like JSON stays the text that it is."""
    said = cli("run", "cot", 'task="2" + 2', "steps=1", "--json")
    assert '<task>\n"2" + 2\n</task>' in said.json["prompt"]
    listed = cli("sessions", "--json").json["sessions"]
    assert [one["program"] for one in listed] == ["everhold.packages.strategies.cot:cot"]


def test_a_task_that_is_missing_is_told_with_what_it_takes(cli: Cli) -> None:
    said = cli("run", "cot")
    assert "missing a required argument: 'task'" in said.err
    assert "It takes task: str, steps: int = 3." in said.err


TYPED = """
import everhold
from typing import Annotated, Literal, Optional

Name = Annotated[str, "not empty"]

@everhold.program
async def typed(
    ctx, a, b: dict[str, tuple[int, ...]], c: Optional[Annotated[list[Name], 3]] = None,
    d: Literal["x"] = "x",
): ...
"""


def test_types_are_shown_as_they_are_written_without_their_metadata(cli: Cli) -> None:
    Path("typed.py").write_text(TYPED)
    said = cli("run", "typed.py:typed")
    takes = "a, b: dict[str, tuple[int, ...]], c: list[str] | None = None, d: Literal['x'] = 'x'"
    assert f"It takes {takes}." in said.err
