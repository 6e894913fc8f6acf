"""Questions that were left open are answered once somebody is here who answers."""

import asyncio
from pathlib import Path

import pytest

import everhold
from everhold.errors import NotAllowed
from everhold.movers.workers import WorkerEvent


@everhold.program
async def pair(ctx: everhold.Context) -> list[str]:
    return await ctx.llm_batch(["one?", "two?"])


@everhold.program
async def person(ctx: everhold.Context) -> list[object]:
    return [await ctx.llm("model?"), await ctx.approval("sure?")]


async def test_a_model_that_comes_later_answers_what_waited(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        with pytest.raises(everhold.Waiting):
            await runtime.run(pair(), key="k")
    async with everhold.open(tmp_path / "a.db", llm={"one?": "1", "two?": "2"}) as runtime:
        assert await runtime.run(pair(), key="k") == ["1", "2"]
        assert await runtime.archive.verify() == []


async def test_what_a_person_answered_meanwhile_is_not_asked(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        status = await runtime.start(pair(), key="k")
        await runtime.answer(status.session_id, "by hand", query_id="q-0")
    script = everhold.ScriptModel(["by a model"])
    async with everhold.open(tmp_path / "a.db", llm=script) as runtime:
        assert await runtime.run(pair(), key="k") == ["by hand", "by a model"]
    assert [query.prompt for query in script.asked] == ["two?"]


async def test_a_question_for_a_person_stays_open(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        await runtime.start(person(), key="k")
    async with everhold.open(tmp_path / "a.db", llm=["hello"]) as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(person(), key="k")
    assert [query.prompt for query in waiting.value.queries] == ["sure?"]


talker = everhold.Agent(instructions="Talk.", name="adopt_talker")


@pytest.mark.parametrize("by", ["key", "id"])
async def test_a_conversation_that_is_asked_for_is_answered_by_the_model_of_who_asks(
    tmp_path: Path, by: str
) -> None:
    """Also one whose questions are answered outside, whether it is asked for by its key or by its
    id.
    """
    async with everhold.open(tmp_path / "a.db", llm=None) as runtime:
        session_id = (await runtime.session(talker, "c")).id
    async with everhold.open(tmp_path / "a.db", llm=["hello"]) as runtime:
        session = await runtime.session(talker, "c" if by == "key" else session_id)
        assert (await session.send("Hi.", wait=20)).text == "hello"


# ---- which questions a worker finds


@everhold.program
async def first_alice(ctx: everhold.Context) -> list[str]:
    return [await ctx.llm("For Alice?", to="alice"), await ctx.llm("For a model?")]


@everhold.program
async def asks(ctx: everhold.Context) -> str:
    return await ctx.llm("What?")


class Refusing:
    """A model that is not set up: each time it is asked, it says so."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, query: everhold.Query) -> str:
        self.asked += 1
        await asyncio.sleep(0)
        raise NotAllowed("there is no key", "Set one.")


async def test_a_question_after_one_for_a_person_is_found_by_a_worker(tmp_path: Path) -> None:
    """The answer for which somebody is named takes its row out of the inbox, and the next question
    is a worker's.
    """
    async with everhold.open(tmp_path / "a.db") as runtime:
        status = await runtime.start(first_alice(), key="k")
        assert isinstance(status, everhold.Paused)
        await runtime.answer(status.queries[0], "by Alice")
        assert [query.prompt for query in await runtime.inbox()] == ["For a model?"]
        assert await runtime.archive.verify() == []
    async with everhold.open(tmp_path / "a.db", llm=["by a model"], recover=False) as runtime:
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(status.session_id)).state == "completed"


async def test_a_question_that_was_imported_is_found_by_a_worker(tmp_path: Path) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        status = await runtime.start(asks())
        await runtime.archive.export(tmp_path / "out.jsonl")
    async with everhold.open(tmp_path / "b.db", llm=["this"], recover=False) as runtime:
        await runtime.archive.import_(tmp_path / "out.jsonl")
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(status.session_id)).state == "completed"


async def test_a_model_that_cannot_answer_is_asked_once(tmp_path: Path) -> None:
    """The question stays open for others; to run the program again asks again."""
    async with everhold.open(tmp_path / "a.db") as runtime:
        session_id = (await runtime.start(asks(), key="k")).session_id
    refusing = Refusing()
    events: list[WorkerEvent] = []
    async with everhold.open(tmp_path / "a.db", llm=refusing, recover=False) as runtime:
        worker = runtime.workers.worker(tell=events.append)
        assert (await worker.once(), worker.cannot) == (0, 1)
    assert refusing.asked == 1
    assert [one.text for one in events if one.event == "cannot"] == [
        "left to other workers: q-0 could not be answered: there is no key. Set one."
    ]
    async with everhold.open(tmp_path / "a.db", llm=refusing) as runtime:
        assert (await runtime.wait(session_id, 60)).state == "paused"
        assert (await runtime.wait(session_id, 60)).state == "paused"
        assert refusing.asked == 2
        with pytest.raises(everhold.Waiting):
            await runtime.run(asks(), key="k")
        assert refusing.asked == 3


async def test_a_worker_that_leaves_before_it_answers_says_that_work_is_left(
    tmp_path: Path,
) -> None:
    async with everhold.open(tmp_path / "a.db") as runtime:
        await runtime.start(asks())
    async with everhold.open(tmp_path / "a.db", llm=["this"], recover=False) as runtime:
        assert await runtime.workers.worker().once(within=0) == 1
    async with everhold.open(tmp_path / "a.db", recover=False) as runtime:  # it has no model
        assert await runtime.workers.worker().once() == 0
