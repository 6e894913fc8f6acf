"""The measures. A measure takes the stage and returns figures; it does not know the targets."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from bench.figure import Figure
from bench.measures import (
    agents,
    approvals,
    calls,
    cold,
    crowd,
    fleet,
    fresh,
    growth,
    instructions,
    length,
    lists,
    lua,
    mcp,
    paused,
    postgres,
    processes,
    resume,
    size,
    startup,
    statements,
    step,
)
from bench.stage import Stage

MEASURES: Final[Mapping[str, Callable[[Stage], Iterable[Figure]]]] = {
    "step": step.measure,
    "cold": cold.measure,
    "calls": calls.measure,
    "approvals": approvals.measure,
    "fresh": fresh.measure,
    "size": size.measure,
    "length": length.measure,
    "crowd": crowd.measure,
    "processes": processes.measure,
    "resume": resume.measure,
    "paused": paused.measure,
    "lists": lists.measure,
    "growth": growth.measure,
    "lua": lua.measure,
    "agents": agents.measure,
    "startup": startup.measure,
    "mcp": mcp.measure,
    "postgres": postgres.measure,
    "statements": statements.measure,
    "fleet": fleet.measure,
    "instructions": instructions.measure,
}
