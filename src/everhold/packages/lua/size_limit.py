"""How large an installation may be before the user is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from everhold.errors import PackageTooLarge
from everhold.packages.lua import copy_tree
from everhold.packages.lua.lua_settings import format_size, read_lua_options
from everhold.packages.settings import settings

#: Says whether so many bytes are wanted, given the limit.
AcceptSize = Callable[[int, int], bool]


def check_size_limit(
    source: str,
    folders: Iterable[Path],
    *,
    limit: int | None = None,
    accept: AcceptSize | None = None,
) -> None:
    """Raise `PackageTooLarge` if these folders are larger than the limit, unless whoever is asked
    accepts it.

    Without a `limit`, that of the settings counts. Nothing is written here.
    """
    largest = read_lua_options(settings()).max_package if limit is None else limit
    size = sum(copy_tree.measure_package(folder) for folder in folders)
    if size > largest and not (accept is not None and accept(size, largest)):
        raise PackageTooLarge(source, format_size(size), format_size(largest))
