"""A command answers: the question goes in, the answer comes out."""

import asyncio
import os
import resource
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from everhold.core.query import FOR_PEOPLE, Query
from everhold.errors import AnswerFailed, BadSetting, NotAllowed
from everhold.models import CommandModel
from everhold.models.command import format_model_prompt

ASK = Query(0, "0:0", "What is up?")
CAT = CommandModel("cat")


def python(code: str, **options) -> CommandModel:
    return CommandModel([sys.executable, "-c", code], **options)


def shell(line: str, **options) -> CommandModel:
    return CommandModel(["sh", "-c", line], **options)


async def ends(pid: int) -> bool:
    """Whether the process is gone, or goes within some seconds."""
    for _ in range(6000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        await asyncio.sleep(0.01)
    return False


async def number_in(file: Path) -> int:
    while not (file.exists() and file.read_text().endswith("\n")):
        await asyncio.sleep(0.01)
    return int(file.read_text())


async def timed_out(file: Path, line: str) -> int:
    """Run a shell that writes a number to `file` and never ends; on a busy machine it gets more
    time to write it.
    """
    for timeout in (0.5, 5, 30):
        with pytest.raises(AnswerFailed, match=f"did not answer within {timeout} s"):
            await shell(line.replace("PID", shlex.quote(str(file))), timeout=timeout).answer(
                ASK, "s-1"
            )
        if file.exists() and file.read_text():
            return int(file.read_text())
    raise AssertionError(f"nothing is in {file}")


# The question


@pytest.mark.process
async def test_the_prompt_goes_in_and_the_answer_comes_out():
    """`cat` answers with the question."""
    assert await CAT.answer(ASK, "s-1") == "What is up?"


QUESTIONS = {
    "system first": (Query(0, "0:0", "Why?", system="Be brief."), "Be brief.\n\nWhy?"),
    "messages": (
        Query(0, "0:0", messages=[
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},  # noqa: E501
        ]),
        "user: Hi\n\nassistant: a\nb",
    ),
    "a schema": (
        Query(0, "0:0", "How many?", schema={"type": "integer"}),
        "How many?\n\nAnswer with JSON only, without any other text. "
        'It must match this schema:\n{"type":"integer"}',
    ),
    "a string is no JSON": (Query(0, "0:0", "Who?", schema={"type": "string"}), "Who?"),
    "nothing": (Query(0, "0:0"), ""),
}  # fmt: skip


@pytest.mark.parametrize(("query", "text"), QUESTIONS.values(), ids=QUESTIONS)
def test_what_the_command_reads(query, text):
    """System text, prompt, messages and schema are one text, in this order."""
    assert format_model_prompt(query) == text


async def test_a_command_cannot_see():
    """A message with an image fails as an answer, before anything runs."""
    query = Query(
        0, "0:0", messages=[{"role": "user", "content": [{"type": "image", "data": "…"}]}]
    )

    with pytest.raises(AnswerFailed, match="a message contains image"):
        await CAT.answer(query, "s-1")


@pytest.mark.process
async def test_every_character_arrives():
    """Prompts are UTF-8 in both directions, whatever their length."""
    prompt = "Grüße, 世界 🌍\x00 " * 50_000

    assert await CAT.answer(Query(0, "0:0", prompt), "s-1") == prompt


# The answer


@pytest.mark.process
async def test_trailing_newlines_are_dropped():
    """Those within stay."""
    assert await shell(r"printf '\none\n\ntwo\r\n\n'").answer(ASK, "s-1") == "\none\n\ntwo"


@pytest.mark.process
async def test_a_command_that_does_not_listen():
    """A command may answer without reading the question."""
    assert (
        await shell("exec <&-; echo fine").answer(Query(0, "0:0", "x" * 1_000_000), "s-1") == "fine"
    )


FAILURES = {
    "exit code": (
        "echo all is lost >&2; exit 3",
        "sh exited with 3: all is lost",
        "command_failed",
    ),
    "silent": ("exit 4", "sh exited with 4", "command_failed"),
    "signal": ("kill -TERM $$", "sh was killed by SIGTERM", "command_failed"),
    "not text": (r"printf '\377'", "sh wrote output that is not UTF-8: ", "not_text"),
    "timeout": ("sleep 60", "sh did not answer within 0.2 s", "timeout"),
}


@pytest.mark.process
@pytest.mark.parametrize(("line", "told", "kind"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_is_an_answer_that_says_why(line, told, kind):
    """Whatever goes wrong with the command, the program gets a sentence."""
    with pytest.raises(AnswerFailed) as caught:
        await shell(line, timeout=0.2 if kind == "timeout" else 60).answer(ASK, "s-1")

    assert str(caught.value).startswith(told)
    assert caught.value.kind == kind


@pytest.mark.process
async def test_only_the_end_of_a_long_complaint_is_kept():
    """The last 2000 characters of stderr are told."""
    with pytest.raises(AnswerFailed) as caught:
        await python("import sys; sys.exit('x' * 5000 + 'end')").answer(ASK, "s-1")

    assert len(str(caught.value)) < 2200
    assert str(caught.value).endswith("xend")


# Nothing stays behind


@pytest.mark.process
async def test_a_timeout_ends_what_the_command_started(tmp_path):
    """The grandchild goes with the command."""
    pid = await timed_out(tmp_path / "pid", "sleep 600 & echo $! > PID; wait")

    assert await ends(pid)


@pytest.mark.process
async def test_a_timeout_ends_what_the_command_left(tmp_path):
    """A command that is gone, while what it started keeps the output open, is timed out all the
    same.
    """
    pid = await timed_out(tmp_path / "pid", "sleep 600 & echo $! > PID")

    assert await ends(pid)


@pytest.mark.process
async def test_a_command_that_writes_without_end_is_ended(tmp_path):
    """What it started as well; nobody collects what it writes."""
    flood = shell(
        f"sleep 600 & echo $! > {shlex.quote(str(tmp_path / 'pid'))}; exec yes", timeout=None
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(AnswerFailed, match=r"^sh wrote more than 8,388,608 bytes$") as caught:
        await flood.answer(ASK, "s-1")

    assert caught.value.kind == "too_large"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert await ends(await number_in(tmp_path / "pid"))


@pytest.mark.process
async def test_an_answer_may_be_long_and_its_complaints_longer():
    """Eight megabytes are an answer; of what is said on the side only the end is kept."""
    long = python("import sys; sys.stderr.write('x' * 2**24); sys.stdout.write('y' * 2**23)")

    assert await long.answer(ASK, "s-1") == "y" * 2**23


@pytest.mark.process
async def test_a_question_may_be_longer_than_the_command_reads():
    """It answers when it ends, whether or not it has read to the end."""
    asked = Query(0, "0:0", "x" * 2**22)

    assert await shell("head -c 3").answer(asked, "s-1") == "xxx"


@pytest.mark.process
async def test_cancelling_ends_the_command(tmp_path):
    """A withdrawn question leaves no process."""
    command = shell(f"echo $$ > {shlex.quote(str(tmp_path / 'pid'))}; sleep 600")
    answer = asyncio.create_task(command.answer(ASK, "s-1"))
    pid = await number_in(tmp_path / "pid")

    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer

    assert await ends(pid)


@pytest.mark.process
@pytest.mark.parametrize("turns", range(12))
async def test_cancelling_while_the_command_starts(turns, tmp_path):
    """Whenever the cancellation comes, and if it comes twice, nothing stays and nobody waits for
    long.
    """
    command = shell(f"echo $$ > {shlex.quote(str(tmp_path / 'pid'))}; sleep 600")
    answer = asyncio.create_task(command.answer(ASK, "s-1"))
    for _ in range(turns):
        await asyncio.sleep(0)

    answer.cancel()
    await asyncio.sleep(0)
    answer.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await answer

    pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
    assert pid == "" or await ends(int(pid))


@pytest.mark.process
async def test_cancelling_a_command_that_cannot_start():
    """The cancellation wins over the mistake in the settings."""
    answer = asyncio.create_task(CommandModel("no-such-command").answer(ASK, "s-1"))
    while len(asyncio.all_tasks()) < 3:  # this test, the answer, the start
        await asyncio.sleep(0)

    answer.cancel()

    with pytest.raises(asyncio.CancelledError):
        await answer


@pytest.mark.process
@pytest.mark.parametrize("then", ["wait", "exit"])
async def test_what_left_the_group_holds_nobody_up(then, tmp_path, monkeypatch):
    """A daemon that keeps the pipes open cannot keep the answerer waiting, whoever started it."""
    monkeypatch.setattr("everhold.models.process.PATIENCE", 0.1)
    begun = time.monotonic()
    pid = await timed_out(
        tmp_path / "pid", f"setsid sh -c 'echo $$ > PID; exec sleep 600' & {then}"
    )

    os.kill(pid, signal.SIGKILL)
    assert time.monotonic() - begun < 300


# How many at once


# Wait until another one is there, then a moment for a third.
COUNT = """
import os, sys, time
from pathlib import Path
here = Path(sys.argv[1]) / str(os.getpid())
here.touch()
end = time.monotonic() + 60
while len(list(here.parent.iterdir())) < 2 and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.2)
print(len(list(here.parent.iterdir())))
here.unlink()
"""


@pytest.mark.process
async def test_only_so_many_at_once(tmp_path):
    """With `at_once=2`, three questions never make three processes."""
    command = CommandModel([sys.executable, "-c", COUNT, str(tmp_path)], at_once=2)

    together = await asyncio.gather(*(command.answer(ASK, "s-1") for _ in range(4)))

    assert max(map(int, together)) == 2


@pytest.mark.process
def test_one_command_serves_several_loops():
    """A command that was crowded in one event loop can be used in the next."""
    command = CommandModel("cat", at_once=1)

    async def crowd():
        return await asyncio.gather(*(command.answer(ASK, "s-1") for _ in range(3)))

    assert asyncio.run(crowd()) == asyncio.run(crowd()) == ["What is up?"] * 3


# Who may, and what cannot be


@pytest.mark.parametrize("kind", sorted(FOR_PEOPLE))
async def test_people_are_not_answered_for(kind):
    """A question for a person never reaches the command."""
    with pytest.raises(NotAllowed):
        await CAT.answer(Query(0, "0:0", "Sure?", kind=kind), "s-1")


@pytest.mark.process
async def test_a_command_that_is_not_there():
    """A missing command is a mistake in the settings, not an answer; it can be checked
    beforehand.
    """
    command = CommandModel("no-such-command --now")

    with pytest.raises(BadSetting, match="command 'no-such-command' was not found"):
        command.check()
    with pytest.raises(BadSetting, match="command 'no-such-command' was not found"):
        await command.answer(ASK, "s-1")


@pytest.mark.process
async def test_a_file_that_is_no_command(tmp_path):
    """What the system refuses to run is told in the system's words."""
    file = tmp_path / "data"
    file.write_bytes(b"\x00\x01")
    file.chmod(0o755)
    command = CommandModel([str(file)])

    command.check()
    with pytest.raises(BadSetting, match="cannot be run: Exec format error"):
        await command.answer(ASK, "s-1")


WRONG = {
    "empty": (lambda: CommandModel(""), "it is empty"),
    "blank": (lambda: CommandModel(["", "x"]), "it is empty"),
    "quote": (lambda: CommandModel("claude 'p"), "is not a command: no closing quotation"),
    "none at once": (lambda: CommandModel("cat", at_once=0), "must be an integer ≥ 1, got 0"),
    "no time": (
        lambda: CommandModel("cat", timeout=0),
        "must be a number > 0, got 0",
    ),
}


@pytest.mark.parametrize(("make", "told"), WRONG.values(), ids=WRONG)
def test_what_is_no_command_is_refused(make, told):
    """A command that can never work is refused when it is made."""
    with pytest.raises(BadSetting) as caught:
        make()

    assert told in str(caught.value)


def test_it_says_what_it_is():
    """Its repr is the command, as one would type it."""
    assert repr(CommandModel(["llm", "-m", "a b"])) == """CommandModel("llm -m 'a b'")"""
