"""The command `everhold`: its commands in four groups, how mistakes are told, and how it exits.

Rules
  1. A mistake of the user is one line, `error: … [code]`, and a line `hint: …` if there is one; never a traceback.
  2. With `--json` there is one JSON document on standard output, also for an error.
  3. Exit codes come from `fronts/wire.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click

#: Help sections, and the modules that hold their commands. A command is the attribute of its name.
GROUPS: Final = {
    "Run": {"demo": "run"},
}


class Commands(click.Group):
    """Loads a command when it is asked for, and lists them in sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for names in GROUPS.values():
            if cmd_name in names:
                module = import_module(f"everhold.fronts.cli.{names[cmd_name]}")
                found: click.Command = getattr(module, f"{cmd_name}_")
                return found
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in GROUPS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None and not command.hidden:
                    rows.append((name, command.get_short_help_str(formatter.width)))
            with formatter.section(section):
                formatter.write_dl(rows)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="everhold", message="everhold %(version)s")
def everhold() -> None:
    """LLM programs that stop wherever they need an answer, and survive everything while they wait."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns how to exit."""
    return int(everhold.main(args=arguments, prog_name="everhold", standalone_mode=False) or 0)
