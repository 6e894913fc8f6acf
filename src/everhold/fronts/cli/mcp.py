"""`everhold mcp`: the MCP server for a host's own model."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from everhold.core.errors import MissingExtra
from everhold.fronts.cli.answering import Answering, answering
from everhold.fronts.cli.app import Verbs
from everhold.fronts.cli.mcp_hosts import agent_, install_, profile_, uninstall_

HTTP: Final = "127.0.0.1:8711"


@click.group("mcp", cls=Verbs, invoke_without_command=True)
@click.option("-d", "--database", metavar="ADDRESS", help="Which database; without it, the settings say which.")
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=HTTP,
    metavar="[HOST:PORT]",
    help=f"Serve over HTTP, at /mcp; {HTTP} if no address is given.",
)
@click.option(
    "--token",
    envvar="EVERHOLD_MCP_TOKEN",
    metavar="SECRET",
    help="What HTTP clients must send as bearer token; needed for any address but loopback.",
)
@profile_
@click.option("--inline", is_flag=True, help="Let the settings' llm or answer_with answer, instead of the host.")
@answering
@click.pass_context
def mcp_(
    context: click.Context,
    database: str | None,
    address: str | None,
    token: str | None,
    profile: str,
    inline: bool,
    who: Answering,
) -> None:
    """Serve MCP: a host's own model runs strategies and answers them.

    Without a subcommand it serves: over standard input and output, as hosts start it, or over HTTP.
    """
    if context.invoked_subcommand is not None:
        return
    if address is None:
        from everhold.fronts.mcp.stdout import guard

        guard()
    _require()
    llm = who.llm(database) if inline or who.said else None
    from everhold.fronts.mcp.library import load

    if address is None:
        with _without_collecting():
            load(web=False)
            from everhold.fronts.mcp.serve import serve

        asyncio.run(serve(database, llm=llm, profile=profile))
    else:
        with _without_collecting():
            load(web=True)
            from everhold.fronts.mcp.http import serve as serve_http

        asyncio.run(serve_http(database, llm=llm, address=address, token=token, profile=profile))


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Load what stays: looking for garbage in it takes a fifth of the start, and later a part of every look."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _require() -> None:
    """Raise `MissingExtra` if the protocol's library is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise MissingExtra("mcp", "the MCP server")


for _command in (install_, uninstall_, agent_):
    mcp_.add_command(_command)
