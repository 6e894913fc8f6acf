"""One session that grows large: CPU seconds of everything that makes it so, or reads it.

`python -m bench.grow KIND SIZE` prints the seconds of one kind, for a profiler.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

import everhold
from bench import programs, speak, work
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore

agent = everhold.Agent(instructions="Be brief.", name="grown")
SAID = "u" * 1024


class Clock:
    """CPU seconds of this process between `start` and `stop`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.began = process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += process_time() - self.began


@asynccontextmanager
async def opened(path: Path, model: Any = None) -> AsyncIterator[Runtime]:
    store = SQLiteStore(path, durability="process")
    async with Runtime(store, llm=model) as runtime:
        yield runtime


async def _deliver(runtime: Runtime, size: int) -> everhold.Status:
    status = await runtime.start(programs.chain(size + 1))
    for _ in range(size):
        status = await runtime.answer(status.queries[0], work.ANSWER)
    return status


async def deliveries(path: Path, size: int, clock: Clock) -> None:
    """A journal of many deliveries: each is one answer."""
    async with opened(path) as runtime:
        with clock:
            await _deliver(runtime, size)


async def replay(path: Path, size: int, clock: Clock) -> None:
    """The answer to a session with such a journal that is not in memory."""
    async with opened(path) as runtime:
        session = (await _deliver(runtime, size)).session_id
    async with opened(path) as runtime:
        with clock:
            status = await runtime.answer(session, work.ANSWER)
    work.expect(status.result, size + 1)


async def reading(path: Path, size: int, clock: Clock) -> None:
    """The steps and the transcript of such a journal."""
    async with opened(path) as runtime:
        session = (await _deliver(runtime, size)).session_id
        with clock:
            steps = await runtime.steps(session)
            await runtime.transcript(session)
    if len(steps) != size + 1:
        raise AssertionError(f"{len(steps)} steps instead of {size + 1}")


async def children(path: Path, size: int, clock: Clock) -> None:
    """A session with many children: it starts them all, and waits for each."""
    async with opened(path) as runtime:
        with clock:
            result = await runtime.run(programs.family(size))
    if result != size * (size - 1) // 2:
        raise AssertionError(f"the children returned {result}")


async def questions(path: Path, size: int, clock: Clock) -> None:
    """Many open questions, answered one by one."""
    async with opened(path) as runtime:
        with clock:
            status = await runtime.start(programs.crossroads(size))
            for question in status.queries:
                status = await runtime.answer(question, work.ANSWER)
    work.expect(status.result, size)


async def answers(path: Path, size: int, clock: Clock) -> None:
    """Many open questions, answered by one call."""
    async with opened(path) as runtime:
        with clock:
            status = await runtime.start(programs.crossroads(size))
            given = {question.id: work.ANSWER for question in status.queries}
            status = await runtime.answer_many(status.session_id, given)
    work.expect(status.result, size)


async def inputs(path: Path, size: int, clock: Clock) -> None:
    """Many inputs queued while a turn runs, then the turns that take them."""
    gate = asyncio.Event()

    async def model(query: everhold.Query) -> str:
        await gate.wait()
        return "Fine."

    async with opened(path, model) as runtime:
        session = await runtime.session(agent, "queue")
        with clock:
            for n in range(size):
                await session.enqueue(f"input {n}", key=f"k{n}")
            gate.set()
            last = await session.turn(f"k{size - 1}")
        taken = [name for turn in await session.turns() for name in (turn.input, *turn.taken)]
        if last.text != "Fine." or len(taken) != size:
            raise AssertionError(f"{len(taken)} inputs were taken; the last turn is {last!r}")


async def _model(query: everhold.Query) -> str:
    return SAID


async def conversation(path: Path, size: int, clock: Clock) -> None:
    """A conversation of many turns."""
    async with opened(path, _model) as runtime:
        session = await runtime.session(agent, "long")
        with clock:
            for _ in range(size):
                await session.send(SAID)


async def reopening(path: Path, size: int, clock: Clock) -> None:
    """One more turn of such a conversation, which is not in memory."""
    async with opened(path, _model) as runtime:
        session = await runtime.session(agent, "long")
        for _ in range(size):
            await session.send(SAID)
    async with opened(path, _model) as runtime:
        with clock:
            session = await runtime.session(agent, "long")
            await session.send(SAID)


Grow = Callable[[Path, int, Clock], Awaitable[None]]
KINDS: dict[str, Grow] = {
    one.__name__: one
    for one in (
        *(deliveries, replay, reading, children, questions, answers, inputs),
        *(conversation, reopening),
    )
}


async def grow(kind: str, size: int, path: str) -> speak.Reply:
    clock = Clock()
    await KINDS[kind](Path(path), size, clock)
    return {"cpu": clock.seconds}


def main() -> None:
    if len(sys.argv) > 1:
        kind, size = sys.argv[1:]
        with tempfile.TemporaryDirectory() as folder:
            print(asyncio.run(grow(kind, int(size), f"{folder}/grown.db")))
        return
    asyncio.run(speak.serve_async({"grow": grow}))


if __name__ == "__main__":
    import bench.grow  # its programs have that name in every process

    bench.grow.main()
