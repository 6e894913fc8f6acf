"""`runtime.cards`: reads and writes cards from outside of programs, and answers `alc.card`."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Literal

from everhold.cards.install import (
    fetch_collection,
    remember_repository,
    select_new_cards,
    write_cards,
)
from everhold.cards.sinks import CardSinks, SinkReport, load_writes
from everhold.cards.verbs import CardVerbs
from everhold.cards.view import CardView, CardWrite
from everhold.core.codec import JSON
from everhold.core.query import Query
from everhold.engine.durable_values import DurableValues
from everhold.engine.engine import Engine
from everhold.engine.value_session import build_value_session
from everhold.errors import BadCard, Overtaken, UnknownCard, UnknownCardAlias
from everhold.packages.lua.card_files import CardFolder, CardProblem
from everhold.packages.lua.card_index import PackageCards
from everhold.packages.lua.paths import get_alc_home
from everhold.ports.program import Clock
from everhold.ports.value_verbs import ValueAccess

Card = dict[str, Any]

#: The namespace in which programs ask for verbs of cards.
CARD_SPACE: Final = "card"
#: The program that a session has whose one step wrote a card from outside.
CARD_PROGRAM: Final = "everhold:card"


class CardSource:
    """Where cards are read and copied to. With `files`, the home of algocline is read too.

    The engine asks it for the verbs of a step: see `everhold.ports.value_verbs`.
    """

    def __init__(self, clock: Clock, *, files: bool) -> None:
        self.sinks = CardSinks(clock.now)
        self._files = files
        self._folder: CardFolder | None = None

    @property
    def folder(self) -> CardFolder | None:
        """The folder of cards; found when it is first needed."""
        if self._files and self._folder is None:
            self._folder = CardFolder(get_alc_home().cards)
        return self._folder

    def view(self, values: ValueAccess) -> CardView:
        return CardView(values, self.folder)

    def begin(self, values: ValueAccess, at: float) -> CardStep:
        return CardStep(self, values, at)


class CardStep:
    """The cards of one step of a program."""

    def __init__(self, source: CardSource, values: ValueAccess, at: float) -> None:
        self._source = source
        self._verbs = CardVerbs(source.view(values), at, _get_version())

    async def answer(self, query: Query) -> JSON:
        given = query.args["value"][0] if query.args.get("value") else None
        if query.args["do"] == "sink_backfill":
            return await self._backfill(given)
        return await self._verbs.run(query.args["do"], query.name, given)

    async def _backfill(self, given: JSON) -> JSON:
        """What this step has written is left out: it is copied when it is committed."""
        options = given if isinstance(given, dict) else {}
        report = await self._source.sinks.backfill(
            self._verbs.view, str(options.get("sink")), dry_run=options.get("dry_run") is True
        )
        return report.to_json()

    def committed(self) -> None:
        writes = self._verbs.view.writes
        if writes and self._source.sinks.all:
            # in place, although files block: the copies are complete when the step is
            self._source.sinks.copy(writes)
        writes.clear()


class Cards:
    """`runtime.cards`: the cards of the database, and of the files in algocline's home.

    Cards, summaries and rows are plain JSON values. A listing leaves out files that cannot be
    read; `problems` names them.
    """

    def __init__(self, engine: Engine, source: CardSource) -> None:
        self._engine = engine
        self._source = source

    # ---- reading

    async def list(self, pkg: str | None = None) -> builtins.list[Card]:
        """Summaries of all cards, or of one package, newest first."""
        return await self._read_rows(lambda verbs: verbs.list(None, {"pkg": pkg}))

    async def get(self, card_id: str) -> Card:
        """A card; raises `UnknownCard`."""
        found: Card | None = await self._read(lambda verbs: verbs.get(card_id))
        if found is None:
            raise UnknownCard(card_id)
        return found

    async def find(
        self,
        *,
        pkg: str | None = None,
        where: Mapping[str, JSON] | None = None,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> builtins.list[Card]:
        """Summaries of the cards that satisfy `where`; by default newest first."""
        given = {
            "pkg": pkg,
            "where": where,
            "order_by": builtins.list(order_by) if isinstance(order_by, tuple) else order_by,
            "limit": limit,
            "offset": offset,
        }
        return await self._read_rows(lambda verbs: verbs.find(None, given))

    async def samples(
        self,
        card_id: str,
        *,
        where: Mapping[str, JSON] | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> builtins.list[JSON]:
        """The samples of a card that satisfy `where`; raises `UnknownCard`."""
        given = {"where": where, "limit": limit, "offset": offset}
        return await self._read_rows(lambda verbs: verbs.read_samples(card_id, given))

    async def lineage(
        self,
        card_id: str,
        *,
        direction: Literal["up", "down", "both"] = "up",
        depth: int | None = None,
        include_stats: bool = True,
        relations: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The cards that a card comes from, or that come from it: `root`, `nodes`, `edges`, and
        whether `depth` (10) has `truncated` them. Raises `UnknownCard`.
        """
        given = {
            "direction": direction,
            "depth": depth,
            "include_stats": include_stats,
            "relation_filter": None if relations is None else builtins.list(relations),
        }
        found: dict[str, Any] | None = await self._read(lambda verbs: verbs.lineage(card_id, given))
        if found is None:
            raise UnknownCard(card_id)
        return found

    async def aliases(self, pkg: str | None = None) -> builtins.list[dict[str, Any]]:
        """The aliases by name, all or those of one package."""
        return await self._read_rows(lambda verbs: verbs.alias_list(None, {"pkg": pkg}))

    async def get_by_alias(self, name: str) -> Card:
        """The card that an alias names; raises `UnknownCardAlias`."""
        found: Card | None = await self._read(lambda verbs: verbs.get_by_alias(name))
        if found is None:
            raise UnknownCardAlias(name)
        return found

    async def problems(self, pkg: str | None = None) -> builtins.list[CardProblem]:
        """The files among the cards that cannot be read, with the reasons."""
        files = await self._view().files()
        return [one for one in files.problems if pkg is None or one.pkg in ("", pkg)]

    async def _read(self, run: Callable[[CardVerbs], Awaitable[Any]]) -> Any:
        return await run(self._verbs(self._values()))

    async def _read_rows(self, run: Callable[[CardVerbs], Awaitable[Any]]) -> builtins.list[Any]:
        rows: builtins.list[Any] = await self._read(run)
        return rows

    # ---- writing

    async def create(self, card: Mapping[str, JSON]) -> str:
        """Create a card with at least `pkg.name`, and return its id. Raises `CardImmutable` if
        there is a card of its id.
        """
        made = await self._write("create", None, _as_plain(card))
        return str(made["card_id"])

    async def append(self, card_id: str, fields: Mapping[str, JSON]) -> Card:
        """Add keys to a card, and return it. Raises `CardImmutable` for a key that it has."""
        found: Card = await self._write("append", card_id, _as_plain(fields))
        return found

    async def write_samples(self, card_id: str, rows: Sequence[JSON]) -> int:
        """Write the samples of a card, once; returns how many there are."""
        made = await self._write("write_samples", card_id, _as_plain(rows))
        return int(made["count"])

    async def set_alias(
        self, name: str, card_id: str, *, pkg: str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Name a card. A name that is used already then names this card."""
        given = {"card_id": card_id, "pkg": pkg, "note": note}
        return await self._write("alias_set", name, given)  # type: ignore[no-any-return]

    async def _write(self, verb: str, name: str | None, given: Any) -> Any:
        return await self._engine.complete(self._commit(verb, name, given))

    async def _commit(self, verb: str, name: str | None, given: Any) -> Any:
        """Run a verb and commit its writes; again, if another process wrote at the same time."""
        while True:
            values = self._values()
            verbs = self._verbs(values)
            result = await verbs.run(verb, name, given)
            if not verbs.view.writes:
                return result
            change = build_value_session(
                CARD_PROGRAM,
                {"do": verb, "name": name or result["card_id"]},
                f"card {verb} {name or result['card_id']}",
                values.writes(),
                result=result,
                now=self._engine.clock.now(),
                everhold=_get_version(),
            )
            try:
                await self._engine.store.commit(change, 0)
            except Overtaken:
                continue
            await self._copy(verbs.view.writes)
            return result

    async def _copy(self, writes: Sequence[CardWrite]) -> None:
        if writes and self._source.sinks.all:
            await asyncio.to_thread(self._source.sinks.copy, writes)

    # ---- collections and sinks

    async def install(self, url: str) -> dict[str, JSON]:
        """Install the cards of a collection: a folder or a git repository with an
        `alc_cards.toml`. They become files of algocline's home.
        """
        folder = self._source.folder
        if folder is None:
            raise BadCard(
                "this runtime reads no files of cards", "Open it by everhold.open, then try again."
            )
        collection = await asyncio.to_thread(fetch_collection, url)
        new, skipped = await select_new_cards(self._view(), collection)
        await self._copy(await asyncio.to_thread(write_cards, new, folder.root))
        made: dict[str, JSON] = {
            "installed_cards": [card.card_id for card in new],
            "skipped_cards": skipped,
            "packages": sorted({card.pkg for card in collection.cards}),
            "source": url,
            "mode": "card_collection",
        }
        if warnings := await asyncio.to_thread(remember_repository, collection, folder.root):
            made["storage_warnings"] = [*warnings]
        if collection.problems:
            made["failed_cards"] = [
                {"card_id": one.card_id, "pkg": one.pkg, "error": one.reason}
                for one in collection.problems
            ]
        return made

    async def copy_installed(self, card_ids: Sequence[str]) -> None:
        """Copy cards to the sinks that a package has brought as files."""
        if not self._source.sinks.all:
            return
        view = self._view()
        for card_id in card_ids:
            await self._copy(await load_writes(view, card_id))

    def sinks(self) -> builtins.list[dict[str, Any]]:
        """What this process has copied to each folder of ALC_CARD_SINKS, and what failed."""
        return [sink.stats() for sink in self._source.sinks.all]

    async def backfill(self, sink: str, *, dry_run: bool = False) -> SinkReport:
        """Copy the cards that a sink lacks to it; raises `UnknownCardSink`. What is there stays."""
        return await self._source.sinks.backfill(self._view(), sink, dry_run=dry_run)

    # ---- helpers

    def _now(self) -> float:
        return self._engine.clock.now()

    def _values(self) -> DurableValues:
        return DurableValues(self._engine.store)

    def _view(self) -> CardView:
        return self._source.view(self._values())

    def _verbs(self, values: DurableValues) -> CardVerbs:
        return CardVerbs(self._source.view(values), self._now(), _get_version())


async def load_package_cards(cards: Cards) -> PackageCards:
    """The cards of the database and of files, for a search among packages."""
    problems = [str(one) for one in await cards.problems()]
    return PackageCards(await cards.list(), await cards.aliases(), problems)


@cache
def _get_version() -> str:
    try:
        return version("everhold")
    except PackageNotFoundError:  # run from a folder of sources
        return "0"


def _as_plain(given: Any) -> Any:
    """A mapping as a dict and a sequence as a list. The verb refuses any other value."""
    if isinstance(given, Mapping):
        return dict(given)
    is_rows = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return builtins.list(given) if is_rows else given
