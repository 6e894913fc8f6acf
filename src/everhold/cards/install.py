"""Installs a collection of cards: a folder or a git repository with an `alc_cards.toml`.

    alc_cards.toml                        marks a collection
    <package>/<card>.toml                 a card, with schema_version = "card/v0"
    <package>/<card>.samples.jsonl        its samples

Rules
  1. Cards become files of the home. Existing cards, in files or in the database, are skipped.
  2. A card that cannot be read is named with the reason; the others are installed.
  3. Nothing is read through a link, and no code is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from everhold.cards.view import CardView, CardWrite
from everhold.errors import BadPackage, BadPackageFile, StoreBusy
from everhold.packages.lua.atomic_file import write_atomically
from everhold.packages.lua.card_files import (
    SCHEMA_VERSION,
    UNREADABLE,
    CardProblem,
    get_samples_path,
    is_card_name,
    list_card_files,
    read_card,
    read_samples,
)
from everhold.packages.lua.fetch import GitSource, fetch_packages

COLLECTION_FILE: Final = "alc_cards.toml"


class CollectedCard(msgspec.Struct, frozen=True):
    """A card of a collection, with the texts of its files."""

    card_id: str
    pkg: str
    text: str
    samples: str | None


class CardCollection(msgspec.Struct):
    """The cards of a collection, and its files that cannot be used."""

    cards: list[CollectedCard] = []
    problems: list[CardProblem] = []
    repository: str = ""  # its address, if it comes from git


def fetch_collection(url: str) -> CardCollection:
    """Read the collection at an address. Blocks; raises `BadPackage`."""
    with fetch_packages(url) as fetched:
        marker = fetched.folder / COLLECTION_FILE
        if marker.is_symlink() or not marker.is_file():
            raise BadPackage(
                f"{url} is not a collection of cards: it has no {COLLECTION_FILE}",
                f"Add an empty {COLLECTION_FILE} at the top of the collection.",
            )
        found = read_collection(fetched.folder)
        if isinstance(fetched.source, GitSource):
            found.repository = fetched.source.url
    if not found.cards and not found.problems:
        raise BadPackage(
            f"there is no card in {url}",
            f'Each card is a file PACKAGE/CARD.toml with schema_version = "{SCHEMA_VERSION}".',
        )
    return found


def read_collection(folder: Path) -> CardCollection:
    """The cards in a folder, by package and id."""
    found = CardCollection()
    for file in list_card_files(folder):
        if file.is_symlink() or file.parent.is_symlink():
            continue
        pkg, card_id = file.parent.name, file.stem
        try:
            body = read_card(file)
            text = file.read_text(encoding="utf-8")
            if body.get("schema_version") != SCHEMA_VERSION:
                continue
            if not is_card_name(pkg):
                raise ValueError(f"{pkg!r} cannot name a package")
            samples = get_samples_path(file)
            rows = None if samples.is_symlink() else read_samples(samples)
            lines = None if rows is None else samples.read_text(encoding="utf-8")
        except UNREADABLE as error:
            found.problems.append(CardProblem(str(file), card_id, pkg, str(error)))
        else:
            found.cards.append(CollectedCard(card_id, pkg, text, lines))
    return found


async def select_new_cards(
    view: CardView, collection: CardCollection
) -> tuple[list[CollectedCard], list[str]]:
    """The cards that are not here yet, and the ids of those that are."""
    new: list[CollectedCard] = []
    here = []
    files = await view.files()
    for card in collection.cards:
        known = await view.find_package(card.card_id) is not None or card.card_id in (
            one.card_id for one in new
        )
        if known or files.problem_of(card.card_id) is not None:
            here.append(card.card_id)
        else:
            new.append(card)
    return new, here


def remember_repository(collection: CardCollection, root: Path) -> list[str]:
    """Add where a collection comes from to hub_registries.json of the home of a folder of cards.
    Returns warnings: the cards are installed anyway. Blocks.
    """
    from everhold.packages.hub.sources import register_source
    from everhold.packages.lua.paths import AlcHome

    try:
        if collection.repository:
            register_source(AlcHome(root.parent), collection.repository, "card_install")
    except (BadPackageFile, StoreBusy) as error:
        return [str(error)]
    return []


def write_cards(cards: list[CollectedCard], root: Path) -> list[CardWrite]:
    """Write cards as files of the home, each with its samples first. Blocks."""
    writes = []
    for card in cards:
        file = root / card.pkg / f"{card.card_id}.toml"
        if card.samples is not None:
            write_atomically(get_samples_path(file), card.samples)
        write_atomically(file, card.text)
        writes.append(CardWrite("created", card.card_id, card.pkg, card.text))
        if card.samples is not None:
            writes.append(CardWrite("samples", card.card_id, card.pkg, card.samples))
    return writes
