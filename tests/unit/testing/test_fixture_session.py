"""What a test does with the kit: prepared answers, stand-ins, people, time, and what it says should
be so.
"""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everhold as eh
from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.testing import Kit, NetworkRefused, NotReplayed

COUNT: list[int] = []


def send(order: str) -> str:
    return socket.gethostbyname(f"{order}.example.com")


@eh.program
async def refund(ctx: eh.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}?"):
        return "declined"
    return f"{await ctx.call(send, order)}: {reason}"


@eh.program
async def dice(ctx: eh.Context) -> float:
    return ctx.random()


@eh.program
async def counting(ctx: eh.Context) -> str:
    COUNT.append(1)
    return await ctx.llm(f"number {len(COUNT)}")


@eh.program
async def peeking(ctx: eh.Context) -> str:
    return Path(__file__).read_text()


@eh.program
async def hiding(ctx: eh.Context) -> str:
    try:
        return Path(__file__).read_text()
    except eh.EverholdError:
        return "nothing"


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit() as made:
        yield made
        made.checks = False


def test_a_function_answers(kit: Kit) -> None:
    kit.answers(lambda query: query.prompt.upper())
    kit.start(refund(order="a7"))
    assert kit.decline().result == "declined"
    assert kit.last.asked == ["Why did a7 come back?"]


def test_answers_given_later_are_for_what_is_open_already(kit: Kit) -> None:
    session = kit.start(refund(order="7"))
    session.assert_waits_for("Why did 7*")
    kit.answers(["it broke"])
    session.assert_waits_for("Refund 7?")


def test_a_recorded_session_answers(kit: Kit, tmp_path: Path) -> None:
    """Models, people and calls: whatever was answered there, at the same place."""
    kit.calls(send="sent")
    kit.start(refund(order="7"), answers=["it broke"])
    kit.approve()
    kit.runtime.archive.export(tmp_path / "recorded.jsonl", [kit.last.session_id])
    with Kit(folder=tmp_path) as other:
        other.answers("recorded.jsonl", people=True)
        assert other.run(refund(order="7")) == "sent: it broke"


def test_a_question_that_was_not_recorded_fails_with_what_was_asked(
    kit: Kit, tmp_path: Path
) -> None:
    kit.start(refund(order="7"))
    kit.runtime.archive.export(tmp_path / "recorded.jsonl", [kit.last.session_id])
    kit.answers(tmp_path / "recorded.jsonl")
    kit.start(refund(order="7")).assert_failed("*recorded.jsonl has no answer for q-0*Why did 7*")


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-4-6", eh.CommandModel("claude -p")])
def test_a_real_model_is_refused(kit: Kit, model: object) -> None:
    with pytest.raises(BadSetting, match="a real model; a test takes"):
        kit.answers(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["anthropic:claude-sonnet-4-6", eh.CommandModel("cat")])
def test_a_real_model_is_refused_to_other_runtimes_of_the_test_too(kit: Kit, model: Any) -> None:
    with pytest.raises(BadSetting, match="may not ask; prepare its answers instead"):
        eh.run(refund(order="7"), database="memory://", llm=model)
    assert kit.sessions == []


@pytest.mark.parametrize("setting", ['llm = "anthropic:claude-sonnet-4-6"', 'answer_with = "cat"'])
def test_a_real_model_in_the_settings_is_refused_too(
    kit: Kit,
    setting: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from everhold.cli.app import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "everhold.toml").write_text(f'database = "sqlite:///app.db"\n{setting}\n')
    (tmp_path / "asks.py").write_text(
        "import everhold\n\n@everhold.program\nasync def asks(ctx):\n    await ctx.llm('?')\n"
    )
    assert main(["run", "asks.py:asks"]) == 2
    assert "[bad_setting]" in capsys.readouterr().err
    assert not (tmp_path / "app.db").exists()


def test_a_command_that_was_made_ready_before_is_refused_when_it_is_asked(kit: Kit) -> None:
    """The fixture may come after a runtime: the question stays open for whoever may answer it."""
    with pytest.raises(BadSetting, match="may not ask"):
        asyncio.run(eh.CommandModel("cat").answer(Query(0, "0:0"), "s-1"))


@pytest.mark.process
def test_a_real_model_may_be_asked_when_the_test_is_over() -> None:
    with Kit():
        pass
    assert (
        asyncio.run(eh.CommandModel("cat").answer(Query(0, "0:0", prompt="hello"), "s-1"))
        == "hello"
    )


def test_a_fork_throws_the_same_dice_in_every_run() -> None:
    def ids() -> list[str]:
        with Kit() as kit:
            first = kit.start(refund(order="7"))
            kit.runtime.fork(first.session_id)
            return [session.session_id.rpartition("-")[2] for session in kit.sessions]

    assert ids() == ids()


def test_the_network_is_refused_to_what_programs_call(kit: Kit) -> None:
    kit.start(refund(order="7"), answers=["it broke"])
    kit.approve().assert_failed("*connects to '7.example.com'*")
    with pytest.raises(NetworkRefused):
        send("7")


def test_a_stand_in_may_be_a_value_a_function_or_an_error(kit: Kit) -> None:
    kit.answers(["a", "b", "c"])
    for stand_in, end in (
        ("sent", "sent: a"),
        (lambda order: order * 2, "77: b"),
        (OSError("full"), None),
    ):
        kit.calls(send=stand_in)
        kit.start(refund(order="7"))
        assert kit.approve().error == ("AnswerFailed: OSError: full" if end is None else None)
        assert end is None or kit.last.result == end
    assert kit.called == ["send"] * 3


def test_dice_fall_the_same_in_every_run(kit: Kit) -> None:
    with Kit() as other:
        assert kit.run(dice()) == other.run(dice())
    assert kit.run(dice()) != kit.run(dice())


def test_after_a_restart_a_session_goes_on_from_its_journal(kit: Kit) -> None:
    session = kit.start(refund(order="7"), answers=["it broke"])
    kit.restart()
    assert session.decline().result == "declined"


def test_a_program_with_a_memory_of_its_own_is_found(kit: Kit) -> None:
    kit.run(counting(), answers=["x"])
    with pytest.raises(
        NotReplayed, match=r"step 0 \(q-0, .*q-0 has another prompt: recorded 'number 1'"
    ):
        kit.check_replays()


def test_a_file_that_a_program_reads_is_found_though_nobody_looks(kit: Kit) -> None:
    kit.start(peeking())
    with pytest.raises(NotReplayed, match=r"step 0 .*read_text cannot be used inside a program"):
        kit.check_replays()


def test_a_refusal_that_a_program_swallows_is_found(kit: Kit) -> None:
    kit.start(hiding()).assert_returned("nothing")
    with pytest.raises(
        NotReplayed,
        match=r"step 0 .*opens a file at test_fixture_session\.py:\d+ \(open\); use ctx\.call",
    ):
        kit.check_replays()


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            lambda session: session.assert_asked("Refund*"),
            "did not ask 'Refund\\*'. Its questions:\n  q-0 llm 'Why did 7",
        ),
        (lambda session: session.assert_asked("Why*", times=2), "asked 1 times, not 2, 'Why"),
        (lambda session: session.assert_not_asked("Why*"), "it asked 'Why\\*'"),
        (
            lambda session: session.assert_waits_for("Refund*"),
            "does not wait for 'Refund\\*': it waits for llm",
        ),
        (
            lambda session: session.assert_returned("x"),
            "has not returned: it waits for llm 'Why did 7",
        ),
        (lambda session: session.assert_failed(), "did not fail"),
        (lambda session: session.approve(), "no open approval: it waits for llm"),
        (lambda session: session.result, "has not ended: it waits for llm"),
    ],
)
def test_a_claim_that_is_wrong_says_how_it_is(kit: Kit, claim, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        claim(kit.start(refund(order="7")))


async def test_it_works_in_an_async_test(kit: Kit) -> None:
    assert kit.run(dice()) < 1
