"""A question that no model here can answer: the reason reaches the caller, and goes when it is
repaired.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.agents import TurnFailed
from everhold.errors import (
    BadSetting,
    ProviderMismatch,
    ProviderUnavailable,
    ProviderUnconfigured,
    TurnWaiting,
)
from everhold.models import Answerer
from everhold.testing import crash_everywhere

HINT = "Set the variable ANTHROPIC_API_KEY."
stores = pytest.mark.parametrize("kind", ["memory", "sqlite"])


class Keyed(Answerer):
    """A model that needs a key, which a test sets."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.asked = 0

    async def answer(self, query: Any, session_id: str) -> Any:
        self.asked += 1
        if not self.key:
            raise ProviderUnconfigured("anthropic", "there is no key", HINT)
        return f"answered with {self.key}"


@everhold.program
async def capital(ctx: everhold.Context) -> str:
    return await ctx.llm("The capital of France?")


@everhold.program
async def two(ctx: everhold.Context) -> list[str]:
    return [await ctx.llm("one?"), await ctx.llm("two?")]


talker = everhold.Agent("anthropic:claude-sonnet-4-6", instructions="Talk.", name="provider_talker")


def url(kind: str, folder: Path) -> str:
    return "memory://" if kind == "memory" else f"sqlite:///{folder}/a.db"


@asynccontextmanager
async def waiting(where: str, model: Keyed) -> AsyncIterator[tuple[Any, Any, Any]]:
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(talker, "k")
        yield runtime, session, await session.send("hello", id="i", wait=8)


@stores
async def test_the_reason_is_told_everywhere_the_question_is(kind: str, tmp_path: Path) -> None:
    """In the turn, the status, the inbox, the snapshot's queries, `explain` and on the wire."""
    async with waiting(url(kind, tmp_path), Keyed()) as (runtime, session, turn):
        assert turn.waiting and turn.blocked.code == "provider_unconfigured"
        assert turn.blocked.message == "anthropic cannot be used: there is no key"
        assert turn.blocked.hint == HINT

        status = await runtime.status(session)
        assert [one.blocked for one in status.queries if one.kind == "llm"] == [turn.blocked]
        (listed,) = [one for one in await runtime.inbox() if one.kind == "llm"]
        assert listed.blocked == turn.blocked

        found = await runtime.explain(session)
        assert found.blocked == {turn.queries[0].id: turn.blocked}
        assert any("there is no key [provider_unconfigured]" in one for one in found.because)
        assert any(HINT in one for one in found.moves)

        with pytest.raises(TurnWaiting, match="there is no key") as refused:
            await session.compact()
        assert HINT in refused.value.hint


@stores
async def test_the_error_of_a_run_that_waits_says_why(kind: str, tmp_path: Path) -> None:
    async with everhold.open(url(kind, tmp_path), llm=Keyed()) as runtime:
        with pytest.raises(everhold.Waiting, match="there is no key") as caught:
            await runtime.run(capital(), key="k")

    assert caught.value.blocked.code == "provider_unconfigured"
    assert caught.value.hint.startswith(HINT)


async def test_the_reason_outlives_the_process(tmp_path: Path) -> None:
    """Another process that only reads finds it in the database."""
    async with waiting(url("sqlite", tmp_path), Keyed()) as (_, session, turn):
        kept = turn.blocked
    async with everhold.open(url("sqlite", tmp_path), llm=[], recover=False) as runtime:
        (query,) = [one for one in await runtime.inbox() if one.kind == "llm"]
        assert query.blocked == kept
        assert (await runtime.explain(session.id)).blocked == {query.id: kept}


@stores
async def test_a_key_that_is_set_later_answers_and_the_reason_is_gone(
    kind: str, tmp_path: Path
) -> None:
    """In the same process, when the caller asks for it."""
    model = Keyed()
    async with waiting(url(kind, tmp_path), model) as (runtime, session, _):
        model.key = "k1"
        await runtime.move(session)
        turn = await session.turn("i", wait=8)
        assert turn.text == "answered with k1" and turn.blocked is None
        assert (await runtime.explain(session)).blocked == {}
        assert [one for one in await runtime.inbox() if one.kind == "llm"] == []
        again = await session.send("more", wait=8)
        assert again.text == "answered with k1"
        assert await runtime.archive.verify() == []


async def test_a_worker_with_a_key_answers_and_the_reason_is_gone(tmp_path: Path) -> None:
    async with waiting(url("sqlite", tmp_path), Keyed()) as (_, session, turn):
        assert turn.blocked is not None
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k2"), recover=False) as worker:
        working = asyncio.ensure_future(worker.workers.run(poll=0.05))
        async with asyncio.timeout(20):
            while (await worker.explain(session.id)).blocked:
                await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        held = await worker.session(talker, "k")
        assert (await held.turn("i", wait=8)).text == "answered with k2"


@stores
async def test_an_answer_by_hand_drops_the_reason(kind: str, tmp_path: Path) -> None:
    """The next question has its own reason, or none."""
    model = Keyed()
    async with everhold.open(url(kind, tmp_path), llm=model) as runtime:
        first = await runtime.start(two(), key="k")
        assert first.queries[0].blocked.code == "provider_unconfigured"
        model.key = "k3"
        await runtime.answer(first.queries[0], "by hand")
        assert await runtime.run(two(), key="k") == ["by hand", "answered with k3"]


@stores
async def test_a_fork_asks_for_itself(kind: str, tmp_path: Path) -> None:
    model = Keyed()
    async with everhold.open(url(kind, tmp_path), llm=model) as runtime:
        first = await runtime.start(capital(), key="k")
        model.key = "k4"
        forked = await runtime.fork(first.session_id)
        assert forked.result == "answered with k4"
        assert (await runtime.status(first.session_id)).queries[0].blocked is not None


@pytest.mark.process
def test_the_command_line_says_why_a_question_is_open(tmp_path: Path) -> None:
    """`inbox`, `show` and `explain`, as text and as JSON."""

    async def ask() -> str:
        async with waiting(url("sqlite", tmp_path), Keyed()) as (_, session, _turn):
            return str(session.id)

    session_id = asyncio.run(ask())

    def said(*words: str) -> str:
        command = [sys.executable, "-m", "everhold", *words, "-d", str(tmp_path / "a.db")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    (row,) = json.loads(said("inbox", "--kind", "llm", "--json"))["queries"]
    assert {name: row["blocked"][name] for name in ("code", "error", "hint")} == {
        "code": "provider_unconfigured",
        "error": "anthropic cannot be used: there is no key",
        "hint": HINT,
    }
    for words in (("inbox", "--kind", "llm"), ("show", session_id)):
        assert "could not be answered: anthropic cannot be used" in said(*words)
    explained = json.loads(said("explain", session_id, "--json"))
    assert explained["blocked"] == {row["query_id"]: row["blocked"]}


# ---- on_unavailable


@everhold.program
async def careful(ctx: everhold.Context) -> list[str]:
    try:
        return [await ctx.llm("one?", on_unavailable="fail")]
    except everhold.AnswerFailed as error:
        return [error.kind, error.fix]


@stores
async def test_a_turn_fails_with_the_reason_if_it_may_not_wait(kind: str, tmp_path: Path) -> None:
    async with everhold.open(url(kind, tmp_path), llm=Keyed(), on_unavailable="fail") as runtime:
        session = await runtime.session(talker, "k")
        turn = await session.send("hello", wait=8)
        assert isinstance(turn.outcome, TurnFailed)
        assert turn.outcome.error == "anthropic cannot be used: there is no key"
        assert (turn.outcome.code, turn.outcome.hint) == ("provider_unconfigured", HINT)
        assert [one for one in await runtime.inbox() if one.kind == "llm"] == []


@stores
async def test_a_call_fails_with_the_reason_if_it_may_not_wait(kind: str, tmp_path: Path) -> None:
    """Recorded like any answer: it is replayed, not asked again."""
    model = Keyed()
    async with everhold.open(url(kind, tmp_path), llm=model) as runtime:
        assert await runtime.run(careful(), key="k") == ["provider_unconfigured", HINT]
        asked = model.asked
        assert await runtime.run(careful(), key="k") == ["provider_unconfigured", HINT]
        assert model.asked == asked


async def test_the_question_decides_before_its_model_and_that_before_the_runtime(
    tmp_path: Path,
) -> None:
    patient = everhold.Agent("anthropic:x", on_unavailable="wait", name="provider_patient")
    hasty = everhold.Agent("anthropic:x", on_unavailable="fail", name="provider_hasty")
    model = Keyed()
    model.on_unavailable = "fail"
    async with everhold.open("memory://", llm=model, on_unavailable="wait") as runtime:
        with pytest.raises(everhold.Failed, match="there is no key"):
            await runtime.run(capital())
        assert (await (await runtime.session(patient, "p")).send("hi", wait=8)).waiting
    async with everhold.open("memory://", llm=Keyed()) as runtime:
        failed = await (await runtime.session(hasty, "h")).send("hi", wait=8)
        assert failed.outcome.code == "provider_unconfigured"
        held = await runtime.session(hasty, "o")
        turn = await held.send("hi", wait=8, options={"on_unavailable": "wait"})
        assert turn.blocked.code == "provider_unconfigured"


async def test_without_any_model_a_question_waits_or_fails() -> None:
    async with everhold.open("memory://") as runtime:
        assert (await runtime.start(capital())).queries
    async with everhold.open("memory://", on_unavailable="fail") as runtime:
        with pytest.raises(everhold.Failed, match="names no model"):
            await runtime.run(capital())


async def test_what_is_answered_outside_never_fails_for_want_of_a_model() -> None:
    """`llm=None` says that a host or a person answers."""
    async with everhold.open("memory://", llm=None, on_unavailable="fail") as runtime:
        status = await runtime.start(capital())
        assert (await runtime.answer(status.queries[0], "Paris")).result == "Paris"


async def test_a_question_for_a_person_waits_always() -> None:
    @everhold.program
    async def sure(ctx: everhold.Context) -> bool:
        return await ctx.approval("sure?")

    async with everhold.open("memory://", llm=Keyed(), on_unavailable="fail") as runtime:
        assert (await runtime.start(sure())).queries[0].kind == "approval"


async def test_the_settings_decide_and_a_wrong_word_is_refused(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "everhold.toml"
    settings.write_text('on_unavailable = "fail"\n')
    async with everhold.open("memory://", llm=Keyed()) as runtime:
        with pytest.raises(everhold.Failed):
            await runtime.run(capital())
    async with everhold.open("memory://", llm=Keyed(), on_unavailable="wait") as runtime:
        with pytest.raises(everhold.Waiting):
            await runtime.run(capital())
    settings.write_text('on_unavailable = "fails"\n')
    with pytest.raises(BadSetting, match=r"everhold\.toml: 'fails' is not one of"):
        everhold.open("memory://")
    for wrong in (
        lambda: everhold.open("memory://", on_unavailable="no"),
        lambda: everhold.Model("anthropic:x", on_unavailable="no"),
        lambda: everhold.Agent(on_unavailable="no"),
    ):
        with pytest.raises(BadSetting, match="on_unavailable"):
            wrong()


@pytest.mark.process
def test_the_command_line_decides(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "import everhold\n\n@everhold.program\n"
        "async def p(ctx):\n    return await ctx.llm('one?')\n"
    )

    def ran(*words: str) -> int:
        command = [sys.executable, "-m", "everhold", "run", "p.py:p", "-d", "a.db", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, stdin=subprocess.DEVNULL, check=False
        ).returncode

    assert (ran(), ran("--on-unavailable", "wait"), ran("--on-unavailable", "fail")) == (10, 10, 1)


# ---- wrong names


@pytest.mark.parametrize("name", ["", "claude", "anthropic:", "Anthropic:x", "anthropic:x|"])
def test_a_malformed_model_is_refused_when_the_agent_is_made(name: str) -> None:
    with pytest.raises(BadSetting, match="provider:name"):
        everhold.Agent(name)


async def test_an_unknown_provider_is_refused_before_a_session_is_begun() -> None:
    """Also that of a subagent, and what an input or `configure` names."""
    wrong = everhold.Agent("antropic:claude", name="provider_wrong")
    boss = everhold.Agent("anthropic:x", subagents=[wrong], name="provider_boss")
    async with everhold.open("memory://") as runtime:
        for agent in (wrong, boss):
            with pytest.raises(ProviderUnavailable, match="no provider 'antropic'") as caught:
                await runtime.session(agent, "k")
            assert caught.value.hint == "Did you mean anthropic?"
        assert await runtime.sessions() == []
        session = await runtime.session(talker, "k")
        for refused in (
            lambda: session.send("hi", options={"model": "nosuch:x"}),
            lambda: session.enqueue("hi", options={"model": "nosuch:x"}),
            lambda: session.configure({"model": "nosuch:x"}),
        ):
            with pytest.raises(ProviderUnavailable, match="nosuch"):
                await refused()
        assert await session.turns() == []


async def test_a_forbidden_provider_is_refused_before_a_session_is_begun() -> None:
    model = everhold.Model(only=["openai"])
    async with everhold.open("memory://", llm=model) as runtime:
        with pytest.raises(ProviderMismatch, match="only openai is allowed here") as caught:
            await runtime.session(talker, "k")
        assert (caught.value.expected, caught.value.actual) == ("openai", "anthropic")


async def test_prepared_answers_take_any_name() -> None:
    """As they answer for every model."""
    other = everhold.Agent("local:anything", name="provider_local")
    async with everhold.open("memory://", llm=["hello"]) as runtime:
        assert (await (await runtime.session(other, "k")).send("hi")).text == "hello"


async def test_the_settings_name_a_provider_that_exists(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "everhold.toml").write_text('llm = "antropic:claude"\n')
    with pytest.raises(ProviderUnavailable, match="antropic"):
        async with everhold.open("memory://"):
            pass


# ---- a conversation remembers its provider


def speaker(model: str | None) -> everhold.Agent:
    """The same agent, as a later version of its module may define it."""
    return everhold.Agent(model, instructions="Talk.", name="provider_speaker")


@stores
async def test_another_provider_is_refused_until_the_caller_allows_it(
    kind: str, tmp_path: Path
) -> None:
    """What is there can be read; nothing is stored; `configure` allows it, for good."""
    async with everhold.open(url(kind, tmp_path), llm=Keyed("k")) as runtime:
        first = await runtime.session(speaker("anthropic:x"), "c")
        await first.send("one", wait=8)
        second = await runtime.session(speaker("openai:y"), "c")
        for refused in (second.send, second.enqueue):
            with pytest.raises(ProviderMismatch, match="held with anthropic") as caught:
                await refused("two")
        assert (caught.value.session_id, caught.value.expected, caught.value.actual) == (
            first.id,
            "anthropic",
            "openai",
        )
        assert "configure" in caught.value.hint
        assert len(await second.history()) == 2 and len(await second.turns()) == 1

        once = await second.send("two", options={"model": "openai:y"}, wait=8)
        assert once.text == "answered with k"
        with pytest.raises(ProviderMismatch):
            await second.send("three")
        await second.configure({"model": "openai:y"})
        assert (await second.send("three", wait=8)).text == "answered with k"
        third = await runtime.session(speaker("openai:z"), "c")
        assert (await third.send("four", wait=8)).text == "answered with k"


async def test_the_provider_is_remembered_by_another_process_and_by_a_fork(
    tmp_path: Path,
) -> None:
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k")) as runtime:
        first = await runtime.session(speaker("anthropic:x"), "c")
        await first.send("one", wait=8)
        await first.fork(key="f")
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k")) as runtime:
        for key in ("c", "f"):
            held = await runtime.session(speaker("openai:y"), key)
            with pytest.raises(ProviderMismatch):
                await held.send("two")
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k")) as runtime:
        for key in ("c", "f"):
            back = await runtime.session(speaker("anthropic:other"), key)
            assert (await back.send("two", wait=8)).text == "answered with k"


async def test_an_input_that_was_queued_settles_as_a_mismatch(tmp_path: Path) -> None:
    """Nobody is there to get the error: the turn fails with it, and a replay says the same."""
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k")) as runtime:
        first = await runtime.session(speaker("anthropic:x"), "c")
        await first.send("one", wait=8)
    async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k"), recover=False) as runtime:
        first = await runtime.session(speaker("anthropic:x"), "c")
        await first.enqueue("two", key="two", available_at=time.time() + 0.5)
    for agent, turns in ((speaker("openai:y"), 2), (speaker("anthropic:x"), 2)):
        async with everhold.open(url("sqlite", tmp_path), llm=Keyed("k")) as runtime:
            held = await runtime.session(agent, "c")
            turn = await held.turn("two", wait=8)
            assert turn.outcome.code == "provider_mismatch" and "configure" in turn.outcome.hint
            assert len(await held.turns()) == turns
            assert await runtime.archive.verify() == []


async def test_an_agent_without_a_model_changes_no_provider() -> None:
    async with everhold.open("memory://", llm=Keyed("k")) as runtime:
        for model in (None, "anthropic:x", None, "anthropic:y", "anthropic:z|openai:a", "openai:b"):
            session = await runtime.session(speaker(model), "c")
            assert (await session.send("hi", wait=8)).text == "answered with k"


# ---- crashes


@everhold.program
async def patient(ctx: everhold.Context) -> list[str]:
    """Waits for a model that never comes, then asks another question."""
    return [await ctx.llm("one?", timeout=60, default="none"), *await ctx.run(careful())]


def keyless(query: Any) -> str:
    raise ProviderUnconfigured("anthropic", "there is no key", HINT)


def test_a_crash_at_any_commit_changes_nothing() -> None:
    """Neither where the reason is stored while the question waits, nor where it is the answer."""
    report = crash_everywhere(patient(), answers=keyless)
    assert report.result == ["none", "provider_unconfigured", HINT]
    assert not report.repeated
