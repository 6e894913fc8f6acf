"""A question that no model here can answer: the reason reaches the caller, and goes when it is
repaired.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold.errors import ProviderUnconfigured, TurnWaiting
from everhold.models import Answerer

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
    assert "could not be answered: anthropic cannot be used" in said("show", session_id)
    explained = json.loads(said("explain", session_id, "--json"))
    assert [one["code"] for one in explained["blocked"].values()] == ["provider_unconfigured"]
