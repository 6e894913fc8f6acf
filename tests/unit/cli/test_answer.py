"""Answering from the command line, and who may."""

import json
from pathlib import Path

import pytest

from .conftest import Cli


def approval(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")


@pytest.mark.process
def test_no_one_at_a_terminal_and_no_name_means_no_approval(cli: Cli) -> None:
    approval(cli)
    said = cli("answer", "seven", "yes")
    assert said.code == 2
    assert "[not_allowed]" in said.err
    assert "everhold answer seven --query q-1 --as " in said.err
    assert said.err.endswith(" --yes\n")
    assert len(cli("inbox", "--json").json["queries"]) == 1


@pytest.mark.process
@pytest.mark.parametrize("words", [("--as", "ana"), ("--yes",), ("yes", "--as", "ana")])
def test_a_name_and_a_yes_are_both_needed(cli: Cli, words: tuple[str, ...]) -> None:
    approval(cli)
    assert cli("answer", "seven", *words).code == 2


@pytest.mark.process
def test_a_person_under_a_name_approves(cli: Cli) -> None:
    approval(cli)
    assert cli("answer", "seven", "--as", "ana", "--yes").out == "receipt for 7\n"


@pytest.mark.process
def test_who_answered_is_kept_with_front_name_and_time(cli: Cli) -> None:
    approval(cli)
    cli("answer", "seven", "--as", "ana", "--no")
    steps = cli("show", "seven", "--json").json["steps"]
    by = next(
        answer["by"] for step in steps for answer in step.get("answers", []) if answer["q"] == 1
    )
    assert (by["front"], by["user"]) == ("cli", "ana")
    assert by["at"] > 1_700_000_000


@pytest.mark.process
def test_at_a_terminal_yes_is_enough(cli: Cli) -> None:
    approval(cli)
    assert cli("answer", "seven", "yes", typed="").out.endswith("receipt for 7\n")


@pytest.mark.process
def test_at_a_terminal_one_is_asked(cli: Cli) -> None:
    approval(cli)
    said = cli("answer", "seven", typed="perhaps\nyes\n")
    assert "Refund 7?" in said.out
    assert "should be yes or no, got 'perhaps'" in said.err
    assert said.code == 0


def test_a_signal_is_no_question_and_answer_refuses_it(cli: Cli) -> None:
    """Whether it is alone or named. `run`, `show` and `explain` tell the signal and its command."""
    ran = cli("run", "shop.py:waits", "--key", "w")
    assert (ran.code, ran.json["status"], ran.json["signals"]) == (10, "waiting", ["go"])
    assert "waiting · w · for the signal 'go'" in ran.err
    assert "to send it: everhold signal w go" in ran.err
    for words in (["yes"], ["--yes", "--as", "ana"], ["x", "--query", "q-0"], ["--error", "no"]):
        assert cli("answer", "w", *words).code == 2
    named = cli("answer", "w", "x", "--query", "q-0").err
    assert "q-0 of session 'w' is the signal 'go'" in named and "[not_allowed]" in named
    assert "everhold explain w" in named
    asked = cli("answer", "w", typed="sure\n")
    assert (asked.code, "sure" in asked.out) == (2, False)
    shown = cli("show", "w").out
    assert "for the signal 'go'" in shown and "question open" not in shown
    assert cli("signal", "w", "go", "now").out == "now\n"


def test_a_signal_beside_a_question_leaves_the_question_to_be_answered(cli: Cli) -> None:
    Path("both.py").write_text(BOTH)
    assert cli("run", "both.py:both", "--key", "b").json["signals"] == ["go"]
    nameless = cli("answer", "b", "Ana B")
    assert nameless.code == 2 and "everhold answer b --query q-0 --as " in nameless.err
    assert nameless.err.endswith(" 'Ana B'\n")
    assert cli("answer", "b", "Ana", "--as", "ana").json["waiting_for"] == ["the signal 'go'"]
    assert cli("signal", "b", "go", "now").out == '["Ana","now"]\n'


AGENT = """
import everhold
from everhold.plugins import Approval

@everhold.tool
def refund(order: str) -> str:
    "Give money back."
    return f"receipt for {order}"

desk = everhold.Agent(instructions="Help.", tools=[refund], plugins=[Approval("refund")])
"""
BOTH = """
import asyncio
import everhold

@everhold.program
async def both(ctx: everhold.Context) -> list:
    return await asyncio.gather(ctx.input("Your name?"), ctx.receive("go"))
"""


def test_after_an_approval_the_agent_is_heard(cli: Cli, tmp_path: Path) -> None:
    """Its words are standard output, and nothing else is."""
    (tmp_path / "desk.py").write_text(AGENT)
    pay = {"tool_calls": [{"name": "refund", "input": {"order": "7"}}]}
    (tmp_path / "pay.json").write_text(json.dumps([pay]))
    (tmp_path / "words.json").write_text(json.dumps(["Your money is on its way."]))
    asked = cli(
        "chat", "desk.py:desk", "--session", "ana", "--answers", "pay.json", piped="Refund 7.\n"
    )
    assert asked.code == 10
    said = cli("answer", "ana", "--as", "boss", "--yes", "--answers", "words.json")
    assert said.out == "Your money is on its way.\n"
    assert "waiting · ana · for an input" in said.err
    assert "to send it: everhold send ana\n" in said.err
    again = cli("run", "-c", "ana")
    assert (again.code, again.out) == (10, "")


def test_words_for_a_person_need_a_name_without_a_terminal(cli: Cli) -> None:
    cli("run", "shop.py:chat", "--key", "c")
    assert "[not_allowed]" in cli("answer", "c", "Ana").err
    assert cli("answer", "c", "Ana", "--as", "ana").code == 10


def test_several_questions_are_answered_by_their_ids(cli: Cli) -> None:
    cli("run", "shop.py:chat", "--key", "c")
    cli("answer", "c", "Ana", "--as", "ana")
    assert "[many_open_queries]" in cli("answer", "c", "?").err
    assert cli("answer", "c", "second", "--query", "q-2").err.startswith(
        "waiting · c · 1 question open"
    )
    assert (
        cli("answer", "c", "first", "-q", "q-1").out
        == '{"answers":["first","second"],"name":"Ana"}\n'
    )


def test_an_answer_comes_from_a_file_or_from_a_pipe(cli: Cli) -> None:
    Path("why.txt").write_text("it broke\n")
    cli("run", "shop.py:refund", "order=1", "--key", "one")
    cli("run", "shop.py:refund", "order=2", "--key", "two")
    assert cli("answer", "one", "--file", "why.txt").json["prompt"] == "Refund 1? it broke"
    assert cli("answer", "two", "-", piped="late\n").json["prompt"] == "Refund 2? late"


def test_an_error_is_an_answer_too(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    said = cli("answer", "seven", "--error", "the model is ill")
    assert said.code == 1
    assert "the model is ill" in said.err


def test_an_answer_that_does_not_fit_changes_nothing(cli: Cli) -> None:
    cli("run", "shop.py:grades", "--key", "g")
    assert "[answer_refused]" in cli("answer", "g", "very").err
    assert cli("answer", "g", "7").out == "7\n"


def test_what_an_answer_cost_is_kept(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    cli("answer", "seven", "it broke", "--tokens", "100", "20")
    usage = cli("usage", "--json").json["usage"][0]
    assert (usage["prompt_tokens"], usage["response_tokens"]) == (100, 20)


def test_a_signal_is_json_or_else_text(cli: Cli) -> None:
    cli("run", "shop.py:waits", "--key", "w")
    assert cli("signal", "w", "go", "now!").out == "now!\n"


def test_cancel_says_so_and_keeps_the_reason(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    said = cli("cancel", "seven", "--reason", "found it")
    assert (said.code, said.err) == (0, "cancelled · seven · found it\n")


# ---- a person at the terminal


def test_run_asks_question_after_question(cli: Cli) -> None:
    said = cli("run", "shop.py:refund", "order=7", "--key", "seven", typed="it\nbroke\n\ny\n")
    assert "llm · q-0 · seven · at most 1024 tokens" in said.out
    assert said.out.endswith("receipt for 7\n")
    assert "it\\nbroke" in str(cli("show", "seven", "--json").json["steps"])


@pytest.mark.parametrize("word", [":quit", ":q", "/quit"])
def test_quit_keeps_the_session_and_says_how_to_go_on(cli: Cli, word: str) -> None:
    """Also as in a chat."""
    said = cli("run", "shop.py:refund", "order=7", "--key", "seven", typed=f"{word}\n")
    assert said.code == 10
    assert "to resume it: everhold run -c seven\n" in said.err
    assert "to answer it: everhold answer seven --query q-0\n" in said.err


def test_how_to_go_on_names_the_database_that_was_named(cli: Cli) -> None:
    said = cli(
        "run", "shop.py:refund", "order=7", "--key", "order 7", "-d", "other.db", typed=":quit\n"
    )
    assert "to resume it: everhold run -c 'order 7' -d other.db\n" in said.err
    told = cli("explain", "order 7", "-d", "other.db").out
    assert "everhold answer 'order 7' --query q-0 -d other.db\n" in told
    assert cli("show", "nobody", "--database=other.db").err.endswith(
        ": everhold sessions -d other.db\n"
    )


def test_the_end_of_input_is_a_quit(cli: Cli) -> None:
    assert cli("run", "shop.py:refund", "order=7", typed="").code == 10


def test_a_colon_f_takes_a_file_and_colon_error_an_error(cli: Cli) -> None:
    Path("why.txt").write_text("it broke\n")
    typed = ":nonsense\n:f\n:f nowhere.txt\n:f why.txt\n:error\n:error not today\n"
    said = cli("run", "shop.py:refund", "order=7", typed=typed)
    assert ":nonsense is not a command here" in said.err
    assert ":f needs an argument" in said.err
    assert "nowhere.txt cannot be read" in said.err
    assert ":error needs an argument" in said.err
    assert "AnswerFailed: not today" in said.err


@pytest.mark.process
def test_a_colon_e_opens_the_editor(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "edited words" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    cli("run", "shop.py:refund", "order=7", "--key", "seven", typed=":e\n:quit\n")
    assert cli("show", "seven", "--json").json["status"]["prompt"] == "Refund 7? edited words"


@pytest.mark.process
@pytest.mark.parametrize("editor", ["false", "/no/such/editor"])
def test_an_editor_that_fails_is_told_and_asked_again(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, editor: str
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    said = cli("run", "shop.py:refund", "order=7", "--key", "seven", typed=":e\nit broke\n\nno\n")
    assert f"{editor}: Editing failed" in said.err
    assert (said.code, said.out.endswith("declined\n")) == (0, True)


def test_a_file_says_yes_as_people_do(cli: Cli) -> None:
    Path("yes.txt").write_text("Yes\n")
    Path("perhaps.txt").write_text("perhaps\n")
    said = cli("run", "shop.py:refund", "order=7", typed="it broke\n\n:f perhaps.txt\n:f yes.txt\n")
    assert "answer should be yes or no, got 'perhaps'" in said.err
    assert said.out.endswith("receipt for 7\n")


def test_ctrl_c_keeps_the_session(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    said = cli("run", "shop.py:refund", "order=7", "--key", "seven", typed="")
    assert said.code == 130
    assert "To resume it: run this again, or: everhold run -c seven\n" in said.err
    assert cli("show", "seven", "--json").json["session"]["state"] == "paused"
