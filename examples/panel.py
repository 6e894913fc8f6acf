"""A panel: three experts at once, a critic, a verdict with a type, and nothing asked twice.

python examples/panel.py
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import everhold


@dataclass
class Verdict:
    choice: str
    confidence: float


@everhold.program
async def panel(ctx: everhold.Context, question: str) -> Verdict:
    async with asyncio.TaskGroup() as group:
        experts = [
            group.create_task(ctx.llm(f"As the {who}: {question}"))
            for who in ("cook", "guest", "owner")
        ]
    views = [expert.result() for expert in experts]
    doubt = await ctx.llm(f"What speaks against these? {views}")
    return await ctx.llm(f"Decide. {views} But: {doubt}", returns=Verdict)


ANSWERS = {
    "As the cook*": "Soup: it keeps.",
    "As the guest*": "Bread, warm.",
    "As the owner*": "Soup: it is cheap.",
    "What speaks against*": "Soup again?",
    "Decide*": '{"choice": "soup with bread", "confidence": 0.8}',
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "panel.db"
        # the second time no model is needed: the session of this key has ended
        for llm in (ANSWERS, None):
            found = everhold.run(
                panel(question="What is for lunch?"), key="lunch", llm=llm, database=database
            )
            print(found)
            assert found == Verdict("soup with bread", 0.8)
