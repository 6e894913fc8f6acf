"""Durable values that are written from outside a program.

Every write to a database belongs to a session, so these belong to a session that has ended. It
says who wrote what.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from everhold.core.codec import JSON
from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.session import Birth, Head, Seed, SessionState, mint
from everhold.core.status import Returned
from everhold.ports.store import Change, ValueWrite


def build_value_session(
    program: str,
    args: Mapping[str, JSON],
    title: str,
    writes: Sequence[ValueWrite],
    *,
    result: JSON,
    now: float,
    everhold: str,
) -> Change:
    """The first and only commit of a session that has ended with these writes."""
    birth = Birth(
        id=mint(now, secrets.randbits(96)),
        program=program,
        args=dict(args),
        created_at=now,
        seeds=[Seed(0, secrets.token_hex(12))],
        title=title,
        everhold=everhold,
    )
    return Change(
        id=birth.id,
        head=Head(0, 1, SessionState.COMPLETED, 0, 0, None, now, Metrics()),
        deliveries=[Delivery(0, now, notes=DeliveryNotes(outcome=Returned(result)))],
        birth=birth,
        writes=writes,
        durable=True,
    )
