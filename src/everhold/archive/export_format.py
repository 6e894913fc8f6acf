"""The format of exported sessions: JSON Lines, read and written one session at a time.

    {"everhold": "export", "format": 1, …}   the header; its format number is checked first
    {"line": "session", …}                   for each session, followed by its lines:
        delivery … letter … effect … attachment … item … head end
    {"line": "value", …}                     durable values, if they were requested
    {"line": "close", …}                     the last line

Rules
  1. `end` has the number and the SHA-256 of its session's lines; `close` has the number of sessions
     and values. So a truncated or changed file is detected before any of it is used.
  2. Every flaw of a file raises `BadExport` with the line and the reason.
  3. A fork whose origin is earlier in the file has only its own deliveries, and the SHA-256 of the
     shared ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, BinaryIO, Final

import msgspec

from everhold.core.budget import Budget, BudgetChange
from everhold.core.codec import JSON, loads, to_plain
from everhold.core.intake import IntakeItem
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import FailedAttempt, Query, QueryAnswer
from everhold.core.session import ENDED, Birth, SessionId, SessionState
from everhold.engine.accept import BUDGET_LETTER
from everhold.errors import BadExport, BadValue
from everhold.ports.store import Letter

#: The format of exported files. Increased with every change that an older reader would misread.
EXPORT_FORMAT: Final = 1


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header line."""

    everhold: str = "export"
    format: int = EXPORT_FORMAT
    version: str = ""  # of everhold
    written_at: float = 0.0
    redacted: list[str] = []  # the redacted parts


class SessionLine(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="line", tag="session"):
    birth: Birth
    forked: bool = False  # later sessions of the file share its deliveries
    shares: str = ""  # of a fork: digest of the deliveries that it shares with its origin
    # of a fork that contains the shared deliveries: its origin
    forked_from: SessionId | None = None
    forked_at: int | None = None


class DeliveryLine(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="line", tag="delivery"
):
    n: int
    at: float
    answers: list[QueryAnswer] = []
    asked: list[Query] = []
    notes: DeliveryNotes | None = None


class LetterLine(msgspec.Struct, frozen=True, tag_field="line", tag="letter"):
    kind: str
    body: JSON
    at: float


class EffectLine(msgspec.Struct, frozen=True, tag_field="line", tag="effect"):
    """A running effect. Its outcome is unknown after the import, unless it waits for its next
    attempt.
    """

    q: int
    since: float
    waits: bool = False  # for a process that starts it
    failed: FailedAttempt | None = None


class AttachmentLine(msgspec.Struct, frozen=True, tag_field="line", tag="attachment"):
    """An attachment of the session; of a fork also those shared with its origin."""

    id: str
    media_type: str
    data: bytes  # as base64


class ItemLine(msgspec.Struct, frozen=True, tag_field="line", tag="item"):
    """An item of the session's intake, queued or completed, without its claim. Its key stays
    known.
    """

    item: IntakeItem


class HeadLine(msgspec.Struct, frozen=True, tag_field="line", tag="head"):
    revision: int
    state: SessionState
    n: int
    due_at: float | None
    updated_at: float
    metrics: Metrics
    attempts: int


class EndLine(msgspec.Struct, frozen=True, tag_field="line", tag="end"):
    session: SessionId
    lines: int
    sha256: str


class ValueLine(msgspec.Struct, frozen=True, tag_field="line", tag="value"):
    namespace: str
    key: str
    value: list[JSON]  # a list of one


class CloseLine(msgspec.Struct, frozen=True, tag_field="line", tag="close"):
    sessions: int
    values: int


SessionPartLine = (
    SessionLine
    | DeliveryLine
    | LetterLine
    | EffectLine
    | AttachmentLine
    | ItemLine
    | HeadLine
    | EndLine
)
ExportLine = SessionPartLine | ValueLine | CloseLine

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ExportLine).decode


class SessionExport(msgspec.Struct):
    """One session of a file."""

    where: str  # the file and the line, for errors
    opening: SessionLine
    head: HeadLine
    deliveries: list[Delivery]  # of a fork with its origin in the file: only its own
    letters: list[Letter]
    effects: list[EffectLine]
    attachments: list[AttachmentLine] = []
    items: list[IntakeItem] = []

    @property
    def birth(self) -> Birth:
        return self.opening.birth


def digest_deliveries(deliveries: Iterable[Delivery]) -> str:
    """A digest of deliveries, independent of the store."""
    found = sha256()
    for one in deliveries:
        found.update(
            _encode(DeliveryLine(one.n, float(one.at), one.answers, one.asked, one.notes)) + b"\n"
        )
    return found.hexdigest()


class ExportWriter:
    """Writes an exported file, from its header to its last line."""

    def __init__(self, file: BinaryIO, header: ExportHeader) -> None:
        self._file = file
        self._sessions = self._values = 0
        file.write(_encode(header) + b"\n")

    def session(
        self,
        opening: SessionLine,
        deliveries: Iterable[Delivery],
        letters: Iterable[Letter],
        effects: Iterable[EffectLine],
        head: HeadLine,
        attachments: Iterable[AttachmentLine] = (),
        items: Iterable[IntakeItem] = (),
    ) -> None:
        lines = 0
        found = sha256()
        for line in (
            *_lines(opening, deliveries, letters, effects),
            *attachments,
            *map(_item_line, items),
            head,
        ):
            text = _encode(line) + b"\n"
            found.update(text)
            lines += 1
            self._file.write(text)
        self._file.write(_encode(EndLine(opening.birth.id, lines, found.hexdigest())) + b"\n")
        self._sessions += 1

    def value(self, line: ValueLine) -> None:
        self._file.write(_encode(line) + b"\n")
        self._values += 1

    def close(self) -> None:
        self._file.write(_encode(CloseLine(self._sessions, self._values)) + b"\n")


def _lines(
    opening: SessionLine,
    deliveries: Iterable[Delivery],
    letters: Iterable[Letter],
    effects: Iterable[EffectLine],
) -> Iterator[ExportLine]:
    yield opening
    for one in deliveries:
        yield DeliveryLine(one.n, one.at, one.answers, one.asked, one.notes)
    for letter in letters:
        yield LetterLine(letter.kind, letter.body, letter.at)
    yield from effects


def _item_line(item: IntakeItem) -> ItemLine:
    return ItemLine(msgspec.structs.replace(item, hold=None))


class ExportReader:
    """Reads a file: first its header, then session by session. Raises `BadExport`."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._line = 0
        self.bytes = 0  # bytes read so far
        raw = self._raw()
        self._line = max(self._line, 1)
        try:
            found = loads(raw)
        except BadValue:
            found = None
        if not isinstance(found, dict) or found.get("everhold") != "export":
            raise self.bad("it is not an export of everhold")
        number = found.get("format")
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise self.bad(f"its format is {number!r}")
        if number > EXPORT_FORMAT:
            raise self.bad(
                f"it has format {number}; this everhold reads formats up to {EXPORT_FORMAT}"
            )
        try:
            self.header = msgspec.convert(found, ExportHeader)
        except msgspec.ValidationError as error:
            raise self.bad(str(error)) from None

    def __iter__(self) -> Iterator[SessionExport | ValueLine]:
        sessions = values = 0
        ids: set[str] = set()
        while True:
            line, raw = self._next()
            match line:
                case SessionLine():
                    carried = self._session(line, raw)
                    if carried.birth.id in ids:
                        raise self.bad(f"session {carried.birth.id} occurs twice")
                    ids.add(carried.birth.id)
                    sessions += 1
                    yield carried
                case ValueLine():
                    if len(line.value) != 1:
                        raise self.bad("a value must be a list of one element")
                    values += 1
                    yield line
                case CloseLine():
                    if (line.sessions, line.values) != (sessions, values):
                        raise self.bad(
                            f"it should have {line.sessions} sessions and {line.values} values,"
                            f" and has {sessions} and {values}"
                        )
                    if self._raw():
                        raise self.bad("there are lines after the close line")
                    return
                case _:
                    raise self.bad("the line is not part of a session")

    def bad(self, reason: str) -> BadExport:
        return BadExport(self._where, reason)

    @property
    def _where(self) -> str:
        return f"{self._name}, line {self._line}"

    def _raw(self) -> bytes:
        """The next non-empty line without its line break; empty at the end of the file."""
        while raw := self._file.readline():
            self._line += 1
            self.bytes += len(raw)
            if stripped := raw.rstrip(b"\r\n"):
                return stripped
        return b""

    def _next(self) -> tuple[ExportLine, bytes]:
        raw = self._raw()
        if not raw:
            self._line += 1
            raise self.bad("the file is truncated: its close line is missing")
        try:
            return _decode(raw), raw
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.bad(str(error)) from None

    def _session(self, opening: SessionLine, raw: bytes) -> SessionExport:
        where = self._where
        lines = 1
        found = sha256(raw + b"\n")
        carried = SessionExport(where, opening, None, [], [], [])  # type: ignore[arg-type]
        while True:
            line, raw = self._next()
            if isinstance(line, EndLine):
                break
            lines += 1
            found.update(raw + b"\n")
            self._take(carried, line)
        if line.session != opening.birth.id or line.lines != lines:
            raise self.bad(
                f"session {line.session} should have {line.lines} lines, and has {lines}"
            )
        if line.sha256 != found.hexdigest():
            raise self.bad("the lines of the session do not match their checksum")
        flaw = _find_flaw(carried)
        if flaw:
            raise BadExport(where, flaw)
        return carried

    def _take(self, carried: SessionExport, line: ExportLine) -> None:
        if carried.head is not None:
            raise self.bad("a head line must be followed by an end line")
        match line:
            case DeliveryLine():
                carried.deliveries.append(
                    Delivery(line.n, line.at, line.answers, line.asked, line.notes)
                )
            case LetterLine():
                carried.letters.append(Letter(line.kind, line.body, line.at))
            case EffectLine():
                carried.effects.append(line)
            case AttachmentLine():
                carried.attachments.append(line)
            case ItemLine():
                carried.items.append(line.item)
            case HeadLine():
                carried.head = line
            case _:
                raise self.bad("the session before this line has no end line")


def _find_flaw(carried: SessionExport) -> str:
    """The first inconsistency of a complete session; empty if there is none."""
    birth = carried.birth
    head = carried.head
    if head is None:
        return "the session has no head"
    if head.revision < 1 or not birth.seeds:
        return "the session has no revision or no seed"
    if (birth.origin is None) != (birth.origin_n < 0) or (birth.origin is None) != (
        not carried.opening.shares
    ):
        return "its origin and its shared deliveries do not agree"
    numbers = [delivery.n for delivery in carried.deliveries]
    if numbers != list(range(birth.origin_n + 1, head.n + 1)):
        return f"its deliveries are not numbered from {birth.origin_n + 1} to {head.n}"
    last: Any = carried.deliveries[-1].notes if carried.deliveries else None
    if (head.state in ENDED) != (last is not None and last.outcome is not None):
        return f"its state is {head.state}, but its journal does not agree"
    if any(sha256(one.data).hexdigest() != one.id for one in carried.attachments):
        return "an attachment does not match its id"
    if head.state in ENDED and (
        carried.effects or (carried.letters and head.state is not SessionState.FAILED)
    ):
        return "it has ended, but has letters or running effects"
    return _find_item_flaw(carried.items) or next(
        (f"its letters: {error}" for error in map(_find_letter_flaw, carried.letters) if error), ""
    )


def _find_item_flaw(items: list[IntakeItem]) -> str:
    """Why the items of an intake are not valid; empty if they are."""
    ids = [item.id for item in items]
    keys = [item.key for item in items if item.key is not None]
    if (
        len({*ids}) < len(ids)
        or len({*keys}) < len(keys)
        or not all(name.strip() for name in (*ids, *keys))
    ):
        return "its items have empty or repeated ids or keys"
    try:
        for item in items:
            to_plain([item.body, item.end, item.turn, item.fence], "an item of its intake")
    except BadValue as error:
        return str(error)
    return ""


def _find_letter_flaw(letter: Letter) -> str:
    """Why a letter cannot be delivered; empty if it can."""
    shape = {
        "answer": QueryAnswer,
        "signal": _Signal,
        "cancel": str,
        "start": None,
        "wake": _Wake,
        BUDGET_LETTER: _NewBudget,
    }.get(letter.kind, QueryAnswer)
    try:
        msgspec.convert(letter.body, shape)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


class _Signal(msgspec.Struct):
    name: str
    value: JSON


class _NewBudget(msgspec.Struct):
    limits: BudgetChange
    by: JSON

    def __post_init__(self) -> None:
        msgspec.convert(self.limits, Budget)  # raises if they are not limits


class _Wake(msgspec.Struct):
    process: str
    title: str
    event: str | int
