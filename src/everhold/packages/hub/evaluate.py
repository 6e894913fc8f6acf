"""Reads what packages say of themselves when they are loaded: `meta`, and the schemas of `spec`.

A package is code, so it is loaded in the sandbox of a worker process, each in a state of its own.
It can require the other packages of its collection, and everhold's own `alc_shapes`. It cannot ask
a model or keep values.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.metrics import Metrics
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Raised, Returned
from everhold.errors import EverholdError, MissingExtra
from everhold.programs.lua.program import TEXT_REF, LuaProgram
from everhold.programs.lua.remote import LuaPoolHolder, RemoteLuaExecution
from everhold.programs.lua.search_path import OWN_FOLDER, SearchRoot

Schema = dict[str, Any]

#: The package of schemas.
SHAPES: Final = "alc_shapes"


class EvaluatedPackage(msgspec.Struct):
    """What a package says. The schemas are those of `spec.entries.run`; if the result is the name
    of a shape, `named` is that shape.
    """

    meta: dict[str, Any] = {}
    input: Schema | None = None
    result: Schema | None = None
    named: Schema | None = None


class NotEvaluated(Exception):
    """A package cannot be loaded. The text says why."""


class PackageEvaluator:
    """Loads packages of a collection; a context manager, because it has a worker process.

    Packages get everhold's own alc_shapes: a copy in the collection may only say its version.
    """

    def __init__(self, source_dir: Path) -> None:
        self._source_dir = source_dir
        self._home = LuaPoolHolder()
        self._count = 0

    def __enter__(self) -> PackageEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self._home.forget_lone()

    def evaluate(self, name: str) -> EvaluatedPackage:
        """Load the package of this folder name; raises `NotEvaluated`."""
        found = self._run({"package": name}, own_shapes=name != SHAPES)
        try:
            return msgspec.convert(_without_empty(found), EvaluatedPackage)
        except msgspec.ValidationError as error:
            raise NotEvaluated(f"its spec cannot be read: {error}") from None

    def write_types(self) -> str:
        """The named shapes of `alc_shapes`, as LuaCATS types."""
        found = self._run({"types": True})
        if not isinstance(found, str):
            raise NotEvaluated("alc_shapes.LuaCats.gen returned no text")
        return found

    def _run(self, ctx: dict[str, Any], *, own_shapes: bool = True) -> Any:
        self._count += 1
        own = (SearchRoot(OWN_FOLDER / SHAPES, SHAPES),) if own_shapes else ()
        code = files(__package__).joinpath("evaluate.lua").read_text("utf-8")
        birth = Birth(
            id=SessionId(f"hub-{self._count}"),
            program=TEXT_REF,
            args={"code": code, "ctx": ctx},
            created_at=0.0,
            seeds=[Seed(0, f"{self._count:024x}")],
        )
        program = LuaProgram(TEXT_REF, roots=(*own, self._source_dir))
        execution = RemoteLuaExecution(program, birth, Metrics(), self._home)
        try:
            reply = execution.advance(0, 0.0, [], False, None)
        except MissingExtra:
            raise
        except EverholdError as error:
            raise NotEvaluated(str(error)) from None
        match reply.outcome:
            case Returned(value):
                return value
            case Raised(words):
                raise NotEvaluated(words.removeprefix("LuaError: "))
        execution.drop()
        raise NotEvaluated("it asks a model, or uses durable values, while it is loaded")


def _without_empty(value: Any) -> Any:
    """Lua has no difference between an empty array and an empty object."""
    return {} if value == [] else value
