"""Pydantic AI holds the conversation of bench/measures/agents.py: history in memory, each turn
appended to SQLite.
"""

import asyncio
import os
import sqlite3
from importlib.metadata import version
from time import perf_counter

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from bench import speak

#: Told with each answer: else the scripted model would count the words of the whole history.
COUNTED = RequestUsage(input_tokens=1, output_tokens=1)


class Talk:
    def __init__(self) -> None:
        self.history: list[ModelMessage] = []
        self.held = 0

    async def open(self, path: str, said: str, answer: str) -> speak.Reply:
        self.path, self.said = path, said
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=NORMAL")
        self.connection.execute("CREATE TABLE turns (n INTEGER PRIMARY KEY, messages BLOB)")

        async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            return ModelResponse(parts=[TextPart(answer)], usage=COUNTED)

        self.agent = Agent(FunctionModel(model), instructions="Be brief.")
        return {"versions": {"pydantic-ai": version("pydantic-ai-slim")}}

    async def reach(self, turn: int) -> speak.Reply:
        """Hold the conversation until it has this many turns."""
        await self.turns(turn - self.held)
        return {}

    async def turns(self, count: int) -> speak.Reply:
        """Seconds of each of the next turns."""
        taken = []
        for _ in range(count):
            before = perf_counter()
            result = await self.agent.run(self.said, message_history=self.history)
            said = result.new_messages_json()
            self.connection.execute("INSERT INTO turns (messages) VALUES (?)", (said,))
            self.history = result.all_messages()
            taken.append(perf_counter() - before)
        self.held += count
        return {"seconds": taken}

    async def size(self) -> speak.Reply:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return {"bytes": os.path.getsize(self.path)}

    async def close(self) -> speak.Reply:
        self.connection.close()
        return {}


def main() -> None:
    talk = Talk()
    verbs = ("open", "reach", "turns", "size", "close")
    asyncio.run(speak.serve_async({name: getattr(talk, name) for name in verbs}))


if __name__ == "__main__":
    main()
