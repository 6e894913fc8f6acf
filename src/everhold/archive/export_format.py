"""Exported sessions as text: JSON Lines, one line for each thing, read and written one session at a
time.

    {"everhold": "export", "format": 1, …}                  first, and its format before its shape
    {"line": "session", …} delivery … letter … effect … attachment … item … head end    once for each session
    {"line": "value", …}                                    durable values, if they were asked for
    {"line": "close", …}                                    last

Rules
  1. `end` has the number of its session's lines and their SHA-256, `close` the number of sessions
     and values: what was cut off or changed is found before any of it is used.
  2. Whatever is wrong with a file is a `BadExport` with the line and the reason.
  3. A fork whose origin comes earlier in the file holds only its own deliveries, and the SHA-256 of
     those it shares.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any, BinaryIO, Final

import msgspec

from everhold.core.codec import JSON, loads, to_plain
from everhold.core.intake import IntakeItem
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer
from everhold.core.session import ENDED, Birth, SessionId, SessionState
from everhold.errors import BadExport, BadValue
from everhold.ports.store import Letter

#: The format of exported files. Raised with every change that an older reader would misread, never
#: reused.
EXPORT_FORMAT: Final = 1


class ExportHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    everhold: str = "export"
    format: int = EXPORT_FORMAT
    version: str = ""  # of the everhold that wrote it
    written_at: float = 0.0
    redacted: list[str] = []  # the parts whose texts were replaced


class SessionLine(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="line", tag="session"):
    birth: Birth
    forked: bool = False  # later sessions of the file share its deliveries
    shares: str = ""  # of a fork: digest of the deliveries it shares with its origin
    # of a fork that carries what it shared: where that came from
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
    """A query that somebody was working on: its outcome is unknown wherever this is read."""

    q: int
    since: float


class AttachmentLine(msgspec.Struct, frozen=True, tag_field="line", tag="attachment"):
    """Bytes that the session may read; in a fork also what it shares with its origin."""

    id: str
    media_type: str
    data: bytes  # as base64


class ItemLine(msgspec.Struct, frozen=True, tag_field="line", tag="item"):
    """What waits in the session's intake, or waited: its key is known wherever this is read. Claims
    stay behind.
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
    """One session as a file holds it."""

    where: str  # the file and the line, for errors
    opening: SessionLine
    head: HeadLine
    deliveries: list[Delivery]  # of a fork that names its origin: only its own
    letters: list[Letter]
    effects: list[EffectLine]
    attachments: list[AttachmentLine] = []
    items: list[IntakeItem] = []

    @property
    def birth(self) -> Birth:
        return self.opening.birth


def digest_deliveries(deliveries: Iterable[Delivery]) -> str:
    """A fingerprint of deliveries, the same whatever store they are read from."""
    found = sha256()
    for one in deliveries:
        found.update(
            _encode(DeliveryLine(one.n, float(one.at), one.answers, one.asked, one.notes)) + b"\n"
        )
    return found.hexdigest()


class ExportWriter:
    """Writes a file from its header to its close."""

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
    """Reads a file: its header at once, then session by session. Raises `BadExport` for whatever is
    wrong with it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._line = 0
        self.bytes = 0  # that were read so far
        self.header = self._header()

    def __iter__(self) -> Iterator[SessionExport | ValueLine]:
        sessions = values = 0
        ids: set[str] = set()
        while True:
            line, raw = self._next()
            match line:
                case SessionLine():
                    carried = self._session(line, raw)
                    if carried.birth.id in ids:
                        raise self.bad(f"session {carried.birth.id} is in it twice")
                    ids.add(carried.birth.id)
                    sessions += 1
                    yield carried
                case ValueLine():
                    if len(line.value) != 1:
                        raise self.bad("a value is a list of one")
                    values += 1
                    yield line
                case CloseLine():
                    if (line.sessions, line.values) != (sessions, values):
                        raise self.bad(
                            f"it should hold {line.sessions} sessions and {line.values} values"
                        )
                    if self._raw():
                        raise self.bad("something follows its close")
                    return
                case _:
                    raise self.bad("it belongs to no session")

    def bad(self, reason: str) -> BadExport:
        return BadExport(self._where, reason)

    @property
    def _where(self) -> str:
        return f"{self._name}, line {self._line}"

    def _header(self) -> ExportHeader:
        raw = self._raw()
        self._line = max(self._line, 1)
        try:
            found = loads(raw)
        except BadValue:
            found = None
        if not isinstance(found, dict) or found.get("everhold") != "export":
            raise self.bad("it does not begin as an export of everhold does")
        number = found.get("format")
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise self.bad(f"its format is {number!r}")
        if number > EXPORT_FORMAT:
            raise self.bad(
                f"it has format {number}; this everhold knows formats up to {EXPORT_FORMAT}"
            )
        try:
            return msgspec.convert(found, ExportHeader)
        except msgspec.ValidationError as error:
            raise self.bad(str(error)) from None

    def _raw(self) -> bytes:
        """The next line that is not empty, without its end; nothing at the end of the file."""
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
            raise self.bad("the file ends here, and its close is missing")
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
                f"it should end {line.lines} lines of session {line.session}, and ends {lines}"
            )
        if line.sha256 != found.hexdigest():
            raise self.bad("the lines of its session do not match their checksum")
        flaw = _flaw(carried)
        if flaw:
            raise BadExport(where, flaw)
        return carried

    def _take(self, carried: SessionExport, line: ExportLine) -> None:
        if carried.head is not None:
            raise self.bad("after a head comes an end")
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
                raise self.bad("the session before it has no end")


def _flaw(carried: SessionExport) -> str:
    """What is wrong with a session whose lines can be read and are all there."""
    birth = carried.birth
    head = carried.head
    if head is None:
        return "the session has no head"
    if head.revision < 1 or not birth.seeds:
        return "the session has no revision, or no seed"
    if (birth.origin is None) != (birth.origin_n < 0) or (birth.origin is None) != (
        not carried.opening.shares
    ):
        return "it does not say what it shares with its origin"
    numbers = [delivery.n for delivery in carried.deliveries]
    if numbers != list(range(birth.origin_n + 1, head.n + 1)):
        return f"its deliveries are not those after {birth.origin_n} up to {head.n}"
    last: Any = carried.deliveries[-1].notes if carried.deliveries else None
    if (head.state in ENDED) != (last is not None and last.outcome is not None):
        return f"it is {head.state}, and its journal says otherwise"
    if any(sha256(one.data).hexdigest() != one.id for one in carried.attachments):
        return "an attachment is not what its name says"
    if head.state in ENDED and (
        carried.effects or (carried.letters and head.state is not SessionState.FAILED)
    ):
        return "it has ended, and something waits for it"
    return _unkept(carried.items) or next(
        (f"its letters: {error}" for error in map(_misread, carried.letters) if error), ""
    )


def _unkept(items: list[IntakeItem]) -> str:
    """Why an intake cannot be kept."""
    ids = [item.id for item in items]
    keys = [item.key for item in items if item.key is not None]
    if (
        len({*ids}) < len(ids)
        or len({*keys}) < len(keys)
        or not all(name.strip() for name in (*ids, *keys))
    ):
        return "what waits for it has no name of its own"
    try:
        for item in items:
            to_plain([item.body, item.end, item.turn, item.fence], "what waits for it")
    except BadValue as error:
        return str(error)
    return ""


def _misread(letter: Letter) -> str:
    """Why a letter cannot be handed over."""
    shape = {
        "answer": QueryAnswer,
        "signal": _Signal,
        "cancel": str,
        "start": None,
        "wake": _Wake,
    }.get(letter.kind, QueryAnswer)
    try:
        msgspec.convert(letter.body, shape)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


class _Signal(msgspec.Struct):
    name: str
    value: JSON


class _Wake(msgspec.Struct):
    process: str
    title: str
    event: str | int
