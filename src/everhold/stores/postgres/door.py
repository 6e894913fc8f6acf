"""One session's intake on a line: the statements that read it and write it, and what their rows mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from everhold.core.intake import Intake
from everhold.core.session import State
from everhold.stores.lanes import ITEM, LEASE, item_row, lease_row, read_item, read_lease
from everhold.stores.postgres.address import kept, named, read
from everhold.stores.postgres.line import Line

Rows = Sequence[tuple[Any, ...]]
Act = tuple[str, tuple[Any, ...]]

#: The time: one that is given, or the server's.
NOW: Final = "coalesce(%s::float8, extract(epoch FROM clock_timestamp())::float8)"
_ITEM: Final = ", ".join(ITEM)
_LEASE: Final = ", ".join(LEASE)
_CHANGING: Final = ITEM[5:-1]
LOCAL: Final = "SELECT set_config('synchronous_commit', %s, true), set_config('lock_timeout', %s, true)"

_READ_LEASE: Final = f"SELECT {_LEASE} FROM everhold.lease WHERE session = {{of}}"
_READ_ITEMS: Final = (
    f"SELECT {_ITEM} FROM everhold.item WHERE session = {{of}}"
    " AND (%s OR state = 'waiting' OR id = ANY(%s) OR key = ANY(%s))"
)
_WRITE_LEASE: Final = (
    f"INSERT INTO everhold.lease (session, {_LEASE}) VALUES (%s{', %s' * len(LEASE)}) ON CONFLICT (session)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in LEASE)}"
)
_WRITE_ITEM: Final = (
    f"INSERT INTO everhold.item (session, {_ITEM}) VALUES (%s{', %s' * len(ITEM)}) ON CONFLICT (session, seq)"
    f" DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _CHANGING)}"
)


def reads(of: str, given: Any, chosen: Sequence[str], *, whole: bool, locked: bool) -> list[Act]:
    """The statements that read the lease, the time and the items of a session, for `read_intake`."""
    names = [kept(name) for name in chosen]
    return [
        (_READ_LEASE.format(of=of) + (" FOR NO KEY UPDATE" if locked else ""), (given,)),
        (f"SELECT {NOW}", (None,)),
        (_READ_ITEMS.format(of=of), (given, whole, names, names)),
    ]


def read_intake(session_id: str, state: State, time: Callable[[], float] | None, found: Sequence[Rows]) -> Intake:
    """An intake from its rows; raises one of `UNREADABLE`, or `BadValue`, if one of them is damaged."""
    leases, clock, items = found
    lease, seq = (None, 0) if not leases else read_lease(_told_lease(leases[0]))
    now = clock[0][0] if time is None else time()
    return Intake(session_id, now, lease, seq, map(read_item, items), state)


def writes(ref: int, intake: Intake) -> Iterator[Act]:
    """The statements that write what was changed."""
    if intake.moved:
        yield _WRITE_LEASE, (ref, *_kept_lease(lease_row(intake.lease, intake.seq)))
    for id, item in intake.written.items():
        if item is None:
            yield "DELETE FROM everhold.item WHERE session = %s AND id = %s", (ref, kept(id))
        else:
            seq, _, key, *rest = item_row(item)
            yield _WRITE_ITEM, (ref, seq, kept(id), None if key is None else kept(key), *rest)


async def sent(line: Line, schema: str, acts: Iterable[Act]) -> list[Rows]:
    """What each of some statements said; they are sent in one go."""
    async with line.pipeline():
        cursors = [await line.execute(named(statement, schema), values) for statement, values in acts]
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _kept_lease(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0], *map(kept, row[1:4]), *row[4:])


def _told_lease(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0], *map(read, row[1:4]), *row[4:])
