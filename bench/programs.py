"""The program that everhold plays, in a module of its own so that any process can find it again."""

import everhold
from bench import work


@everhold.program
async def chain(ctx: everhold.Context, pauses: int) -> int:
    total = 0
    for n in range(pauses):
        total += len(await ctx.llm(work.PROMPTS[n % 1000]))
    return total
