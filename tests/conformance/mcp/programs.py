"""What the task tools of the conformance suite do, as programs: their tasks are sessions like any
other.
"""

import asyncio
from typing import TypedDict

import everhold
from everhold.errors import Poison


class Confirmed(TypedDict):
    confirm: bool


class Name(TypedDict):
    name: str


@everhold.program
async def slow_compute(ctx: everhold.Context, seconds: float = 0, label: str = "") -> str:
    if seconds:
        await ctx.sleep(seconds)
    return f"computed {label}"


@everhold.program
async def failing_job(ctx: everhold.Context) -> str:
    await ctx.sleep(1)
    raise ValueError("this job fails on purpose")


@everhold.program
async def protocol_error_job(ctx: everhold.Context) -> str:
    """Ends as a session does whose worker processes die."""
    raise Poison(3)


@everhold.program
async def confirm_delete(ctx: everhold.Context, filename: str) -> str:
    said = await ctx.input(f"Delete {filename}?", returns=Confirmed)
    return "deleted" if said["confirm"] else "kept"


@everhold.program
async def multi_input(ctx: everhold.Context) -> str:
    names = await asyncio.gather(
        *(ctx.input(f"{which} name?", returns=Name) for which in ("First", "Second"))
    )
    return " and ".join(one["name"] for one in names)


@everhold.program
async def welcome(ctx: everhold.Context, user_name: str) -> str:
    await ctx.sleep(0.5)
    return f"Welcome, {user_name}!"
