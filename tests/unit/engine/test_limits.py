"""The gate: who may begin a job, and who goes first."""

import asyncio

import pytest

from everhold.engine.limits import Job, JobLimiter, LimiterClosed, Limits


class Queue:
    """Jobs at a gate; `inside` are those that went in, in order."""

    def __init__(self, concurrency: int = 1, **limits) -> None:
        self.began: list[str] = []  # sessions of the jobs that were let in
        self.gate = JobLimiter(concurrency, Limits(**limits), self.began.append)
        self.inside: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task] = {}

    async def come(
        self, name: str, session: str, program: str = "shop:order", tool: str = "shop:pay"
    ) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._work(name, Job(session, program, tool)))
        await asyncio.sleep(0)

    async def _work(self, name: str, job: Job) -> None:
        async with self.gate.entered(job):
            self.inside.append(name)
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)


async def test_sessions_take_turns():
    """One that always has another job goes on with them only as long as nobody waits."""
    queue = Queue()
    await queue.come("greedy-0", "greedy")
    await queue.come("greedy-1", "greedy")
    assert queue.inside == ["greedy-0", "greedy-1"]
    await queue.come("modest", "modest")
    await queue.come("greedy-2", "greedy")
    await queue.end("greedy-0")
    assert queue.inside == ["greedy-0", "greedy-1"]
    await queue.end("greedy-1")
    assert queue.inside[2:] == ["modest"]
    await queue.end("modest")
    assert queue.inside[3:] == ["greedy-2"]
    await queue.end("greedy-2")


async def test_who_was_served_last_goes_last():
    queue = Queue(session=1)
    await queue.come("a-0", "a")
    await queue.come("b-0", "b")
    await queue.come("c-0", "c")
    await queue.come("a-1", "a")
    await queue.end("a-0")
    assert queue.inside == ["a-0", "b-0"]
    await queue.come("b-1", "b")
    await queue.end("b-0")
    assert queue.inside == ["a-0", "b-0", "c-0"]
    await queue.end("c-0")
    assert queue.inside[3:] == ["a-1"]
    await queue.end("a-1")
    assert queue.inside[4:] == ["b-1"]
    await queue.end("b-1")
    assert queue.gate.running == 0


async def test_limits_hold_for_names_and_references():
    """Of a program or tool that is named by its last part or as a whole; others are free."""
    queue = Queue(9, program={"order": 2}, tool={"shop:pay": 1, "llm": 1})
    await queue.come("pay-1", "a")
    await queue.come("pay-2", "b")
    await queue.come("ask-1", "b", tool="llm")
    await queue.come("ask-2", "c", tool="llm")
    await queue.come("free", "d", program="shop:other", tool="shop:look")
    assert queue.inside == ["pay-1", "ask-1", "free"]
    await queue.end("ask-1")
    assert queue.inside[3:] == ["pay-2"] or queue.inside[3:] == ["ask-2"]
    for name in ("pay-1", "pay-2", "ask-2", "free"):
        await queue.end(name)
    assert len(queue.inside) == 5


async def test_who_gives_up_waiting_leaves_his_place():
    """A job that is cancelled before its turn takes nobody's place; one that is cancelled within
    gives it back.
    """
    queue = Queue()
    await queue.come("a", "a")
    await queue.come("b", "b")
    await queue.come("c", "c")
    queue.tasks["b"].cancel()
    await asyncio.gather(queue.tasks["b"], return_exceptions=True)
    await queue.end("a")
    assert queue.inside == ["a", "c"]
    await queue.come("d", "d")
    queue.tasks["c"].cancel()
    await asyncio.gather(queue.tasks["c"], return_exceptions=True)
    await asyncio.sleep(0)
    assert queue.inside == ["a", "c", "d"]
    await queue.end("d")


async def test_cancelled_in_the_moment_of_its_turn():
    """Whoever was let in and cancelled before it noticed gives the place back."""
    queue = Queue()
    await queue.come("a", "a")
    await queue.come("b", "b")
    queue.ends["a"].set()
    await asyncio.sleep(0)  # a leaves, and b is let in
    queue.tasks["b"].cancel()
    await asyncio.gather(*queue.tasks.values(), return_exceptions=True)
    assert queue.gate.running == 0
    await queue.come("c", "c")
    assert queue.inside[-1] == "c"
    await queue.end("c")


async def test_a_closed_gate():
    """Who waits, and who comes later, is told that it was not begun; who is within may finish."""
    queue = Queue()
    await queue.come("a", "a")
    await queue.come("b", "b")
    queue.gate.close()
    await queue.come("c", "c")
    found = await asyncio.gather(queue.tasks["b"], queue.tasks["c"], return_exceptions=True)
    assert [type(each) for each in found] == [LimiterClosed, LimiterClosed]
    assert queue.gate.running == 1
    await queue.end("a")
    assert queue.inside == ["a"]


async def test_it_tells_who_began():
    queue = Queue(2)
    await queue.come("a", "one")
    await queue.come("b", "two")
    assert queue.began == ["one", "two"]
    assert queue.gate.full
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.01):  # clock: nothing ends it earlier, for the gate stays full
            await queue.gate._enter(Job("three", "p", "t"))
    for name in ("a", "b"):
        await queue.end(name)
