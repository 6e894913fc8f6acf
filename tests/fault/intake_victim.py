"""Processes that put inputs and commands into the intake of one conversation, and are killed while
they do.

What they print: `kept NAME` when an input was accepted, `gone NAME` when one was taken back, `rest`
when all that was put has come to an end. Every input has a key: a process that takes over puts
everything once more.
"""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path

import everhold
from everhold.core.intake import CancelOutcome
from everhold.runtime import Runtime
from everhold.stores.registry import create_store
from tests.fault.victim import say

INPUTS = 144


@everhold.tool(rerun="safe")
def note(number: int) -> str:
    """Take note of a number."""
    with open(os.environ["EVERHOLD_NOTED"], "a") as file:
        file.write(f"{number}\n")
    return "noted"


clerk = everhold.Agent(instructions="Be exact.", tools=[note], name="intake_clerk")


async def model(query):
    """Takes note of each round once, and then says so."""
    await asyncio.sleep(0.002)
    if query.messages[-1]["role"] == "tool":
        return "Noted."
    return {"tool_calls": [{"name": "note", "input": {"number": len(query.messages)}}]}


async def feed(path: str, who: str, noted: str) -> None:
    """Put inputs and commands, take some back, and wait for the end of all."""
    os.environ["EVERHOLD_NOTED"] = noted
    async with Runtime(create_store(path), llm=model) as runtime:
        session = await runtime.session(clerk, "chat")
        say("up")
        for number in range(INPUTS):
            name = f"{who}-{number}"
            at = ("next", "after_work", "before_completion")[number % 3]
            await session.enqueue(f"Note {name}.", key=name, at=at, alone=number % 4 == 0)
            say("kept", name)
            if number % 6 == 5:
                found = await session.cancel(name)
                if found[0].outcome in (CancelOutcome.CANCELLED, CancelOutcome.ALREADY):
                    say("gone", name)
            if number % 8 == 7:
                await session.command("reset", key=name, reason="a test")
        for number in range(INPUTS):
            with suppress(everhold.EverholdError):  # it was taken back
                await session.turn(f"{who}-{number}")
        say("rest")


async def told(path: str, told: str) -> None:
    """What is left: the stage of each input, which turns named it, and what still waits."""
    async with Runtime(create_store(path), llm=model) as runtime:
        session = await runtime.session(clerk, "chat")
        status = await runtime.status(session.id)
        # three deaths over one call, say: whoever reads this knows
        if isinstance(status, everhold.Finished):
            say("ended", status.outcome)
        while any(item.waits for item in await session.intake(all=True)):
            await asyncio.sleep(0.01)
        items = await session.intake(all=True)
        for item in items:
            if item.state == "completed":
                await session.turn(item.id)
        turns = await session.turns()
        facts = {
            "states": {item.id: item.state for item in items},
            "inputs": [name for one in turns for name in (one.input, *one.taken)],
        }
        Path(told).write_text(json.dumps(facts))
        assert await runtime.archive.verify() == []
    say("told")
