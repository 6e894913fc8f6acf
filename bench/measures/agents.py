"""What a turn of an agent costs beside LangGraph and Pydantic AI, on the same scripted model.

A turn is an input of 1024 characters and an answer of 1024: from the call to the moment when both
are committed (SQLite, WAL, `synchronous=NORMAL` for all). *At turn n* is the median of ten turns
around it. How a late turn compares with an early one is taken from pairs: a turn of a young
conversation, and beside it one of the old one.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import everhold
from bench.environment import python_of
from bench.figure import Figure
from bench.stage import QUIET, Stage
from bench.worker import ROOT, WorkerFailed
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore

AROUND = 10
#: Young conversations that are held beside an old one: each has ten of its turns.
YOUNG = 5
SAID = "u" * 1024
ANSWER = "a" * 1024

#: Milliseconds of each of the turns around one, and bytes a turn.
Turns = dict[int, tuple[list[float], float]]

agent = everhold.Agent(instructions="Be brief.", name="bench")


def measure(stage: Stage) -> Iterator[Figure]:
    turns = stage.scale.turns
    if stage.has_ours:
        found = asyncio.run(_ours(stage, turns))
        yield from _figures("everhold", found)
        yield Figure.of(
            "turn.everhold.late_over_early",
            "×",
            asyncio.run(_late_over_early(stage, turns[0], turns[-1])),
        )
        yield Figure.of("turn.everhold.megabytes_per_1000", "MB", [found[turns[-1]][1] / 1000])
    stage.versions["pydantic-ai"] = version("pydantic-ai-slim")
    yield from _figures("pydantic-ai", _theirs(stage, sys.executable, "pydantic_agent", turns))
    if any(name.startswith("langgraph") for name in stage.taking_part):
        yield from _figures(
            "langgraph", _theirs(stage, python_of("langgraph"), "langgraph_agent", turns)
        )


def _figures(who: str, found: Turns) -> Iterator[Figure]:
    for turn, (taken, size) in found.items():
        yield Figure.of(f"turn.{who}.{turn}.ms", "ms", taken)
        yield Figure.of(f"turn.{who}.{turn}.bytes", "B", [size])


async def _ours(stage: Stage, turns: tuple[int, ...]) -> Turns:
    found: Turns = {}
    _, empty = await _held(stage.file("agent"), 0)
    for turn in turns:
        taken, size = await _held(stage.file("agent"), turn + AROUND // 2)
        found[turn] = taken[-AROUND:], (size - empty) / len(taken)
    return found


async def _held(path: Path, turns: int) -> tuple[list[float], int]:
    """How long each turn took, in milliseconds, and the size of the file afterwards."""
    async with _opened(path) as runtime:
        session = await runtime.session(agent, "chat")
        taken = [await _turn(session) for _ in range(turns)]
    return taken, path.stat().st_size


async def _late_over_early(stage: Stage, early: int, late: int) -> list[float]:
    """Pair by pair, what a turn around `late` took over one around `early`: what the machine does
    meets both.
    """
    pairs: list[float] = []
    async with _opened(stage.file("agent")) as one, _opened(stage.file("agent")) as other:
        old = await one.session(agent, "old")
        await _talked(old, late - YOUNG * AROUND // 2)
        for number in range(YOUNG):
            young = await other.session(agent, f"young-{number}")
            await _talked(young, early - AROUND // 2)
            for _ in range(AROUND):
                beside = await _turn(young)
                pairs.append(await _turn(old) / beside)
    return pairs


def _opened(path: Path) -> Runtime:
    return Runtime(SQLiteStore(path, durability="process"), llm=_model, recover=False)


async def _model(query: everhold.Query) -> str:
    return ANSWER


async def _talked(session: everhold.AgentSession, turns: int) -> None:
    for _ in range(turns):
        await session.send(SAID)


async def _turn(session: everhold.AgentSession) -> float:
    """How long a turn took, in milliseconds."""
    began = time.perf_counter()
    await session.send(SAID)
    return (time.perf_counter() - began) * 1e3


def _theirs(stage: Stage, python: str, module: str, turns: tuple[int, ...]) -> Turns:
    told: dict[str, Any] = {"path": str(stage.file(module)), "turns": turns, "around": AROUND}
    done = subprocess.run(
        [python, "-m", f"bench.peers.{module}"],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        input=json.dumps({**told, "said": SAID, "answer": ANSWER}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise WorkerFailed(module, done.stderr)
    return {int(turn): (taken, size) for turn, (taken, size) in json.loads(done.stdout).items()}
