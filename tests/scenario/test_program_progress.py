"""What a program reports with `ctx.progress` is seen wherever a session is shown."""

import asyncio

import everhold
from everhold import Progress
from everhold.core.progress import MAX_HEAD_CHARS
from everhold.mcp.tool_call import LEAST_PROGRESS, ProgressNotifier
from everhold.testing.clock import ManualClock
from tests.failures import collect_failures
from tests.scenario.harness import die, dying, opened


@everhold.program
async def reads(ctx, total: int = 3, words: str = "documents of Tuesday"):
    for number in range(total):
        ctx.progress(number, total, words)
        await ctx.llm(f"document {number}")
    ctx.progress(total, total)
    return "read"


FIRST = Progress(0, 3, "documents of Tuesday")
SECOND = Progress(1, 3, "documents of Tuesday")


class Ears(everhold.Observer):
    def __init__(self):
        self.heard = []

    def paused(self, session_id, queries):
        self.heard.append(queries[0].id)

    def progressed(self, session_id, progress):
        self.heard.append(str(progress))

    def completed(self, session_id, value, metrics):
        self.heard.append(value)


async def seen(runtime, session_id):
    """Each view of a session, with the progress that it shows."""
    (info,) = [one for one in await runtime.sessions() if one.session_id == session_id]
    snapshot = await runtime.snapshot(session_id)
    explained = await runtime.explain(session_id)
    return {
        "status": (await runtime.status(session_id)).progress,
        "sessions": info.progress,
        "explain": explained.progress,
        "snapshot": Progress(**snapshot["metrics"]["progress"]),
        "a sentence": SECOND if f"Its last progress: {SECOND}" in explained.because else None,
    }


async def test_it_is_in_every_view_also_for_a_process_that_opens_the_database_later(tmp_path):
    clock = ManualClock()
    first = await dying(tmp_path, clock, recover=False)
    status = await first.start(reads(), key="k")
    assert status.progress == FIRST
    status = await first.answer(status.queries[0], "ok")
    assert status.progress == SECOND
    await die(first, clock)  # right after the commit
    async with opened(tmp_path, clock=clock, recover=False) as later:
        with collect_failures() as row:
            for view, shown in (await seen(later, status.session_id)).items():
                with row(view):
                    assert shown == SECOND


async def test_observers_hear_the_last_report_of_each_step_and_nothing_of_a_replay():
    ears = Ears()
    async with opened(cache=1, observers=[ears]) as runtime:
        status = await runtime.start(reads(total=2))
        await runtime.start(reads(total=1), key="other")  # evicts the first
        ears.heard.clear()
        while status.state == "paused":
            status = await runtime.answer(status.queries[0], "ok")
    assert ears.heard == ["1 of 2: documents of Tuesday", "q-1", "2 of 2", "read"]


async def test_a_fork_a_retry_and_a_rebuilt_session_with_a_budget_have_it():
    async with opened(cache=1) as runtime:
        status = await runtime.start(reads(), budget={"max_llm_calls": 9})
        status = await runtime.answer(status.queries[0], "ok")
        fork = await runtime.fork(status.session_id, at=0)
        assert fork.progress == FIRST
        again = await runtime.answer(status.queries[0], "ok")
        assert again.progress == Progress(2, 3, "documents of Tuesday")
        metrics = (await runtime.store.load(fork.session_id)).head.metrics
        assert metrics.progress == FIRST


@everhold.program
async def breaks(ctx):
    ctx.progress(7, 9)
    await ctx.llm("go on?")
    raise ValueError("broken")


async def test_an_ended_session_says_how_far_it_came():
    async with opened(llm=["yes"]) as runtime:
        status = await runtime.start(breaks())
        assert status.state == "failed"
        assert "Its last progress: 7 of 9" in (await runtime.explain(status)).because


async def test_a_long_message_is_short_in_listings_and_whole_in_the_journal():
    async with opened() as runtime:
        status = await runtime.start(reads(words="x" * 10_000))
        short = status.progress.message
        assert (len(short), short[-1]) == (MAX_HEAD_CHARS, "…")
        assert (await runtime.snapshot(status))["metrics"]["progress"]["message"] == "x" * 10_000


async def test_a_redacted_export_has_no_message(tmp_path):
    async with opened() as runtime:
        await runtime.start(reads())
        await runtime.archive.export(tmp_path / "out.jsonl", redact=["notes"])
        assert "Tuesday" not in (tmp_path / "out.jsonl").read_text()
        await runtime.archive.export(tmp_path / "whole.jsonl")
        assert "Tuesday" in (tmp_path / "whole.jsonl").read_text()
    async with opened() as there:
        await there.archive.import_(tmp_path / "whole.jsonl")
        (info,) = await there.sessions()
        assert info.progress == FIRST


class Client:
    """An MCP client that asked for progress notifications."""

    def __init__(self):
        self.session = self
        self.got = []
        self.more = asyncio.Event()

    async def report_progress(self, progress, total=None, message=None):
        self.got.append((progress, total, message))
        self.more.set()


@everhold.program
async def jumps(ctx):
    for step, total in ((137, 200), (138, 200), (1, 0), (140, 200)):
        ctx.progress(step, total)
        await ctx.llm("next?")


async def test_a_client_of_the_mcp_server_gets_it_with_numbers_that_only_grow():
    """The first notification of a call, such as after a resume, has what was reported before."""
    async with opened() as runtime:
        status = await runtime.start(jumps())
        client = Client()
        notifier = ProgressNotifier(client, runtime.store, status.session_id, seen=0)
        wake = asyncio.Event()
        following = asyncio.create_task(notifier.follow(wake))
        for number in range(4):
            client.more.clear()
            wake.set()
            await client.more.wait()
            if number < 3:
                status = await runtime.answer(status.queries[0], "ok")
        following.cancel()
    assert client.got == [
        (137.0, 200.0, "137 of 200"),
        (138.0, 200.0, "138 of 200"),
        (138.0 + LEAST_PROGRESS, None, "1"),
        (140.0, 200.0, "140 of 200"),
    ]
