"""A town at work: programs with errands, conversations with a tool, and people who say things to
them.

Whatever is done outside is written down as in `workers_victim`: `begin NAME PID`, `end NAME PID`.
Nothing of it may be done twice: errands and the tool are `rerun="never"`. Those who put inputs
print `kept NAME` when one was accepted.
"""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import everhold
from everhold.movers import Limits
from everhold.runtime import Runtime
from tests.fault.crowd import at
from tests.fault.victim import say
from tests.fault.workers_victim import begin, errand  # noqa: F401  (a nursery calls `begin` here)

LOG = "EVERHOLD_TEST_LOG"
PACE = "EVERHOLD_TEST_PACE"


@everhold.tool(rerun="never")
async def stamp(name: str) -> str:
    """Stamp a paper, which can be done once."""
    await errand(os.environ[LOG], name, float(os.environ[PACE]))
    return f"stamped {name}"


town_clerk = everhold.Agent(instructions="Stamp what you are given.", tools=[stamp])


def model(query: Any) -> Any:
    """Has every paper stamped that was named and for which no stamp was asked yet."""
    parts = [(message["role"], part) for message in query.messages for part in message["content"]]
    asked = {part["input"]["name"] for _, part in parts if part["type"] == "tool_use"}
    left = [part["text"] for role, part in parts if role == "user" and part["text"] not in asked]
    return (
        {"tool_calls": [{"name": "stamp", "input": {"name": name}} for name in left]}
        if left
        else "Done."
    )


async def speak(path: str, conversations: int, inputs: int, pause: float) -> None:
    """Put so many inputs into each conversation; whoever takes over puts everything once more."""
    async with Runtime(at(path), llm=model, recover=False) as runtime:
        for number in range(inputs):
            for one in range(conversations):
                session = await runtime.session(town_clerk, f"c{one}")
                name = f"c{one}-{number}"
                await session.enqueue(name, key=name, alone=number % 2 == 0)
                say("kept", name)
                await asyncio.sleep(pause)
        say("rest")


async def work(
    path: str, log: str, pace: float, host: str = "", ttl: float = 10.0, concurrency: int = 4
) -> None:
    """Be a worker until SIGTERM; `host` says on which machine."""
    os.environ[LOG], os.environ[PACE] = log, str(pace)
    if host:
        socket.gethostname = lambda: host
    async with Runtime(at(path), llm=model, ttl=ttl, recover=False) as runtime:
        worker = runtime.workers.worker(
            concurrency=concurrency, grace=30.0, limits=Limits(session=2), tell=_tell
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


def _tell(one: Any) -> None:
    os.write(1, f"{one.event} {one.session_id or ''}\n".encode())


async def told(path: str, conversations: int, facts: str) -> None:
    """How each input stands, which turns named it, and what waits."""
    found: dict[str, Any] = {"states": {}, "turns": [], "outcomes": []}
    async with Runtime(at(path), llm=model, recover=False) as runtime:
        for one in range(conversations):
            session = await runtime.session(town_clerk, f"c{one}")
            found["states"] |= {item.id: item.state for item in await session.intake(all=True)}
            for turn in await session.turns():
                found["turns"] += [turn.input, *turn.taken]
                found["outcomes"].append(type(turn.outcome).__name__)
    Path(facts).write_text(json.dumps(found))
