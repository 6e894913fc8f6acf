"""`everhold mcp`: the MCP server, and its entry in the configuration of hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import click

from everhold.cli.app import SubcommandGroup
from everhold.cli.candidates import complete_files
from everhold.cli.context import load_settings
from everhold.cli.options import AnswerOptions, add_answer_options, database_option, json_option
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
    help="For you in all folders, for everyone in this folder, or for you in this folder (Claude"
    " Code only).",
)
_name = click.option(
    "--name",
    default="everhold",
    show_default=True,
    metavar="TEXT",
    help="The name of the server in the host.",
)
_file = click.option(
    "--file",
    metavar="PATH",
    shell_complete=complete_files,
    help="The configuration file. Default: that of the host.",
)
_print = click.option(
    "--print", "only_print", is_flag=True, help="Print the entry instead of writing it."
)
profile_option = click.option(
    "--profile",
    type=click.Choice(["default", "algocline"]),
    default="default",
    show_default=True,
    help="The tools of everhold, or those of algocline for hosts and prompts made for it.",
)


@click.command("install")
@_host
@_scope
@_name
@click.option(
    "-d",
    "--database",
    metavar="ADDRESS",
    shell_complete=complete_files,
    help="The database of the server. Default: from the settings of the folder in which it runs.",
)
@profile_option
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=DEFAULT_HTTP_ADDRESS,
    metavar="[URL]",
    help="Connect to a running server (everhold mcp --http) instead of starting one. Default URL:"
    f" {DEFAULT_HTTP_ADDRESS}.",
)
@_file
@_print
@json_option
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
    """Add the server to the configuration of a host. Other settings in the file stay.

    \b
    everhold mcp install claude-code --scope project
    everhold mcp install cursor --print
    """
    from everhold.mcp import hosts

    _require_sdk("everhold mcp")  # else the host reports only that the server does not start
    found, place = _find_host(host, scope, file, name)
    if address is not None:
        from everhold.mcp.http import resolve_server_url

        if database is not None or profile != "default":
            raise BadSetting(
                "--http", "choose the database and the tools where the server is started"
            )
        entry = found.remote(resolve_server_url(address))
    else:
        words = hosts.build_server_command(
            None if database is None else load_settings(database).database
        )
        words += [] if profile == "default" else ["--profile", profile]
        entry = found.entry(words)
    if only_print:
        click.echo(f"add this to {place.file}:", err=True)
        click.echo(found.snippet(place, name, entry), nl=False)
        return
    changed = hosts.add_server_entry(found, place, name, entry)
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
    click.echo(found.look)


@click.command("uninstall")
@_host
@_scope
@_name
@_file
@json_option
def uninstall_host(host: str, scope: str, name: str, file: str | None, as_json: bool) -> None:
    """Remove the server from the configuration of a host. Other settings in the file stay."""
    from everhold.mcp import hosts

    found, place = _find_host(host, scope, file, name)
    changed = hosts.remove_server_entry(found, place, name)
    if as_json:
        print_json({"host": host, "file": str(place.file), "name": name, "changed": changed})
    else:
        click.echo(
            f"removed {name} from {place.file}"
            if changed
            else f"nothing to do: there is no {name} in {place.file}"
        )


@click.command("agent")
@click.argument("host", type=click.Choice(["claude-code"]))
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="project",
    show_default=True,
    help="For everyone in this folder, or for you in all folders.",
)
@_name
@_print
@click.option("--remove", is_flag=True, help="Remove it again.")
def write_subagent(host: str, scope: str, name: str, only_print: bool, remove: bool) -> None:
    """Write a subagent for Claude Code that runs a program from start to result."""
    from everhold.mcp import instructions
    from everhold.mcp.hosts import HostEnvironment

    _check_name(name)
    file = instructions.get_subagent_file(
        HostEnvironment(), cast("Literal['user', 'project']", scope)
    )
    if only_print:
        click.echo(instructions.render_subagent(name), nl=False)
    elif remove:
        click.echo(
            f"removed {file}"
            if instructions.remove_subagent_file(file)
            else f"nothing to do: there is no {file}"
        )
    else:
        click.echo(
            f"{'wrote' if instructions.write_subagent_file(file, instructions.render_subagent(name)) else 'nothing to do:'} {file}"  # noqa: E501
        )
        click.echo("Now ask Claude Code to use the everhold agent.")


def _find_host(host: str, scope: str, file: str | None, name: str) -> tuple[McpHost, HostFile]:
    from everhold.mcp.hosts import HOSTS, HostEnvironment, HostFile, Scope

    _check_name(name)
    found = HOSTS[host]
    place = found.place(HostEnvironment(), cast("Scope", scope))
    return found, place if file is None else HostFile(
        Path(file).expanduser().absolute(), place.servers
    )


def _check_name(name: str) -> None:
    """Raises for a name with characters that some hosts refuse in tool names."""
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or len(name) > 32:
        raise BadSetting("--name", f"{name!r} must be at most 32 letters, digits, - and _")


@click.group("mcp", cls=SubcommandGroup, invoke_without_command=True)
@database_option
@click.option(
    "--http",
    "address",
    is_flag=False,
    flag_value=DEFAULT_HTTP_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve over HTTP, at /mcp. Default address: {DEFAULT_HTTP_ADDRESS}.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    shell_complete=complete_files,
    help="The file with the token that HTTP clients send; created if missing. Default:"
    " EVERHOLD_MCP_TOKEN, else a file in the data folder.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Serve without a token, to every user and program of this machine.",
)
@click.option("--token", hidden=True)
@profile_option
@click.option(
    "--inline",
    is_flag=True,
    help="Let the model or command of the settings answer, instead of the host.",
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
    answerer: AnswerOptions,
) -> None:
    """Serve MCP: the model of a host runs and answers programs.

    Without a subcommand it serves over standard input and output, as hosts start it. With --http it
    serves over HTTP.

    \b
    everhold mcp install claude-code    add the server to a host
    everhold mcp --http                 serve several hosts
    """
    if context.invoked_subcommand is not None:
        return
    if address is None:
        from everhold.mcp.stdout import guard_stdout

        guard_stdout()
    _refuse_typed_token(token)
    if address is None and (token_file is not None or no_token):
        raise BadSetting(
            "--token-file" if token_file is not None else "--no-token", "it needs --http"
        )
    if no_token and token_file is not None:
        raise BadSetting("--no-token", "give it or --token-file, not both")
    _require_sdk("the MCP server")
    llm = answerer.llm(database) if inline or answerer.given else None
    from everhold.mcp.sdk import load_sdk, pause_garbage_collection

    if address is None:
        with pause_garbage_collection():
            from everhold.mcp.stdio import serve_stdio

        asyncio.run(serve_stdio(database, llm=llm, profile=profile))
    else:
        with pause_garbage_collection():
            load_sdk(web=True)
            from everhold.mcp.http import serve_http as serve_http
            from everhold.mcp.token import load_token as token_of

        found = None if no_token else token_of(token_file)
        asyncio.run(serve_http(database, llm=llm, address=address, token=found, profile=profile))


def _refuse_typed_token(token: str | None) -> None:
    """Raise `BadSetting` for a token on the command line."""
    if token is not None:
        error = BadSetting(
            "--token",
            "every user of this machine can read the command line, so a token in it is not secret",
        )
        error.hint = (
            "Choose another token. Put it into a file and use --token-file FILE, or set"
            " EVERHOLD_MCP_TOKEN."
        )
        raise error


def _require_sdk(feature: str) -> None:
    """Raises `MissingExtra` if the MCP SDK is not installed."""
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise MissingExtra("mcp", feature)


for _command in (install_host, uninstall_host, write_subagent):
    mcp_.add_command(_command)
