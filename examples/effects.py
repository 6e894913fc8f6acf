"""Side effects: recorded once, retried after a failure, and never silently repeated.

python examples/effects.py
"""

import everhold

SENT: list[str] = []


def flaky(url: str) -> str:
    """Fails the first time, as the world does."""
    SENT.append(url)
    if len(SENT) == 1:
        raise ConnectionError("try again")
    return "ok"


async def pay(amount: int) -> str:
    return f"paid {amount}"


@everhold.program
async def order(ctx: everhold.Context, amount: int) -> list[str]:
    # safe to repeat, so a failure is tried again after a wait
    again = everhold.Retry(3, backoff=0.1, on=ConnectionError)
    checked = await ctx.call(flaky, "https://shop.example/stock", retry=again)
    try:
        # after a crash in here: OutcomeUnknown
        receipt = await ctx.call(pay, amount, rerun="never")
    except everhold.OutcomeUnknown:
        receipt = "ask the bank" if await ctx.approval("Did the money arrive?") else "not paid"
    return [checked, receipt]


if __name__ == "__main__":
    print(everhold.run(order(amount=30), database="memory://"))
    assert len(SENT) == 2
