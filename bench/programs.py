"""The programs that everhold runs, in their own module, so that any process can import them."""

import asyncio
from time import perf_counter

import everhold
from bench import work

#: When `fetch` was called in this process.
fetched: list[float] = []


@everhold.program
async def chain(ctx: everhold.Context, pauses: int) -> int:
    total = 0
    for n in range(pauses):
        total += len(await ctx.llm(work.PROMPTS[n % 1000]))
    return total


@everhold.program
async def approvals(ctx: everhold.Context, pauses: int) -> int:
    """Ask a person; each yes counts as much as an answer of `chain`."""
    total = 0
    for n in range(pauses):
        if await ctx.approval(work.PROMPTS[n % 1000]):
            total += work.SIZE
    return total


async def fetch(prompt: str) -> str:
    fetched.append(perf_counter())
    return work.ANSWER


@everhold.program
async def calls(ctx: everhold.Context, steps: int) -> int:
    total = 0
    for n in range(steps):
        total += len(await ctx.call(fetch, work.PROMPTS[n % 1000], rerun="safe"))
    return total


@everhold.program
async def leaf(ctx: everhold.Context, n: int) -> int:
    return n


@everhold.program
async def family(ctx: everhold.Context, children: int) -> int:
    """A parent of many children, which all run at once."""
    spawned = [ctx.spawn(leaf(n)) for n in range(children)]
    return sum([await child for child in spawned])


@everhold.program
async def crossroads(ctx: everhold.Context, questions: int) -> int:
    """Many questions that are open at once."""
    said = await asyncio.gather(*(ctx.llm(work.PROMPTS[n % 1000]) for n in range(questions)))
    return sum(map(len, said))
