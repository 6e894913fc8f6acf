"""What a turn of an agent costs beside LangGraph and Pydantic AI, on the same scripted model.

A turn is an input of 1024 characters and an answer of 1024: from the call to the moment when both are committed
(SQLite, WAL, `synchronous=NORMAL` for all). *At turn n* is the median of ten turns around it.
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
from statistics import median
from typing import Any

import everhold
from bench.environment import python_of
from bench.figure import Figure
from bench.stage import QUIET, Stage
from bench.worker import ROOT, WorkerFailed
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore

AROUND = 10
SAID, ANSWER = "u" * 1024, "a" * 1024

#: Milliseconds of each of the turns around one, and bytes a turn.
Turns = dict[int, tuple[list[float], float]]

agent = everhold.Agent(instructions="Be brief.", name="bench")


def measure(stage: Stage) -> Iterator[Figure]:
    turns = stage.scale.turns
    if stage.has_ours:
        found, late = asyncio.run(_ours(stage, turns))
        yield from _figures("everhold", found)
        yield Figure.of("turn.everhold.late_over_early", "×", [late])
        yield Figure.of("turn.everhold.megabytes_per_1000", "MB", [found[turns[-1]][1] / 1000])
    stage.versions["pydantic-ai"] = version("pydantic-ai-slim")
    yield from _figures("pydantic-ai", _theirs(stage, sys.executable, "pydantic_agent", turns))
    if any(name.startswith("langgraph") for name in stage.taking_part):
        yield from _figures("langgraph", _theirs(stage, python_of("langgraph"), "langgraph_agent", turns))


def _figures(who: str, found: Turns) -> Iterator[Figure]:
    for turn, (taken, size) in found.items():
        yield Figure.of(f"turn.{who}.{turn}.ms", "ms", taken)
        yield Figure.of(f"turn.{who}.{turn}.bytes", "B", [size])


async def _ours(stage: Stage, turns: tuple[int, ...]) -> tuple[Turns, float]:
    """Our turns; and the last over the first of them, in the longest conversation."""
    found: Turns = {}
    _, empty = await _held(stage.file("agent"), 0)
    taken: list[float] = []
    for turn in turns:
        taken, size = await _held(stage.file("agent"), turn + AROUND // 2)
        found[turn] = taken[-AROUND:], (size - empty) / len(taken)
    early = taken[turns[0] - AROUND // 2 : turns[0] + AROUND // 2]
    return found, median(taken[-AROUND:]) / median(early)


async def _held(path: Path, turns: int) -> tuple[list[float], int]:
    """How long each turn took, in milliseconds, and the size of the file afterwards."""
    taken: list[float] = []
    store = SQLiteStore(path, durability="process")
    async with Runtime(store, llm=lambda query: ANSWER, recover=False) as runtime:
        session = await runtime.session(agent, "chat")
        for _ in range(turns):
            began = time.perf_counter()
            await session.send(SAID)
            taken.append((time.perf_counter() - began) * 1e3)
    return taken, path.stat().st_size


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
