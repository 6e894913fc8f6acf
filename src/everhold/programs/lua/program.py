"""A Lua program as data: its reference, arguments and search roots, without a Lua interpreter.

    lua:code                         text; the text is in the arguments: {"code": …, "ctx": …}
    lua:eval                         the same, with the text of everhold that runs an eval
    <folder>/<name>/init.lua:<name>  a package, run as `require(name).run(ctx)`; the arguments are
                                     its ctx
    <folder>/<name>.lua:<name>       a file: a module with `run(ctx)`, or a script with a global
                                     `ctx`

Rules
  1. Any process can start it again: text is stored with the session, a package or a file is read
     from its path.
  2. A package is the code at its reference, whatever its name means elsewhere. Other packages that
     it requires are searched in its roots, in their order; its own folder comes first if it is not
     one of them. No other file can be read. Roots are not stored: those given here apply in this
     process. Without any, and in every other process, the runtime takes the roots of its settings.
  3. Nothing here loads Lua: a `LuaProgram` can be named, listed and stored without the extra.
  4. A call without an argument that the file declares as required is refused. Stored arguments are
     not checked again, and other keys of `ctx` are allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from everhold.core.codec import JSON, to_plain
from everhold.errors import BadArguments, BadValue, NotAProgram, UnknownProgram
from everhold.ports.program import Call, Program
from everhold.programs.lua.declared import (
    DeclaredArgument,
    read_declared_arguments,
    read_source,
)
from everhold.programs.lua.search_path import INIT_FILE, PACKAGE_NAME, SearchRoot

#: The reference of programs whose text is in their arguments.
TEXT_REF: Final = "lua:code"
#: The reference of evals of Lua packages: their text is everhold's own.
EVAL_TEXT_REF: Final = "lua:eval"
TEXT_REFS: Final = (TEXT_REF, EVAL_TEXT_REF)

_Parameter = inspect.Parameter
_OF_TEXT: Final = inspect.Signature(
    [
        _Parameter("code", _Parameter.POSITIONAL_OR_KEYWORD),
        _Parameter("ctx", _Parameter.POSITIONAL_OR_KEYWORD, default=None),
    ]
)


class LuaProgram(Program[..., Any]):
    """A Lua program, with the interface of every program, except for a `body` to call."""

    def __init__(self, ref: str, *, roots: Iterable[str | Path | SearchRoot] = ()) -> None:
        place, _, name = ref.rpartition(":")
        self.ref = ref
        self.name = self.__name__ = name
        self.version = 1
        self.strict = False
        self.__doc__ = None
        self.__module__ = "lua"
        self.main: Path | None = None if ref in TEXT_REFS else Path(place)
        self.is_text = self.main is None
        #: Whether it is a package folder, not a single file.
        self.is_package = self.main is not None and _is_package(self.main, name)
        #: The folder or file that a user can trust; empty for text.
        self.home = (
            "" if self.main is None else str(self.main.parent if self.is_package else self.main)
        )
        given = tuple(roots)
        self.is_alone = not given  # without roots: a runtime adds those of its settings
        self.roots: tuple[str, ...] = _roots(self.main, name, given)
        self._digest = ""
        self._declared: tuple[DeclaredArgument, ...] | None = None

    @classmethod
    def text(
        cls,
        code: str,
        ctx: Mapping[str, JSON] | None = None,
        *,
        roots: Iterable[str | Path | SearchRoot] = (),
        ref: str = TEXT_REF,
    ) -> Call[Any]:
        """Make a call of Lua text; `ctx` becomes the program's global `ctx`."""
        program = cls(ref, roots=roots)
        call = program(code, dict(ctx or {}))
        program._digest = _fingerprint(code.encode())
        return call

    @classmethod
    def package(
        cls, folder: str | Path, *, roots: Iterable[str | Path | SearchRoot] = ()
    ) -> LuaProgram:
        """The package in this folder; raises `UnknownProgram` if it has no init.lua."""
        home = Path(folder).resolve()
        return cls.found(f"{home / INIT_FILE}:{home.name}", roots=roots)

    @classmethod
    def file(cls, path: str | Path, *, roots: Iterable[str | Path | SearchRoot] = ()) -> LuaProgram:
        """The program in this file; raises `UnknownProgram` if there is none."""
        main = Path(path).resolve()
        return cls.found(
            f"{main}:{main.parent.name if main.name == INIT_FILE else main.stem}", roots=roots
        )

    @classmethod
    def found(cls, ref: str, *, roots: Iterable[str | Path | SearchRoot] = ()) -> LuaProgram:
        """The program of a stored reference; raises `UnknownProgram` if its file does not exist."""
        program = cls(ref, roots=roots)
        if program.main is not None and not program.main.is_file():
            raise UnknownProgram(
                ref, f"there is no file {program.main}", "Restore it, or install the package."
            )
        return program

    @property
    def body(self) -> Any:  # type: ignore[override]
        """Raises `NotAProgram`: a Lua program has no function to run in this process."""
        raise NotAProgram(self.ref, "a Lua program needs a session of its own; use ctx.spawn(call)")

    @property
    def declared(self) -> tuple[DeclaredArgument, ...]:
        """The arguments that its file declares: see `declared.py`."""
        if self._declared is None:
            text = "" if self.main is None else read_source(self.main)
            self._declared = read_declared_arguments(text)
        return self._declared

    @property
    def signature(self) -> inspect.Signature:
        if self.is_text:
            return _OF_TEXT
        named = [one.parameter for one in self.declared]
        others = "ctx" if all(one.name != "ctx" for one in named) else "more"
        return inspect.Signature([*named, _Parameter(others, _Parameter.VAR_KEYWORD)])

    @property
    def types(self) -> dict[str, Any]:
        return {one.name: one.type for one in self.declared}

    @property
    def digest(self) -> str:
        """A fingerprint of the text or of the main file."""
        if not self._digest and self.main is not None:
            try:
                self._digest = _fingerprint(self.main.read_bytes())
            except OSError:
                return ""
        return self._digest

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, JSON]:
        """The arguments as plain JSON: `code` and `ctx` for text, otherwise the keys of `ctx`."""
        given = self._by_name(args, kwargs)
        missing = [one for one in self.declared if one.required and one.name not in given]
        if missing:
            words = [
                f"{one.name!r}{one.description and f' ({one.description})'}" for one in missing
            ]
            raise BadArguments(self.name, f"missing {', '.join(words)}")
        return self._to_ctx(given)

    def call_unchecked(self, ctx: Mapping[str, Any]) -> Call[Any]:
        """A call with this `ctx`, whatever the file declares, as algocline makes it."""
        return Call(self, self._to_ctx(ctx))

    def _to_ctx(self, given: Mapping[str, Any]) -> dict[str, JSON]:
        try:
            bound: dict[str, JSON] = {name: to_plain(value, name) for name, value in given.items()}
        except BadValue as error:
            raise BadArguments(self.name, str(error)) from None
        return self.arguments(bound)

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """Check stored arguments and return them; raises `BadArguments`."""
        if self.is_text:
            if type(args.get("code")) is not str or not args.keys() <= {"code", "ctx"}:
                raise BadArguments(
                    self.name, "its arguments are code, the text of a program, and ctx, an object"
                )
            if not isinstance(args.get("ctx", {}), dict):
                raise BadArguments(self.name, "ctx must be an object")
        return args

    def ctx(self, args: dict[str, JSON]) -> dict[str, JSON]:
        """The program's `ctx`, from stored arguments."""
        given: dict[str, JSON] = args.get("ctx", {}) if self.is_text else args
        return given

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self.is_text:
            try:
                given = _OF_TEXT.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise BadArguments(self.name, str(error)) from None
            return {name: value for name, value in given.items() if value is not None}
        if len(args) > 1 or (args and not isinstance(args[0], Mapping)):
            raise BadArguments(self.name, "pass the keys of its ctx by name, or one object")
        return {**(args[0] if args else {}), **kwargs}


def _roots(
    main: Path | None, name: str, given: Iterable[str | Path | SearchRoot]
) -> tuple[str, ...]:
    """All roots as text, including the program's own folder."""
    roots = [SearchRoot.of(root).settled() for root in given]
    own: list[SearchRoot] = []
    if main is not None:
        folder = main.parent.parent if main.name == INIT_FILE else main.parent
        strict = any(root.strict for root in roots)
        own = [SearchRoot(main.parent, name, strict).settled()] if _is_package(main, name) else []
        is_chosen = any(root.name == name and root.folder == main.parent for root in roots)
        if not is_chosen and not any(
            root.folder == folder.resolve() and not root.name for root in roots
        ):
            own.append(SearchRoot(folder, strict=strict).settled())
    return tuple(dict.fromkeys(str(root) for root in (*own, *roots)))


def _is_package(main: Path, name: str) -> bool:
    return main.name == INIT_FILE and PACKAGE_NAME.fullmatch(name) is not None


def _fingerprint(source: bytes) -> str:
    return sha256(source).hexdigest()[:16]
