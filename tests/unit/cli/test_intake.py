"""Saying something to a conversation from the command line, what waits for it, and commands."""

import json
from pathlib import Path

import pytest

from .conftest import Cli, forget_programs

DESK = """
import everhold

@everhold.tool(read_only=True)
def look(what: str) -> str:
    "Look something up."
    return f"{what}: found"

desk = everhold.Agent(instructions="Help.", tools=[look])
"""


@pytest.fixture
def desk(cli: Cli) -> Cli:
    """A conversation `c` whose turn waits for its model."""
    Path("desk.py").write_text(DESK)
    Path("none.json").write_text("[]")
    Path("one.json").write_text(json.dumps(["Done."]))
    Path("two.json").write_text(json.dumps(["Done.", "Then."]))
    said = cli("chat", "desk.py:desk", "--session", "c", piped="Go.\n")
    assert said.code == 10, said
    return cli


def test_what_is_said_is_answered(desk: Cli) -> None:
    assert desk("command", "c", "cancel_turn", "--key", "stop").code == 0
    said = desk("send", "c", "And?", "--answers", "one.json")
    assert (said.code, said.out) == (0, "Done.\n")
    again = desk(
        "send", "c", "-", "--key", "k", "--answers", "one.json", "--json", piped="More?\n"
    ).json
    assert (again["input"], again["outcome"], again["text"]) == ("k", "answered", "Done.")
    assert desk("send", "c", "Other.", "--key", "k").code == 2


def test_what_is_said_during_a_turn_waits(desk: Cli) -> None:
    said = desk("send", "c", "Later.", "--key", "later")
    assert said.code == 10
    assert "queued as later" in said.err and "everhold answer c" in said.err
    listed = desk("intake", "c")
    assert "later" in listed.out and "the next turn" in listed.out and "Later." in listed.out
    told = desk("intake", "c", "--json").json["items"]
    assert [(item["id"], item["state"], item["body"]) for item in told] == [
        ("later", "waiting", {"content": "Later."})
    ]
    asking = desk("send", "c", "Now?", "--busy", "reject")
    assert asking.code == 3 and "session_busy" in asking.err


def test_what_is_only_kept_is_let_in_by_whoever_works(desk: Cli) -> None:
    said = desk("send", "c", "One.", "--key", "one", "--no-wait")
    assert (said.code, said.out) == (0, "queued as one\n")
    assert (
        desk("send", "c", "One.", "--key", "one", "--no-wait").out
        == "it was queued before, as one\n"
    )
    kept = desk(
        "send", "c", "Two.", "--key", "two", "--no-wait", "--at", "before_completion", "--json"
    ).json
    assert (kept["new"], kept["item"]["turn"], kept["item"]["boundary"]) == (
        True,
        1,
        "before_completion",
    )
    assert "turn 1" in desk("intake", "c").out
    assert desk("send", "c", "Two.", "--at", "after_work").code == 2


def test_what_waits_is_taken_back(desk: Cli) -> None:
    for name in "abc":
        desk("send", "c", name, "--key", name, "--no-wait")
    said = desk("intake", "c", "--cancel", "a", "--cancel", "nobody", "--reason", "no")
    assert said.out == "a: cancelled\nnobody: unknown\n"
    told = desk("intake", "c", "--cancel-from", "b", "--json").json["outcomes"]
    assert told == [{"name": "b", "outcome": "cancelled"}, {"name": "c", "outcome": "cancelled"}]
    assert desk("intake", "c").out.startswith("the queue is empty\n")
    assert "cancelled" in desk("intake", "c", "--all").out
    unknown = desk("intake", "c", "--cancel-from", "nobody")
    assert unknown.code == 2 and "unknown_input" in unknown.err
    assert desk("intake", "c", "--cancel", "a", "--cancel-from", "b").code == 2
    swept = desk("db", "vacuum", "--older-than", "1h", "--json").json
    assert swept == {"removed": 0}
    assert desk("db", "vacuum").out.startswith("3 ended inputs deleted\n")
    assert desk("intake", "c", "--all").out.startswith("no input, queued or ended\n")


def test_commands_are_done_or_wait(desk: Cli) -> None:
    waits = desk("command", "c", "reset", "--key", "r", "--reason", "a new topic")
    assert (waits.code, waits.out) == (10, "reset: waiting\n")
    assert "reset: a new topic" in desk("intake", "c").out
    explained = desk("explain", "c").out
    assert "is queued, for" in explained
    stopped = desk("command", "c", "cancel_turn", "--key", "s", "--reason", "enough")
    assert (stopped.code, stopped.out) == (0, "cancel_turn: done\n")
    assert (
        desk("command", "c", "cancel_turn", "--key", "t").out
        == "cancel_turn: there was nothing to do\n"
    )
    again = desk("command", "c", "reset", "--key", "r", "--json").json
    assert (again["new"], again["stage"]) == (False, "settled")
    assert desk("command", "c", "reset").code == 2
    assert desk("command", "c", "reset", "--key", " ").code == 2


def test_a_program_that_is_no_agent_is_told_by_signal(cli: Cli) -> None:
    cli("run", "shop.py:waits", "--key", "w")
    said = cli("send", "w", "Go.")
    assert said.code == 2 and "not an agent" in said.err


def test_at_a_terminal_without_a_model_the_person_is_told_why_he_is_asked(desk: Cli) -> None:
    said = desk(
        "chat", "desk.py:desk", "--session", "t", typed="Hello\nHi.\n\nAgain\nHo.\n\n/usage\n"
    )
    assert said.out.count("(no model answers here; name one, such as --model ") == 1
    assert "0 tokens: 0 read, 0 written\n" in said.out


def test_the_tools_of_a_conversation_are_listed(desk: Cli) -> None:
    listed = desk("tools", "c")
    assert listed.code == 0 and "generation" in listed.out
    told = desk("tools", "c", "--json").json
    assert told["generation"] == 1
    assert [(one["name"], one["state"], one["source"]) for one in told["tools"]] == [
        ("look", "offered", "agent")
    ]
    assert desk("tools", "nobody").code == 2


def test_an_input_is_refused_after_the_conversation_has_moved_on(desk: Cli) -> None:
    desk("command", "c", "cancel_turn", "--key", "stop")
    refused = desk("send", "c", "And?", "--after", "9.9", "--answers", "one.json")
    assert refused.code == 3 and "is at node 1.1, not 9.9" in refused.err
    assert desk("send", "c", "And?", "--after", "1.1", "--answers", "one.json").out == "Done.\n"
    assert desk("send", "c", "And?", "--after", "1.1", "--answers", "one.json").code == 3
    assert desk("send", "c", "And?", "--after", "1.1", "--busy", "fork").code == 2


def test_a_queue_is_read_without_the_agent(desk: Cli) -> None:
    desk("send", "c", "Later.", "--key", "later", "--no-wait")
    Path("desk.py").unlink()
    assert "later" in desk("intake", "c").out
    assert desk("intake", "c", "--cancel", "later").out == "later: cancelled\n"
    assert "Go." in desk("show", "c", "--full").out


def test_a_verdict_is_no_signal(desk: Cli) -> None:
    desk("command", "c", "cancel_turn", "--key", "stop")
    refused = desk("answer", "c", "--yes", "--as", "maria")
    assert refused.code == 2 and "has no open question [no_open_query]" in refused.err
    assert "maria" not in desk("show", "c", "--full").out


def test_who_forked_and_deleted_is_shown(desk: Cli) -> None:
    forked = desk("fork", "c", "--key", "f", "--as", "maria")
    assert forked.code == 10, forked
    assert "(by maria)" in desk("show", "f").out
    desk("cancel", "f", "--as", "ana")
    assert "cancelled (by ana)" in desk("show", "f").out
    assert desk("delete", "f", "--yes", "--as", "ana").code == 0


def test_a_compaction_that_does_nothing_says_why(desk: Cli) -> None:
    desk("command", "c", "cancel_turn", "--key", "stop")
    done = desk("command", "c", "compact", "--key", "k")
    assert "no plugin that compacts" in done.out


def test_explain_tells_an_input_from_a_signal_also_without_the_agent(desk: Cli) -> None:
    """In another folder, a conversation is told by its messages."""
    assert desk("answer", "c", "Hello.").code == 10
    with_agent = desk("explain", "c").out
    Path("desk.py").unlink()
    forget_programs("desk")
    for told in (with_agent, desk("explain", "c").out):
        assert "It has waited" in told and "for an input." in told
        assert "Send it an input: everhold chat " in told and "desk.py:desk --session c" in told
        assert "signal" not in told


def test_without_a_message_the_person_at_the_terminal_types_it(desk: Cli) -> None:
    """So the command that messages tell has nothing to fill in."""
    desk("command", "c", "cancel_turn", "--key", "stop")
    said = desk("send", "c", "--answers", "one.json", typed="\nAnd?\n")
    assert (said.code, said.out) == (0, "> > Done.\n")
    assert desk("send", "c", typed="").code == 130
    refused = desk("send", "c")
    assert (refused.code, refused.out) == (2, "")
    assert "MESSAGE is missing, and there is no terminal to read it from" in refused.err
