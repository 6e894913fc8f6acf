"""Loading the module that holds a program, by its name or from its file.

Rules
  1. A file is loaded once per process, under a name made from its path. The next process sees what
     changed.
  2. The programs of a file are known as `<absolute path>:<function>`, just as when the file runs as
     a script.
  3. What fails to load leaves nothing behind: no module, no program, no folder on the path.
  4. Code that is loaded to find a program starts no session: see `refuse_while_loading`.
  5. It is loaded where everything else runs, as its author's own import would be: much that people
     import is not made for another thread. Whatever takes longer than `SLOW` seconds is named in
     the log while it does.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Final

from everhold.errors import EverholdError, NotAProgram, RunsOnImport, UnknownProgram
from everhold.ports.program import REGISTRY, Program, is_raised_by_code, register_program

log = logging.getLogger("everhold")

#: Seconds after which somebody is told what everybody waits for.
SLOW: Final = 3.0
_WAITING: Final = (
    "everything in this process waits for %s, which takes long to load: let it"
    " connect, read and compute in functions"
)
_GUARD: Final = "Put the lines that run something under `if __name__ == '__main__':`."
_NESTED: Final = re.compile(
    r"from a running event loop|loop is already running|another loop is running"
)
_lock: Final = threading.RLock()  # one file at a time puts its folder on the path


class _Loading:
    """What is being loaded, for code that must know while it runs."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.over = False
        self.refused = False


# A context variable and not a global: another thread may start sessions meanwhile.
_now: Final[ContextVar[_Loading | None]] = ContextVar("everhold_loading", default=None)


def refuse_while_loading() -> None:
    """Raise `RunsOnImport` if the caller is code that is being loaded to find a program in it."""
    loading = _now.get()
    if loading is not None and not loading.over:
        loading.refused = True
        raise RunsOnImport(loading.what)


def load_module(name: str, ref: str, root: Path | None = None) -> ModuleType:
    """Import a module; one that is not installed is also looked for in `root` and in the current
    folder.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownProgram(
            ref, f"{name!r} is neither the name of a module nor a file that ends in .py"
        )
    if name == "__main__":
        raise UnknownProgram(
            ref,
            "it was written at a prompt or in a notebook of another process",
            "Put the program into a file and start it from there.",
        )
    with _careful(ref, name, name):
        _reach(name.partition(".")[0], root)
        return importlib.import_module(name)


def load_file(path: Path, ref: str) -> ModuleType:
    """Load a file as a module of its own; the script that is running now is not loaded again."""
    main = sys.modules.get("__main__")
    if main is not None and _file(main) == path:
        return main
    if not path.is_file():
        raise UnknownProgram(ref, f"there is no file {path}")
    name, folders = _identity(path)
    with _lock:
        if name in sys.modules:
            return sys.modules[name]
        with _careful(ref, str(path), name), _first(folders):
            _refuse_namesakes(path, ref)
            loaded = _execute(name, path)
        _adopt(loaded, path)
        return loaded


def read_source_text(place: str, root: Path | None = None) -> str:
    """What stands in a file, in a module, or where a reference points, without loading it; empty if
    nothing does.
    """
    if not place.endswith(".py"):
        place = place.partition(":")[0]
    if not place.endswith(".py"):
        inner = place.replace(".", "/")
        folders = [*([] if root is None else [root]), Path.cwd(), *map(Path, sys.path)]
        files = [
            folder / one for folder in folders for one in (f"{inner}.py", f"{inner}/__init__.py")
        ]
    else:
        files = [Path(place)]
    for one in files:
        try:
            return one.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _identity(path: Path) -> tuple[str, list[str]]:
    """The module name of a file, and the folders that its imports need: its own, and that of its
    package.
    """
    packages: list[str] = []
    root = path.parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        packages.insert(0, root.name)
        root = root.parent
    stem = re.sub(r"\W", "_", path.stem) + "_" + sha256(str(path).encode()).hexdigest()[:12]
    return ".".join([*packages, stem]), list(dict.fromkeys([str(root), str(path.parent)]))


def _adopt(loaded: ModuleType, path: Path) -> None:
    """Know the programs of a file by its path, whatever its module is called here."""
    known = [
        (key, program) for key, program in REGISTRY.items() if program.__module__ == loaded.__name__
    ]
    for key, program in known:
        del REGISTRY[key]
        program.ref = f"{path}:{program.qualname}"
        register_program(program)
    for name, value in list(vars(loaded).items()):
        if (
            isinstance(value, Program)
            and value.__module__ == loaded.__name__
            and not value.is_named
        ):
            value.ref = f"{path}:{name}"
            register_program(value)


# ---- where imports look


@contextmanager
def _first(folders: list[str]) -> Iterator[None]:
    """First on the path while a file loads, as for a script; then last, for imports inside its
    functions.
    """
    sys.path[:0] = folders
    importlib.invalidate_caches()
    loaded = False
    try:
        yield
        loaded = True
    finally:
        for folder in folders:
            if folder in sys.path:
                sys.path.remove(folder)
            if loaded and folder not in sys.path:
                sys.path.append(folder)


def _reach(top: str, root: Path | None) -> None:
    importlib.invalidate_caches()
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        return
    for folder in (root or Path.cwd(), Path.cwd()):
        if (folder / top).is_dir() or (folder / f"{top}.py").is_file():
            sys.path.append(str(folder.resolve()))
            return


def _refuse_namesakes(path: Path, ref: str) -> None:
    """What the file would import from its own folder must not be another module that is loaded
    already.
    """
    import ast

    tree = ast.parse(path.read_bytes(), str(path))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    names += [
        node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
    ]
    for top in dict.fromkeys(name.partition(".")[0] for name in names):
        theirs = _file(sys.modules.get(top))
        ours = next(
            (
                f
                for f in (path.parent / f"{top}.py", path.parent / top / "__init__.py")
                if f.is_file()
            ),
            None,
        )
        if theirs and ours and ours.resolve() != theirs and top not in sys.stdlib_module_names:
            raise UnknownProgram(
                ref,
                f"it imports {top!r} from its folder, but this process has loaded {theirs} under"
                " that name",
                f"Rename one of the two, or put {path.name} and {top} into a package.",
            )


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if name else None


# ---- what can go wrong


@contextmanager
def _careful(ref: str, what: str, name: str) -> Iterator[None]:
    """Run somebody's code: its failures become one typed error, and leave no trace."""
    loading = _Loading(what)
    before = set(REGISTRY)
    token = _now.set(loading)
    try:
        with nullcontext() if name in sys.modules else _watched(what):
            yield
        if loading.refused:  # and the code went on in spite of it
            raise RunsOnImport(what)
    except (Exception, SystemExit) as error:
        _forget(name, before)
        problem = RunsOnImport(what) if loading.refused else _problem(ref, what, error)
        if type(problem) is type(error):
            raise
        raise problem from error
    except BaseException as error:
        _forget(name, before)
        if isinstance(error, KeyboardInterrupt) and is_raised_by_code(error):
            raise _problem(ref, what, error) from error
        raise
    finally:
        loading.over = True
        _now.reset(token)


@contextmanager
def _watched(what: str) -> Iterator[None]:
    """Say what everybody waits for, if that takes long: it may never end."""
    timer = threading.Timer(SLOW, log.warning, (_WAITING, what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _forget(name: str, before: set[tuple[str, int]]) -> None:
    sys.modules.pop(name, None)
    for key in set(REGISTRY) - before:
        if REGISTRY[key].__module__ not in sys.modules:
            del REGISTRY[key]


def _problem(ref: str, what: str, error: BaseException) -> EverholdError:
    match error:
        case RunsOnImport() | NotAProgram() | UnknownProgram():
            return error
        case ModuleNotFoundError() if error.name and f"{what}.".startswith(f"{error.name}."):
            hint = "Start from the folder that holds it, install it, or say path/file.py:function."
            return UnknownProgram(ref, f"there is no module {error.name!r}", hint)
        case ModuleNotFoundError() if error.name:
            hint = "Install it into the environment that everhold runs in."
            return UnknownProgram(
                ref, f"{what} needs {error.name!r}, which is not installed here", hint
            )
        case SyntaxError():
            return UnknownProgram(
                ref, f"{error.msg} ({error.filename}, line {error.lineno})", "Mend the file."
            )
        case SystemExit():
            return UnknownProgram(
                ref, f"{what} exits when it is loaded, with {error.code!r}", _GUARD
            )
        case RuntimeError() if _NESTED.search(str(error)):
            _close_unstarted(error)
            return RunsOnImport(what)
    hint = "Mend the module; nothing was changed."
    return UnknownProgram(
        ref, f"loading {what} raised {type(error).__name__}: {error}{_place(error)}", hint
    )


def _place(error: BaseException) -> str:
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")
    ]
    last = frames[-1]
    return "" if last.filename == __file__ else f" ({last.filename}, line {last.lineno})"


def _close_unstarted(error: BaseException) -> None:
    """`asyncio.run(main())` was refused: close what nobody will await, so that nobody is warned of
    it.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in list(frame.f_locals.values()):
            if (
                inspect.iscoroutine(value)
                and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
            ):
                value.close()
