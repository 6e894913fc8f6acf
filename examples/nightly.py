"""A report every night at three in Berlin, here on a test clock: the clocks go forward in the
second night, and nothing runs in the third.

python examples/nightly.py

In real life:
everhold schedule add nightly examples/nightly.py:report --cron "0 3 * * *" --give at \
    --timezone Europe/Berlin --catch-up all
everhold worker examples/nightly.py:report --model anthropic:claude-sonnet-4-6
"""

import asyncio
import datetime
import tempfile

import everhold
from everhold.testing import ManualClock

DAY = 24 * 3600
FRIDAY_NOON = datetime.datetime(2026, 3, 27, 12, tzinfo=datetime.UTC)
MAILS: list[str] = []


def count_sales(until: str) -> list[int]:
    return [12, 7, 31]


@everhold.program
async def report(ctx: everhold.Context, at: str) -> None:
    sales = await ctx.call(count_sales, at)
    text = await ctx.llm(f"One sentence on these sales: {sales}")
    await ctx.call(MAILS.append, f"{at}: {text}", rerun="never")


async def serve(database: str, clock: ManualClock, *mails: int) -> None:
    """Run for a day after another, each until so many mails have been sent."""
    async with everhold.open(database, llm={"*": "A quiet day."}, clock=clock) as runtime:
        zone = "Europe/Berlin"
        await runtime.schedules.add(
            "nightly", "0 3 * * *", report, timezone=zone, give="at", catch_up="all"
        )
        for number in mails:
            clock.advance(DAY)
            while len(MAILS) < number:
                await asyncio.sleep(0.01)


if __name__ == "__main__":
    clock = ManualClock(FRIDAY_NOON.timestamp())
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(serve(f"sqlite:///{folder}/nightly.db", clock, 1, 2))
        clock.advance(DAY)
        asyncio.run(serve(f"sqlite:///{folder}/nightly.db", clock, 4))
    print("\n".join(MAILS))
    hours = [mail[8:13] for mail in MAILS]  # of UTC: three in Berlin
    assert hours == ["28T02", "29T01", "30T01", "31T01"]
