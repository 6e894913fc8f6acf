"""Running, retrying and forking from the command line."""

import json
import sys
from importlib import metadata
from pathlib import Path

import pytest

from everhold.ports.program import REGISTRY

from .conftest import Cli

ANSWERED = ("--as", "ana", "--yes")


def test_without_a_terminal_the_open_question_is_json_and_the_exit_code_10(cli: Cli) -> None:
    said = cli("run", "shop.py:refund", "order=7")
    assert said.code == 10
    assert said.json["status"] == "needs_response"
    assert said.json["prompt"] == "Why did 7 come back?"


ARGUMENTS = """
import everhold

@everhold.program
async def trip(ctx: everhold.Context, topic: str, max_days: int = 5, dry: bool = False) -> list:
    return [topic, max_days, dry]
"""


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["night trains"], ["night trains", 5, False]),
        (["bees", "7"], ["bees", 7, False]),
        (["7", "7", "true"], ["7", 7, True]),
        (["max_days=-2", "-5"], ["-5", -2, False]),
        (["2+2=4"], ["2+2=4", 5, False]),
        (["--topic", "bees", "--max-days", "9", "--dry"], ["bees", 9, True]),
        (["--topic=a=b", "--max_days=1", "--no-dry"], ["a=b", 1, False]),
        (["--dry", "bees"], ["bees", 5, True]),
        (["--max-days", "-3", "--key", "k", "topic=bees"], ["bees", -3, False]),
    ],
)
def test_arguments_are_understood_as_they_are_usually_typed(
    cli: Cli, tmp_path: Path, words: list[str], taken: list[object]
) -> None:
    """By name, as options, or as values in the order of the parameters."""
    (tmp_path / "trip.py").write_text(ARGUMENTS)
    assert cli("run", "trip.py:trip", *words).json == taken


def test_an_option_of_the_command_is_never_an_argument(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(ARGUMENTS.replace("topic", "title"))
    said = cli("run", "told.py:trip", "--title", "bees")
    assert said.code == 2 and "missing a required argument: 'title'" in said.err
    assert cli("run", "told.py:trip", "--title", "x", "title=bees").json[0] == "bees"


def test_the_version_is_the_same_wherever_one_asks(cli: Cli) -> None:
    said = {cli(words).out for words in ("version", "-V", "--version")}
    assert said == {f"everhold {metadata.version('everhold')}\n"}


def test_the_result_is_on_standard_output_and_the_rest_on_standard_error(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    cli("answer", "seven", "it broke")
    said = cli("answer", "seven", *ANSWERED)
    assert (said.code, said.out) == (0, "receipt for 7\n")
    assert said.err.startswith("completed · seven · 1 model answer")


def test_the_same_key_goes_on_with_the_same_session(cli: Cli) -> None:
    first = cli("run", "shop.py:refund", "order=7", "--key", "seven").json
    again = cli("run", "shop.py:refund", "order=7", "--key", "seven").json
    assert first["session_id"] == again["session_id"]


def test_the_key_of_a_deleted_session_is_used_anew_only_with_again(cli: Cli) -> None:
    """By run and by fork; the hint names the option."""
    first = cli("run", "shop.py:refund", "order=7", "--key", "seven").json["session_id"]
    other = cli("run", "shop.py:waits", "--key", "other").json["session_id"]
    cli("cancel", "seven")
    cli("delete", "seven", "--yes")
    for words in (("run", "shop.py:refund", "order=7"), ("fork", other)):
        refused = cli(*words, "--key", "seven")
        assert refused.code == 2
        assert "[key_deleted]" in refused.err and "--again" in refused.err
    anew = cli("run", "shop.py:refund", "order=7", "--key", "seven", "--again").json["session_id"]
    assert anew != first
    assert cli("run", "shop.py:refund", "order=7", "--key", "seven").json["session_id"] == anew


def test_without_a_key_every_run_is_a_new_session(cli: Cli) -> None:
    first = cli("run", "shop.py:refund", "order=7").json
    assert cli("run", "shop.py:refund", "order=7").json["session_id"] != first["session_id"]


def test_c_goes_on_with_the_last_session(cli: Cli) -> None:
    first = cli("run", "shop.py:refund", "order=7").json
    assert cli("run", "-c").json["session_id"] == first["session_id"]


def test_c_goes_on_with_the_newest_session_of_a_program(cli: Cli) -> None:
    first = cli("run", "shop.py:refund", "order=7").json
    cli("run", "shop.py:chat")
    assert cli("run", "-c", "shop.py:refund").json["session_id"] == first["session_id"]


def test_a_word_becomes_what_its_parameter_takes(cli: Cli) -> None:
    """`order` is text and stays text; `times` is a number."""
    cli("run", "shop.py:refund", "order=007", "times=3")
    assert cli("show", "@last", "--json").json["session"]["arguments"] == {
        "order": "007",
        "times": 3,
    }


def test_arguments_come_from_a_file_and_words_win_over_it(cli: Cli) -> None:
    Path("args.json").write_text('{"order": "1", "times": 2}')
    cli("run", "shop.py:refund", "order=7", "--json-args", "args.json")
    assert cli("show", "@last", "--json").json["session"]["arguments"] == {"order": "7", "times": 2}


def test_a_file_of_answers_answers_the_model_and_no_person(cli: Cli) -> None:
    Path("answers.json").write_text('{"Why did * come back?": "it broke"}')
    said = cli("run", "shop.py:refund", "order=7", "--answers", "answers.json")
    assert said.code == 10
    assert said.json["kind"] == "approval"
    assert said.json["prompt"] == "Refund 7? it broke"


@pytest.mark.process
def test_a_command_answers_the_model(cli: Cli) -> None:
    said = cli("run", "shop.py:refund", "order=7", "--answer-with", "tr a-z A-Z")
    assert said.json["prompt"] == "Refund 7? WHY DID 7 COME BACK?"


@pytest.mark.process
def test_a_command_answers_questions_that_were_left_open_before(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    said = cli("run", "-c", "seven", "--answer-with", "tr a-z A-Z")
    assert said.json["prompt"] == "Refund 7? WHY DID 7 COME BACK?"


@pytest.mark.process
def test_a_command_that_fails_is_an_error_the_program_sees(cli: Cli) -> None:
    said = cli("run", "shop.py:refund", "order=7", "--answer-with", "false")
    assert said.code == 1
    assert "AnswerFailed: false exited with 1" in said.err


@pytest.mark.process
def test_the_settings_say_who_answers(cli: Cli) -> None:
    Path("everhold.toml").write_text('programs = ["shop.py"]\nanswer_with = "tr a-z A-Z"\n')
    assert cli("run", "refund", "order=7").json["prompt"] == "Refund 7? WHY DID 7 COME BACK?"


@pytest.mark.process
def test_a_failed_session_shows_the_users_frames_and_exits_with_1(cli: Cli) -> None:
    said = cli("run", "shop.py:fails", "--answer-with", "cat")
    assert said.code == 1
    assert "ValueError: broken on purpose" in said.err
    assert 'raise ValueError("broken on purpose")' in said.err
    assert "everhold/programs" not in said.err


def test_retry_goes_on_from_the_last_answer(cli: Cli) -> None:
    cli("run", "shop.py:fails", "--key", "f")
    cli("answer", "f", "something")
    said = cli("retry", "f", "--json")
    assert said.code == 1
    assert said.json["status"] == "error"
    assert cli("usage", "--json").json["usage"][0]["llm_calls"] == 1


def test_fork_goes_on_from_another_answer(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    cli("answer", "seven", "it broke")
    said = cli("fork", "seven", "--at", "1", "--answer", "too large", "--key", "other")
    assert said.json["prompt"] == "Refund 7? too large"
    assert cli("show", "seven", "--json").json["status"]["prompt"] == "Refund 7? it broke"


@pytest.mark.process
def test_fork_replaces_a_no_by_a_yes(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    cli("answer", "seven", "--as", "ana", "--no")
    said = cli("fork", "seven", "--answer", "yes")
    assert (said.code, said.out) == (0, "receipt for 7\n")


def test_wait_bounds_how_long_a_timer_is_waited_for(cli: Cli) -> None:
    said = cli("run", "shop.py:naps", "--wait", "0.05")
    assert said.code == 10
    assert "waiting ·" in said.err


def test_labels_and_title_are_kept(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--label", "customer=42", "--title", "seventh")
    listed = cli("sessions", "--label", "customer=42", "--json").json["sessions"]
    assert [one["title"] for one in listed] == ["seventh"]


def test_json_is_one_document(cli: Cli) -> None:
    said = cli("run", "shop.py:refund", "order=7", "--json")
    assert said.err == ""
    assert json.loads(said.out)["session_id"].startswith("s-")


@pytest.mark.process
def test_who_got_an_error_for_an_answer_is_told_how_to_ask_again(cli: Cli) -> None:
    """A retry would hand the same error over; the fork that is told of asks anew."""
    said = cli("run", "shop.py:grades", "--key", "g", "--answer-with", "false", "-d", "g.db")
    assert (
        said.err.splitlines()[-1]
        == "Ask q-0 again (the recorded answer is an error): everhold fork g --at 0 -d g.db"
    )
    assert cli("retry", "g", "-d", "g.db").err.splitlines()[-1] == said.err.splitlines()[-1]
    assert cli("fork", "g", "--at", "0", "-d", "g.db").json["prompt"] == "How good?"


def test_a_call_that_may_happen_once_is_not_proposed_again(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(
        "import everhold\ndef pay():\n    raise OSError('down')\n"
        "@everhold.program\nasync def once(ctx: everhold.Context) -> None:\n    await"
        " ctx.call(pay, rerun='never')\n"
    )
    said = cli("run", "once.py:once", "--key", "once")
    assert said.err.splitlines()[-1] == "Fix the program, then: everhold retry once"


def test_a_database_in_memory_is_not_said_to_be_kept(cli: Cli) -> None:
    said = cli("run", "shop.py:grades", "-d", "memory://")
    assert said.err.splitlines()[-1] == "the session is not kept: its database was in memory"


def test_going_on_without_the_program_is_refused_and_waits_for_nobody(cli: Cli) -> None:
    """An answer was accepted meanwhile, so nothing is open, and nothing here can move the
    session.
    """
    cli("run", "shop.py:grades", "--key", "g")
    Path("shop.py").rename("gone.txt")
    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]
    for key in [key for key in REGISTRY if "shop.py:" in key[0]]:
        del REGISTRY[key]
    assert cli("answer", "g", "7").err.startswith("accepted · g")
    said = cli("run", "-c", "g")
    assert (said.code, said.err.splitlines()[0].endswith("[unknown_program]")) == (2, True)


def test_an_argument_that_is_named_like_an_option_is_explained(cli: Cli) -> None:
    Path("keyed.py").write_text(
        "import everhold\n\n@everhold.program\nasync def keyed(ctx, key: str): return key\n"
    )
    said = cli("run", "keyed.py:keyed", "--key", "a b", "--title", "t")
    assert said.code == 2 and said.err.endswith(
        "hint: It takes key: str. --key is an option of the command itself;"
        " for the argument, write 'key=a b'\n"
    )
    assert cli("run", "keyed.py:keyed", "key=a b").out == "a b\n"
