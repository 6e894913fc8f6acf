"""The program that everhold runs, in its own module, so that any process can import it."""

import everhold
from bench import work


@everhold.program
async def chain(ctx: everhold.Context, pauses: int) -> int:
    total = 0
    for n in range(pauses):
        total += len(await ctx.llm(work.PROMPTS[n % 1000]))
    return total
