"""The waiting times of a host: the server's start, and a round of `run` and `answer`, beside the
protocol library alone.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.figure import Figure
from bench.stage import Stage
from bench.worker import ROOT, WorkerFailed

PROGRAM: Final = """\
import everhold


@everhold.program
async def advice(ctx: everhold.Context, topic: str) -> str:
    return await ctx.llm(f"One sentence about {topic}.")
"""
SETTINGS: Final = 'database = "sqlite:///mcp.db"\nprograms = ["advice.py"]\n'
#: Rounds of calls that make one slice.
CALLS: Final = 20
OURS: Final = [str(Path(sys.executable).with_name("everhold")), "mcp"]
BARE: Final = [sys.executable, str(ROOT / "bench" / "bare_mcp.py")]


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    folder = stage.data / "mcp"
    folder.mkdir()
    (folder / "advice.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "everhold.toml").write_text(SETTINGS, encoding="utf-8")
    for name, command in (("everhold", OURS), ("bare", BARE)):
        starts = [_start(command, folder) for _ in range(stage.scale.starts + 1)][1:]
        yield Figure.of(f"mcp.{name}.first_answer_ms", "ms", [seconds * 1e3 for seconds in starts])
    ours, bare = asyncio.run(_rounds(folder, stage.scale.rounds))
    yield Figure.of("mcp.everhold.round_ms", "ms", [seconds * 1e3 for seconds in ours])
    yield Figure.of("mcp.bare.round_ms", "ms", [seconds * 1e3 for seconds in bare])
    yield Figure.of("mcp.round_over_bare", "×", [a / b for a, b in zip(ours, bare, strict=True)])


# ---- the start


def _start(command: list[str], folder: Path) -> float:
    """From starting the process to the answer to a tool call, in seconds."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    }
    asked = {"name": "run", "arguments": {"program": "advice", "args": {"topic": "tea"}}}
    before = perf_counter()
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin and server.stdout
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": asked},
        ):
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        server.stdin.flush()
        for line in server.stdout:
            reply = json.loads(line)
            if reply.get("id") == 2:
                _checked(
                    command, reply.get("result", {}).get("structuredContent"), "needs_response"
                )
                return perf_counter() - before
    raise WorkerFailed("everhold", f"{command} ended before it answered")


# ---- a round


async def _rounds(folder: Path, rounds: int) -> tuple[list[float], list[float]]:
    """Slices of both servers in turn, every second time in reverse; the first of each only warms
    up.
    """
    from mcp import Client, StdioServerParameters

    async with AsyncExitStack() as stack:
        clients = []
        for command in (OURS, BARE):
            server = StdioServerParameters(command=command[0], args=command[1:], cwd=folder)
            clients.append((command, await stack.enter_async_context(Client(server))))
        taken: dict[str, list[float]] = {OURS[0]: [], BARE[0]: []}
        for number in range(rounds + 1):
            for command, client in clients[:: 1 if number % 2 else -1]:
                taken[command[0]].append(await _slice(command, client))
    return taken[OURS[0]][1:], taken[BARE[0]][1:]


async def _slice(command: list[str], client: Any) -> float:
    """Seconds of one round, `run` to `completed`, over many."""
    before = perf_counter()
    for _ in range(CALLS):
        asked = await client.call_tool("run", {"program": "advice", "args": {"topic": "tea"}})
        began = _checked(command, asked.structured_content, "needs_response")
        said = [{"query_id": began["query_id"], "response": "Warm the pot."}]
        ended = await client.call_tool(
            "answer", {"session_id": began["session_id"], "answers": said}
        )
        _checked(command, ended.structured_content, "completed")
    return (perf_counter() - before) / CALLS


def _checked(command: list[str], found: Any, status: str) -> dict[str, Any]:
    if not isinstance(found, dict) or found.get("status") != status:
        raise WorkerFailed("everhold", f"{command} returned {found!r} instead of {status}")
    return found
