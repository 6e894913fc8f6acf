"""The command `tools`: the tools of a conversation."""

from __future__ import annotations

import click

from everhold.cli.context import open_command_runtime
from everhold.cli.options import add_common_options, session_argument
from everhold.cli.output import format_line, print_footer, print_json, print_table


@click.command("tools")
@session_argument
@add_common_options
def tools_(session: str, database: str | None, as_json: bool) -> None:
    """List the tools of a conversation, offered to its model or not.

    The code of the agent is not loaded. With --json, the schemas are listed too.
    """
    import msgspec

    with open_command_runtime(database) as opened:
        session_id = opened.session(session)
        view = opened.runtime.conversation(session_id).tools()
        if as_json:
            return print_json({"database": opened.database, **msgspec.to_builtins(view)})
        if view.tools:
            rows = [
                (
                    one.name,
                    str(one.state),
                    one.source or "",
                    one.why or format_line(one.description, 80),
                )
                for one in view.tools
            ]
            print_table(("name", "state", "source", "about"), rows, wide=("name", "about"))
        else:
            click.echo("no tools")
        click.echo(f"generation {view.generation}")
        print_footer(opened.database)
