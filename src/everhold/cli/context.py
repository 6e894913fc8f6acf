"""What every command needs: its open runtime, the session or program that a word names, and who is
at the keyboard.
"""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from everhold.cli.candidates import list_programs_here, suggest_reference
from everhold.cli.output import get_stdout
from everhold.errors import (
    BadSetting,
    EverholdError,
    NotAllowed,
    NotAnAgent,
    StoreUnavailable,
    UnknownProgram,
)
from everhold.portability import HAS_OWNERS
from everhold.shell_command import format_command, format_database_option

if TYPE_CHECKING:
    from everhold.agents.agent import Agent
    from everhold.blocking import BlockingRuntime
    from everhold.cli.session_bar import SessionBar
    from everhold.core.codec import JSON
    from everhold.models import AnswererSpec
    from everhold.packages.catalog import KnownPrograms
    from everhold.packages.settings import Settings
    from everhold.ports.program import Program, ProgramHost
    from everhold.ports.store import SessionRecord
    from everhold.runtime import Runtime


T = TypeVar("T")

#: Characters of an id that tables show: enough to be unique.
SHORT_ID_LENGTH: Final = 18


@contextmanager
def override_hint(kind: type[EverholdError], hint: str) -> Iterator[None]:
    """Replaces the hint of such an error with one for the command line."""
    try:
        yield
    except kind as error:
        error.hint = hint
        raise


# ---- the person at the keyboard


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and get_stdout().isatty()


def confirm(question: str, yes: bool) -> None:
    """Asks the person at the terminal, unless `--yes` was given."""
    if yes:
        return
    if not at_terminal():
        raise NotAllowed("this command asks before it acts, and there is no terminal", "Add --yes.")
    click.confirm(question, abort=True)


def describe_user(name: str | None = None) -> dict[str, JSON]:
    """Who gives an answer; recorded with it."""
    try:
        user = name or getpass.getuser()
    except (
        OSError,
        KeyError,
        ImportError,
    ):  # no name, or not in the environment
        user = str(os.getuid()) if HAS_OWNERS else "unknown"
    return {"front": "cli", "user": user, "at": round(time.time(), 3)}


# ---- the open runtime


#: What the user typed for a session, by its id.
_typed_names: Final[dict[str, str]] = {}


def get_typed_name(session_id: str) -> str:
    """What the user typed for a session; its id, if the user named it in another way. Without an
    id: the first session that the user named.
    """
    if not session_id:
        return next(iter(_typed_names.values()), "")
    return _typed_names.get(session_id, session_id)


class CommandRuntime:
    """An open runtime, for one command."""

    def __init__(
        self,
        runtime: BlockingRuntime,
        typed: str | None,
        bar: SessionBar | None = None,
        *,
        moves: bool = False,
    ) -> None:
        self.runtime = runtime
        self._typed = typed
        self._moves = moves
        self.bar = bar  # None: the command shows no progress

    @property
    def database(self) -> str:
        return self.runtime.database

    @property
    def settings(self) -> Settings:
        return load_settings(self._typed)

    @property
    def database_option(self) -> str:
        """The `-d` option that a next command needs to use the same database."""
        return format_typed_database(self._typed)

    @property
    def host(self) -> ProgramHost:
        """Starts executions of programs, for replays."""

        async def read(runtime: Runtime) -> ProgramHost:
            return runtime.engine.host

        return self.ask(read)

    @property
    def programs(self) -> KnownPrograms:
        """Finds the programs of sessions."""

        async def read(runtime: Runtime) -> KnownPrograms:
            return runtime.programs

        return self.ask(read)

    def ask(self, act: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine on the loop of the runtime."""
        return self.runtime.call(act)

    def session(self, name: str) -> str:
        """The id of the session that `@last`, an id, a unique prefix of one, or a key names."""
        from everhold.engine.session_lookup import LAST_SESSION

        session_id = self.runtime.find(name)
        if self._moves:  # Ctrl-C tells how to resume it
            self.ask(_get_runtime).newest = session_id
        if name != LAST_SESSION:
            _typed_names[session_id] = name
        return session_id

    def record(self, session_id: str, since: int = 0) -> SessionRecord:
        return self.ask(lambda runtime: runtime.store.load(session_id, since))

    def stats(self) -> dict[str, Any]:
        """Figures about the store, such as its format and size."""
        from everhold.ports.store import require_maintenance

        async def read(runtime: Runtime) -> dict[str, Any]:
            return require_maintenance(runtime.store, "info").stats()

        return self.ask(read)

    def name(self, session_id: str) -> str:
        """The key of a session, or else the beginning of its id."""
        return format_short_name(session_id, self.record(session_id, since=-1).birth.key)


def format_typed_database(database: str | None) -> str:
    """The `-d` option as it was typed, without its password; empty if there was none."""
    from everhold.stores.address import strip_password

    return format_database_option("" if database is None else strip_password(database))


def format_short_name(session_id: str, key: str | None) -> str:
    """The name of a session in tables: its key, or the beginning of its id."""
    from everhold.core.session import format_session_name

    name = format_session_name(session_id, key)
    return name[:SHORT_ID_LENGTH] if name == session_id else name


@contextmanager
def open_command_runtime(
    database: str | None,
    *,
    llm: AnswererSpec = None,
    moves: bool = False,
    creates: bool = False,
    shows: bool = False,
) -> Iterator[CommandRuntime]:
    """Opens the runtime of a command. With `moves`, sessions move while it is open; with `creates`,
    the database is created if it does not exist. With `shows`, a bar at the terminal shows the
    progress that the program of the session reports.
    """
    from everhold.blocking import open_blocking
    from everhold.engine.arguments import UNSET

    _typed_names.clear()
    found = load_settings(database)
    if not creates:
        _refuse_missing_file(found)
    # A command that only reads needs no model: an empty script replaces the one of the settings.
    # A command that moves sessions without a model leaves their model queries to workers. That is
    # UNSET; None would say that workers leave them alone, too.
    answers = [] if not moves else UNSET if llm is None else llm
    bar = None
    if shows and sys.stderr.isatty():
        from everhold.cli.session_bar import SessionBar

        bar = SessionBar()
    observers = [] if bar is None else [bar]
    with open_blocking(database, llm=answers, recover=moves, observers=observers) as runtime:
        opened = CommandRuntime(runtime, database, bar, moves=moves)
        opened.ask(_get_runtime).database_option = opened.database_option
        if bar is None:
            yield opened
            return
        bar.runtime = opened.ask(_get_runtime)
        try:
            yield opened
        finally:
            bar.hide()


async def _get_runtime(runtime: Runtime) -> Runtime:
    return runtime


def resolve_program(database: str | None, name: str) -> Program[Any, Any]:
    """The program of this name or reference, by the settings."""
    from everhold.packages.catalog import find_named_program

    try:
        return find_named_program(name, load_settings(database))
    except UnknownProgram as error:
        if ":" not in name and error.exception is None:
            error.hint = suggest_reference(name, Path.cwd()) or error.hint + list_programs_here()
        raise


def resolve_agent(database: str | None, name: str) -> Agent:
    """The agent of this name or reference; raises `NotAnAgent`."""
    from everhold.agents.agent import Agent

    found: Any = resolve_program(database, name)
    if not isinstance(found, Agent):
        raise NotAnAgent(
            name, f"See how to run it, and its arguments: {format_command('programs', name)}"
        )
    return found


def load_settings(database: str | None) -> Settings:
    from everhold.packages.settings import settings

    return settings(database)


def _refuse_missing_file(found: Settings) -> None:
    """Raises if a database was named and does not exist, so that a typing mistake creates no
    file.
    """
    from everhold.packages.settings import DEFAULT_SOURCE

    if (
        found.path is not None
        and not found.path.exists()
        and found.source.get("database") != DEFAULT_SOURCE
    ):
        where = found.source.get("database")
        raise StoreUnavailable(
            str(found.path),
            "there is no such file" + ("" if where == "argument" else f" ({where} names it)"),
            "The first program that runs there creates it; `everhold info` prints where everhold"
            " looks.",
        )


def read_text_argument(path: str, what: str) -> str:
    """The text of a file that the user named; `-` is standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadSetting(what, f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(what, f"{path} is not UTF-8 text") from None
