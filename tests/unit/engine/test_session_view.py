"""Sessions for people to look at: steps, transcripts, snapshots."""

import pytest

import everhold
from everhold.core.status import Returned
from everhold.errors import BadSetting, UnknownSession
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock


@everhold.program
async def essay(ctx: everhold.Context, topic: str) -> str:
    ctx.log(f"about {topic}")
    ctx.progress(1, 2, "drafting")
    draft = await ctx.llm(f"Draft on {topic}", system="Be brief.")
    ctx.progress(2, 2)
    return str(await ctx.llm(f"Mend {draft}"))


@everhold.program
async def racing(ctx: everhold.Context) -> str:
    import asyncio

    try:
        async with asyncio.timeout(60):
            return str(await ctx.llm("Quick?"))
    except TimeoutError:
        ctx.log("too late", "warn")
        return str(await ctx.input("Then you?"))


def opened(**options):
    return Runtime(MemoryStore(), clock=ManualClock(), recover=False, **options)


async def test_a_step_is_what_was_handed_over_and_asked_in_return():
    """Numbered from the start; its end is in the last."""
    async with opened() as runtime:
        status = await runtime.start(essay(topic="tea"))
        session_id = status.session_id
        for words in ("a draft", "the end"):
            status = await runtime.answer(session_id, words)
        begin, middle, end = await runtime.steps(session_id)

        assert [query.prompt for query in begin.asked] == ["Draft on tea"]
        assert [entry.message for entry in begin.log] == ["about tea"]
        assert [answer.value for answer in middle.answers] == ["a draft"]
        assert (begin.n, middle.n, end.n, end.outcome) == (0, 1, 2, Returned("the end"))


async def test_a_step_tells_of_timers_withdrawals_and_cancels():
    """What was not answered left the inbox, and the step says why."""
    async with opened() as runtime:
        status = await runtime.start(racing())
        runtime.clock.advance(61)
        await runtime.engine.moves.move(status.session_id)
        await runtime.cancel(status.session_id, "enough")
        _, fired, cancelled = await runtime.steps(status.session_id)

        assert (fired.fired, fired.withdrawn, cancelled.cancel) == (True, ["q-0"], "enough")


async def test_a_retry_is_marked():
    """Its reply stands in place of the failure before it."""
    async with opened() as runtime:
        status = await runtime.start(unsure())
        await runtime.answer(status.session_id, "x")
        FAILING.clear()
        await runtime.retry(status.session_id)

        assert [step.retry for step in await runtime.steps(status.session_id)] == [
            False,
            False,
            True,
        ]
        FAILING.append(1)


FAILING = [1]


@everhold.program
async def unsure(ctx: everhold.Context) -> str:
    first = await ctx.llm("One?")
    if FAILING:
        raise ValueError("no")
    return str(await ctx.llm(f"Two, after {first}?"))


async def test_a_transcript_is_what_models_were_asked_and_said():
    """In the order asked, with null for what nobody has answered, and an error where one was
    given.
    """
    async with opened() as runtime:
        status = await runtime.start(essay(topic="tea"))
        await runtime.answer(status.session_id, "a draft")
        assert await runtime.transcript(status.session_id) == [
            {
                "query_id": "q-0",
                "prompt": "Draft on tea",
                "system": "Be brief.",
                "response": "a draft",
            },
            {"query_id": "q-1", "prompt": "Mend a draft", "system": None, "response": None},
        ]

        await runtime.answer(status.session_id, error="overloaded")
        assert (await runtime.transcript(status.session_id))[1]["error"] == "overloaded"


async def test_people_are_not_in_a_transcript():
    """Only models are; a conversation is told as its messages."""
    async with opened() as runtime:
        status = await runtime.start(talking())
        await runtime.answer(status.session_id, "hello")
        told = await runtime.transcript(status.session_id)

        assert [(one["query_id"], one["messages"]) for one in told] == [
            ("q-1", [{"role": "user", "content": "hello"}])
        ]


@everhold.program
async def talking(ctx: everhold.Context) -> str:
    said = await ctx.input("Say something.")
    return str(await ctx.llm(messages=[{"role": "user", "content": said}]))


async def test_a_snapshot_has_the_facts_of_one_session():
    """Times in milliseconds, counters, the latest log and progress; open questions are only
    counted.
    """
    async with opened() as runtime:
        status = await runtime.start(essay(topic="tea"), budget={"max_llm_calls": 5})
        runtime.clock.advance(2)
        shot = await runtime.snapshot(status.session_id)
        now = int(runtime.clock.now() * 1000)

        assert (shot["state"], shot["phase"], shot["pending_queries"]) == ("paused", "paused", 1)
        assert (shot["started_at"], shot["last_activity_at"], shot["strategy"]) == (
            now - 2000,
            now - 2000,
            "essay",
        )
        metrics = shot["metrics"]
        assert (metrics["elapsed_ms"], metrics["llm_calls"], metrics["rounds"]) == (2000, 1, 0)
        assert metrics["progress"] == {"step": 1, "total": 2, "message": "drafting"}
        assert [entry["message"] for entry in metrics["recent_logs"]] == ["about tea"]
        assert metrics["budget_remaining"]["llm_calls"] == 4
        assert metrics["tokens"]["current_query"]["query_id"] == "q-0"
        assert "pending" not in shot and "conversation_history" not in metrics


async def test_open_questions_and_history_are_shown_when_asked_for():
    """As much of a question as the filter lets through, and the newest exchanges with what they
    cost.
    """
    async with opened() as runtime:
        status = await runtime.start(essay(topic="tea"))
        await runtime.answer(
            status.session_id, "a draft", query_id="q-0", usage={"prompt_tokens": 9}
        )
        shot = await runtime.snapshot(
            status.session_id, pending_filter="preview", include_history=True
        )

        assert shot["pending"] == [
            {"query_id": "q-1", "max_tokens": 1024, "prompt_preview": "Mend a draft"}
        ]
        now = int(runtime.clock.now() * 1000)
        assert shot["metrics"]["conversation_history"] == [
            {
                "query_id": "q-0",
                "prompt": "Draft on tea",
                "response": "a draft",
                "prompt_tokens": 9,
                "response_tokens": 2,
                "started_at": now,
                "completed_at": now,
            },
            {
                "query_id": "q-1",
                "prompt": "Mend a draft",
                "response": None,
                "prompt_tokens": 3,
                "response_tokens": None,
                "started_at": now,
                "completed_at": None,
            },
        ]


async def test_no_sessions_are_no_sessions():
    """An empty database has the shortest snapshot."""
    async with opened() as runtime:
        assert await runtime.snapshot() == {"active_sessions": 0, "sessions": []}


async def test_those_that_live_come_before_those_that_have_ended():
    """A long list of ended sessions hides nobody who waits, and only the living are counted."""
    async with opened() as runtime:
        old = await runtime.start(essay(topic="old"))
        for _ in range(3):
            runtime.clock.advance(1)
            ended = await runtime.start(essay(topic="new"))
            await runtime.cancel(ended.session_id)
        shown = await runtime.snapshot(limit=2)

        assert [one["session_id"] for one in shown["sessions"]] == [
            old.session_id,
            ended.session_id,
        ]
        assert (shown["active_sessions"], shown["sessions"][1]["phase"]) == (1, "cancelled")


async def test_what_is_not_there_and_what_is_no_filter_are_refused():
    """Typed, and with the word that was wrong."""
    async with opened() as runtime:
        with pytest.raises(UnknownSession):
            await runtime.snapshot("s-nobody")
        with pytest.raises(BadSetting, match="unknown pending_filter preset 'all'"):
            await runtime.snapshot(pending_filter="all")
