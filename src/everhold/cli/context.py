"""What commands share: their options, the open runtime, which session is meant, and who is at the
keyboard.

What to type, for somebody whose words name no program: what the files of a folder hold is read,
not run.
"""

from __future__ import annotations

import ast
import getpass
import os
import shlex
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from everhold.cli.output import get_stdout
from everhold.errors import BadSetting, EverholdError, NotAllowed, StoreUnavailable, UnknownProgram
from everhold.portability import HAS_OWNERS

if TYPE_CHECKING:
    from everhold.blocking import BlockingRuntime
    from everhold.core.codec import JSON
    from everhold.models import AnswererSpec
    from everhold.packages.catalog import KnownPrograms
    from everhold.packages.settings import Settings
    from everhold.ports.program import Program, ProgramHost
    from everhold.ports.store import SessionRecord
    from everhold.runtime import Runtime


#: Files that are looked at, and bytes of one, before it is given up.
MANY: Final = 200
LARGE: Final = 200_000


def suggest_reference(name: str, folder: Path) -> str:
    """How what is meant is named, if `name` is a file of this folder, or something that one of them
    holds.
    """
    place = name.removesuffix(".py") + ".py"
    if (folder / place).is_file():
        found = [f"{place}:{one}" for one in _held(folder / place)]
        return f"{place} is a file; name what is in it: {', '.join(found[:20]) or f'{place}:NAME'}"
    for lua in (f"{name}.lua", f"./{name}"):
        if (folder / lua).is_file() or (folder / lua / "init.lua").is_file():
            return f"Did you mean {lua}?"
    for file in sorted(folder.glob("*.py"))[:MANY]:
        if name in _held(file):
            return f"Did you mean {file.name}:{name}?"
    return ""


def _held(file: Path) -> list[str]:
    try:
        text = file.read_bytes()
        tree = ast.parse(text) if len(text) <= LARGE else None
    except (OSError, SyntaxError, ValueError):
        return []
    return [] if tree is None else list(_named(tree))


def _named(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and any(
            _last(one) == "program" for one in node.decorator_list
        ):
            yield node.name
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last(node.value) == "Agent"
        ):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _last(node: ast.expr) -> str:
    """The last name of what is called or stands there: `program` in
    `@everhold.program(version=2)`.
    """
    while isinstance(node, ast.Call):
        node = node.func
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


T = TypeVar("T")

#: Characters of an id that tables show: enough to be unique.
SHORT_ID_LENGTH: Final = 18


@contextmanager
def override_hint(kind: type[EverholdError], hint: str) -> Iterator[None]:
    """What to do about such an error here, in the words of a command line."""
    try:
        yield
    except kind as error:
        error.hint = hint
        raise


# ---- who is here


def at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and get_stdout().isatty()


def confirm(words: str, yes: bool) -> None:
    """Ask the person at the terminal, unless `--yes` was said."""
    if yes:
        return
    if not at_terminal():
        raise NotAllowed("nobody is at a terminal here to confirm it", "Say --yes.")
    click.confirm(words, abort=True)


def describe_user(name: str | None = None) -> dict[str, JSON]:
    """Who answers: kept with the answer."""
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


class CommandRuntime:
    """An open runtime, for one command."""

    def __init__(self, runtime: BlockingRuntime, typed: str | None) -> None:
        self.runtime = runtime
        self._typed = typed

    @property
    def database(self) -> str:
        return self.runtime.database

    @property
    def settings(self) -> Settings:
        return load_settings(self._typed)

    @property
    def place(self) -> str:
        """What the next command needs, to be about the same database."""
        return format_database_option(self._typed)

    @property
    def host(self) -> ProgramHost:
        """Begins lives of programs, for replays."""

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
        """Do something async where the runtime lives."""
        return self.runtime.call(act)

    def session(self, meant: str) -> str:
        """The id that `@last`, an id, a unique prefix of one, or a key means."""
        return self.runtime.find(meant)

    def record(self, session_id: str, since: int = 0) -> SessionRecord:
        return self.ask(lambda runtime: runtime.store.load(session_id, since))

    def stats(self) -> dict[str, Any]:
        """Numbers about the store."""
        from everhold.ports.store import require_maintenance

        async def read(runtime: Runtime) -> dict[str, Any]:
            return require_maintenance(runtime.store, "info").stats()

        return self.ask(read)

    def name(self, session_id: str) -> str:
        """What people call a session: its key, else the beginning of its id."""
        return format_short_name(session_id, self.record(session_id, since=-1).birth.key)


def format_database_option(database: str | None) -> str:
    """What was typed to name a database, without its password."""
    from everhold.stores.address import hide_password

    return "" if database is None else f" -d {shlex.quote(hide_password(database))}"


def format_short_name(session_id: str, key: str | None) -> str:
    """What tables call a session: what people do, and of an id its beginning."""
    from everhold.engine.session_lookup import format_session_name

    name = format_session_name(session_id, key)
    return name[:SHORT_ID_LENGTH] if name == session_id else name


@contextmanager
def open_command_runtime(
    database: str | None, *, llm: AnswererSpec = None, moves: bool = False, makes: bool = False
) -> Iterator[CommandRuntime]:
    """The runtime of a command: `moves` lets sessions go on meanwhile, `makes` may make the
    database.
    """
    from everhold.blocking import open_blocking
    from everhold.engine.arguments import UNSET

    found = load_settings(database)
    if not makes:
        _refuse_absent(found)
    # Who only looks needs no model: an empty script stands in for the one in the settings. Without
    # a model, questions to models are left to workers: that is UNSET, where None would say that
    # workers leave them alone.
    answers = [] if not moves else UNSET if llm is None else llm
    with open_blocking(database, llm=answers, recover=moves) as runtime:
        yield CommandRuntime(runtime, database)


def resolve_program(database: str | None, name: str) -> Program[Any, Any]:
    """The program that a name or a reference means here."""
    from everhold.packages.catalog import find_named_program

    try:
        return find_named_program(name, load_settings(database))
    except UnknownProgram as error:
        if ":" not in name:
            own = (
                " One of your own is named by its file: FILE.py:NAME" if name.isidentifier() else ""
            )
            error.hint = suggest_reference(name, Path.cwd()) or error.hint + own
        raise


def load_settings(database: str | None) -> Settings:
    from everhold.packages.settings import settings

    return settings(database)


def _refuse_absent(found: Settings) -> None:
    """A database that was named must be there: a slip of the finger makes no file."""
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
            "`everhold run` makes it; `everhold info` says where everhold looks.",
        )


def read_text_argument(path: str, what: str) -> str:
    """The text of a file the user named; `-` is standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadSetting(what, f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(what, f"{path} is not UTF-8 text") from None
