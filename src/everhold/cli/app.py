"""The command `everhold`: its commands in four groups, how mistakes are reported, and exit codes.

Rules
  1. A mistake of the user prints one line, `error: … [code]`, and mostly a line `hint: …`; never a
     traceback of everhold. If code of the user failed, its frames come before these lines.
  2. With `--json`, one JSON document goes to standard output, also for an error.
  3. Exit codes come from `wire.py`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from everhold.errors import EverholdError

#: The sections of the help, and the module of each command, which defines it as its name and `_`.
GROUPS: Final = {
    "Run": {
        "demo": "demo",
        "init": "init",
        "run": "run",
        "chat": "chat",
        "retry": "run",
        "fork": "run",
        "budget": "budget",
        "eval": "eval",
        "schedule": "schedule",
        "trigger": "trigger",
        "emit": "trigger",
        "worker": "worker",
        "mcp": "mcp",
    },
    "Inspect": {
        "programs": "programs",
        "sessions": "sessions",
        "show": "sessions",
        "explain": "diagnose",
        "tools": "tools",
        "watch": "sessions",
        "replay": "replay",
        "diff": "replay",
        "check": "transfer",
        "usage": "sessions",
        "info": "diagnose",
        "doctor": "diagnose",
        "version": "diagnose",
    },
    "Answer": {
        "inbox": "sessions",
        "answer": "answer",
        "send": "intake",
        "intake": "intake",
        "command": "intake",
        "signal": "answer",
        "cancel": "answer",
        "outbox": "outbox",
    },
    "Manage": {
        "export": "transfer",
        "import": "transfer",
        "delete": "db",
        "db": "db",
        "pkg": "pkg",
        "card": "card",
        "hub": "hub",
        "completion": "completion",
    },
}


#: The first sentence of each command, so that `everhold --help` need not import it.
HELP: Final = {
    "demo": "Kill a program in the middle and see it resume; needs no API key.",
    "init": "Create a folder with a program, its test and its settings.",
    "run": "Run a program, or resume a session.",
    "chat": "Talk to an agent, or resume a conversation.",
    "retry": "Retry a failed session from its last answer, with fixed code.",
    "fork": "Start a session from a step of another; the answer may differ.",
    "budget": "Show what a session may spend, or change it.",
    "eval": "Measure programs on cases, and compare them: run, list, show.",
    "worker": "Start a worker: it moves the sessions of a database.",
    "schedule": "Start programs at certain times: list, add, next, pause, and more.",
    "trigger": "Start programs when an event happens: list, add, log, and more.",
    "emit": "Emit an event; what it triggers is started once.",
    "mcp": "Serve MCP: the model of a host runs and answers programs.",
    "programs": "List the programs that `run` knows by name, or describe one.",
    "sessions": "List sessions, newest first.",
    "show": "Show a session: its questions, its answers, and how it ended.",
    "explain": "Explain the state of a session, and what to do next.",
    "tools": "List the tools of a conversation, offered to its model or not.",
    "watch": "Follow a session until it ends: each step as it is recorded.",
    "replay": "Replay a session from its journal, without calls or questions.",
    "diff": "Compare two sessions, first difference first.",
    "check": "Check which sessions would break with the code as it is now.",
    "usage": "Sum up the model calls and tokens of sessions.",
    "info": "Print the database, settings and programs used here, and why.",
    "doctor": "Check settings, database, programs and the answering command.",
    "version": "Print the version of everhold.",
    "inbox": "List the open questions of all sessions, the oldest session first.",
    "answer": "Answer a question; without a VALUE, at the terminal.",
    "send": "Send a message to a conversation, also during a turn.",
    "intake": "List the queued input of a conversation, or cancel it.",
    "command": "Reset or compact a conversation, or stop its turn.",
    "signal": "Send a signal; it is kept until the program receives it.",
    "cancel": "Cancel a session and its children.",
    "outbox": "List notifications and their state; send them again, or drop them.",
    "export": "Write sessions and their children to a file.",
    "import": "Import the sessions of an exported file; they resume here.",
    "delete": "Delete a session for good.",
    "db": "Maintain the database: path, verify, gc, vacuum, migrate, copy.",
    "pkg": "Install, link, list, repair and trust packages of programs.",
    "card": "List, search, name and install cards, the records of runs.",
    "hub": "Search for packages, and publish your own.",
    "completion": "Print a script for shell completion: bash, zsh or fish.",
}
#: Hints for the command line, in place of those for Python. `{session}` is what was typed.
HINTS: Final = {
    "many_open_queries": ("`{show}` lists them. To answer the first: {answer}"),
    "illegal_move": "See what you can do: {explain}",
}


class StdoutClosed(Exception):
    """The reader of standard output has closed it, as with `| head`. That is not a failure."""


class LazyCommandGroup(click.Group):
    """Imports a command when it is used, and lists the commands in sections."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise StdoutClosed from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for names in GROUPS.values():
            if cmd_name in names:
                module = import_module(f"everhold.cli.{names[cmd_name]}")
                found: click.Command = getattr(module, f"{cmd_name}_")
                return found
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:  # a shell completes the line, and an error would be in its way
            return super().resolve_command(ctx, args)
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"no command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """As click's, without importing every command for its help."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=HELP[name]) for name in names] + options

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in GROUPS.items():
            with formatter.section(section):
                formatter.write_dl([(name, HELP[name]) for name in names])


class SubcommandGroup(click.Group):
    """Subcommands, each listed with its whole first sentence, also in a narrow terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, one.get_short_help_str(limit=300))
                    for name, one in sorted(self.commands.items())
                ]
            )


@click.group(
    cls=LazyCommandGroup,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(
    None, "-V", "--version", package_name="everhold", message="everhold %(version)s"
)
@click.pass_context
def everhold(context: click.Context) -> None:
    """Durable execution for LLM programs and agents: they wait for answers and survive crashes.

    A SESSION is an id, the beginning of an id, a key, or @last (the newest session).

    \b
    everhold run shop.py:refund order=7    run a program of yours
    everhold inbox                         list what waits for an answer
    everhold answer @last                  answer it
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    _prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--json" not in words:
        return _run(words, as_json=False)
    from everhold.cli.output import reserve_stdout_for_json

    with reserve_stdout_for_json():
        return _run(words, as_json=True)


def _prepare_streams() -> None:
    """Opens standard streams that are closed, because the next opened file would take their place.
    Characters that the encoding of the terminal lacks are printed as escapes.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _color() -> bool | None:
    """False for no colours and styles; None lets click decide by the terminal."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _run(words: list[str], *, as_json: bool) -> int:
    if "_EVERHOLD_COMPLETE" in os.environ:
        from everhold.cli.completion import print_completions

        return print_completions(everhold)
    try:
        return int(
            everhold.main(args=words, prog_name="everhold", standalone_mode=False, color=_color())
            or 0
        )
    except StdoutClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (KeyboardInterrupt, click.Abort):
        from everhold.wire import ExitCode

        return ExitCode.INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return _report_full_disk(error)
        if isinstance(error, FileNotFoundError) and _is_folder_deleted():
            from everhold.errors import BadSetting

            error = BadSetting("current folder", "it was deleted; change to another")
        return report_error(error, words, as_json=as_json)


def _is_folder_deleted() -> bool:
    """Whether the current folder was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _report_full_disk(error: OSError) -> int:
    """Reports that standard output cannot be written, as with `> file` on a full disk."""
    from everhold.wire import ExitCode

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    click.secho(
        f"error: the output cannot be written: {error.strerror} [usage]",
        err=True,
        fg="red",
        color=_color(),
    )
    return ExitCode.USAGE


def _find_typed_database(words: Sequence[str]) -> str | None:
    """The value of `--database` in a command line."""
    for word, after in zip_longest(words, words[1:]):
        if word in ("-d", "--database"):
            return after
        if word.startswith("--database="):
            return word.removeprefix("--database=")
    return None


def _find_typed_command(words: Sequence[str]) -> str:
    """The command and its subcommand in a command line."""
    path: str = "everhold"
    group: click.Group = everhold
    for word in words:
        found = group.get_command(click.Context(group), word)
        if found is None:
            break
        path = f"{path} {word}"
        if not isinstance(found, click.Group):
            break
        group = found
    return path


def _hint_for_option(error: click.NoSuchOption, path: str) -> str:
    """A hint for an option that belongs elsewhere; empty if there is none."""
    if path == "everhold" and error.option_name in ("-d", "--database", "--json"):
        return "Options belong after the command: everhold sessions --help"
    hint: str = getattr(error, "hint", "")
    return hint


def _format_hint(error: EverholdError, session: str) -> str:
    """The hint of an error for the command line."""
    from everhold.shell_command import format_command

    session = session or "@last"
    question = (getattr(error, "query_ids", None) or ["q-0"])[0]
    return HINTS[error.code].format(
        show=format_command("show", session),
        explain=format_command("explain", session),
        answer=format_command("answer", session, "--query", question),
    )


def report_error(error: Exception, words: Sequence[str] = (), *, as_json: bool) -> int:
    """Prints a mistake in one or two lines; returns the exit code. An unexpected error is raised
    again. `words` are the command line.
    """
    from everhold.cli.context import format_typed_database, get_typed_name
    from everhold.errors import Diverged, EverholdError, name_session
    from everhold.shell_command import add_database_option
    from everhold.wire import ExitCode, error_json, exit_code

    if isinstance(error, EverholdError):
        session_id = getattr(error, "session_id", "")
        name = get_typed_name(session_id)
        name_session(error, name)
        if isinstance(error, Diverged):
            error.tell_fork(name or "@last")
        code = exit_code(error)
        facts = error_json(error)
        hint = facts.get("hint")
        if error.code in HINTS:
            hint = _format_hint(error, name)
        if hint:
            option = format_typed_database(_find_typed_database(words))
            facts |= {"hint": add_database_option(hint, option)}
    elif isinstance(error, click.ClickException):
        path = _find_typed_command(words)
        if isinstance(error, click.UsageError) and error.ctx:
            path = error.ctx.command_path
        message = " ".join(error.format_message().split()).rstrip(".")
        code = ExitCode.USAGE
        facts = {"error": message, "code": "usage", "hint": f"{path} --help"}
        if isinstance(error, click.NoSuchOption) and (hint := _hint_for_option(error, path)):
            facts["hint"] = hint
    else:
        raise error
    if as_json:
        from everhold.cli.output import print_json

        print_json(facts)
    else:
        from everhold.cli.output import print_exception

        print_exception(getattr(error, "exception", None), err=True)
        click.secho(
            f"error: {facts['error']} [{facts['code']}]", err=True, fg="red", color=_color()
        )
        if facts.get("hint"):
            click.echo(f"hint: {facts['hint']}", err=True)
    return int(code)
