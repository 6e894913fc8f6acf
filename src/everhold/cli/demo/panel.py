"""The program of the demo, the model that answers it, and the process that runs it.

The model is a function with a short delay. Before it answers, it writes what it was asked into a
file: that file is the evidence that nothing recorded was asked twice.

    python -m everhold.cli.demo.panel FOLDER      runs the panel until it ends, waits for a person, or is killed
"""  # noqa: E501

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

from everhold.core.codec import dumps
from everhold.core.query import Query
from everhold.ports.answerer import Answerer
from everhold.ports.context import Context
from everhold.ports.program import program

KEY: Final = "demo"
TOPIC: Final = "Should the night train to the coast come back?"
THINKING: Final = 0.35  # seconds the model takes

SAYINGS: Final = {
    "traveller": "Yes: I would sleep through the way and wake at the sea.",
    "engineer": "Yes, if two old sleeping cars can be mended for less than a new one costs.",
    "accountant": "Only on Fridays, or it runs half empty.",
    "weakest": "The engineer's: nobody has looked at the brakes.",
    "engineer, again": "The brakes can be replaced for the price of one seat a day.",
    "accountant, again": "Then Fridays and Sundays pay for themselves.",
    "verdict": "Bring it back on Fridays and Sundays, with the two old cars.",
}


@program
async def panel(ctx: Context, topic: str) -> str:
    """Three experts, a critic, a second round, a verdict, and a person who signs it."""
    experts = ("traveller", "engineer", "accountant")
    views = await ctx.llm_batch([f"As the {expert}: {topic}" for expert in experts])
    doubt = await ctx.llm(f"Which of these is the weakest? {views}")
    second = [await ctx.llm(f"As the {expert}, again: {doubt}") for expert in experts[1:]]
    verdict = await ctx.llm(f"Give a verdict: {views + second}")
    return verdict if await ctx.approval(f"Publish it? {verdict}") else "kept back"


def get_asked_file(folder: Path) -> Path:
    """The file into which the model writes what it was asked."""
    return folder / "asked.jsonl"


def get_database_file(folder: Path) -> Path:
    return folder / "demo.db"


class DemoModel(Answerer):
    """Answers in a moment, and remembers across processes what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._file = get_asked_file(folder)

    async def answer(self, query: Query, session_id: str) -> str:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(dumps({"id": query.id, "pid": os.getpid(), "prompt": query.prompt}) + "\n")
        await asyncio.sleep(THINKING)
        names = [
            name for name in SAYINGS if f"{name}:" in query.prompt or f"{name}?" in query.prompt
        ]
        return SAYINGS[names[-1] if names else "verdict"]


def main(folder: Path) -> None:
    from everhold.blocking import open_blocking
    from everhold.errors import Waiting

    with open_blocking(get_database_file(folder), llm=DemoModel(folder)) as runtime:
        try:
            runtime.run(panel(topic=TOPIC), key=KEY, title=TOPIC)
        except Waiting:
            pass  # a person has to sign


if __name__ == "__main__":
    main(Path(sys.argv[1]))
