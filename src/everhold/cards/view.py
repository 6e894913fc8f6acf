"""All cards at one moment: those of the database, and behind them those of the home's files.

    card/id       id -> package. Written only if it is missing: two sessions cannot create one id.
    card/body     package/id -> the card
    card/index    package/id -> its summary and its ancestor, so that a listing reads no cards
    card/samples  id -> rows, written once
    card/alias    name -> {name, card_id, pkg?, set_at, note?}

Rules
  1. The database is the truth: of a card or an alias that is in both, the file is not seen.
  2. Files are only read. Keys added to a card in a file are written to the database, with a copy
     of the card.
  3. The files are read once per view, and before any write of it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from everhold.cards.card import Card
from everhold.core.codec import JSON
from everhold.errors import BadCard, CardImmutable, UnknownCard
from everhold.packages.lua.card_files import (
    CardFolder,
    FileCards,
    get_samples_path,
    is_card_name,
)
from everhold.packages.lua.card_index import make_index_entry
from everhold.ports.value_verbs import ValueAccess

#: The namespaces of cards. They contain a "/", so no program can name them itself.
CARD_NAMESPACES: Final = ("card/id", "card/body", "card/index", "card/samples", "card/alias")
_ID, _BODY, _INDEX, _SAMPLES, _ALIAS = CARD_NAMESPACES


class CardWrite(msgspec.Struct, frozen=True):
    """What was written, for the sinks. `kind` is created, appended, samples or aliases."""

    kind: str
    card_id: str = ""
    pkg: str = ""
    content: Any = None  # a card, rows of samples, or the text of a file of either; or all aliases


class CardView:
    """Reads and writes cards among the durable values of one step."""

    def __init__(self, values: ValueAccess, folder: CardFolder | None) -> None:
        self._values = values
        self._folder = folder
        self._files: FileCards | None = None
        self.writes: list[CardWrite] = []

    async def files(self) -> FileCards:
        """What the home has; nothing if there is none."""
        if self._files is None:
            self._files = (
                FileCards() if self._folder is None else await asyncio.to_thread(self._folder.load)
            )
        return self._files

    # ---- reading

    async def find_package(self, card_id: object) -> str | None:
        """The package of a card; None if there is no such card."""
        if not isinstance(card_id, str) or not is_card_name(card_id):
            return None
        found = await self._values.found(_ID, card_id)
        if found is not None:
            return str(found[0])
        card = (await self.files()).cards.get(card_id)
        return None if card is None else card.pkg

    async def load(self, card_id: object) -> Card | None:
        """A card; None if there is none. Raises `BadCard` if its file cannot be read."""
        package = await self.find_package(card_id)
        if package is not None:
            return await self._body(str(card_id), package)
        problem = (await self.files()).problem_of(card_id) if isinstance(card_id, str) else None
        if problem is not None:
            raise BadCard(
                f"card '{card_id}' cannot be read: {problem}", "Fix the file, or move it away."
            )
        return None

    async def require(self, card_id: object) -> tuple[Card, str]:
        """A card and its package; raises `UnknownCard`."""
        card = await self.load(card_id)
        if card is None:
            raise UnknownCard(card_id if isinstance(card_id, str) else str(card_id))
        package = await self.find_package(card_id)
        assert package is not None
        return card, package

    async def _body(self, card_id: str, package: str) -> Card | None:
        found = await self._values.found(_BODY, f"{package}/{card_id}")
        if found is not None:
            return dict(found[0])
        card = (await self.files()).cards.get(card_id)
        return None if card is None else card.body

    async def entries(self, package: str | None = None) -> list[dict[str, JSON]]:
        """The entries of the index, of all packages or of one."""
        found = [dict(entry) for _, entry in await self._values.scan(_INDEX, _prefix(package))]
        known = {entry["card_id"] for entry in found}
        for card_id, card in await self._only_in_files(package):
            if card_id not in known:
                found.append(make_index_entry(card.body, card.pkg))
        return found

    async def bodies(self, package: str | None = None) -> list[tuple[Card, str]]:
        """The cards with their packages, of all packages or of one."""
        found = [
            (card, key.partition("/")[0])
            for key, card in await self._values.scan(_BODY, _prefix(package))
        ]
        known = {card["card_id"] for card, _ in found}
        for card_id, file in await self._only_in_files(package):
            if card_id not in known:
                found.append((file.body, file.pkg))
        return found

    async def _only_in_files(self, package: str | None) -> list[tuple[str, Any]]:
        """The cards of the home that the database has in no package."""
        files = await self.files()
        chosen = [
            (card_id, card)
            for card_id, card in files.cards.items()
            if package is None or card.pkg == package
        ]
        if not chosen:
            return []
        here = {key for key, _ in await self._values.scan(_ID, "")}
        return [(card_id, card) for card_id, card in chosen if card_id not in here]

    async def samples(self, card_id: str) -> list[JSON] | None:
        """The samples of a card; None if there are none. Raises `BadCard` for an unreadable
        file.
        """
        found = await self._values.found(_SAMPLES, card_id)
        if found is not None:
            return list(found[0])
        files = await self.files()
        if card_id not in files.cards:
            return None
        return await asyncio.to_thread(files.read_samples, card_id)

    async def read_text(self, card_id: str) -> str | None:
        """The text of a card's file, if the database does not have the card."""
        card = (await self.files()).cards.get(card_id)
        if card is None or await self._values.found(_ID, card_id) is not None:
            return None
        return await asyncio.to_thread(card.path.read_text, encoding="utf-8")

    async def read_samples_text(self, card_id: str) -> str | None:
        """The text of a card's file of samples, if the database does not have the samples."""
        card = (await self.files()).cards.get(card_id)
        if card is None or await self._values.found(_SAMPLES, card_id) is not None:
            return None
        return await asyncio.to_thread(get_samples_path(card.path).read_text, encoding="utf-8")

    async def aliases(self) -> list[dict[str, JSON]]:
        """All aliases, by name."""
        found = dict((await self.files()).aliases)
        found.update(await self._values.scan(_ALIAS, ""))
        return [found[name] for name in sorted(found)]

    async def alias(self, name: object) -> dict[str, JSON] | None:
        if not isinstance(name, str) or not is_card_name(name):
            return None
        found = await self._values.found(_ALIAS, name)
        return dict(found[0]) if found is not None else (await self.files()).aliases.get(name)

    # ---- writing

    async def create(self, card: Card) -> None:
        """Write a new card; raises `CardImmutable` if there is one of its id."""
        card_id, package = card["card_id"], card["pkg"]["name"]
        taken = await self.find_package(card_id) is not None
        if taken or (await self.files()).problem_of(card_id) is not None:
            raise CardImmutable(card_id)
        await self._put(card, package)
        self.writes.append(CardWrite("created", card_id, package, card))

    async def extend(self, card: Card, package: str, fields: dict[str, JSON]) -> Card:
        """Add keys to a card; raises `CardImmutable` for a key that it has."""
        for key in sorted(fields):
            if key in card:
                raise CardImmutable(card["card_id"], key=key)
        if not fields:
            return card
        merged = {**card, **fields}
        await self._put(merged, package)
        self.writes.append(CardWrite("appended", card["card_id"], package, merged))
        return merged

    async def _put(self, card: Card, package: str) -> None:
        place = f"{package}/{card['card_id']}"
        await self._values.put(_ID, card["card_id"], package)
        await self._values.put(_BODY, place, card)
        await self._values.put(_INDEX, place, make_index_entry(card, package))

    async def put_samples(self, card_id: str, package: str, rows: list[JSON]) -> None:
        """Write the samples of a card; raises `CardImmutable` if it has some."""
        if await self.samples(card_id) is not None:
            raise CardImmutable(card_id, samples=True)
        await self._values.put(_SAMPLES, card_id, rows)
        self.writes.append(CardWrite("samples", card_id, package, rows))

    async def put_alias(self, alias: dict[str, JSON]) -> None:
        await self._values.put(_ALIAS, str(alias["name"]), alias)
        self.writes.append(CardWrite("aliases", content=await self.aliases()))


def _prefix(package: str | None) -> str:
    return "" if package is None else f"{package}/"
