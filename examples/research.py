"""A research agent that hands questions to subagents, each in a session of its own, and puts the
answers together.

python examples/research.py
"""

import asyncio

import everhold

PAGES = {"tea": "Tea came to Europe in 1610.", "coffee": "Coffee came to Europe in 1615."}


@everhold.tool(read_only=True)
def look_up(topic: str) -> str:
    """Read the page on a topic."""
    return PAGES[topic]


reader = everhold.Agent(
    instructions="Read one page and report what it says.", tools=[look_up], name="reader"
)
chief = everhold.Agent(instructions="Ask readers, then conclude.", subagents=[reader], name="chief")


def call(name: str, **given: str) -> dict[str, object]:
    return {"name": name, "input": given}


def scripted(query: everhold.Query) -> object:
    """Stands for two models."""
    messages = query.messages or []
    last = messages[-1]
    results = [block["content"] for block in last["content"] if block["type"] == "tool_result"]
    if (query.system or "").startswith("Read"):
        topic = messages[0]["content"][0]["text"].split()[-1]
        return results[0] if results else {"tool_calls": [call("look_up", topic=topic)]}
    if results:
        return f"Tea was first: {' '.join(map(str, results))}"
    return {
        "tool_calls": [
            call("task", agent="reader", prompt=f"Find out about {topic}") for topic in PAGES
        ]
    }


async def main() -> None:
    async with everhold.open("memory://", llm=scripted) as runtime:
        session = await runtime.session(chief, "which-was-first")
        async for event in session.stream("What came to Europe first, tea or coffee?"):
            if event.kind == "settled":
                print((await session.history())[-1].content)
        for child in await runtime.sessions(parent=session.id):
            print(f"  {child.state} child session, {child.steps} steps")


if __name__ == "__main__":
    asyncio.run(main())
