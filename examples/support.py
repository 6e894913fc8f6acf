"""A support agent that looks up orders. It pauses until a person approves a refund, then resumes.

python examples/support.py
"""

import asyncio
from collections.abc import AsyncIterator

import everhold
from everhold.plugins import Approval

ORDERS = {"7": {"item": "lamp", "cents": 4200}}


@everhold.tool(read_only=True)
def find_order(number: str) -> dict[str, object]:
    """Find an order by its number."""
    return dict(ORDERS[number])


@everhold.tool
def refund(number: str, cents: int) -> str:
    """Give money back."""
    return f"{cents} cents of order {number} are on their way"


support = everhold.Agent(
    instructions="Help customers of our shop.",
    tools=[find_order, refund],
    plugins=[Approval("refund", reason="it moves money")],
)


async def scripted(query: everhold.Query) -> AsyncIterator[object]:
    """Stands for a model: everhold.Agent("anthropic:claude-sonnet-4-6", …) asks a real one."""
    rounds = sum(message["role"] == "assistant" for message in query.messages or [])
    calls = [("find_order", {"number": "7"}), ("refund", {"number": "7", "cents": 4200})]
    if rounds < len(calls):
        name, given = calls[rounds]
        yield {"text": "One moment.", "tool_calls": [{"name": name, "input": given}]}
    for word in ("Your ", "42.00 ", "are ", "on ", "their ", "way."):
        await asyncio.sleep(0.1)
        yield word


async def main() -> None:
    async with everhold.open("sqlite:///support.db", llm=scripted) as runtime:
        session = await runtime.session(support, "customer-12")
        turn = await session.send("My lamp from order 7 arrived broken.", id="mail-1")
        print(f"a person is asked: {turn.queries[0].prompt}")
    # days later, another process
    async with everhold.open("sqlite:///support.db", llm=scripted) as runtime:
        (approval,) = await runtime.inbox(kind="approval")
        await runtime.answer(approval, True, by={"user": "maria"})
        session = await runtime.session(support, "customer-12")
        print((await session.turn("mail-1")).text)


if __name__ == "__main__":
    asyncio.run(main())
