"""The waiting times of a host: the server's start, and a round of a call and its answer, beside the
protocol library alone; and the memory of a server that waits for its first session.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Final

from bench.figure import Figure
from bench.stage import QUIET, Stage
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
HELLO: Final = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
#: All write the compiled files of Python, which the first start makes, as those of users do.
_ENVIRONMENT: Final = {**os.environ, **QUIET}
_EVERHOLD: Final = [str(Path(sys.executable).with_name("everhold")), "mcp"]


@dataclass(frozen=True, slots=True)
class Server:
    """A server, the call that begins a session in it, and the tool that answers its question."""

    name: str
    command: list[str]
    begin: tuple[str, dict[str, Any]]
    answer: str

    def read(self, result: Any, status: str) -> dict[str, Any]:
        """The status in a result; raises `WorkerFailed` if it is another one."""
        found = result.get("structuredContent") or _parse_text(result)
        if not isinstance(found, dict) or found.get("status") != status:
            raise WorkerFailed("everhold", f"{self.command} returned {found!r} instead of {status}")
        return found

    def reply(self, begun: dict[str, Any]) -> dict[str, Any]:
        """The arguments that answer the question of a session."""
        said = "Warm the pot."
        if self.answer == "alc_continue":
            return {"session_id": begun["session_id"], "response": said}
        answers = [{"id": begun["questions"][0]["id"], "response": said}]
        return {"session_id": begun["session_id"], "answers": answers}


_RUN: Final = ("run", {"program": "advice", "args": {"topic": "tea"}})
_RUN_LUA: Final = ("alc_run", {"code": "return alc.llm('One sentence about tea.')"})
OURS: Final = Server("everhold", _EVERHOLD, _RUN, "answer")
LUA: Final = Server("algocline", [*_EVERHOLD, "--profile", "algocline"], _RUN_LUA, "alc_continue")
BARE: Final = Server("bare", [sys.executable, str(ROOT / "bench" / "bare_mcp.py")], _RUN, "answer")
SERVERS: Final = (OURS, LUA, BARE)


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    folder = stage.data / "mcp"
    folder.mkdir()
    (folder / "advice.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "everhold.toml").write_text(SETTINGS, encoding="utf-8")
    starts: dict[str, list[float]] = {server.name: [] for server in SERVERS}
    for number in range(stage.scale.starts + 1):  # the first of each only warms up
        for server in SERVERS[:: 1 if number % 2 else -1]:
            starts[server.name].append(_start(server, folder))
    yield from _figures("first_answer", {name: taken[1:] for name, taken in starts.items()})
    for server in SERVERS:
        memory = _measure_memory(server, folder)
        if memory:
            yield Figure.of(f"mcp.{server.name}.memory_mb", "MB", [memory])
    yield from _figures("round", asyncio.run(_rounds(folder, stage.scale.rounds)))


def _figures(what: str, taken: dict[str, list[float]]) -> Iterator[Figure]:
    for name, seconds in taken.items():
        yield Figure.of(f"mcp.{name}.{what}_ms", "ms", [second * 1e3 for second in seconds])
    for name in (OURS.name, LUA.name):
        ratios = [ours / bare for ours, bare in zip(taken[name], taken[BARE.name], strict=True)]
        yield Figure.of(f"mcp.{name}.{what}_over_bare", "×", ratios)


# ---- the start


def _start(server: Server, folder: Path) -> float:
    """From starting the process to the answer to a tool call, in seconds."""
    name, arguments = server.begin
    before = perf_counter()
    with _running(server, folder) as (_, send, read):
        send(
            {"id": 1, "method": "initialize", "params": HELLO},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": name, "arguments": arguments}},
        )
        server.read(read(2), "needs_response")
        return perf_counter() - before


def _measure_memory(server: Server, folder: Path) -> float:
    """Resident megabytes of a server that has listed its tools; 0 where that cannot be read."""
    with _running(server, folder) as (process, send, read):
        send({"id": 1, "method": "initialize", "params": HELLO})
        read(1)
        send({"method": "notifications/initialized"}, {"id": 2, "method": "tools/list"})
        read(2)
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0.0
    return next(
        int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")
    )


@contextmanager
def _running(server: Server, folder: Path) -> Iterator[Any]:
    """A server as a host starts it, with functions that send to it and read a result."""
    with subprocess.Popen(
        server.command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        text=True,
    ) as process:
        source: IO[str] | None = process.stdin
        replies = process.stdout
        assert source and replies

        def send(*messages: dict[str, Any]) -> None:
            for message in messages:
                source.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            source.flush()

        def read(number: int) -> Any:
            for line in replies:
                reply = json.loads(line)
                if reply.get("id") == number:
                    return reply.get("result", {})
            raise WorkerFailed("everhold", f"{server.command} ended before it answered")

        yield process, send, read


# ---- a round


async def _rounds(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Slices of all servers in turn, every second time in reverse; the first of each only warms
    up.
    """
    from mcp import Client, StdioServerParameters

    async with AsyncExitStack() as stack:
        clients = []
        for server in SERVERS:
            how = StdioServerParameters(
                command=server.command[0], args=server.command[1:], cwd=folder, env=_ENVIRONMENT
            )
            clients.append((server, await stack.enter_async_context(Client(how))))
        taken: dict[str, list[float]] = {server.name: [] for server in SERVERS}
        for number in range(rounds + 1):
            for server, client in clients[:: 1 if number % 2 else -1]:
                taken[server.name].append(await _slice(server, client))
    return {name: seconds[1:] for name, seconds in taken.items()}


async def _slice(server: Server, client: Any) -> float:
    """Seconds of one round, from the call to `completed`, over many."""
    before = perf_counter()
    for _ in range(CALLS):
        begun = server.read(_dump(await client.call_tool(*server.begin)), "needs_response")
        ended = await client.call_tool(server.answer, server.reply(begun))
        server.read(_dump(ended), "completed")
    return (perf_counter() - before) / CALLS


def _dump(result: Any) -> dict[str, Any]:
    text = result.content[0].text if result.content else ""
    return {"structuredContent": result.structured_content, "content": [{"text": text}]}


def _parse_text(result: dict[str, Any]) -> Any:
    """The results of algocline's tools are JSON as text."""
    try:
        return json.loads(result["content"][0]["text"])
    except (KeyError, IndexError, ValueError):
        return result
