"""Moves sessions between databases: `export_sessions` writes a file, `import_sessions` reads it.

Rules
  1. A file is read to its end before anything is imported. An invalid file changes nothing.
  2. A session is imported whole or not at all, under its own id. An existing session is never
     changed.
  3. Work that ran during the export has an unknown outcome after the import: `rerun` decides.
  4. A parent comes before its children, and an origin before its forks. A fork whose origin is not
     in the file contains the shared deliveries, and is imported as a session without origin.

`copy_timetable` copies schedules, triggers and stored events.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from everhold.archive import redact
from everhold.archive.export_format import (
    AttachmentLine,
    EffectLine,
    ExportHeader,
    ExportReader,
    ExportWriter,
    HeadLine,
    SessionExport,
    SessionLine,
    ValueLine,
    digest_deliveries,
)
from everhold.cards import CARD_NAMESPACES, CARD_PROGRAM, CARD_SPACE
from everhold.core.intake import IntakeItem
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    find_first_open_delivery,
    find_open_queries,
    is_asking,
)
from everhold.core.metrics import Metrics
from everhold.core.query import (
    Kind,
    is_noticed,
)
from everhold.core.session import ENDED, Birth, Head, SessionId, SessionState
from everhold.engine.children import make_child_answer, sum_answer_usage
from everhold.engine.journal_reader import index_queries
from everhold.engine.live_session import is_parked
from everhold.engine.session_view import make_finished_status
from everhold.engine.unknown_effects import make_rerun_question
from everhold.errors import (
    BadExport,
    BadSetting,
    KeyConflict,
    Overtaken,
    SessionExists,
    StoreUnavailable,
    UnknownSession,
)
from everhold.ports.attachment import Attachment
from everhold.ports.store import (
    NO_WORKER,
    Change,
    Duty,
    Effect,
    Letter,
    Notice,
    ProgressCallback,
    SessionFilter,
    SessionRecord,
    SessionSummary,
    Store,
    ValueWrite,
)
from everhold.schedules.schedule import SCHEDULE_KIND as SCHEDULE
from everhold.schedules.trigger import EVENT, HANDOVER, TRIGGER

#: The revision of a session that only has its attachments yet.
PREPARED_REVISION: Final = 1

ExportFile = str | os.PathLike[str] | BinaryIO

#: Sessions read at once while listing.
PAGE_SIZE: Final = 500
#: The worker in the marks of imported effects. It never lives, so their outcomes are unknown.
EXPORTED_WORKER: Final = "w-exported"


class ExportResult(msgspec.Struct, frozen=True):
    """What an export wrote."""

    sessions: list[SessionId]
    values: int
    redacted: list[str]


class ImportResult(msgspec.Struct, frozen=True):
    """The imported sessions, and the skipped ones, which existed already."""

    sessions: list[SessionId]
    skipped: list[SessionId]
    values: int


def ensure_progress(progress: ProgressCallback | None) -> ProgressCallback:
    """The callback, or one that does nothing."""
    return _ignore_progress if progress is None else progress


def _ignore_progress(done: int, total: int) -> None: ...


async def iterate_sessions(store: Store, wanted: SessionFilter) -> AsyncIterator[SessionSummary]:
    """Every session that matches a filter, in the order of lists. The filter's limit is ignored."""
    wanted = msgspec.structs.replace(wanted, limit=PAGE_SIZE)
    while True:
        page = await store.list(wanted)
        for row in page:
            yield row
        if len(page) < PAGE_SIZE:
            return
        wanted = msgspec.structs.replace(wanted, after=page[-1].birth.id)


# ---- export


class Exporter:
    """Writes sessions of one store to one file, each with its children."""

    def __init__(
        self, store: Store, writer: ExportWriter, parts: Collection[str], progress: ProgressCallback
    ) -> None:
        self._store = store
        self._writer = writer
        self._parts = parts
        self._progress = progress
        self.written: dict[SessionId, int] = {}  # the last delivery written of each session
        self._wanted: dict[SessionId, Birth] = {}
        self._origins: set[SessionId | None] = set()
        self._namespaces: set[str] = set()

    async def write(self, births: Iterable[Birth]) -> None:
        self._wanted = {birth.id: birth for birth in births}
        self._origins = {birth.origin for birth in self._wanted.values()}
        stack = list(reversed(self._wanted))
        postponed: set[SessionId] = set()
        while stack:
            session_id = stack.pop()
            if session_id in self.written:
                continue
            first = self._before(session_id)
            if first is not None and session_id not in postponed:
                postponed.add(session_id)
                stack += [session_id, first]
                continue
            try:
                record, items = await self._read(session_id)
            except UnknownSession:  # deleted since it was listed
                continue
            attached: list[AttachmentLine] = []
            for made in [] if self._parts else await self._store.attachments(session_id):
                _, data = await self._store.attachment(session_id, made.id)
                attached.append(AttachmentLine(made.id, made.media_type, data))
            self._one(record, attached, items)
            stack += reversed([child async for child in self._children(record)])
            self._progress(len(self.written), len(self.written) + len(stack))
            await asyncio.sleep(0)

    def _before(self, session_id: SessionId) -> SessionId | None:
        """A session that must be written before this one."""
        birth = self._wanted.get(session_id)
        if birth is None:
            return None
        for other in (birth.parent, birth.origin):
            if other is not None and other in self._wanted and other not in self.written:
                return other
        return None

    async def _read(self, session_id: SessionId) -> tuple[SessionRecord, list[IntakeItem]]:
        """A consistent session and intake: a delivered item is not queued as well. Reads until the
        revision is the same before and after.
        """
        record = await self._store.load(session_id)
        while True:
            items = await self._store.intake(
                session_id, lambda intake: [*intake.items.values()], whole=True
            )
            since = await self._store.load(session_id, record.head.n + 1)
            if since.head.revision == record.head.revision:
                return record, items
            known = [
                one for one in record.deliveries if one.n <= since.head.n - len(since.deliveries)
            ]
            record = msgspec.structs.replace(since, deliveries=known + since.deliveries)

    async def _children(self, record: SessionRecord) -> AsyncIterator[SessionId]:
        """The children that this record asked for. The imported parent would start a later one
        again.
        """
        asked = {
            q for q, one in index_queries(record.deliveries).items() if one.kind is Kind.SESSION
        }
        if asked:
            async for row in iterate_sessions(self._store, SessionFilter(parent=record.birth.id)):
                if row.birth.parent_query in asked:
                    yield row.birth.id

    def _one(
        self, record: SessionRecord, attached: list[AttachmentLine], items: list[IntakeItem]
    ) -> None:
        birth = record.birth
        head = record.head
        deliveries = record.deliveries
        asked = index_queries(deliveries)
        self._namespaces |= {
            query.args["in"] for query in asked.values() if query.kind is Kind.STATE
        }
        if birth.program == CARD_PROGRAM:
            self._namespaces.add(CARD_SPACE)
        # a retry delivers the letters of a failed session
        letters = record.letters if head.state is SessionState.FAILED or not head.ended else []
        effects = (
            []
            if head.ended
            else [
                EffectLine(
                    effect.q,
                    effect.since,
                    effect.worker == NO_WORKER,
                    redact.redact_failed_attempt(effect.failed, self._parts),
                )
                for effect in record.effects
            ]
        )
        opening = SessionLine(birth)
        if birth.origin is not None:
            opening, deliveries = self._fork(birth, deliveries)
        if birth.id in self._origins:
            opening = msgspec.structs.replace(opening, forked=True)
        if self._parts:
            opening = msgspec.structs.replace(
                opening, birth=redact.redact_birth(opening.birth, self._parts)
            )
            deliveries = [redact.redact_delivery(each, asked, self._parts) for each in deliveries]
            letters = [redact.redact_letter(each, asked, self._parts) for each in letters]
            items = [redact.redact_item(each, self._parts) for each in items]
        line = HeadLine(
            head.revision,
            head.state,
            head.n,
            head.due_at,
            head.updated_at,
            redact.redact_metrics(head.metrics, self._parts),
            head.attempts,
        )
        self._writer.session(opening, deliveries, letters, effects, line, attached, items)
        self.written[birth.id] = head.n

    def _fork(self, birth: Birth, deliveries: list[Delivery]) -> tuple[SessionLine, list[Delivery]]:
        """The opening line of a fork, and the deliveries to write: its own if the origin is in the
        file, else all.
        """
        assert birth.origin is not None
        if self.written.get(birth.origin, -1) >= birth.origin_n:
            shared = deliveries[: birth.origin_n + 1]
            own = deliveries[birth.origin_n + 1 :]
            return SessionLine(birth, shares=digest_deliveries(shared)), own
        alone = msgspec.structs.replace(birth, origin=None, origin_n=-1)
        return SessionLine(alone, forked_from=birth.origin, forked_at=birth.origin_n), deliveries

    async def values(self) -> int:
        """Write the durable values of the namespaces that the written sessions have used."""
        count = 0
        if CARD_SPACE in self._namespaces:
            self._namespaces |= set(CARD_NAMESPACES)
        for namespace in sorted(self._namespaces):
            for key in await self._store.keys(namespace):
                value, _ = await self._store.value(namespace, key)
                if value is not None:
                    kept = redact.redact_json(value) if "answers" in self._parts else value
                    self._writer.value(ValueLine(namespace, key, kept))
                    count += 1
        return count


async def export_sessions(
    store: Store,
    file: ExportFile,
    births: Iterable[Birth],
    *,
    header: ExportHeader,
    values: bool,
    progress: ProgressCallback | None = None,
) -> ExportResult:
    """Write sessions and their children to a file. At a path, the complete file appears at once."""
    with _writing(file) as target:
        writer = ExportWriter(target, header)
        exporter = Exporter(store, writer, header.redacted, ensure_progress(progress))
        await exporter.write(births)
        count = await exporter.values() if values else 0
        writer.close()
    return ExportResult(list(exporter.written), count, header.redacted)


async def select_births(
    store: Store, ids: Iterable[str] | None, wanted: SessionFilter
) -> list[Birth]:
    """The births of these sessions in this order, or of all that match a filter, oldest first."""
    if ids is not None:
        return [(await store.load(session_id, since=-1)).birth for session_id in ids]
    return [row.birth async for row in iterate_sessions(store, wanted)][::-1]


# ---- import


async def import_sessions(
    store: Store, file: ExportFile, *, existing: str, progress: ProgressCallback | None = None
) -> ImportResult:
    """Import the sessions of a file. Raises `BadExport`, `SessionExists` or `KeyConflict` before
    anything changes.
    """
    if existing not in ("refuse", "skip"):
        raise BadSetting("existing", f"{existing!r} is not 'refuse' or 'skip'")
    with open_export(file) as (source, name):
        start = source.tell()
        size = source.seek(0, os.SEEK_END) - start
        report = ensure_progress(progress)
        source.seek(start)
        seen, skipped, values = await _check_file(
            store, ExportReader(source, name), existing, lambda read: report(read, 2 * size)
        )
        last = next(
            (session_id for session_id in reversed(seen) if session_id not in skipped), None
        )
        source.seek(start)
        taken: list[SessionId] = []
        written = 0
        reader = ExportReader(source, name)
        for item in reader:
            report(size + reader.bytes, 2 * size)
            if isinstance(item, SessionExport) and item.birth.id not in skipped:
                # one durable commit at the end also flushes all commits before it
                durable = item.birth.id == last
                try:
                    written += await _import_one(
                        store, item, values if not taken else [], durable=durable
                    )
                    taken.append(item.birth.id)
                except SessionExists:  # it was created since the file was checked
                    if existing == "refuse":
                        raise
                    skipped[item.birth.id] = None
                await asyncio.sleep(0)
    return ImportResult(taken, list(skipped), written)


async def _check_file(
    store: Store, reader: ExportReader, existing: str, report: Callable[[int], object]
) -> tuple[list[SessionId], dict[SessionId, None], list[ValueLine]]:
    """Read a file to its end. Returns its sessions, those to skip, and the values. Raises if it
    cannot be imported.
    """
    if reader.header.redacted:
        raise reader.bad("its texts were redacted; such a file can only be checked")
    seen: dict[SessionId, None] = {}
    skipped: dict[SessionId, None] = {}
    values: list[ValueLine] = []
    keys: dict[str, SessionId] = {}
    for item in reader:
        report(reader.bytes)
        if isinstance(item, ValueLine):
            values.append(item)
            continue
        birth = item.birth
        if birth.key is not None:
            holder = keys.setdefault(birth.key, birth.id)
            found = await store.find(birth.key) if holder == birth.id else holder
            if found not in (None, birth.id):
                raise KeyConflict(birth.key, str(found))
        if await _is_here(store, birth.id):
            if existing == "refuse":
                raise SessionExists(birth.id, store.where)
            skipped[birth.id] = None
        elif birth.origin is not None:
            await _origin_fits(store, item, seen)
        seen[birth.id] = None
    return list(seen), skipped, values


async def _is_here(store: Store, session_id: str) -> bool:
    found = await _found(store, session_id)
    return found is not None and not _is_prepared(found)


async def _found(store: Store, session_id: str) -> SessionRecord | None:
    try:
        return await store.load(session_id, since=-1)
    except UnknownSession:
        return None


def _is_prepared(record: SessionRecord) -> bool:
    """Whether a session has only its attachments yet. Any other running session has a letter, a
    timer or an open query.
    """
    head = record.head
    waits = head.mail or head.due_at is not None or head.open_from <= head.n
    return head.state is SessionState.RUNNING and head.n == record.birth.origin_n and not waits


async def _origin_fits(store: Store, carried: SessionExport, seen: Collection[str]) -> None:
    """Check that a fork's origin is earlier in the file, or exists here with the same shared
    steps.
    """
    birth = carried.birth
    assert birth.origin is not None
    try:
        here = (await store.load(birth.origin)).deliveries[: birth.origin_n + 1]
    except UnknownSession:
        if birth.origin in seen:
            return
        raise BadExport(
            carried.where,
            f"it is a fork of {birth.origin}, which is neither earlier in the file nor here",
        ) from None
    if digest_deliveries(here) != carried.opening.shares:
        raise BadExport(
            carried.where, f"it shares steps with {birth.origin}, whose steps here are different"
        )


async def _import_one(
    store: Store, carried: SessionExport, values: list[ValueLine], *, durable: bool
) -> int:
    """Import one session. Returns how many values were written; existing values are not changed.

    The attachments are written before the steps, so that a crash never leaves steps without their
    attachments.
    """
    birth = carried.birth
    shared = []
    ref = await _prepared(store, carried)
    if birth.origin is not None:
        shared = (await store.load(birth.origin)).deliveries[: birth.origin_n + 1]
    while True:
        change = _change(carried, shared)
        change.durable = durable
        if ref is not None:
            change.birth = None
            change.head.ref = ref
        change.writes = [
            ValueWrite(line.namespace, line.key, line.value, 0)
            for line in values
            if (await store.value(line.namespace, line.key))[1] == 0
        ]
        try:
            await store.commit(change, 0 if ref is None else PREPARED_REVISION)
        except Overtaken:
            if not change.writes or await _is_here(store, birth.id):
                raise SessionExists(birth.id, store.where) from None
            continue  # another process wrote one of the values
        break
    if change.head.ended and birth.parent is not None:
        await _notify_parent(store, birth)
    return len(change.writes)


async def _prepared(store: Store, carried: SessionExport) -> int | None:
    """Create a session without steps for the attachments. Returns its number; None without any.

    Nothing moves such a session. One left by an import that died is reused.
    """
    birth = carried.birth
    at = carried.head.updated_at
    known = await _found(store, birth.id)
    if known is None and not carried.attachments:
        return None
    if known is None:
        head = Head(
            0,
            PREPARED_REVISION,
            SessionState.RUNNING,
            birth.origin_n,
            birth.origin_n + 1,
            None,
            at,
            Metrics(),
        )
        await store.commit(Change(birth.id, head, birth=birth), 0)
    for one in carried.attachments:
        await store.attach(
            birth.id, Attachment(one.id, len(one.data), one.media_type), one.data, at
        )
    return (await store.load(birth.id, since=-1)).head.ref


def _change(carried: SessionExport, shared: list[Delivery]) -> Change:
    birth = carried.birth
    line = carried.head
    opened = find_open_queries([*shared, *carried.deliveries])
    working = {effect.q for effect in carried.effects}
    if not working <= opened.keys():
        raise BadExport(carried.where, "an effect belongs to a query that is not open")
    head = Head(
        0,
        line.revision,
        line.state,
        line.n,
        find_first_open_delivery(opened, line.n),
        line.due_at,
        line.updated_at,
        line.metrics,
        len(carried.letters),
        line.attempts,
        is_parked(birth, opened, working),
        line.state not in ENDED and is_asking(opened, working),
    )
    return Change(
        birth.id,
        head,
        carried.deliveries,
        birth,
        notices=list(_notices(opened, working)),
        effects=[
            Effect(
                effect.q,
                NO_WORKER if effect.waits else EXPORTED_WORKER,
                effect.since,
                effect.failed,
            )
            for effect in carried.effects
        ],
        letters=carried.letters,
        intake=(lambda intake: intake.restore(carried.items)) if carried.items else None,
    )


def _notices(opened: dict[int, AskedQuery], working: set[int]) -> Iterator[Notice]:
    """The inbox rows: questions for people, and calls with an unknown outcome."""
    for q, entry in opened.items():
        query = entry.query
        if q in working:
            continue
        if query.kind is Kind.CALL:
            yield Notice(q, query.kind, query.to, entry.at, make_rerun_question(query))
        elif is_noticed(query.kind, query.to):
            yield Notice(q, query.kind, query.to, entry.at, query)


async def _notify_parent(store: Store, child: Birth) -> None:
    """Send a child's outcome to a parent that was imported before, while it still waited."""
    assert child.parent is not None
    whole = await store.load(child.id)
    ended = make_child_answer(
        child, make_finished_status(whole).outcome, sum_answer_usage(whole.deliveries)
    )
    while True:
        try:
            record = await store.load(child.parent, since=-1)
        except UnknownSession:
            return
        head = record.head
        told = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
        if (
            head.ended
            or child.parent_query in told
            or child.parent_query not in find_open_queries(record.deliveries)
        ):
            return
        change = Change(
            child.parent, head, letters=[Letter("answer", ended, head.updated_at)], durable=True
        )
        fence = head.revision
        head.revision = fence + 1
        head.mail = head.mail + 1
        head.state = SessionState.RUNNING
        try:
            return await store.commit(change, fence)
        except Overtaken:
            continue


# ---- files


@contextmanager
def _writing(file: ExportFile) -> Iterator[BinaryIO]:
    if not isinstance(file, str | os.PathLike):
        yield _binary(file, "writable")
        return
    path = Path(file)
    # a device or a pipe is written in place, not replaced
    if path.exists() and not path.is_file():
        try:
            with open(path, "wb") as target:
                yield target
        except OSError as error:
            raise StoreUnavailable(
                str(path), error.strerror or str(error), "Name a file."
            ) from None
        return
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    except OSError as error:
        raise StoreUnavailable(
            str(path), error.strerror or str(error), "Name a file in a folder you may write."
        ) from None
    try:
        with os.fdopen(handle, "wb") as target:
            yield target
            target.flush()
            os.fsync(target.fileno())
        os.replace(partial, path)
    except BaseException as error:
        Path(partial).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreUnavailable(str(path), error.strerror or str(error)) from None
        raise


@contextmanager
def open_export(file: ExportFile) -> Iterator[tuple[BinaryIO, str]]:
    """A seekable file and its name. A pipe is copied to a temporary file first."""
    with ExitStack() as stack:
        if isinstance(file, str | os.PathLike):
            try:
                found: BinaryIO = stack.enter_context(open(file, "rb"))
            except OSError as error:
                raise BadExport(str(file), error.strerror or str(error)) from None
            name = str(file)
        else:
            found = _binary(file, "readable")
            name = str(getattr(file, "name", "the file"))
        if not found.seekable():
            kept = stack.enter_context(tempfile.SpooledTemporaryFile(max_size=1 << 20))
            shutil.copyfileobj(found, kept)
            kept.seek(0)
            found = kept  # type: ignore[assignment]
        yield found, name


def _binary(file: Any, able: str) -> BinaryIO:
    if isinstance(file, io.TextIOBase) or not getattr(file, able, lambda: False)():
        raise BadSetting(
            "file", f"give a path or a {able} file opened in binary mode, not {file!r}"
        )
    found: BinaryIO = file
    return found


_KINDS: Final = (SCHEDULE, TRIGGER, EVENT, HANDOVER)


async def load_timetable(store: Store) -> list[Duty]:
    """All schedules, triggers and events of a store."""
    found: list[Duty] = []
    for kind in _KINDS:
        after = ""
        while page := await store.duties(kind, after=after, limit=500):
            found += page
            after = page[-1].id
    return found


async def copy_timetable(store: Store, duties: list[Duty]) -> dict[str, int]:
    """Copy schedules, triggers and events in one transaction. Existing names are not changed.
    Returns the number of each.
    """
    fresh = [duty for duty in duties if await store.duty(duty.kind, duty.id) is None]
    await store.undertake([msgspec.structs.replace(duty, version=0) for duty in fresh])
    count = Counter(duty.kind for duty in fresh)
    return {f"{kind}s": count[kind] for kind in (SCHEDULE, TRIGGER, EVENT)}
