"""The coding agent of `examples/`, held by processes that are killed, and by tasks that are
cancelled.
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import everhold
from tests.fault.victim import say

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "coding_agent.py"


def load() -> ModuleType:
    if known := sys.modules.get("coding_agent"):
        return known
    spec = importlib.util.spec_from_file_location("coding_agent", EXAMPLE)
    module = sys.modules["coding_agent"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


coding_agent = load()
scripted = coding_agent.scripted


async def slow(query):
    """A model that needs a moment, so that a kill meets it at work."""
    await asyncio.sleep(0.04)
    say("asked")
    return scripted(query)


async def play(path):
    """Run the example, whatever was done of it before."""
    coding_agent.FOLDER = Path(path)
    coding_agent.scripted = slow
    await coding_agent.main()
    say("rest")


async def read(path):
    """What an outsider can see of the conversation when all has been said."""
    database = f"sqlite:///{path}.db"
    async with everhold.open(database, llm=None, recover=False) as runtime:
        session = await runtime.session(coding_agent.coder, "shop")
        turns = await session.turns()
        frames = await session.frames()
        stored = await session.stored()
        found = {
            "turns": [[turn.input, type(turn.outcome).__name__, turn.rounds] for turn in turns],
            "frames": [await session.messages(frame.id) for frame in frames],
            "options": await session.options(),
            "plugins": stored.plugins,
            "tools": [
                stored.tools.generation,
                [entry.manifest.id for entry in stored.tools.entries],
            ],
        }
    return found


def files(path):
    """The project, and how often each version was deployed."""
    found = {one.name: one.read_text() for one in sorted(Path(path).iterdir())}
    found["deployed.log"] = [line.split()[0] for line in found["deployed.log"].splitlines()]
    return found


async def told(path):
    """Write what `read` finds beside the folder: replays of the model's words have run then."""
    text = json.dumps({**await read(path), "files": files(path)}, sort_keys=True, default=str)
    Path(f"{path}.json").write_text(text)
    say("told")
