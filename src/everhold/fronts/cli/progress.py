"""A bar for work that takes a while; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from everhold.fronts.cli.house import at_terminal

T = TypeVar("T")


def tracked(items: Sequence[T], words: str, *, quiet: bool = False) -> Iterator[T]:
    """The items, one by one, with a bar at a terminal."""
    if quiet or not at_terminal():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description=words, transient=True)
