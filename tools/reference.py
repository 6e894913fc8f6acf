"""Writes the reference pages from the code; run through cog by `make fix`."""

from __future__ import annotations

import click

from everhold.cli.app import GROUPS, everhold
from everhold.core.session import MOVES
from everhold.errors import EverholdError, ProgramError, StateError, StoreError, UsageError, leaves
from everhold.programs.python.determinism_guard import REPORTED
from everhold.wire import ERROR_ROWS, ExitCode

BRANCHES = {
    UsageError: "The caller acts: change the call",
    StateError: "The wrong moment: read the status, then decide",
    StoreError: "The operator acts: the store has failed",
    ProgramError: (
        "The author of the program acts: it broke a rule of replay, or gets this error as an"
        " exception"
    ),
}
EXITS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: (
        "the session failed or was cancelled, two sessions differ, or a check of `doctor` failed"
    ),
    ExitCode.USAGE: "change the command: something does not exist, or does not match",
    ExitCode.STATE: "not possible in this state of the session",
    ExitCode.STORE: "the database could not be used, or `db verify` found damage",
    ExitCode.PROGRAM: "the program broke a rule, or `check` found sessions that would break",
    ExitCode.WAITING: "no error: the session waits for an answer or for time",
    ExitCode.LEFT: ("no error: work is left; run `worker --once` again, or start a worker"),
    ExitCode.CANNOT: (
        "no error: nothing is left for this worker, but sessions wait for a program or a model"
        " that it does not have"
    ),
    ExitCode.INTERRUPTED: "interrupted; the session is kept",
}


def exits() -> str:
    rows = [f"| {code.value} | {EXITS[code]} |" for code in ExitCode]
    return "\n".join(["| exit code | means |", "|---|---|", *rows])


def commands() -> str:
    """Every command with its help, in the order of `everhold --help`."""
    parts = []
    for group, names in GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            with click.Context(everhold, info_name="everhold") as root:
                command = everhold.get_command(root, name)
                assert command is not None
                parts += _command(command, root, name)
    return "\n".join(parts)


def _command(command: click.Command, parent: click.Context, name: str) -> list[str]:
    with click.Context(
        command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
    ) as context:
        level = "###" if parent.parent is None else "####"
        parts = [
            f"{level} {context.command_path}\n",
            f"```text\n{command.get_help(context)}\n```\n",
        ]
        if isinstance(command, click.Group):
            for sub in command.list_commands(context):
                found = command.get_command(context, sub)
                assert found is not None
                parts += _command(found, context, sub)
    return parts


def errors() -> str:
    """Every error, grouped by who must act."""
    parts = []
    for branch, words in BRANCHES.items():
        parts += [
            f"## {words}\n",
            "| code | raised as | exit | hint |",
            "|---|---|---|---|",
        ]
        parts += [_error(leaf) for leaf in leaves(branch)]
        parts.append("")
    return "\n".join(parts)


def _error(leaf: type[EverholdError]) -> str:
    _, code = next(ERROR_ROWS[kind] for kind in leaf.__mro__ if kind in ERROR_ROWS)
    hint = leaf.hint.replace("|", "\\|") or "*depends on the case*"
    return f"| `{leaf.code}` | `{leaf.__name__}` | {code.value} | {hint} |"


def states() -> str:
    """The moves between states as a diagram."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> running: started"]
    for state, moves in MOVES.items():
        for event, target in moves.items():
            lines.append(f"    {state} --> {target}: {event}")
        if not moves:
            lines.append(f"    {state} --> [*]")
    return "\n".join([*lines, "```"])


def moves() -> str:
    """The same as a table."""
    lines = ["| state | event | next state |", "|---|---|---|"]
    for state, targets in MOVES.items():
        for event, target in targets.items():
            lines.append(f"| `{state}` | {event} | `{target}` |")
        if not targets:
            lines.append(f"| `{state}` | none | |")
    return "\n".join(lines)


def reported() -> str:
    """What the guard of programs reports, in one sentence."""
    return "Reported are " + ", ".join(f"`{name}`" for name in sorted(set(REPORTED.values()))) + "."
