"""Lazy exports: the names of a public package are loaded from their modules when first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final

#: The extra that brings each third-party package.
EXTRAS: Final = {"lupa": "lua", "mcp": "mcp", "psycopg": "postgres", "pydantic_ai": "models"}


def make_lazy_exports(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names are in the modules `homes`.

    A home is a path below `everhold`. A loaded name is stored in the package. A name whose module
    needs an extra that is not installed raises `MissingExtra`.
    """

    def load_name(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"everhold.{home}")
        except ModuleNotFoundError as error:
            if extra := EXTRAS.get((error.name or "").partition(".")[0]):
                from everhold.errors import (
                    MissingExtra,
                )  # not at the top: `import everhold` must stay fast

                raise MissingExtra(extra, f"{package}.{name}") from None
            raise
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load_name, list_names
