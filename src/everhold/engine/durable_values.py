"""Durable values within one step: a consistent view of reads, and writes that wait for the commit.

A value that was read once stays the same for the rest of the step. Writes are part of the step's
commit, which fails if another process has written the same value in between.

A feature may have verbs in a namespace of its own: see `everhold.ports.value_verbs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.journal import Delivery
from everhold.core.query import Kind, Query, inherit_namespace
from everhold.engine.journal_reader import index_queries
from everhold.errors import BadValue
from everhold.ports.store import Store, ValueWrite
from everhold.ports.value_verbs import StepVerbs, ValueVerbs

_READING: Final = frozenset({"get", "keys", "scan"})


class DurableValues:
    """Answers the `state` queries of one step."""

    def __init__(
        self, store: Store, verbs: Mapping[str, ValueVerbs] | None = None, at: float = 0.0
    ) -> None:
        self._store = store
        self._verbs = verbs or {}  # by namespace
        self._begun: dict[str, StepVerbs] = {}
        self._at = at
        self._seen: dict[tuple[str, str], tuple[list[JSON] | None, int]] = {}
        self._written: dict[tuple[str, str], list[JSON] | None] = {}

    async def answer(self, query: Query) -> JSON:
        namespace = query.args["in"]
        if namespace in self._verbs:
            if namespace not in self._begun:
                self._begun[namespace] = self._verbs[namespace].begin(self, self._at)
            return await self._begun[namespace].answer(query)
        verb = query.args["do"]
        given = query.args.get("value")
        place = (namespace, query.name)
        if verb == "keys":
            return await self._keys(namespace)
        if verb == "scan":
            return [[key, value] for key, value in await self.scan(namespace, query.name)]
        found = await self.found(*place)
        match verb:
            case "get":
                return found
            case "set" | "swap":
                self._written[place] = given
                return None
            case "delete":
                self._written[place] = None
                return found is not None
            case "set_nx":
                if found is None:
                    self._written[place] = given
                return found is None
            case _:
                return self._incr(place, found, *given)

    async def inherit(self, shared: Iterable[Delivery], session_id: str) -> None:
        """Repeat in a fork's own namespace the writes that its origin made to a private
        namespace.
        """
        states = (query for query in index_queries(shared).values() if query.kind is Kind.STATE)
        for query in states:
            namespace = inherit_namespace(query.args["in"], session_id)
            if namespace is not None and query.args["do"] not in _READING:
                with suppress(BadValue):  # it was refused in the origin, too
                    await self.answer(
                        msgspec.structs.replace(query, args={**query.args, "in": namespace})
                    )

    async def found(self, namespace: str, key: str) -> list[JSON] | None:
        """A value as a list of one; None if it is not set."""
        place = (namespace, key)
        if place not in self._seen:
            self._seen[place] = await self._store.value(*place)
        return self._written.get(place, self._seen[place][0])

    async def scan(self, namespace: str, prefix: str) -> list[tuple[str, JSON]]:
        """The keys with this prefix and their values, in the order of the keys."""
        keys = [key for key in await self._keys(namespace) if key.startswith(prefix)]
        pairs = [(key, await self.found(namespace, key)) for key in keys]
        return [(key, found[0]) for key, found in pairs if found is not None]

    async def put(self, namespace: str, key: str, value: JSON) -> None:
        """Write a value. The commit checks that it still is what was read."""
        await self.found(namespace, key)
        self._written[(namespace, key)] = [value]

    def committed(self) -> None:
        """The step is stored: features may now tell others about it."""
        for verbs in self._begun.values():
            verbs.committed()

    def _incr(
        self, place: tuple[str, str], found: list[JSON] | None, delta: float, default: float
    ) -> float:
        number = default if found is None else found[0]
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise BadValue(f"incr of '{place[1]}': the value", "is not a number")
        if isinstance(delta, bool) or not isinstance(delta, int | float):
            raise BadValue(f"incr of '{place[1]}': the delta", "is not a number")
        total: float = to_plain(number + delta, f"incr of '{place[1]}': the value")
        self._written[place] = [total]
        return total

    async def _keys(self, namespace: str) -> list[str]:
        keys = set(await self._store.keys(namespace))
        for (other, key), value in self._written.items():
            if other == namespace:
                (keys.discard if value is None else keys.add)(key)
        return sorted(keys)

    def writes(self) -> list[ValueWrite]:
        return [
            ValueWrite(namespace, key, value, self._seen[(namespace, key)][1])
            for (namespace, key), value in self._written.items()
        ]
