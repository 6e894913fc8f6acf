"""`everhold mcp`: the MCP server for a host's own model.

`everhold mcp install`, `uninstall` and `agent`: a host is told of the server, or no longer.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.context import load_settings
from everhold.cli.options import AnswerOptions, add_answer_options
from everhold.cli.output import print_json
from everhold.errors import BadSetting, MissingExtra

if TYPE_CHECKING:
    from everhold.mcp.hosts import HostFile, McpHost


_NAMES: Final = ("claude-code", "claude-desktop", "cursor", "vscode", "codex")

#: Where `everhold mcp --http` serves.
DEFAULT_HTTP_ADDRESS: Final = "127.0.0.1:8711"

_host = click.argument("host", type=click.Choice(_NAMES))
_scope = click.option(
    "--scope",
    type=click.Choice(["user", "project", "local"]),
    default="user",
    show_default=True,
    help="For you everywhere, for everybody in this folder, or for you in this folder (Claude"
    " Code).",
)
_name = click.option(
    "--name", default="everhold", show_default=True, help="What the server is called in the host."
)
_file = click.option("--file", metavar="PATH", help="Another file than the host's usual one.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs.")
_print = click.option(
    "--print", "only_print", is_flag=True, help="Print what belongs in the file; change nothing."
)
profile_option = click.option(
    "--profile",
    type=click.Choice(["default", "algocline"]),
    default="default",
    help="Which tools: everhold's own, or those of algocline for hosts and prompts made for it.",
)


@click.command("install")
@_host
@_scope
@_name
@click.option(
    "-d",
    "--database",
    metavar="ADDRESS",
    help="The database; without it, the settings say where it runs.",
)
@profile_option
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=DEFAULT_HTTP_ADDRESS,
    metavar="[URL]",
    help=f"Connect to a server that runs (everhold mcp --http) instead; {DEFAULT_HTTP_ADDRESS}"
    " if no URL or"
    " address is given.",
)
@_file
@_print
@_json
def install_host(
    host: str,
    scope: str,
    name: str,
    database: str | None,
    profile: str,
    address: str | None,
    file: str | None,
    only_print: bool,
    as_json: bool,
) -> None:
    """Tell a host how to start `everhold mcp`, or where it runs; its other settings stay as they
    are.
    """
    from everhold.mcp import hosts

    _refuse_missing()
    meant, place = _place(host, scope, file, name)
    if address is not None:
        from everhold.mcp.http import resolve_server_url

        if database is not None or profile != "default":
            raise BadSetting(
                "--http", "which database and tools it has is said where the server is started"
            )
        entry = meant.remote(resolve_server_url(address))
    else:
        words = hosts.build_server_command(
            None if database is None else load_settings(database).database
        )
        words += [] if profile == "default" else ["--profile", profile]
        entry = meant.entry(words)
    if only_print:
        click.echo(f"belongs in {place.file}:", err=True)
        click.echo(meant.snippet(place, name, entry), nl=False)
        return
    changed = hosts.add_server_entry(meant, place, name, entry)
    if as_json:
        reach = {"url": entry["url"]} if address is not None else {"command": words}
        print_json(
            {"host": host, "file": str(place.file), "name": name, "changed": changed, **reach}
        )
        return
    click.echo(f"{'wrote' if changed else 'nothing to do:'} {name} in {place.file}")
    if address is not None:
        click.echo(
            "The host reads the token from EVERHOLD_MCP_TOKEN: `everhold mcp --http` prints how"
            " to set it."
        )
    click.echo(meant.look)


@click.command("uninstall")
@_host
@_scope
@_name
@_file
@_json
def uninstall_host(host: str, scope: str, name: str, file: str | None, as_json: bool) -> None:
    """Take the server out of a host; its other settings stay as they are."""
    from everhold.mcp import hosts

    meant, place = _place(host, scope, file, name)
    changed = hosts.remove_server_entry(meant, place, name)
    if as_json:
        print_json({"host": host, "file": str(place.file), "name": name, "changed": changed})
    else:
        click.echo(
            f"took {name} out of {place.file}"
            if changed
            else f"nothing to do: no {name} in {place.file}"
        )


@click.command("agent")
@click.argument("host", type=click.Choice(["claude-code"]))
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="project",
    show_default=True,
    help="For everybody in this folder, or for you everywhere.",
)
@_name
@_print
@click.option("--remove", is_flag=True, help="Take it away again.")
def write_subagent(host: str, scope: str, name: str, only_print: bool, remove: bool) -> None:
    """Write a sub-agent that runs a strategy from start to result by itself."""
    from everhold.mcp import instructions
    from everhold.mcp.hosts import HostEnvironment

    _checked(name)
    file = instructions.get_subagent_file(
        HostEnvironment(), cast("Literal['user', 'project']", scope)
    )
    if only_print:
        click.echo(instructions.render_subagent(name), nl=False)
    elif remove:
        click.echo(
            f"took away {file}"
            if instructions.remove_subagent_file(file)
            else f"nothing to do: no {file}"
        )
    else:
        click.echo(
            f"{'wrote' if instructions.write_subagent_file(file, instructions.render_subagent(name)) else 'nothing to do:'} {file}"  # noqa: E501
        )
        click.echo("Ask Claude Code: use the everhold agent to …")


def _place(host: str, scope: str, file: str | None, name: str) -> tuple[McpHost, HostFile]:
    from everhold.mcp.hosts import HOSTS, HostEnvironment, HostFile, Scope

    _checked(name)
    meant = HOSTS[host]
    place = meant.place(HostEnvironment(), cast("Scope", scope))
    return meant, place if file is None else HostFile(
        Path(file).expanduser().absolute(), place.servers
    )


def _checked(name: str) -> None:
    """Hosts make tool names of it, so it has the letters that all of them take."""
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 32:
        raise BadSetting("--name", f"{name!r} should be letters, digits, - and _, at most 32")


def _refuse_missing() -> None:
    """A host would only see a server that does not start."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise MissingExtra("mcp", "everhold mcp")


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
            from everhold.mcp.stdio import serve_stdio

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
