"""`everhold mcp`: the MCP server for a host's own model."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import click

from everhold.cli.answer_options import AnswerOptions, add_answer_options
from everhold.cli.app import SubcommandGroup
from everhold.cli.mcp_hosts import (
    DEFAULT_HTTP_ADDRESS,
    install_host,
    profile_option,
    uninstall_host,
    write_subagent,
)
from everhold.errors import BadSetting, MissingExtra


@click.group("mcp", cls=SubcommandGroup, invoke_without_command=True)
@click.option(
    "-d",
    "--database",
    metavar="ADDRESS",
    help="Which database; without it, the settings say which.",
)
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=DEFAULT_HTTP_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve over HTTP, at /mcp; {DEFAULT_HTTP_ADDRESS} if no address is given.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="The token that HTTP clients send; made if missing. Else EVERHOLD_MCP_TOKEN, or a file"
    " in the data folder.",
)
@click.option(
    "--no-token", is_flag=True, help="Serve loopback to every user and program of this machine."
)
@click.option("--token", hidden=True)
@profile_option
@click.option(
    "--inline",
    is_flag=True,
    help="Let the settings' llm or answer_with answer, instead of the host.",
)
@add_answer_options
@click.pass_context
def mcp_(
    context: click.Context,
    database: str | None,
    address: str | None,
    token_file: str | None,
    no_token: bool,
    token: str | None,
    profile: str,
    inline: bool,
    who: AnswerOptions,
) -> None:
    """Serve MCP: a host's own model runs strategies and answers them.

    Without a subcommand it serves: over standard input and output, as hosts start it, or over HTTP.
    """
    if context.invoked_subcommand is not None:
        return
    if address is None:
        from everhold.mcp.stdout import guard_stdout

        guard_stdout()
    _refuse_shown(token)
    if address is None and (token_file is not None or no_token):
        raise BadSetting(
            "--token-file" if token_file is not None else "--no-token", "it is for --http only"
        )
    if no_token and token_file is not None:
        raise BadSetting("--no-token", "--token-file names a token; give one of the two")
    _require()
    llm = who.llm(database) if inline or who.said else None
    from everhold.mcp.sdk import load_sdk

    if address is None:
        with _without_collecting():
            load_sdk(web=False)
            from everhold.mcp.serve import serve_stdio

        asyncio.run(serve_stdio(database, llm=llm, profile=profile))
    else:
        with _without_collecting():
            load_sdk(web=True)
            from everhold.mcp.http import serve_http as serve_http
            from everhold.mcp.token import load_token as token_of

        found = None if no_token else token_of(token_file)
        asyncio.run(serve_http(database, llm=llm, address=address, token=found, profile=profile))


def _refuse_shown(token: str | None) -> None:
    """Raise `BadSetting` for a token on the command line."""
    if token is not None:
        error = BadSetting(
            "--token",
            "every user of this machine can read the command line; no token is taken from it",
        )
        error.hint = (
            "Put it into a file and say --token-file FILE, or set EVERHOLD_MCP_TOKEN."
            " Choose another token."
        )
        raise error


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Load what stays: looking for garbage in it takes a fifth of the start, and later a part of
    every look.
    """
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


for _command in (install_host, uninstall_host, write_subagent):
    mcp_.add_command(_command)
