"""What a turn of an agent costs beside LangGraph and Pydantic AI, on the same scripted model.

    python -m bench.agents              prints a table; the peers' environment is made if it is not there

A turn is an input of 1000 characters and an answer of 1000: from the call to the moment when both are committed
(SQLite, WAL, `synchronous=NORMAL` for all). *At turn n* is the median of ten turns around it. Bytes are what the turns
up to there have added to the file, by turn. Figures are printed, not asserted: the machine decides.

LangGraph keeps the whole state with each checkpoint, so a thousand turns would take gigabytes: its conversation is put
there in one write up to the turns that are measured, and bytes are what those turns add. Pydantic AI keeps nothing by
itself: its messages are appended by the script, one row a turn, and its history stays in memory.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import everhold
from bench.environment import python_of
from bench.worker import ROOT
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore

TURNS = (10, 100, 1000)
AROUND = 10
SAID, ANSWER = "u" * 1000, "a" * 1000

agent = everhold.Agent(instructions="Be brief.", name="bench")


async def held(path: Path, turns: int) -> tuple[list[float], int]:
    """How long each turn took, in milliseconds, and the size of the file afterwards."""
    took: list[float] = []
    store = SQLiteStore(path, durability="process")
    async with Runtime(store, llm=lambda query: ANSWER, recover=False) as runtime:
        session = await runtime.session(agent, "chat")
        for _ in range(turns):
            began = time.perf_counter()
            await session.send(SAID)
            took.append((time.perf_counter() - began) * 1e3)
    return took, path.stat().st_size


async def ours(place: Path) -> dict[int, tuple[float, float]]:
    """Turn → milliseconds a turn, bytes a turn."""
    found: dict[int, tuple[float, float]] = {}
    _, empty = await held(place / "ours-0.db", 0)
    for turn in TURNS:
        took, size = await held(place / f"ours-{turn}.db", turn + AROUND // 2)
        found[turn] = statistics.median(took[-AROUND:]), (size - empty) / len(took)
    return found


def theirs(python: str, module: str, path: str) -> dict[int, tuple[float, float]]:
    told = {"path": path, "turns": TURNS, "around": AROUND, "said": SAID, "answer": ANSWER}
    done = subprocess.run(
        [python, "-m", module], cwd=ROOT, input=json.dumps(told), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} failed:\n{done.stderr}")
    return {int(turn): tuple(figures) for turn, figures in json.loads(done.stdout).items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        rows = {
            "everhold": asyncio.run(ours(place)),
            "LangGraph": theirs(python_of("langgraph"), "bench.peers.langgraph_agent", str(place / "langgraph.db")),
            "Pydantic AI": theirs(sys.executable, "bench.peers.pydantic_agent", str(place / "pydantic.db")),
        }
    print(f"{'':12}" + "".join(f"{f'turn {turn}':>24}" for turn in TURNS))
    for name, figures in rows.items():
        print(f"{name:12}" + "".join(f"{figures[turn][0]:9.2f} ms {figures[turn][1]:10,.0f} B" for turn in TURNS))


if __name__ == "__main__":
    main()
