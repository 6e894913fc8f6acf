"""What of a life runs on its own, and what it waits for."""

from __future__ import annotations

from typing import Any

from everhold.core.codec import JSON
from everhold.core.query import Query
from everhold.programs.lua.vm import LuaVm


class LuaCoroutine:
    """A state that runs on its own: the program, or a child it forked."""

    __slots__ = (
        "asked",
        "fork",
        "label",
        "made",
        "memory",
        "name",
        "path",
        "place",
        "space",
        "stats",
        "vm",
        "waits",
    )

    def __init__(
        self,
        vm: LuaVm,
        path: str,
        space: str,
        memory: int,
        fork: ForkWait | None,
        name: str,
        place: int,
    ) -> None:
        self.vm = vm
        self.path = path
        self.space = space  # the namespace of its durable values
        self.memory = memory
        self.fork = fork  # whose child it is
        self.name = name
        self.place = place
        outer = fork.parent.label if fork is not None else ""
        self.label: str = "" if fork is None else f"{outer}{name}#{place + 1}/"
        self.asked = 0  # queries asked so far
        self.made = 0  # children forked so far
        self.stats: dict[str, JSON] = {}
        self.waits: QueryWait | ForkWait | None = None


class QueryWait:
    """Open queries of a strand: it goes on when all of them have an answer."""

    __slots__ = ("answers", "left", "queries", "strand")

    def __init__(self, strand: LuaCoroutine, queries: list[Query]) -> None:
        self.strand = strand
        self.queries = queries
        self.answers: list[Any] = [None] * len(queries)
        self.left = len(queries)


class ForkWait:
    """A strand that waits for its children: it goes on when all of them have ended."""

    __slots__ = ("aborts", "children", "left", "parent", "results")

    def __init__(self, parent: LuaCoroutine, aborts: bool) -> None:
        self.parent = parent
        self.aborts = aborts
        self.children: list[LuaCoroutine] = []
        self.results: list[bytes] = []
        self.left = 0
