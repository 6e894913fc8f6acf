"""The cost of a durable step on Postgres: of one session, and of many at once.

    python -m bench.postgres            starts a server of its own, with fsync, and prints a table

A step is `runtime.answer`: an answer of 200 bytes is recorded and the next question asked. Figures
are printed, not asserted: the machine decides.
"""

import asyncio
import statistics
import time

import everhold
from everhold.runtime import Runtime
from everhold.stores.postgres import PostgresStore
from tools.postgres import Server

LEVELS = ("process", "mixed", "power")
CROWDS = (10, 100)
ANSWER = "a" * 200


@everhold.program
async def ladder(ctx: everhold.Context, rungs: int) -> None:
    for _ in range(rungs):
        await ctx.llm("What is the next rung of this ladder, in one sentence?")


async def alone(url: str, level: str, steps: int = 500) -> tuple[float, float]:
    """The median and the 99th percentile of one session's steps, in microseconds."""
    took = []
    async with Runtime(PostgresStore(url, durability=level), recover=False) as runtime:
        status = await runtime.start(ladder(rungs=steps + 1))
        for _ in range(steps):
            began = time.perf_counter()
            status = await runtime.answer(status.queries[0], ANSWER)
            took.append((time.perf_counter() - began) * 1e6)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


async def together(url: str, level: str, sessions: int, steps: int = 30) -> float:
    """Microseconds per step when many sessions step as fast as they can."""
    async with Runtime(PostgresStore(url, durability=level), recover=False) as runtime:
        begun = [await runtime.start(ladder(rungs=steps + 1)) for _ in range(sessions)]

        async def climb(status: everhold.Paused) -> None:
            for _ in range(steps):
                status = await runtime.answer(status.queries[0], ANSWER)

        began = time.perf_counter()
        await asyncio.gather(*map(climb, begun))
        return (time.perf_counter() - began) / (sessions * steps) * 1e6


async def main(url: str) -> None:
    print(
        f"{'level':8} {'alone p50':>10} {'p99':>10} "
        + " ".join(f"{f'{many} at once':>12}" for many in CROWDS)
    )
    for level in LEVELS:
        p50, p99 = await alone(url, level)
        crowds = [await together(url, level, many) for many in CROWDS]
        print(
            f"{level:8} {p50:7.0f} µs {p99:7.0f} µs "
            + " ".join(f"{each:9.0f} µs" for each in crowds),
            flush=True,
        )


if __name__ == "__main__":
    with Server(fsync=True) as server:
        asyncio.run(main(server.url))
