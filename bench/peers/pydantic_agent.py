"""Pydantic AI holds the conversation of bench/measures/agents.py: history in memory, each turn
appended to SQLite.
"""

import asyncio
import json
import os
import sqlite3
import sys
import time
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

#: Told with each answer: else the scripted model would count the words of the whole history.
COUNTED = RequestUsage(input_tokens=1, output_tokens=1)


async def main(given: dict[str, Any]) -> dict[int, tuple[list[float], float]]:
    path = given["path"]
    said = given["said"]
    answer = given["answer"]
    around = given["around"]
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE turns (n INTEGER PRIMARY KEY, messages BLOB)")

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart(answer)], usage=COUNTED)

    agent = Agent(FunctionModel(model), instructions="Be brief.")
    history: list[ModelMessage] = []
    took: list[float] = []
    found: dict[int, tuple[list[float], float]] = {}
    for turn in range(1, max(given["turns"]) + around // 2 + 1):
        began = time.perf_counter()
        result = await agent.run(said, message_history=history)
        connection.execute("INSERT INTO turns (messages) VALUES (?)", (result.new_messages_json(),))
        history = result.all_messages()
        took.append((time.perf_counter() - began) * 1e3)
        if turn - around // 2 in given["turns"]:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            found[turn - around // 2] = took[-around:], os.path.getsize(path) / turn
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.loads(sys.stdin.read())))))
