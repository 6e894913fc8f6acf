"""A conversation of forty turns with tools, approvals, compaction and a fork, held by processes
that are killed.

What they print: `turn N` after each turn that settled, and `rest` when all has been said. Every
input has an id: a process that takes over says everything once more, and nothing happens twice.
"""

import json
import os
from pathlib import Path

import everhold
from everhold.core.graph import extract_text
from everhold.core.tool import Allow, Confirm
from everhold.plugins.compaction import Compaction
from everhold.ports.tool import ToolContext
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore
from tests.fault.victim import say

TURNS, FORK = 40, 20
USED = everhold.Usage(prompt_tokens=100, completion_tokens=10, model="scripted")


@everhold.tool(read_only=True)
def look(number: int) -> str:
    """Look something up."""
    return f"entry {number}: " + "x" * 400


@everhold.tool(rerun="safe")
def pay(number: int, context: ToolContext) -> str:
    """Pay somebody, once for each key."""
    with open(os.environ["EVERHOLD_PAID"], "a") as file:
        file.write(json.dumps([context.idempotency_key, number]) + "\n")
    return f"paid {number}"


def careful(wanted):
    return Confirm("it moves money") if wanted.tool == "pay" else Allow()


clerk = everhold.Agent(
    instructions="Be exact.",
    tools=[look, pay],
    policy=careful,
    plugins=[Compaction(window=2000, at=0.8, keep=0.2)],
    name="clerk",
)


def model(query):
    """What is said depends on nothing but the question."""
    last = query.messages[-1]
    words = extract_text(last["content"])
    if last["role"] == "tool":
        return everhold.Answer(f"Done with {len(last['content'])}.", usage=USED)
    if words.startswith("Summarise"):
        return everhold.Answer("So far, so good.", usage=USED)
    number = int(words.split()[-1])
    calls = [{"name": "look", "input": {"number": number}}]
    if number % 8 == 0:
        calls.append({"name": "pay", "input": {"number": number}})
    if number % 3 == 0:
        return everhold.Answer(f"Nothing to do for {number}.", usage=USED)
    return everhold.Answer({"text": "A moment.", "tool_calls": calls}, usage=USED)


async def settled(runtime, session, words, input_id):
    """Say something, and answer whatever a person is asked, until the turn has settled."""
    try:
        turn = await session.send(words, id=input_id)
    except everhold.EverholdError as error:
        if error.code != "turn_waiting":
            raise
        turn = await session.turn("i-0", wait=0)  # the process before this one asked a person
    while turn.waiting:
        for query in turn.queries:
            await runtime.answer(query, True, by={"user": "ada"})
        turn = await session.turn(input_id)
    return turn


async def converse(path: str, paid: str) -> None:
    os.environ["EVERHOLD_PAID"] = paid
    async with Runtime(SQLiteStore(path), llm=model) as runtime:
        session = await runtime.session(clerk, "chat")
        say("up")
        for number in range(1, TURNS + 1):
            await settled(runtime, session, f"Do {number}", f"i-{number}")
            say("turn", number)
            if number == FORK and await runtime.store.find("fork") is None:
                await session.fork(FORK, key="fork")
        fork = await runtime.session(clerk, (await runtime.store.find("fork")))
        for number in (101, 104):
            await settled(runtime, fork, f"Do {number}", f"f-{number}")
        say("rest")


async def told(path: str) -> None:
    """All that is left of it: what was said, the frames, the receipts, what it cost."""
    async with Runtime(SQLiteStore(path), llm=model) as runtime:
        for key in ("chat", "fork"):
            session = await runtime.session(clerk, (await runtime.store.find(key)))
            stored = await session.stored(fresh=True)
            facts = {
                "said": [[node.id, node.kind, node.role, node.content] for node in stored.nodes],
                "turns": [
                    [one.turn, one.input, type(one.outcome).__name__, one.leaf]
                    for one in stored.turns
                ],
                "ledger": stored.ledger,
                "frames": [frame.id for frame in await session.frames()],
            }
            Path(f"{path}.{key}.json").write_text(json.dumps(facts, sort_keys=True))
        assert await runtime.archive.verify() == []
    say("told")
