"""Processes that keep schedules and emit events as fast as they can, until somebody kills them.

What they print: `up` once they are, and `ack KEY` for each event whose receipt they have.
"""

import asyncio
import datetime as dates
import os

import everhold
from everhold.schedules import schedule, trigger

#: Who takes up what a dead process had begun waits for less long here.
schedule.TAKEOVER_SECONDS = trigger.TAKEOVER_SECONDS = 0.5


@everhold.program
async def tick(ctx: everhold.Context, at: str) -> str:
    return at


@everhold.program
async def ship(ctx: everhold.Context, order: str) -> str:
    await ctx.sleep(0.01)
    return f"shipped {order}"


@everhold.program
async def book(ctx: everhold.Context, order: str) -> str:
    return f"booked {order}"


async def prepare(runtime: everhold.Runtime) -> None:
    """Say what every process here says when it starts."""
    await runtime.schedules.add(
        "ticks", dates.timedelta(seconds=1), tick, give="at", catch_up="all"
    )
    await runtime.triggers.add("order.paid", ship)
    await runtime.triggers.add("order.paid", book)


async def work(url: str, life: int, orders: int) -> None:
    async with everhold.open(url) as runtime:
        await prepare(runtime)
        os.write(1, b"up\n")
        for number in range(orders):
            key = f"{life}-{number}"
            await runtime.triggers.emit("order.paid", {"order": key}, key=key)
            os.write(1, f"ack {key}\n".encode())
            await asyncio.sleep(0)
        await asyncio.sleep(3600)
