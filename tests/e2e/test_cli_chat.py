"""Holding a conversation from the command line: lines through a pipe, and a person at a
terminal.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

SHOP = '''
import asyncio
import everhold
from everhold.plugins.approval import Approval


@everhold.tool
def refund(number: str) -> str:
    """Give the money back."""
    return f"refunded {number}"


@everhold.tool(read_only=True)
async def dawdle() -> str:
    """Take for ever."""
    await asyncio.sleep(600)
    return "done"


support = everhold.Agent(instructions="Help.", tools=[refund, dawdle], plugins=[Approval("refund")])


@everhold.program
async def other(ctx):
    return 1
'''
REFUND = {"text": "A moment.", "tool_calls": [{"name": "refund", "input": {"number": "7"}}]}
DAWDLE = {"tool_calls": [{"name": "dawdle", "input": {}}]}


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "everhold.toml").write_text('database = "app.db"\nprograms = ["shop.py"]\n')
    return tmp_path


def command(shop, answers, *words):
    (shop / "answers.json").write_text(json.dumps(answers))
    return [sys.executable, "-m", "everhold", "chat", *words, "--answers", "answers.json"]


def piped(shop, lines, answers, *words):
    made = command(shop, answers, *words)
    return subprocess.run(
        made, cwd=shop, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=250
    )


def test_lines_are_said_and_answers_are_lines(shop):
    """The conversation is kept under its name, and goes on."""
    done = piped(
        shop,
        ["Hello?", "", "And?", "/quit", "never said"],
        ["Hi.", "Yes."],
        "support",
        "--session",
        "a",
    )
    assert (done.returncode, done.stdout) == (0, "Hi.\nYes.\n")
    done = piped(shop, ["Still there?"], ["Sure."], "shop.py:support", "--session", "a", "--json")
    told = json.loads(done.stdout)
    assert (told["session"], told["turns"][0]["text"], told["waiting"]) == ("a", "Sure.", [])
    with everhold_runtime(shop) as runtime:
        assert len(runtime.transcript(told["session_id"])) == 3


def everhold_runtime(shop):
    import everhold

    return everhold.open_blocking(shop / "app.db", recover=False)


@pytest.mark.parametrize("verb", ["show", "watch", "replay"])
def test_what_a_model_was_asked_to_go_on_with_is_called_so(shop, verb):
    piped(shop, ["Refund 7."], [REFUND, "Done."], "support", "--session", "b")
    with subprocess.Popen(
        [sys.executable, "-m", "everhold", verb, "b"], cwd=shop, stdout=subprocess.PIPE, text=True
    ) as looking:
        # `watch` never ends; `show` begins with a summary
        told = next(
            one for one in looking.stdout if " llm" in one and not one.startswith("answers")
        )
        looking.kill()
    assert "a conversation" in told


def test_where_a_person_is_asked_it_stops(shop):
    """With exit code 10 and the command by which a person answers; nothing is approved by a
    pipe.
    """
    done = piped(shop, ["Refund 7.", "yes"], [REFUND, "Done."], "support", "--session", "b")
    assert done.returncode == 10
    assert "everhold answer b --query q-" in done.stderr


@pytest.mark.parametrize("name", ["shop.py:other", "shop.py:nothing", "nobody"])
def test_what_is_no_agent_is_refused(shop, name):
    done = piped(shop, ["Hello?"], [], name)
    assert done.returncode in (2, 5)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


class Person:
    """Somebody at a terminal."""

    def __init__(self, shop, answers, *words, made=None):
        made = made or command(shop, answers, *words)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(shop)
            os.environ |= {"TERM": "dumb", "NO_COLOR": "1"}
            os.execv(made[0], made)
        self.seen = ""

    def sees(self, pattern, seconds=90):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            # clock: a guard against a hang, of 90 s unless a caller names more.
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} never appeared in:\n{self.seen}"
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(
                    f"it ended before {pattern!r} appeared:\n{self.seen}"
                ) from None
        return self

    def types(self, words):
        self.seen = ""
        os.write(self.fd, f"{words}\n".encode())
        return self

    def leaves(self):
        """The exit code, once it has left."""
        while True:
            try:
                if not os.read(self.fd, 4096):
                    break
            except OSError:
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_a_person_talks_approves_stops_a_turn_and_leaves(shop):
    """Approvals are asked in place, Ctrl-C stops the turn and not the conversation, /quit says how
    to go on.
    """
    person = Person(shop, [REFUND, "It is done.", DAWDLE, "Here."], "support", "--session", "c")
    person.sees("> ").types("Refund 7.")
    person.sees(r"Run refund with .*\\?").sees("yes or no> ").types("yes")
    person.sees("It is done.").sees("> ").types("Dawdle.")
    person.sees("· dawdle")
    time.sleep(0.5)
    os.kill(person.pid, signal.SIGINT)
    person.sees("the turn was stopped").sees("> $").types("Hello?")
    person.sees("Here.").sees("> ").types("/usage")
    person.sees("read, ").sees(" written").types("/help")
    person.sees("/quit leave").types("/quit")
    person.sees("everhold chat support --session c")
    assert person.leaves() == 0


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_a_turn_that_was_left_at_a_question_is_taken_up(shop):
    person = Person(shop, [REFUND, "It is done."], "support", "--session", "d")
    person.sees("> ").types("Refund 7.")
    person.sees("yes or no> ").types(":quit")
    person.sees("the conversation is kept; to resume it")
    assert person.leaves() == 0
    again = Person(shop, ["It is done."], "support", "--session", "d")
    again.sees("interrupted turn").sees("A moment.").sees("yes or no> ").types("no")
    again.sees("It is done.").sees("> $")
    assert "A moment." not in again.seen  # it was shown before the question, and once
    again.types("/quit")
    assert again.leaves() == 0


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_a_turn_is_stopped_while_the_model_is_asked(shop):
    """Also before anything was said; and whoever leaves is told all of the command that goes on."""
    sleeps = f"{sys.executable} -c 'import time; time.sleep(600)'"
    made = [sys.executable, "-m", "everhold", "chat", "support", "--session", "e f", "-d", "my.db"]
    person = Person(shop, [], made=[*made, "--answer-with", sleeps])
    person.sees("> ").types("Hello?")
    time.sleep(2)
    os.kill(person.pid, signal.SIGINT)
    person.sees("the turn was stopped").sees("> $").types("/quit")
    person.sees("everhold chat support --session 'e f' -d my.db --answer-with ")
    assert person.leaves() == 0


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_what_a_program_prints_is_shown(shop):
    """A program that the model wrote, between its tool calls; with no control characters."""
    (shop / "shop.py").write_text(
        "import everhold\nfrom everhold.agents import Lua\nsupport = everhold.Agent(code=Lua())\n"
    )
    code = "print('six by seven') print('\\27[2J' .. 6 * 7)"
    lines = [{"tool_calls": [{"name": "lua", "input": {"code": code}}]}, "It is 42."]
    person = Person(shop, lines, "support", "--session", "p")
    person.sees("> ").types("Count.")
    person.sees("six by seven\r\n").sees("[^\x1b]\\[2J42\r\n").sees("It is 42.").sees("> $")
    assert person.types("/quit").leaves() == 0


def test_an_input_above_the_limit_is_refused(shop):
    """In a chat, and sent or queued with a command; each with the code of a wrong call."""
    (shop / "everhold.toml").write_text(
        'database = "app.db"\nprograms = ["shop.py"]\nmax_input = "1kB"\n'
    )
    long = "x" * 1001
    done = piped(shop, ["Hello?", long], ["Hi."], "support", "--session", "a")
    assert done.returncode == 2 and done.stdout == "Hi.\n"
    assert "the input has 1,001 bytes; the limit is 1,000" in done.stderr
    for more in ((), ("--no-wait",)):
        sent = subprocess.run(
            [sys.executable, "-m", "everhold", "send", "a", "-", *more, "--json"],
            cwd=shop,
            input=long,
            capture_output=True,
            text=True,
            timeout=250,
        )
        assert sent.returncode == 2
        assert json.loads(sent.stdout or sent.stderr)["code"] == "input_too_large"


def test_where_no_model_answers_it_says_so(shop):
    """With what to give, and how to answer in its place, in the database that was named."""
    made = [sys.executable, "-m", "everhold", "chat", "support", "--session", "g", "-d", "my.db"]
    done = subprocess.run(
        made, cwd=shop, input="Hello?\n", capture_output=True, text=True, timeout=250
    )
    assert (done.returncode, done.stdout) == (10, "(waiting)\n")
    assert "no model answers here; name one, such as --model " in done.stderr
    assert "everhold answer g --query q-2 -d my.db" in done.stderr
