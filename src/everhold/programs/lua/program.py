"""What a Lua program is to those who start one: plain data, like a Python program's `Call`.

    lua:code                        text; the text itself is in the session's arguments: {"code": …, "ctx": …}
    <folder>/<name>/init.lua:<name>  a package, run as `require(name).run(ctx)`; the arguments are its ctx
    <folder>/<name>.lua:<name>       a file: a module with `run(ctx)`, or a script whose global is `ctx`

Rules
  1. Any process can start it again: text travels with the session, a package or a file is read
     where it was.
  2. A package is what stands at its reference, whatever its name means elsewhere. What else it
     requires is found in its roots: in their order if its own folder is one of them, else in its
     own folder first. Nothing else on the disk can be read. Roots are not stored with a session:
     those that are handed over here hold in this process, and where none are, a runtime takes those
     of its settings, as it does in every later life.
  3. Nothing here loads Lua: a `LuaProgram` can be named, listed and stored without it.
"""  # noqa: E501

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from everhold.core.codec import JSON, to_plain
from everhold.errors import BadArguments, BadValue, NotAProgram, UnknownProgram
from everhold.ports.program import Call, Program
from everhold.programs.lua.search_path import INIT_FILE, PACKAGE_NAME, SearchRoot

#: The reference of programs whose text is in their arguments.
TEXT_REF: Final = "lua:code"

_Parameter = inspect.Parameter
_OF_TEXT: Final = inspect.Signature(
    [
        _Parameter("code", _Parameter.POSITIONAL_OR_KEYWORD),
        _Parameter("ctx", _Parameter.POSITIONAL_OR_KEYWORD, default=None),
    ]
)
_OF_FILES: Final = inspect.Signature([_Parameter("ctx", _Parameter.VAR_KEYWORD)])


class LuaProgram(Program[..., Any]):
    """A Lua program, with the face of every program; it has no `body` that Python could call."""

    def __init__(self, ref: str, *, roots: Iterable[str | Path | SearchRoot] = ()) -> None:
        place, _, name = ref.rpartition(":")
        self.ref = ref
        self.name = self.__name__ = name
        self.version = 1
        self.strict = False
        self.__doc__ = None
        self.__module__ = "lua"
        self.main: Path | None = None if ref == TEXT_REF else Path(place)
        self.is_text = self.main is None
        #: Whether it is a module found by its name, and not a file of its own.
        self.is_package = self.main is not None and _is_package(self.main, name)
        #: The folder or the file that a user vouches for; nobody does for text.
        self.home = (
            "" if self.main is None else str(self.main.parent if self.is_package else self.main)
        )
        given = tuple(roots)
        self.is_alone = not given  # nobody said where it finds what it requires: a runtime says it
        self.roots: tuple[str, ...] = _roots(self.main, name, given)
        self._digest = ""

    @classmethod
    def text(
        cls,
        code: str,
        ctx: Mapping[str, JSON] | None = None,
        *,
        roots: Iterable[str | Path | SearchRoot] = (),
    ) -> Call[Any]:
        """A call of Lua text; `ctx` is the program's global of that name."""
        program = cls(TEXT_REF, roots=roots)
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
        """The program of a stored reference; raises `UnknownProgram` if it is not here."""
        program = cls(ref, roots=roots)
        if program.main is not None and not program.main.is_file():
            raise UnknownProgram(
                ref, f"there is no file {program.main}", "Put it back, or install the package."
            )
        return program

    @property
    def body(self) -> Any:  # type: ignore[override]
        raise NotAProgram(
            self.ref, "a Lua program runs as a session of its own; use ctx.spawn(call)"
        )

    @property
    def signature(self) -> inspect.Signature:
        return _OF_TEXT if self.is_text else _OF_FILES

    @property
    def types(self) -> dict[str, Any]:
        return {}

    @property
    def digest(self) -> str:
        """A fingerprint of the text or the main file."""
        if not self._digest and self.main is not None:
            try:
                self._digest = _fingerprint(self.main.read_bytes())
            except OSError:
                return ""
        return self._digest

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, JSON]:
        """The arguments as plain JSON: of text its code and ctx, else the ctx itself (by name, or
        as one object).
        """
        given = self._by_name(args, kwargs)
        try:
            bound: dict[str, JSON] = {name: to_plain(value, name) for name, value in given.items()}
        except BadValue as error:
            raise BadArguments(self.name, str(error)) from None
        return self.arguments(bound)

    def arguments(self, args: dict[str, JSON]) -> dict[str, Any]:
        """The stored arguments, if this program can take them."""
        if self.is_text:
            if type(args.get("code")) is not str or not args.keys() <= {"code", "ctx"}:
                raise BadArguments(
                    self.name, "it takes the text of a program as code, and an object as ctx"
                )
            if not isinstance(args.get("ctx", {}), dict):
                raise BadArguments(self.name, "ctx should be an object")
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
            raise BadArguments(self.name, "it takes its ctx by name, or as one object")
        return {**(args[0] if args else {}), **kwargs}


def _roots(
    main: Path | None, name: str, given: Iterable[str | Path | SearchRoot]
) -> tuple[str, ...]:
    """All roots as text, the program's own among them."""
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
