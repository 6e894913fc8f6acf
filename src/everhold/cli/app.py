"""The command `everhold`: its commands in four groups, how mistakes are told, and how it exits.

Rules
  1. A mistake of the user is one line, `error: … [code]`, and a line `hint: …` if there is one;
     never a traceback.
  2. With `--json` there is one JSON document on standard output, also for an error.
  3. Exit codes come from `wire.py`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Any, Final

import click

#: The sections of the help, and for each command the module that holds it, as an attribute of its
#: name and `_`.
GROUPS: Final = {
    "Run": {
        "demo": "demo",
        "init": "init",
        "run": "run",
        "chat": "chat",
        "retry": "run",
        "fork": "run",
        "schedule": "schedule",
        "trigger": "trigger",
        "emit": "trigger",
        "worker": "worker",
        "mcp": "mcp",
    },
    "Look": {
        "programs": "programs",
        "sessions": "sessions",
        "show": "sessions",
        "explain": "diagnose",
        "watch": "sessions",
        "replay": "replay",
        "diff": "replay",
        "check": "transfer",
        "usage": "sessions",
        "info": "diagnose",
        "doctor": "diagnose",
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
    "Keep": {"export": "transfer", "import": "transfer", "delete": "db", "db": "db", "pkg": "pkg"},
}


#: What each does, so that `everhold --help` need not load them; a test compares.
HELP: Final = {
    "demo": "Kill a program in the middle and see it go on: 20 seconds, no key.",
    "init": "Make a folder with a program, its test and its settings.",
    "run": "Run a program, or go on with one that stopped.",
    "chat": "Hold a conversation with an agent, or go on with one.",
    "retry": "Go on from a failed session's last answer, with mended code.",
    "fork": "Begin a session that shares the steps of another; change an answer.",
    "worker": "Drive the sessions that can go on; take over from the dead.",
    "schedule": "Start programs at certain times: list, add, next, pause, and more.",
    "trigger": "Start programs when something happens: list, add, log, and more.",
    "emit": "Say that something happened; what it triggers is started once.",
    "mcp": "Serve MCP: a host's own model runs strategies and answers them.",
    "programs": "List what `run` can start by name, or describe one of them.",
    "sessions": "List sessions, newest first.",
    "show": "Show one session: what was asked, what was answered, how it ended.",
    "explain": "Say why a session is where it is, and what moves it.",
    "watch": "Follow a session until it ends: each step as it lands.",
    "replay": "Run a program along its journal: nothing is asked or called.",
    "diff": "Show where two sessions part, first difference first.",
    "check": "Say which sessions would not go on with the code as it is now.",
    "usage": "Add up what sessions cost in model calls and tokens.",
    "info": "Say which database, settings and programs are used here, and why.",
    "doctor": "Check settings, database, programs and the answering command.",
    "inbox": "List the open questions of all sessions, oldest first.",
    "answer": "Answer a question; without a VALUE you are asked at the terminal.",
    "send": "Say something to a conversation, also while it works.",
    "intake": "List what waits to enter a conversation, or take it back.",
    "command": "Have a conversation reset, compacted, refreshed, or its turn stopped.",
    "signal": "Send a signal; it is kept until the program receives it.",
    "cancel": "Stop a session and its children.",
    "outbox": "List what people were told, or could not be; tell them again.",
    "export": "Write sessions and their children to a file.",
    "import": "Take in the sessions of an exported file; they go on here.",
    "delete": "Forget a session for good.",
    "db": "Look after the database: path, verify, gc, vacuum, migrate, copy.",
    "pkg": "Install, link, list, mend and trust packages of programs.",
}
#: Hints of errors that are meant for Python, as one says them here.
HINTS: Final = {
    "many_open_queries": "Name the question: --query ID. `everhold show SESSION` lists them.",
    "no_open_query": "`everhold explain SESSION` says what it waits for.",
    "illegal_move": "`everhold explain SESSION` says what moves it.",
}


class StdoutClosed(Exception):
    """Whoever read standard output has gone, as with `| head`; click would call that a failure."""


class LazyCommandGroup(click.Group):
    """Loads a command when it is asked for, and lists them in sections."""

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
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], self.list_commands(ctx), 1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"no command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, names in GROUPS.items():
            with formatter.section(section):
                formatter.write_dl([(name, HELP[name]) for name in names])


class SubcommandGroup(click.Group):
    """The commands of a noun, each listed with its whole first sentence, however narrow the
    terminal is.
    """

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
@click.version_option(package_name="everhold", message="everhold %(version)s")
@click.pass_context
def everhold(context: click.Context) -> None:
    """LLM programs that stop wherever they need an answer, and survive everything while they wait.

    A SESSION is an id, the beginning of one, its key, or @last.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns how to exit."""
    _streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--json" not in words:
        return _run(words, as_json=False)
    from everhold.cli.output import reserve_stdout_for_json

    with reserve_stdout_for_json():
        return _run(words, as_json=True)


def _streams() -> None:
    """Empty standard streams instead of closed ones, whose places the next files to be opened would
    take.

    A letter that the terminal's encoding does not have is spelled out.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _color() -> bool | None:
    """No colours, bold or dim letters where they are not wanted or not known; else, the terminal
    decides.
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _run(words: list[str], *, as_json: bool) -> int:
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
            return _full(error)
        if isinstance(error, FileNotFoundError) and _is_nowhere():
            from everhold.errors import BadSetting

            error = BadSetting("current folder", "it was deleted; go to another")
        return report_error(error, as_json=as_json, database=_database(words), path=_path(words))


def _is_nowhere() -> bool:
    """Whether the current folder was deleted: whatever asks for its name fails."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _full(error: OSError) -> int:
    """Tell on standard error that what is said has no room, as with `> file` on a full disk."""
    from everhold.wire import ExitCode

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    click.secho(
        f"error: it cannot be written: {error.strerror} [usage]", err=True, fg="red", color=_color()
    )
    return ExitCode.USAGE


def _database(words: Sequence[str]) -> str | None:
    """The database that was typed."""
    for word, after in zip_longest(words, words[1:]):
        if word in ("-d", "--database"):
            return after
        if word.startswith("--database="):
            return word.removeprefix("--database=")
    return None


def _path(words: Sequence[str]) -> str:
    """The command that was typed, as far as it is one."""
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


def _meant(error: click.NoSuchOption, path: str) -> str:
    """What somebody may have meant who typed an option that belongs elsewhere; empty if nobody
    knows.
    """
    name = error.option_name.lstrip("-")
    if path == "everhold" and error.option_name in ("-d", "--database", "--json"):
        return f"Options stand after the command: everhold COMMAND {error.option_name}"
    if path == "everhold run" and error.option_name.startswith("--") and name.isidentifier():
        return (
            f"Arguments of a program are given without strokes: {name}=VALUE. For the"
            f" options: {path} --help"
        )
    return ""


def report_error(
    error: Exception, *, as_json: bool, database: str | None = None, path: str = "everhold"
) -> int:
    """Tell a mistake in one or two lines and return how to exit; what nobody foresaw is raised
    again.
    """
    from everhold.cli.context import format_database_option
    from everhold.errors import EverholdError
    from everhold.wire import ExitCode, add_database_option, error_json, exit_code

    if isinstance(error, EverholdError):
        code = exit_code(error)
        facts = error_json(error)
        hint = HINTS.get(error.code, facts.get("hint"))
        facts |= (
            {"hint": add_database_option(hint, format_database_option(database))} if hint else {}
        )
    elif isinstance(error, click.ClickException):
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else path
        message = " ".join(error.format_message().split()).rstrip(".")
        code = ExitCode.USAGE
        facts = {"error": message, "code": "usage", "hint": f"{path} --help"}
        if isinstance(error, click.NoSuchOption) and (meant := _meant(error, path)):
            facts["hint"] = meant
    else:
        raise error
    if as_json:
        from everhold.cli.output import print_json

        print_json(facts)
    else:
        click.secho(
            f"error: {facts['error']} [{facts['code']}]", err=True, fg="red", color=_color()
        )
        if facts.get("hint"):
            click.echo(f"hint: {facts['hint']}", err=True)
    return int(code)
