"""Checksummed rows: encoding and decoding what both durable stores write in the same form.

The seal of a row is a checksum of its content. A row that does not match its seal is damaged and
is never used as an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct, error
from typing import Any, Final
from zlib import crc32

import msgspec

from everhold.core.codec import checksum_row, dumps, loads, to_plain
from everhold.core.intake import Intake, IntakeItem, ItemHold, ItemState
from everhold.core.journal import Delivery, checksum_delivery, decode_deliveries, decode_delivery
from everhold.core.lease import Fence, Lease, LeaseOwner
from everhold.core.metrics import Metrics
from everhold.core.query import FailedAttempt
from everhold.core.session import Birth, Head, SessionId, SessionState
from everhold.errors import BadValue
from everhold.ports.store import Duty, Effect

_numbers = Struct("<qqqqqdd").pack
_json = msgspec.json.Encoder().encode
_failed = msgspec.json.Decoder(FailedAttempt).decode
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


def encode_failed_attempt(failed: FailedAttempt | None) -> str | None:
    """Encodes the failed attempt of a mark for its row."""
    return None if failed is None else _json(failed).decode()


def checksum_mark(ref: int, q: int, worker: str, since: float, failed: str | None) -> int:
    """The seal of a mark. One without a failed attempt keeps the seal it had before that column
    existed.
    """
    row = (ref, q, worker, float(since))
    return checksum_row(*row) if failed is None else checksum_row(*row, failed)


def read_mark(
    ref: int, q: int, worker: str, since: float, failed: str | None, sealed: int
) -> Effect:
    """Decodes a mark; raises `ValueError` if it is damaged."""
    if checksum_mark(ref, q, worker, since, failed) != sealed:
        raise ValueError(f"the mark of q-{q} of session number {ref} does not match its seal")
    return Effect(q, worker, since, None if failed is None else _failed(failed))


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
    if checksum_delivery(n, at, given, said, rest) != sealed:
        raise ValueError(f"delivery {n} of session number {ref} does not match its seal")
    return decode_delivery(n, at, given, said, rest)


def read_journal(ref: int, rows: list[tuple[Any, ...]]) -> list[Delivery]:
    """Decodes deliveries whose texts are bytes; raises one of `UNREADABLE` if a row is damaged."""
    for n, at, answers, asked, notes, sealed in rows:
        if checksum_delivery(n, at, answers, asked, notes) != sealed:
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
        asking,
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
        asking != 0,
    )
    if checksum_head(head, text) != sealed or parked not in _FLAGS:
        raise ValueError(f"the head of session number {ref} does not match its seal")
    return head


_FLAGS: Final = (0, 1, None)
_metrics = msgspec.json.Decoder(Metrics).decode


# ---- intake and duties

#: The columns of a row, in order.
ITEM_COLUMNS: Final = (
    *("seq", "id", "key", "body", "at", "available_at"),
    *("state", "deferred", "hold", "fence", "ended", "seal"),
)
#: The columns that may change.
CHANGING_COLUMNS: Final = ITEM_COLUMNS[-6:]
LEASE_COLUMNS: Final = (
    "seq",
    "owner",
    "incarnation",
    "token",
    "generation",
    "claimed_at",
    "seal",
    "expires_at",
    "released",
)
DUTY_COLUMNS: Final = ("kind", "id", "body", "due_at", "version", "seal")

_NOBODYS: Final = Lease(LeaseOwner("", ""), "", 0, 0.0, 0.0, released=True)
_item = msgspec.json.Decoder(IntakeItem).decode
_hold = msgspec.json.Decoder(ItemHold).decode


def make_item_row(item: IntakeItem) -> tuple[Any, ...]:
    content = msgspec.structs.replace(
        item, state=ItemState.WAITING, deferred=False, hold=None, fence=0, end=None
    )
    body = dumps(content)
    hold = None if item.hold is None else dumps(item.hold)
    ended = None if item.waits else dumps(item.end)
    came = (item.seq, item.id, item.key, body, float(item.at), float(item.available_at))
    row = (*came, item.state.value, int(item.deferred), hold, item.fence, ended)
    return (*row, checksum_row(*row))


def read_item(row: tuple[Any, ...]) -> IntakeItem:
    """Decodes an item; raises `ValueError` if the row is damaged."""
    seq, id, _, body, _, _, state, deferred, hold, fence, ended, sealed = row
    if checksum_row(*row[:-1]) != sealed:
        raise ValueError(f"item {seq} ({id}) does not match its seal")
    return msgspec.structs.replace(
        _item(body),
        state=ItemState(state),
        deferred=bool(deferred),
        hold=None if hold is None else _hold(hold),
        fence=fence,
        end=None if ended is None else loads(ended),
    )


def make_lease_row(lease: Lease | None, seq: int) -> tuple[Any, ...]:
    """The lease row of a session. A session with input but no lease yet has one for the counter."""
    held = _NOBODYS if lease is None else lease
    owner = held.owner
    row = (seq, owner.name, owner.incarnation, held.token, held.generation, float(held.claimed_at))
    return (*row, checksum_row(*row), float(held.expires_at), int(held.released))


def read_lease(row: tuple[Any, ...]) -> tuple[Lease | None, int]:
    """Decodes the lease and the counter; raises `ValueError` if the row is damaged."""
    seq, name, incarnation, token, generation, claimed_at, sealed, expires_at, released = row
    if checksum_row(*row[:6]) != sealed:
        raise ValueError(f"lease {generation} does not match its seal")
    if generation == 0:
        return None, seq
    return Lease(
        LeaseOwner(name, incarnation), token, generation, claimed_at, expires_at, bool(released)
    ), seq


def find_intake_flaws(
    lease: tuple[Any, ...] | None, rows: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[str, str]]:
    """Yields the problems of an intake's rows: a code and a sentence each."""
    try:
        held, seq = (None, 0) if lease is None else read_lease(lease)
    except UNREADABLE:
        yield "broken_seal", "its lease"
        return
    for row in rows:
        try:
            item = read_item(row)
        except (BadValue, *UNREADABLE):
            yield "broken_seal", f"item {row[0]} of its intake"
        else:
            yield from find_item_flaws(held, seq, item)


def find_item_flaws(lease: Lease | None, seq: int, item: IntakeItem) -> Iterator[tuple[str, str]]:
    """Yields the contradictions of an item with its lease and the counter."""
    generation = 0 if lease is None else lease.generation
    if item.hold is not None and item.hold.generation > generation:
        yield (
            "hold",
            f"item {item.seq} is claimed under lease {item.hold.generation}, but the last lease is"
            f" {generation}",
        )
    if item.seq > seq:
        yield "intake", f"item {item.seq} exists, but only {seq} were accepted"


def release_if_held(fence: Fence, came: int, intake: Intake) -> bool:
    """Releases a lease if this fence still holds it; returns whether items newer than number
    `came` are queued.
    """
    intake.release(fence)
    return any(item.seq > came and item.available_at <= intake.now for item in intake.waiting())


def check_duties(duties: Sequence[Duty]) -> None:
    """Raises `BadValue` if a duty cannot be written."""
    for one in duties:
        to_plain([one.kind, one.id, one.due_at], "the duty")
        to_plain(one.body, f"the duty {one.kind}/{one.id}")


def make_duty_row(duty: Duty) -> tuple[Any, ...]:
    """The row of a duty at its next version."""
    due = None if duty.due_at is None else float(duty.due_at)
    row = (duty.kind, duty.id, dumps(duty.body), due, duty.version + 1)
    return (*row, checksum_row(*row))


def read_duty(row: tuple[Any, ...]) -> Duty:
    """Decodes a duty; raises `ValueError` if the row is damaged."""
    kind, id, body, due_at, version, sealed = row
    if checksum_row(kind, id, body, due_at, version) != sealed:
        raise ValueError(f"the duty {kind}/{id} does not match its seal")
    return Duty(kind, id, loads(body), due_at, version)
