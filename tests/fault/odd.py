"""Programs that misbehave."""

import asyncio
import time

import everhold


@everhold.program
async def echo(ctx: everhold.Context) -> object:
    return await ctx.llm("say something")


@everhold.program
async def hear(ctx: everhold.Context) -> object:
    return await ctx.receive("word")


@everhold.program
async def crowd(ctx: everhold.Context, size: int) -> int:
    return len(await ctx.llm_batch([f"{n}" for n in range(size)]))


@everhold.program
async def recursing(ctx: everhold.Context) -> int:
    await ctx.llm("go")

    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    return deeper(0)


class Strange(BaseException):
    """Not an Exception."""


@everhold.program
async def strange(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    raise Strange("not an Exception")


@everhold.program
async def leaving(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    raise SystemExit(3)


@everhold.program
async def returning(ctx: everhold.Context, what: str) -> object:
    await ctx.llm("go")
    return {
        "set": {"a": [{1, 2}]},
        "nan": {"a": [float("nan")]},
        "tuple": {"a": [(1, 2)]},
        "key": {"a": [{1: 2}]},
        "surrogate": {"a": ["\ud800"]},
        "object": {"a": [object()]},
        "big": {"a": [2**64]},
    }[what]


@everhold.program
async def spinning(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    while True:
        pass


@everhold.program
async def polling(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    while True:
        await asyncio.sleep(0)


@everhold.program
async def counting(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    while True:
        await ctx.state.incr("endless")


@everhold.program
async def stubborn(ctx: everhold.Context) -> str:
    """It swallows every cancel, and asks on."""
    while True:
        try:
            await ctx.llm("go")
        except (asyncio.CancelledError, Exception):
            ctx.log("not me")


@everhold.program
async def stuck(ctx: everhold.Context) -> None:
    await ctx.llm("go")
    await asyncio.Event().wait()


@everhold.program
async def napping(ctx: everhold.Context) -> float:
    before = ctx.now()
    await ctx.llm("first")
    async with asyncio.timeout(60):
        await ctx.llm("second")
    return (ctx.now() - before).total_seconds()


@everhold.program
async def slow_effect(ctx: everhold.Context) -> str:
    return await ctx.call(slow, rerun="never")


def slow() -> str:
    time.sleep(0.05)
    return "done"


@everhold.program
async def chatting(ctx: everhold.Context) -> None:
    while True:
        await ctx.llm("And then?")
