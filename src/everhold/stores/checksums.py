"""Checksummed rows, shared by the durable stores: writing and reading heads and deliveries.

The seal of a row is a checksum of its content. A row that does not match its seal is damaged and
is never used as an answer.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final
from zlib import crc32

import msgspec

from everhold.core.codec import dumps
from everhold.core.journal import Delivery, decode_deliveries, decode_delivery
from everhold.core.journal import checksum_delivery as delivery_seal
from everhold.core.metrics import Metrics
from everhold.core.session import Birth, Head, SessionId, SessionState

_numbers = Struct("<qqqqqdd").pack
_NAN: Final = float("nan")


def checksum_head(head: Head, metrics: bytes) -> int:
    due = _NAN if head.due_at is None else head.due_at
    row = _numbers(
        head.revision, head.n, head.open_from, head.mail, head.attempts, due, head.updated_at
    )
    return crc32(metrics, crc32(row, (_PARKED if head.parked else _STATES)[head.state]))


# A head that is not parked keeps the seal it had before this column existed.
_STATES: Final = {state: crc32(state.encode()) for state in SessionState}
_PARKED: Final = {state: crc32(b"parked", begin) for state, begin in _STATES.items()}


#: Why some strings cannot be stored as text.
LONE_SURROGATE: Final = "a lone surrogate is not text"
#: Exceptions that reading a damaged row may raise.
UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, error, msgspec.MsgspecError)


class StoredBirth(Birth, frozen=True, omit_defaults=True, kw_only=True):
    """A birth as stored. For a fork it also names the session whose rows the fork reads.

    That session is `origin` unless `source` is set. Readers of a `Birth` ignore the field.
    """

    source: SessionId | None = None


def encode_birth(birth: Birth, source: SessionId | None) -> str:
    """Encodes a birth for its row; `source` is the session whose rows a fork reads."""
    if source == birth.origin:
        return dumps(birth)
    return dumps(StoredBirth(**msgspec.structs.asdict(birth), source=source))


def read_delivery(ref: int, row: tuple[Any, ...]) -> Delivery:
    """Decodes a delivery; raises one of `UNREADABLE` if the row is damaged."""
    n, at, answers, asked, notes, sealed = row
    given = answers.encode()
    said = asked.encode()
    rest = None if notes is None else notes.encode()
    if delivery_seal(n, at, given, said, rest) != sealed:
        raise ValueError(f"delivery {n} of session number {ref} does not match its seal")
    return decode_delivery(n, at, given, said, rest)


def read_journal(ref: int, rows: list[tuple[Any, ...]]) -> list[Delivery]:
    """Decodes deliveries whose texts are bytes; raises one of `UNREADABLE` if a row is damaged."""
    for n, at, answers, asked, notes, sealed in rows:
        if delivery_seal(n, at, answers, asked, notes) != sealed:
            raise ValueError(f"delivery {n} of session number {ref} does not match its seal")
    return decode_deliveries(rows)


def read_head(row: tuple[Any, ...]) -> Head:
    """Decodes a head; raises `ValueError` if the row is damaged."""
    (
        ref,
        revision,
        state,
        n,
        open_from,
        due_at,
        updated_at,
        metrics,
        mail,
        attempts,
        sealed,
        parked,
    ) = row
    text = metrics.encode()
    meter = _metrics(text)
    head = Head(
        ref,
        revision,
        SessionState(state),
        n,
        open_from,
        due_at,
        updated_at,
        meter,
        mail,
        attempts,
        bool(parked),
    )
    if checksum_head(head, text) != sealed or parked not in _FLAGS:
        raise ValueError(f"the head of session number {ref} does not match its seal")
    return head


_FLAGS: Final = (0, 1, None)
_metrics = msgspec.json.Decoder(Metrics).decode
