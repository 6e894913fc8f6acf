"""Sinks: folders that get a copy of every card, in the form of algocline's files.

`ALC_CARD_SINKS=file:///srv/cards|file:///mnt/team/cards` names them. What a commit has written is
copied right after it.

Rules
  1. A sink that fails never fails the write: the failure is counted, and logged.
  2. Each process copies what it writes itself, and counts for itself.
  3. A backfill adds the cards, keys of cards, samples and aliases that a sink lacks. It never
     changes what is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from everhold.cards.view import CardView, CardWrite
from everhold.core.codec import JSON
from everhold.errors import BadCard, EverholdError, UnknownCardSink
from everhold.packages.lua.atomic_file import write_atomically
from everhold.packages.lua.card_files import (
    ALIASES_FILE,
    UNREADABLE,
    dump_aliases,
    dump_card,
    dump_samples,
    get_samples_path,
    is_card_name,
    list_card_files,
    read_aliases,
    read_card,
)
from everhold.packages.lua.paths import parse_file_address, read_card_sinks

log = logging.getLogger("everhold")

WRITE_KINDS: Final = ("created", "appended", "samples", "aliases")


class CardSink:
    """One folder, and what was copied to it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder
        self._ok = dict.fromkeys(WRITE_KINDS, 0)
        self._failed = dict.fromkeys(WRITE_KINDS, 0)
        self._last_error: dict[str, JSON] | None = None

    def copy(self, write: CardWrite, at: float) -> str:
        """Copy a write, and count it. Returns why that failed, or empty text."""
        try:
            self._copy(write)
        except (EverholdError, OSError) as error:
            self._failed[write.kind] += 1
            self._last_error = {"kind": write.kind, "msg": str(error), "ts_ms": int(at * 1000)}
            log.warning("card sink %s: %s", self.address, error)
            return str(error)
        self._ok[write.kind] += 1
        return ""

    def lacks(self, write: CardWrite) -> bool:
        """Whether there is no such card, or it has no samples, or not all keys."""
        file = self._find(write.card_id)
        if file is None:
            return True
        if write.kind == "samples":
            return not get_samples_path(file).exists()
        try:
            return (
                isinstance(write.content, dict) and read_card(file).items() < write.content.items()
            )
        except UNREADABLE:
            return False

    def find_missing_aliases(self, rows: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
        """The aliases that the sink lacks; raises one of `UNREADABLE`."""
        file = self.folder / ALIASES_FILE
        here = {row["name"] for row in read_aliases(file)[0]} if file.exists() else set()
        return [row for row in rows if row["name"] not in here]

    def add_aliases(self, rows: list[dict[str, JSON]], at: float) -> str:
        """Add aliases to those of the sink. Returns why that failed, or empty text."""
        file = self.folder / ALIASES_FILE
        here = read_aliases(file)[0] if file.exists() else []
        return self.copy(CardWrite("aliases", content=[*here, *rows]), at)

    def _copy(self, write: CardWrite) -> None:
        if write.kind == "aliases":
            return write_atomically(self.folder / ALIASES_FILE, dump_aliases(write.content))
        if not is_card_name(write.card_id) or not is_card_name(write.pkg):
            raise BadCard(f"card {write.card_id!r} of {write.pkg!r} cannot be a file")
        file = self._find(write.card_id) or self.folder / write.pkg / f"{write.card_id}.toml"
        if write.kind != "samples":
            text = write.content if isinstance(write.content, str) else dump_card(write.content)
            return write_atomically(file, text)
        if not file.exists():
            raise BadCard(f"samples of card '{write.card_id}': the card is missing there")
        lines = write.content if isinstance(write.content, str) else dump_samples(write.content)
        return write_atomically(get_samples_path(file), lines)

    def _find(self, card_id: str) -> Path | None:
        wanted = f"{card_id}.toml"
        return next((one for one in list_card_files(self.folder) if one.name == wanted), None)

    def stats(self) -> dict[str, JSON]:
        """What was copied, as `alc_stats` shows it."""
        return {
            "sink": self.address,
            "ok": dict(self._ok),
            "err": dict(self._failed),
            "last_error": self._last_error,
        }


class SinkReport(msgspec.Struct):
    """What a backfill copied, or would copy."""

    sink: str
    pushed: list[str] = []
    skipped: list[str] = []
    failed: list[tuple[str, str]] = []
    pushed_samples: list[str] = []
    pushed_aliases: list[str] = []

    def to_json(self) -> dict[str, JSON]:
        report: dict[str, JSON] = {
            "sink": self.sink,
            "pushed": [*self.pushed],
            "skipped": [*self.skipped],
            "failed": [[*one] for one in self.failed],
            "pushed_samples": [*self.pushed_samples],
        }
        return report | ({"pushed_aliases": [*self.pushed_aliases]} if self.pushed_aliases else {})


class CardSinks:
    """The sinks of this process. They are read when they are first needed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sinks: list[CardSink] | None = None

    @property
    def all(self) -> list[CardSink]:
        if self._sinks is None:
            named, _ = read_card_sinks()
            self._sinks = [CardSink(address, folder) for address, folder in named.items()]
        return self._sinks

    def copy(self, writes: Iterable[CardWrite]) -> None:
        """Copy what was written to every sink."""
        for write in writes:
            for sink in self.all:
                sink.copy(write, self._now())

    def find(self, address: str) -> CardSink:
        """A sink by its address; raises `UnknownCardSink`."""
        path = parse_file_address(address)
        for sink in self.all:
            if sink.address == address or (path is not None and sink.folder == path):
                return sink
        raise UnknownCardSink(address, [sink.address for sink in self.all])

    async def backfill(self, view: CardView, address: str, *, dry_run: bool) -> SinkReport:
        """Copy what a sink lacks to it; raises `UnknownCardSink`.

        What the view itself has written is left out.
        """
        sink = self.find(address)
        report = SinkReport(address)
        written = {write.card_id for write in view.writes}
        entries = [one for one in await view.entries() if one["card_id"] not in written]
        for entry in sorted(entries, key=lambda one: (one["pkg"], one["card_id"])):
            card_id = entry["card_id"]
            try:
                writes = await load_writes(view, card_id)
            except (BadCard, OSError, UnicodeDecodeError) as error:  # a file cannot be read
                report.failed.append((card_id, str(error)))
                continue
            for write in writes:
                is_card = write.kind == "created"
                if not await asyncio.to_thread(sink.lacks, write):
                    report.skipped += [card_id] if is_card else []
                    continue
                failed = "" if dry_run else await asyncio.to_thread(sink.copy, write, self._now())
                if failed:
                    report.failed.append((card_id, failed))
                    break
                (report.pushed if is_card else report.pushed_samples).append(card_id)
        await self._backfill_aliases(view, sink, report, dry_run)
        files = await view.files()
        report.failed += [(one.card_id, str(one)) for one in files.problems if one.card_id]
        return report

    async def _backfill_aliases(
        self, view: CardView, sink: CardSink, report: SinkReport, dry_run: bool
    ) -> None:
        try:
            rows = await asyncio.to_thread(sink.find_missing_aliases, await view.aliases())
            failed = ""
            if rows and not dry_run:
                failed = await asyncio.to_thread(sink.add_aliases, rows, self._now())
        except UNREADABLE as error:
            failed = str(error)
        if failed:
            report.failed.append((ALIASES_FILE, failed))
        else:
            report.pushed_aliases = [str(row["name"]) for row in rows]


async def load_writes(view: CardView, card_id: str) -> list[CardWrite]:
    """A card and its samples, as they would be written to a sink."""
    card, package = await view.require(card_id)
    text = await view.read_text(card_id)
    writes = [CardWrite("created", card_id, package, card if text is None else text)]
    rows = await view.samples(card_id)
    if rows is None:
        return writes
    lines = await view.read_samples_text(card_id)
    return [*writes, CardWrite("samples", card_id, package, rows if lines is None else lines)]
