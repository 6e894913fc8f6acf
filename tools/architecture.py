"""Draws the picture of packages from the layers in `.importlinter`; cog runs it (`make fix`)."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
#: What each package or module of the top level is for.
PURPOSES: Final = {
    "__main__": "the command `everhold`",
    "cli": "commands: they translate and decide nothing",
    "mcp": "the MCP server for a host's own model",
    "testing": "the test kit, crash tests, conformance suites",
    "agui": "events in the words of AG-UI",
    "wire": "statuses and errors as JSON and exit codes",
    "strategies": "the built-in strategies, by their public names",
    "blocking": "the same verbs for code that is not async",
    "runtime": "Runtime: about 20 verbs, and the parts it owns",
    "agents": "conversations, turns, tools, plugins",
    "archive": "export, import, check, gc, verify",
    "schedules": "schedules and triggers",
    "evals": "evals: programs measured on cases, and compared",
    "notify": "notifications by command and webhook",
    "cards": "records of runs, in the database and in files of algocline",
    "movers": "who moves sessions, and when: local, workers",
    "packages": "where programs, packages and settings are found",
    "engine": "the one engine: accept, move, reconcile",
    "programs": "Python and Lua programs",
    "stores": "memory, SQLite, PostgreSQL",
    "models": "who answers model questions",
    "plugins": "the built-in plugins",
    "hooks": "the plugin spec on one page",
    "ports": "protocols that implementations fulfil",
    "core": "records and rules; no I/O, no clock, no dice",
    "errors": "every error, in one tree",
    "lazy_exports": "loads public names when they are used",
    "portability": "what differs between operating systems",
    "exception_info": "what is kept of an exception: type, message, frames",
    "shell_command": "the commands that messages tell",
}


def layers() -> list[list[str]]:
    """The packages of each layer, the highest first."""
    config = ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    lines = config["importlinter:contract:layers"]["layers"].split("\n")
    return [[name.strip(" ()") for name in line.split("|")] for line in lines if line.strip()]


def picture() -> str:
    """One block per layer; a package may import the packages below its block."""
    wide = max(map(len, PURPOSES)) + 3
    blocks = [
        "\n".join(f"{name:<{wide}}{PURPOSES[name]}" for name in layer)
        for layer in layers()
        if layer != ["__main__"]
    ]
    rule = "-" * (wide + max(map(len, PURPOSES.values())))
    return f"```text\n{f'{chr(10)}{rule}{chr(10)}'.join(blocks)}\n```"
