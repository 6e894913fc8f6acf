"""The runtime behind the tools.

Rules
  1. The server starts whatever is wrong with the database: opening is tried again with every call, and a call that
     cannot be served says why. So does one whose database was taken away meanwhile: nobody would find its session.
  2. The host's model answers `llm` questions. Only if the person who starts the server says so, an answerer of this
     process does.
  3. A model names a program by what can be found by name here. It cannot make this process load a Python file.
  4. The database is the one that was opened. Programs are looked up by the settings as they are now: what is listed
     while the server runs is found.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from everhold.answerers import Spec
from everhold.core.errors import BadRequest, BadSetting, EverholdError, NotAllowed, StoreUnavailable
from everhold.core.observe import Observer
from everhold.core.query import Query
from everhold.packages.catalog import Catalog, catalog, named
from everhold.packages.find import is_path
from everhold.packages.folder import Folders
from everhold.packages.settings import DEFAULT, Settings, Watched, settings
from everhold.ports.program import Call
from everhold.programs.lua.program import LuaProgram
from everhold.runtime import Runtime, open
from everhold.stores.sqlite.file import Place

#: Bytes of Lua that a call may bring.
MOST_CODE: Final = 1_000_000
#: What to do about a setting: no other call would help.
MEND: Final = (
    "No call mends this: tell the user to correct it where it is said, which is everhold.toml, a variable, or the"
    " command by which the host starts this server."
)


class Parked:
    """Answers nothing: every question waits for the host."""

    kinds: tuple[()] = ()

    async def answer(self, query: Query, session_id: str) -> Any:
        raise NotAllowed(f"{query.id} waits for the host", "Answer it with the tool `answer`.")


class House:
    """An open runtime, or the reason why there is none."""

    def __init__(self, database: str | None = None, *, llm: Spec = None, observer: Observer | None = None) -> None:
        self._database = database
        self._llm = Parked() if llm is None else llm
        self._observers = () if observer is None else (observer,)
        self._runtime: Runtime | None = None
        self._found: Settings | None = None
        self._watched: Watched | None = None
        self._place: Place | None = None  # where the file is that was opened
        self._opening = asyncio.Lock()

    async def runtime(self) -> Runtime:
        """The open runtime; raises what keeps it from being opened."""
        if self._runtime is None:
            async with self._opening:
                if self._runtime is None:
                    self._runtime = await self._opened()
        elif self._place is not None:
            self._place.check()
        return self._runtime

    async def _opened(self) -> Runtime:
        with _blaming():
            self._found = found = settings(self._database)
            self._watched = Watched(found, self._database)
            runtime = open(self._database, llm=self._llm, observers=self._observers)
        try:
            opened = await runtime.__aenter__()
            self._place = None if found.path is None else Place(found.path)
            return opened
        except EverholdError:
            raise
        except Exception as error:  # whatever a broken file or folder brings about
            raise StoreUnavailable(found.shown, f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def database(self) -> str:
        """The full address of the database."""
        return (self._found or self._now()).database

    @property
    def parked(self) -> bool:
        """Whether `llm` questions wait for the host."""
        return isinstance(self._llm, Parked)

    @property
    def option(self) -> str:
        """What a person adds to a command so that it reads this database; empty where it does anyway."""
        found = self._found
        if found is None or found.source.get("database") == DEFAULT:
            return ""
        return f" -d {shlex.quote(str(found.path or found.shown))}"

    # ---- programs

    def program(self, name: str) -> Any:
        """The program that a model means: by its name, or by a reference that the catalog lists."""
        found = self._now()
        if (":" in name or is_path(name)) and name not in {entry.ref for entry in catalog(found).entries}:
            how = "The tool `strategies` lists the names. To add a program, list it under `programs` in everhold.toml."
            if name.endswith(".lua"):
                how = "Code in a Lua file is run with code_file instead of program."
            raise NotAllowed(f"{name!r} is not a name: over MCP a program is started by its name", how)
        return named(name, found)

    def catalog(self) -> Catalog:
        """Every program that can be started by name, and what keeps others from being listed."""
        return catalog(self._now())

    def code(self, text: str | None, file: str | None, ctx: dict[str, Any]) -> Call[Any]:
        """A call of a Lua program given as text, or in a file that holds one."""
        code = _read(file) if file is not None else text or ""
        if len(code.encode("utf-8", "surrogatepass")) > MOST_CODE:
            raise BadRequest("run", f"the code is longer than {MOST_CODE} bytes")
        return LuaProgram.text(code, ctx, roots=self.folders.all)

    @property
    def folders(self) -> Folders:
        """Where Lua packages are looked for now."""
        return self._now().folders

    def _now(self) -> Settings:
        """The settings as they are now, of the folder in which the server was started."""
        with _blaming():
            return settings(self._database) if self._watched is None else self._watched.settings()


@contextmanager
def _blaming() -> Iterator[None]:
    """A setting that is wrong is no fault of the call."""
    try:
        yield
    except BadSetting as error:
        error.hint = error.hint or MEND
        raise


def _read(file: str) -> str:
    """The text of a Lua file; others are not read for a model."""
    try:
        path = Path(file).expanduser().resolve()
        if path.suffix != ".lua":
            raise BadRequest("run", f"code_file should end in .lua, got {file!r}")
        if path.stat().st_size > MOST_CODE:
            raise BadRequest("run", f"{file} is longer than {MOST_CODE} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadRequest("run", f"{file} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError, RuntimeError):  # also a NUL, or a user whose home nobody knows
        raise BadRequest("run", f"{file!r} is not a file with UTF-8 text") from None
