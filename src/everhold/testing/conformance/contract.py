"""The rooms together: what every store promises."""

from __future__ import annotations

from everhold.testing.conformance.attachment import AttachmentRoom
from everhold.testing.conformance.claim import ClaimRoom
from everhold.testing.conformance.commit import CommitRoom
from everhold.testing.conformance.concurrency import TogetherRoom
from everhold.testing.conformance.duty import DutyRoom
from everhold.testing.conformance.fork import DeleteRoom, ForkRoom
from everhold.testing.conformance.harness import OpenStore
from everhold.testing.conformance.inbox import InboxRoom
from everhold.testing.conformance.intake import DueRoom, LetterRoom, WorkerRoom
from everhold.testing.conformance.intake_lanes import ComingRoom
from everhold.testing.conformance.lease import LeaseRoom
from everhold.testing.conformance.maintenance import AskingRoom, ReclaimRoom
from everhold.testing.conformance.reading import ListRoom, LoadRoom
from everhold.testing.conformance.settle import SettleRoom
from everhold.testing.conformance.value import ValueRoom

__all__ = ["OpenStore", "StoreContract"]


class StoreContract(
    CommitRoom,
    TogetherRoom,
    LoadRoom,
    ListRoom,
    ForkRoom,
    DeleteRoom,
    InboxRoom,
    LetterRoom,
    DueRoom,
    WorkerRoom,
    ValueRoom,
    AttachmentRoom,
    LeaseRoom,
    ComingRoom,
    ClaimRoom,
    SettleRoom,
    DutyRoom,
    AskingRoom,
    ReclaimRoom,
):
    """What every store promises."""
